"""What Anthropic's Messages answers, whole or as events, in our terms.

Events are put together to a whole message first, so that both are read in one way. Input tokens are summed: Anthropic
counts those read from and written to the cache apart. Facts: anthropic/types/message.py, raw_message_stream_event.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from watchkeeper.adapters.encoding import encode, tool_arguments
from watchkeeper.core.errors import ProviderError
from watchkeeper.core.messages import AssistantMessage, ToolCall
from watchkeeper.core.model import FinishReason, ModelReply
from watchkeeper.core.usage import TokenUsage

ENCODING: Final = "anthropic"
FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
DELTA_FIELDS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class Events:
    """Puts the events of a stream together to a whole message."""

    def __init__(self, on_delta: Callable[[str], None] | None) -> None:
        """Pass text on as it arrives, if anybody listens."""
        self._on_delta = on_delta
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._partial: dict[int, dict[str, list[str]]] = {}
        self._ended = False

    def feed(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        index = int(event.get("index") or 0)
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_start":
                self._blocks[index] = dict(event.get("content_block") or {})
            case "content_block_delta":
                self._add(index, event.get("delta") or {})
            case "message_delta":
                self._message.update(_given(event.get("delta")))
                self._message["usage"] = {**_given(self._message.get("usage")), **_given(event.get("usage"))}
            case "message_stop":
                self._ended = True
            case _:
                pass

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        kind = str(delta.get("type"))
        block = self._blocks.setdefault(index, {"type": "text"})
        partial = self._partial.setdefault(index, {})
        if kind == "input_json_delta":
            partial.setdefault("input", []).append(str(delta.get("partial_json") or ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        elif kind in DELTA_FIELDS:
            text = str(delta.get(DELTA_FIELDS[kind]) or "")
            partial.setdefault(DELTA_FIELDS[kind], []).append(text)
            if kind == "text_delta" and text and self._on_delta is not None:
                self._on_delta(text)

    def message(self) -> dict[str, Any]:
        """Return the whole message.

        Raises:
            ProviderError: If the stream ended before the message did.
        """
        if not self._ended:
            from watchkeeper.adapters.provider_errors import broken_stream

            raise broken_stream("anthropic", "the stream ended without message_stop")
        for index, fields in self._partial.items():
            block = self._blocks[index]
            for key, texts in fields.items():
                text = "".join(texts)
                if key == "input":
                    block["input_text"] = text
                    block["input"] = tool_arguments(text)
                else:
                    block[key] = (block.get(key) or "") + text
        return {**self._message, "content": [block for _, block in sorted(self._blocks.items())]}


def _given(fields: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (fields or {}).items() if value is not None}


def read_message(message: Mapping[str, Any], encoding: str) -> ModelReply:
    """Return a whole message in our terms.

    Raises:
        ProviderError: If it is none.
    """
    content = message.get("content")
    if not isinstance(content, list):
        raise ProviderError(
            "anthropic answered something that is not a message: it has no content",
            fault="server",
            provider="anthropic",
            billed=True,
        )
    blocks = cast("list[dict[str, Any]]", content)
    calls: list[ToolCall] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            written = block.pop("input_text", None)
            arguments = written if written is not None else encode(block.get("input") or {}).decode()
            calls.append(ToolCall(str(block.get("id")), str(block.get("name")), arguments or "{}"))
    details: dict[str, Any] = message.get("stop_details") or {}
    finish = FINISH.get(str(message.get("stop_reason")), "stop")
    return ModelReply(
        message=AssistantMessage(
            text="".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text"),
            tool_calls=tuple(calls),
            reasoning="\n\n".join(str(block["thinking"]) for block in blocks if block.get("thinking")),
            provider_data=_returned_blocks(blocks, encoding),
        ),
        usage=read_usage(message.get("usage") or {}),
        finish=finish,
        model=str(message.get("model") or ""),
        response_id=str(message.get("id") or ""),
        refusal=str(details.get("explanation") or "the model refused") if finish == "refusal" else "",
    )


def _returned_blocks(blocks: list[dict[str, Any]], encoding: str) -> dict[str, Any] | None:
    """Return the blocks to send back, where there is more in them than one text and calls."""
    kinds = [block.get("type") for block in blocks]
    if kinds.count("text") <= 1 and set(kinds) <= {"text", "tool_use"}:
        return None
    kept = [
        {key: value for key, value in block.items() if value is not None}
        for block in blocks
        if block.get("type") != "text" or str(block.get("text") or "").strip()
    ]
    return {"encoding": encoding, "blocks": kept}


def read_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return token counts in our terms; the cache's tokens are added to the input, as they are part of it."""
    read = int(usage.get("cache_read_input_tokens") or 0)
    written = int(usage.get("cache_creation_input_tokens") or 0)
    details: dict[str, Any] = usage.get("output_tokens_details") or {}
    return TokenUsage(
        input_tokens=int(usage.get("input_tokens") or 0) + read + written,
        output_tokens=int(usage.get("output_tokens") or 0),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=int(details.get("thinking_tokens") or 0),
    )
