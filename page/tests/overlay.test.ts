import { expect, test } from "vitest";
import { usesOf } from "../src/amounts";
import { pointsOf } from "../src/overlay";
import type { CallNode, Gauge } from "../src/views";

const said = { used: "", presumed: "", held: "", left: "", limit: "" };
const gauge: Gauge = { key: "max_steps", name: "Steps", used: 2, presumed: 0, held: 0, left: 2, limit: 4, said, reached: false };

function call(number: number, end: number): CallNode {
  return { number, seq: number, run_id: "a", kind: "tool", name: "look", begin: end - 1, end, used: { steps: 1 } };
}

test("a line goes down in steps, in its own share of the time", () => {
  const uses = usesOf([call(1, 100), call(2, 200)], ["max_steps"], 0);
  expect(pointsOf(gauge, uses, 400, 800)).toEqual([
    [0, 1],
    [0.125, 1],
    [0.125, 0.75],
    [0.25, 0.75],
    [0.25, 0.5],
    [0.5, 0.5],
    [0.5, 0.5],
  ]);
});
