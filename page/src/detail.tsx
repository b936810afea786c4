/** What is known of one call: what the gate answered, then what it was asked, what came of it, what it cost. */
import type { JSX } from "preact";
import { amount, duration, gaugeAt, heldBy, money, SECONDS, underWay, type Uses, usedAt, words } from "./amounts";
import { isOpen } from "./record";
import { hashOf } from "./route";
import { clock, offset } from "./scale";
import { CallKind } from "./shapes";
import { Long, useEvent } from "./texts";
import { noteOf } from "./tree";
import type { CallNode, Entry, RunHead } from "./views";

export interface DetailProps {
  head: RunHead;
  nodes: readonly CallNode[];
  uses: Uses;
  node: CallNode | null;
  entry: Entry | null;
}

export function Detail({ head, nodes, uses, node, entry }: DetailProps): JSX.Element {
  const seq = node ? (isOpen(node) || !node.seq ? null : node.seq) : (entry?.seq ?? null);
  const run = node?.run_id || head.run.run_id;
  const found = useEvent(run, seq);
  const event = found instanceof Error ? null : found;
  if (!node && !entry) return <p class="none">Choose a call in the tree, the flame view or the transcript.</p>;
  const started = head.run.started_at;
  const begun = node ? node.begin : (entry?.at ?? 0);
  return (
    <>
      <h2 class="name">
        {node && <CallKind kind={node.kind} />} {node ? node.name : entry?.what || entry?.tag}
      </h2>
      <dl class="facts2">
        <Fact name="at">{`${offset(begun)}, ${clock(started, begun)}`}</Fact>
        {node && node.kind !== "gate" && <Fact name="took">{isOpen(node) ? noteOf(node, head.run.status.kind === "running") : duration((node.end ?? 0) - node.begin)}</Fact>}
        {node?.failed && node.note && <Fact name="outcome">{node.note}</Fact>}
        {entry?.detail && !node && <Fact name="event">{entry.detail}</Fact>}
        {node?.child_id && (
          <Fact name="run">
            <a href={hashOf({ screen: "run", id: node.child_id, at: null })}>open this run</a>
          </Fact>
        )}
      </dl>
      {node && <Gate head={head} nodes={nodes} uses={uses} node={node} />}
      {found instanceof Error && <p class="dim">{found.message}</p>}
      {event && <Parts raw={event.raw} />}
      {event && event.size > 0 && (
        <>
          <h2>{event.tag === "model_replied" ? "Reply" : "Result"}</h2>
          <Long run={run} seq={event.seq} text={event.text} size={event.size} part="text" />
        </>
      )}
      {node && <Cost node={node} />}
      {node && node.kind !== "gate" && <Around head={head} nodes={nodes} uses={uses} node={node} />}
    </>
  );
}

