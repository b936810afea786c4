"""What a request is for, judged by its method and address: does it only read, is it free, does it make a model work.

An address may be spelled in many ways that a server takes for the same one: they are brought to one form here, and only
that form is compared. Servers read some spellings in different ways; such an address is never free, and is a model call
if one of the readings is. A request that is known neither as free nor as a model call is "something else"; its cost is
unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal
from urllib.parse import unquote

from watchkeeper.core.errors import ConfigurationError

READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods that start no model call."""

ENCODED_TIMES: Final = 4
"""How often a path may be percent-encoded again; no server decodes it more often."""

FREE: Final = re.compile(
    r"^(?!.*/vector_stores/[^/]+/files$).*/(files|uploads(/[^/]+/(parts|complete|cancel))?|moderations|messages/count_tokens|responses/input_tokens"
    r"|(responses|batches|messages/batches|fine_tuning/jobs)/[^/]+/cancel|models/[^/]+:counttokens)$"
)
"""Posts that cost nothing by themselves."""

THREAD_MESSAGE: Final = re.compile(r"/threads/[^/]+/messages$")
"""Adds a message to an assistant's thread; no model reads it before a run."""

GENERATING: Final = re.compile(
    r"/(completions?|complete|edits|infill|fim|responses|responses/compact|messages|embeddings?|rerank|ocr|predictions"
    r"|interactions|invocations|generate([_-]stream)?|api/(generate|chat|embed)|v\d+/(chat|embed|classify|summarize)"
    r"|(messages/)?batches|batch/jobs|images/(generations|edits|variations)|audio/(speech|transcriptions|translations)"
    r"|videos(/(extensions|characters|[^/]+/remix))?|threads/([^/]+/)?runs(/[^/]+/submit_tool_outputs)?"
    r"|realtime(/(?!calls/[^/]+/(hangup|refer|reject)$).*)?|chatkit/sessions|vector_stores/[^/]+/(file(s|_batches)|search)"
    r"|v\d+/(sessions(/[^/]+/events)?|deployments(/[^/]+/run)?|dreams)|evals/[^/]+/runs"
    r"|fine[-_]tun(es|ing/(jobs(/[^/]+/resume)?|alpha/graders/run))"
    r"|async-invoke|model/.+/(invoke|converse)[a-z-]*|[^/]+:[a-z]+)$"
)
"""Posts that make models work: at OpenAI, at Anthropic (its managed agents, too: sessions, deployments, dreams), at
Bedrock (``/model/ID/invoke``), Vertex and Gemini (every ``NAME:method``), Ollama (``/api/chat``), Mistral, Cohere,
Replicate, SageMaker, and servers like theirs."""

PROVIDERS: Final = re.compile(
    r"(?:.*\.)?(?:openai\.(?:com|azure\.com)|(?:services\.ai|cognitiveservices|inference\.ai)\.azure\.com|anthropic\.com"
    r"|claude\.com|amazonaws\.com|googleapis\.com|mistral\.ai|cohere\.(?:ai|com)|groq\.com|together\.(?:ai|xyz)|x\.ai"
    r"|deepseek\.com|openrouter\.ai|fireworks\.ai|perplexity\.ai|huggingface\.co|replicate\.com|cerebras\.ai"
    r"|moonshot\.(?:ai|cn)|minimax\.io|z\.ai|bigmodel\.cn|aliyuncs\.com|databricks\.com|sambanova\.ai|ai21\.com"
    r"|voyageai\.com|jina\.ai|nvidia\.com|fal\.run|novita\.ai|deepinfra\.com|ollama\.com|stability\.ai)\.?"
)
"""Hosts of known providers: what is posted there and is not known to be free bills something."""

PLAIN: Final = re.compile(
    r"(/(?!\.\.?(/|$))([a-z0-9_.~!$&'()*+,=:@-]|%(3[0-9a]|[46][1-9a-f]|[57][0-9a]|2d|5f|7e))*)*", re.IGNORECASE
)
"""Paths that all servers read alike: no parameters, no ``.`` or ``..`` parts, no encoded characters that split it."""

