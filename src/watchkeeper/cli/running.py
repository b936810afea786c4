"""What ``watchkeeper run`` does: load the agent, run it, report, notify, and return the exit code.

Every value of the command line is checked before code of the user is executed, and whatever else can be refused before
the first request to a model. With ``--json`` standard output has only the result, also if the agent's own code prints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, TextIO, cast

from rich.console import Console

import msgspec

from watchkeeper.accounting.limits import Limits
from watchkeeper.adapters.scripted import ScriptedModel
from watchkeeper.app.agent import Agent
from watchkeeper.app.options import ManyOptions, RunOptions, StoreLike
from watchkeeper.app.models import check_model_text
from watchkeeper.app.telling.notify import COMMAND_SECONDS, END, Notify, delivered
from watchkeeper.app.replay import ReplayOptions, replay
from watchkeeper.app.resume import fork, resume, resume_many
from watchkeeper.app.run import run, run_many
from watchkeeper.app.resume import refuse_part
from watchkeeper.app.settings import (
    ACCOUNT,
    FIELDS,
    Settings,
    check_values,
    context_full_from,
    durability_from,
    limits_from,
    notify_from,
    on_ask_from,
    prices_from,
    settings_here,
    store_failure_from,
    text_from,
)
from watchkeeper.app.surroundings import open_store
from watchkeeper.cli.broken_off import end_on_record
from watchkeeper.cli.console import UNPRINTABLE, complain, error_console, make_console, put, say, say_fenced, silence
from watchkeeper.cli.exporting import exporting
from watchkeeper.cli.items import Bad, Given, read_items, refuse
from watchkeeper.cli.live.screen import live
from watchkeeper.cli.loading import Loaded, agent_file, bind, item_maker, load, parse_params
from watchkeeper.cli.stored.listing import SHORT_ID
from watchkeeper.cli.report import JsonLines, Progress, print_many, print_result
from watchkeeper.cli.storing import to_type
from watchkeeper.cli.viewing import beside
from watchkeeper.core.clock import SYSTEM_CLOCK
from watchkeeper.core.codec import to_builtins
from watchkeeper.core.errors import ConfigurationError, StoreError
from watchkeeper.core.model import Model
from watchkeeper.core.secrets import HELD, REDACTED
from watchkeeper.core.text import one_line
from watchkeeper.core.type_tags import tag_of
from watchkeeper.loop.used import limits_of
from watchkeeper.loop.resume_many import ONLY
from watchkeeper.prompt.template import Prompt
from watchkeeper.runtime.portal import EndRequests, heeding
from watchkeeper.runtime.result import ManyResult, RunResult
from watchkeeper.ledgers.ledger_file import ledger_path
from watchkeeper.runtime.events import RunOpened, RunResumed, RunStarted
from watchkeeper.disk.power import Durability
from watchkeeper.store.plain_json import UNREADABLE, untyped
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore, store_path
from watchkeeper.tools.filesystems import HostFilesystem

DONE: Final = 0
STOPPED: Final = 1
BAD_INPUT: Final = 2
SOME_DONE: Final = 3
PARKED: Final = 4
SIGNALLED: Final = 128
"""Added to the number of the signal that ended a run, as shells do: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""

SCRIPTED: Final = "scripted"
"""The model that follows the SCRIPT of the agent's file."""

NOTIFY_SECONDS: Final = COMMAND_SECONDS
"""How long the command of ``--notify`` may take."""

LONGEST: Final = 500
"""Characters that are printed of a difference."""

BROKEN_OFF: Final = "broken off by a signal"

