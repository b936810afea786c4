"""The engine's own process: llama.cpp's server, until standard input closes. Run as a script, never imported.

It imports nothing of Watchkeeper, so that it starts fast and the file can be run by its path. It says its address and
its key once, as one line of JSON on standard output; all output of the engine goes to standard error, which is a log
file. It ends when its parent ends, however that happens: the pipe on standard input closes, or the parent's id changes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets  # noqa: TID251  # the key that guards the port is a secret, not an id
import signal
import sys
import threading
import urllib.request
from typing import Any

PARENT_CHECK_SECONDS = 1.0
SLOTS = 2
NEWLINES = ("\n", "\n\n", "{\n", "[\n", ",\n")


def main() -> None:
    """Serve the model that the one argument, a JSON object, describes."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    parent = os.getppid()
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Ctrl-C belongs to the parent: it lands its run, and needs the model for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = secrets.token_hex(16)
    server = start_server(options, key)
    url: str = server.listening_address
    with report:
        report.write(json.dumps({"url": url, "key": key, "newlines": newline_tokens(url, key)}) + "\n")
    wait_for_parent(parent)
    with contextlib.suppress(OSError):
        os.unlink(options["log"])
    # Skips the engine's destructors: they would first finish an answer that is no longer needed.
    os._exit(0)


def start_server(options: dict[str, Any], key: str) -> Any:
    """Load the model and listen on a free port of the loopback interface."""
    # Read when the library is loaded. By default OpenMP threads spin while they wait, and on a busy machine a model
    # becomes eight times slower.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["GOMP_SPINCOUNT"] = "3000"
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]}
    # Two conversations that take turns in one slot would each evict the other's cache, except for their common prefix.
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * options["context"]
    params.kv_unified = False
    params.cpuparams.n_threads = options["threads"]
    # Weights stay as they are in the file, which processes share through mmap, instead of a private repacked copy:
    # 0.6 GB less memory, half the time to start, prompts a sixth faster, replies a sixth slower.
    params.no_extra_bufts = True
    # A dropped request is noticed between two batches: 2048 tokens, the default, are half a minute of a prompt.
    params.n_batch = params.n_ubatch = 128
    # A dry run of loading, to fit the model to a card's memory: half a second, and here is no card.
    params.fit_params = False
    # Conversations that were pushed out by others are kept for their return, by default in as much as 8 GB.
    params.cache_ram_mib = 512
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.verbosity = 1
    return xllamacpp.Server(params)


def newline_tokens(url: str, key: str) -> list[int]:
    """Return the tokens that begin an indented line of JSON, as far as they are single tokens of this model."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    found: list[int] = []
    for text in NEWLINES:
        request = urllib.request.Request(f"{url}/tokenize", json.dumps({"content": text}).encode(), headers)
        with opener.open(request) as response:
            tokens: list[int] = json.load(response)["tokens"]
        if len(tokens) == 1:
            found += tokens
    return found


def wait_for_parent(parent: int) -> None:
    """Return when standard input closes or the parent is gone; a fork of the parent may hold the pipe open."""
    closed = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        closed.set()

    threading.Thread(target=read, daemon=True).start()
    while not closed.wait(PARENT_CHECK_SECONDS):
        if os.getppid() != parent:
            return


if __name__ == "__main__":
    main()
