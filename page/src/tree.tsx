/** The calls as a tree that is read by keys: arrows move, open and close; Enter opens the run that a call is. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { money } from "./amounts";
import { type OutlineRow, outlineOf, rowsOf } from "./outline";
import { isOpen } from "./record";
import { CallKind } from "./shapes";
import type { CallNode } from "./views";
import { useList } from "./virtual";

const ROW = 22;

export interface TreeProps {
  nodes: readonly CallNode[];
  version: number;
  selected: CallNode | null;
  running: boolean;
  choose(node: CallNode): void;
  enter(node: CallNode): void;
}

export function Tree({ nodes, version, selected, running, choose, enter }: TreeProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [closed, setClosed] = useState<ReadonlySet<number>>(new Set());
  const outline = useMemo(() => outlineOf(nodes), [nodes, version]);
  const rows = useMemo(() => rowsOf(nodes, outline, closed), [outline, closed]);
  const here = selected === null ? -1 : rows.findIndex((row) => row.node.number === selected.number);
  const list = useList(box, rows.length, ROW);
  useEffect(() => {
    if (here >= 0) list.show(here, "near");
  }, [here, selected?.number]);
  const shut = (number: number, is: boolean): void => {
    const next = new Set(closed);
    if (is) next.add(number);
    else next.delete(number);
    setClosed(next);
  };
  const to = (place: number): void => {
    const row = rows[Math.min(Math.max(0, place), rows.length - 1)];
    if (row) choose(row.node);
  };
  const pressed = (event: KeyboardEvent): void => {
    const row = rows[here];
    const actions: Record<string, () => void> = {
      ArrowDown: () => to(here + 1),
      ArrowUp: () => to(here - 1),
      Home: () => to(0),
      End: () => to(rows.length - 1),
      PageDown: () => to(here + 20),
      PageUp: () => to(here - 20),
      ArrowRight: () => (row?.open === false ? shut(row.node.number, false) : to(here + 1)),
      ArrowLeft: () => (row?.open ? shut(row.node.number, true) : to(rows.findIndex((each) => each.node.number === row?.node.parent))),
      Enter: () => row && enter(row.node),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  };
  return (
    <div
      ref={box}
      class="tree"
      role="tree"
      aria-label="Calls"
      tabIndex={0}
      aria-activedescendant={selected && list.rows.some((each) => each.place === here) ? `call${selected.number}` : undefined}
      onKeyDown={pressed}
    >
      <div class="tall" role="presentation" style={{ height: `${list.height}px` }}>
        {list.rows.map(({ place, top, slot }) => {
          const row = rows[place];
          if (!row) return null;
          return (
            <Row
              key={slot}
              row={row}
              top={top}
              here={place === here}
              running={running}
              choose={() => choose(row.node)}
              enter={() => enter(row.node)}
              toggle={() => shut(row.node.number, row.open === true)}
            />
          );
        })}
      </div>
    </div>
  );
}

interface RowProps {
  row: OutlineRow;
  top: number;
  here: boolean;
  running: boolean;
  choose(): void;
  enter(): void;
  toggle(): void;
}

function Row({ row, top, here, running, choose, enter, toggle }: RowProps): JSX.Element {
  const { node, open, subtree } = row;
  const own = node.used?.cost_nanos;
  const depth = node.depth ?? 0;
  return (
    <div
      id={`call${node.number}`}
      class={here ? "call at" : "call"}
      role="treeitem"
      aria-level={depth + 1}
      aria-selected={here}
      {...(open === null ? {} : { "aria-expanded": open })}
      style={{ transform: `translateY(${top}px)`, paddingLeft: `${4 + Math.min(depth, 8) * 14}px` }}
      onClick={choose}
      onDblClick={enter}
    >
      <span
        class="fold"
        aria-hidden="true"
        onClick={(event) => {
          event.stopPropagation();
          toggle();
        }}
      >
        {open === null ? "" : open ? "▾" : "▸"}
      </span>
      <CallKind kind={node.kind} />
      <span class="callname">{node.name}</span>
      <span class={toneOf(node)}>{noteOf(node, running)}</span>
      <span class="cost">{own ? money(own) : own === null ? "?" : ""}</span>
      <span class="cost below">{open === null ? "" : subtree === null ? "?" : subtree ? money(subtree) : ""}</span>
    </div>
  );
}

function toneOf(node: CallNode): string {
  return node.kind === "gate" ? "stopped" : node.failed ? "failed" : "dim";
}

/** Says how a call went; one without an end goes on, or nobody knows what became of it. */
export function noteOf(node: CallNode, running: boolean): string {
  if (isOpen(node)) return running ? "under way" : "? not settled";
  return node.failed && node.kind !== "gate" ? `✗ ${node.note ?? ""}` : (node.note ?? "");
}
