"""Looking up what placeholders and predicates ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from watchkeeper.core.errors import PromptDefinitionError
from watchkeeper.prompt.sections import Bindings, match_predicate

if TYPE_CHECKING:
    Elsewhere = bool


@dataclass(frozen=True)
class Inbox:
    folder: str
    urgent: bool = False


@dataclass(frozen=True)
class VipInbox(Inbox):
    name: str = "vip"


@dataclass(frozen=True)
class Reader:
    language: str = "en"


def bindings(*params: Any, **variables: Any) -> Bindings:
    return Bindings({type(value): value for value in params}, variables)


def urgent_inbox(inbox: Inbox) -> bool:
    return inbox.urgent


def both(inbox: Inbox, reader: Reader) -> bool:
    return inbox.urgent and reader.language == "en"


def english(language: str) -> bool:
    return language == "en"


def positional(inbox: Inbox, /, language: str) -> bool:
    return inbox.urgent and language == "en"


def unknown_hint(urgent: Elsewhere) -> bool:
    """Its annotation is known to type checkers only."""
    return bool(urgent)


def is_urgent(urgent: bool) -> bool:
    return urgent


def urgent_and_english(urgent: bool, language: str) -> bool:
    return urgent and language == "en"


def in_folder(folder: str = "elsewhere") -> bool:
    return folder == "in"


def missing_default(missing: str = "default") -> bool:
    return missing == "default"


def anything(*args: object, **kwargs: object) -> bool:
    return not args and not kwargs


def any_name(params: Any) -> bool:
    return bool(params.urgent)


any_name.__annotations__.clear()  # as a lambda has none


def missing_and_urgent(missing: bool, urgent: bool) -> bool:
    return missing and urgent


def raising(urgent: bool) -> float:
    return urgent / 0


class Predicate:
    """A callable object: its parameters are those of its call."""

    def __call__(self, inbox: Inbox) -> bool:
        return inbox.urgent

    def method(self, reader: Reader) -> bool:
        return reader.language == "en"


FULL = bindings(Inbox("in", urgent=True), Reader())


@pytest.mark.parametrize(
    "predicate",
    [
        urgent_inbox,
        both,
        english,
        positional,
        unknown_hint,
        Predicate(),
        Predicate().method,
        lambda: True,
        is_urgent,
        urgent_and_english,
        in_folder,
        missing_default,
        anything,
        functools.partial(both, reader=Reader("en")),
    ],
)
def test_a_predicate_gets_what_its_parameters_say(predicate: Callable[..., object]) -> None:
    assert FULL.ask(predicate, "task") is True


def test_a_lone_parameter_of_any_name_gets_the_only_bound_value() -> None:
    assert bindings(Inbox("in", urgent=True)).ask(any_name, "task")
    assert not bindings(Inbox("in")).ask(any_name, "task")


def test_a_type_matches_its_subclasses() -> None:
    assert bindings(VipInbox("in", urgent=True)).ask(urgent_inbox, "task")


def test_variables_take_precedence_over_fields() -> None:
    bound = bindings(Inbox("in"), folder="out", extra=1)
    assert bound.value("folder") == "out"
    assert bound.value("urgent") is False
    assert bound.value("extra") == 1
    assert bound.names() == {"folder", "urgent", "extra"}
    with pytest.raises(KeyError):
        bound.value("missing")


def test_two_owners_of_a_name_are_ambiguous_unless_a_variable_decides() -> None:
    two = bindings(Inbox("in"), VipInbox("vip"))
    with pytest.raises(PromptDefinitionError, match=r"\$\{folder\} is ambiguous: Inbox and VipInbox both have it"):
        two.value("folder")
    assert Bindings(two.params, {"folder": "x"}).value("folder") == "x"


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        (missing_and_urgent, "asks for 'missing', and there is Inbox, Reader, folder, language, urgent"),
        (any_name, "asks for 'params'"),
        (raising, r"section 'task': its enabled predicate raised ZeroDivisionError"),
    ],
)
def test_what_a_predicate_cannot_get_or_do_is_named(predicate: Callable[..., object], problem: str) -> None:
    with pytest.raises(PromptDefinitionError, match=problem):
        FULL.ask(predicate, "task")


def test_nothing_bound_is_said_so() -> None:
    with pytest.raises(PromptDefinitionError, match="asks for 'inbox', and there is nothing bound"):
        match_predicate(urgent_inbox, "task", (), ())


def test_a_built_in_without_a_signature_is_called_without_arguments() -> None:
    assert bindings().ask(dict, "task") is False
