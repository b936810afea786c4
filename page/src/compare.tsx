/** The screen Compare: what differs between two runs, and their steps side by side; it opens on the first divergence. */
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { go, listen, pass } from "./app";
import { Overlay } from "./overlay";
import { hashOf } from "./route";
import { askCompared } from "./server";
import { StatusWords } from "./shapes";
import { AROUND, counted, folded } from "./steps";
import type { Beside, Cell, CompareView, Row, Side } from "./views";

/** How many rows are in the page at first, and come with each further click. */
const ROWS = 400;

interface Place {
  id: string;
  other: string;
  at: number | null;
}

export function Compare({ id, other, at }: Place): JSX.Element {
  const [view, setView] = useState<CompareView | null>(null);
  const [failure, setFailure] = useState("");
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const [most, setMost] = useState(ROWS);
  useEffect(() => {
    setView(null);
    setFailure("");
    setOpen(new Set<number>());
    setMost(ROWS);
    let wanted = true;
    askCompared(id, other).then(
      (found) => wanted && setView(found),
      (error: Error) => wanted && setFailure(error.message),
    );
    return () => {
      wanted = false;
    };
  }, [id, other]);
  const rows = view === null ? [] : folded(view.steps, open);
  const here = at ?? view?.first ?? null;
  const place = rows.findIndex((row) => ("at" in row ? row.at === here : here !== null && row.from <= here && here < row.to));
  const last = Math.max(most, place + AROUND + 1);
  const put = (to: number): void => pass({ screen: "compare", id, other, at: to });
  useEffect(() => {
    document.querySelector("tr.at")?.scrollIntoView({ block: "center" });
  }, [here, view]);
  // Before the next key arrives, not after the next paint.
  useLayoutEffect(() =>
    listen({
      move: (by) => {
        const next = rows[Math.min(Math.max(0, place + by), rows.length - 1)];
        if (next) put("at" in next ? next.at : next.from);
      },
      open: () => {
        const row = rows[place];
        if (row && "from" in row) setOpen(new Set([...open, row.from]));
      },
      back: () => go({ screen: "runs", is: "", q: "" }),
      more: {
        e: () => {
          if (view !== null && view.first !== null) put(view.first);
        },
      },
    }),
  );
  if (failure) return <p class="none">{failure}</p>;
  if (view === null) return <p class="none">Reading both runs…</p>;
  const [one, two] = view.runs;
  return (
    <div class="compare">
      <h1>{view.sentence}</h1>
      {view.notes.map((note) => (
        <p key={note} class="stopped">
          {note}
        </p>
      ))}
      <div class="cards">
        <Facts view={view} />
        <Overlay one={one.run_id} other={two.run_id} forks={forksOf(view)} />
      </div>
      <section class="panel" aria-label="Steps">
        <StepsHead view={view} jump={() => view.first !== null && put(view.first)} />
        <table class="grid beside">
          <thead>
            <tr>
              <th scope="col">
                <Letter which="A" /> {one.item ?? one.prompt} <code>{one.run_id.slice(0, 8)}</code>
              </th>
              <th scope="col">took</th>
              <th scope="col">cost</th>
              <th scope="col">relation</th>
              <th scope="col">
                <Letter which="B" /> {two.item ?? two.prompt} <code>{two.run_id.slice(0, 8)}</code>
              </th>
              <th scope="col">took</th>
              <th scope="col">cost</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, last).map((row) =>
              "at" in row ? (
                <Steps key={row.at} view={view} at={row.at} here={row.at === here} />
              ) : (
                <tr key={row.from} class={here !== null && row.from <= here && here < row.to ? "fold at" : "fold"}>
                  <td colSpan={7}>
                    <button type="button" onClick={() => setOpen(new Set([...open, row.from]))}>
                      {(row.to - row.from).toLocaleString("en")} steps that are the same
                    </button>
                  </td>
                </tr>
              ),
            )}
          </tbody>
        </table>
        {rows.length > last && (
          <button type="button" onClick={() => setMost(last + ROWS)}>
            {Math.min(ROWS, rows.length - last).toLocaleString("en")} more of {rows.length.toLocaleString("en")} rows
          </button>
        )}
      </section>
    </div>
  );
}

/** Returns the event of each run at the first divergence. */
function forksOf(view: CompareView): [number | null, number | null] {
  const rest = view.first === null ? [] : view.steps.slice(view.first);
  const first = (side: "one" | "other"): number | null => rest.find((step) => step[side] !== null)?.[side]?.seq ?? null;
  return [first("one"), first("other")];
}

