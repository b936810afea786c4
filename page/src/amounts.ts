/** What calls have used over time, by the field of the limit that counts it. */
import type { Amounts, CallNode, Gauge, Stretch } from "./views";

/** The field of the limit of time, whose use is the time itself. */
export const SECONDS = "seconds";

/** Returns how much of what a limit counts is in an amount. */
export function amount(used: Amounts | null | undefined, key: string): number {
  if (!used) return 0;
  const [given, returned] = [used.input_tokens ?? 0, used.output_tokens ?? 0];
  switch (key) {
    case "max_cost_usd":
      return used.cost_nanos ?? 0;
    case "max_total_tokens":
      return given + returned;
    case "max_input_tokens":
      return given;
    case "max_output_tokens":
      return returned;
    case "max_steps":
      return used.steps ?? 0;
    case "max_turns":
      return used.turns ?? 0;
    case "max_tool_calls":
      return used.tool_calls ?? 0;
    case "max_retries":
      return used.retries ?? 0;
    default:
      return 0;
  }
}

/** What was used up to each moment at which a call ended. */
export interface Uses {
  since: number;
  stretches: readonly Stretch[];
  times: Float64Array;
  sums: Map<string, Float64Array>;
  open: CallNode[];
}

/** Adds up calls in the order in which they ended; what was used before `since` does not count. */
export function usesOf(nodes: readonly CallNode[], keys: readonly string[], since: number, stretches: readonly Stretch[] = []): Uses {
  const over: CallNode[] = [];
  const open: CallNode[] = [];
  for (const node of nodes) {
    if (node.end === null || node.end === undefined) open.push(node);
    if ((node.end ?? node.begin) >= since && node.used) over.push(node);
  }
  const at = (node: CallNode): number => node.end ?? node.begin;
  over.sort((one, other) => at(one) - at(other));
  const sums = new Map<string, Float64Array>();
  for (const key of keys) {
    const line = new Float64Array(over.length);
    let sum = 0;
    over.forEach((node, place) => {
      sum += amount(node.used, key);
      line[place] = sum;
    });
    sums.set(key, line);
  }
  return { since, stretches, times: Float64Array.from(over, at), sums, open };
}

/** Returns how many of sorted times are at or before a moment. */
export function upTo(times: Float64Array, moment: number): number {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] ?? 0) <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns what is used of a limit at a moment; of the time, in seconds. */
export function usedAt(uses: Uses, key: string, moment: number): number {
  if (key === SECONDS) return workedAt(uses.stretches, moment);
  const place = upTo(uses.times, moment);
  return place === 0 ? 0 : (uses.sums.get(key)?.[place - 1] ?? 0);
}

/** Returns for how many seconds processes had worked on a run at a moment; without stretches, all of the time. */
export function workedAt(stretches: readonly Stretch[], moment: number): number {
  let worked = stretches.length ? 0 : Math.max(0, moment) / 1000;
  for (const { begin, end, worked: before } of stretches) {
    if (begin <= moment) worked = before + (Math.min(moment, end ?? moment) - begin) / 1000;
  }
  return worked;
}

/** Returns the calls that began before a moment and had not ended then. */
export function underWay(nodes: readonly CallNode[], moment: number, except = -1): CallNode[] {
  return nodes.filter((node) => node.begin < moment && (node.end ?? Infinity) > moment && node.number !== except);
}

/** Returns what calls hold of a limit. */
export function heldBy(nodes: readonly CallNode[], key: string): number {
  return nodes.reduce((sum, node) => sum + amount(node.worst, key), 0);
}

/** Writes nano-dollars: digits that are not shown are cut off, so that nothing seems to reach a limit that it has not. */
export function money(nanos: number): string {
  if (nanos >= 100_000_000 || nanos === 0) {
    const cents = Math.floor(nanos / 10_000_000);
    return `$${Math.floor(cents / 100).toLocaleString("en")}.${String(cents % 100).padStart(2, "0")}`;
  }
  if (nanos > 0 && nanos < 1000) return "<$0.000001";
  const millionths = Math.trunc(nanos / 1000);
  const digits = String(Math.abs(millionths)).padStart(6, "0").replace(/0+$/, "").padEnd(2, "0");
  return `${nanos < 0 ? "-" : ""}$0.${digits}`;
}

/** Writes an amount of what a limit counts. */
export function words(key: string, value: number): string {
  if (key === "max_cost_usd") return money(value);
  if (key === SECONDS) return duration(value * 1000);
  return Math.round(value).toLocaleString("en");
}

/** Writes a length of time in milliseconds, as the server does. */
export function duration(ms: number): string {
  if (Math.round(ms) < 1000) return `${Math.round(Math.max(0, ms))}ms`;
  const pair = (amount: number, large: string, small: string, per: number): string =>
    `${Math.floor(amount / per)}${large}${amount % per ? ` ${amount % per}${small}` : ""}`;
  const seconds = ms / 1000;
  if (Math.round(seconds * 10) / 10 < 60) return `${Math.round(seconds * 10) / 10}s`;
  if (Math.round(seconds) < 3600) return pair(Math.round(seconds), "m", "s", 60);
  if (Math.round(seconds / 60) < 48 * 60) return pair(Math.round(seconds / 60), "h", "m", 60);
  return pair(Math.round(seconds / 3600), "d", "h", 24);
}

/** Returns a gauge as it was at a moment, with what calls under way then held. */
export function gaugeAt(gauge: Gauge, uses: Uses, under: readonly CallNode[], moment: number): Gauge {
  const used = usedAt(uses, gauge.key, moment);
  const held = heldBy(under, gauge.key);
  const left = gauge.limit === null ? null : Math.max(0, gauge.limit - used - held);
  const said = { ...gauge.said, used: words(gauge.key, used), held: words(gauge.key, held) };
  return { ...gauge, used, held, left, presumed: 0, said: { ...said, left: left === null ? "unknown" : words(gauge.key, left) } };
}
