"""Names of types in stored data: one tag, one type.

A tag is either registered (stable: the class may be renamed and moved) or made from module and qualified name at first
use. A registered tag that is already taken is an error; the same definition run again (a reloaded module, a notebook
cell) replaces the older class. Looking up a tag never imports anything: it finds registered types, and classes of
modules that are already imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from watchkeeper.core.codec import CodecError
from watchkeeper.core.errors import ConfigurationError, Stop
from watchkeeper.core.forks import ModuleLock

T = TypeVar("T")

_lock: Final = ModuleLock()
_tags: dict[type, str] = {}
_types: dict[str, type] = {}

OURS: Final = "watchkeeper"
_FORMER: Final = re.compile(rf"{OURS}\.[a-z_.]+:([A-Za-z]+)")
"""Tags of our types in earlier versions (module and class); still read, even if the class has moved since."""


def register(type_: type[T], tag: str) -> type[T]:
    """Give a type a stable tag, and return it; a second call changes nothing.

    Raises:
        ConfigurationError: If the tag is empty, has a colon, or belongs to another type, or the type has another tag.
    """
    if not tag or ":" in tag or tag.startswith("$"):
        raise ConfigurationError(f"{tag!r} cannot be a tag: write a plain name such as 'ticket_filed', without a colon")
    return _register(type_, tag)


def _register(type_: type[T], tag: str) -> type[T]:
    with _lock:
        taken = _types.get(tag)
        if taken is not None and taken is not type_ and _definition(taken) != _definition(type_):
            raise ConfigurationError(
                f"the tag {tag!r} of {_definition(type_)} belongs to {_definition(taken)}; choose another tag"
            )
        known = _tags.get(type_)
        if known not in (None, tag, _definition(type_)):
            raise ConfigurationError(f"{_definition(type_)} already has the tag {known!r}; it cannot have {tag!r} too")
        _tags[type_] = tag
        _types[tag] = type_
    return type_


def stored_as(tag: str) -> Callable[[type[T]], type[T]]:
    """Register the class below under a stable tag, as `register` does; write it above ``@dataclass``."""
    return lambda type_: register(type_, tag)


def own_value(name: str) -> Callable[[type[T]], type[T]]:
    """Register one of our classes, whose values may be in stored events, as ``watchkeeper:name``.

    Users' event tags may not have a colon, so these tags cannot clash with them.
    """
    return lambda type_: _register(type_, f"{OURS}:{name}")


def tag_of(type_: type) -> str:
    """Return the tag of a type: the registered one, or ``module:Qualname``, remembered from now on."""
    tag = _tags.get(type_)
    if tag is None:
        with _lock:
            tag = _tags.setdefault(type_, _definition(type_))
            _types[tag] = type_
    return tag


def type_of(tag: str) -> type:
    """Return the type of a tag.

    Raises:
        CodecError: If the tag is not registered and no imported module has such a class.
    """
    known = _types.get(tag) or _types.get(_today(tag))
    if known is not None:
        return known
    module_name, colon, qualname = tag.partition(":")
    found: Any = sys.modules.get(module_name) if colon else None
    if colon and found is None and not _FORMER.fullmatch(tag):
        raise CodecError(f"unknown type tag {tag!r}: import {module_name!r} before reading this")
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    if not isinstance(found, type):
        found = _moved(tag)
    if not isinstance(found, type):
        what = f"{module_name!r} has no such class" if colon else "no type is registered under it"
        raise CodecError(f"unknown type tag {tag!r}: {what}; import the module that defines it before reading this")
    return found


def _today(tag: str) -> str:
    former = _FORMER.fullmatch(tag)
    return tag if former is None else f"{OURS}:{re.sub('(?<=[a-z])(?=[A-Z])', '_', former[1]).lower()}"


def _moved(tag: str) -> type | None:
    """Return the one imported class of Watchkeeper with that name, for a tag that names the class's former module."""
    former = _FORMER.fullmatch(tag)
    if former is None:
        return None
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(f"{OURS}.")]
    found = {vars(module).get(former[1]) for module in ours}
    types = [value for value in found if isinstance(value, type) and value.__module__.startswith(f"{OURS}.")]
    return types[0] if len(types) == 1 else None


def _definition(type_: type) -> str:
    return f"{type_.__module__}:{type_.__qualname__}"


own_value("stop")(Stop)
