"""What can be said about a run beside prompt, model and limits.

`RunKeywords` are the keyword arguments of `run` and its kin; `RunOptions` is the same as a frozen value, with the
defaults. Both name the same fields, and a test holds them to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict
from uuid import UUID

import msgspec

from watchkeeper.app.checks import check_arguments, check_keywords
from watchkeeper.core.clock import SYSTEM_CLOCK, Clock
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.ids import SYSTEM_IDS, IdSource
from watchkeeper.core.model import ModelSettings
from watchkeeper.core.price import ModelPrice
from watchkeeper.runtime.plan import CONTEXT_CHOICES, OnContextFull
from watchkeeper.session.log import Envelope
from watchkeeper.tools.filesystem import Filesystem
from watchkeeper.tools.resources import Resources

if TYPE_CHECKING:
    from watchkeeper.containment.circuit_breaker import CircuitBreakers
    from watchkeeper.containment.ledger import Ledger
    from watchkeeper.containment.pipeline import ShieldPipeline
    from watchkeeper.core.model import Model
    from watchkeeper.store.run_store import RunStore

NAMED: Final = ("model", "limits", "session", "each", "concurrency", "label")
"""What `run` or `run_many` take by name beside the options."""

StoreLike = Path | str | Literal["default"] | None
LedgerLike = Path | str | Literal["default"]


class RunKeywords(TypedDict, total=False):
    """Keyword arguments of `run`, `arun`, `run_many` and `arun_many`; `RunOptions` says what they mean."""

    settings: ModelSettings
    prices: Mapping[str, ModelPrice]
    fallback: Sequence[Model | str]
    shield: ShieldPipeline | None
    breakers: CircuitBreakers | None
    resources: Resources
    filesystem: Filesystem
    on_event: Callable[[Any], Any]
    on_record: Callable[[UUID, Envelope], Any]
    on_context_full: OnContextFull
    store: RunStore | StoreLike
    ledger: Ledger | LedgerLike
    raise_on_stop: bool
    clock: Clock
    ids: IdSource
    rng: random.Random


class RunOptions(msgspec.Struct, frozen=True):
    """What can be said about a run beside prompt, model and limits.

    Attributes:
        settings: How the model is asked: temperature, effort, output cap ...
        prices: The caller's own prices, by ``provider:model`` or model name; they win over the list.
        fallback: Who takes over, in this order, when the model in use does not answer: models, or their strings. Every
            attempt stands under the same limits.
        shield: Hooks that are asked before every model call and tool call.
        breakers: Circuit breakers, one for each provider, to share between runs; with ``fallback`` the run has some of
            its own by default.
        resources: What tools may ask their context for.
        filesystem: What tools may read and write.
        on_event: Gets every event of the log as it happens, and `TextDelta` where the provider streams; sync
            callables run on a worker thread.
        on_record: The same with more: gets the id of the run and the envelope of every event, so that the runs of
            `run_many` can be told apart; no text deltas.
        on_context_full: When the model's context is full, ``compact`` summarises the conversation and goes on, ``land``
            takes a last turn, ``stop`` ends at once.
        store: Where the run is written while it goes on: the user's data folder by default, a path, or None.
        ledger: Where what is spent is kept, so that other processes and later runs count it: a ledger, or a file. By
            default a file in the user's data folder if the limits name an account, else this process's memory.
        raise_on_stop: Raise RunStoppedError instead of returning a stopped result.
        clock: Time.
        ids: Identifiers.
        rng: Randomness, for backoff.
    """

    settings: ModelSettings = ModelSettings()
    prices: Mapping[str, ModelPrice] = msgspec.field(default_factory=dict[str, ModelPrice])
    fallback: Sequence[Model | str] = ()
    shield: ShieldPipeline | None = None
    breakers: CircuitBreakers | None = None
    resources: Resources | None = None
    filesystem: Filesystem | None = None
    on_event: Callable[[Any], Any] | None = None
    on_record: Callable[[UUID, Envelope], Any] | None = None
    on_context_full: OnContextFull = "land"
    store: RunStore | StoreLike = "default"
    ledger: Ledger | LedgerLike = "default"
    raise_on_stop: bool = False
    clock: Clock = SYSTEM_CLOCK
    ids: IdSource = SYSTEM_IDS
    rng: random.Random = SYSTEM_IDS.random

    def __post_init__(self) -> None:
        """Refuse what no run can do.

        Raises:
            ConfigurationError: Naming the value and the choices.
        """
        if self.on_context_full not in CONTEXT_CHOICES:
            raise ConfigurationError(
                f"on_context_full={self.on_context_full!r} must be {' or '.join(map(repr, CONTEXT_CHOICES))}"
            )


def options_for_run(given: RunKeywords) -> RunOptions:
    """Return the options with resources of the run's own, so that what one run makes and closes is no other's.

    Raises:
        ConfigurationError: If a value is not what its name asks for.
        TypeError: For an option that does not exist.
    """
    check_keywords(given, RunKeywords.__annotations__, NAMED)
    check_arguments(given)
    resources = given.get("resources")
    own: RunKeywords = {**given, "resources": Resources() if resources is None else resources.for_run()}
    return RunOptions(**own)
