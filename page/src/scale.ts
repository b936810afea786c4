/** The one time axis of all panels: which moments are shown, where they stand, and how they are named. */

export interface Scale {
  /** Milliseconds after the start at the left and the right edge. */
  from: number;
  to: number;
  /** Pixels between them. */
  width: number;
}

export const LEAST_MS = 1;

export function xOf(scale: Scale, time: number): number {
  return ((time - scale.from) / (scale.to - scale.from)) * scale.width;
}

export function timeAt(scale: Scale, x: number): number {
  return scale.from + (x / scale.width) * (scale.to - scale.from);
}

export interface Span {
  from: number;
  to: number;
}

/** Returns a span that shows `factor` times as much around a moment; null for all there is. */
export function zoomed(span: Span, factor: number, about: number, end: number): Span | null {
  const length = Math.max(LEAST_MS, (span.to - span.from) * factor);
  if (length >= end) return null;
  const share = (about - span.from) / (span.to - span.from);
  return within(about - share * length, length, end);
}

/** Returns a span moved by a share of itself. */
export function moved(span: Span, share: number, end: number): Span {
  const length = span.to - span.from;
  return within(span.from + share * length, length, end);
}

function within(from: number, length: number, end: number): Span {
  const begin = Math.min(Math.max(0, from), Math.max(0, end - length));
  return { from: begin, to: begin + length };
}

const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1000),
];

/** Returns round moments that are at least `apart` pixels from each other. */
export function ticks(scale: Scale, apart = 70): number[] {
  const least = ((scale.to - scale.from) * apart) / Math.max(1, scale.width);
  const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / 86_400_000) * 86_400_000;
  const found: number[] = [];
  for (let time = Math.ceil(scale.from / step) * step; time <= scale.to; time += step) found.push(time);
  return found;
}

/** Names a moment by how long after the start it is: `+350ms`, `+4.5s`, `+12:05`, `+3:20:00`. */
export function offset(ms: number): string {
  if (ms < 1000) return `+${Math.round(ms)}ms`;
  if (ms < 60_000) return `+${Math.round(ms / 100) / 10}s`;
  const seconds = Math.floor(ms / 1000);
  const two = (number: number): string => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `+${hours}:${two(minutes)}:${two(seconds % 60)}` : `+${minutes}:${two(seconds % 60)}`;
}

/** Names a moment by the clock on the wall. */
export function clock(start: string | null, ms: number, seconds = true): string {
  if (start === null) return "";
  const when = new Date(new Date(start).getTime() + ms);
  const two = (number: number): string => String(number).padStart(2, "0");
  const said = `${two(when.getHours())}:${two(when.getMinutes())}`;
  return seconds ? `${said}:${two(when.getSeconds())}` : said;
}
