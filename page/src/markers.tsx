/** What happened beside the calls, on the time ruler: each kind has its own shape and letter. */
import type { JSX } from "preact";
import { type Scale, xOf } from "./scale";
import type { Entry, Marker } from "./views";

export const MARKERS: readonly [Marker, string][] = [
  ["A", "assessment"],
  ["S", "safety"],
  ["V", "verdict"],
  ["B", "rolled back"],
  ["R", "retry"],
];

const SHAPES: Record<Marker, JSX.Element> = {
  A: <path d="M7 .500 13.500 7 7 13.500 .500 7z" />,
  S: <rect x="1" y="1" width="12" height="12" rx="1" />,
  V: <circle cx="7" cy="7" r="6.300" />,
  B: <path d="M0 7 4 1h9.500v12H4z" />,
  R: <path d="M7 .500 14 13.500H0z" />,
};

export function MarkerShape({ marker }: { marker: Marker }): JSX.Element {
  return (
    <svg class={`marker ${marker}`} viewBox="0 0 14 14" aria-hidden="true">
      {SHAPES[marker]}
      <text x="7" y={marker === "R" ? 11.5 : 10} text-anchor="middle">
        {marker}
      </text>
    </svg>
  );
}

export interface Mark {
  x: number;
  entry: Entry;
  many: number;
}

/** Returns the marks in view; those that would lie on each other become one with their number. */
export function marksOf(entries: readonly Entry[], scale: Scale, apart = 15): Mark[] {
  const marks: Mark[] = [];
  for (const entry of entries) {
    if (!entry.marker) continue;
    const x = xOf(scale, entry.at);
    if (x < -1 || x > scale.width + 1) continue;
    const last = marks[marks.length - 1];
    if (last && x - last.x < apart) last.many += 1;
    else marks.push({ x, entry, many: 1 });
  }
  return marks;
}

export function Markers(props: { entries: readonly Entry[]; scale: Scale; at: number | null; choose(seq: number): void }): JSX.Element {
  return (
    <div class="markers" role="group" aria-label="What happened">
      {marksOf(props.entries, props.scale).map(({ x, entry, many }) => (
        <button
          key={entry.seq}
          type="button"
          class={entry.seq === props.at ? "mark chosen" : "mark"}
          style={{ left: `${x}px` }}
          title={`${entry.after} ${entry.what ?? ""}: ${entry.detail ?? ""}`}
          aria-label={`${many > 1 ? `${many} events from ` : ""}${entry.after} ${entry.what || entry.tag}`}
          onClick={() => props.choose(entry.seq)}
        >
          {many > 1 ? <span class="many">{many}</span> : <MarkerShape marker={entry.marker as Marker} />}
        </button>
      ))}
    </div>
  );
}
