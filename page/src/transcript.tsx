/** Entries of a run's record as a list: the transcript, or those of one kind. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { hashOf, type RunRoute } from "./route";
import { Long } from "./texts";
import type { Entry } from "./views";
import { useList } from "./virtual";

export interface EntriesProps {
  entries: readonly Entry[];
  here: number | null;
  focus: number | null;
  route: RunRoute;
  label: string;
  none: string;
  /** What stands below the last entry. */
  children?: ComponentChildren;
}

export function Entries({ entries, here, focus, route, label, none, children }: EntriesProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const list = useList(box, entries.length, 44);
  const place = here === null ? -1 : placeOf(entries, here);
  useEffect(() => {
    if (place >= 0) list.show(place, "middle");
  }, [place, here]);
  return (
    <div ref={box} class="entries" role="group" aria-label={label} tabIndex={0}>
      {entries.length === 0 && <p class="none">{none}</p>}
      <div class="tall" {...(entries.length ? { role: "feed", "aria-label": label } : {})} style={{ height: `${list.height}px` }}>
        {list.rows.map((item) => {
          const entry = entries[item.place];
          if (!entry) return null;
          return (
            <div key={entry.seq} ref={list.measure} data-place={item.place} class="slot" role="presentation" style={{ transform: `translateY(${item.top}px)` }}>
              <Told entry={entry} here={entry.seq === here} stopped={entry.seq === focus} route={route} place={item.place} of={entries.length} />
            </div>
          );
        })}
      </div>
      {children}
    </div>
  );
}

/** Returns the place of an event among entries, which are sorted; -1 if it is not there. */
export function placeOf(entries: readonly Entry[], seq: number): number {
  let [low, high] = [0, entries.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((entries[middle]?.seq ?? 0) < seq) low = middle + 1;
    else high = middle;
  }
  return entries[low]?.seq === seq ? low : -1;
}

interface ToldProps {
  entry: Entry;
  here: boolean;
  stopped: boolean;
  route: RunRoute;
  place: number;
  of: number;
}

function Told({ entry, here, stopped, route, place, of }: ToldProps): JSX.Element {
  const tone = stopped ? " stop" : entry.style === "red" ? " failed" : "";
  const { of: _, ...own } = route;
  const what = entry.what || entry.tag;
  return (
    <article class={`told${tone}${here ? " at" : ""}`} aria-posinset={place + 1} aria-setsize={of} aria-label={what}>
      <a class="when" href={hashOf({ ...own, at: entry.seq })}>
        {entry.after}
      </a>
      <div>
        <p>
          <b>{stopped ? `■ This stopped the run: ${what}` : what}</b> <span>{entry.detail}</span>
        </p>
        {entry.text && <Long run={route.id} seq={entry.seq} text={entry.text} size={entry.size ?? 0} part="text" />}
      </div>
    </article>
  );
}