function Letter({ which }: { which: "A" | "B" }): JSX.Element {
  return <b class={`letter ${which}`}>{which}</b>;
}

function Facts({ view }: { view: CompareView }): JSX.Element {
  const name = (row: Row): string => row.item ?? row.prompt;
  return (
    <section class="panel" aria-label="What differs">
      <table class="facttable">
        <caption>
          What differs <span>B against A</span>
        </caption>
        <thead>
          <tr>
            <th scope="col">
              <span class="unseen">of</span>
            </th>
            {view.runs.map((row, number) => (
              <th key={number} scope="col">
                <Letter which={number ? "B" : "A"} />{" "}
                <a href={hashOf({ screen: "run", id: row.run_id, at: null })}>{name(row)}</a>
              </th>
            ))}
            <th scope="col">difference</th>
            <th scope="col">
              <span class="unseen">in percent</span>
            </th>
          </tr>
        </thead>
        <tbody>
          <tr>
            <th scope="row">ended</th>
            {view.runs.map((row, number) => (
              <td key={number}>
                <StatusWords status={row.status} />
              </td>
            ))}
            <td />
            <td />
          </tr>
          <tr>
            <th scope="row">verdict</th>
            {view.runs.map((row, number) => (
              <td key={number} class={row.verdict}>
                {row.verdict || <span class="dim">unchecked</span>}
              </td>
            ))}
            <td />
            <td />
          </tr>
          {view.facts.map((fact) => (
            <tr key={fact.name}>
              <th scope="row">{fact.name}</th>
              <td>{fact.one}</td>
              <td>{fact.other}</td>
              <td class="dim">{fact.difference}</td>
              <td class="dim">{fact.share}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function StepsHead({ view, jump }: { view: CompareView; jump: () => void }): JSX.Element {
  const { same, content, asked, one, other } = counted(view.steps);
  return (
    <p class="panelhead">
      <b>Steps aligned by kind, name and arguments</b>
      <span class="dim">
        {same.toLocaleString("en")} the same, {content.toLocaleString("en")} with another content,{" "}
        {asked.toLocaleString("en")} with other arguments, {one.toLocaleString("en")} only A,{" "}
        {other.toLocaleString("en")} only B
      </span>
      {view.first !== null && (
        <button type="button" onClick={jump}>
          First divergence <kbd>e</kbd>
        </button>
      )}
    </p>
  );
}

const RELATIONS: Record<Beside["relation"], string> = {
  same: "=",
  content: "≠ content",
  asked: "≠ arguments",
  one: "only A",
  other: "only B",
};

function Steps({ view, at, here }: { view: CompareView; at: number; here: boolean }): JSX.Element | null {
  const step = view.steps[at];
  if (!step) return null;
  const [one, two] = view.runs;
  return (
    <>
      {at === view.first && view.fork && <Fork at={at} sides={view.fork} />}
      <tr class={here ? `r-${step.relation} at` : `r-${step.relation}`}>
        <Half cell={step.one} id={one.run_id} />
        <td class="relation">{RELATIONS[step.relation]}</td>
        <Half cell={step.other} id={two.run_id} />
      </tr>
    </>
  );
}

function Fork({ at, sides }: { at: number; sides: [Side, Side] }): JSX.Element {
  return (
    <>
      <tr class="fork">
        <th scope="rowgroup" colSpan={7}>
          First divergence: step {(at + 1).toLocaleString("en")}
          {at > 0 && <span class="dim"> both were the same until here</span>}
        </th>
      </tr>
      <tr class="said">
        {sides.map((side, number) => (
          <>
            {number === 1 && <td />}
            <td key={number} colSpan={3}>
              <Letter which={number ? "B" : "A"} /> <b>{side.did}</b>
              {side.words && <pre>{side.words}</pre>}
            </td>
          </>
        ))}
      </tr>
    </>
  );
}

const LETTERS: Record<Cell["kind"], string> = { prompt: "P", model: "M", tool: "T", told: "N", verdict: "V" };

function Half({ cell, id }: { cell: Cell | null; id: string }): JSX.Element {
  if (cell === null) return <td class="missing" colSpan={3} />;
  return (
    <>
      <td class="step">
        <span class={`kind k-${cell.kind}`} title={cell.kind}>
          {LETTERS[cell.kind]}
        </span>{" "}
        <a href={hashOf({ screen: "run", id, at: cell.seq })}>{cell.name}</a> <code>{cell.detail}</code>
        {cell.failed && <span class="failed"> ✗ failed</span>}
      </td>
      <td class="dim">{cell.took}</td>
      <td>{cell.cost}</td>
    </>
  );
}
