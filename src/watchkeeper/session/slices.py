"""Slices: typed sequences that grow at the end or are replaced; the operations of reducers, and snapshots.

A `SliceView` is a value: it never changes, and keeping a thousand of them costs no copies. Appending to the newest view
of an owner is done in place, after the end of every older view; appending to any other view copies at most `WIDTH`
references, for any length. Reducers return the change of a slice as `Append`, `Extend`, `Replace` and
`Clear`; they never change the slice themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import SnapshotError
from watchkeeper.core.secrets import HELD
from watchkeeper.core.text import clipped
from watchkeeper.core.type_tags import own_value, tag_of, type_of
from watchkeeper.session.tagging import MARK, Form, dump, load, register_form, register_sequence

T = TypeVar("T")
S = TypeVar("S")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)


class SequenceView(Sequence[T_co]):
    """A read-only sequence: a subclass implements ``__len__`` and ``_item``; everything else is here.

    Slicing gives a tuple. A view is equal to another view, a tuple or a list with equal items.
    """

    __slots__ = ()

    @abstractmethod
    def _item(self, place: int) -> T_co:
        """Return the item at index ``place``, from 0 to the length minus 1."""

    def _items(self, places: range) -> Iterable[T_co]:
        """Return the items at these indexes; all of them are in range."""
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


WIDTH: Final = 64

_Node = tuple[Any, ...]


class SliceView(SequenceView[T_co]):
    """An immutable sequence that shares its items with older views and with views extended from it.

    It is a tree and a tail. The leaves of the tree are full lists of `WIDTH` items, its inner nodes are tuples. The
    tail is a list that this view reads up to its own end and that only its owner extends.
    """

    __slots__ = ("_height", "_length", "_owner", "_root", "_tail")

    def __init__(self, items: Iterable[T_co] = ()) -> None:
        """Hold the given items."""
        self._root: _Node = ()
        self._height = 1
        self._tail: list[Any] = []
        self._length = 0
        self._owner: object = None
        grown = self.extended(items, self)
        self._root, self._height, self._tail, self._length = grown._root, grown._height, grown._tail, grown._length

    @classmethod
    def _of(cls, root: _Node, height: int, tail: list[Any], length: int, owner: object) -> SliceView[T_co]:
        view: SliceView[T_co] = cls.__new__(cls)
        view._root = root
        view._height = height
        view._tail = tail
        view._length = length
        view._owner = owner
        return view

    def appended(self, item: Any, owner: object) -> SliceView[T_co]:
        """Return a view with one more item; one ``owner`` must not append in two threads at once."""
        length = self._length
        used = length % WIDTH
        tail = self._tail
        if used:
            if self._owner is not owner or len(tail) != used:
                tail = tail[:used]
            tail.append(item)
            return self._of(self._root, self._height, tail, length + 1, owner)
        if length == 0:
            return self._of((), 1, [item], 1, owner)
        root, height = _with_leaf(self._root, self._height, length // WIDTH - 1, tail)
        return self._of(root, height, [item], length + 1, owner)

    def extended(self, items: Iterable[Any], owner: object) -> SliceView[T_co]:
        """Return a view with the items at its end."""
        view: SliceView[T_co] = self
        for item in items:
            view = view.appended(item, owner)
        return view

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def _items(self, places: range) -> Iterable[T_co]:
        if places.step == 1:
            return islice(self._from(places.start), len(places))
        return super()._items(places)

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over the items, oldest first."""
        return self._from(0)

    def latest(self) -> T_co | None:
        """Return the newest item, or None."""
        return self._tail[(self._length - 1) % WIDTH] if self._length else None

    def _item(self, place: int) -> T_co:
        return cast("T_co", self._leaf(place // WIDTH)[place % WIDTH])

    def _leaf(self, number: int) -> list[Any]:
        if number == (self._length - 1) // WIDTH:
            return self._tail
        node: Any = self._root
        for level in range(self._height - 1, -1, -1):
            node = node[number // WIDTH**level % WIDTH]
        return cast("list[Any]", node)

    def _from(self, start: int) -> Iterator[T_co]:
        for number in range(start // WIDTH, (self._length + WIDTH - 1) // WIDTH):
            first = number * WIDTH
            yield from islice(self._leaf(number), max(start - first, 0), min(self._length - first, WIDTH))


def _with_leaf(root: _Node, height: int, number: int, leaf: list[Any]) -> tuple[_Node, int]:
    """Return the root of a tree with one more leaf, the ``number``-th, and its height."""
    if number == WIDTH**height:
        root, height = (root,), height + 1
    return _grown(root, height, number, leaf), height


def _grown(node: _Node, height: int, number: int, leaf: list[Any]) -> _Node:
    if height == 1:
        return (*node, leaf)
    child, rest = divmod(number, WIDTH ** (height - 1))
    if child == len(node):
        return (*node, _grown((), height - 1, rest, leaf))
    return (*node[:-1], _grown(node[-1], height - 1, rest, leaf))


register_sequence(SliceView, "slice_view")


@dataclass(frozen=True, slots=True)
class Append(Generic[T]):
    """Add one item at the tail."""

    item: T


@dataclass(frozen=True, slots=True)
class Extend(Generic[T]):
    """Add items at the tail; without items the slice does not change."""

    items: Iterable[T]


@dataclass(frozen=True, slots=True)
class Replace(Generic[T]):
    """Replace all items with these."""

    items: Iterable[T]


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove every item."""


Op = Append[T] | Extend[T] | Replace[T] | Clear


@own_value("slice_change")
class SliceChange(msgspec.Struct, frozen=True):
    """What an event did to one slice; with it, a slice is rebuilt without the reducer that decided so.

    Attributes:
        slice_type: The type of the slice's items.
        op: ``extend`` adds the items at the tail, ``replace`` puts them in the place of all others; ``splice``: see
            `SliceSplice`.
        items: The items.
    """

    slice_type: type
    op: Literal["extend", "replace", "splice"]
    items: Sequence[Any] = ()


@own_value("slice_splice")
class SliceSplice(SliceChange, frozen=True):
    """The change of a slice that keeps most of its items, so that not all of them are put on record again.

    Attributes:
        kept: Numbers, three for each part that is kept: how many of the new items come before it, the place of its
            first item in the slice as it was, and the place behind its last one. The other new items come at the end.
    """

    kept: Sequence[int] = ()

    def result(self, before: Sequence[Any]) -> list[Any]:
        """Return the items of the slice after the change."""
        items, place = list[Any](), 0
        for number in range(0, len(self.kept), 3):
            new, start, stop = self.kept[number : number + 3]
            items += self.items[place : place + new]
            items += before[start:stop]
            place += new
        return [*items, *self.items[place:]]


def change_between(slice_type: type, before: Sequence[Any], after: Sequence[Any]) -> SliceChange:
    """Return the change from one content of a slice to another; what is kept is told by the identity of the items."""
    places = {id(before[place]): place for place in range(len(before) - 1, -1, -1)}
    kept, new, told = list[int](), list[Any](), 0
    for item in after:
        goes_on = kept and told == len(new) and kept[-1] < len(before) and before[kept[-1]] is item
        place = places.get(id(item)) if not goes_on else kept[-1]
        if place is None:
            new.append(item)
        elif goes_on:
            kept[-1] += 1
        else:
            kept += (len(new) - told, place, place + 1)
            told = len(new)
    if kept == [0, 0, len(before)]:
        return SliceChange(slice_type, "extend", new)
    if len(kept) > len(after) - len(new) or not kept:  # in many small parts: that is no shorter
        return SliceChange(slice_type, "replace", after)
    return SliceSplice(slice_type, "splice", new, kept)


Reducer = Callable[[SliceView[S], E], Op[S]]
"""A pure function of a slice and an event; it may neither dispatch nor read the session."""


def append_event(view: SliceView[E], event: E) -> Op[E]:
    """Keep every event: the reducer that an event type without reducers has by default."""
    return Append(event)


SNAPSHOT_VERSION: Final = 1
TAG: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class Origin:
    """The session or branch that a snapshot was taken of, and the branch's writes up to then."""

    owner: object
    writes: SliceView[Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The slices of a session at one position of its log.

    Taking a snapshot copies nothing: it shares the slices, which never change. Written as JSON and read back, it is
    equal and its values have the same types, if the process knows these types. The log itself is not part of it. It may
    hold snapshots of the session's children, each consistent by itself.

    Attributes:
        version: Version of the JSON form.
        session_id: The session that it is the state of.
        seq: The last event it reflects; 0 before the first.
        created_at: When it was taken, in UTC.
        slices: The slices that are not empty, by their type.
        origin: The session or branch it was taken of; not kept in JSON.
        children: Snapshots of the sessions below it that were open at that time, if ``cascade`` was set.
    """

    session_id: UUID
    seq: int
    created_at: datetime
    slices: Mapping[type, SliceView[Any]] = field(hash=False)
    version: int = SNAPSHOT_VERSION
    origin: Origin | None = field(default=None, repr=False, compare=False)
    children: tuple[Snapshot, ...] = ()

    def __getitem__(self, slice_type: type[T]) -> SliceView[T]:
        """Return the slice of a type in this snapshot."""
        return self.slices.get(slice_type, SliceView())

    def to_json(self) -> str:
        """Write it as JSON text; credentials that this process holds are replaced by ``[redacted]``.

        Raises:
            SnapshotError: If a value cannot be written; the message names the place and the type.
        """
        try:
            return HELD.redacted_json(encode(_write(self)).decode())
        except CodecError as error:
            raise SnapshotError(f"the snapshot of session {self.session_id} cannot be written: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Read what `to_json` wrote.

        Raises:
            SnapshotError: If the text is no snapshot, has another version, or names types that are not known here.
        """
        try:
            data: Any = msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(f"this is no snapshot: {error}") from error
        if not isinstance(data, dict) or cast("dict[str, Any]", data).get(MARK) != TAG:
            raise SnapshotError("this is no snapshot: expected an object written by Snapshot.to_json()")
        try:
            return cast("Snapshot", load(data))
        except CodecError as error:
            raise SnapshotError(f"the snapshot cannot be read: {error}") from error


def _write(snapshot: Snapshot) -> dict[str, Any]:
    data = {
        MARK: TAG,
        "version": snapshot.version,
        "session_id": str(snapshot.session_id),
        "seq": snapshot.seq,
        "created_at": dump(snapshot.created_at),
        "slices": [[tag_of(slice_type), [dump(item) for item in view]] for slice_type, view in snapshot.slices.items()],
    }
    if snapshot.children:
        data["children"] = [dump(child) for child in snapshot.children]
    return data


def _shown(value: object) -> str:
    return f"a {type(value).__name__}: {clipped(repr(value), 200)}"


def _read(data: dict[str, Any]) -> Snapshot:
    version = data["version"]
    if version != SNAPSHOT_VERSION:
        raise SnapshotError(
            f"the snapshot has version {version!r}, this Watchkeeper reads version {SNAPSHOT_VERSION};"
            " read it with the version that wrote it"
        )
    slices: dict[type, SliceView[Any]] = {}
    for tag, items in data["slices"]:
        slice_type = type_of(tag)
        slices[slice_type] = SliceView(map(load, items))
        strange = next((item for item in slices[slice_type] if not isinstance(item, slice_type)), None)
        if strange is not None:
            raise SnapshotError(
                f"the snapshot's slice {tag!r} holds a {type(strange).__name__}: {clipped(repr(strange), 200)}"
            )
    children = tuple(map(load, data.get("children", ())))
    stranger = next((child for child in children if not isinstance(child, Snapshot)), None)
    if stranger is not None:
        raise SnapshotError(f"the snapshot's children hold {_shown(stranger)}")
    return Snapshot(
        session_id=UUID(data["session_id"]),
        seq=int(data["seq"]),
        created_at=load(data["created_at"]),
        slices=MappingProxyType(slices),
        children=children,
    )


register_form(Snapshot, TAG, Form(_write, _read))
