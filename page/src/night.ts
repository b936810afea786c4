/** The night as one bar a run: which runs belong to it, and in which line each bar stands. */
import type { Row } from "./views";

/** Runs that begin later than this after all before them have ended are of another night. */
export const PAUSE = 6 * 3600;

/** How many bars are drawn at most, the newest ones. */
export const MOST = 500;

export interface Bar {
  row: Row;
  /** Seconds since 1970. */
  begin: number;
  end: number;
  line: number;
}

export interface Night {
  bars: Bar[];
  begin: number;
  end: number;
  lines: number;
  /** How many runs of the night have no bar. */
  more: number;
}

/** Returns the newest night of some rows; null if none of them says when it began. */
export function night(rows: readonly Row[], now: number): Night | null {
  const bars: Bar[] = [];
  for (const row of rows) {
    if (row.started_at === null) continue;
    const begin = Date.parse(row.started_at) / 1000;
    const end = row.seconds !== null ? begin + row.seconds : row.status.kind === "running" ? Math.max(begin, now) : begin;
    bars.push({ row, begin, end, line: 0 });
  }
  bars.sort((one, other) => one.begin - other.begin);
  let first = 0;
  let last = Number.NEGATIVE_INFINITY;
  bars.forEach((bar, place) => {
    if (bar.begin - last > PAUSE) first = place;
    last = Math.max(last, bar.end);
  });
  const tonight = bars.slice(first);
  const drawn = tonight.slice(-MOST);
  const [earliest] = drawn;
  if (!earliest) return null;
  const end = drawn.reduce((latest, bar) => Math.max(latest, bar.end), earliest.begin + 1);
  const narrowest = (end - earliest.begin) / 200; // a bar has room for its letter
  const ends: number[] = [];
  for (const bar of drawn) {
    const free = ends.findIndex((each) => each <= bar.begin);
    bar.line = free < 0 ? ends.length : free;
    ends[bar.line] = Math.max(bar.end, bar.begin + narrowest);
  }
  return { bars: drawn, begin: earliest.begin, end, lines: ends.length, more: tonight.length - drawn.length };
}

/** Returns round times for the marks below: about eight, on whole minutes or hours of the reader's own clock. */
export function marks(begin: number, end: number): number[] {
  const steps = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 604_800, 2_592_000];
  const step = steps.find((each) => (end - begin) / each <= 10) ?? 31_536_000;
  const zone = -new Date(begin * 1000).getTimezoneOffset() * 60;
  const found: number[] = [];
  for (let at = Math.ceil((begin + zone) / step) * step - zone; at <= end; at += step) found.push(at);
  return found;
}

/** Returns a time of day on the reader's own clock; with seconds where the marks are close. */
export function clock(at: number, close = false): string {
  const time = new Date(at * 1000);
  const two = (number: number): string => String(number).padStart(2, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}${close ? `:${two(time.getSeconds())}` : ""}`;
}

/** Returns a letter of its words for each status, by its key, that no status before it has; empty if none is left. */
export function lettersOf(statuses: readonly { key: string; words: string }[]): Map<string, string> {
  const found = new Map<string, string>();
  const taken = new Set<string>();
  for (const { key, words } of statuses) {
    const letters = words.replace("Stopped: ", "").toUpperCase().match(/\p{L}/gu) ?? [];
    const letter = letters.find((each) => !taken.has(each)) ?? "";
    taken.add(letter);
    found.set(key, letter);
  }
  return found;
}
