"""A server that answers as OpenAI does, and a contained client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from watchkeeper.contained_sdk.http import contained_http_client
from watchkeeper.testing.fake_openai import FakeOpenAI
from watchkeeper.testing.wire import say


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(lambda number, body: say("Good.")) as server:
        yield server


@pytest.fixture
def client(server: FakeOpenAI) -> Iterator[OpenAI]:
    with OpenAI(api_key="k", base_url=server.base_url, http_client=contained_http_client()) as client:
        yield client
