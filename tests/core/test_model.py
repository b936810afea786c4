"""How a model is asked: what no provider takes is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.model import ModelSettings


@pytest.mark.spec("FR-144")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": 9}, "temperature=9 must be a number from 0 to 2"),
        ({"temperature": -0.1}, "temperature=-0.1 must be a number from 0 to 2"),
        ({"temperature": float("nan")}, "temperature=nan must be a number from 0 to 2"),
        ({"temperature": "warm"}, "temperature='warm' must be a number"),
        ({"temperature": True}, "temperature=True must be a number"),
        ({"top_p": 1.5}, "top_p=1.5 must be a number from 0 to 1"),
        ({"max_output_tokens": 0}, "max_output_tokens=0 must be a whole number of at least 1"),
        ({"max_output_tokens": "1k"}, "max_output_tokens='1k' must be a whole number"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number, or None"),
        ({"seed": True}, "seed=True must be a whole number"),
        ({"effort": "hard"}, "effort='hard' must be 'minimal' or 'low' or 'medium' or 'high'"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls='no' must be True or False"),
        ({"extra": None}, "extra=None must be a dict"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ModelSettings(**wrong)


def test_the_ends_of_the_ranges_are_taken() -> None:
    assert ModelSettings(temperature=0, top_p=0.0, seed=-1, max_output_tokens=1).seed == -1
    assert ModelSettings(temperature=2, top_p=1, effort="high", parallel_tool_calls=False).temperature == 2