AnyResult = RunResult[Any] | ManyResult[Any]


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asks for.

    Attributes:
        target: ``FILE:NAME``.
        given: Settings that were named as options.
        params: ``KEY=VALUE`` pairs.
        fallback: Models that take over, in this order.
        each: Where items come from, to run once for each: `items.read_items`.
        first: Run only this many of them, the first ones.
        concurrency: How many run at once.
        skip_bad: Whether items that cannot be read or bound are left out.
        files: Folder that tools may read and write.
        after: Name of a function that reports on the result.
        as_json: Whether to print the result as JSON, and nothing else.
        as_jsonl: Whether to print events as JSON lines, the result last, and nothing else.
        quiet: Whether to print nothing while it goes on.
        views: Whether to show the inspector's page while it goes on.
        resumes: Id of the run to go on with; None for a new run.
        forks: Number of the event of that run from which a new one goes on; None to go on with the run itself.
        fresh_limits: Whether what that run has used before does not count.
        accept_changes: Whether it may go on although it is made of other things now.
        only: Which of its items to do: ``failed`` or ``unstarted``; None for both.
        otel: Whether telemetry is exported; None leaves it to the environment.
        folder: In which the order was given; a run that goes on does so in the folder in which it was started.
    """

    target: str
    given: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    params: Sequence[str] = ()
    fallback: Sequence[str] = ()
    each: Sequence[str] = ()
    first: int | None = None
    concurrency: int | None = None
    skip_bad: bool = False
    files: Path | None = None
    after: str | None = None
    as_json: bool = False
    as_jsonl: bool = False
    quiet: bool = False
    views: bool = False
    resumes: str | None = None
    forks: int | None = None
    fresh_limits: bool = False
    accept_changes: bool = False
    only: str | None = None
    otel: bool | None = None
    folder: Path = field(default_factory=Path.cwd)

    @property
    def origin(self) -> dict[str, Any]:
        """What `resume_order` needs to go on with the run, as plain values."""
        path, name = agent_file(self.target)
        plain: dict[str, Any] = {
            "target": f"{path.absolute()}:{name}",
            "folder": str(Path.cwd()),
            "given": {name: value for name, value in self.given.items() if value is not None and name != "store"},
            "params": list(self.params),
            "fallback": list(self.fallback),
            "each": list(self.each),
            "first": self.first,
            "concurrency": self.concurrency,
            "skip_bad": self.skip_bad,
            "files": None if self.files is None else str(self.files.absolute()),
            "after": self.after,
        }
        return plain

    @property
    def for_programs(self) -> bool:
        """Whether standard output is for JSON alone."""
        return self.as_json or self.as_jsonl


class Origin(msgspec.Struct, frozen=True):
    """What the record of a run has of its order, with the meaning that it has in `Order`."""

    target: str
    folder: str
    given: dict[str, str | None]
    params: tuple[str, ...]
    fallback: tuple[str, ...]
    files: str | None
    after: str | None
    each: tuple[str, ...] = ()
    first: int | None = None
    concurrency: int | None = None
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """What the command line asks for, read and checked before any code of the user is executed.

    Attributes:
        settings: The settings in force.
        options: Those of the run that do not come from the agent's file.
        values: What the prompt's parameters are bound to.
        items: What to run over; None for one run.
        notify: Who is told about the run, and of what.
    """

    settings: Settings
    options: RunOptions
    values: Mapping[str, str]
    items: Sequence[Given | Bad] | None
    notify: Notify | None


def checked(order: Order) -> Checked:
    """Check every value that the order names; only what needs the agent itself is left to check.

    Raises:
        ConfigurationError: For the first value that cannot work.
    """
    agent_file(order.target)
    if order.only not in (None, *ONLY):
        raise ConfigurationError(f"--only {order.only!r} must be {' or '.join(ONLY)}")
    if order.as_json and order.as_jsonl:
        raise ConfigurationError("--json prints one document, --jsonl one for each line; give one of them")
    if not order.each:
        alone = {"--first": order.first, "--concurrency": order.concurrency, "--skip-bad": order.skip_bad or None}
        for name, value in alone.items():
            if value is not None:
                raise ConfigurationError(f"{name} needs --each PATTERN")
    settings = settings_here(order.given)
    check_values(settings)
    ledger_path(text_from(settings, "ledger") or "default")
    store = store_path(text_from(settings, "store") or "default")
    if store is not None and os.path.exists(store):  # a missing one is made when the run begins
        RunStore(store).close()
    model = text_from(settings, "model")
    if model not in (None, SCRIPTED):
        check_model_text(model, also=SCRIPTED)
    for each in order.fallback:
        if each == SCRIPTED:
            raise ConfigurationError(f"--fallback {SCRIPTED} cannot be: a script takes over from no model")
        check_model_text(each)
    options: RunOptions = {"prices": prices_from(settings), "fallback": order.fallback}
    context_full = context_full_from(settings)
    if context_full is not None:
        options["on_context_full"] = context_full
    durability_from(settings)
    store_failure = store_failure_from(settings)
    if store_failure is not None:
        options["on_store_failure"] = store_failure
    on_ask = on_ask_from(settings)
    if on_ask is not None:
        options["on_ask"] = on_ask
    if order.files is not None:
        options["filesystem"] = HostFilesystem(order.files)
    values = parse_params(order.params)
    items = read_items(order.each)[: order.first] if order.each else None
    bad = [item for item in items or () if isinstance(item, Bad)]
    refuse(bad, len(items or ()) - len(bad), skip=order.skip_bad)
    return Checked(settings, options, values, items, notify_from(settings))


Opener = Callable[[RunStore | StoreLike, Durability | None], RunStore | None]
"""Opens the store of the run, with what its writes are to survive; None for none."""


def carry_out(order: Order, opener: Opener = open_store) -> int:
    """Run what was ordered, to its end, and return the exit code.

    SIGTERM and SIGHUP do what Ctrl-C does: the first lands the run, a second one stops it hard. However many come, the
    end is recorded and ``--notify`` is run.

    Raises:
        ConfigurationError: If it cannot work; nothing was spent.
        StoreError: If the store cannot be written; nothing was spent.
    """
    requests = EndRequests()
    with heeding(requests, to_the_end=True):
        try:
            return run_and_report(order, requests, opener)
        except KeyboardInterrupt:
            return signalled(requests)


def run_and_report(order: Order, requests: EndRequests, opener: Opener) -> int:
    """Run what was ordered, print and tell how it ended, and return the exit code."""
    asked = checked(order)
    out = cast("TextIO | None", sys.stdout)
    aside: AbstractContextManager[Any] = redirect_stdout(sys.stderr) if order.for_programs else nullcontext()
    with ExitStack() as stack:
        stack.enter_context(aside)
        console = error_console() if order.for_programs else make_console(out)
        tell_line = partial(say_line, console)
        traced = stack.enter_context(exporting(order.otel, os.environ, requests, tell_line))
        loaded = load(order.target)
        after = None if order.after is None else loaded.function(order.after, "--after")
        store = opener(text_from(asked.settings, "store") or "default", durability_from(asked.settings))
        with nullcontext() if store is None else store:
            if store is not None:
                store.heeds_signals = True
            options: RunOptions = {**asked.options, "store": store, "origin": order.origin}
            options = {**options, **traced, **before_end(asked.notify)}
            shown: AbstractContextManager[Any] = nullcontext()
            if not order.quiet:
                followed, shown = live(console, out, lines_of(order, out, console))
                options = {**options, **followed}
            page: AbstractContextManager[Any] = nullcontext()
            if order.views:
                if store is None:
                    raise ConfigurationError("--view shows the store; leave out --store none, or name a folder")
                page = beside(store.path, console)
            requests.noted = 1  # from here on there is an end to come to, which the first one must not break off
            with page, shown:
                result = ended(partial(start, order, loaded, asked, options, console), requests, store)
            if result is None:
                say(console, ("not recorded: the run was broken off", "yellow"))
                return signalled(requests)
            data = HELD.redacted_data(result.as_data())
            where = where_to_look(result, store, order.folder)
            if order.for_programs:
                lost = print_json(
                    out, {"tag": "result", "result": data} if order.as_jsonl else data, compact=order.as_jsonl
                )
            else:
                lost = print_end(console, result, where)
            failed = DONE
            if after is not None and not isinstance(result, StoredRun):
                failed = report_with(partial(requests.broken_off_by, partial(after, result)), console)
            if asked.notify is not None and END in asked.notify.kinds:
                tell(asked.notify, data, requests, console, quiet=order.for_programs)
    unstored = not isinstance(result, StoredRun) and result.not_stored
    return exit_code(result, requests) or lost or failed or (STOPPED if unstored else DONE)


def lines_of(order: Order, out: TextIO | None, console: Console) -> JsonLines | Progress | None:
    """Return what prints a line for each event; None if nothing does."""
    if order.for_programs:
        return JsonLines(out) if order.as_jsonl and out is not None else None
    return Progress(console)


def ended(work: Callable[[], AnyResult], requests: EndRequests, store: RunStore | None) -> AnyResult | StoredRun | None:
    """Do the work; if it has to be broken off, put its end on record and return it as stored; None if it is not stored.

    Raises:
        KeyboardInterrupt: If it was broken off before anything began.
    """
    try:
        return work()
    except KeyboardInterrupt:
        if not requests.ending:
            raise
        if store is None or store.first_run is None:
            return None
        return end_on_record(store, store.first_run, SYSTEM_CLOCK.now())


def say_line(console: Console, line: str) -> None:
    """Print a line beside the result."""
    say(console, (line, "yellow"))


def tell(to: Notify, data: dict[str, Any], requests: EndRequests, console: Console, *, quiet: bool) -> None:
    """Tell of the end, as ``--notify`` asks for; if that fails, it is printed, and nothing else changes."""
    work = partial(delivered, to, END, data, quiet=quiet, seconds=NOTIFY_SECONDS)
    try:
        complaint = requests.broken_off_by(work)
    except KeyboardInterrupt:
        complaint = BROKEN_OFF
    if complaint is not None:
        say(console, (f"--notify {to.name}: {complaint}", "yellow"))


def before_end(notify: Notify | None) -> RunOptions:
    """Return the options by which somebody is told while a run goes on; the command itself tells of the end."""
    kinds = () if notify is None else tuple(kind for kind in notify.kinds if kind != END)
    return {"notify": replace(notify, on=kinds)} if notify is not None and kinds else {}


def start(order: Order, loaded: Loaded, asked: Checked, options: RunOptions, console: Console) -> AnyResult:
    """Bind the parameters and run once, or once for every item.

    Raises:
        ConfigurationError: If something does not fit.
    """
    settings = asked.settings
    limits = limits_from(settings, loaded.limits)
    if order.resumes is not None:
        limits = limits_on_record(order, cast("RunStore", options.get("store")), settings)
    if limits.account is not None:
        options = {**options, "ledger": text_from(settings, "ledger") or "default"}
    options = {**loaded.options, **options}
    model = choose_model(text_from(settings, "model"), loaded)
    if order.resumes is not None and order.forks is not None:
        prompt = bind(loaded.prompt, asked.values)
        return fork(order.resumes, prompt, at=order.forks, model=model, limits=limits, **options)
    again: Any = {"fresh_limits": order.fresh_limits, "accept_changes": order.accept_changes}
    if asked.items is None:
        bound = bind(loaded.prompt, asked.values)
        if order.resumes is not None:
            return resume(order.resumes, bound, model=model, limits=limits, **again, **options)
        return run(bound, model=model, limits=limits, **options)
    prompt, items, left_out = bound_items(loaded.prompt, asked.items, asked.values, skip=order.skip_bad)
    for line in left_out:
        say(console, (f"left out: {line}", "yellow"))
    labels = {id(item): label for label, item in items}
    many = cast("ManyOptions", {**options})
    many["label"] = lambda item: labels[id(item)]
    if order.concurrency is not None:
        many["concurrency"] = order.concurrency
    values = [item for _, item in items]
    if order.resumes is not None:
        again["only"] = order.only
        return resume_many(order.resumes, prompt, values, model=model, limits=limits, **again, **many)
    return run_many(prompt, values, model=model, limits=limits, **many)


def replay_and_report(order: Order) -> int:
    """Replay a run with the agent of today, print where it differs, and return 1 if it does.

    Raises:
        ConfigurationError: If it cannot be replayed.
        StoreError: If it cannot be read.
    """
    asked = checked(order)
    out = cast("TextIO | None", sys.stdout)
    with redirect_stdout(sys.stderr) if order.as_json else nullcontext():
        loaded = load(order.target)
        options: ReplayOptions = {"store": order.given["store"] or "default", "fallback": order.fallback}
        options["shield"] = loaded.options.get("shield")
        if "on_context_full" in asked.options:
            options["on_context_full"] = asked.options["on_context_full"]
        model = choose_model(text_from(asked.settings, "model"), loaded)
        found = replay(order.resumes or "", bind(loaded.prompt, asked.values), model=model, **options)
    failed = DONE if found.ok else STOPPED
    if order.as_json:
        data = {**to_builtins(found), "ok": found.ok}
        return print_json(out, HELD.redacted_data(data), compact=False) or failed
    console = make_console(out)
    for difference in found.differences:
        put(console, (f"event {difference.seq}", "yellow"), f": {one_line(difference.said, LONGEST)}")
    put(console, (found.sentence(), "green" if found.ok else "yellow"))
    return failed


def limits_on_record(order: Order, store: RunStore, settings: Settings) -> Limits:
    """Return the limits that a run has on record, changed by those that the order names."""
    events = store.events(store.find(order.resumes or "").run_id)
    tags = [tag_of(kind) for kind in (RunStarted, RunOpened, RunResumed)]
    told = (event.load() for event in events if event.tag in tags)
    named = {name: setting for name, setting in settings.items() if order.given.get(name) is not None}
    return limits_from(named, limits_of(told))


def resume_order(run_id: str, given: Mapping[str, str | None], **more: Any) -> Order:
    """Return the order to go on with a run as it was started, and move to the folder in which it was.

    Args:
        run_id: Id of the run, or the beginning of it.
        given: Settings that are named now; they win over those of the run.
        **more: Other fields of the order.

    Raises:
        ConfigurationError: If it was not started from the command line, is below another run, or its folder is gone.
        StoreError: If it is not in the store.
    """
    path = store_path(text_from(settings_here({"store": given.get("store")}), "store") or "default")
    if path is None:
        raise ConfigurationError("there is no store, so there is no run to go on with; name one with --store")
    with RunStore(path, read_only=True) as store:
        run = store.find(run_id)
        refuse_part(store, run)
        opened = next((event for event in store.events(run.run_id) if event.tag == tag_of(RunOpened)), None)
    found: object = None
    try:
        found = untyped(opened.body)["origin"] if opened is not None else None
        origin = msgspec.convert(found, Origin) if found else None
    except UNREADABLE as error:
        raise StoreError(f"how the run {run.run_id} was started cannot be read: {error}") from error
    if origin is None:
        raise ConfigurationError(
            f"the run {run.run_id} was not started by 'watchkeeper run'; in Python use agent.resume(...) or replay"
        )
    folder, path = Path.cwd(), path.absolute()
    try:
        os.chdir(origin.folder)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the folder in which the run was started cannot be entered: {error}") from error
    if more.get("only") is not None and not origin.each:
        raise ConfigurationError(f"--only is for a run over many items, and {run.run_id} is not one")
    named = {name: value for name, value in given.items() if value is not None}
    refuse_hidden_address(origin, named)
    limits = (*FIELDS, *ACCOUNT)  # not as they were given, but as they are on record: see limits_on_record
    kept = {name: value for name, value in origin.given.items() if name not in limits}
    return Order(
        target=origin.target,
        given={**kept, **named, "store": str(path)},
        params=origin.params,
        fallback=origin.fallback,
        each=origin.each,
        first=origin.first,
        concurrency=origin.concurrency,
        skip_bad=origin.skip_bad,
        files=None if origin.files is None else Path(origin.files),
        after=origin.after,
        resumes=run.run_id,
        folder=folder,
        **more,
    )


def refuse_hidden_address(origin: Origin, named: Mapping[str, str]) -> None:
    """Refuse to go on with a run about which an address was told that is not on record, unless one is named now.

    Raises:
        ConfigurationError: If none is named.
    """
    if REDACTED in (origin.given.get("notify") or "") and "notify" not in named:
        raise ConfigurationError(
            "the address that was told about the run is not on record, because it may hold a key; "
            "name it again with 'watchkeeper resume RUN --notify ADDRESS', or nobody with --notify none"
        )


def bound_items(
    prompt: Prompt[Any], items: Sequence[Given | Bad], values: Mapping[str, str], *, skip: bool
) -> tuple[Prompt[Any], list[tuple[str, Any]], list[str]]:
    """Return the prompt with the values bound, label and value of each item, and a line for each that is left out.

    Raises:
        ConfigurationError: If an item does not fit and is not to be left out, or none fits.
    """
    good = [item for item in items if isinstance(item, Given)]
    columns = {name for item in good if not isinstance(item.value, str) for name in item.value}
    prompt, make = item_maker(prompt, values, columns, texts=any(isinstance(item.value, str) for item in good))
    made: list[tuple[str, Any]] = []
    bad: list[Bad] = []
    for item in items:
        if isinstance(item, Bad):
            bad.append(item)
            continue
        try:
            made.append((item.label, make(item.value)))
        except ConfigurationError as error:
            bad.append(Bad(item.where, str(error)))
    return prompt, made, refuse(bad, len(made), skip=skip)


def choose_model(named: str | None, loaded: Loaded) -> Model | str:
    """Return the model: the one that is named, the agent's own, or the script of the agent's file.

    Raises:
        ConfigurationError: If none is named anywhere.
    """
    if named == SCRIPTED:
        script = getattr(loaded.module, "SCRIPT", None)
        if script is None:
            raise ConfigurationError(
                f"the scripted model needs a SCRIPT in {loaded.module.__file__}; name a real model instead"
            )
        return ScriptedModel(script)
    if named is not None:
        return named
    if isinstance(loaded.target, Agent):
        return loaded.target.model
    raise ConfigurationError(
        "no model is named; give --model, WATCHKEEPER_MODEL, or model in [tool.watchkeeper] of pyproject.toml"
    )


def print_json(out: TextIO | None, data: dict[str, Any], *, compact: bool = False) -> int:
    """Print the result as JSON, in ASCII, which every stream can write; return the exit code of that."""
    if out is None:
        complain(error_console(), "the result cannot be printed: standard output is closed")
        return STOPPED
    try:
        out.write(json.dumps(data, indent=None if compact else 2) + "\n")
        out.flush()
    except UNPRINTABLE as error:
        return _cannot_print(out, error)
    return DONE


def print_end(console: Console, result: AnyResult | StoredRun, where: Sequence[str]) -> int:
    """Print the result and where to look further; return the exit code of that."""
    try:
        if isinstance(result, StoredRun):
            put(console)
            put(console, (one_line(result.sentence()), "yellow"))
        elif isinstance(result, ManyResult):
            print_many(console, result)
        else:
            print_result(console, result)
        for line in where:
            put(console, (line, "dim"))
    except UNPRINTABLE as error:
        return _cannot_print(console.file, error)
    return DONE


def _cannot_print(stream: IO[str], error: OSError | ValueError) -> int:
    """Report that the result cannot be printed, and go on."""
    silence(stream)
    complain(error_console(), f"the result cannot be printed: {error}")
    return STOPPED


def where_to_look(result: AnyResult | StoredRun, store: RunStore | None, folder: Path) -> list[str]:
    """Return how to see what happened, and of a parked run what waits, in commands that are typed in a folder."""
    if store is None or not store.path.exists():
        return ["not stored"]
    run_id = str(result.run_id)[:SHORT_ID]
    looks = [f"look further: {to_type(f'show {run_id}', store.path, folder)}"]
    if isinstance(result, ManyResult) and any(each.stop and each.stop.reason != "parked" for each in result.not_done):
        looks.append(f"what failed: {to_type(f'runs --failed --parent {run_id}', store.path, folder)}")
    if isinstance(result, StoredRun) or result.stop is None or result.stop.reason != "parked":
        return looks
    return [f"approve or deny what waits: {to_type('pending', store.path, folder)}", *looks]


def report_with(after: Callable[[], Any], console: Console) -> int:
    """Let the agent's own function report on the result; return the exit code that follows from its outcome."""
    try:
        said = after()
    except KeyboardInterrupt:
        say(console, (f"--after: {BROKEN_OFF}", "yellow"))
        return STOPPED
    except Exception as error:
        say_fenced(console, "".join(traceback.format_exception(error)).rstrip())
        say(console, (f"--after failed: {type(error).__name__}: {error}", "red"))
        return STOPPED
    if said is not None:
        say_fenced(console, str(said))
    return DONE


def exit_code(result: AnyResult | StoredRun, requests: EndRequests) -> int:
    """Return 0 for work that was done, 3 if some items are and some are not, 4 if it is parked, 1 for every other end.

    A run that a signal ended has 128 and the signal's number.
    """
    if isinstance(result, StoredRun):
        return signalled(requests)
    if result.stop is not None and result.stop.reason in ("interrupted", "aborted"):
        return signalled(requests)
    if result.stop is not None and result.stop.reason == "parked":
        return PARKED
    if isinstance(result, ManyResult) and result.done and result.not_done:
        return SOME_DONE
    return DONE if result.ok else STOPPED


def signalled(requests: EndRequests) -> int:
    """Return the exit code of what the first signal ended."""
    return SIGNALLED + (requests.signals[0] if requests.signals else signal.SIGINT)
