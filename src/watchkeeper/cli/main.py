"""The commands of ``watchkeeper`` and their options; the work is done by the other modules of this folder.

Exit codes: 0 done, 1 stopped, no item done or not everything stored, 2 input that cannot work (nothing was spent), 3
some items done and some not, 4 parked until a person has answered, 130, 143 or 129 ended by Ctrl-C, SIGTERM or SIGHUP.
"""

from __future__ import annotations

import inspect
import json
import signal
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
import typer.core
from msgspec import to_builtins

from watchkeeper.accounting.call_request import nanos
from watchkeeper.app.settings import durability_from, settings_here, text_from
from watchkeeper.cli import answering, detaching, report, running, storing, viewing
from watchkeeper.cli.arguments import Store, open_for_reading, option
from watchkeeper.cli.stored import comparing, figures, listing, story, tailing
from watchkeeper.cli.console import complain, error_console, hold_standard_descriptors, let_go, make_console
from watchkeeper.cli.console import printing, put, say_fenced, show_warnings
from watchkeeper.cli.loading import AgentFileError
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.errors import ConfigurationError, LimitsError, WatchkeeperError
from watchkeeper.core.meters import METERS
from watchkeeper.core.quantities import count, duration
from watchkeeper.core.text import printable
from watchkeeper.core.usage import TokenUsage
from watchkeeper.store.answers import answer, pending
from watchkeeper.store.cancelling import cancel
from watchkeeper.ledgers.ledger_file import account_reports, ledger_path, settle_by_hand
from watchkeeper.store.comparison import compared
from watchkeeper.store.figures import figures_of
from watchkeeper.store.run_store import RunStore
from watchkeeper.store.selection import ORDERS, Selection, totals_of

UsageError: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""What typer raises for arguments that it cannot read. Older versions take it from click, newer ones have their own."""


class Commands(typer.core.TyperGroup):
    """The commands; an error about arguments is printable, because it repeats them."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            said: Any = error
            said.message = printable(said.message)
            for name in ("option_name", "argument_name", "param_hint"):
                if isinstance(getattr(said, name, None), str):
                    setattr(said, name, printable(getattr(said, name)))
            raise


class AccountCommand(typer.core.TyperCommand):
    """A command with an amount; one below 0 is an amount that cannot be, no unknown option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            unknown: str | None = getattr(error, "option_name", None)
            if unknown is not None and unknown[1:2] in {*"0123456789.$"}:
                nanos(next(arg for arg in given if arg.startswith(unknown)), "AMOUNT")
            raise


app = typer.Typer(
    name="watchkeeper",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

store_app = typer.Typer(no_args_is_help=True)
app.add_typer(
    store_app, name="store", help="Look after the store: find damage, delete old runs, bring in older stores."
)

Durably = Annotated[
    str | None, option("What the record survives: process (its end), or power (that of the machine).", "CHOICE")
]


Notified = Annotated[
    str | None, option("Tell this command (JSON on its stdin) or address of the end; see --notify-on.", "COMMAND|URL")
]
Detached = Annotated[
    bool, option("Run in a process of its own, which a closed terminal does not end.", None, "--detach", "-d")
]
Exported = Annotated[
    bool | None, option("Export telemetry by OTLP, as the OTEL_* variables say.", None, "--otel/--no-otel")
]
NotifiedOn = Annotated[
    str | None, option("With --notify: tell of these, e.g. warning,80%,parked,failed,end [end].", "KINDS")
]


RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")]


def print_version(wanted: bool) -> None:
    """Print the version and exit, if the option is given."""
    if wanted:
        typer.echo(f"watchkeeper {metadata.version('watchkeeper')}")
        raise typer.Exit


ALL: Final = -1
"""A limit that is none."""

NONE_GIVEN: Final[Mapping[str, str | None]] = {}


def with_limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter ``ceilings`` by an option for every limit that has one; it gets their values."""
    limits = [meter for meter in METERS if meter.option]

    @wraps(command)
    def with_options(**given: Any) -> None:
        command(ceilings={meter.setting: given.pop(meter.setting) for meter in limits}, **given)

    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "ceilings":
            parameters.append(parameter)
            continue
        for meter in limits:
            kind = Annotated[str | None, option(meter.option, "USD" if meter.measures == "money" else "N")]
            parameters.append(parameter.replace(name=meter.setting, annotation=kind, default=None))
    with_options.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return with_options


