"""Typed answers: what a model is asked for, and how its text becomes a value."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.core.codec import encode
from watchkeeper.core.errors import OutputParseError, PromptDefinitionError
from watchkeeper.prompt.output import answer_form, describe, format_section, output_schema, parse_output


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass
class Item:
    name: str
    price: Decimal | None = None


@dataclass
class Report:
    """What was found.

    Attributes:
        total: How many there are.
    """

    total: int
    mood: Mood = Mood.GOOD
    items: list[Item] = field(default_factory=list[Item])
    kind: Literal["a", "b"] = "a"
    when: datetime | None = None


@dataclass
class Settings:
    """Everything may be left out, so that almost anything would fit."""

    verbose: bool = False
    level: int = 0


@dataclass
class Checked:
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError("total must not be negative")
        if self.total > 100:
            raise LookupError("nobody has that many")


class Struct(msgspec.Struct):
    total: int


class Model(pydantic.BaseModel):
    total: int
    tags: list[str] = []


@dataclass
class Holder:
    model: Model


items = st.builds(Item, st.text(), st.none() | st.decimals(allow_nan=False, allow_infinity=False))
moments = st.none() | st.datetimes(timezones=st.just(UTC))
reports = st.builds(
    Report, st.integers(-(2**53), 2**53), st.sampled_from(Mood), st.lists(items, max_size=3), st.just("b"), moments
)
prose = st.text(st.characters(exclude_characters="{}[]", exclude_categories=["Cs"]), max_size=60)


class TestSchema:
    def test_plain_text_has_none(self) -> None:
        assert output_schema(str) is None

    def test_an_object_is_closed_and_described(self) -> None:
        schema = output_schema(Report)
        assert schema is not None
        assert schema.name == "Report"
        assert schema.schema["type"] == "object"
        assert schema.schema["additionalProperties"] is False
        assert schema.schema["description"] == "What was found."
        assert schema.schema["properties"]["total"] == {"type": "integer", "description": "How many there are."}
        assert schema.schema["$defs"]["Item"]["additionalProperties"] is False

    @pytest.mark.parametrize(
        "type_", [list[Item], int, Mood, Literal["yes", "no"], Report | None, bool, tuple[int, str]]
    )
    def test_what_is_no_object_is_wrapped_in_one(self, type_: Any) -> None:
        schema = output_schema(type_)
        assert schema is not None
        assert schema.name == "Answer"
        assert schema.schema["type"] == "object"
        assert list(schema.schema["properties"]) == ["value"]
        assert schema.schema["required"] == ["value"]

    @pytest.mark.parametrize("type_", [Report, Struct, Model, dict[str, int]])
    def test_what_is_an_object_is_not(self, type_: Any) -> None:
        schema = output_schema(type_)
        assert schema is not None
        assert "value" not in schema.schema.get("properties", {})

    def test_names_are_what_providers_accept(self) -> None:
        schema = output_schema(dataclasses.make_dataclass("Odd name (very)" + "x" * 80, [("a", int)]))
        assert schema is not None
        assert schema.name == "Odd_name_very_x" + "x" * 49

    def test_it_is_made_once_per_type(self) -> None:
        assert output_schema(Report) is output_schema(Report)

    def test_an_unhashable_annotation_works_too(self) -> None:
        unhashable: Any = Annotated[list[int], ["not hashable"]]
        assert output_schema(unhashable) is not None
        assert parse_output("[1]", unhashable) == [1]

    @pytest.mark.parametrize("type_", [Any, object, None, type(None)])
    def test_a_type_that_says_nothing_is_refused(self, type_: Any) -> None:
        with pytest.raises(PromptDefinitionError, match="has no fields; use a dataclass, or str for plain text"):
            output_schema(type_)

    @pytest.mark.parametrize("type_", [Exception, list[Exception], print])
    def test_a_type_without_a_schema_is_refused_with_the_remedy(self, type_: Any) -> None:
        with pytest.raises(PromptDefinitionError, match=r"cannot be asked for: .*use dataclasses and plain types"):
            output_schema(type_)

    def test_the_request_in_the_prompt_holds_the_whole_schema(self) -> None:
        form = answer_form(Report)
        assert format_section(form).endswith(json.dumps(form.schema.schema))


class TestReading:
    def test_plain_text_is_taken_as_it_is(self) -> None:
        assert parse_output(" {not json} \n", str) == " {not json} \n"

    @pytest.mark.spec("FR-037")
    @given(reports)
    def test_what_was_written_reads_back_equal(self, report: Report) -> None:
        assert parse_output(encode(report).decode(), Report) == report

    @given(
        reports, prose, prose, st.sampled_from(["{}", "```json\n{}\n```", "```\n{}\n```", "Answer: {}.", "\n\n{}\n"])
    )
    def test_what_models_put_around_it_does_no_harm(self, report: Report, before: str, after: str, frame: str) -> None:
        text = before + frame.replace("{}", encode(report).decode()) + after
        assert parse_output(text, Report) == report

    @given(st.lists(items, max_size=3))
    def test_a_list_reads_wrapped_and_bare(self, given: list[Item]) -> None:
        bare = encode(given).decode()
        assert parse_output(f'{{"value": {bare}}}', list[Item]) == given
        assert parse_output(bare, list[Item]) == given
        assert parse_output(f"Here:\n```json\n{bare}\n```", list[Item]) == given

    @pytest.mark.parametrize(
        ("text", "type_", "value"),
        [
            ("42", int, 42),
            ('{"value": 42}', int, 42),
            ('"good"', Mood, Mood.GOOD),
            ('{"value": "bad"}', Mood, Mood.BAD),
            ("true", bool, True),
            ("null", int | None, None),
            ('{"value": {"total": 1}}', Struct | None, Struct(1)),
            ('{"total": 1}', Struct | None, Struct(1)),
            ('{"total": 1}', Struct, Struct(1)),
            ('{"total": 1, "tags": ["x"]}', Model, Model(total=1, tags=["x"])),
            ('{"model": {"total": 1}}', Holder, Holder(Model(total=1))),
            ('[{"total": 1}]', list[Model], [Model(total=1)]),
            ('{"a": 1}', dict[str, int], {"a": 1}),
        ],
    )
    def test_every_kind_of_type_is_read(self, text: str, type_: Any, value: Any) -> None:
        assert parse_output(text, type_) == value

    def test_braces_and_references_in_the_prose_do_no_harm(self) -> None:
        text = 'As [1] says, use {placeholders} in { this } way [see below].\n{"total": 3}\nThat is {all}.'
        assert parse_output(text, Report) == Report(3)

    def test_the_same_value_twice_is_one(self) -> None:
        assert parse_output('{"total": 1}\nAgain: {"total": 1, "kind": "a"}', Report) == Report(1)

    def test_a_draft_that_does_not_fit_is_passed_over(self) -> None:
        assert parse_output('I called {"tool": "look"} and found: {"total": 2}', Report) == Report(2)


class TestRefusal:
    def refused(self, text: str, type_: Any = Report) -> str:
        with pytest.raises(OutputParseError) as caught:
            parse_output(text, type_)
        assert caught.value.raw == text
        assert caught.value.phase == "response"
        return caught.value.message

    def test_the_message_is_worded_for_the_model(self) -> None:
        assert self.refused('{"total": "3"}') == (
            "The answer does not fit: Expected `int`, got `str` - at `$.total`. "
            "Give the whole answer again as one JSON object with `total` (integer), "
            '`mood` (one of "bad", "good", may be left out), `items` (array of object, may be left out), '
            '`kind` (one of "a", "b", may be left out), `when` (string or null, may be left out), and nothing else.'
        )

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "it is empty"),
            ("  \n ", "it is empty"),
            ("I could not find anything.", "it holds no JSON object"),
            ("Use {braces}.", "it holds no JSON object"),
            ('{"total": 1', "it is not valid JSON: Expecting ',' delimiter at line 1, column 12"),
            ('Sure:\n{"total": 1, "items": [{"name": "x"}', "it is not valid JSON: Expecting ',' delimiter at line 2"),
            ("{}", "Object missing required field `total`"),
            ("[1]", "Expected `object`, got `array`"),
            ('{"total": 1, "items": [{"name": "x", "name": "y"}]}', "it gives `name` twice"),
            ('{"total": 1, "mood": "odd"}', r"Invalid enum value 'odd' - at `\$\.mood`"),
            ('{"total": 1, "items": [{}]}', r"missing required field `name` - at `\$\.items\[0\]`"),
            ('{"totl": 1}', r"unknown field `totl` \(did you mean `total`\?\)"),
            (
                '{"total": 1, "items": [{"name": "x", "cost": 2}]}',
                r"unknown field `items\[0\]\.cost`; known there: name",
            ),
            ('{"total": 1, "total": 2}', "it gives `total` twice, differently, and only one can be meant"),
            ('{"total": 1} {"total": 2}', "it holds 2 different JSON values that fit, and only one can be meant"),
            ('{"total": 1.5}', "Expected `int`, got `float`"),
            ("NaN", "JSON is malformed"),
        ],
    )
    def test_what_does_not_fit_is_named(self, text: str, problem: str) -> None:
        with pytest.raises(OutputParseError, match=problem):
            parse_output(text, Report)

    def test_a_broken_answer_is_never_read_from_its_inside(self) -> None:
        """A nested object of an answer that breaks off would fit a type whose fields may all be left out."""
        assert "not valid JSON" in self.refused('{"result": {"verbose": true}, "level": ', Settings)
        assert "not valid JSON" in self.refused('[{"level": 1}, {"level": 2}, ', list[Settings])

    @pytest.mark.parametrize("frame", ["{}", "```json\n{}\n```", "Here it is: {}", "{}\nThat is all."])
    @pytest.mark.parametrize("answer", ['[{"total": 1}]', '[[{"total": 1}]]', '["x", {"total": 1}]'])
    def test_an_object_in_a_list_is_no_object_whatever_is_around_it(self, frame: str, answer: str) -> None:
        assert "Expected `object`, got `array`" in self.refused(frame.replace("{}", answer))
        assert "not valid JSON" in self.refused(frame.replace("{}", '[{"total": 1}, '))

    def test_an_object_of_another_kind_does_not_pass_for_one_with_defaults(self) -> None:
        assert "unknown field `tool`" in self.refused('{"tool": "look"}', Settings)

    def test_the_longest_candidate_is_what_was_meant(self) -> None:
        said = self.refused('I tried {"a": 1}. Result: {"total": "many", "mood": "good"}')
        assert "Expected `int`, got `str` - at `$.total`" in said

    def test_the_place_in_a_wrapped_answer_is_named(self) -> None:
        assert "at `$.value[0].name`" in self.refused('{"value": [{"name": 1}]}', list[Item])
        assert "at `$[0].name`" in self.refused('[{"name": 1}]', list[Item])

    def test_a_check_of_the_type_itself_speaks_for_itself(self) -> None:
        assert "total must not be negative" in self.refused('{"total": -1}', Checked)
        assert "LookupError: nobody has that many" in self.refused('{"total": 101}', Checked)

    def test_all_problems_of_a_pydantic_model_are_named(self) -> None:
        said = self.refused('{"total": "x", "tags": [1]}', Model)
        assert "$.total" in said
        assert "$.tags[0]" in said

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, '{"a":' * 100_000, "{" * 100_000, "{x" * 100_000, '{"total":' + "9" * 5000 + "}"]
    )
    def test_absurd_text_ends_in_the_same_error(self, text: str) -> None:
        self.refused(text)
        self.refused(text, list[Item])

    @pytest.mark.spec("FR-037")
    @given(st.text())
    def test_any_text_gives_a_value_or_that_error(self, text: str) -> None:
        for type_ in (Report, list[int], Model, Mood):
            with contextlib.suppress(OutputParseError):
                parse_output(text, type_)


def test_kinds_are_described_in_a_few_words() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "any": {},
            "const": {"const": 3},
            "list": {"type": "array"},
            "lists": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "many": {"type": ["string", "null"]},
            "one": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/X"}, {"type": "string"}]},
            "ref": {"$ref": "#/$defs/X"},
        },
        "required": ["any", "const", "list", "lists", "many", "one", "ref"],
        "$defs": {"X": {"type": "object"}},
    }
    assert describe(schema) == (
        "Give the whole answer again as one JSON object with `any` (any value), `const` (3), `list` (array), "
        "`lists` (array of array of integer), `many` (string or null), `one` (string or object), `ref` (object), "
        "and nothing else."
    )
    assert describe({"type": "object"}) == "Give the whole answer again as one JSON object, and nothing else."


@pytest.mark.parametrize("rest", ["1," * 60_000, '"' + "a" * 2_000_000, " " * 2_000_000], ids=["list", "text", "blank"])
def test_a_text_is_not_read_again_from_every_opener(rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that opens many lists and closes none would hold up everything else in the process."""
    read: list[int] = []
    decode = json.JSONDecoder.raw_decode

    def counted(self: json.JSONDecoder, s: str, idx: int = 0) -> tuple[Any, int]:
        read.append(len(s) - idx)
        return decode(self, s, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    with pytest.raises(OutputParseError):
        parse_output("[" * 64 + rest, Item)
    assert sum(read) < 15_000_000


@pytest.mark.parametrize("text", ["[" + "{}," * 80_000 + "{}]", '{"value": [' + "1," * 150_000 + "1]}"])
def test_an_answer_of_very_many_values_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(OutputParseError, match="holds more than 150,000 values"):
        parse_output(text, list[int])