DIVIDES: Final = re.compile(r"[;?#\\\x00-\x20\x7f]")
"""Where some servers end a path, or a part of it."""

MOST_DIVISIONS: Final = 8
"""A path that can be read in more ways than this is taken for a model call."""

OVERRIDES: Final = ("x-http-method-override", "x-http-method", "x-method-override")
"""Headers that some servers take for the method."""

Purpose = Literal["free", "generating", "other"]

BY_COST: Final[tuple[Purpose, ...]] = ("free", "other", "generating")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a request goes, and what for.

    Attributes:
        method: Its method; the one that a header puts in its place, if that may do more.
        path: Its path as it is sent, percent-encoded.
        urls: Its address; a second one if it names another host to the server that it reaches.
        purpose: The purpose of the request.
    """

    method: str
    path: str
    urls: tuple[str, ...]
    purpose: Purpose


def address_of(request: Any) -> Address:
    """Return where an httpx request really goes.

    Raises:
        ConfigurationError: If it is to be sent to another path than its address has.
    """
    url, headers = request.url, request.headers
    target = request.extensions.get("target")
    if target is not None and target != url.raw_path:
        raise ConfigurationError(
            f"the request to {url} is to be sent to {target!r} (extensions={{'target': ...}}); put the path into the"
            " address, so that it can be judged"
        )
    path: str = url.raw_path.partition(b"?")[0].decode("latin-1")
    methods = [request.method.upper(), *(headers[name].strip().upper() for name in OVERRIDES if name in headers)]
    method = next((name for name in methods if name not in READING), methods[0])
    # Some servers serve any method alike, and nothing that is only read has a body. A websocket is a way to say more.
    if method in READING and ("upgrade" in headers or (_has_body(headers) and _may_generate(path))):
        method = "POST"
    host: str = url.raw_host.decode("latin-1").lower()
    named = headers.get("host", "").lower()  # a server that holds several hosts goes by this one
    other = re.sub(r":\d*$", "", named).strip("[]")
    if other in ("", host):
        return Address(method, path, (str(url),), purpose_of(method, host, path))
    purposes: list[Purpose] = [purpose_of(method, host, path), purpose_of(method, other, path)]
    urls = (str(url), f"{url.scheme}://{named}{url.raw_path.decode('latin-1')}")
    return Address(method, path, urls, max(purposes, key=BY_COST.index))


def _has_body(headers: Any) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def normal_path(path: str) -> str:
    """Return the one form of a path: decoded, in lower case, without empty, dotted or trailing parts."""
    names: list[str] = []
    for part in _decoded(path).lower().replace("\\", "/").split("/"):
        name = re.split(r"[;?#]", part)[0].strip()
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def _decoded(path: str) -> str:
    for _ in range(ENCODED_TIMES):
        path, encoded = unquote(path), path
        if path == encoded:
            break
    return path


def purpose_of(method: str, host: str, path: str) -> Purpose:
    """Return what a request is for.

    Args:
        method: Its method.
        host: The host that it goes to.
        path: Its path, however it is spelled; percent-encoded, as it is sent.
    """
    normal = normal_path(path)
    plain = PLAIN.fullmatch(path) is not None
    if method.upper() in READING or (plain and FREE.search(normal)):
        return "free"
    if plain and THREAD_MESSAGE.search(normal):
        return "other"
    if _may_generate(path) or PROVIDERS.fullmatch(host.lower()):
        return "generating"
    return "other"


def _may_generate(path: str) -> bool:
    """Return whether a path is that of a model call in one of the ways in which servers read it."""
    if GENERATING.search(normal_path(path)):
        return True
    decoded = _decoded(path)
    ends = [found.start() for found in islice(DIVIDES.finditer(decoded), MOST_DIVISIONS + 1)]
    return len(ends) > MOST_DIVISIONS or any(GENERATING.search(normal_path(decoded[:end])) for end in ends)