@app.callback()
def root_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Run LLM agents unattended, inside their limits, and look at what they did."""


@app.command("run")
@with_limit_options
def run_command(
    target: Annotated[str, typer.Argument(metavar="FILE:NAME", help="The agent, for example triage.py:triage.")],
    param: Annotated[
        list[str] | None, option("A parameter of the prompt; repeatable.", "KEY=VALUE", "--param", "-p")
    ] = None,
    model: Annotated[str | None, option("For example openai:gpt-5-mini, anthropic:..., local, scripted.")] = None,
    fallback: Annotated[
        list[str] | None, option("Model that takes over when the one before does not answer; repeatable.", "MODEL")
    ] = None,
    ceilings: Annotated[Mapping[str, str | None], "an option for every limit that has one"] = NONE_GIVEN,
    timeout: Annotated[str | None, option("Most time for the whole, e.g. 30m.", "TIME")] = None,
    on_context_full: Annotated[
        str | None, option("When the context is full: compact (go on with a summary), land or stop.", "CHOICE")
    ] = None,
    account: Annotated[str | None, option("Account that other runs draw on too; with --account-limit.", "NAME")] = None,
    account_limit: Annotated[str | None, option("What they may use together, e.g. $20/day.", "AMOUNT")] = None,
    each: Annotated[
        list[str] | None,
        option("Run once for every file that matches, or text:, lines:, csv:, jsonl: of one; repeatable.", "ITEMS"),
    ] = None,
    first: Annotated[int | None, option("With --each: only the first N items.", "N", least=1)] = None,
    concurrency: Annotated[int | None, option("With --each: how many run at once [4].", "N", least=1)] = None,
    skip_bad: Annotated[bool, option("With --each: leave out items that cannot be read.", None, "--skip-bad")] = False,
    files: Annotated[Path | None, option("Folder that the agent's tools may read and write.", "FOLDER")] = None,
    after: Annotated[str | None, option("Function of the agent's file that reports on the result.", "NAME")] = None,
    as_json: Annotated[bool, option("Print the result as JSON, and nothing else.", None, "--json")] = False,
    as_jsonl: Annotated[
        bool, option("Print events as JSON, one per line, the result last, and nothing else.", None, "--jsonl")
    ] = False,
    quiet: Annotated[bool, option("Print nothing while it goes on.", None, "--quiet", "-q")] = False,
    store: Annotated[str | None, option("Folder for the run's events; 'none' for none.", "FOLDER")] = None,
    on_store_failure: Annotated[
        str | None, option("When events cannot be stored for 60 s: stop, or go_on without the record.", "CHOICE")
    ] = None,
    durability: Durably = None,
    on_ask: Annotated[
        str | None, option("When a person is to be asked and nobody is there: deny or park.", "CHOICE")
    ] = None,
    ask_expires: Annotated[str | None, option("With --on-ask park: how long to wait for an answer.", "TIME")] = None,
    on_expiry: Annotated[
        str | None, option("With --on-ask park: what holds after that, deny or allow.", "CHOICE")
    ] = None,
    notify: Notified = None,
    notify_on: NotifiedOn = None,
    otel: Exported = None,
    detach: Detached = False,
    view: Annotated[bool, option("Show the inspector's page while it goes on.", None, "--view")] = False,
) -> None:
    """Run an agent to its end, or over many items, and say how it ended.

    Ctrl-C or SIGTERM lands it: it hands over what it has. A second one stops it hard.
    """
    given = {"model": model, "store": store, "on_context_full": on_context_full, "timeout": timeout}
    given |= {"on_store_failure": on_store_failure, "durability": durability, "on_ask": on_ask}
    given |= {"ask_expires": ask_expires, "on_expiry": on_expiry, "notify": notify, "notify_on": notify_on}
    given |= {"account": account, "account_limit": account_limit, **ceilings}
    over = (each or (), first, concurrency, skip_bad)
    what = (target, given, param or (), fallback or ())
    order = running.Order(*what, *over, files, after, as_json, as_jsonl, quiet, view, otel=otel)
    raise typer.Exit(detaching.carry_out_detached(order) if detach else running.carry_out(order))


@app.command("resume")
@with_limit_options
def resume_command(
    run_id: RunId,
    model: Annotated[str | None, option("Another model than that of the run.")] = None,
    ceilings: Annotated[Mapping[str, str | None], "an option for every limit that has one"] = NONE_GIVEN,
    timeout: Annotated[str | None, option("Most time for the whole, what it has worked included.", "TIME")] = None,
    fresh_limits: Annotated[bool, option("What it has used before does not count.", None, "--fresh-limits")] = False,
    accept_changes: Annotated[
        bool, option("Go on although its prompt, tools or models have changed.", None, "--accept-changes")
    ] = False,
    only: Annotated[
        str | None, option("Of a run over many items: only those that failed, or only the others.", "failed|unstarted")
    ] = None,
    notify: Notified = None,
    notify_on: NotifiedOn = None,
    as_json: Annotated[bool, option("Print the result as JSON, and nothing else.", None, "--json")] = False,
    quiet: Annotated[bool, option("Print nothing while it goes on.", None, "--quiet", "-q")] = False,
    otel: Exported = None,
    detach: Detached = False,
    store: Store = None,
    durability: Durably = None,
) -> None:
    """Go on with a run whose process has died, or with the items of one that are not done; nothing is done twice.

    Limits that are named hold for all that the run has used; without them, its old limits hold.
    """
    given = {"model": model, "store": store, "durability": durability, "timeout": timeout, **ceilings}
    given |= {"notify": notify, "notify_on": notify_on}
    order = running.resume_order(
        run_id,
        given,
        as_json=as_json,
        quiet=quiet,
        fresh_limits=fresh_limits,
        accept_changes=accept_changes,
        only=only,
        otel=otel,
    )
    raise typer.Exit(detaching.carry_out_detached(order) if detach else running.carry_out(order))


def path_of(store: str | None) -> Path:
    """Return the folder of a store that is to be written; one that is not there is not made."""
    with open_for_reading(store) as read:
        return read.path


@app.command("cancel")
def cancel_command(
    run_id: RunId,
    hard: Annotated[bool, option("End it at once; what is under way is cancelled.", None, "--hard")] = False,
    wait: Annotated[str | None, option("How long to wait for its end, e.g. 60 or 2m.", "SECONDS")] = None,
    by: Annotated[str | None, option("Who gives up a dead or parked run (your user name).", "NAME")] = None,
    store: Store = None,
) -> None:
    """Ask the process of a run to land it; again, or with --hard, to end it at once. Give up a dead or parked run.

    The exit code is 1 if it still runs after --wait or --hard, and 2 if there was nothing to cancel.
    """
    path, seconds = path_of(store), None if wait is None else duration(wait, "--wait")
    with RunStore(path) as stored:
        run = cancel(stored, run_id, hard=hard, wait=seconds, by=by)
        code = detaching.print_cancelled(run, stored, waited=hard or wait is not None)
    raise typer.Exit(code)


@app.command("pending")
def pending_command(
    store: Store = None, as_json: Annotated[bool, option("Print JSON.", None, "--json")] = False
) -> None:
    """List the tool calls of parked runs that wait for an answer, with their arguments."""
    with open_for_reading(store) as stored, printing() as out:
        found = pending(stored)
        if as_json:
            out.write(json.dumps([each.as_data() for each in found], indent=2) + "\n")
        elif found:
            answering.print_pending(make_console(out), found, SYSTEM_CLOCK.now(), stored.path)
        else:
            put(make_console(out), f"nothing waits for an answer in {stored.path}")


AskedCall = Annotated[
    str | None, typer.Argument(metavar="CALL", help="The call's id, or the beginning of it; needed if several wait.")
]
By = Annotated[str | None, option("Who gives the answer (your user name).", "NAME")]
Seen = Annotated[
    str, option("Hash of the arguments you have seen, or its beginning; others are refused.", "HASH", "--hash")
]


@app.command("approve")
def approve_command(
    run_id: RunId,
    call: AskedCall = None,
    by: By = None,
    why: Annotated[str, option("The reason, for the record.", "TEXT")] = "",
    seen: Seen = "",
    then_resume: Annotated[bool, option("Then go on with the run.", None, "--resume")] = False,
    store: Store = None,
) -> None:
    """Allow a tool call for which a run is parked; 'pending' lists them.

    Of a call of which nobody knows whether it had its effect: let it run again.
    """
    answer_with(run_id, call, store, then_resume=then_resume, allowed=True, by=by, why=why, digest=seen)


@app.command("deny")
def deny_command(
    run_id: RunId,
    call: AskedCall = None,
    why: Annotated[str, option("The reason; the agent is told.", "TEXT")] = "",
    by: By = None,
    seen: Seen = "",
    then_resume: Annotated[bool, option("Then go on with the run.", None, "--resume")] = False,
    store: Store = None,
) -> None:
    """Deny a tool call for which a run is parked; the agent is told why, and goes on without it.

    Of a call of which nobody knows whether it had its effect: tell the agent so, and do not run it again.
    """
    answer_with(run_id, call, store, then_resume=then_resume, allowed=False, by=by, why=why, digest=seen)


def answer_with(run_id: str, call: str | None, store: str | None, *, then_resume: bool, **said: Any) -> None:
    """Put an answer on record, say so, and go on with the run if that is wanted."""
    path = path_of(store)
    durability = durability_from(settings_here({}))
    with RunStore(path, durability=durability or "process") as stored:
        found = answer(stored, run_id, call, **said)
    with printing() as out:
        put(make_console(out), answering.said_of(found, said["allowed"], path, goes_on=then_resume))
    if then_resume:
        order = running.resume_order(found.run.parent_id or found.run.run_id, {"store": store})
        raise typer.Exit(running.carry_out(order))


@app.command("replay")
@with_limit_options
def replay_command(
    run_id: RunId,
    fork: Annotated[
        int | None, option("Go on live from this event, as a new run with limits of its own.", "SEQ", least=1)
    ] = None,
    model: Annotated[str | None, option("Another model than that of the run.")] = None,
    ceilings: Annotated[Mapping[str, str | None], "an option for every limit that has one"] = NONE_GIVEN,
    timeout: Annotated[str | None, option("With --fork: most time for the new run.", "TIME")] = None,
    as_json: Annotated[bool, option("Print JSON, and nothing else.", None, "--json")] = False,
    quiet: Annotated[bool, option("With --fork: print nothing while it goes on.", None, "--quiet", "-q")] = False,
    store: Store = None,
) -> None:
    """Run the agent of today against a stored run, without a model or tools, and say at which events it differs.

    The exit code is 1 if it differs. Limits are for --fork; without them the new run has those of the old one, anew.
    """
    limits = {"timeout": timeout, **ceilings}
    if fork is None:
        for name in [each for each, value in limits.items() if value is not None] + ["quiet"] * quiet:
            raise ConfigurationError(f"--{name.replace('_', '-')} needs --fork SEQ")
    given = {"model": model, "store": store, "notify": "none", **limits}
    order = running.resume_order(run_id, given, as_json=as_json, quiet=quiet, forks=fork)
    raise typer.Exit(running.replay_and_report(order) if fork is None else running.carry_out(order))


Since = Annotated[str | None, option("Only those that began at most so long ago, e.g. 12h.", "TIME")]
OfPrompt = Annotated[str, option("Only those whose prompt's name contains this.", "TEXT")]
OfModel = Annotated[str, option("Only those whose model's name contains this.", "TEXT")]


@app.command("runs")
def runs_command(
    failed: Annotated[
        bool,
        option("Only those whose work is not done: stopped, interrupted, damaged, items left.", None, "--failed"),
    ] = False,
    stopped: Annotated[bool, option("Only those that ended early, parked ones included.", None, "--stopped")] = False,
    interrupted: Annotated[
        bool,
        option("Only the ids of runs whose process has died and that can be resumed.", None, "--interrupted"),
    ] = False,
    since: Since = None,
    prompt: OfPrompt = "",
    model: OfModel = "",
    parent: Annotated[str | None, option("Those directly below this run: its items, subagents, judges.", "RUN")] = None,
    sort: Annotated[str, option("By started (newest first), cost, tokens or took.", "BY")] = "started",
    limit: Annotated[int, option("How many at most.", "N", least=1)] = 20,
    as_json: Annotated[bool, option("Print JSON.", None, "--json")] = False,
    store: Store = None,
) -> None:
    """List stored runs, newest first, and what all that are wanted come to."""
    order = ORDERS[listing.order_named(sort)]
    wanted = Selection(failed, stopped, listing.since_time(since), prompt, model)
    with open_for_reading(store) as stored:
        there = stored.runs(ALL) if parent is None else stored.children(stored.find(parent).run_id)
        found = [run for run in listing.taken(stored, there, wanted) if run.is_resumable or not interrupted]
        runs = sorted(found, key=order, reverse=True)[:limit]
    with printing() as out:
        if interrupted and not as_json:
            out.writelines(f"{run.run_id}\n" for run in runs)
        elif as_json:
            out.write(json.dumps([run.as_data() for run in runs], indent=2) + "\n")
        elif runs:
            listing.print_runs(make_console(out), runs)
            listing.print_totals(make_console(out), totals_of(found), len(runs))
        else:
            where = stored.path if parent is None else f"{stored.path} below {parent}"
            put(make_console(out), listing.nothing_in(str(where), len(there)))
    stored.check(runs)


@app.command("report")
def report_command(
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Ids of runs, or the beginnings of them; else all.")
    ] = None,
    since: Since = None,
    prompt: OfPrompt = "",
    model: OfModel = "",
    as_json: Annotated[bool, option("Print JSON.", None, "--json")] = False,
    as_csv: Annotated[bool, option("Print CSV, one row for each name.", None, "--csv")] = False,
    store: Store = None,
) -> None:
    """Add up stored runs: how they ended, cost by model and prompt, tools, retries, verdicts, assessments."""
    if as_json and as_csv:
        raise ConfigurationError("--json and --csv exclude each other")
    wanted = Selection(since=listing.since_time(since), prompt=prompt, model=model)
    with open_for_reading(store) as stored:
        named = [stored.find(run_id) for run_id in run_ids or ()]
        everything, activities = stored.everything()
        chosen = [run for run in named or everything if wanted.takes(run) and (named or run.parent_id is None)]
    summed = figures_of(chosen, everything, activities)
    with printing() as out:
        if as_json:
            out.write(json.dumps(summed.as_data(), indent=2) + "\n")
        elif as_csv:
            figures.write_csv(out, summed)
        elif chosen:
            figures.print_figures(make_console(out), summed)
        else:
            tops = sum(run.parent_id is None for run in everything)
            put(make_console(out), listing.nothing_in(str(stored.path), tops))


@app.command("compare")
def compare_command(
    run_id: RunId,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other run's id, or the beginning of it.")],
    as_json: Annotated[bool, option("Print JSON.", None, "--json")] = False,
    store: Store = None,
) -> None:
    """Say where two stored runs part for the first time, and what differs in cost, calls and verdict."""
    with open_for_reading(store) as stored:
        runs = stored.find(run_id), stored.find(other)
        found = compared(stored.events(runs[0].run_id), stored.events(runs[1].run_id))
    with printing() as out:
        if as_json:
            out.write(json.dumps(comparing.as_data(runs, found), indent=2) + "\n")
        else:
            comparing.print_compared(make_console(out), runs, found)


@app.command("show")
def show_command(
    run_id: RunId,
    store: Store = None,
    full: Annotated[bool, option("Print all of every text, argument and result.", None, "--full")] = False,
    as_json: Annotated[bool, option("Print every event as JSON, one per line.", None, "--json")] = False,
) -> None:
    """Show one stored run: its task, what the model said and did, in order, and its end; also while it goes on."""
    if full and as_json:
        raise ConfigurationError("--json prints all of every event; give it without --full")
    with open_for_reading(store) as stored:
        found = stored.find(run_id)
        with printing() as out:
            if not as_json:
                story.print_run(make_console(out), stored, found, full=full)
                return
            for run in story.with_children(stored, found):
                for event in stored.events(run.run_id):
                    out.write(json.dumps(story.event_as_data(run, event)) + "\n")


@app.command("tail")
def tail_command(
    run_id: RunId,
    follow: Annotated[bool, option("Print what comes, until the run has ended.", None, "--follow", "-f")] = False,
    lines: Annotated[int, option("How many of the last lines.", "N", "--lines", "-n", least=1)] = 10,
    as_json: Annotated[bool, option("Print every event as JSON, one per line.", None, "--json")] = False,
    store: Store = None,
) -> None:
    """Show the last lines of a stored run, and with -f those that follow; Ctrl-C ends this, not the run."""
    with open_for_reading(store) as stored, printing() as out:
        try:
            tailing.tail(stored, stored.find(run_id), out, lines, follows=follow, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(running.SIGNALLED + signal.SIGINT) from None


@app.command("view")
def view_command(
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="Folder of the runs.")] = None,
    port: Annotated[int, option("Port of the page on this machine; 0 takes any that is free.", "N", least=0)] = 0,
    no_open: Annotated[bool, option("Open no browser, print the address only.", None, "--no-open")] = False,
    bind: Annotated[
        str | None, option("Another address to listen on; other machines can then read all runs.", "ADDRESS")
    ] = None,
) -> None:
    """Show stored runs in a browser, read-only and on this machine alone, until Ctrl-C."""
    with open_for_reading(store) as stored:
        viewing.view(stored, port, bind, opens=not no_open)


@app.command("export")
def export_command(
    run_id: RunId,
    output: Annotated[
        Path | None, option("The file to write [run-ID.html]; one that is there is replaced.", "FILE", "--output", "-o")
    ] = None,
    redact: Annotated[list[str] | None, option("A text to leave out wherever it appears; repeatable.", "TEXT")] = None,
    unredacted: Annotated[
        bool,
        option("Leave in what looks like a credential and is none that this process holds.", None, "--unredacted"),
    ] = False,
    store: Store = None,
) -> None:
    """Write the inspector's page of one run and those below it as one file, to be opened from disk without network."""
    with open_for_reading(store) as stored:
        viewing.export(stored, run_id, output, redact or (), guesses=not unredacted)


