"""An engine that knows no model: it plays the script that its "model file" holds after the GGUF magic.

The script is JSON: ``start`` (``fail``, ``hang`` or ``garbage`` instead of serving), ``replies`` (in order; a text, or
``{"die": true}``, ``{"wait": true}``, ``{"status": ..., "error": ...}``, ``{"text": ..., "finish": ...}``) and
``requests``, a file to which every request is written as a line. Whatever else the real engine promises (the first
line, the key, the end with standard input) it does in the same way, by the real engine's own functions.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "fake-key"


class Handler(BaseHTTPRequestHandler):
    script: dict[str, Any]
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})
            return
        self.note({"path": self.path, "connection": self.headers["Connection"], **body})
        with self.lock:
            scripted: Any = self.script["replies"].pop(0)
        reply: dict[str, Any] = {"text": scripted} if isinstance(scripted, str) else scripted
        if reply.get("die"):
            sys.stderr.write("ggml: fatal error: out of luck\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        elif reply.get("wait"):
            select.select([self.connection], [], [])
            self.note({"dropped": True})
        elif "status" in reply:
            self.answer(reply["status"], {"error": reply["error"]})
        elif body.get("stream"):
            self.stream(body["model"], reply)
        else:
            self.answer(200, completion(body["model"], reply))

    def note(self, what: dict[str, Any]) -> None:
        with self.lock, Path(self.script["requests"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    def answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, model: str, reply: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        text = reply["text"]
        for start in range(0, len(text), 3):
            self.event({"model": model, "choices": [{"index": 0, "delta": {"content": text[start : start + 3]}}]})
        whole = completion(model, reply)
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}
        self.event({"model": model, "choices": [choice]})
        self.event({"model": model, "choices": [], "usage": whole["usage"]})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def completion(model: str, reply: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply["text"]},
                "finish_reason": reply.get("finish", "stop"),
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 5,
            "total_tokens": 25,
            "prompt_tokens_details": {"cached_tokens": 12},
        },
    }


def main() -> None:
    parent = os.getppid()
    options = json.loads(sys.argv[1])
    script = json.loads(Path(options["model"]).read_bytes()[4:])
    sys.stdout.write("noise of the engine\n") if script.get("start") == "garbage" else None
    if script.get("start") == "fail":
        sys.exit("llama_model_load: error loading model: not this one")
    if script.get("start") == "hang":
        threading.Event().wait()
    Handler.script = script
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "key": KEY, "newlines": [7, 8]}), flush=True)
    real_engine().wait_for_parent(parent)
    os.unlink(options["log"])
    os._exit(0)


def real_engine() -> Any:
    path = Path(__file__).parents[2] / "src" / "watchkeeper" / "local" / "engine.py"
    spec = importlib.util.spec_from_file_location("engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
