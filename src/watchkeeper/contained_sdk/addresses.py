"""What a request is for, judged by its method and address: does it only read, is it free, does it make a model work.

An address may be spelled in many ways that a server takes for the same one: they are brought to one form here, and only
that form is compared. A request that is known neither as free nor as a model call is "something else"; its cost is
unknown.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import unquote

READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods that start no model call."""

ENCODED_TIMES: Final = 4
"""How often a path may be percent-encoded again; no server decodes it more often."""

FREE: Final = re.compile(
    r"/(files|uploads(/[^/]+/(parts|complete|cancel))?|moderations|messages/count_tokens|responses/input_tokens"
    r"|(responses|batches|messages/batches|fine_tuning/jobs)/[^/]+/cancel|models/[^/]+:counttokens)$"
)
"""Posts that cost nothing by themselves."""

THREAD_MESSAGE: Final = re.compile(r"/threads/[^/]+/messages$")
"""Adds a message to an assistant's thread; no model reads it before a run."""

GENERATING: Final = re.compile(
    r"/(completions?|complete|edits|infill|fim|responses|responses/compact|messages|embeddings?|rerank|ocr|predictions"
    r"|interactions|invocations|generate([_-]stream)?|api/(generate|chat|embed)|v\d+/(chat|embed|classify|summarize)"
    r"|(messages/)?batches|batch/jobs|images/(generations|edits|variations)|audio/(speech|transcriptions|translations)"
    r"|videos(/[^/]+/remix)?|realtime/(sessions|client_secrets|calls)|threads/([^/]+/)?runs(/[^/]+/submit_tool_outputs)?"
    r"|evals/[^/]+/runs|fine[-_]tun(es|ing/jobs)|async-invoke|model/.+/(invoke|converse)[a-z-]*|[^/]+:[a-z]+)$"
)
"""Posts that are model calls, at OpenAI, Anthropic, Bedrock (``/model/ID/invoke``), Vertex and Gemini (every
``NAME:method``), Ollama (``/api/chat``), Mistral, Cohere, Replicate, SageMaker, and servers like theirs."""

PROVIDERS: Final = re.compile(
    r"(?:.*\.)?(?:openai\.(?:com|azure\.com)|(?:services\.ai|cognitiveservices|inference\.ai)\.azure\.com|anthropic\.com"
    r"|claude\.com|amazonaws\.com|googleapis\.com|mistral\.ai|cohere\.(?:ai|com)|groq\.com|together\.(?:ai|xyz)|x\.ai"
    r"|deepseek\.com|openrouter\.ai|fireworks\.ai|perplexity\.ai|huggingface\.co|replicate\.com|cerebras\.ai"
    r"|moonshot\.(?:ai|cn)|minimax\.io|z\.ai|bigmodel\.cn|aliyuncs\.com|databricks\.com|sambanova\.ai|ai21\.com"
    r"|voyageai\.com|jina\.ai|nvidia\.com|fal\.run|novita\.ai|deepinfra\.com|ollama\.com|stability\.ai)\.?"
)
"""Hosts of known providers: what is posted there and is not known to be free bills something."""

Purpose = Literal["free", "generating", "other"]


def normal_path(path: str) -> str:
    """Return the one form of a path: decoded, in lower case, without empty, dotted or trailing parts."""
    for _ in range(ENCODED_TIMES):
        path, encoded = unquote(path), path
        if path == encoded:
            break
    names: list[str] = []
    for part in path.lower().replace("\\", "/").split("/"):
        name = re.split(r"[;?#]", part)[0].strip()
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def purpose_of(method: str, host: str, path: str) -> Purpose:
    """Return what a request is for.

    Args:
        method: Its method.
        host: The host that it goes to.
        path: Its path, however it is spelled.
    """
    normal = normal_path(path)
    if method.upper() in READING or FREE.search(normal):
        return "free"
    if THREAD_MESSAGE.search(normal):
        return "other"
    if GENERATING.search(normal) or PROVIDERS.fullmatch(host.lower()):
        return "generating"
    return "other"
