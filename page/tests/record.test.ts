import { expect, test, vi } from "vitest";
import { marksOf } from "../src/markers";
import { follow, madeOf, nodeOf, recordOf, take } from "../src/record";
import { placeBefore } from "../src/state";
import { placeOf } from "../src/transcript";
import type { CallNode, Entry, RunView } from "../src/views";

function call(number: number, more: Partial<CallNode> = {}): CallNode {
  return { number, seq: number + 5, run_id: "r", kind: "model", name: "turn", begin: number, end: number + 1, ...more };
}

const entry = (seq: number, marker: Entry["marker"] = ""): Entry => ({ seq, at: seq, after: "", tag: "x", marker: marker ?? "" });
const head = { run: { run_id: "r", status: { kind: "done" } }, now: 9 } as unknown as RunView;

test("a call that is told again takes the place of what it was", () => {
  const record = recordOf(head);
  take(record, { nodes: [call(0), call(1, { end: null })], entries: [entry(1)] });
  take(record, { nodes: [call(1, { end: 7 })], entries: [entry(2)] });
  expect(record.nodes.map((node) => node.end)).toEqual([1, 7]);
  expect(record.entries.map((each) => each.seq)).toEqual([1, 2]);
  expect(nodeOf(record.nodes, "r", 6)?.number).toBe(1);
});

test("calls of models and of tools are counted apart", () => {
  const kinds = ["model", "tool", "model", "gate", "child"] as const;
  const calls = kinds.map((kind, number) => call(number, { kind, used: { steps: 1 } }));
  expect(madeOf([...calls, call(5, { kind: "tool" })])).toBe("2 model calls, 1 tool call"); // the last was refused
  expect(madeOf([call(0, { end: null })])).toBe("1 model call, 0 tool calls"); // it is under way
  expect(madeOf([call(0, { kind: "child" })])).toBe("1 run below"); // an item, whose calls are on its own page
});

test("a record that begins anew forgets what was told", () => {
  const record = recordOf(head);
  take(record, { nodes: [call(0), call(1)], entries: [entry(1)] });
  take(record, { anew: true, nodes: [call(0)] });
  expect([record.nodes.length, record.entries.length]).toEqual([1, 0]);
});

/** Follows a record of which a test tells. */
function followed(check: (record: ReturnType<typeof recordOf>, tell: (piece: object) => void) => void): void {
  const sources: { onmessage(message: { data: string }): void }[] = [];
  class Source {
    constructor() {
      sources.push(this as never);
    }
    addEventListener(): void {}
    close(): void {}
  }
  vi.stubGlobal("EventSource", Source);
  vi.useFakeTimers();
  const record = recordOf(head);
  const stop = follow(record);
  check(record, (piece) => sources[0]?.onmessage({ data: JSON.stringify(piece) }));
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
}

test("a head is drawn at once with all that was told before it, and nothing is drawn later", () => {
  followed((record, tell) => {
    tell({ nodes: [call(0)] });
    expect(record.version.value).toBe(0);
    tell({ nodes: [call(1)], head: { ...head, whole: true } });
    expect([record.version.value, record.head.value.whole]).toEqual([1, true]);
    vi.advanceTimersByTime(10_000);
    expect(record.version.value).toBe(1);
  });
});

test("a long record that is being read is drawn when it has grown by a quarter, and at its end", () => {
  const calls = (from: number, to: number): CallNode[] => Array.from({ length: to - from }, (_, at) => call(from + at));
  followed((record, tell) => {
    const versions = [[0, 100], [100, 120], [120, 125]].map(([from = 0, to = 0]) => {
      tell({ nodes: calls(from, to) });
      vi.advanceTimersByTime(10_000);
      return record.version.value;
    });
    expect(versions).toEqual([1, 1, 2]);
    tell({ nodes: calls(125, 130), head: { ...head, whole: true } });
    expect(record.version.value).toBe(3);
  });
});

test("an exported page has its record in itself, also with calls left out", () => {
  const record = recordOf({ ...head, nodes: [call(7, { parent: 3 }), call(3), call(9, { parent: 8 })], story: [entry(1)] });
  expect(record.nodes.map((node) => [node.number, node.parent])).toEqual([[0, null], [1, 0], [2, null]]);
  expect(record.live.value).toBe(false);
});

test("an event is found among many", () => {
  const entries = [2, 5, 9].map((seq) => entry(seq));
  expect([2, 9, 4].map((seq) => placeOf(entries, seq))).toEqual([0, 2, -1]);
  expect([null, 1, 5, 8].map((seq) => placeBefore(entries, seq))).toEqual([2, -1, 1, 1]);
});

test("markers that would lie on each other become one with their number", () => {
  const scale = { from: 0, to: 100, width: 100 };
  const marks = marksOf([entry(1, "A"), entry(4), entry(5, "S"), entry(50, "V")], scale);
  expect(marks.map((mark) => [mark.entry.seq, mark.many])).toEqual([[1, 2], [50, 1]]);
});
