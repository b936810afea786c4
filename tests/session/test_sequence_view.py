"""Sequences to be read: indexed, sliced, compared and shown in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.session.slices import SequenceView


class Squares(SequenceView[int]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def _item(self, place: int) -> int:
        return place * place


BOUNDS = st.none() | st.integers(-12, 12)


@given(st.integers(0, 9), st.slices(9), st.integers(-12, 12))
def test_it_is_read_like_a_tuple(length: int, part: slice, index: int) -> None:
    view, items = Squares(length), tuple(place * place for place in range(length))
    assert view[part] == items[part]
    assert list(view) == list(items)
    if -length <= index < length:
        assert view[index] == items[index]
    else:
        with pytest.raises(IndexError, match=f"index {index} of {length} items"):
            view[index]


def test_it_equals_what_has_equal_items_in_a_sequence_to_be_read() -> None:
    view = Squares(3)
    assert view == Squares(3) == (0, 1, 4)
    assert view == [0, 1, 4]
    assert view != Squares(2)
    assert view != "014"
    assert view != {0, 1, 4}


def test_it_has_no_hash_and_shows_its_items() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Squares(1))
    assert repr(Squares(3)) == "Squares([0, 1, 4])"
