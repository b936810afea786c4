/** The page: the bar on top, the screen that the address names, the list of keys. */
import { type JSX, render } from "preact";
import { helpShown, route } from "./app";
import { Compare } from "./compare";
import { Run } from "./run";
import { Runs } from "./runs";
import { exported } from "./server";

const KEYS: readonly [string, string][] = [
  ["j, k", "next, previous"],
  ["Enter", "open"],
  ["x, c", "select a run; compare the two that are selected"],
  ["e", "first divergence of two runs"],
  ["/", "search"],
  ["Esc", "back; clear the filters"],
  ["[, ]", "a run: previous, next marker"],
  ["1 to 7", "a run: tabs"],
  ["t", "a run: the tree; then arrows, Enter"],
  ["+, -, 0", "a run: zoom in, out, all of the time"],
  ["comma, period", "a run: earlier, later"],
  ["?", "this list"],
];

/** Keys that a file with one run has no use for. */
const ELSEWHERE = new Set(["x, c", "e"]);

function Help(): JSX.Element {
  return (
    <div class="help" role="dialog" aria-label="Keys">
      <h2>Keys</h2>
      <dl>
        {KEYS.filter(([key]) => exported === null || !ELSEWHERE.has(key)).map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => (helpShown.value = false)}>
        Close
      </button>
    </div>
  );
}

function Page(): JSX.Element {
  const here = route.value;
  return (
    <>
      <header class="top">
        <a class="brand" href="#/runs">
          watchkeeper
        </a>
        <a href="#/runs">Runs</a>
        {here.screen === "run" && <span class="dim">/ {here.id.slice(0, 8)}</span>}
        {here.screen === "compare" && <span class="dim">/ Compare</span>}
        <button type="button" onClick={() => (helpShown.value = !helpShown.value)}>
          keys <kbd>?</kbd>
        </button>
      </header>
      {exported !== null && (
        <aside class="exported" aria-label="About this file">
          Exported: this file has one run and those below it.
          {exported.left_out.length > 0 && <b> Left out: {exported.left_out.join(" ")}</b>}
        </aside>
      )}
      <main>
        {here.screen === "run" && <Run route={here} />}
        {here.screen === "runs" && <Runs route={here} />}
        {here.screen === "compare" && <Compare id={here.id} other={here.other} at={here.at} />}
      </main>
      {helpShown.value && <Help />}
    </>
  );
}

const place = document.getElementById("page");
if (place) render(<Page />, place);
