"""What the bundled model costs on this machine: start, prompt and reply speed, cache, cancellation, end, memory.

One engine, through the adapter that a run uses. Nothing is compared: the figures are the machine's. Run with
``python -m benchmarks.local_model``; needs the model's packages (``make run`` installs them).
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from watchkeeper.core.messages import Transcript, UserMessage
from watchkeeper.core.model import ModelReply, ModelRequest, OutputSchema
from watchkeeper.local.files import bundled_model_file
from watchkeeper.local.model import LocalModel
from watchkeeper.local.server import EngineOptions, LocalServer, default_threads

NOTE = " ".join(
    f"Lamp {number} costs {number * 37 % 91} euros and weighs {number * 13 % 29} kilos." for number in range(40)
)
RECORD = OutputSchema(
    "Record",
    {
        "type": "object",
        "properties": {"lamp": {"type": "integer"}, "why": {"type": "string", "maxLength": 200}},
        "required": ["lamp", "why"],
    },
)


async def timed(model: LocalModel, request: ModelRequest) -> tuple[ModelReply, float]:
    """Return a reply and how many seconds it took."""
    began = time.perf_counter()
    reply = await model.turn(request)
    return reply, time.perf_counter() - began


async def cancelled(model: LocalModel, seconds: float) -> float:
    """Drop a long turn after a while and return how long the next one waits for the engine, in seconds."""
    turn = asyncio.create_task(model.turn(ModelRequest(Transcript([UserMessage.of("A story: " + NOTE * 3)]))))
    await asyncio.sleep(seconds)
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    short = ModelRequest(Transcript([UserMessage.of("Hi")]), max_output_tokens=1)
    return (await timed(model, short))[1]


async def turns() -> None:
    """Measure turns of one conversation and of fresh ones."""
    model = LocalModel()
    hello, first = await timed(model, ModelRequest(Transcript([UserMessage.of("Hi")]), max_output_tokens=8))
    print(f"first answer, engine started          {first:8.2f} s   ({hello.model})")
    talk = Transcript([UserMessage.of(NOTE)])
    read, prompt = await timed(model, ModelRequest(talk, max_output_tokens=1))
    print(f"prompt                                {read.usage.input_tokens / prompt:8.1f} tokens/s")
    talk.append(read.message)
    talk.append(UserMessage.of("Tell a story about the lamps."))
    told, telling = await timed(model, ModelRequest(talk, max_output_tokens=128))
    cached, known = told.usage.cached_tokens, told.usage.input_tokens
    print(f"reply, {cached} of {known} prompt tokens cached {told.usage.output_tokens / telling:8.1f} tokens/s")
    fresh = ModelRequest(Transcript([UserMessage.of("Which lamp is best? " + NOTE[:400])]), output=RECORD)
    record, filing = await timed(model, fresh)
    print(f"typed record, {record.usage.output_tokens} tokens               {filing:8.2f} s   {record.message.text}")
    print(f"next turn after a cancelled one       {await cancelled(model, 1.0):8.2f} s")
    await model.close()


def process() -> None:
    """Measure the engine's process by itself."""
    began = time.perf_counter()
    path = bundled_model_file()
    print(f"model file                            {time.perf_counter() - began:8.2f} s")
    server = LocalServer(EngineOptions(str(path), "bench", 8192, default_threads()))
    began = time.perf_counter()
    address = server.ensure()
    print(f"engine ready                          {time.perf_counter() - began:8.2f} s")
    status = Path(f"/proc/{address.pid}/status")
    if status.exists():
        sizes = dict(line.split(":", 1) for line in status.read_text().splitlines())
        shared = int(sizes["RssFile"].split()[0]) / 1e6
        print(f"memory, of which shared               {int(sizes['VmRSS'].split()[0]) / 1e6:8.2f} GB  {shared:.2f} GB")
    began = time.perf_counter()
    server.close()
    print(f"engine gone                           {time.perf_counter() - began:8.2f} s")


if __name__ == "__main__":
    process()
    asyncio.run(turns())
    sys.exit(0)
