import { expect, test } from "vitest";
import { chosen } from "../src/filter";
import { share } from "../src/gauges";
import type { Row } from "../src/views";

function row(run_id: string, key: string, item: string | null = null): Row {
  return {
    run_id,
    prompt: "inbox/triage",
    item,
    model: "openai:gpt-5",
    started_at: null,
    seconds: null,
    took: "",
    cost_nanos: 0,
    tokens: 0,
    status: { kind: "stopped", words: "Stopped: deadline", key },
    verdict: "",
    advice: null,
    gauges: [],
    batch: item === null ? "" : "c3",
  };
}

const rows = [row("a1", "timeout"), row("b2", "done", "mail.txt")];

test("a status and every word of the search must match", () => {
  expect(chosen(rows, { is: "", q: "" })).toEqual(rows);
  expect(chosen(rows, { is: "timeout", q: "" })).toEqual([rows[0]]);
  expect(chosen(rows, { is: "", q: "TRIAGE mail" })).toEqual([rows[1]]);
  expect(chosen(rows, { is: "timeout", q: "mail" })).toEqual([]);
  expect(chosen(rows, { is: "", q: "c3" })).toEqual([rows[1]]); // by the id of its run over many
  expect(chosen(rows, { is: "", q: "", prompt: "other" })).toEqual([]);
  expect(chosen(rows, { is: "", q: "", model: "openai:gpt-5" })).toEqual(rows);
});

test("what is to be looked at first names its runs", () => {
  const hint = { key: "k", kind: "lost", title: "", since: null, until: null, detail: "", run_ids: ["b2"] } as const;
  const hints = [{ ...hint, run_ids: [...hint.run_ids] }];
  expect(chosen(rows, { is: "", q: "", first: "k" }, hints)).toEqual([rows[1]]);
  expect(chosen(rows, { is: "", q: "", first: "gone" }, hints)).toEqual([]);
});

test("a bar stays between nothing and all", () => {
  expect(share(null, 10)).toBe(0);
  expect(share(5, null)).toBe(0);
  expect(share(5, 10)).toBe(50);
  expect(share(50, 10)).toBe(100);
});
