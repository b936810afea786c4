/** The screen Runs: a sentence whose counts filter, what to look at first, the night, then a row for each task. */
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { go, listen, pass } from "./app";
import { chosen } from "./filter";
import { night } from "./night";
import { NightBars, Overview } from "./overview";
import { hashOf, type RunsRoute } from "./route";
import { useRows } from "./rows";
import { selected, toggled } from "./selection";
import { askRuns, exported } from "./server";
import { Shape, StatusWords } from "./shapes";
import type { Row, RunsView, Small } from "./views";

/** Milliseconds after which the store is asked again while runs go on. */
const AGAIN = 5000;

/** The height of a row in pixels. */
const HIGH = 35;

const NO_FILTER: RunsRoute = { screen: "runs", is: "", q: "" };

export function Runs({ route }: { route: RunsRoute }): JSX.Element {
  const [view, failure] = useView();
  const [at, setAt] = useState(0);
  const rows = useMemo(() => (view === null ? [] : chosen(view.rows, route, view.first)), [view, hashOf(route)]);
  const batches = useMemo(() => new Map(view?.batches.map((each) => [each.run_id, each.name])), [view]);
  const bars = useMemo(() => (view === null ? null : night(rows, Date.now() / 1000)), [rows]);
  const here = Math.min(at, Math.max(0, rows.length - 1));
  // Before the next key arrives, not after the next paint.
  useLayoutEffect(() =>
    listen({
      move: (by) => {
        setAt(Math.min(Math.max(0, here + by), Math.max(0, rows.length - 1)));
      },
      open: () => {
        const row = rows[here];
        if (row) go({ screen: "run", id: row.run_id, at: null });
      },
      back: () => pass(NO_FILTER),
      more: exported === null ? { x: () => toggle(rows[here]), c: compareSelected } : {},
    }),
  );
  if (failure) return <p class="none">{failure}</p>;
  if (view === null) return <p class="none">Reading the store…</p>;
  return (
    <div class="runs">
      <div class="headline">
        <div>
          <h1>{view.sentence}</h1>
          <Counts view={view} route={route} />
        </div>
        <p class="spend">
          <b>{view.cost}</b> {view.tokens.toLocaleString("en")} tokens, {view.retries.toLocaleString("en")} retries
        </p>
      </div>
      {view.rows.length === 0 ? (
        <p class="none">
          This store has no runs. <code>watchkeeper run</code> makes one: then load this page again.
        </p>
      ) : (
        <>
          {exported === null && <Overview view={view} route={route} />}
          {exported === null && bars !== null && <NightBars night={bars} route={route} />}
          <Filters view={view} route={route} shown={rows.length} />
          {rows.length === 0 ? (
            <p class="none">
              No run matches. <a href="#/runs">Clear the filters</a>
            </p>
          ) : (
            <Table rows={rows} at={here} batches={batches} />
          )}
        </>
      )}
    </div>
  );
}

/** Returns what the server says, asked again while runs go on, and why there is nothing. */
function useView(): [RunsView | null, string] {
  const [view, setView] = useState<RunsView | null>(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    askRuns().then(setView, (error: Error) => setFailure(error.message));
  }, []);
  const goesOn = exported === null && view !== null && view.rows.some((row) => row.status.kind === "running");
  useEffect(() => {
    if (!goesOn) return undefined;
    const wait = setTimeout(() => {
      // What cannot be asked just now stays as it was.
      if (document.visibilityState === "visible") askRuns().then(setView, () => setView({ ...view }));
      else setView({ ...view });
    }, AGAIN);
    return () => clearTimeout(wait);
  }, [view]);
  return [view, failure];
}

