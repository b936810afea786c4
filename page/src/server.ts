/** Asks the server that the page came from; a page that was exported has the answers in itself. */
import type { CompareView, EventView, RunsView, RunView, StateView } from "./views";

interface Exported {
  home: string;
  left_out: string[];
  answers: Record<string, unknown>;
}

function inThisFile(): Exported | null {
  const text = globalThis.document?.getElementById("exported")?.textContent; // unit tests have no document
  return text ? (JSON.parse(text) as Exported) : null;
}

/** What the server would answer, where the page is a file that was exported; null where there is a server. */
export const exported: Exported | null = inThisFile();

async function asked<View>(path: string): Promise<View> {
  if (exported !== null) {
    const found = exported.answers[path];
    if (found === undefined) throw new Error("This file does not have that: it was exported without it.");
    return found as View;
  }
  const answer = await fetch(path).catch(() => null);
  if (answer === null) throw new Error("The server does not answer: is 'watchkeeper view' still running?");
  if (answer.ok) return (await answer.json()) as View;
  if (answer.status === 403) throw new Error("This server was started anew: open the address that it has printed.");
  const said = (await answer.json().catch(() => ({}))) as { error?: string };
  throw new Error(said.error ?? `The server answered ${answer.status}.`);
}

export const askRuns = (): Promise<RunsView> => asked("api/runs");
/** A server tells the head at once and the rest as it reads it; an exported page has all of it. */
export const askRun = (id: string): Promise<RunView> =>
  asked(`api/runs/${encodeURIComponent(id)}${exported === null ? "/head" : ""}`);
/** All of a run at once. */
export const askWhole = (id: string): Promise<RunView> => asked(`api/runs/${encodeURIComponent(id)}`);
export const askEvent = (id: string, seq: number, all = false): Promise<EventView> =>
  asked(`api/runs/${encodeURIComponent(id)}/events/${seq}${all ? "?all=1" : ""}`);
export const askState = (id: string, seq: number): Promise<StateView> =>
  asked(`api/runs/${encodeURIComponent(id)}/state/${seq}`);
export const askCompared = (one: string, other: string): Promise<CompareView> =>
  asked(`api/compare/${encodeURIComponent(one)}/${encodeURIComponent(other)}`);
