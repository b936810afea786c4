/**
 * What is left of each limit over time, as lines from all to nothing, with a band for how it may go on.
 *
 * It is drawn by hand, not by a library for charts (uPlot): it has no axes of its own, because one ruler, which zooms and
 * scrolls, holds for this, the flame view and the markers; and the page is in every exported file.
 */
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { amount, SECONDS, upTo, type Uses, usedAt } from "./amounts";
import { begin, type Paint, useTheme } from "./canvas";
import { type Scale, xOf } from "./scale";
import type { Gauge, Projection } from "./views";

const HEIGHT = 140;
const [TOP, BOTTOM] = [6, 6];

/** Dashes that tell the lines apart without colour; the limit that ended the run, or will, is solid and thick. */
export const DASHES: Record<string, number[]> = {
  max_cost_usd: [],
  max_total_tokens: [6, 4],
  max_input_tokens: [6, 2, 2, 2],
  max_output_tokens: [3, 2],
  max_steps: [2, 2],
  max_turns: [8, 3, 2, 3],
  max_tool_calls: [10, 3],
  max_retries: [1, 4],
  [SECONDS]: [12, 4],
};

export interface BurnDownProps {
  gauges: readonly Gauge[];
  uses: Uses;
  scale: Scale;
  now: number;
  strong: string | null;
  projections: readonly Projection[];
  cursor: number | null;
}

export function BurnDown(props: BurnDownProps): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useTheme();
  useLayoutEffect(() => {
    const started = canvas.current && begin(canvas.current, props.scale.width, HEIGHT);
    if (started) draw(started[0], started[1], props);
  }, [props.gauges, props.uses, props.scale, props.now, props.strong, props.projections, props.cursor, dark]);
  return (
    <div class="burn">
      <canvas ref={canvas} class="chart" height={HEIGHT} role="img" aria-label={spoken(props)} />
      <Ends {...props} />
    </div>
  );
}

/** Returns the share of a limit that is left at a moment, from 1 to 0. */
export function shareLeft(gauge: Gauge, uses: Uses, moment: number): number {
  const { key, limit } = gauge;
  if (!limit) return 0;
  return Math.min(1, Math.max(0, 1 - usedAt(uses, key, moment) / limit));
}

const y = (share: number): number => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);

function spoken({ gauges, uses, now }: BurnDownProps): string {
  const each = gauges.map((gauge) => `${gauge.name} ${percent(shareLeft(gauge, uses, now))}`);
  return `What is left of each limit over time; at the end ${each.join(", ")}`;
}

function percent(share: number): string {
  return `${Math.floor(share * 100)}%`;
}

function draw(pen: CanvasRenderingContext2D, paint: Paint, props: BurnDownProps): void {
  const { scale, gauges, strong, cursor } = props;
  pen.strokeStyle = paint("line");
  pen.lineWidth = 1;
  for (const share of [0, 0.5, 1]) stroke(pen, [[0, y(share)], [scale.width, y(share)]]);
  for (const band of props.projections.slice(0, 1)) project(pen, paint, props, band);
  for (const gauge of [...gauges].sort((one, other) => Number(one.key === strong) - Number(other.key === strong))) {
    const important = gauge.key === strong;
    pen.strokeStyle = paint(important ? "stop" : "edge");
    pen.lineWidth = important ? 2 : 1;
    pen.setLineDash(important ? [] : (DASHES[gauge.key] ?? []));
    stroke(pen, lineOf(gauge, props));
    if (important) hold(pen, paint, gauge, props);
  }
  pen.setLineDash([]);
  if (cursor !== null) {
    pen.strokeStyle = paint("stop");
    pen.lineWidth = 1;
    stroke(pen, [[xOf(scale, cursor), 0], [xOf(scale, cursor), HEIGHT]]);
  }
}

function stroke(pen: CanvasRenderingContext2D, points: readonly (readonly [number, number])[]): void {
  pen.beginPath();
  points.forEach(([left, top], place) => (place ? pen.lineTo(left, top) : pen.moveTo(left, top)));
  pen.stroke();
}

