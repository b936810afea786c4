"""``watchkeeper``: run an agent, look at runs. Thin: it reads the command line and calls `app`.

Exit codes: 0 done, 1 stopped or not all items done, 2 input that cannot work (nothing was spent), 130 interrupted.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.markup import escape

from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.many import run_many
from watchkeeper.app.run import run
from watchkeeper.app.settings import limits_from, settings_here
from watchkeeper.cli import loading, report
from watchkeeper.cli.progress import Progress
from watchkeeper.core.errors import ConfigurationError, WatchkeeperError
from watchkeeper.core.limits import Limits
from watchkeeper.core.model import Model
from watchkeeper.prompt.prompt import Prompt
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.store.run_store import RunStore

STOPPED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130

app = typer.Typer(
    name="watchkeeper",
    help="Run LLM agents unattended, inside their limits.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("run")
def run_command(
    target: Annotated[str, typer.Argument(help="The agent: FILE:NAME, for example triage.py:triage.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="KEY=VALUE for the prompt; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="For example openai:gpt-5-mini, local, scripted.")] = None,
    max_cost: Annotated[str | None, typer.Option(help="Dollars for the whole run; 'none' lifts a limit.")] = None,
    max_tokens: Annotated[str | None, typer.Option(help="Tokens for the whole run, e.g. 500k.")] = None,
    max_steps: Annotated[str | None, typer.Option(help="Model and tool calls for the whole run.")] = None,
    max_turns: Annotated[str | None, typer.Option(help="Model turns of each run.")] = None,
    timeout: Annotated[str | None, typer.Option(help="Time for the whole run, e.g. 30m.")] = None,
    each: Annotated[str | None, typer.Option(help="Run once for every file that matches, under one ceiling.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="With --each: only the first N files.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="With --each: how many run at once.")] = 4,
    after: Annotated[
        str | None, typer.Option(help="A function of the agent's file that gets the result and reports.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    store: Annotated[str | None, typer.Option(help="SQLite file for the run's events; 'none' for no store.")] = None,
    notify: Annotated[
        str | None, typer.Option(help="Command to run at the end; the result comes as JSON on its stdin.")
    ] = None,
) -> None:
    """Run an agent to its end, or over many files, and say how it ended."""
    console = Console(stderr=as_json)
    given = {
        "model": model,
        "store": store,
        "max_cost": max_cost,
        "max_tokens": max_tokens,
        "max_steps": max_steps,
        "max_turns": max_turns,
        "timeout": timeout,
    }
    settings = {**settings_here(), **{name: value for name, value in given.items() if value is not None}}
    module, loaded = loading.load_target(target)
    prompt = loading.prompt_of(loaded, target)
    values = loading.parse_params(param or [])
    limits = limits_from(settings, loaded.limits if isinstance(loaded, Agent) else Limits())
    chosen = choose_model(settings.get("model"), loaded, module)
    options: dict[str, Any] = {"store": store_of(settings.get("store"))}
    if not as_json:
        options["on_event"] = Progress(console)
    result: RunResult[Any] | ManyResult[Any]
    if each is None:
        if first is not None:
            raise ConfigurationError("--first needs --each")
        result = run(loading.bind(prompt, values), model=chosen, limits=limits, **options)
    else:
        result = over_files(prompt, loading.matching_files(each, first), values, chosen, limits, concurrency, options)
    finish(console, result, report_function(module, after), as_json=as_json, notify=notify, settings=settings)


def over_files(
    prompt: Prompt[Any],
    paths: list[Path],
    values: dict[str, str],
    model: Model | str,
    limits: Limits,
    concurrency: int,
    options: dict[str, Any],
) -> ManyResult[Any]:
    """Run the agent once for every file."""
    items = loading.items_from(prompt, paths, values)
    names = {id(item): path.name for item, path in zip(items, paths, strict=True)}
    return run_many(
        prompt,
        items,
        model=model,
        limits=limits,
        concurrency=concurrency,
        label=lambda item: names[id(item)],
        **options,
    )


def choose_model(named: str | None, loaded: Any, module: Any) -> Model | str:
    """Return the model: the one named, the agent's own, or the script of the agent's file.

    Raises:
        ConfigurationError: If none is named anywhere.
    """
    if named == "scripted":
        script = getattr(module, "SCRIPT", None)
        if script is None:
            raise ConfigurationError("the scripted model needs a SCRIPT in the agent's file; name a real model instead")
        return ScriptedModel(script)
    if named is not None:
        return named
    if isinstance(loaded, Agent):
        return cast("Agent[Any]", loaded).model
    raise ConfigurationError("no model is named; give --model, WATCHKEEPER_MODEL, or model in [tool.watchkeeper]")


def store_of(named: str | None) -> str | None:
    """Return where to store: None for ``none``, else the path, or the user's own by default."""
    return None if named == "none" else named or "default"


