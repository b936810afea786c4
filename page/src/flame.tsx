/** Calls over time: a lane for the run and for each run below it; drawn on a canvas, because there may be very many. */
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { money } from "./amounts";
import { begin, type Paint, useTheme } from "./canvas";
import { barAt, type Drawn, drawn, type Lane } from "./lanes";
import { isOpen } from "./record";
import { type Scale, timeAt, xOf } from "./scale";
import type { CallNode } from "./views";

export const ROW = 16;
const GAP = 8;
const LETTERS: Record<CallNode["kind"], string> = { model: "M", tool: "T", child: "C", judge: "J", gate: "■" };

/** Returns how high a lane is; its name takes one row. */
export function heightOf(lane: Lane): number {
  return Math.max(1, lane.rows.length) * ROW + GAP;
}

export interface FlameProps {
  lanes: readonly Lane[];
  scale: Scale;
  selected: CallNode | null;
  cursor: number | null;
  choose(node: CallNode): void;
}

export function Flame(props: FlameProps): JSX.Element {
  const { lanes, scale } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useTheme();
  const height = lanes.reduce((sum, lane) => sum + heightOf(lane), 0);
  useLayoutEffect(() => {
    const started = canvas.current && begin(canvas.current, scale.width, height);
    if (started) draw(started[0], started[1], props, height);
  }, [lanes, scale, props.selected, props.cursor, dark, height]);
  const pressed = (event: MouseEvent): void => {
    const node = nodeAt(lanes, scale, event.offsetX, event.offsetY);
    if (node) props.choose(node);
  };
  const said = `${lanes.length} lanes of calls over time; the tree of calls has the same calls`;
  return (
    <div class="flame">
      <canvas ref={canvas} class="chart" height={height} role="img" aria-label={said} onClick={pressed} />
      <div class="ends" aria-hidden="true">
        {lanes.map((lane, place) => (
          <span key={place} style={{ top: `${lanes.slice(0, place).reduce((sum, each) => sum + heightOf(each), 0)}px` }}>
            {money(lane.cost)}
          </span>
        ))}
      </div>
    </div>
  );
}

/** Returns the call at a place of the drawing. */
function nodeAt(lanes: readonly Lane[], scale: Scale, x: number, top: number): CallNode | null {
  let above = 0;
  for (const lane of lanes) {
    const height = heightOf(lane);
    if (top < above + height) {
      const row = lane.rows[Math.floor((top - above - GAP / 2) / ROW)];
      const slack = (2 / scale.width) * (scale.to - scale.from);
      return row ? (barAt(row, timeAt(scale, x), slack)?.node ?? null) : null;
    }
    above += height;
  }
  return null;
}

function draw(pen: CanvasRenderingContext2D, paint: Paint, props: FlameProps, height: number): void {
  const { lanes, scale, selected, cursor } = props;
  pen.font = `10px ${getComputedStyle(pen.canvas).fontFamily}`;
  pen.textBaseline = "middle";
  let above = 0;
  for (const lane of lanes) {
    lane.rows.forEach((row, place) => {
      for (const bar of drawn(row, (time) => xOf(scale, time), scale.width)) one(pen, paint, bar, above + GAP / 2 + place * ROW, selected);
    });
    above += heightOf(lane);
    pen.fillStyle = paint("line");
    pen.fillRect(0, above - 1, scale.width, 1);
  }
  if (cursor !== null) {
    pen.fillStyle = paint("stop");
    pen.fillRect(xOf(scale, cursor), 0, 1, height);
  }
}

function one(pen: CanvasRenderingContext2D, paint: Paint, bar: Drawn, top: number, selected: CallNode | null): void {
  const { node, x, width } = bar;
  if (node.kind === "gate") {
    pen.fillStyle = paint("stop");
    pen.fillRect(x - 1, top, 3, ROW);
    return;
  }
  pen.fillStyle = paint(node.kind);
  pen.fillRect(x, top + 1, width, ROW - 3);
  if (node.failed) hatch(pen, paint, x, top + 1, width);
  if (width >= 3) {
    pen.strokeStyle = paint("edge");
    pen.lineWidth = 1;
    pen.setLineDash(isOpen(node) ? [3, 2] : []);
    pen.strokeRect(x + 0.5, top + 1.5, width - 1, ROW - 4);
    pen.setLineDash([]);
  }
  if (width >= 12) {
    pen.fillStyle = paint("ink");
    const name = node.kind === "model" ? LETTERS.model : node.name;
    const fits = pen.measureText(name).width < width - 6 ? name : LETTERS[node.kind];
    pen.fillText(fits, Math.max(x, 0) + 4, top + ROW / 2);
  }
  if (selected && selected.number === node.number) {
    pen.strokeStyle = paint("accent");
    pen.lineWidth = 2;
    pen.strokeRect(x, top, Math.max(width, 3), ROW - 1);
  }
}

/** Marks a call that failed by lines across it, not by colour alone. */
function hatch(pen: CanvasRenderingContext2D, paint: Paint, x: number, top: number, width: number): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, top, width, ROW - 3);
  pen.clip();
  pen.strokeStyle = paint("bad");
  pen.lineWidth = 1;
  pen.beginPath();
  for (let left = x - ROW; left < x + width; left += 4) {
    pen.moveTo(left, top + ROW);
    pen.lineTo(left + ROW, top);
  }
  pen.stroke();
  pen.restore();
}
