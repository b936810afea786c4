"""Resources of tools (clients, connections, caches), found by their type, shared or made for each call.

A resource is made by a factory when it is first asked for, once per scope: a RUN resource once per run, a TOOL_CALL
resource once per tool call. Its scope closes it, the last made first, by its ``aclose()`` or else its ``close()``;
a factory written with `contextlib.contextmanager` is entered and left instead. What was handed in as an instance
belongs to the code that made it and is never closed here. `Resources.get` is thread-safe.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar, cast

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.workers import run_in_worker

T = TypeVar("T")


_NOTHING: Final = object()


class Scope(Enum):
    """How long a resource lives."""

    RUN = "run"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class ResourceBinding(Generic[T]):
    """How a resource is made.

    Attributes:
        protocol: The type it is asked for by.
        factory: Makes it; gets the `Resources` it may ask for what it needs itself. It must not be async.
        scope: The lifetime of the resource.
    """

    protocol: Callable[..., T]
    factory: Callable[[Resources], T | AbstractContextManager[T]]
    scope: Scope = Scope.RUN


class Resources:
    """What tools may ask for, by type.

    Args:
        bindings: The bindings that make the resources.
        instances: Resources that exist already, by the type they are asked for by; they are not closed here.
    """

    __slots__ = ("_bindings", "_closed", "_endings", "_instances", "_lock", "_made", "_making", "_parent", "_scope")

    def __init__(
        self, bindings: Iterable[ResourceBinding[Any]] = (), instances: Mapping[Any, Any] | None = None
    ) -> None:
        """Take bindings and instances; nothing is made yet."""
        self._bindings: dict[Any, ResourceBinding[Any]] = {}
        for binding in bindings:
            if binding.protocol in self._bindings:
                raise ConfigurationError(f"two bindings for resource {_name(binding.protocol)}; keep one")
            self._bindings[binding.protocol] = binding
        self._instances: dict[Any, Any] = dict(instances or {})
        self._parent: Resources | None = None
        self._scope = Scope.RUN
        self._making: list[Any] = []
        self._made: set[Any] = set()
        self._endings: list[tuple[Any, Callable[[], Any]]] = []
        self._lock = threading.RLock()
        self._closed = False

    @classmethod
    def of(cls, instances: Mapping[Any, Any]) -> Resources:
        """Return resources that exist already, by the type they are asked for by."""
        return cls(instances=instances)

    def get(self, protocol: type[T] | Callable[..., T]) -> T:
        """Return the resource of a type; it is made if this is the first time.

        Args:
            protocol: A class, abstract ones and protocols included.

        Raises:
            ConfigurationError: If no binding or instance provides it, if it needs itself, or if its scope has ended.
        """
        there = self._instances.get(protocol, _NOTHING)  # without the lock, which a factory may hold for long
        if there is not _NOTHING:
            return cast("T", there)
        with self._lock:
            if protocol in self._instances:
                return cast("T", self._instances[protocol])
            owner: Resources | None = self
            while owner is not None and protocol not in owner._instances and protocol not in owner._bindings:
                owner = owner._parent
            if owner is None:
                known = ", ".join(sorted({_name(item) for item in self._provided()})) or "none"
                raise ConfigurationError(f"no resource {_name(protocol)}; known resources: {known}")
            binding = None if protocol in owner._instances else owner._bindings[protocol]
            if binding is not None and (owner is self or binding.scope is Scope.TOOL_CALL):
                return cast("T", self._make(binding))
            return owner.get(protocol)

    def __contains__(self, protocol: object) -> bool:
        """Return whether a resource of this type is provided; nothing is made."""
        return protocol in self._provided()

    def for_run(self) -> Resources:
        """Return the same bindings and instances for one run, which makes its own and closes them at its end.

        Resources that were already made here are not shared: the run makes its own.
        """
        there = self._instances.copy()  # without the lock, which a factory may hold for long
        given = {protocol: each for protocol, each in there.items() if protocol not in self._made}
        return Resources(self._bindings.values(), given)

    def child(self, overrides: Mapping[Any, Any] | None = None) -> Resources:
        """Return resources that put some instances in the place of these; the rest is shared, made and closed here."""
        child = Resources(instances=overrides)
        child._parent = self
        return child

    def afresh(self, overrides: Mapping[Any, Any] | None = None) -> Resources:
        """Return resources for a run that shares with this one only the bindings for resources of one tool call.

        Args:
            overrides: Further resources of that run, by type: instances, or a `ResourceBinding` that makes one.
        """
        own = dict(overrides or {})
        given: Iterable[Any] = own.values()
        bindings: list[ResourceBinding[Any]] = [each for each in given if isinstance(each, ResourceBinding)]
        owner: Resources | None = self
        known = {*own, *(binding.protocol for binding in bindings)}
        while owner is not None:
            fresh = [
                each for key, each in owner._bindings.items() if each.scope is Scope.TOOL_CALL and key not in known
            ]
            bindings += fresh
            known |= {binding.protocol for binding in fresh} | set(owner._instances)
            owner = owner._parent
        return Resources(bindings, {key: value for key, value in own.items() if not isinstance(value, ResourceBinding)})

    def tool_call(self, overrides: Mapping[Any, Any] | None = None) -> Resources:
        """Return the resources of one tool call; the caller closes them when the call has ended."""
        view = self.child(overrides)
        view._scope = Scope.TOOL_CALL
        return view

    def close(self) -> None:
        """Close the resources that were made here, the last first; a second call does nothing.

        Raises:
            ExceptionGroup: Of what closing raised, after everything was closed.
            ConfigurationError: Among these, for a resource that can only be closed asynchronously: use `aclose`.
        """
        errors: list[Exception] = []
        for protocol, end in self._end():
            try:
                pending = end()
                if inspect.isawaitable(pending):
                    if inspect.iscoroutine(pending):
                        pending.close()
                    raise ConfigurationError(f"resource {_name(protocol)} closes asynchronously: use aclose()")
            except Exception as error:
                errors.append(error)
        _report(errors)

    def end_unused(self) -> bool:
        """End the scope here and now if nothing was made that must be closed; return whether that was so."""
        if not self._lock.acquire(blocking=False):  # a factory is at work
            return False
        try:
            self._closed = self._closed or not self._endings
            return not self._endings
        finally:
            self._lock.release()

    async def aclose(self) -> None:
        """Close what was made here, the last first; what closes synchronously does so on a worker thread.

        Raises:
            ExceptionGroup: Of what closing raised, after everything was closed.
        """
        errors: list[Exception] = []
        # On a worker, because a factory that hangs holds the lock, and must not hold the loop, too.
        for _, end in await run_in_worker(self._end, must_run=True):
            try:
                pending = end() if inspect.iscoroutinefunction(end) else await run_in_worker(end, must_run=True)
                if inspect.isawaitable(pending):
                    await cast("Awaitable[object]", pending)
            except Exception as error:
                errors.append(error)
        _report(errors)

    def _provided(self) -> set[Any]:
        inherited: set[Any] = self._parent._provided() if self._parent is not None else set()
        return {*self._instances, *self._bindings, *inherited}

    def _make(self, binding: ResourceBinding[Any]) -> Any:
        protocol = binding.protocol
        if self._closed:
            raise ConfigurationError(f"resource {_name(protocol)} was asked for after its {self._scope.value} was over")
        if binding.scope is not self._scope:
            raise ConfigurationError(
                f"resource {_name(protocol)} lives for one tool call only; ask the tool's context.resources for it"
            )
        if protocol in self._making:
            circle = " → ".join(_name(item) for item in (*self._making, protocol))
            raise ConfigurationError(f"resources need each other in a circle: {circle}")
        self._making.append(protocol)
        try:
            made = binding.factory(self)
        finally:
            self._making.pop()
        if inspect.iscoroutine(made):
            made.close()
            raise ConfigurationError(f"the factory of resource {_name(protocol)} is async; make it a plain function")
        resource, end = _entered(made)
        self._made.add(protocol)
        self._instances[protocol] = resource
        if end is not None:
            self._endings.append((protocol, end))
        return resource

    def _end(self) -> Iterator[tuple[Any, Callable[[], Any]]]:
        with self._lock:
            self._closed = True
            endings, self._endings = self._endings, []
            for protocol, _ in endings:
                del self._instances[protocol]
        return iter(endings[::-1])


def _entered(made: Any) -> tuple[Any, Callable[[], Any] | None]:
    """Return the resource itself and how it is ended."""
    # Only real context managers: a lock or a file has the two methods too, and means something else by them.
    if AbstractContextManager in type(made).__mro__ and not hasattr(made, "close"):
        manager = cast("AbstractContextManager[Any]", made)
        return manager.__enter__(), lambda: manager.__exit__(None, None, None)
    for name in ("aclose", "close"):
        end = getattr(made, name, None)
        if callable(end):
            return made, end
    return made, None


def _report(errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup("resources could not be closed", errors)


def _name(protocol: Any) -> str:
    return getattr(protocol, "__qualname__", None) or repr(protocol)
