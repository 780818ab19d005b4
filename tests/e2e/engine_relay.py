"""A server before a simulated engine that leaves out, refuses or delays what it is told."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_WAIT_S = 60.0


@dataclass
class Behaviour:
    """``chats_max``: behind so many it answers 503. ``key``: what it wants to see."""

    engine: str
    reports_cached: bool = True
    has_metrics: bool = True
    takes_salts: bool = True
    chats_max: int = 10**6
    delay_s: float = 0.0
    key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    behaviour: Behaviour


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path == "/metrics" and not self.server.behaviour.has_metrics:
            return self._answer(404, b"{}")
        with urllib.request.urlopen(
            self.server.behaviour.engine + self.path, timeout=_WAIT_S
        ) as response:
            self._answer(200, response.read())

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if self._refused():
            return
        body = json.loads(text)
        self.server.behaviour.bodies.append(body)
        self.server.behaviour.headers.append(dict(self.headers))
        time.sleep(self.server.behaviour.delay_s)
        if "cache_salt" in body and not self.server.behaviour.takes_salts:
            return self._error(400, "cache_salt is not supported")
        if len(self.server.behaviour.bodies) > self.server.behaviour.chats_max:
            return self._error(503, "out of service")
        request = urllib.request.Request(self.server.behaviour.engine + self.path, text)
        try:
            with urllib.request.urlopen(request, timeout=_WAIT_S) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            return self._answer(error.code, error.read())
        self._answer(
            200, answer if self.server.behaviour.reports_cached else without_details(answer)
        )

    def _refused(self) -> bool:
        wanted = self.server.behaviour.key and f"Bearer {self.server.behaviour.key}"
        if wanted and self.headers.get("Authorization") != wanted:
            self._error(401, "Unauthorized")
            return True
        return False

    def _error(self, status: int, message: str) -> None:
        self._answer(status, json.dumps({"error": {"message": message}}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def relayed(behaviour: Behaviour) -> Iterator[str]:
    """Its URL."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.behaviour = behaviour
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def without_details(answer: bytes) -> bytes:
    """As vLLM answers that is started without --enable-prompt-tokens-details."""
    lines = []
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event.get("usage"):
                event["usage"]["prompt_tokens_details"] = None
            line = b"data: " + json.dumps(event).encode()
        lines.append(line)
    return b"\n".join(lines)
