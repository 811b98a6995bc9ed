"""Health and metrics over HTTP: `/healthz` for whoever restarts stages, `/metrics` for Prometheus. Read-only.

A request is read up to its first line and answered with what is true now; then the connection is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import attrs

REQUEST_BYTES_MAX = 4_096
REQUEST_S = 5.0
CONNECTIONS_MAX = 64

_METRICS = {
    # name: (type, where it stands in the status, what it is)
    "ready": ("gauge", ("ready",), "Whether requests are taken."),
    "clients": ("gauge", ("clients",), "Clients at home at this stage."),
    "connections": ("gauge", ("connections",), "Connections in all."),
    "rejected_connections_total": ("counter", ("rejected_connections",), "Connections that were not let in."),
    "topics": ("gauge", ("topics",), "Topics whose numbers are given here."),
    "subscriptions": ("gauge", ("subscriptions",), "Subscriptions that hold topics of this stage."),
    "sessions": ("gauge", ("sessions",), "Clients whose requests are remembered."),
    "pending_requests": ("gauge", ("pending",), "Requests under way."),
    "unacknowledged_frames": ("gauge", ("outbox",), "Frames that other stages have not acknowledged."),
    "requests_total": ("counter", ("since_start", "requests"), "Requests that clients at home sent."),
    "refusals_total": ("counter", ("since_start", "refusals"), "Requests that rights or limits refused."),
    "events_total": ("counter", ("since_start", "events"), "Events that were numbered and are complete."),
    "changes_total": ("counter", ("since_start", "changes"), "Changes of subscriptions that are complete."),
    "commits_total": ("counter", ("since_start", "commits"), "Batches that were written to the store."),
    "commit_seconds_total": ("counter", ("since_start", "commit_s"), "How long writing them took."),
}


def metrics(status: dict[str, Any]) -> str:
    """A stage's status as Prometheus reads it."""
    lines: list[str] = []
    label = json.dumps(status["stage"])
    for name, (kind, path, words) in _METRICS.items():
        value: Any = status
        for key in path:
            value = value[key]
        full = f"ordered_pubsub_{name}"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}", f"{full}{{stage={label}}} {float(value):g}"]
    lines += ["# HELP ordered_pubsub_link_up Whether the link to another stage is there."]
    lines += ["# TYPE ordered_pubsub_link_up gauge"]
    for peer, state in status["links"].items():
        lines.append(f"ordered_pubsub_link_up{{stage={label},peer={json.dumps(peer)}}} {int(state == 'up')}")
    return "\n".join(lines) + "\n"


@attrs.define(eq=False)
class Monitoring:
    """The HTTP listener of one stage."""

    status: Callable[[], dict[str, Any]]
    _server: asyncio.Server | None = None
    _connections: int = 0

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                line = await asyncio.wait_for(reader.readline(), REQUEST_S)
                writer.write(self._answer(line.split()))
                await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # whoever asked that way gets no answer
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, words: list[bytes]) -> bytes:
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("400 Bad Request", "text/plain", "expected GET /healthz or GET /metrics\n", False)
        path, with_body = words[1].partition(b"?")[0], words[0] == b"GET"
        found = self.status()
        if path == b"/metrics":
            return _response("200 OK", "text/plain; version=0.0.4", metrics(found), with_body)
        if path == b"/healthz":
            state = "200 OK" if found["ready"] else "503 Service Unavailable"
            return _response(state, "application/json", json.dumps(found, indent=2) + "\n", with_body)
        return _response("404 Not Found", "text/plain", "there are /healthz and /metrics\n", with_body)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()


def _response(status: str, content_type: str, text: str, with_body: bool) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
