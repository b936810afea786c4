/** What drawings have in common: sharp pixels, and the colours of the page's theme. */
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

export type Paint = (name: string) => string;

/** Returns a canvas cleared for drawing in CSS pixels, and the colours by the names of the page's tokens. */
export function begin(canvas: HTMLCanvasElement, width: number, height: number): [CanvasRenderingContext2D, Paint] | null {
  const pen = canvas.getContext("2d");
  if (!pen) return null;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  const found = new Map<string, string>();
  const paint = (name: string): string => {
    const known = found.get(name) ?? style.getPropertyValue(`--${name}`).trim();
    found.set(name, known);
    return known;
  };
  return [pen, paint];
}

/** Returns the width of an element, as it changes. */
export function useWidth(box: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!box.current) return;
    setWidth(box.current.clientWidth);
    const observer = new ResizeObserver(() => box.current && setWidth(box.current.clientWidth));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [box]);
  return width;
}

/** Draws anew when the theme changes. */
export function useTheme(): boolean {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const changed = (): void => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return dark;
}
