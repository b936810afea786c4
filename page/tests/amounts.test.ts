import { expect, test } from "vitest";
import { duration, gaugeAt, money, SECONDS, underWay, usedAt, usesOf, workedAt } from "../src/amounts";
import type { CallNode, Gauge } from "../src/views";

function call(number: number, begin: number, end: number | null, cost: number, more: Partial<CallNode> = {}): CallNode {
  const used = end === null ? {} : { cost_nanos: cost, input_tokens: 10, output_tokens: 5, steps: 1 };
  return { number, seq: number + 1, run_id: "r", kind: "model", name: `turn ${number}`, begin, end, used, ...more };
}

const nodes = [call(0, 0, 100, 4), call(1, 300, 400, 8), call(2, 100, 200, 2), call(3, 400, null, 0, { worst: { cost_nanos: 5 } })];

test("what is used is what the calls had used that had ended by then", () => {
  const uses = usesOf(nodes, ["max_cost_usd", "max_total_tokens", "max_steps"], 0);
  expect([50, 100, 250, 400, 900].map((time) => usedAt(uses, "max_cost_usd", time))).toEqual([0, 4, 6, 14, 14]);
  expect(usedAt(uses, "max_total_tokens", 900)).toBe(45);
  expect(usedAt(uses, "max_steps", 200)).toBe(2);
  expect(usedAt(uses, SECONDS, 900)).toBe(0.9);
});

test("where limits begin anew, what was used before does not count", () => {
  expect(usedAt(usesOf(nodes, ["max_cost_usd"], 150), "max_cost_usd", 900)).toBe(10);
});

test("used, held and left add up to the limit at every moment", () => {
  const said = { used: "", presumed: "", held: "", left: "", limit: "" };
  const gauge: Gauge = { key: "max_cost_usd", name: "Cost", used: 0, presumed: 0, held: 0, left: 0, limit: 40, said, reached: false };
  const uses = usesOf(nodes, ["max_cost_usd"], 0);
  for (const moment of [0, 100, 399, 401, 1000]) {
    const then = gaugeAt(gauge, uses, underWay(nodes, moment), moment);
    expect((then.used ?? 0) + then.held + (then.left ?? 0)).toBe(40);
  }
  expect(gaugeAt(gauge, uses, underWay(nodes, 500), 500)).toMatchObject({ used: 14, held: 5, left: 21 });
});

test("money is cut, never rounded up", () => {
  expect([0, 999_999_999, 1_250_000_000, 312_000, 360_000, 12, 99_999_999].map(money)).toEqual([
    ...["$0.00", "$0.99", "$1.25", "$0.000312", "$0.00036", "<$0.000001", "$0.099999"],
  ]);
});

test("lengths of time are named as the server names them", () => {
  expect([850, 12_400, 200_000, 7_500_000, 3_600_000, 273_600_000].map(duration)).toEqual([
    ...["850ms", "12.4s", "3m 20s", "2h 5m", "1h", "3d 4h"],
  ]);
});

test("of a run that was resumed only the time counts in which a process worked", () => {
  const stretches = [
    { begin: 0, end: 4000, worked: 0 },
    { begin: 10_000, end: null, worked: 5 },
  ];
  expect([2000, 4000, 9000, 10_000, 12_000].map((time) => workedAt(stretches, time))).toEqual([2, 4, 4, 5, 7]);
  expect(workedAt([], 3000)).toBe(3);
});