@app.command("observe")
def observe_command(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs, or the beginnings of them.")],
    settings: Annotated[
        list[str] | None,
        option("Threshold to try, for example StallDetector.repeats=6; repeatable.", "DETECTOR.FIELD=VALUE", "--set"),
    ] = None,
    store: Store = None,
    as_json: Annotated[bool, option("Print JSON, one line for each time.", None, "--json")] = False,
) -> None:
    """Replay the detectors over stored runs and print what they would have told the agent, for tuning."""
    from watchkeeper.cli import observing  # detectors take long to import, and no other command needs them

    detectors = observing.detectors_with(settings or ())
    with open_for_reading(store) as stored:
        found = [stored.find(run_id) for run_id in run_ids]
        with printing() as out:
            runs = {each.run_id: each for one in found for each in story.with_children(stored, one)}
            for run in runs.values():
                said = list(observing.heard(stored, run, detectors))
                if as_json:
                    out.writelines(json.dumps(each.as_data(run)) + "\n" for each in said)
                else:
                    observing.print_heard(make_console(out), run, said)


@store_app.command("check")
def check_command(store: Store = None) -> None:
    """Read every line of every run, and say what is damaged; exit code 2 if something is."""
    with open_for_reading(store) as stored:
        storing.check(stored)


@store_app.command("compact")
def compact_command(store: Store = None) -> None:
    """Remove what crashes left behind: unfinished last lines, and files of runs that never began."""
    with open_for_reading(store) as stored:
        storing.tidy(stored)


