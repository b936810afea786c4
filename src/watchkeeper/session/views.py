"""Sequences that can only be read: one way to index, slice, compare and show them.

A view says how many items it has and how one of them is found; everything else is here once. Slicing gives a tuple. A
view is equal to another view, a tuple or a list with equal items, and has no hash, because items need not have one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast, overload

T_co = TypeVar("T_co", covariant=True)


class SequenceView(Sequence[T_co]):
    """A sequence to be read; a subclass has ``__len__`` and `_item`."""

    __slots__ = ()

    @abstractmethod
    def _item(self, place: int) -> T_co:
        """Return the item at a place, from 0 to the length less 1."""

    def _items(self, places: range) -> Iterable[T_co]:
        """Return the items at some places, all of which exist."""
        return map(self._item, places)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        """Return one item, or a tuple of several."""
        length = len(self)
        if isinstance(index, slice):
            return tuple(self._items(range(*index.indices(length))))
        place = index + length if index < 0 else index
        if not 0 <= place < length:
            raise IndexError(f"index {index} of {length} items")
        return self._item(place)

    def __eq__(self, other: object) -> bool:
        """Return whether another view, a tuple or a list has equal items in the same order."""
        if not isinstance(other, SequenceView | tuple | list):
            return NotImplemented
        items = cast("Sequence[Any]", other)
        return self is items or (len(self) == len(items) and all(map(_is_same, self, items)))

    __hash__ = None  # type: ignore[assignment]  # items need not be hashable

    def __repr__(self) -> str:
        """Show the items."""
        return f"{type(self).__name__}({list(self)!r})"


def _is_same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)
