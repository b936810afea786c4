/** What all of the page shares: the route, and what a key does on the present screen. */
import { signal } from "@preact/signals";
import { hashOf, type Route, routeOf } from "./route";
import { exported } from "./server";

export const route = signal<Route>(routeOf(location.hash || (exported?.home ?? "")));
export const helpShown = signal(false);

addEventListener("hashchange", () => {
  route.value = routeOf(location.hash);
});

export function go(to: Route): void {
  location.hash = hashOf(to);
}

/** Goes on in the same place of the history: for a search that is being typed, a row that is passed. */
export function pass(to: Route): void {
  history.replaceState(null, "", hashOf(to));
  route.value = to;
}

export interface Keys {
  move(by: number): void;
  open(): void;
  back(): void;
  /** What other keys do on this screen. */
  more?: Record<string, () => void>;
}

let present: Keys | null = null;

export function listen(keys: Keys): () => void {
  present = keys;
  return () => {
    if (present === keys) present = null;
  };
}

addEventListener("keydown", (pressed) => {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
  const target = pressed.target as HTMLElement;
  const search = document.getElementById("search");
  if (pressed.key === "Escape") {
    if (helpShown.value) helpShown.value = false;
    else if (target === search) target.blur();
    else if (present) present.back();
    else go({ screen: "runs", is: "", q: "" }); // a screen that could not be shown
    return;
  }
  if (target instanceof HTMLInputElement && target.type !== "checkbox") return;
  if (target instanceof HTMLSelectElement) return;
  const actions: Record<string, () => void> = {
    j: () => present?.move(1),
    k: () => present?.move(-1),
    "/": () => search?.focus(),
    "?": () => {
      helpShown.value = !helpShown.value;
    },
  };
  // Enter on a link or button is that element's own.
  if (pressed.key === "Enter" && !target.closest("a, button")) present?.open();
  const action = present?.more?.[pressed.key] ?? actions[pressed.key];
  if (action) {
    pressed.preventDefault();
    action();
  }
});