function Counts({ view, route }: { view: RunsView; route: RunsRoute }): JSX.Element {
  return (
    <p class="counts">
      {view.counts.map(({ status, runs }) => (
        <button
          key={status.key}
          type="button"
          class={status.kind}
          aria-pressed={route.is === status.key}
          onClick={() => pass({ ...route, is: route.is === status.key ? "" : status.key })}
        >
          <Shape kind={status.kind} />
          {runs.toLocaleString("en")} {status.words.charAt(0).toLowerCase() + status.words.slice(1)}
        </button>
      ))}
      {view.batches.filter((batch) => batch.not_begun > 0).map((batch) => (
        <a key={batch.run_id} href={hashOf({ screen: "run", id: batch.run_id, at: null })}>
          {batch.not_begun.toLocaleString("en")} of {batch.name} never began
        </a>
      ))}
    </p>
  );
}

function Filters({ view, route, shown }: { view: RunsView; route: RunsRoute; shown: number }): JSX.Element {
  const prompts = useMemo(() => names(view.rows.map((row) => row.prompt)), [view]);
  const models = useMemo(() => names(view.rows.map((row) => row.model)), [view]);
  const first = view.first.find((hint) => hint.key === route.first);
  return (
    <div class="filters">
      <input
        id="search"
        type="search"
        placeholder="Search item, prompt, model, id  ( / )"
        aria-label="Search item, prompt, model, id"
        value={route.q}
        onInput={(typed) => pass({ ...route, q: typed.currentTarget.value })}
      />
      <Choice name="prompt" names={prompts} chosen={route.prompt ?? ""} choose={(prompt) => pass({ ...route, prompt })} />
      <Choice name="model" names={models} chosen={route.model ?? ""} choose={(model) => pass({ ...route, model })} />
      {route.first && (
        <button type="button" onClick={() => pass({ ...route, first: "" })}>
          ✕ {first?.title ?? route.first}
        </button>
      )}
      <span class="dim">
        {shown === view.rows.length
          ? `${shown.toLocaleString("en")} rows`
          : `${shown.toLocaleString("en")} of ${view.rows.length.toLocaleString("en")} rows`}
      </span>
      {exported === null && <Selected />}
    </div>
  );
}

function names(every: string[]): string[] {
  return [...new Set(every)].sort();
}

interface Choosing {
  name: string;
  names: string[];
  chosen: string;
  choose(name: string): void;
}

function Choice({ name, names, chosen, choose }: Choosing): JSX.Element {
  const [every, some] = [`any ${name}`, names.includes(chosen) || !chosen ? names : [chosen, ...names]];
  return (
    <select aria-label={`Only this ${name}`} value={chosen} onChange={(change) => choose(change.currentTarget.value)}>
      <option value="">{every}</option>
      {some.map((each) => (
        <option key={each} value={each}>
          {each}
        </option>
      ))}
    </select>
  );
}

function toggle(row: Row | undefined): void {
  if (row) selected.value = toggled(selected.value, row.run_id);
}

function compareSelected(): void {
  const [id, other] = selected.value;
  if (id && other) go({ screen: "compare", id, other, at: null });
}

function Selected(): JSX.Element {
  const count = selected.value.length;
  return (
    <button type="button" class="compareselected" disabled={count < 2} onClick={compareSelected}>
      {count < 2 ? `Select ${2 - count} ${count ? "more" : "runs"} to compare` : "Compare the two selected"} <kbd>c</kbd>
    </button>
  );
}

const COLUMNS = ["status", "name", "model", "started", "took", "cost", "tokens", "steps", "time", "advice", "verdict"];
const HEADS: Record<string, string> = { name: "Agent, item", took: "Duration", advice: "Worst advice" };

/** By their ids, what runs over many are called. */
type Names = ReadonlyMap<string, string>;

