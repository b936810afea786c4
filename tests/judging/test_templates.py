"""The evaluation templates that ship."""

from __future__ import annotations

import pytest

from watchkeeper.judging import templates
from watchkeeper.prompt.template import PromptTemplate


@pytest.mark.spec("NE-038")
@pytest.mark.parametrize("name", ["TRAJECTORY", "COMPLETION", "COMPARISON"])
def test_evaluation_templates_have_no_tools_and_are_short(name: str) -> None:
    template: PromptTemplate[object] = getattr(templates, name)
    assert template.tools == ()
    assert template.output_type is not str
    text = "".join(str(piece) for section in template.walk() for piece in section.pieces)
    assert len(text) < 900
