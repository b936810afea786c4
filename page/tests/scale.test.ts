import { expect, test } from "vitest";
import { moved, offset, ticks, timeAt, xOf, zoomed } from "../src/scale";

const scale = { from: 1000, to: 3000, width: 200 };

test("a place on the ruler and its moment lead to each other", () => {
  for (const time of [1000, 1234, 3000]) expect(timeAt(scale, xOf(scale, time))).toBeCloseTo(time);
});

test("zooming keeps the moment that it is about in its place", () => {
  const near = zoomed(scale, 0.5, 1500, 10_000);
  expect(near).toEqual({ from: 1250, to: 2250 });
  expect(zoomed(scale, 10, 1500, 10_000)).toBeNull();
});

test("moving ends at the edges", () => {
  expect(moved(scale, -5, 10_000)).toEqual({ from: 0, to: 2000 });
  expect(moved(scale, 0.5, 10_000)).toEqual({ from: 2000, to: 4000 });
  expect(moved(scale, 50, 10_000)).toEqual({ from: 8000, to: 10_000 });
});

test("ticks are round moments far enough apart", () => {
  expect(ticks(scale, 40)).toEqual([1000, 1500, 2000, 2500, 3000]);
  expect(ticks({ from: 0, to: 740_000, width: 1000 })).toHaveLength(13);
});

test("moments are named by how long after the start they are", () => {
  expect([0, 350, 4_500, 125_000, 12_005_000].map(offset)).toEqual(["+0ms", "+350ms", "+4.5s", "+2:05", "+3:20:05"]);
});
