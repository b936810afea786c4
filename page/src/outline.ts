/** The calls as a tree: which rows are shown, and what each has cost with all that is below it. */
import type { CallNode } from "./views";

export interface OutlineRow {
  node: CallNode;
  /** Whether what is below it is shown; null if nothing is. */
  open: boolean | null;
  /** Nano-dollars of it and all below it; null if part of that is unknown. */
  subtree: number | null;
}

export interface Outline {
  below: (number[] | undefined)[];
  tops: number[];
  subtrees: (number | null)[];
}

/** Sorts calls under those that they are below; a call always has a greater number than the one above it. */
export function outlineOf(nodes: readonly CallNode[]): Outline {
  const below: (number[] | undefined)[] = new Array<number[] | undefined>(nodes.length);
  const subtrees: (number | null)[] = nodes.map((node) => (node.used?.cost_nanos === null ? null : (node.used?.cost_nanos ?? 0)));
  const tops: number[] = [];
  for (const node of nodes) {
    if (node.parent === null || node.parent === undefined) tops.push(node.number);
    else (below[node.parent] ??= []).push(node.number);
  }
  for (let number = nodes.length - 1; number >= 0; number--) {
    const parent = nodes[number]?.parent ?? null;
    if (parent === null) continue;
    const [own, above] = [subtrees[number] ?? null, subtrees[parent] ?? null];
    subtrees[parent] = own === null || above === null ? null : own + above;
  }
  return { below, tops, subtrees };
}

/** Returns the rows that are shown, in order; what is below a closed call is not. */
export function rowsOf(nodes: readonly CallNode[], outline: Outline, closed: ReadonlySet<number>): OutlineRow[] {
  const rows: OutlineRow[] = [];
  const waiting = [...outline.tops].reverse();
  while (waiting.length) {
    const number = waiting.pop() as number;
    const node = nodes[number];
    if (!node) continue;
    const inside = outline.below[number];
    const open = inside ? !closed.has(number) : null;
    rows.push({ node, open, subtree: outline.subtrees[number] ?? null });
    if (inside && open) for (let place = inside.length - 1; place >= 0; place--) waiting.push(inside[place] as number);
  }
  return rows;
}
