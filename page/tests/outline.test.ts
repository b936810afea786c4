import { expect, test } from "vitest";
import { outlineOf, rowsOf } from "../src/outline";
import type { CallNode } from "../src/views";

function call(number: number, parent: number | null, cost: number | null = 1): CallNode {
  return { number, seq: number, run_id: "r", kind: "model", name: `${number}`, begin: number, parent, used: { cost_nanos: cost } };
}

const nodes = [call(0, null, 4), call(1, null, 2), call(2, 0, 1), call(3, 2, 8), call(4, 1, null)];

test("each call stands after the one that it is below", () => {
  const rows = rowsOf(nodes, outlineOf(nodes), new Set());
  expect(rows.map((row) => row.node.number)).toEqual([0, 2, 3, 1, 4]);
  expect(rows.map((row) => row.open)).toEqual([true, true, null, true, null]);
});

test("what is below a closed call is not shown", () => {
  const rows = rowsOf(nodes, outlineOf(nodes), new Set([0]));
  expect(rows.map((row) => row.node.number)).toEqual([0, 1, 4]);
});

test("a call costs with all below it what these cost; unknown if one is", () => {
  expect(outlineOf(nodes).subtrees).toEqual([13, null, 9, 8, null]);
});

test("a hundred thousand calls are sorted at once", () => {
  const many = Array.from({ length: 100_000 }, (_, number) => call(number, number % 2 ? number - 1 : null));
  expect(rowsOf(many, outlineOf(many), new Set())).toHaveLength(100_000);
});
