/** The runs that are selected in the list, two at most: the two to compare. */
import { signal } from "@preact/signals";

export const selected = signal<readonly string[]>([]);

/** Returns a selection with a run taken in or out; of more than two the oldest goes. */
export function toggled(ids: readonly string[], id: string): readonly string[] {
  return ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id].slice(-2);
}
