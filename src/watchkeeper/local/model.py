"""Models on this machine: the bundled one, or any GGUF file, through an engine process of our own.

One turn is one request over the loopback interface, through the same client as any remote endpoint; dropping it frees
the engine at once. Tools are mapped to a JSON schema (see local_steps), because the models that fit here call none by
themselves. The engine starts with the first turn and again after a crash; nothing here repeats a request. It costs 0.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from watchkeeper.core.errors import ConfigurationError, ProviderError
from watchkeeper.core.model import ModelReply, ModelRequest
from watchkeeper.local.files import (
    BUNDLED_MODEL,
    bundled_model_file,
    cache_folder,
    installed_parts,
    is_verified,
    own_model_file,
)
from watchkeeper.local.server import (
    PROVIDER,
    SERVERS,
    EngineAddress,
    EngineOptions,
    LocalServer,
    check_engine,
    default_threads,
)

if TYPE_CHECKING:
    from watchkeeper.adapters.endpoint import Endpoint, Kept
    from watchkeeper.local.steps import StepPlan

CONTEXT_TOKENS: Final = 8192
OUTPUT_TOKENS: Final = 1024


class LocalModel:
    """A model that runs on this machine.

    Args:
        path: A GGUF file, or empty for the bundled model.
        context_window: Tokens that a conversation may have; memory grows with it.
        max_output_tokens: Largest reply; at 20 to 30 tokens a second, 1,024 take most of a minute.
        threads: Threads that compute, or None for the available cores, at most eight.

    Raises:
        MissingExtraError: If the engine is not installed.
        ConfigurationError: If there is no such file, or the bundled model is not installed; says how to install it.
    """

    def __init__(
        self,
        path: str | Path = "",
        *,
        context_window: int = CONTEXT_TOKENS,
        max_output_tokens: int = OUTPUT_TOKENS,
        threads: int | None = None,
    ) -> None:
        check_engine()
        self._bundled = not str(path)
        if self._bundled:
            file = cache_folder() / BUNDLED_MODEL.file_name
            if not is_verified(file, BUNDLED_MODEL):
                installed_parts(BUNDLED_MODEL)
        else:
            file = own_model_file(path)
        self.name = BUNDLED_MODEL.name if self._bundled else file.stem
        self.provider = PROVIDER
        self.native_output = True
        self.context_window = context_window
        self.max_output_tokens = min(max_output_tokens, context_window)
        self.free = True
        self._options = EngineOptions(str(file), self.name, context_window, threads or default_threads())
        self._server: LocalServer | None = None
        self._reached: tuple[EngineAddress, Endpoint] | None = None
        self._plans: Kept[StepPlan] | None = None

    async def turn(self, request: ModelRequest) -> ModelReply:
        """Ask for one reply; the first turn starts the engine, which takes seconds.

        Raises:
            ProviderError: With the fault that tells whether a retry may help; names the engine's log if it died.
        """
        if self._server is None:
            self._server = SERVERS.acquire(self._options)
        server = self._server
        address, endpoint = await self._reach(server)
        try:
            return await self._ask(endpoint, request, address.newlines)
        except ProviderError as error:
            broken = error.fault in ("connection", "broken_stream")
            ending = await asyncio.to_thread(server.describe_end) if broken else None
            if ending is None:
                raise
            raise ProviderError(
                f"{ending}. The next call starts it again", fault="connection", provider=PROVIDER
            ) from error

    async def close(self) -> None:
        """Give the engine back; it ends with its last user, and a later turn starts it again."""
        server, self._server = self._server, None
        held, self._reached = self._reached, None
        if held is not None:
            await held[1].close()
        if server is not None:
            await asyncio.to_thread(SERVERS.release, server)

    async def _reach(self, server: LocalServer) -> tuple[EngineAddress, Endpoint]:
        """Return a running engine and the connection to it, starting the engine if it does not run."""
        address = server.address()
        if address is None:
            starting, importing = asyncio.to_thread(self._start, server), asyncio.to_thread(import_client)
            address = (await asyncio.gather(starting, importing))[0]
        held = self._reached
        if held is not None and held[0] == address:
            return held
        reached = self._reached = (address, open_endpoint(address))
        if held is not None:
            await held[1].close()
        return reached

    def _start(self, server: LocalServer) -> EngineAddress:
        if self._bundled:
            try:
                bundled_model_file(BUNDLED_MODEL)
            except ConfigurationError as error:
                raise ProviderError(str(error), fault="bad_request", provider=PROVIDER) from error
        return server.ensure()

    async def _ask(self, endpoint: Endpoint, request: ModelRequest, newlines: tuple[int, ...]) -> ModelReply:
        from watchkeeper.adapters.endpoint import Kept
        from watchkeeper.adapters.openai_chat import CHAT, ENCODING, read_reply
        from watchkeeper.adapters.wire import exchange
        from watchkeeper.local.steps import AnswerStream, make_plan, read_step, request_body

        if self._plans is None:
            self._plans = Kept()
        plan = self._plans.get(lambda: make_plan(request.tools, request.output), request.tools, request.output)
        body = request_body(self.name, request, plan, newlines)
        position = len(request.transcript)
        heard = None if request.on_delta is None else AnswerStream(plan, request.on_delta).feed

        def read(completion: Any) -> ModelReply:
            return read_step(read_reply(completion, PROVIDER, ENCODING, position), plan, position)

        return await exchange(CHAT, endpoint, body, request.timeout, heard, read)


def import_client() -> None:
    """Import the client, which takes as long as the engine takes to start."""
    for module in ("openai", "watchkeeper.adapters.transport", "watchkeeper.adapters.openai_chat"):
        importlib.import_module(module)


def open_endpoint(address: EngineAddress) -> Endpoint:
    """Return a connection to a running engine."""
    from watchkeeper.adapters.openai_chat import openai_endpoint

    # The engine drops idle connections after a few seconds; a new one costs nothing on this machine.
    return openai_endpoint("The local model", PROVIDER, address.key, address.base_url, {"Connection": "close"})
