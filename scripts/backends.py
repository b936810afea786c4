"""Sends a sample run to two real backends, reads back what they made of it, and takes a screenshot: ``make backends``.

By hand only: each needs an environment of its own with hundreds of packages. What they made of the export is kept in
``tests/telemetry/recorded``, with the export itself, so that a test notices when it has to be sent to them again.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.telemetry.sample import as_data, reported, sample
from watchkeeper.core.usage import Usage
from watchkeeper.telemetry import Telemetry

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDED: Final = ROOT / "tests" / "telemetry" / "recorded"
PORT: Final = 16_006
ADDRESS: Final = f"http://127.0.0.1:{PORT}"
PATIENCE: Final = 180.0

READ_MLFLOW: Final = """
import json, mlflow
mlflow.set_tracking_uri(%r)
[trace] = mlflow.search_traces(locations=["0"], return_type="list")
spans = {span.span_id: span for span in trace.data.spans}
found = [
    {"name": each.name, "type": each.span_type, "status": each.status.status_code.name,
     "below": spans[each.parent_id].name if each.parent_id in spans else None}
    for each in trace.data.spans
]
tokens = (trace.info.token_usage or {}).get("total_tokens")
print(json.dumps({"spans": found, "tokens": tokens, "trace": trace.info.trace_id}))
"""


def main() -> int:
    """Do it with the backends that are named, or with both; return 1 if one of them lost something."""
    wanted = sys.argv[1:] or sorted(BACKENDS)
    lost = False
    for name in wanted:
        environment = ROOT / f".venv-{name}"
        with tempfile.TemporaryDirectory() as folder:
            lost |= not BACKENDS[name](environment, Path(folder))
    return int(lost)


def send(headers: Mapping[str, str]) -> tuple[tuple[ReadableSpan, ...], Usage]:
    """Make the run, send its spans to the backend, and return them with what the run has used."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "watchkeeper"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{ADDRESS}/v1/traces", headers=dict(headers))))
    usage = asyncio.run(sample(Telemetry(provider, MeterProvider(shutdown_on_exit=False))))
    provider.force_flush()
    spans = kept.get_finished_spans()
    export = RECORDED / "export.json"
    export.write_text(json.dumps(as_data(spans), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return spans, usage


@contextmanager
def serving(command: list[str], environ: Mapping[str, str], health: str) -> Generator[None]:
    """Run a server while the block runs."""
    with open(os.devnull, "w") as nowhere:
        server = subprocess.Popen(command, env={**os.environ, **environ}, stdout=nowhere, stderr=nowhere)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{ADDRESS}{health}", timeout=2):
                break
            if time.monotonic() > until or server.poll() is not None:
                raise SystemExit(f"{command[0]} does not answer")
            time.sleep(1)
        yield
    finally:
        server.terminate()
        server.wait()


def place_of(span: dict[str, Any]) -> tuple[str, str, str]:
    """Return by what spans are sorted."""
    return span["name"], str(span["below"]), span["status"]


def keep(name: str, found: dict[str, Any], spans: tuple[ReadableSpan, ...], usage: Usage) -> bool:
    """Write what a backend made of the export; print and return whether it lost nothing and counted nothing twice."""
    found["spans"].sort(key=place_of)
    today = datetime.now(UTC).date().isoformat()
    record: dict[str, Any] = {"backend": name, "date": today, "ledger_tokens": usage.tokens.total, **found}
    path = RECORDED / f"{name.partition(' ')[0]}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    complete = len(found["spans"]) == len(spans) and found["tokens"] in (None, usage.tokens.total)
    print(f"{name}: {len(found['spans'])} of {len(spans)} spans, {found['tokens']} tokens of {usage.tokens.total}")
    return complete and reported(spans) == usage.tokens.total


def version_of(environment: Path, package: str) -> str:
    """Return the version of a package in an environment."""
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    return said_by(environment, asked)


def said_by(environment: Path, code: str) -> str:
    """Return what code prints with the Python of an environment."""
    command = [str(environment / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def photograph(url: str, name: str, width: int) -> None:
    """Take a screenshot of the page that shows the trace."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1360, "height": 760})
        page.goto(url)
        page.wait_for_timeout(12_000)
        path = ROOT / "docs" / f"telemetry-{name}.png"
        page.screenshot(
            path=path, clip={"x": 1360 - width if name == "phoenix" else 0, "y": 0, "width": width, "height": 760}
        )
        browser.close()


def phoenix(environment: Path, folder: Path) -> bool:
    """Send to Phoenix."""
    environ = {"PHOENIX_WORKING_DIR": str(folder), "PHOENIX_PORT": str(PORT), "PHOENIX_HOST": "127.0.0.1"}
    with serving([str(environment / "bin" / "phoenix"), "serve"], environ, "/healthz"):
        spans, usage = send({})
        time.sleep(5)  # it writes what it got a moment later
        with urllib.request.urlopen(f"{ADDRESS}/v1/projects/default/spans?limit=100") as answer:
            got = json.load(answer)["data"]
        by_id = {span["context"]["span_id"]: span["name"] for span in got}
        found = [
            {
                "name": span["name"],
                "type": span["span_kind"],
                "status": span["status_code"],
                "below": by_id.get(span["parent_id"]),
            }
            for span in got
        ]
        counts = [span["attributes"].get("llm.token_count.total") for span in got]
        tokens = sum(count for count in counts if count is not None) if any(counts) else None
        trace_id = got[0]["context"]["trace_id"]
        photograph(f"{ADDRESS}/projects/UHJvamVjdDox/traces/{trace_id}", "phoenix", 1020)
    return keep(f"phoenix {version_of(environment, 'arize-phoenix')}", {"spans": found, "tokens": tokens}, spans, usage)


def mlflow(environment: Path, folder: Path) -> bool:
    """Send to MLflow."""
    command = [str(environment / "bin" / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(PORT)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder)]
    with serving(command, {}, "/health"):
        spans, usage = send({"x-mlflow-experiment-id": "0"})
        time.sleep(5)
        found = json.loads(said_by(environment, READ_MLFLOW % ADDRESS))
        photograph(f"{ADDRESS}/#/experiments/0/traces?selectedEvaluationId={found.pop('trace')}", "mlflow", 952)
    return keep(f"mlflow {version_of(environment, 'mlflow')}", found, spans, usage)


BACKENDS: Final[Mapping[str, Callable[[Path, Path], bool]]] = {"phoenix": phoenix, "mlflow": mlflow}


if __name__ == "__main__":
    sys.exit(main())
