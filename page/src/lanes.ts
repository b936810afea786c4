/** Where calls stand in the flame view: a lane for the run and for each that was below it, rows for calls side by side. */
import type { CallNode } from "./views";

export interface Bar {
  node: CallNode;
  begin: number;
  end: number;
}

export interface Lane {
  name: string;
  kind: "run" | "child" | "judge";
  /** The bars of each row, sorted by their beginning; bars of one row do not overlap unless there are too many. */
  rows: Bar[][];
  cost: number;
}

/** More rows than these in a lane lie on each other. */
export const MOST_ROWS = 4;
/** More lanes than these share the last one. */
export const MOST_LANES = 10;

/** Sorts calls into lanes; a call without an end goes on until `now`. */
export function lanesOf(nodes: readonly CallNode[], name: string, now: number): Lane[] {
  const own: Lane = { name, kind: "run", rows: [], cost: 0 };
  const lanes = [own];
  const named = new Map<string, Lane>();
  const inLane: (Lane | undefined)[] = new Array<Lane | undefined>(nodes.length);
  for (const node of nodes) {
    let lane = (node.parent ?? null) === null ? own : (inLane[node.parent as number] ?? own);
    if (node.child_id) {
      const key = node.kind === "judge" ? "judge" : `child ${node.name}`;
      lane = named.get(key) ?? laneFor(lanes, key === "judge" ? "judges" : node.name, node.kind === "judge" ? "judge" : "child");
      named.set(key, lane);
    }
    inLane[node.number] = lane;
    lane.cost += node.used?.cost_nanos ?? 0;
    put(lane, { node, begin: node.begin, end: node.end ?? Math.max(now, node.begin) });
  }
  for (const lane of lanes) for (const row of lane.rows) row.sort((one, other) => one.begin - other.begin);
  return lanes;
}

function laneFor(lanes: Lane[], name: string, kind: Lane["kind"]): Lane {
  const last = lanes[lanes.length - 1];
  if (lanes.length >= MOST_LANES && last) {
    last.name = "others";
    return last;
  }
  const lane: Lane = { name, kind, rows: [], cost: 0 };
  lanes.push(lane);
  return lane;
}

/** Runs and models stand in the first row, what they call below; a row on which there is no room is passed over. */
function put(lane: Lane, bar: Bar): void {
  const first = lane.kind !== "run" && bar.node.child_id ? 0 : bar.node.kind === "model" || bar.node.kind === "gate" ? levelOf(lane) : levelOf(lane) + 1;
  for (let place = first; ; place++) {
    const row = (lane.rows[place] ??= []);
    const last = row[row.length - 1];
    if (!last || last.end <= bar.begin || place >= first + MOST_ROWS - 1) {
      row.push(bar);
      break;
    }
  }
  for (let place = 0; place < lane.rows.length; place++) lane.rows[place] ??= [];
}

function levelOf(lane: Lane): number {
  return lane.kind === "run" ? 0 : 1;
}

/** What is drawn of one row: bars that can be told apart, and strips of those that cannot. */
export type Drawn = { x: number; width: number; node: CallNode; many: number };

/** Returns what of a row is drawn; bars narrower than two pixels that stand close become one strip. */
export function drawn(row: readonly Bar[], x: (time: number) => number, width: number): Drawn[] {
  const found: Drawn[] = [];
  for (const bar of row) {
    const [left, right] = [x(bar.begin), x(bar.end)];
    if (right < 0 || left > width) continue;
    const last = found[found.length - 1];
    const thin = right - left < 2;
    if (thin && last && last.many > 0 && left - (last.x + last.width) < 2) {
      last.width = Math.max(last.width, right - last.x, 1);
      last.many += 1;
    } else {
      const begin = Math.max(left, -2);
      found.push({ x: begin, width: Math.max(Math.min(right, width + 2) - begin, 1), node: bar.node, many: thin ? 1 : 0 });
    }
  }
  return found;
}

/** Returns the bar of a row at a moment, or the next one within `slack` milliseconds. */
export function barAt(row: readonly Bar[], moment: number, slack: number): Bar | null {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((row[middle]?.begin ?? 0) <= moment + slack) low = middle + 1;
    else high = middle;
  }
  const bar = row[low - 1];
  return bar && bar.end + slack >= moment ? bar : null;
}