/** Returns the points of a line; what falls into one pixel is one step. */
function lineOf(gauge: Gauge, { uses, scale, now }: BurnDownProps): [number, number][] {
  const end = Math.min(now, scale.to);
  const at = (moment: number): [number, number] => [xOf(scale, moment), y(shareLeft(gauge, uses, moment))];
  if (gauge.key === SECONDS) {
    const turns = uses.stretches.flatMap((each) => [each.begin, each.end ?? end]);
    return [scale.from, ...turns.filter((time) => time > scale.from && time < end), end].map(at);
  }
  const points = [at(scale.from)];
  const last = upTo(uses.times, end);
  for (let place = upTo(uses.times, scale.from); place < last; place++) {
    const before = points[points.length - 1] as [number, number];
    const point = at(uses.times[place] as number);
    if (place + 1 < last && xOf(scale, uses.times[place + 1] as number) - before[0] < 0.5) continue;
    points.push([point[0], before[1]], point);
  }
  const before = points[points.length - 1] as [number, number];
  points.push([xOf(scale, end), before[1]]);
  return points;
}

/** Draws below the line what the calls under way hold now. */
function hold(pen: CanvasRenderingContext2D, paint: Paint, gauge: Gauge, { uses, scale, now }: BurnDownProps): void {
  const held = uses.open.reduce((sum, node) => sum + amount(node.worst, gauge.key), 0);
  if (!held || !gauge.limit) return;
  const left = shareLeft(gauge, uses, now);
  const begun = Math.min(...uses.open.map((node) => node.begin));
  const [from, to] = [xOf(scale, begun), xOf(scale, now)];
  pen.fillStyle = paint("stop-bg");
  pen.fillRect(from, y(left), Math.max(2, to - from), y(Math.max(0, left - held / gauge.limit)) - y(left));
}

/** Draws the band of the limit that will be used up first: from now to where its two rates lead. */
function project(pen: CanvasRenderingContext2D, paint: Paint, props: BurnDownProps, band: Projection): void {
  const { scale, gauges, uses, now } = props;
  const gauge = gauges.find((each) => each.key === band.key);
  if (!gauge) return;
  const left = shareLeft(gauge, uses, now);
  const late = band.late ?? scale.to * 4;
  pen.fillStyle = paint("stop-bg");
  pen.beginPath();
  pen.moveTo(xOf(scale, now), y(left));
  pen.lineTo(xOf(scale, band.early), y(0));
  pen.lineTo(xOf(scale, late), y(0));
  pen.fill();
  pen.strokeStyle = paint("stop");
  pen.setLineDash([4, 4]);
  stroke(pen, [[xOf(scale, now), y(left)], [xOf(scale, band.likely), y(0)]]);
  pen.setLineDash([]);
}

/** The names of the lines at their ends, moved apart where they would lie on each other. */
function Ends({ gauges, uses, scale, now, strong }: BurnDownProps): JSX.Element {
  const end = Math.min(now, scale.to);
  const ends = gauges
    .map((gauge) => ({ gauge, share: shareLeft(gauge, uses, end) }))
    .map((each) => ({ ...each, top: y(each.share) - 6 }))
    .sort((one, other) => one.top - other.top);
  for (let place = ends.length - 2, floor = HEIGHT - 13; place >= -1; place--) {
    const below = ends[place + 1];
    if (below) below.top = Math.min(below.top, floor);
    floor = (below?.top ?? floor) - 13;
  }
  return (
    <div class="ends" aria-hidden="true">
      {ends.map(({ gauge, share, top }) => (
        <span key={gauge.key} class={gauge.key === strong ? "stopped" : ""} style={{ top: `${Math.max(0, top)}px` }}>
          {gauge.name.toLowerCase()} {percent(share)}
        </span>
      ))}
    </div>
  );
}
