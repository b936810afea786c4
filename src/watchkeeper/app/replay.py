"""`replay`: runs the code of today against what is on record of a run, and says where it differs (`loop/replay`).

It needs no network, no key and no tools: a model that is named by a string is represented by its name. The store is
opened for reading only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from watchkeeper.accounting.limits import UNLIMITED
from watchkeeper.app.models import SERVER_PROVIDER, SERVERS, check_model_text, models_of_run
from watchkeeper.app.options import RunOptions, StoreLike, check_arguments, check_keywords
from watchkeeper.app.resume import as_bound
from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import Model, ModelReply, ModelRequest
from watchkeeper.core.workers import run_in_worker
from watchkeeper.local.files import BUNDLED_MODEL
from watchkeeper.loop.replay import Difference, Replay, Replayed, replayed
from watchkeeper.prompt.template import AnyPrompt
from watchkeeper.runtime.events import RunOpened
from watchkeeper.runtime.plan import OnContextFull, RunPlan, plan_for
from watchkeeper.runtime.portal import PORTAL
from watchkeeper.session.log import Envelope
from watchkeeper.session.session import Session
from watchkeeper.shield.pipeline import ShieldPipeline
from watchkeeper.store.run_store import RunStore, store_path
from watchkeeper.disk.sqlite import DEFAULT


class ReplayOptions(TypedDict, total=False):
    """The options of `replay`.

    Attributes:
        store: The store of the run: the user's own by default, or a path.
        fallback: The models that the run had beside the first.
        shield: The hooks that the run had; only the model that they may fall back to is looked at.
        on_context_full: What the run did when the model's context was full.
        prepare: Registers the reducers that the session of the run had.
    """

    store: RunStore | StoreLike
    fallback: Sequence[Model | str]
    shield: ShieldPipeline | None
    on_context_full: OnContextFull
    prepare: Callable[[Session], object]


def replay(run_id: str, prompt: AnyPrompt[Any], *, model: Model | str, **options: Unpack[ReplayOptions]) -> Replayed:
    """Run the code of today against the record of a run, and return where it differs; see `areplay`."""
    return PORTAL.call(areplay(run_id, prompt, model=model, **options), "areplay")


async def areplay(
    run_id: str, prompt: AnyPrompt[Any], *, model: Model | str, **options: Unpack[ReplayOptions]
) -> Replayed:
    """Run the code of today against the record of a run, and return where it differs.

    No model is asked, no tool is called, and nothing is written.

    Args:
        run_id: Id of the run, or the beginning of it.
        prompt: The prompt of the run as it is today; values that it lacks are those on record.
        model: The model of the run as it is today; a string needs no key here.
        options: See `ReplayOptions`.

    Raises:
        ConfigurationError: If the run is no run of one agent, or has nothing on record to compare with.
        StoreError: If the run is not in the store, or cannot be read.
    """
    check_keywords(options, ReplayOptions.__annotations__, ("model",))
    check_arguments({"prompt": prompt, "model": model})
    check_arguments({name: value for name, value in options.items() if name != "prepare"})
    log, unreadable = await run_in_worker(on_record, options.get("store", DEFAULT), run_id)
    record = Replay(log, options.get("prepare"))
    record.differences += unreadable
    async with AsyncExitStack() as stack:
        return await replayed(plan_of(stack, prompt, model, options, record), record)


def on_record(where: RunStore | StoreLike, run_id: str) -> tuple[list[Envelope], list[Difference]]:
    """Return the log of a run up to the first event that cannot be read here, and what is wrong with that one.

    Raises:
        ConfigurationError: If it is no run of one agent, or has nothing on record to compare with.
        StoreError: If the run is not in the store, or cannot be read.
    """
    path = where if isinstance(where, RunStore) else store_path(where)
    if path is None:
        raise ConfigurationError("there is no store (store=None), so there is no run to replay")
    with nullcontext(path) if isinstance(path, RunStore) else RunStore(path, read_only=True) as store:
        run = store.find(run_id)
        if run.items is not None or run.is_block:
            only = "is no run of one agent, and only such a run can be replayed"
            raise ConfigurationError(f"the run {run.run_id} {only}")
        log: list[Envelope] = []
        unreadable: list[Difference] = []
        for event in store.events(run.run_id, past=True):
            try:
                log.append(event.envelope())
            except CodecError as error:
                said = f"{event.tag} cannot be read by the code of today: {error}"
                unreadable.append(Difference(event.seq, "record", said))
                break
    if not any(isinstance(each.event, RunOpened) for each in log):
        why = str(unreadable[0]) if unreadable else "nothing is on record to compare with"
        raise ConfigurationError(f"the run {run.run_id} cannot be replayed: {why}")
    return log, unreadable


def plan_of(
    stack: AsyncExitStack, prompt: AnyPrompt[Any], model: Model | str, options: ReplayOptions, record: Replay
) -> RunPlan[Any]:
    """Return the plan of the run with the code of today."""
    bound = as_bound(prompt, record.opened)
    given: RunOptions = {"fallback": options.get("fallback", ()), "shield": options.get("shield")}
    models = models_of_run(stack, model, UNLIMITED, given, bound.template, Named)
    make = partial(
        plan_for,
        bound,
        on_context_full=options.get("on_context_full", "land"),
        model=models.first,
        fallback=models.fallback,
        cheaper=models.cheaper,
        escalations=models.escalations,
        child_models=models.children,
    )
    plans = [make(bound.render(output_in_prompt=described)) for described in forms(models.output_in_prompt, model)]
    return next((plan for plan in plans if record.has_messages(plan.prompt.messages)), plans[0])


def forms(in_prompt: bool, model: Model | str) -> Iterable[bool]:
    """Return whether the prompt may describe the form of the answer: of a model that is only named, nobody knows."""
    return (in_prompt, not in_prompt) if isinstance(model, str) else (in_prompt,)


class Named:
    """A model of which only the name is known; it is never asked."""

    native_output = True
    context_window: int | None = None
    max_output_tokens: int | None = None
    free = True

    def __init__(self, text: str) -> None:
        """Take the names that the model of this string has."""
        check_model_text(text)
        if text.startswith(SERVERS):
            self.provider, self.name = SERVER_PROVIDER, text.partition("#")[2]
            return
        self.provider, _, self.name = text.partition(":")
        if self.provider == "local":
            self.name = Path(self.name).stem if self.name else BUNDLED_MODEL.name

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Refuse: nothing runs live.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("a replay asks no model")

    async def close(self) -> None:
        """Do nothing."""
