import { expect, test } from "vitest";
import { barAt, drawn, lanesOf, MOST_LANES } from "../src/lanes";
import type { CallNode } from "../src/views";

function call(number: number, begin: number, end: number | null, more: Partial<CallNode> = {}): CallNode {
  return { number, seq: number, run_id: "r", kind: "model", name: "turn", begin, end, ...more };
}

const child = { kind: "child" as const, name: "lookup", child_id: "c" };

test("a run below another has a lane of its own, with the calls in it", () => {
  const nodes = [call(0, 0, 10), call(1, 10, 40, { ...child, parent: 0 }), call(2, 12, 20, { parent: 1 }), call(3, 20, 30, { kind: "tool", parent: 2 })];
  const lanes = lanesOf(nodes, "top", 40);
  expect(lanes.map((lane) => lane.name)).toEqual(["top", "lookup"]);
  expect(lanes[1]?.rows.map((row) => row.map((bar) => bar.node.number))).toEqual([[1], [2], [3]]);
});

test("calls side by side stand in rows of their own, and an open call goes on until now", () => {
  const nodes = [call(0, 0, 10), call(1, 10, 30, { kind: "tool", parent: 0 }), call(2, 11, null, { kind: "tool", parent: 0 })];
  const [lane] = lanesOf(nodes, "top", 90);
  expect(lane?.rows.map((row) => row.map((bar) => bar.node.number))).toEqual([[0], [1], [2]]);
  expect(lane?.rows[2]?.[0]?.end).toBe(90);
});

test("there are never too many lanes", () => {
  const nodes = Array.from({ length: 40 }, (_, number) => call(number, 0, 1, { ...child, name: `run ${number}` }));
  expect(lanesOf(nodes, "top", 1)).toHaveLength(MOST_LANES);
});

test("bars too thin to be told apart become one strip", () => {
  const row = Array.from({ length: 10_000 }, (_, number) => ({ node: call(number, number, number + 1), begin: number, end: number + 1 }));
  const strips = drawn(row, (time) => time / 100, 100);
  expect(strips).toHaveLength(1);
  expect(strips[0]).toMatchObject({ x: 0, width: 100, many: 10_000 });
});

test("the bar at a moment is found, also next to a thin one", () => {
  const row = [call(0, 0, 10), call(1, 20, 21)].map((node) => ({ node, begin: node.begin, end: node.end ?? 0 }));
  expect(barAt(row, 5, 0)?.node.number).toBe(0);
  expect(barAt(row, 15, 0)).toBeNull();
  expect(barAt(row, 22, 2)?.node.number).toBe(1);
});
