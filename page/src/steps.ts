/** Which steps of two runs are shown: those that are the same are folded away, but for some next to those that differ. */
import type { Beside } from "./views";

export type Shown = { at: number } | { from: number; to: number };

/** How many equal steps stay before a difference and after one. */
export const AROUND = 3;

/** Returns numbers of steps, and ranges of folded ones, `to` not included; ranges in `open` (by their first) are not. */
export function folded(steps: readonly Beside[], open: ReadonlySet<number>): Shown[] {
  const found: Shown[] = [];
  let at = 0;
  while (at < steps.length) {
    let end = at;
    while (end < steps.length && steps[end]?.relation === "same") end++;
    const from = at === 0 ? 0 : Math.min(at + AROUND, end);
    const to = end === steps.length ? end : Math.max(from, end - AROUND);
    const folds = to - from > 1 && !open.has(from);
    for (let each = at; each < (folds ? from : end); each++) found.push({ at: each });
    if (folds) {
      found.push({ from, to });
      for (let each = to; each < end; each++) found.push({ at: each });
    }
    if (end < steps.length) found.push({ at: end });
    at = end + 1;
  }
  return found;
}

/** Returns how many steps stand in each relation. */
export function counted(steps: readonly Beside[]): Record<Beside["relation"], number> {
  const found = { same: 0, content: 0, asked: 0, one: 0, other: 0 };
  for (const step of steps) found[step.relation]++;
  return found;
}
