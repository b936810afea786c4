"""The same work done by another library, where it is installed: what a step costs there, on this very machine.

Absolute figures differ from machine to machine; the ratio to a peer measured in the same process does not. Nothing here
is needed for the tests: ``pip install langchain`` makes `create_agent` a peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def langchain_agent() -> Callable[[int], Awaitable[None]] | None:
    """Return langchain's agent with one tool and a model that costs nothing, or None if it is not installed.

    Returns:
        A function that runs it for N tool calls, one a turn, and checks that it made them.
    """
    if find_spec("langchain") is None:
        return None
    agents: Any = import_module("langchain.agents")
    chat_models: Any = import_module("langchain_core.language_models.chat_models")
    messages: Any = import_module("langchain_core.messages")
    outputs: Any = import_module("langchain_core.outputs")
    tools: Any = import_module("langchain_core.tools")

    class Fake(chat_models.BaseChatModel):  # type: ignore[misc]
        left: int = 0

        @property
        def _llm_type(self) -> str:
            return "fake"

        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, *args: Any, **options: Any) -> Any:
            self.left -= 1
            calls = [{"name": "add", "args": {"a": 1, "b": 2}, "id": f"c{self.left}"}] if self.left >= 0 else []
            message = messages.AIMessage("" if calls else "done", tool_calls=calls)
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            return self._generate()

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = Fake()
    agent = agents.create_agent(model, [tools.tool(add)])

    async def run(turns: int) -> None:
        model.left = turns
        limit = {"recursion_limit": 10 * turns + 50}
        result = await agent.ainvoke({"messages": [("user", "Add.")]}, limit)
        if sum(message.type == "tool" for message in result["messages"]) != turns:
            raise RuntimeError("langchain did not do its work")

    return run
