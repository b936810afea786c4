/** What the server says; the same structs as in `inspector/runs_view.py`, `run_view.py`, `gauges.py`, `calls.py`, `story.py`,
 * `compare_view.py`. */

export type Kind = "done" | "unverified" | "stopped" | "failed" | "lost" | "running" | "waiting" | "superseded";

export interface Status {
  kind: Kind;
  words: string;
  key: string;
}

export interface Gauge {
  key: string;
  name: string;
  used: number | null;
  presumed: number;
  held: number;
  left: number | null;
  limit: number | null;
  said: Record<"used" | "presumed" | "held" | "left" | "limit", string>;
  reached: boolean;
}

export interface Row {
  run_id: string;
  prompt: string;
  item: string | null;
  model: string;
  started_at: string | null;
  seconds: number | null;
  took: string;
  cost_nanos: number | null;
  tokens: number | null;
  status: Status;
  verdict: string;
  advice: { severity: "info" | "caution" | "warning"; source: string } | null;
  gauges: Small[];
  batch: string;
}

/** A run over many items. */
export interface Batch {
  run_id: string;
  name: string;
  not_begun: number;
}

export interface Small {
  used: number | null;
  words: string;
  limit: string;
  above: string;
  reached: boolean;
}

export interface Hint {
  key: string;
  kind: Kind;
  title: string;
  since: string | null;
  until: string | null;
  detail: string;
  run_ids: string[];
}

export interface Reason {
  status: Status;
  runs: number;
  prompts: string;
  spent: string;
}

export interface Share {
  prompt: string;
  done: number;
  runs: number;
  cost_nanos: number;
  cost: string;
  tokens: number;
}

export interface RunsView {
  store: string;
  sentence: string;
  counts: { status: Status; runs: number }[];
  not_begun: number;
  batches: Batch[];
  cost: string;
  tokens: number;
  retries: number;
  first: Hint[];
  reasons: Reason[];
  prompts: Share[];
  rows: Row[];
}

/** What calls use, by what limits count; the server leaves out what is 0. */
export interface Amounts {
  cost_nanos?: number | null;
  input_tokens?: number;
  output_tokens?: number;
  steps?: number;
  turns?: number;
  tool_calls?: number;
  retries?: number;
}

/** One call; the server leaves out what is empty. Times are in milliseconds after the start. */
export interface CallNode {
  number: number;
  seq: number;
  run_id: string;
  kind: "model" | "tool" | "child" | "judge" | "gate";
  name: string;
  begin: number;
  end?: number | null;
  parent?: number | null;
  note?: string;
  failed?: boolean;
  used?: Amounts;
  worst?: Amounts | null;
  child_id?: string | null;
  refused_at?: string | null;
  asked?: number | null;
  left?: number | null;
  depth?: number;
}

export type Marker = "A" | "S" | "V" | "B" | "R";

export interface Entry {
  seq: number;
  at: number;
  after: string;
  tag: string;
  style?: string;
  what?: string;
  detail?: string;
  text?: string;
  size?: number;
  marker?: Marker | "";
  changes?: number;
}

/** When a limit is used up, in milliseconds after the start. */
export interface Projection {
  key: string;
  early: number;
  late: number | null;
  likely: number;
}

/** A time in which a process worked on a run; `worked` is in seconds, and was before it. */
export interface Stretch {
  begin: number;
  end: number | null;
  worked: number;
}

export interface RunHead {
  run: Row;
  name: string;
  above: { run_id: string; words: string; limits: string } | null;
  sentence: string;
  limits: string;
  gauges: Gauge[];
  gauges_at: string;
  asked: { key: string; name: string; calls: string[] }[];
  now: number;
  since: number;
  stretches: Stretch[];
  projections: Projection[];
  unlisted: string;
  below: Row[];
  never_began: string;
  focus: number | null;
  answer: string;
  damage: string;
  whole: boolean;
}

/** A head with the whole record, as a page that was exported has it. */
export type RunView = RunHead & { nodes?: CallNode[]; story?: Entry[] };

/** One message about a run's record. */
export interface Piece {
  nodes?: CallNode[];
  entries?: Entry[];
  head?: RunHead | null;
  anew?: boolean;
}

/** One event, as far as it is shown. */
export interface EventView {
  seq: number;
  at: string;
  tag: string;
  text: string;
  size: number;
  raw: string;
  raw_size: number;
}

/** The state after an event. */
export interface StateView {
  at: number;
  cause: string;
  slices: {
    name: string;
    count: number;
    left_out: number;
    changed: boolean;
    items: { text: string; sign?: "" | "+" | "-" }[];
  }[];
  unknown: string;
}

export interface Cell {
  seq: number;
  kind: "prompt" | "model" | "tool" | "told" | "verdict";
  name: string;
  detail: string;
  failed: boolean;
  after: string;
  took: string;
  cost: string;
}

export interface Beside {
  relation: "same" | "content" | "asked" | "one" | "other";
  one: Cell | null;
  other: Cell | null;
}

export interface Fact {
  name: string;
  one: string;
  other: string;
  difference: string;
  share: string;
}

export interface Side {
  did: string;
  words: string;
}

export interface CompareView {
  runs: [Row, Row];
  sentence: string;
  facts: Fact[];
  steps: Beside[];
  first: number | null;
  fork: [Side, Side] | null;
  notes: string[];
}
