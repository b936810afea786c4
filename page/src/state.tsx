/** The state of the run over time: a slider over the events that changed it, and what each has changed. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { askState } from "./server";
import type { Entry, StateView } from "./views";

export interface StateProps {
  id: string;
  /** The events that changed the state. */
  changes: readonly Entry[];
  at: number | null;
  choose(seq: number): void;
}

export function State({ id, changes, at, choose }: StateProps): JSX.Element {
  const place = placeBefore(changes, at);
  const entry = changes[place];
  const [view, setView] = useState<StateView | null>(null);
  const [failure, setFailure] = useState("");
  const seq = entry?.seq ?? null;
  useEffect(() => {
    let live = seq !== null;
    setFailure("");
    if (seq !== null) {
      askState(id, seq).then(
        (found) => live && setView(found),
        (error: Error) => {
          if (!live) return;
          setView(null);
          setFailure(error.message);
        },
      );
    }
    return () => {
      live = false;
    };
  }, [id, seq]);
  if (changes.length === 0) return <p class="none">No event has changed the state of this run: no reducer of its own was registered.</p>;
  if (!entry) {
    const first = changes[0];
    return (
      <p class="none">
        The state was empty here.{" "}
        {first && (
          <button type="button" onClick={() => choose(first.seq)}>
            Go to the first change, {first.after}
          </button>
        )}
      </p>
    );
  }
  return (
    <div class="entries state">
      <label class="scrub">
        <span>
          Change {(place + 1).toLocaleString("en")} of {changes.length.toLocaleString("en")}, {entry.after}
        </span>
        <input
          type="range"
          min={0}
          max={changes.length - 1}
          value={place}
          onInput={(slid) => {
            const to = changes[Number(slid.currentTarget.value)];
            if (to) choose(to.seq);
          }}
        />
      </label>
      <p>
        Changed by event {entry.seq}, <b>{entry.what || entry.tag}</b> <span class="dim">{entry.detail}</span>
      </p>
      {failure && <p class="failed">{failure}</p>}
      {view?.unknown && <p class="lost">Not all of it is known: {view.unknown}.</p>}
      {view?.slices.map((slice) => (
        <section key={slice.name} aria-label={slice.name}>
          <h2>
            {slice.name}{" "}
            <span>
              {slice.count.toLocaleString("en")} {slice.count === 1 ? "item" : "items"}
              {slice.changed ? ", changed here" : ""}
              {slice.left_out > 0 ? `, the first ${slice.left_out.toLocaleString("en")} are not shown` : ""}
            </span>
          </h2>
          <ol class="items">
            {slice.items.map((item, number) => (
              <li key={number} class={item.sign === "+" ? "added" : item.sign === "-" ? "removed" : ""}>
                <span class="sign">{item.sign || " "}</span>
                <code>{item.text}</code>
              </li>
            ))}
          </ol>
        </section>
      ))}
    </div>
  );
}

/** Returns the place of the last change at or before an event; the last one without an event, -1 before the first. */
export function placeBefore(changes: readonly Entry[], at: number | null): number {
  if (at === null) return changes.length - 1;
  let place = -1;
  for (const [number, entry] of changes.entries()) {
    if (entry.seq > at) break;
    place = number;
  }
  return place;
}