function Fact({ name, children }: { name: string; children: JSX.Element | string }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const KINDS: Record<CallNode["kind"], string> = { model: "llm", tool: "tool", child: "child", judge: "child", gate: "" };

/** Returns what the gate was asked, in its order: the time, then the limits that concern the call. */
export function answers(props: Omit<DetailProps, "entry" | "node"> & { node: CallNode }): Answer[] {
  const { head, nodes, uses, node } = props;
  const refused = node.refused_at === "deadline" ? SECONDS : (node.refused_at ?? null);
  const others = underWay(nodes, node.begin, node.number);
  const keys = [SECONDS, ...head.asked.map((each) => each.key)];
  let over = false;
  return keys.flatMap((key): Answer[] => {
    const gauge = head.gauges.find((each) => each.key === key);
    const limit = head.asked.find((each) => each.key === key);
    if (!gauge || gauge.limit === null) {
      if (key !== refused || over) return [];
      over = true;
      const name = `${limit?.name ?? "Time"} of what is around it`;
      return [{ key, name, left: node.left ?? null, asks: node.asked ?? null, is: "refused" }];
    }
    const concerned = key === SECONDS || node.kind === "gate" || (limit?.calls ?? []).includes(KINDS[node.kind]);
    const left = gauge.limit - usedAt(uses, key, node.begin) - heldBy(others, key);
    const asks = key === refused ? (node.asked ?? null) : key !== SECONDS && node.worst ? amount(node.worst, key) : null;
    const is = over ? "not asked" : key === refused ? "refused" : concerned ? "passed" : "not concerned";
    over = over || key === refused;
    const forWork = key === refused ? (node.left ?? null) : null;
    return [{ key, name: gauge.name, left: forWork ?? Math.max(0, left), asks, is }];
  });
}

export interface Answer {
  key: string;
  name: string;
  /** What was left of the limit; null if that is not on record. */
  left: number | null;
  asks: number | null;
  is: "passed" | "refused" | "not asked" | "not concerned";
}

const SAID: Record<Answer["is"], string> = { passed: "✓", refused: "✗ refused", "not asked": "not asked", "not concerned": "no concern" };

function Gate(props: Omit<DetailProps, "entry" | "node"> & { node: CallNode }): JSX.Element {
  const { node } = props;
  const halted = node.kind === "gate";
  return (
    <>
      <h2>
        Gate <span>in the order in which it asks</span>
      </h2>
      <p class={halted ? "stopped" : ""}>
        <b>{halted ? "■ HALT" : "✓ ALLOW"}</b> {halted ? node.note : ""}
      </p>
      <table class="gate">
        <thead>
          <tr>
            <th scope="col">limit</th>
            <th scope="col">left</th>
            <th scope="col">asks</th>
            <th scope="col">answer</th>
          </tr>
        </thead>
        <tbody>
          {answers(props).map(({ key, name, left, asks, is }) => (
            <tr key={key} class={is === "refused" ? "reached" : is === "passed" ? "" : "dim"}>
              <th scope="row">{name}</th>
              <td>{left === null ? "" : words(key, left)}</td>
              <td>{asks ? words(key, asks) : ""}</td>
              <td>{SAID[is]}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {halted && (
        <p class="dim">
          {node.asked === undefined || node.asked === null
            ? "What it asked for is not on record. What is left includes what is kept for a last turn and a verdict."
            : "At the limit that refused, left is what was left for work; elsewhere it includes what is kept for a last turn and a verdict."}
        </p>
      )}
      {!halted && !node.worst && <p class="dim">What it asked for is not on record: only the beginnings of calls that may change something are.</p>}
    </>
  );
}

/** Arguments of a tool call, and what else stands in the event that a person may look for. */
function Parts({ raw }: { raw: string }): JSX.Element | null {
  let fields: Record<string, unknown>;
  try {
    fields = JSON.parse(raw) as Record<string, unknown>;
  } catch {
    return null; // cut, or with control characters: the tab Raw shows it
  }
  const params = fields["params"];
  if (params === undefined) return null;
  return (
    <>
      <h2>Arguments</h2>
      <pre tabIndex={0}>{JSON.stringify(params, null, 2)}</pre>
    </>
  );
}

function Cost({ node }: { node: CallNode }): JSX.Element {
  const used = node.used ?? {};
  const own = used.cost_nanos === null ? "unknown" : money(used.cost_nanos ?? 0);
  return (
    <>
      <h2>Cost</h2>
      <dl class="facts2">
        <Fact name="own">{own}</Fact>
        <Fact name="tokens">{`${(used.input_tokens ?? 0).toLocaleString("en")} in, ${(used.output_tokens ?? 0).toLocaleString("en")} out`}</Fact>
        {node.worst && (node.worst.cost_nanos ?? 0) > 0 ? <Fact name="reserved">{money(node.worst.cost_nanos ?? 0)}</Fact> : <></>}
      </dl>
    </>
  );
}

/** What was left of each limit before the call and after it. */
function Around({ head, nodes, uses, node }: Omit<DetailProps, "entry" | "node"> & { node: CallNode }): JSX.Element {
  const end = node.end ?? null;
  const [first, last] = [underWay(nodes, node.begin, node.number), end === null ? [] : underWay(nodes, end)];
  return (
    <>
      <h2>
        Limits <span>left before and after</span>
      </h2>
      <table class="gate">
        <tbody>
          {head.gauges.map((gauge) => {
            const before = gaugeAt(gauge, uses, first, node.begin);
            const after = end === null ? null : gaugeAt(gauge, uses, last, end);
            return (
              <tr key={gauge.key}>
                <th scope="row">{gauge.name}</th>
                <td>{before.said.left}</td>
                <td>{after === null ? "under way" : after.said.left}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </>
  );
}
