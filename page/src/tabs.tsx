/** The tabs in the middle: the transcript, the state, what was said about the run, and the record as it is. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Record } from "./record";
import { type RunRoute, type Tab, TABS } from "./route";
import { State } from "./state";
import { Long, useEvent } from "./texts";
import { Entries } from "./transcript";
import type { Entry, RunHead } from "./views";

const OF_TAB: Partial<{ [Each in Tab]: (entry: Entry) => boolean }> = {
  transcript: (entry) => Boolean(entry.what),
  assessments: (entry) => ["observers_ran", "advice_acknowledged", "escalation_taken"].includes(entry.tag),
  safety: (entry) => ["safety_event", "call_parked", "call_answered", "model_switched"].includes(entry.tag),
  verdicts: (entry) => entry.tag === "completion_checked",
  log: () => true,
};

const NONE: { [Each in Tab]?: string } = {
  transcript: "Nothing was said yet.",
  assessments: "No observer has said anything about this run.",
  safety: "Nothing was refused or stopped.",
  verdicts: "No completion checker has looked at an answer of this run.",
  log: "No event is on record yet.",
};

export interface TabsProps {
  record: Record;
  head: RunHead;
  version: number;
  route: RunRoute;
  here: number | null;
  choose(tab: Tab): void;
  chooseEvent(seq: number): void;
}

export function Tabs(props: TabsProps): JSX.Element {
  const { record, head, version, route, here, choose } = props;
  const tab = route.tab ?? "transcript";
  const lists = useMemo(() => {
    const found = new Map<Tab, Entry[]>();
    for (const each of TABS) {
      const wanted = OF_TAB[each];
      if (wanted) found.set(each, record.entries.filter(wanted));
    }
    return found;
  }, [record, version]);
  const changes = useMemo(() => record.entries.filter((entry) => entry.changes), [record, version]);
  const count = (each: Tab): number | null => (each === "raw" ? null : each === "state" ? changes.length : (lists.get(each)?.length ?? 0));
  const moveBy = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length];
    if (!by || !next) return;
    choose(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <section class="tabs" aria-label="Record">
      <div class="bar-of-tabs" role="tablist" onKeyDown={moveBy}>
        {TABS.map((each) => (
          <button
            key={each}
            id={`tab-${each}`}
            type="button"
            role="tab"
            aria-selected={each === tab}
            aria-controls="tab-panel"
            tabIndex={each === tab ? 0 : -1}
            onClick={() => choose(each)}
          >
            {each.charAt(0).toUpperCase() + each.slice(1)} <span class="dim">{count(each)?.toLocaleString("en") ?? ""}</span>
          </button>
        ))}
      </div>
      <div id="tab-panel" class="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "state" ? (
          <State id={head.run.run_id} changes={changes} at={here} choose={props.chooseEvent} />
        ) : tab === "raw" ? (
          <Raw run={route.of ?? head.run.run_id} seq={route.at ?? here} />
        ) : (
          <Entries key={tab} entries={lists.get(tab) ?? []} here={here} focus={head.focus} route={route} label={tab} none={NONE[tab] ?? ""}>
            {tab === "transcript" && <End head={head} />}
          </Entries>
        )}
      </div>
    </section>
  );
}

function End({ head }: { head: RunHead }): JSX.Element {
  return (
    <div class="end">
      {head.damage && <p class="failed">{head.damage}</p>}
      {head.answer && (
        <>
          <h2>Answer</h2>
          <pre tabIndex={0}>{head.answer}</pre>
        </>
      )}
    </div>
  );
}

function Raw({ run, seq }: { run: string; seq: number | null }): JSX.Element {
  const event = useEvent(run, seq);
  if (seq === null) return <p class="none">Choose an event: its record is shown here as it is stored.</p>;
  if (event === null) return <p class="none">Reading the event…</p>;
  if (event instanceof Error) return <p class="none">{event.message}</p>;
  return (
    <div class="entries">
      <h2>
        Event {event.seq} <span>{event.tag}, {event.at}</span>
      </h2>
      <Long run={run} seq={seq} text={event.raw} size={event.raw_size} part="raw" />
    </div>
  );
}
