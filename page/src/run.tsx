/** The screen A run: how it ended, its limits and calls over time, its record, and one call in detail. */
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { usesOf } from "./amounts";
import { go, listen, pass } from "./app";
import { Detail } from "./detail";
import { follow, madeOf, nodeOf, presentOf, type Record, recordOf } from "./record";
import { hashOf, type RunRoute, TABS } from "./route";
import { clock, type Span } from "./scale";
import { askRun } from "./server";
import { Shape, StatusWords } from "./shapes";
import { Tabs } from "./tabs";
import { spanBy, TIME_KEYS, Timeline } from "./timeline";
import { placeOf } from "./transcript";
import { Tree } from "./tree";
import type { CallNode, RunHead } from "./views";

/** How often the present of a running run is drawn anew. */
const TICK_MS = 1000;

export function Run({ route }: { route: RunRoute }): JSX.Element {
  const { id } = route;
  const [record, setRecord] = useState<Record | null>(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    setRecord(null);
    setFailure("");
    let stop: (() => void) | null = null;
    let wanted = true;
    askRun(id).then(
      (head) => {
        if (!wanted) return;
        const begun = recordOf(head);
        setRecord(begun);
        stop = follow(begun);
      },
      (error: Error) => wanted && setFailure(error.message),
    );
    return () => {
      wanted = false;
      stop?.();
    };
  }, [id]);
  if (failure) return <p class="none">{failure}</p>;
  // Not before its first events are there: keys that move among them would be lost.
  if (record === null || (record.live.value && record.version.value === 0)) return <p class="none">Reading the run…</p>;
  return <Shown record={record} route={route} />;
}

function Shown({ record, route }: { record: Record; route: RunRoute }): JSX.Element {
  const head = record.head.value;
  const version = record.version.value;
  const now = usePresent(record);
  const { run } = head;
  const at = route.at ?? head.focus;
  const here = route.of ? null : at;
  const keys = useMemo(() => head.gauges.map((gauge) => gauge.key), [head]);
  const made = useMemo(() => madeOf(record.nodes), [record, version]);
  const uses = useMemo(() => usesOf(record.nodes, keys, head.since, head.stretches), [record, version, keys]);
  const selected = useMemo(() => nodeOf(record.nodes, route.of ?? run.run_id, at), [record, version, route.of, at]);
  const entry = useMemo(() => record.entries[here === null ? -1 : placeOf(record.entries, here)] ?? null, [record, version, here]);
  const span: Span | null = route.from !== undefined && route.to !== undefined ? { from: route.from, to: route.to } : null;
  const moment = selected ? selected.begin : (entry?.at ?? null);

  const chooseEvent = (seq: number): void => {
    const { of: _, ...own } = route;
    pass({ ...own, at: seq });
  };
  const choose = (node: CallNode): void => {
    const { of: _, ...own } = route;
    pass({ ...own, at: node.seq, ...(node.run_id === run.run_id || !node.run_id ? {} : { of: node.run_id }) });
  };
  const show = (to: Span | null): void => {
    const { from: _, to: __, ...rest } = route;
    pass({ ...rest, ...(to ?? {}) });
  };
  const enter = (node: CallNode): void => {
    if (node.child_id) go({ screen: "run", id: node.child_id, at: null });
  };
  const told = (marked: boolean): number[] =>
    record.entries.filter((each) => (marked ? each.marker : each.what)).map((each) => each.seq);
  const step = (by: number, marked: boolean): void => {
    const all = told(marked);
    const place = here === null ? -1 : all.findIndex((seq) => seq >= here);
    const on = place >= 0 && all[place] === here;
    const next = place < 0 ? (here === null ? 0 : all.length - 1) : on ? place + by : by > 0 ? place : place - 1;
    const seq = all[Math.min(Math.max(0, next), all.length - 1)];
    if (seq !== undefined) chooseEvent(seq);
  };
  // Before the next key arrives, not after the next paint.
  useLayoutEffect(() =>
    listen({
      move: (by) => step(by, false),
      open: () => selected && enter(selected),
      back: () => go(head.above?.run_id ? { screen: "run", id: head.above.run_id, at: null } : { screen: "runs", is: "", q: "" }),
      more: {
        ...Object.fromEntries(TABS.map((tab, place) => [String(place + 1), () => pass({ ...route, tab })])),
        ...Object.fromEntries(TIME_KEYS.map((key) => [key, () => show(spanBy(key, span, now, moment))])),
        "[": () => step(-1, true),
        "]": () => step(1, true),
        t: () => document.querySelector<HTMLElement>('[role="tree"]')?.focus(),
      },
    }),
  );
  return (
    <div class="one">
      <Head head={head} now={now} live={record.live.value} />
      <Timeline
        {...{ record, head, version, uses, now, span, selected, moment, choose, chooseEvent, show }}
        at={here}
      />
      <div class="panes">
        <section class="left" aria-label="Calls">
          <h2>
            Calls <span>{made}</span>
            <span class="columns">own · with below</span>
          </h2>
          <Tree nodes={record.nodes} version={version} selected={selected} running={run.status.kind === "running"} choose={choose} enter={enter} />
          {head.unlisted && <p class="dim">{head.unlisted} was spent by calls that are not on this record.</p>}
        </section>
        <Tabs {...{ record, head, version, route, here, chooseEvent }} choose={(tab) => pass({ ...route, tab })} />
        <section class="detail" aria-label="Detail" tabIndex={0}>
          <Detail head={head} nodes={record.nodes} uses={uses} node={selected} entry={entry} />
        </section>
      </div>
    </div>
  );
}

