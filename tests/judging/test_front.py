"""What the package exports is listed, sorted, and imported only when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import watchkeeper.judging as front
from watchkeeper.judging import templates
from watchkeeper.prompt.template import PromptTemplate


def test_every_exported_name_is_there_and_sorted() -> None:
    assert front.__all__ == sorted(set(front.__all__))
    assert dir(front) == front.__all__
    assert [name for name in front.__all__ if getattr(front, name, None) is None] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = front.no_such_name


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, watchkeeper.judging; print(*[n for n in sys.modules if n.startswith('watchkeeper.judging.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.spec("NE-038")
@pytest.mark.parametrize("name", ["TRAJECTORY", "COMPLETION", "COMPARISON"])
def test_evaluation_templates_have_no_tools_and_are_short(name: str) -> None:
    template: PromptTemplate[object] = getattr(templates, name)
    assert template.tools == ()
    assert template.output_type is not str
    text = "".join(str(piece) for section in template.walk() for piece in section.pieces)
    assert len(text) < 900
