/** Of a long table only the rows near the view are in the page. */
import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** How many rows beyond the view are in the page. */
const BEYOND = 12;

export interface Rows {
  from: number;
  to: number;
  /** Brings a row into view, if it is not there. */
  show(place: number): void;
}

/** Returns which rows of a table's body are in the page; all are `high` pixels high. */
export function useRows(body: RefObject<HTMLElement | null>, count: number, high: number): Rows {
  const [place, setPlace] = useState({ from: 0, to: 40 });
  const scroller = (): HTMLElement | null => body.current?.closest("main") ?? null;
  const top = (box: HTMLElement): number =>
    body.current ? body.current.getBoundingClientRect().top - box.getBoundingClientRect().top : 0;
  useLayoutEffect(() => {
    const box = scroller();
    if (!box) return;
    const look = (): void => {
      const above = -top(box);
      const from = Math.max(0, Math.floor(above / high) - BEYOND);
      const to = Math.ceil((above + box.clientHeight) / high) + BEYOND;
      setPlace((now) => (now.from === from && now.to === to ? now : { from, to }));
    };
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(box);
    box.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      box.removeEventListener("scroll", look);
    };
  }, [count, high]);
  const show = (wanted: number): void => {
    const box = scroller();
    if (!box) return;
    const head = 40; // of the table's own head
    const at = top(box) + wanted * high;
    if (at < head) box.scrollTop += at - head;
    else if (at + high > box.clientHeight) box.scrollTop += at + high - box.clientHeight;
  };
  return { from: Math.min(place.from, count), to: Math.min(place.to, count), show };
}
