"""Sections are checked when they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.core.messages import ImagePart
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.tools.tool import tool

IMAGE = ImagePart(data="aGk=")


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


def section(**changes: Any) -> MarkdownSection:
    given: dict[str, Any] = {"title": "Task", "key": "task", "template": "Do ${it}.", **changes}
    return MarkdownSection(**given)


def test_lists_and_tuples_are_the_same() -> None:
    given = section(tools=[look], children=[section(key="inner")], images=[IMAGE])
    assert given == section(tools=(look,), children=(section(key="inner"),), images=(IMAGE,))
    assert given.tools == (look,)
    assert given.children[0].key == "inner"
    assert hash(given) == hash(section(tools=(look,), children=(section(key="inner"),), images=(IMAGE,)))


def test_a_section_is_frozen() -> None:
    name = "title"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(section(), name, "other")


def test_it_knows_its_own_placeholders_and_walks_in_document_order() -> None:
    tree = section(children=[section(key="a", template="${x}", children=[section(key="b")]), section(key="c")])
    assert tree.placeholders == {"it"}
    assert [inner.key for inner in tree.walk()] == ["task", "a", "b", "c"]


async def maybe() -> bool:
    return True


class AsyncPredicate:
    async def __call__(self) -> bool:
        return True


@pytest.mark.spec("FR-034")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": ""}, "section key '' must be letters"),
        ({"key": "two words"}, "section key 'two words'"),
        ({"key": "-x"}, "section key '-x'"),
        ({"template": None}, "section 'task': template must be text, not None"),
        ({"title": "For ${who}"}, r"section 'task': title 'For \$\{who\}' must be one line without placeholders"),
        ({"title": "a\nb"}, "must be one line"),
        ({"template": "pay $5"}, r"section 'task': '\$5' at line 1, column 5"),
        ({"tools": look}, "section 'task': tools must be a list or tuple"),
        ({"tools": [print]}, r"section 'task': <built-in function print> in tools is not a Tool; .*@tool"),
        ({"tools": "look"}, "tools must be a list or tuple, not 'look'"),
        ({"tools": None}, "tools must be a list or tuple, not None"),
        ({"children": ["text"]}, "'text' in children is not a MarkdownSection"),
        ({"images": [b"raw"]}, r"b'raw' in images is not a ImagePart; use ImagePart\.from_bytes"),
        ({"role": "developer"}, "section 'task': role 'developer' must be 'system' or 'user'"),
        ({"role": "system", "images": [IMAGE]}, "section 'task': a system section cannot hold images"),
        ({"enabled": True}, "section 'task': enabled=True must be a function"),
        ({"enabled": maybe}, "enabled must be a plain function, not a coroutine function"),
        ({"enabled": AsyncPredicate()}, "enabled must be a plain function"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(PromptDefinitionError, match=problem):
        section(**given)


def test_a_nested_section_cannot_change_the_role() -> None:
    inner = section(key="inner", role="system")
    with pytest.raises(PromptDefinitionError, match=r"section 'inner' has role 'system' but lies in 'task'.*'user'"):
        section(children=[inner])
    assert section(role="system", children=[inner]).children == (inner,)


def test_images_nested_in_a_system_section_are_refused_too() -> None:
    with pytest.raises(PromptDefinitionError, match="a system section cannot hold images"):
        section(role="system", children=[section(key="inner", images=[IMAGE])])
