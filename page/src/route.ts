/** Where the reader is, as the part of the address behind `#`: `#/runs?is=timeout&q=mail`, `#/run/ID?at=17&tab=state`,
 * `#/compare/ID/OTHER?at=17`. */

export const TABS = ["transcript", "state", "assessments", "safety", "verdicts", "log", "raw"] as const;
export type Tab = (typeof TABS)[number];

/** `is` is a status, `first` a thing to look at first; both, the prompt and the model are filters. */
export interface RunsRoute {
  screen: "runs";
  is: string;
  q: string;
  prompt?: string;
  model?: string;
  first?: string;
}

/** `at` is an event of the run, or of the run below it that `of` names; `from` and `to` are milliseconds of the ruler. */
export interface RunRoute {
  screen: "run";
  id: string;
  at: number | null;
  of?: string;
  tab?: Tab;
  from?: number;
  to?: number;
}

/** `at` is the number of a row. */
export interface CompareRoute {
  screen: "compare";
  id: string;
  other: string;
  at: number | null;
}

export type Route = RunsRoute | RunRoute | CompareRoute;

export function routeOf(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const given = new URLSearchParams(query);
  const [screen, id = "", other = ""] = path.split("/").map(decoded);
  if (screen === "run" && id) return runRoute(id, given);
  if (screen === "compare" && id && other) return { screen: "compare", id, other, at: numberOf(given, "at") };
  const found: RunsRoute = { screen: "runs", is: given.get("is") ?? "", q: given.get("q") ?? "" };
  for (const name of ["prompt", "model", "first"] as const) {
    const value = given.get(name);
    if (value) found[name] = value;
  }
  return found;
}

export function hashOf(route: Route): string {
  const given = new URLSearchParams();
  const names = { runs: ["is", "q", "prompt", "model", "first"], run: ["at", "of", "tab", "from", "to"], compare: ["at"] };
  const values = new Map<string, unknown>(Object.entries(route));
  for (const name of names[route.screen]) {
    const value = values.get(name) ?? "";
    if (value !== "") given.set(name, String(value));
  }
  const query = given.toString();
  const path = pathOf(route);
  return query ? `${path}?${query}` : path;
}

function pathOf(route: Route): string {
  if (route.screen === "runs") return "#/runs";
  const ids = route.screen === "compare" ? [route.id, route.other] : [route.id];
  return `#/${route.screen}/${ids.map(encodeURIComponent).join("/")}`;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}

function numberOf(given: URLSearchParams, name: string): number | null {
  const value = Number.parseFloat(given.get(name) ?? "");
  return Number.isFinite(value) ? value : null;
}

function runRoute(id: string, given: URLSearchParams): RunRoute {
  const [of, tab] = [given.get("of"), TABS.find((name) => name === given.get("tab"))];
  const [from, to] = [numberOf(given, "from"), numberOf(given, "to")];
  const range = from !== null && to !== null && from < to ? { from, to } : {};
  return { screen: "run", id, at: numberOf(given, "at"), ...(of ? { of } : {}), ...(tab ? { tab } : {}), ...range };
}
