/** Texts of events: the beginning comes with the record, the rest when it comes into view, all of it when asked for. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { askEvent, exported } from "./server";
import type { EventView } from "./views";

const KEPT = 500;
const known = new Map<string, Promise<EventView>>();

/** Asks for an event, once. */
export function eventOf(run: string, seq: number, all = false): Promise<EventView> {
  const key = `${run} ${seq} ${all}`;
  const found = known.get(key) ?? askEvent(run, seq, all);
  known.delete(key);
  known.set(key, found);
  found.catch(() => known.delete(key));
  for (const old of known.keys()) {
    if (known.size <= KEPT) break;
    known.delete(old);
  }
  return found;
}

/** Returns an event once it is there, or why it is not. */
export function useEvent(run: string, seq: number | null, wanted = true): EventView | Error | null {
  const [found, setFound] = useState<EventView | Error | null>(null);
  useEffect(() => {
    let live = wanted && seq !== null;
    setFound(null);
    if (live && seq !== null) eventOf(run, seq).then((view) => live && setFound(view), (error: Error) => live && setFound(error));
    return () => {
      live = false;
    };
  }, [run, seq, wanted]);
  return found;
}

export interface LongProps {
  run: string;
  seq: number;
  /** What is there already. */
  text: string;
  /** How many characters the whole has. */
  size: number;
  part: "text" | "raw";
}

/** Shows a text of at most 64 KB, and all of it on demand. */
export function Long({ run, seq, text, size, part }: LongProps): JSX.Element {
  const missing = size > text.length && part === "text";
  const event = useEvent(run, seq, missing);
  const [all, setAll] = useState<string | null>(null);
  useEffect(() => setAll(null), [run, seq]);
  const shown = all ?? (event && !(event instanceof Error) ? event[part] : text);
  const cut = all === null && size > MOST;
  return (
    <>
      <pre tabIndex={0}>{shown}</pre>
      {cut && exported !== null && <p class="dim">This file was exported without the rest of {size.toLocaleString("en")} characters.</p>}
      {cut && exported === null && (
        <button type="button" onClick={() => void eventOf(run, seq, true).then((view) => setAll(view[part]))}>
          Show all {size.toLocaleString("en")} characters
        </button>
      )}
    </>
  );
}

/** How many characters the server hands out unless all are asked for. */
export const MOST = 65_536;
