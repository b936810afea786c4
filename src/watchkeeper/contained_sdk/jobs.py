"""Answers that are not final yet: background jobs, and stored answers whose stream broke.

The call that started a job is over and charged with all that was reserved for it; the provider still works and bills,
or has billed an answer that was not received. When the answer is retrieved inside the block, its real cost is known,
and the charge is corrected, once. An answer that is never retrieved stays charged. Nothing here sends.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from watchkeeper.adapters.reply_bounds import (
    MOST_EVENT_BYTES,
    MOST_STREAM_BYTES,
    MOST_WHOLE_BYTES,
    BodyBounds,
    RefusedBodyError,
    encoding_of,
)
from watchkeeper.adapters.wire import Wire
from watchkeeper.contained_sdk.reading import Seen, StreamReader, read_whole

KEPT_JOBS: Final = 10_000
"""How many jobs a block remembers; an older one stays charged as it is."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that is to come.

    Attributes:
        wire: The interface that it comes in.
        correct: Replaces what was charged by what the answer tells.
        origin: Where it was begun (`server_of`); what another server says about it changes nothing.
    """

    wire: Wire
    correct: Callable[[Seen], object]
    origin: str


def server_of(url: Any) -> str:
    """Return scheme, host and port of an httpx address."""
    return f"{url.scheme}://{url.netloc.decode('latin-1')}"


class Jobs:
    """The jobs of a block, and of the blocks inside it, by the id under which the provider keeps their answers."""

    def __init__(self) -> None:
        """Start without jobs."""
        self._jobs: dict[str, Job] = {}
        self._changing = threading.RLock()  # a finaliser may come in here in the middle

    def add(self, response_id: str, job: Job) -> None:
        """Remember a job."""
        with self._changing:
            self._jobs[response_id] = job
            if len(self._jobs) > KEPT_JOBS:
                self._jobs.pop(next(iter(self._jobs)), None)

    def asked_for(self, path: str, origin: str) -> Retrieval | None:
        """Return what reads the answer to a request, if its path names a job (``.../ID`` or ``.../ID/cancel``)."""
        if not self._jobs:
            return None
        names = path.rstrip("/").rsplit("/", 2)[-2:]
        found = next((name for name in reversed(names) if name in self._jobs), None)
        job = None if found is None else self._jobs.get(found)
        return None if found is None or job is None or job.origin != origin else Retrieval(self, found, job)

    def learn(self, response_id: str, seen: Seen) -> None:
        """Correct a job's charge, if these are its final counts and it was not corrected before."""
        with self._changing:
            job = None if seen.usage is None else self._jobs.pop(response_id, None)
        if job is not None:
            job.correct(seen)


class Retrieval:
    """Reads, while it passes, the answer to a request for a job, whole or streamed."""

    def __init__(self, jobs: Jobs, response_id: str, job: Job) -> None:
        """Wait for the answer."""
        self._jobs = jobs
        self._id = response_id
        self._job = job
        self._stream: StreamReader | None = None
        self._whole: list[bytes] = []
        self._bounds: BodyBounds | None = BodyBounds(MOST_WHOLE_BYTES, "")

    def response(self, httpx: Any, response: Any, *, streams: bool) -> Any:
        """Return a response like the provider's, whose body is read while it passes."""
        if response.status_code >= 400 or encoding_of(response):
            return response
        if streams:
            self._stream = StreamReader(self._job.wire, hide_usage=False)
            self._bounds = BodyBounds(MOST_STREAM_BYTES, "", MOST_EVENT_BYTES)
        stream = stream_class(ReadStream, httpx)
        parts = {"headers": response.headers, "extensions": response.extensions}
        return httpx.Response(response.status_code, stream=stream(response.stream, self), **parts)

    def feed(self, chunk: bytes) -> None:
        """Take in bytes; nothing more once they are too many to be an answer, which the caller gets all the same."""
        try:
            for piece in () if self._bounds is None else self._bounds.decoded(chunk):
                self._take(piece)
        except RefusedBodyError:
            self._bounds = None
            self._whole.clear()

    def _take(self, piece: bytes) -> None:
        if self._stream is None:
            self._whole.append(piece)
            return
        self._stream.feed(piece)
        self._jobs.learn(self._id, self._stream.seen)

    def end(self) -> None:
        """Take note that this was all."""
        if self._bounds is None:
            return
        if self._stream is None:
            self._jobs.learn(self._id, read_whole(self._job.wire, b"".join(self._whole)))
        else:
            self._stream.finish()
            self._jobs.learn(self._id, self._stream.seen)


@cache
def stream_class(ours: type, httpx: ModuleType) -> Any:
    """Return one of our stream classes as a subclass of the stream classes of an httpx module."""
    return type(ours.__name__, (ours, httpx.SyncByteStream, httpx.AsyncByteStream), {})


class ReadStream:
    """The body of a response, mixed with httpx's own stream classes, that is read while it passes."""

    def __init__(self, stream: Any, retrieval: Retrieval) -> None:
        """Pass a stream on."""
        self._stream = stream
        self._retrieval = retrieval

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._retrieval.feed(chunk)
            yield chunk
        self._retrieval.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._retrieval.feed(chunk)
            yield chunk
        self._retrieval.end()

    def close(self) -> None:
        """Close the stream of plain code."""
        self._stream.close()

    async def aclose(self) -> None:
        """Close the stream of async code."""
        await self._stream.aclose()
