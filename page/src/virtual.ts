/**
 * A list of which only the rows in view are in the page.
 *
 * TanStack's virtualizer was tried instead. It places all rows behind a measured one anew, and rows are measured as they
 * come into view: with 200,000 of them its longest task was 190 ms in three of three runs, where this had 0 to 127.
 */
import type { RefObject } from "preact";
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import { Heights } from "./heights";

/** How many rows below the view are in the page. */
const BELOW = 8;
/** How far above the view rows are in the page, in pixels: more than the wheel moves it at once. */
const ABOVE = 132;

export interface List {
  /** How high all rows are. */
  height: number;
  /** The rows in the page; a row that comes into view gets the slot, so the element, of one that has left it. */
  rows: { place: number; top: number; slot: number }[];
  /** Brings a row into view: to its middle, or only if it is not there. */
  show(place: number, where: "middle" | "near"): void;
  /** Watches the height of a row's element, whose `data-place` says which it is. */
  measure(element: HTMLElement | null): void;
}

interface Inside {
  heights: Heights;
  observer: ResizeObserver | null;
  /** What is to stay in view while rows around it are measured, until the reader scrolls. */
  aim: number | null;
  /** How many slots there are: the most rows that were in the page. */
  slots: number;
  /** The rows in the page. */
  first: number;
  last: number;
  watched: Set<HTMLElement>;
  /** What has come into the page since the last measuring. */
  fresh: HTMLElement[];
  measure: List["measure"] | null;
}

/** Returns a list of `count` rows in a box that scrolls; `guess` is the height of one in pixels. */
export function useList(box: RefObject<HTMLElement | null>, count: number, guess: number): List {
  const [, draw] = useReducer((turn: number) => turn + 1, 0);
  const kept = useRef<Inside | null>(null);
  const inside = (kept.current ??= { heights: new Heights(guess), observer: null, aim: null, slots: 1, first: 0, last: -1, watched: new Set(), fresh: [], measure: null });
  const { heights } = inside;
  heights.resize(count);
  /** Returns the first and the last row that are to be in the page. */
  const inView = (): [number, number] => {
    const [from, view] = [box.current?.scrollTop ?? 0, box.current?.clientHeight ?? 0];
    const above = heights.at(from) - Math.ceil(ABOVE / guess);
    return [Math.max(0, above), Math.min(heights.count - 1, heights.at(from + view) + BELOW)];
  };
  const toMiddle = (place: number): void => {
    const element = box.current;
    if (element) element.scrollTop = heights.top(place) - (element.clientHeight - heights.of(place)) / 2;
  };
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const redraw = (): void => draw(0);
    const scrolled = (): void => {
      const [first, last] = inView();
      if (first !== inside.first || last !== inside.last) redraw();
    };
    const left = (): void => {
      inside.aim = null;
    };
    const size = new ResizeObserver(redraw);
    size.observe(element);
    element.addEventListener("scroll", scrolled, { passive: true });
    for (const name of ["wheel", "pointerdown", "keydown", "touchmove"]) element.addEventListener(name, left, { passive: true });
    redraw();
    return () => {
      size.disconnect();
      inside.observer?.disconnect();
      element.removeEventListener("scroll", scrolled);
      for (const name of ["wheel", "pointerdown", "keydown", "touchmove"]) element.removeEventListener(name, left);
    };
  }, []);
  // Rows are in the page before they are measured: what is looked at goes back to its place then. That is before they are
  // painted, or each step of scrolling would be painted twice.
  useLayoutEffect(() => {
    if (inside.fresh.length) measured(inside.fresh.splice(0));
    if (inside.aim !== null) toMiddle(inside.aim);
  });
  const measured = (elements: readonly HTMLElement[]): void => {
    const element = box.current;
    const first = element ? heights.at(element.scrollTop) : 0;
    let above = 0;
    let any = false;
    for (const target of elements) {
      if (!target.isConnected) continue;
      const place = Number(target.dataset["place"]);
      const more = heights.set(place, target.offsetHeight);
      any ||= more !== 0;
      if (place < first) above += more;
    }
    if (element && above && inside.aim === null) element.scrollTop += above;
    if (any) draw(0);
  };
  // The same function at every drawing, or each row would be looked at anew.
  const measure = (inside.measure ??= (element) => {
    inside.observer ??= new ResizeObserver((changes) => measured(changes.map((each) => each.target as HTMLElement)));
    for (const gone of inside.watched) {
      if (gone.isConnected) continue;
      inside.observer.unobserve(gone);
      inside.watched.delete(gone);
    }
    if (element && !inside.watched.has(element)) {
      inside.watched.add(element);
      inside.fresh.push(element);
      inside.observer.observe(element);
    }
  });
  const show = (place: number, where: "middle" | "near"): void => {
    const element = box.current;
    if (!element) return;
    const [top, bottom] = [heights.top(place), heights.top(place + 1)];
    if (where === "middle") {
      inside.aim = place;
      toMiddle(place);
    } else if (top < element.scrollTop) element.scrollTop = top;
    else if (bottom > element.scrollTop + element.clientHeight) element.scrollTop = bottom - element.clientHeight;
  };
  const rows: List["rows"] = [];
  const [first, last] = ([inside.first, inside.last] = inView());
  inside.slots = Math.max(inside.slots, last - first + 1);
  for (let place = first; place <= last; place++) rows.push({ place, top: heights.top(place), slot: place % inside.slots });
  return { height: heights.top(count), rows, show, measure };
}
