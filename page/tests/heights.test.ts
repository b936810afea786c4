import { expect, test } from "vitest";
import { Heights } from "../src/heights";

test("rows stand below each other, measured or not", () => {
  const heights = new Heights(10);
  heights.resize(5);
  expect(heights.set(1, 25)).toBe(15);
  expect([0, 1, 2, 3, 5].map((place) => heights.top(place))).toEqual([0, 10, 35, 45, 65]);
  expect([0, 9, 10, 34, 35, 64, 999].map((height) => heights.at(height))).toEqual([0, 0, 1, 1, 2, 4, 4]);
});

test("rows that are added leave the others where they are", () => {
  const heights = new Heights(10);
  heights.resize(3);
  heights.set(0, 40);
  heights.resize(6);
  expect([heights.top(1), heights.top(6), heights.at(41)]).toEqual([40, 90, 1]);
  heights.resize(1);
  expect([heights.top(6), heights.at(100)]).toEqual([40, 0]);
});

test("of no rows there is none", () => {
  const heights = new Heights(10);
  expect([heights.top(0), heights.at(0)]).toEqual([0, 0]);
});

test("the place of every row is the sum of those before it", () => {
  const heights = new Heights(3);
  heights.resize(1_000);
  const sizes = Array.from({ length: 1_000 }, (_, place) => (place * 7919) % 50 + 1);
  sizes.forEach((size, place) => heights.set(place, size));
  let sum = 0;
  for (const [place, size] of sizes.entries()) {
    expect(heights.top(place)).toBe(sum);
    expect(heights.at(sum)).toBe(place);
    sum += size;
  }
});
