/** Shapes that tell statuses and kinds of calls apart without colour. */
import type { JSX } from "preact";
import type { CallNode, Kind, Status } from "./views";

const line = { fill: "none", stroke: "currentColor", "stroke-width": 1.6 } as const;
const cut = { fill: "none", stroke: "var(--panel)", "stroke-width": 1.6 } as const;

const SHAPES: Record<Kind, JSX.Element> = {
  done: (
    <>
      <circle cx="6" cy="6" r="6" fill="currentColor" />
      <path d="M3.200 6.200 5.200 8.200 8.800 4" {...cut} />
    </>
  ),
  unverified: (
    <>
      <circle cx="6" cy="6" r="5.200" {...line} stroke-dasharray="2.200 1.600" />
      <circle cx="6" cy="6" r="1.400" fill="currentColor" />
    </>
  ),
  stopped: (
    <>
      <rect width="12" height="12" rx="2" fill="currentColor" />
      <rect x="3.700" y="3.700" width="4.600" height="4.600" fill="var(--panel)" />
    </>
  ),
  failed: (
    <>
      <path d="M3.500 0h5L12 3.500v5L8.500 12h-5L0 8.500v-5z" fill="currentColor" />
      <path d="M4 4l4 4M8 4 4 8" {...cut} />
    </>
  ),
  lost: (
    <>
      <circle cx="6" cy="6" r="5.200" {...line} stroke-dasharray="5 3" />
      <path d="M6 3v3.500M6 8v1.200" {...line} />
    </>
  ),
  running: (
    <>
      <circle cx="6" cy="6" r="5.200" {...line} />
      <circle cx="6" cy="6" r="2.200" fill="currentColor" />
    </>
  ),
  waiting: (
    <>
      <circle cx="6" cy="6" r="5.200" {...line} />
      <path d="M4.500 3.500v5M7.500 3.500v5" {...line} />
    </>
  ),
  superseded: <path d="M1 6h10" {...line} />,
};

export function Shape({ kind }: { kind: Kind }): JSX.Element {
  return (
    <svg class={`shape ${kind}`} viewBox="0 0 12 12" aria-hidden="true">
      {SHAPES[kind]}
    </svg>
  );
}

export function StatusWords({ status }: { status: Status }): JSX.Element {
  return (
    <span class={`status ${status.kind}`}>
      <Shape kind={status.kind} />
      {status.words}
    </span>
  );
}

const LETTERS: Record<CallNode["kind"], string> = { model: "M", tool: "T", child: "C", judge: "J", gate: "■" };

export function CallKind({ kind }: { kind: CallNode["kind"] }): JSX.Element {
  return (
    <span class={`kind ${kind}`} title={kind}>
      {LETTERS[kind]}
    </span>
  );
}