def report_function(module: Any, name: str | None) -> Any:
    """Return the function that ``--after`` names.

    Raises:
        ConfigurationError: If the agent's file has none of that name.
    """
    if name is None:
        return None
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigurationError(f"--after {name!r}: the agent's file has no function of that name")
    return function


def finish(
    console: Console,
    result: RunResult[Any] | ManyResult[Any],
    after: Any,
    *,
    as_json: bool,
    notify: str | None,
    settings: dict[str, Any],
) -> None:
    """Print the result, let the agent's file report on it, tell whoever wants to be told; exit with the right code."""
    many = isinstance(result, ManyResult)
    data = report.many_as_data(result) if many else report.as_data(result)
    if as_json:
        typer.echo(json.dumps(data, ensure_ascii=False, indent=2))
    else:
        where = where_to_look(result, settings)
        report.print_many(console, result, where) if many else report.print_result(console, result, where)
    if after is not None:
        said = after(result)
        if said is not None:
            console.print(escape(str(said)), highlight=False)
    if notify is not None:
        tell(console, notify, data)
    failed = bool(result.not_done) if many else not result.ok
    stop = result.stop
    if stop is not None and stop.reason == "interrupted":
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(STOPPED if failed else 0)


def where_to_look(result: RunResult[Any] | ManyResult[Any], settings: dict[str, Any]) -> str:
    """Say how to see what happened."""
    store = store_of(settings.get("store"))
    if store is None:
        return "not stored (--store none)"
    option = "" if store == "default" else f" --store {shlex.quote(str(store))}"
    return f"look further: watchkeeper show {str(result.run_id)[:8]}{option}"


def tell(console: Console, command: str, data: dict[str, Any]) -> None:
    """Run the ``--notify`` command with the result on its stdin; a failure is said, and changes nothing else."""
    environment = {**os.environ, "WATCHKEEPER_RUN_ID": data["run_id"], "WATCHKEEPER_OK": str(data["ok"]).lower()}
    try:
        done = subprocess.run(
            shlex.split(command), input=json.dumps(data), text=True, env=environment, timeout=60, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        console.print(f"[yellow]--notify {escape(command)!r} failed: {escape(str(error))}[/yellow]")
        return
    if done.returncode:
        console.print(f"[yellow]--notify {escape(command)!r} ended with exit code {done.returncode}[/yellow]")


@app.command("runs")
def runs_command(
    store: Annotated[str | None, typer.Option(help="SQLite file of the runs.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List stored runs, newest first."""
    with_store = open_for_reading(store)
    runs = with_store.runs(limit)
    if as_json:
        typer.echo(json.dumps([report.stored_as_data(item) for item in runs], indent=2))
    elif runs:
        report.print_runs(Console(), runs)
    else:
        Console().print(f"no runs in {with_store.path}")


@app.command("show")
def show_command(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")],
    store: Annotated[str | None, typer.Option(help="SQLite file of the runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as JSON, one per line.")] = False,
) -> None:
    """Show one stored run: what happened, in order."""
    with_store = open_for_reading(store)
    found = with_store.find(run_id)
    if not as_json:
        report.print_run(Console(), with_store, found)
        return
    for event in with_store.events(found.run_id):
        typer.echo(json.dumps({"seq": event.seq, "at": event.at.isoformat(), "tag": event.tag, "event": event.body}))


def open_for_reading(store: str | None) -> RunStore:
    """Open the store that the options, the environment or the settings name.

    Raises:
        ConfigurationError: If there is no such file yet.
    """
    named = store or settings_here().get("store")
    from watchkeeper.store.schema import default_path

    path = Path(named) if named else default_path()
    if not path.is_file():
        raise ConfigurationError(f"there is no store {path} yet; 'watchkeeper run' makes it, or name one with --store")
    return RunStore(path)


def main() -> None:
    """Run the command line; what the user can mend is one line, not a traceback."""
    try:
        app()
    except WatchkeeperError as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(BAD_INPUT) from error