/** Returns the present, which goes on while the run does. */
function usePresent(record: Record): number {
  const [, draw] = useState(0);
  const running = record.head.value.run.status.kind === "running";
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => draw((turn) => turn + 1), TICK_MS);
    return () => clearInterval(timer);
  }, [running]);
  return presentOf(record);
}

function Head({ head, now, live }: { head: RunHead; now: number; live: boolean }): JSX.Element {
  const { run } = head;
  const running = run.status.kind === "running";
  return (
    <header class="runhead">
      <p class="facts">
        <b>{run.item ?? head.name}</b> {run.item !== null && <span>{run.prompt}</span>}
        <StatusWords status={run.status} />
        {running && live && <span class="running">● live</span>}
        <span>{run.model}</span>
        {run.started_at && <span>started {clock(run.started_at, 0)}</span>}
        <span>{run.took}</span>
        <code>{run.run_id}</code>
        {head.above?.run_id && <a href={hashOf({ screen: "run", id: head.above.run_id, at: null })}>{head.above.words}</a>}
        {head.above?.run_id === "" && <span>{head.above.words}</span>}
        {head.above?.limits && <span>within its limits: {head.above.limits}</span>}
      </p>
      <h1>
        <Shape kind={run.status.kind} /> {head.sentence}
      </h1>
      {head.never_began && <p class="dim">{head.never_began}</p>}
      {running && head.projections.length > 0 && <p class="ends-at">{endOf(head, now)}</p>}
      {!head.whole && <p class="dim">Reading the record…</p>}
    </header>
  );
}

/** Says which limit will end a running run first: "tokens first, at about 14:32". */
export function endOf(head: RunHead, now: number): string {
  const first = head.projections[0];
  const gauge = head.gauges.find((each) => each.key === first?.key);
  if (!first || !gauge) return "";
  const about = clock(head.run.started_at, Math.max(first.likely, now), first.likely - now < 600_000);
  const to = first.late === null ? "" : `, at the latest at ${clock(head.run.started_at, first.late, first.late - now < 600_000)}`;
  return `At this rate ${gauge.name.toLowerCase()} first, at about ${about}${first.early === first.late ? "" : to}.`;
}
