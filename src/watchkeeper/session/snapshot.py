"""A snapshot: what a session knew at one position of its log.

Taking one copies nothing: it shares the slices, which never change. It can be written as JSON and comes back equal,
values typed as they were, in a process that knows their types. The log itself is not part of it. A snapshot may hold
those of the session's children, each consistent by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from watchkeeper.core.codec import CodecError, encode
from watchkeeper.core.errors import SnapshotError
from watchkeeper.core.tagged_values import MARK, Form
from watchkeeper.core.tagging import dump, load, register_form
from watchkeeper.core.type_tags import tag_of, type_of
from watchkeeper.session.slices import SliceView

T = TypeVar("T")

SNAPSHOT_VERSION: Final = 1
TAG: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which session or branch a snapshot was taken of, and what a branch had written by then."""

    owner: object
    writes: SliceView[Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session's slices at one position of its log.

    Attributes:
        version: Version of the JSON form.
        session_id: Whose state it is.
        seq: The last event it reflects; 0 before the first.
        created_at: When it was taken, in UTC.
        slices: The slices that hold anything, by their type.
        origin: Where it was taken; not kept in JSON.
        children: Those of the sessions below it that were open at that time, if they were asked for.
    """

    session_id: UUID
    seq: int
    created_at: datetime
    slices: Mapping[type, SliceView[Any]] = field(hash=False)
    version: int = SNAPSHOT_VERSION
    origin: Origin | None = field(default=None, repr=False, compare=False)
    children: tuple[Snapshot, ...] = ()

    def __getitem__(self, slice_type: type[T]) -> SliceView[T]:
        """Return the slice of a type as it was."""
        return self.slices.get(slice_type, SliceView())

    def to_json(self) -> str:
        """Write it as JSON text.

        Raises:
            SnapshotError: If a value cannot be written; the message names the place and the type.
        """
        try:
            return encode(_write(self)).decode()
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
        except ValueError as error:
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
            raise SnapshotError(f"the snapshot's slice {tag!r} holds a {type(strange).__name__}: {strange!r}")
    children = tuple(map(load, data.get("children", ())))
    stranger = next((child for child in children if not isinstance(child, Snapshot)), None)
    if stranger is not None:
        raise SnapshotError(f"the snapshot's children hold a {type(stranger).__name__}: {stranger!r}")
    return Snapshot(
        session_id=UUID(data["session_id"]),
        seq=int(data["seq"]),
        created_at=load(data["created_at"]),
        slices=MappingProxyType(slices),
        children=children,
    )


register_form(Snapshot, TAG, Form(_write, _read))
