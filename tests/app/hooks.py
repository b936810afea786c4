"""An address on this machine that takes notices, and answers as it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Hook:
    """A server that remembers what was posted to it."""

    def __init__(self, status: int = 200) -> None:
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.methods: list[str] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def _take(self) -> None:
                hook.methods.append(self.command)
                hook.paths.append(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                if length:
                    hook.got.append(json.loads(self.rfile.read(length)))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_GET = _take  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/T0123/secret-path"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
