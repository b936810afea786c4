import { expect, test } from "vitest";
import { toggled } from "../src/selection";
import { counted, folded } from "../src/steps";
import type { Beside } from "../src/views";

function steps(relations: string): Beside[] {
  const names = { "=": "same", "!": "asked", A: "one", B: "other" } as const;
  return [...relations].map((sign) => ({ relation: names[sign as keyof typeof names], one: null, other: null }));
}

test("equal steps are folded away, but for three next to each difference", () => {
  expect(folded(steps("=========!A======="), new Set())).toEqual([
    { from: 0, to: 6 },
    { at: 6 },
    { at: 7 },
    { at: 8 },
    { at: 9 },
    { at: 10 },
    { at: 11 },
    { at: 12 },
    { at: 13 },
    { from: 14, to: 18 },
  ]);
  expect(folded(steps("=====!"), new Set([0]))).toHaveLength(6);
  expect(folded(steps("!=======!"), new Set())).toHaveLength(9);
  expect(folded(steps("===="), new Set())).toEqual([{ from: 0, to: 4 }]);
  expect(folded([], new Set())).toEqual([]);
});

test("relations are counted", () => {
  expect(counted(steps("==!AAB"))).toEqual({ same: 2, content: 0, asked: 1, one: 2, other: 1 });
});

test("two runs are selected at most, the last two", () => {
  expect(toggled([], "a")).toEqual(["a"]);
  expect(toggled(["a", "b"], "c")).toEqual(["b", "c"]);
  expect(toggled(["a", "b"], "a")).toEqual(["b"]);
});
