/** What stands above the table of runs: what to look at first, why runs ended short, prompts, and the night. */
import type { JSX } from "preact";
import { go, pass } from "./app";
import { lettersOf, clock, marks, type Night } from "./night";
import { hashOf, type RunsRoute } from "./route";
import { Shape, StatusWords } from "./shapes";
import type { Hint, Reason, Row, RunsView, Share } from "./views";

export function Overview({ view, route }: { view: RunsView; route: RunsRoute }): JSX.Element {
  const short = view.reasons.reduce((sum, reason) => sum + reason.runs, 0);
  return (
    <div class="cards">
      {view.first.length > 0 && (
        <section class="panel" aria-labelledby="first">
          <h2 id="first">
            Look here first <span>causes that several runs share, then single losses</span>
          </h2>
          {view.first.map((hint) => (
            <First key={hint.key} hint={hint} route={route} />
          ))}
        </section>
      )}
      {view.reasons.length > 0 && (
        <section class="panel" aria-labelledby="short">
          <h2 id="short">Why {short.toLocaleString("en")} ended short</h2>
          <Reasons reasons={view.reasons} route={route} />
        </section>
      )}
      <section class="panel" aria-labelledby="prompts">
        <h2 id="prompts">
          Cost and tokens by prompt <span>solid: cost, outlined: tokens</span>
        </h2>
        <Prompts prompts={view.prompts} route={route} />
      </section>
    </div>
  );
}

function First({ hint, route }: { hint: Hint; route: RunsRoute }): JSX.Element {
  const [only] = hint.run_ids;
  const alone = hint.run_ids.length === 1 && only !== undefined;
  const to = alone
    ? hashOf({ screen: "run", id: only, at: null })
    : hashOf({ screen: "runs", is: "", q: "", first: hint.key });
  const at = (time: string): string => clock(Date.parse(time) / 1000);
  const when = hint.since && hint.until ? ` from ${at(hint.since)} to ${at(hint.until)}` : "";
  return (
    <div class={route.first === hint.key ? "hint at" : "hint"}>
      <Shape kind={hint.kind} />
      <p>
        <b>
          {hint.title}
          {when}.
        </b>{" "}
        <a href={to}>{alone ? "open" : "show them"}</a>
        <span>{hint.detail}</span>
      </p>
    </div>
  );
}

function Head({ names }: { names: readonly string[] }): JSX.Element {
  return (
    <li class="head" aria-hidden="true">
      {names.map((name) => (
        <span key={name}>{name}</span>
      ))}
    </li>
  );
}

function Reasons({ reasons, route }: { reasons: Reason[]; route: RunsRoute }): JSX.Element {
  return (
    <ul class="small">
      <Head names={["reason", "runs", "in", "spent"]} />
      {reasons.map(({ status, runs, prompts, spent }) => (
        <li key={status.key}>
          <button type="button" class="plain" onClick={() => pass({ ...route, is: status.key })}>
            <StatusWords status={{ ...status, words: status.words.replace("Stopped: ", "") }} />
          </button>
          <span class={status.kind}>
            {runs <= 10 && <span aria-hidden="true">{"■".repeat(runs)} </span>}
            <span class="ink">{runs.toLocaleString("en")}</span>
          </span>
          <span class="dim">{prompts}</span>
          <span>{spent}</span>
        </li>
      ))}
    </ul>
  );
}

function Prompts({ prompts, route }: { prompts: Share[]; route: RunsRoute }): JSX.Element {
  const cost = Math.max(1, ...prompts.map((each) => each.cost_nanos));
  const tokens = Math.max(1, ...prompts.map((each) => each.tokens));
  return (
    <ul class="small">
      <Head names={["prompt", "done", "cost", "tokens"]} />
      {prompts.map((each) => (
        <li key={each.prompt}>
          {each.prompt ? (
            <button type="button" class="plain" onClick={() => pass({ ...route, prompt: each.prompt })}>
              {each.prompt}
            </button>
          ) : (
            <span>all others</span>
          )}
          <span>
            {each.done.toLocaleString("en")} of {each.runs.toLocaleString("en")}
          </span>
          <span>
            <Length share={each.cost_nanos / cost} kind="solid" /> {each.cost}
          </span>
          <span>
            <Length share={each.tokens / tokens} kind="outlined" /> {short(each.tokens)}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Writes a count in little room; digits that are not shown are cut. */
function short(count: number): string {
  if (count < 10_000) return count.toLocaleString("en");
  return count < 1_000_000 ? `${Math.floor(count / 1000)}k` : `${Math.floor(count / 10_000) / 100}M`;
}

function Length({ share, kind }: { share: number; kind: "solid" | "outlined" }): JSX.Element {
  return (
    <svg class={`length ${kind}`} width="40" height="9" aria-hidden="true">
      <rect x="0.5" y="0.5" width={Math.max(1, share * 39)} height="8" />
    </svg>
  );
}

const LINE = 15;

/** More bars than this that are not done have no letter. */
const LETTERS = 60;

/** The night; the same runs are in the table, so the bars are for the mouse and no stops of the keyboard. */
export function NightBars({ night, route }: { night: Night; route: RunsRoute }): JSX.Element {
  const long = Math.max(1, night.end - night.begin);
  const x = (at: number): number => ((at - night.begin) / long) * 100;
  const lines = Math.min(night.lines, 12);
  const close = long < 600;
  const count = night.bars.length;
  const said = `${count.toLocaleString("en")} ${count === 1 ? "run" : "runs"}, ${clock(night.begin, close)} to ${clock(night.end, close)}`;
  const told = night.bars.filter(({ row }) => row.status.kind !== "done");
  const statuses = new Map(told.map(({ row }) => [row.status.key, row.status]));
  const letters = lettersOf([...statuses.values()]);
  return (
    <section class="panel night" aria-labelledby="night">
      <h2 id="night">
        The night: one bar a run, stacked where they ran at once{" "}
        <span>
          {said}
          {night.more > 0 && `; ${night.more.toLocaleString("en")} earlier ones are left out`}
        </span>
      </h2>
      <p class="nightlegend">
        {[...statuses.values()].slice(0, 8).map((status) => (
          <button key={status.key} type="button" class={status.kind} onClick={() => pass({ ...route, is: status.key })}>
            <b>{letters.get(status.key)}</b> {status.words}
          </button>
        ))}
      </p>
      <svg role="img" aria-label={said} width="100%" height={lines * LINE + 18}>
        {night.bars
          .filter((bar) => bar.line < lines)
          .map((bar) => {
            const { row, begin, end, line } = bar;
            const y = (lines - line - 1) * LINE;
            return (
              <g key={row.run_id} class={row.status.kind} onClick={() => go({ screen: "run", id: row.run_id, at: null })}>
                <title>{titleOf(row)}</title>
                <rect x={`${x(begin)}%`} y={y + 1} width={`${Math.max(0.15, x(end) - x(begin))}%`} height={LINE - 3} rx="2" />
                {row.status.kind !== "done" && told.length <= LETTERS && (
                  <text x={`${x(begin)}%`} y={y + 11} dx="3">
                    {letters.get(row.status.key)}
                  </text>
                )}
              </g>
            );
          })}
        {marks(night.begin, night.end).map((at) => (
          <text key={at} class="hour" x={`${x(at)}%`} y={lines * LINE + 14}>
            {clock(at, close)}
          </text>
        ))}
      </svg>
    </section>
  );
}

function titleOf(row: Row): string {
  return `${row.item ?? row.prompt}: ${row.status.words}${row.took ? `, ${row.took}` : ""}`;
}
