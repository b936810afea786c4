"""Model strings: each form makes the right model, and every wrong one is refused with what to write or install."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.app import models
from watchkeeper.app.models import PROVIDERS, SERVER_KEY, model_from
from watchkeeper.core.errors import ConfigurationError, MissingExtraError, MissingKeyError, UnknownModelError
from watchkeeper.core.model import Model


async def made(text: str) -> tuple[str, str, str]:
    """Return class, provider and name of the model a string makes."""
    model = model_from(text)
    await model.close()
    assert isinstance(model, Model)
    return type(model).__name__, model.provider, model.name


@pytest.mark.spec("FR-062")
@pytest.mark.parametrize(
    ("text", "variable", "expected"),
    [
        ("openai:gpt-5-mini", "OPENAI_API_KEY", ("OpenAIChatModel", "openai", "gpt-5-mini")),
        ("openai-responses:gpt-5", "OPENAI_API_KEY", ("OpenAIResponsesModel", "openai", "gpt-5")),
        ("anthropic:claude-x", "ANTHROPIC_API_KEY", ("AnthropicModel", "anthropic", "claude-x")),
        ("litellm:groq/llama-3.3-70b", "GROQ_API_KEY", ("LiteLLMModel", "groq", "groq/llama-3.3-70b")),
        ("http://localhost:1/v1#m", None, ("OpenAIChatModel", "openai-compatible", "m")),
        ("https://example.invalid/v1#org/m:7b", None, ("OpenAIChatModel", "openai-compatible", "org/m:7b")),
    ],
)
async def test_a_string_makes_its_model(
    text: str, variable: str | None, expected: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "k")
    assert await made(text) == expected


async def test_a_gguf_file_makes_a_local_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    assert await made(f"local:{file}") == ("LocalModel", "local", "tiny")


def test_a_local_model_that_is_not_there_is_refused() -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(ConfigurationError, match=r"/no/such/file\.gguf"):
        model_from("local:/no/such/file.gguf")


@pytest.mark.spec("FR-101")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpt-5-mini", ["'gpt-5-mini'", "openai:NAME"]),
        ("", ["''", "openai:NAME"]),
        ("opnai:gpt-5", ["did you mean 'openai'?"]),
        ("openai:", ["names no model of openai"]),
        ("openai", ["names no model of openai"]),
        ("scripted", ["ScriptedModel([...])"]),
        ("http://localhost:1/v1", ["http://localhost:1/v1#NAME"]),
        ("http://localhost:1/v1#", ["http://localhost:1/v1#NAME"]),
    ],
)
def test_an_unknown_string_is_refused_with_the_forms(text: str, parts: list[str]) -> None:
    with pytest.raises(UnknownModelError) as caught:
        model_from(text)
    assert all(part in str(caught.value) for part in parts)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        model_from("http://#m")


@pytest.mark.spec("FR-102")
@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("openai:m", "OPENAI_API_KEY"),
        ("openai-responses:m", "OPENAI_API_KEY"),
        ("anthropic:m", "ANTHROPIC_API_KEY"),
        ("litellm:groq/m", "GROQ_API_KEY"),
    ],
)
def test_a_missing_key_is_refused_by_name(text: str, variable: str) -> None:
    with pytest.raises(MissingKeyError, match=variable):
        model_from(text)


@pytest.mark.spec("FR-103")
@pytest.mark.parametrize(
    ("text", "package", "extra"),
    [
        ("openai:m", "openai", "openai"),
        ("openai-responses:m", "openai", "openai"),
        ("http://localhost:1/v1#m", "openai", "openai"),
        ("anthropic:m", "anthropic", "anthropic"),
        ("litellm:groq/m", "litellm", "litellm"),
        ("local:x.gguf", "xllamacpp", "local"),
    ],
)
def test_a_missing_extra_is_refused_with_the_command(
    text: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_others(name: str, package_: str | None = None) -> ModuleSpec | None:
        return None if name == package else find(name, package_)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    with pytest.raises(MissingExtraError) as caught:
        model_from(text)
    assert f"pip install 'watchkeeper[{extra}]'" in str(caught.value)


def test_every_provider_is_in_the_help() -> None:
    assert all(f"'{provider}" in models.HELP for provider in PROVIDERS)


@pytest.mark.spec("FR-062")
@pytest.mark.parametrize(("own", "sent"), [(None, "no-key"), ("mine", "mine")])
def test_the_key_of_a_provider_is_never_sent_to_another_address(
    own: str | None, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    if own is not None:
        monkeypatch.setenv(SERVER_KEY, own)

    def keep(name: str, **options: Any) -> None:
        given.update(options, name=name)

    monkeypatch.setattr("watchkeeper.adapters.openai_chat.OpenAIChatModel", keep)
    model_from("http://localhost:1/v1#m")
    assert given == {
        "name": "m",
        "api_key": sent,
        "base_url": "http://localhost:1/v1",
        "provider": "openai-compatible",
    }