@store_app.command("prune")
def prune_command(
    older: Annotated[str, option("How long ago a run must have ended, e.g. 30d.", "TIME")],
    dry_run: Annotated[bool, option("Delete nothing; say what would be deleted.", None, "--dry-run")] = False,
    store: Store = None,
) -> None:
    """Delete runs that ended long ago, with those below them; never one that is running, interrupted or parked."""
    with open_for_reading(store) as stored:
        storing.delete_older(stored, older, dry_run=dry_run)


@store_app.command("reindex")
def reindex_command(store: Store = None) -> None:
    """Make the index of the store anew from its files; no run needs that."""
    with open_for_reading(store) as stored:
        storing.reindex(stored)


@store_app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The SQLite file of a store of version 0.1.")],
    store: Annotated[str | None, option("Folder of the runs; the one beside the file by default.", "FOLDER")] = None,
) -> None:
    """Bring in the runs of a store of version 0.1, under their ids; the file stays as it is."""
    storing.bring_in(file, store)


@app.command("account", cls=AccountCommand)
def account_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME|settle", help="Of this account only; or settle.")] = None,
    call: Annotated[str | None, typer.Argument(metavar="ID", help="settle: the call, or how its id begins.")] = None,
    amount: Annotated[str | None, typer.Argument(metavar="AMOUNT", help="settle: what it cost, in dollars.")] = None,
    tokens: Annotated[str | None, option("settle: tokens that it used, if you know them.", "IN,OUT")] = None,
    ledger: Annotated[str | None, option("SQLite file of the ledger.", "FILE")] = None,
    as_json: Annotated[bool, option("Print JSON.", None, "--json")] = False,
) -> None:
    """Show what accounts have used today and this month (UTC), what runs hold right now, and what is presumed.

    'account settle ID AMOUNT' books what a call came to, by the provider's bill, in the place of what is presumed.
    """
    if name == "settle" or call is not None or tokens is not None:
        if name != "settle" or call is None or amount is None:
            raise ConfigurationError("write: watchkeeper account settle ID AMOUNT [--tokens IN,OUT]")
        if as_json:
            raise ConfigurationError("--json applies to the report of accounts, not to settle")
        settle(call, nanos(amount.removeprefix("$"), "AMOUNT"), None if tokens is None else pair_of(tokens), ledger)
        return
    path = named_ledger(ledger)
    reports = account_reports(path, name)
    with printing() as out:
        if as_json:
            out.write(json.dumps(to_builtins(reports), indent=2) + "\n")
        elif reports:
            report.print_accounts(make_console(out), reports)
        else:
            put(make_console(out), f"no accounts in {path}")


