import { expect, test } from "vitest";
import { lettersOf, marks, MOST, night, PAUSE } from "../src/night";
import type { Row } from "../src/views";

const BEGIN = Date.parse("2026-11-22T22:00:00Z") / 1000;

function row(after: number, seconds: number | null, kind: "done" | "running" | "lost" = "done"): Row {
  const status = { kind, words: "", key: kind };
  const started_at = new Date((BEGIN + after) * 1000).toISOString();
  const rest = { prompt: "p", item: null, model: "m", took: "", cost_nanos: 0, tokens: 0, verdict: "", advice: null };
  return { run_id: String(after), started_at, seconds, status, gauges: [], batch: "", ...rest };
}

test("runs that ran at once stand above each other", () => {
  const found = night([row(100, 50), row(0, 100), row(50, 200), row(110, 5)], BEGIN);
  expect(found?.bars.map((bar) => [bar.row.run_id, bar.line])).toEqual([
    ["0", 0],
    ["50", 1],
    ["100", 0],
    ["110", 2],
  ]);
  expect([found?.lines, (found?.end ?? 0) - (found?.begin ?? 0)]).toEqual([3, 250]);
});

test("a long pause begins another night, and a running one goes on until now", () => {
  const found = night([row(0, 10), row(PAUSE + 20, null, "running"), row(PAUSE + 30, null, "lost")], BEGIN + PAUSE + 90);
  expect(found?.bars.map((bar) => bar.end - bar.begin)).toEqual([70, 0]);
  expect(night([], BEGIN)).toBeNull();
  expect(night([{ ...row(0, 1), started_at: null }], BEGIN)).toBeNull();
});

test("of very many runs the newest have a bar", () => {
  const found = night(Array.from({ length: MOST + 7 }, (_, number) => row(number, 1)), BEGIN);
  expect([found?.bars.length, found?.more, found?.bars[0]?.row.run_id]).toEqual([MOST, 7, "7"]);
});

test("marks are few and round", () => {
  for (const long of [5, 90, 3600, 9 * 3600, 40 * 86_400, 900 * 86_400]) {
    const found = marks(BEGIN, BEGIN + long);
    expect(found.length).toBeLessThanOrEqual(11);
    expect(found.length).toBeGreaterThan(1);
  }
  expect(marks(BEGIN, BEGIN + 3600).every((at) => at % 300 === 0)).toBe(true);
});

test("each status has a letter of its own", () => {
  const statuses = ["Stopped: cost limit", "Stopped: circuit open", "Process died", "Stopped: ..."].map((words) => ({ key: words, words }));
  expect([...lettersOf(statuses).values()]).toEqual(["C", "I", "P", ""]);
});
