/** All that stands over time: ruler, burn-down, markers and flame share one axis, one zoom and one cursor. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { gaugeAt, underWay, type Uses } from "./amounts";
import { BurnDown } from "./burndown";
import { useWidth } from "./canvas";
import { Flame, heightOf } from "./flame";
import { Gauges } from "./gauges";
import { lanesOf } from "./lanes";
import { MARKERS, Markers, MarkerShape } from "./markers";
import type { Record } from "./record";
import { clock, moved, offset, type Scale, type Span, ticks, timeAt, xOf, zoomed } from "./scale";
import { CallKind } from "./shapes";
import type { CallNode, RunHead } from "./views";

/** Room at the right for the names of lines and lanes. */
const MARGIN = 84;

export interface TimelineProps {
  record: Record;
  head: RunHead;
  version: number;
  uses: Uses;
  now: number;
  span: Span | null;
  selected: CallNode | null;
  at: number | null;
  moment: number | null;
  choose(node: CallNode): void;
  chooseEvent(seq: number): void;
  show(span: Span | null): void;
}

export function Timeline(props: TimelineProps): JSX.Element {
  const { record, head, version, uses, now, selected } = props;
  const plot = useRef<HTMLDivElement>(null);
  const width = Math.max(120, useWidth(plot) - MARGIN);
  const [pointer, setPointer] = useState<number | null>(null);
  const end = wholeOf(head, now);
  const scale = useMemo<Scale>(() => ({ ...(props.span ?? { from: 0, to: end }), width }), [props.span, end, width]);
  const lanes = useMemo(() => lanesOf(record.nodes, head.run.prompt, now), [record, version, now, head.run.prompt]);
  const cursor = pointer ?? props.moment;
  const gauges = useMemo(() => {
    if (cursor === null || !head.whole) return head.gauges;
    const under = underWay(record.nodes, cursor);
    return head.gauges.map((gauge) => ({ ...gaugeAt(gauge, uses, under, Math.min(cursor, now)), presumed: gauge.presumed }));
  }, [head, uses, cursor]);
  const strong = head.gauges.find((gauge) => gauge.reached)?.key ?? head.projections[0]?.key ?? null;
  useWheel(plot, scale, end, props.show);
  const started = head.run.started_at;
  const at = cursor === null ? head.gauges_at : `at ${offset(cursor)}, ${clock(started, cursor)}`;
  const moveTo = (event: PointerEvent): void => {
    const x = event.clientX - (plot.current?.getBoundingClientRect().left ?? 0);
    setPointer(x <= width ? Math.min(Math.max(0, timeAt(scale, x)), end) : null);
  };
  return (
    <section class="timeline" aria-label="Time" tabIndex={0}>
      <div class="legend">
        {head.gauges.length > 0 ? <Gauges gauges={gauges} at={at} /> : <p>{head.limits}</p>}
        <p class="kinds">
          {MARKERS.map(([letter, name]) => (
            <span key={letter}>
              <MarkerShape marker={letter} /> {name}
            </span>
          ))}
        </p>
        <div class="lanes">
          {lanes.map((lane, place) => (
            <p key={place} style={{ height: `${heightOf(lane)}px` }}>
              {lane.kind === "run" ? <span class="kind">R</span> : <CallKind kind={lane.kind} />} <span class="callname">{lane.name}</span>
            </p>
          ))}
        </div>
      </div>
      <div ref={plot} class="plot" onPointerMove={moveTo} onPointerLeave={() => setPointer(null)}>
        <Ruler scale={scale} start={started} />
        <BurnDown gauges={head.gauges} uses={uses} scale={scale} now={now} strong={strong} projections={head.projections} cursor={cursor} />
        <Markers entries={record.entries} scale={scale} at={props.at} choose={props.chooseEvent} key={version} />
        <Flame lanes={lanes} scale={scale} selected={selected} cursor={cursor} choose={props.choose} />
      </div>
    </section>
  );
}

/** Returns up to when the ruler goes: of a run that goes on, so far that one sees where it may end. */
function wholeOf(head: RunHead, now: number): number {
  const first = head.projections[0];
  const ahead = first ? Math.min(first.late ?? first.likely, now * 2) : now;
  return Math.max(now, ahead, 1) * 1.01;
}

/** Zooms with the wheel about the pointer, and moves with it sideways or while Shift is held. */
function useWheel(plot: { current: HTMLElement | null }, scale: Scale, end: number, show: (span: Span | null) => void): void {
  useEffect(() => {
    const box = plot.current;
    if (!box) return;
    const turned = (event: WheelEvent): void => {
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (!sideways && !event.ctrlKey) return; // plain turning scrolls the page
      event.preventDefault();
      const about = timeAt(scale, event.clientX - box.getBoundingClientRect().left);
      show(event.ctrlKey ? zoomed(scale, event.deltaY > 0 ? 1.25 : 0.8, about, end) : moved(scale, sideways / 1000, end));
    };
    box.addEventListener("wheel", turned, { passive: false });
    return () => box.removeEventListener("wheel", turned);
  }, [scale, end]);
}

export const TIME_KEYS = ["+", "=", "-", ",", ".", "0"] as const;

/** Returns the span that a key leads to. */
export function spanBy(key: (typeof TIME_KEYS)[number], span: Span | null, end: number, about: number | null): Span | null {
  const now = span ?? { from: 0, to: end };
  const middle = about !== null && about >= now.from && about <= now.to ? about : (now.from + now.to) / 2;
  switch (key) {
    case "+":
    case "=":
      return zoomed(now, 0.5, middle, end);
    case "-":
      return zoomed(now, 2, middle, end);
    case ",":
      return moved(now, -0.25, end);
    case ".":
      return moved(now, 0.25, end);
    case "0":
      return null;
  }
}

function Ruler({ scale, start }: { scale: Scale; start: string | null }): JSX.Element {
  return (
    <div class="ruler" aria-hidden="true">
      {ticks(scale).map((time) => (
        <span key={time} style={{ left: `${xOf(scale, time)}px` }}>
          {time === 0 ? clock(start, 0) : offset(time)}
        </span>
      ))}
    </div>
  );
}
