/** The record of the run that is shown: what the server has told of it so far, and what it tells while the run goes on. */
import { batch, type Signal, signal } from "@preact/signals";
import type { CallNode, Entry, Piece, RunHead, RunView } from "./views";

export interface Record {
  id: string;
  nodes: CallNode[];
  entries: Entry[];
  head: Signal<RunHead>;
  /** Rises with what is told, a few pieces at a time. */
  version: Signal<number>;
  /** Whether more is to come: the record is being read, or the run goes on. */
  live: Signal<boolean>;
  /** When the head was told, by this machine's clock. */
  toldAt: number;
}

export function recordOf(view: RunView): Record {
  const { nodes, story, ...head } = view;
  const whole = story !== undefined;
  return {
    id: head.run.run_id,
    nodes: numbered(nodes ?? []),
    entries: story ?? [],
    head: signal(head),
    version: signal(0),
    live: signal(!whole),
    toldAt: Date.now(),
  };
}

/** Returns calls with their places as numbers: of an exported page some may be left out. */
export function numbered(nodes: readonly CallNode[]): CallNode[] {
  const sorted = [...nodes].sort((one, other) => one.number - other.number);
  const places = new Map(sorted.map((node, place) => [node.number, place]));
  return sorted.map((node, place) => ({ ...node, number: place, parent: places.get(node.parent ?? -1) ?? null }));
}

/** Puts what a message says into a record. */
export function take(record: Record, piece: Piece): void {
  if (piece.anew) {
    record.nodes.length = 0;
    record.entries.length = 0;
  }
  for (const node of piece.nodes ?? []) record.nodes[node.number] = node;
  record.entries.push(...(piece.entries ?? []));
  if (piece.head) {
    record.head.value = piece.head;
    record.toldAt = Date.now();
  }
}

/** What is told while a record is read is drawn when there is so many times as much: of a long one, a few times only. */
const GROWN = 1.25;

/** Follows a run until it is over; the browser itself comes back with the last message's id when a connection broke. */
export function follow(record: Record): () => void {
  if (!record.live.value) return () => undefined;
  const source = new EventSource(`api/runs/${encodeURIComponent(record.id)}/live`);
  let timer = 0;
  let drawn = 0;
  const draw = (): void => {
    timer = 0;
    drawn = record.nodes.length + record.entries.length;
    record.version.value += 1;
  };
  source.onmessage = (message: MessageEvent<string>) => {
    const piece = JSON.parse(message.data) as Piece;
    if (!piece.head) {
      take(record, piece);
      if (record.nodes.length + record.entries.length >= GROWN * drawn) timer ||= setTimeout(draw, 0);
      return;
    }
    // With a head all is drawn, once: what waits would be drawn again when the reader scrolls already.
    clearTimeout(timer);
    batch(() => {
      take(record, piece);
      draw();
    });
  };
  source.addEventListener("over", () => {
    source.close();
    record.live.value = false;
  });
  return () => {
    source.close();
    clearTimeout(timer);
  };
}

/** Returns the present of a record: of a run that is followed, by how long ago its head was told. */
export function presentOf(record: Record): number {
  const head = record.head.value;
  return head.run.status.kind === "running" && record.live.value ? head.now + (Date.now() - record.toldAt) : head.now;
}

/** Returns the call that an event ended. */
export function nodeOf(nodes: readonly CallNode[], run: string, seq: number | null): CallNode | null {
  if (seq === null) return null;
  return nodes.find((node) => node.seq === seq && node.run_id === run && !isOpen(node)) ?? null;
}

/** Says how many calls of models and tools were admitted, those of runs below included; of items, how many runs there are. */
export function madeOf(nodes: readonly CallNode[]): string {
  const counts = { model: 0, tool: 0 };
  let below = 0;
  for (const node of nodes) {
    const admitted = isOpen(node) || (node.used?.steps ?? 0) > 0;
    if (admitted && (node.kind === "model" || node.kind === "tool")) counts[node.kind] += 1;
    if (node.kind === "child") below += 1;
  }
  if (below && !counts.model && !counts.tool) return `${below.toLocaleString("en")} ${below === 1 ? "run" : "runs"} below`;
  const said = (kind: "model" | "tool"): string => `${counts[kind].toLocaleString("en")} ${kind} ${counts[kind] === 1 ? "call" : "calls"}`;
  return `${said("model")}, ${said("tool")}`;
}

export function isOpen(node: CallNode): boolean {
  return (node.end ?? null) === null;
}