function Table({ rows, at, batches }: { rows: readonly Row[]; at: number; batches: Names }): JSX.Element {
  const body = useRef<HTMLTableSectionElement>(null);
  const { from, to, show } = useRows(body, rows.length, HIGH);
  const before = useRef(at);
  useLayoutEffect(() => {
    if (before.current !== at) show(at);
    before.current = at;
  }, [at]);
  return (
    <table class="grid runlist" aria-rowcount={rows.length + 1}>
      <thead>
        <tr>
          {exported === null && (
            <th scope="col" class="select">
              <span class="unseen">Selected</span>
            </th>
          )}
          {COLUMNS.map((name) => (
            <th key={name} scope="col" class={`c-${name}`}>
              {HEADS[name] ?? name.charAt(0).toUpperCase() + name.slice(1)}
            </th>
          ))}
        </tr>
      </thead>
      <tbody ref={body}>
        {from > 0 && <Space high={from * HIGH} />}
        {rows.slice(from, to).map((row, number) => (
          <Task key={row.run_id} row={row} place={from + number} batches={batches} here={from + number === at} />
        ))}
        {to < rows.length && <Space high={(rows.length - to) * HIGH} />}
      </tbody>
    </table>
  );
}

function Space({ high }: { high: number }): JSX.Element {
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={COLUMNS.length + 1} style={{ height: `${high}px` }} />
    </tr>
  );
}

const VERDICTS: Record<string, string> = { verified: "✓ verified", rejected: "✗ rejected", unverified: "? unverified" };
const SEVERITIES = { info: "◇", caution: "◈", warning: "◆" } as const;

function Task({ row, place, here, batches }: { row: Row; place: number; here: boolean; batches: Names }): JSX.Element {
  return (
    <tr class={here ? "at" : ""} aria-rowindex={place + 2}>
      {exported === null && (
        <td class="select">
          <input
            type="checkbox"
            aria-label={`Select ${row.item ?? row.prompt} ${row.run_id.slice(0, 8)}`}
            checked={selected.value.includes(row.run_id)}
            onChange={() => toggle(row)}
          />
        </td>
      )}
      <td>
        <StatusWords status={row.status} />
      </td>
      <td class="name" title={row.prompt}>
        <a href={hashOf({ screen: "run", id: row.run_id, at: null })}>
          <b>{row.item ?? (batches.get(row.run_id) || row.prompt || row.run_id.slice(0, 8))}</b>
        </a>
        {row.item !== null && <Whole row={row} name={batches.get(row.batch)} />}
      </td>
      <td title={row.model}>{row.model}</td>
      <td title={row.started_at ?? ""}>{started(row.started_at)}</td>
      <td>{row.took}</td>
      {row.gauges.map((gauge, number) => (
        <td key={number}>
          <SmallGauge gauge={gauge} />
        </td>
      ))}
      <td class={row.advice?.severity}>
        {row.advice === null ? (
          <span class="dim">none</span>
        ) : (
          <>
            {SEVERITIES[row.advice.severity]} {row.advice.severity} <span class="dim">{row.advice.source}</span>
          </>
        )}
      </td>
      <td class={row.verdict}>{VERDICTS[row.verdict] ?? <span class="dim">– unchecked</span>}</td>
    </tr>
  );
}

/** What an item belongs to: the run over many, which a click opens. */
function Whole({ row, name }: { row: Row; name: string | undefined }): JSX.Element {
  if (name === undefined) return <span class="dim"> {row.prompt}</span>;
  return (
    <a class="whole" href={hashOf({ screen: "run", id: row.batch, at: null })} title="The run over all items">
      {name}
    </a>
  );
}

function SmallGauge({ gauge }: { gauge: Small }): JSX.Element {
  return (
    <>
      <span class={gauge.reached ? "use reached" : "use"}>
        {gauge.reached && "■ "}
        <b>{gauge.words}</b>
        <span class="dim"> {gauge.limit ? `/ ${gauge.limit}` : !gauge.above && "no limit"}</span>
      </span>
      {gauge.above && <span class="above">of the batch's {gauge.above}</span>}
      {gauge.limit && (
        <svg class={gauge.reached ? "bar reached" : "bar"} viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
          <rect class="track" width="100" height="4" />
          <rect class="used" width={(gauge.used ?? 0) * 100} height="4" />
        </svg>
      )}
    </>
  );
}

function started(at: string | null): string {
  if (at === null) return "";
  const when = new Date(at);
  const two = (number: number): string => String(number).padStart(2, "0");
  return `${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}`;
}
