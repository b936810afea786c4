/** What two runs had left of a limit, over the time of each, one above the other. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { duration, SECONDS, type Uses, usesOf } from "./amounts";
import { shareLeft } from "./burndown";
import { recordOf } from "./record";
import { askWhole } from "./server";
import type { Gauge, RunView } from "./views";

const LIMITS: readonly [string, string][] = [
  ["max_cost_usd", "Cost"],
  ["max_total_tokens", "Tokens"],
  ["max_steps", "Steps"],
  [SECONDS, "Time"],
];

/** How many moments of each run are looked at: more than that are one pixel. */
const MOMENTS = 400;

const HIGH = 130;

interface Line {
  name: "A" | "B";
  gauges: readonly Gauge[];
  uses: Uses;
  end: number;
  /** When the run did the step of the first divergence. */
  fork: number | null;
}

function lineOf(name: "A" | "B", view: RunView, seq: number | null): Line {
  const { nodes } = recordOf(view);
  const keys = LIMITS.map(([key]) => key);
  const at = seq === null ? undefined : nodes.find((node) => node.run_id === view.run.run_id && node.seq === seq);
  return { name, gauges: view.gauges, uses: usesOf(nodes, keys, view.since), end: view.now, fork: at?.end ?? at?.begin ?? null };
}

/** Returns where a line goes, from 0 to 1 in both directions, as steps. */
export function pointsOf(gauge: Gauge, uses: Uses, end: number, all: number): [number, number][] {
  const found: [number, number][] = [[0, 1]];
  let before = 1;
  for (let moment = 0; moment <= MOMENTS; moment++) {
    const at = (moment / MOMENTS) * end;
    const left = shareLeft(gauge, uses, at);
    if (left === before && moment < MOMENTS) continue;
    if (gauge.key !== SECONDS) found.push([at / all, before]);
    found.push([at / all, left]);
    before = left;
  }
  return found;
}

export function Overlay(props: { one: string; other: string; forks: [number | null, number | null] }): JSX.Element | null {
  const { one, other, forks } = props;
  const [lines, setLines] = useState<Line[] | null>(null);
  const [key, setKey] = useState("max_cost_usd");
  useEffect(() => {
    let wanted = true;
    setLines(null);
    Promise.all([askWhole(one), askWhole(other)]).then(
      ([left, right]) => wanted && setLines([lineOf("A", left, forks[0]), lineOf("B", right, forks[1])]),
      () => undefined, // the comparison itself says what is the matter
    );
    return () => {
      wanted = false;
    };
  }, [one, other]);
  if (lines === null) return <section class="panel overlay" aria-label="What was left" />;
  const all = Math.max(1, ...lines.map((line) => line.end));
  return (
    <section class="panel overlay" aria-labelledby="left">
      <p class="panelhead">
        <b id="left">What was left, over the time of each</b>
        <span class="choices">
          {LIMITS.map(([each, name]) => (
            <button key={each} type="button" aria-pressed={key === each} onClick={() => setKey(each)}>
              {name}
            </button>
          ))}
        </span>
      </p>
      <div class="overplot">
        {lines.map((line) => (
          <Drawn key={line.name} line={line} limit={key} all={all} />
        ))}
      </div>
      <p class="dim axis">
        <span>start</span>
        <span>{duration(all)}</span>
      </p>
    </section>
  );
}

function Drawn({ line, limit, all }: { line: Line; limit: string; all: number }): JSX.Element {
  const gauge = line.gauges.find((each) => each.key === limit);
  if (!gauge?.limit) return <p class={`endof ${line.name}`}>{line.name} has no such limit</p>;
  const points = pointsOf(gauge, line.uses, line.end, all);
  const left = Math.floor(shareLeft(gauge, line.uses, line.end) * 100);
  const fork = line.fork === null ? null : shareLeft(gauge, line.uses, line.fork);
  return (
    <>
      <svg class={`line ${line.name}`} viewBox="0 0 1 1" preserveAspectRatio="none" height={HIGH} aria-hidden="true">
        <polyline points={points.map(([x, y]) => `${x},${1 - y}`).join(" ")} />
      </svg>
      {fork !== null && line.fork !== null && (
        <svg class={`line ${line.name}`} height={HIGH} aria-hidden="true">
          <circle cx={`${(line.fork / all) * 100}%`} cy={(1 - fork) * HIGH} r="4" />
        </svg>
      )}
      <p class={`endof ${line.name}`}>
        {line.name}: {left}% of {gauge.said.limit} left after {duration(line.end)}
      </p>
    </>
  );
}
