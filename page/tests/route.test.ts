import { expect, test } from "vitest";
import { hashOf, routeOf } from "../src/route";

test("an address leads to the place that it was made of", () => {
  for (const route of [
    { screen: "runs", is: "", q: "" },
    { screen: "runs", is: "timeout", q: "a b&c#d" },
    { screen: "runs", is: "", q: "", prompt: "a/b", model: "openai:gpt-5", first: "openai 23:44" },
    { screen: "run", id: "7f3a", at: null },
    { screen: "run", id: "7f3a", at: 17 },
    { screen: "compare", id: "7f3a", other: "c41e", at: null },
    { screen: "compare", id: "7f3a", other: "c41e", at: 3 },
    { screen: "run", id: "7f3a", at: 17, of: "99", tab: "state", from: 0, to: 1500.5 },
  ] as const) {
    expect(routeOf(hashOf(route))).toEqual(route);
  }
});

test("anything else leads to the runs", () => {
  for (const hash of ["", "#", "#/", "#/run/", "#/other/7", "#/compare/7"]) {
    expect(routeOf(hash)).toEqual({ screen: "runs", is: "", q: "" });
  }
});

test("a part of an address that means nothing is left out", () => {
  expect(routeOf("#/run/7f3a?at=x&tab=nothing&from=9&to=3")).toEqual({ screen: "run", id: "7f3a", at: null });
});
