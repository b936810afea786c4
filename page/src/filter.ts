/** Which rows of the list are shown. */
import type { RunsRoute } from "./route";
import type { Hint, Row } from "./views";

/** Returns the rows that pass every filter of an address and have every word of its search somewhere. */
export function chosen(rows: readonly Row[], filters: Omit<RunsRoute, "screen">, hints: readonly Hint[] = []): Row[] {
  const words = filters.q.toLowerCase().split(/\s+/).filter(Boolean);
  const hint = filters.first ? hints.find((each) => each.key === filters.first) : undefined;
  const ids = filters.first ? new Set(hint?.run_ids) : null;
  return rows.filter((row) => {
    if (filters.is && row.status.key !== filters.is) return false;
    if (filters.prompt && row.prompt !== filters.prompt) return false;
    if (filters.model && row.model !== filters.model) return false;
    if (ids !== null && !ids.has(row.run_id)) return false;
    if (words.length === 0) return true;
    const text = [row.run_id, row.prompt, row.item ?? "", row.model, row.status.words, row.batch].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
