/** Limits as bars; drawn as SVG, because the page's own policy permits no inline style. */
import type { JSX } from "preact";
import type { Gauge } from "./views";

/** Returns how far a bar reaches, from 0 to 100. */
export function share(amount: number | null, limit: number | null): number {
  if (amount === null || !limit) return 0;
  return Math.min(100, Math.max(0, (amount / limit) * 100));
}

export function Bar({ gauge }: { gauge: Gauge }): JSX.Element {
  const used = share(gauge.used, gauge.limit);
  const held = Math.min(100 - used, share(gauge.held, gauge.limit));
  return (
    <svg class={gauge.reached ? "bar reached" : "bar"} viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="4" />
      <rect class="held" x={used} width={held} height="4" />
      <rect class="used" width={used} height="4" />
    </svg>
  );
}

export function Gauges({ gauges, at }: { gauges: Gauge[]; at: string }): JSX.Element {
  const presumed = gauges.some((gauge) => gauge.presumed);
  return (
    <table class="gauges">
      <caption>
        Limits <span>{at}</span>
      </caption>
      <thead>
        <tr>
          <th scope="col">limit</th>
          <th scope="col">
            <span class="unseen">bar</span>
          </th>
          <th scope="col">used</th>
          {presumed && <th scope="col">presumed</th>}
          <th scope="col">held</th>
          <th scope="col">left</th>
        </tr>
      </thead>
      <tbody>
        {gauges.map((gauge) => (
          <tr key={gauge.key} class={gauge.reached ? "reached" : ""}>
            <th scope="row">
              {gauge.reached && "■ "}
              {gauge.name} <span class="dim">{gauge.said.limit}</span>
            </th>
            <td class="barcell">
              <Bar gauge={gauge} />
            </td>
            <td>{gauge.said.used}</td>
            {presumed && <td class="dim">{gauge.presumed ? gauge.said.presumed : "none"}</td>}
            <td class="dim">{gauge.held ? gauge.said.held : "none"}</td>
            <td>{gauge.said.left}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
