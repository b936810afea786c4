"""A key that a provider repeats reaches no stop message, no traceback, no log line and no store."""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.kit import agent
from watchkeeper.accounting.limits import UNLIMITED
from watchkeeper.adapters.anthropic import AnthropicModel
from watchkeeper.adapters.endpoint import REMOTE, check_extra
from watchkeeper.adapters.litellm import LiteLLMModel
from watchkeeper.adapters.openai_chat import OpenAIChatModel
from watchkeeper.adapters.openai_responses import OpenAIResponsesModel
from watchkeeper.app.models import model_from
from watchkeeper.app.run import arun
from watchkeeper.core.clock import TestClock
from watchkeeper.core.model import Model, ModelSettings
from watchkeeper.core.secrets import MOST_HELD, REDACTED, hold, redacted
from watchkeeper.runtime.result import RunResult


class Echo(BaseHTTPRequestHandler):
    """A provider that repeats what it was sent."""

    way: ClassVar[str] = ""

    def do_POST(self) -> None:
        """Answer in the way that the test wants."""
        self.rfile.read(int(self.headers["content-length"]))
        sent: str = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        said = f"You sent {sent} to {self.path}"
        if self.way == "redirect":
            self.answer(302, said, ("location", f"http://elsewhere/?key={sent.removeprefix('Bearer ')}"))
        elif self.way == "no json":
            self.answer(200, said)
        elif self.way == "text":
            message = {"role": "assistant", "content": said}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            self.answer(200, json.dumps({**body, "usage": usage}))
        else:
            error = {"message": said, "type": "authentication_error", "param": sent}
            self.answer(int(self.way), json.dumps({"type": "error", "error": error}))

    def do_CONNECT(self) -> None:
        """Refuse, as a proxy does whose password has changed."""
        self.answer(407, "")

    def answer(self, status: int, body: str, *headers: tuple[str, str]) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in (*headers, ("content-type", "application/json"), ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Return the address of such a provider."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def openai(key: str, address: str) -> Model:
    return OpenAIChatModel("gpt-5-mini", api_key=key, base_url=f"http://{address}/v1")


def responses(key: str, address: str) -> Model:
    return OpenAIResponsesModel("gpt-5-mini", api_key=key, base_url=f"http://{address}/v1")


def anthropic(key: str, address: str) -> Model:
    return AnthropicModel("claude-sonnet-5", api_key=key, base_url=f"http://{address}")


def litellm(key: str, address: str) -> Model:
    return LiteLLMModel("openai/gpt-5-mini", api_key=key, base_url=f"http://{address}/v1")


def in_header(key: str, address: str) -> Model:
    return OpenAIChatModel("m", api_key="no-key", base_url=f"http://{address}/v1", headers={"Authorization": key})


def in_environment(key: str, address: str) -> Model:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WATCHKEEPER_API_KEY", key)
        return model_from(f"http://{address}/v1#m")


def in_url(key: str, address: str) -> Model:
    return OpenAIChatModel("m", api_key="no-key", base_url=f"http://{address}/v1?api_key={key}")


async def ended(model: Model, folder: Path) -> RunResult[Any]:
    """Run an agent to its end."""
    try:
        return await arun(agent(), model=model, limits=UNLIMITED, store=folder / "runs.db", clock=TestClock())
    finally:
        await model.close()


def written(tmp_path: Path) -> str:
    """Return everything that the store's files hold."""
    return "".join(file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file())


KINDS = (openai, responses, anthropic, in_header, in_environment, in_url)
CASES = [(litellm, "401"), *((make, way) for make in KINDS for way in ("401", "400", "redirect", "no json"))]


@pytest.mark.parametrize(("make", "way"), CASES)
async def test_a_key_that_comes_back_is_written_nowhere(
    make: Any, way: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "watchkeeper")
    monkeypatch.setattr(Echo, "way", way)
    key = f"sk-{uuid4()}"
    result = await ended(make(key, address), tmp_path)
    assert result.stop is not None
    assert result.error is not None
    assert result.stop.reason in ("provider_error", "error", "refused", "circuit_open")
    told = "".join(traceback.format_exception(result.error))
    data = json.dumps(result.as_data())
    for text in (result.stop.message, result.sentence(), told, data, caplog.text, written(tmp_path)):
        assert key not in text


@pytest.mark.parametrize("kind", [OpenAIChatModel, LiteLLMModel])
async def test_the_password_of_a_proxy_that_refuses_is_written_nowhere(
    kind: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp names the proxy in its error, and encodes other characters of the address than urllib does."""
    word = uuid4().hex
    monkeypatch.setattr(REMOTE, "allowed", True)  # nothing is sent further than to the proxy
    monkeypatch.setenv("https_proxy", f"http://ann:{quote(f'p@ss!{word}', safe='')}@{address}")
    monkeypatch.setenv("no_proxy", "")
    model = kind("openai/m" if kind is LiteLLMModel else "m", api_key="no-key", base_url="https://provider.invalid/v1")
    result = await ended(model, tmp_path)
    assert result.stop is not None
    assert "407" in result.stop.message
    told = "".join(traceback.format_exception(result.error))
    for text in (result.stop.message, told, json.dumps(result.as_data()), written(tmp_path)):
        assert word not in text


async def test_a_key_that_the_model_repeats_is_not_stored(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Echo, "way", "text")
    key = f"sk-{uuid4()}"
    await ended(openai(key, address), tmp_path)
    stored = written(tmp_path)
    assert key not in stored
    assert "You sent Bearer [redacted] to " in stored


def test_what_extra_fields_hold_for_each_request_pushes_out_no_lasting_key() -> None:
    hold("lasting-key-of-mine")
    for number in range(MOST_HELD):
        fields = {"authorization": f"Bearer token-of-customer-{number:04}", "prompt_cache_key": f"customer-{number}"}
        check_extra(ModelSettings(extra=fields), frozenset())
    said = "customer-255 has a file"
    assert redacted(f"lasting-key-of-mine token-of-customer-0255, {said}") == f"{REDACTED} {REDACTED}, {said}"
