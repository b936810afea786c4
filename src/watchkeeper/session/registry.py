"""Event types and their tags.

An event is any value whose type has a typed JSON form, usually a frozen dataclass that stands beside its noun; this
layer knows no concrete event but its own. A tag given with `event` is what a stored log holds, so the class may be
renamed and moved; one tag means one type. Types without a tag get ``module:Qualname`` at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from watchkeeper.core import type_tags
from watchkeeper.core.codec import is_pydantic
from watchkeeper.core.errors import ConfigurationError

T = TypeVar("T")


def event(tag: str) -> Callable[[type[T]], type[T]]:
    """Register a class as an event type under a stable tag; write it above ``@dataclass``.

    Args:
        tag: A plain name in snake case, such as ``ticket_filed``.

    Raises:
        ConfigurationError: If the tag belongs to another type, or the class has no fields to record.
    """

    def register(type_: type[T]) -> type[T]:
        if not (_has_fields(type_) or is_pydantic(type_)):
            raise ConfigurationError(
                f"{type_.__name__} has no fields to record: write @event({tag!r}) above @dataclass(frozen=True),"
                " or above a pydantic model or msgspec struct"
            )
        type_tags.register(type_, tag)
        return type_

    return register


def _has_fields(type_: type[Any]) -> bool:
    return "__dataclass_fields__" in type_.__dict__ or hasattr(type_, "__struct_fields__")


def event_tag(type_: type) -> str:
    """Return the tag under which events of a type are stored."""
    return type_tags.tag_of(type_)


def event_type(tag: str) -> type:
    """Return the type that a tag means.

    Raises:
        CodecError: If nobody registered the tag and no imported module has such a class.
    """
    return type_tags.type_of(tag)
