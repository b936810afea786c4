import { expect, test } from "vitest";
import type { Uses } from "../src/amounts";
import { answers } from "../src/detail";
import type { CallNode, Gauge, RunHead } from "../src/views";

const gauge = (key: string, name: string, limit: number): Gauge => ({ key, name, limit, used: 0, left: limit, presumed: 0, held: 0, reached: false }) as unknown as Gauge;
const uses = { times: [], sums: new Map(), stretches: [] } as unknown as Uses;
const asked = ["max_steps", "max_total_tokens", "max_cost_usd"].map((key) => ({ key, name: key, calls: ["llm"] }));
const refused: CallNode = { number: 0, seq: 5, run_id: "r", kind: "gate", name: "next call refused", begin: 1, end: 1, refused_at: "max_total_tokens", asked: 4266, left: 4120 };

test("a limit around the run that refused a call has its row, with what was left there and what was asked", () => {
  const head = { gauges: [gauge("max_steps", "Steps", 9), gauge("max_cost_usd", "Cost", 7)], asked } as unknown as RunHead;
  expect(answers({ head, nodes: [refused], uses, node: refused }).map(({ name, left, asks, is }) => [name, left, asks, is])).toEqual([
    ["Steps", 9, null, "passed"],
    ["max_total_tokens of what is around it", 4120, 4266, "refused"],
    ["Cost", 7, null, "not asked"],
  ]);
});

test("a limit of the run that refused a call has one row", () => {
  const head = { gauges: [gauge("max_total_tokens", "Tokens", 5000)], asked } as unknown as RunHead;
  expect(answers({ head, nodes: [refused], uses, node: refused })).toEqual([{ key: "max_total_tokens", name: "Tokens", left: 4120, asks: 4266, is: "refused" }]);
});