def settle(call: str, cost: int, tokens: TokenUsage | None, ledger: str | None) -> None:
    """Book what a call came to, in nano-dollars and tokens, and say what is booked now."""
    settled = settle_by_hand(named_ledger(ledger), call, cost, tokens)
    with printing() as out:
        report.print_settled(make_console(out), settled, cost, tokens)


def named_ledger(option: str | None) -> Path:
    """Return the file of the ledger that the option, the environment or the settings name."""
    return ledger_path(text_from(settings_here({"ledger": option}), "ledger") or "default")


def pair_of(tokens: str) -> TokenUsage:
    """Return the tokens that ``IN,OUT`` names, for example ``12k,800``."""
    given, separator, returned = tokens.partition(",")
    if not separator:
        raise LimitsError(f"--tokens={tokens!r} must be input and output, for example 12000,800")
    return TokenUsage(count(given.strip(), "IN", zero=True), count(returned.strip(), "OUT", zero=True))


def main() -> None:
    """Run the command line; an error that the user can correct is one line, not a traceback.

    Raises:
        SystemExit: Always, with the exit code.
    """
    hold_standard_descriptors()
    show_warnings()
    try:
        app()
    except AgentFileError as error:
        console = error_console()
        if error.__cause__ is not None:
            say_fenced(console, "".join(traceback.format_exception(error.__cause__)).rstrip())
        complain(console, str(error))
    except WatchkeeperError as error:
        complain(error_console(), str(error))
    except Exception as error:  # a defect of Watchkeeper; the message may contain text from outside
        say_fenced(error_console(), "".join(traceback.format_exception(error)).rstrip())
        raise SystemExit(running.STOPPED) from None
    finally:
        let_go()
    raise SystemExit(running.BAD_INPUT)
