"""Health and metrics over HTTP: `/healthz` for whoever restarts stages, `/metrics` for Prometheus. Read-only.

A request is read up to the end of its head and answered with what is true now, or was a moment ago: looking costs a stage
something, so it is not looked as often as somebody asks. Then the connection is closed.

Whoever reaches the address learns whether the stage is ready, and why not; how it is in detail is for who shows a token with the
right `administer` (`Authorization: Bearer …`). A request that does not come to its end makes room for newer ones, first of all
for others than its own sender's: so a health check is answered whoever leaves how many requests half.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import attrs

from ordered_pubsub.errors import UnavailableError

REQUEST_BYTES_MAX = 8_192
REQUEST_S = 5.0
CONNECTIONS_MAX = 256
CONNECTIONS_PER_ADDRESS_MAX = 128
FRESH_S = 0.25
_BEARER = b"bearer "
_HEAD_ENDS = re.compile(rb"\r?\n\r?\n")

_METRICS = {
    # name: (where it stands in the status, what it is); what is a total is a counter, all else a gauge
    "ready": ("ready", "Whether requests are taken."),
    "clients": ("clients", "Clients at home at this stage."),
    "connections": ("connections", "Connections in all."),
    "rejected_connections_total": ("rejected_connections", "Connections that were not let in."),
    "topics": ("topics", "Topics whose numbers are given here."),
    "subscriptions": ("subscriptions", "Subscriptions that hold topics of this stage."),
    "sessions": ("sessions", "Clients whose requests are remembered."),
    "pending_requests": ("pending", "Requests under way."),
    "unacknowledged_frames": ("outbox", "Frames that other stages have not acknowledged."),
    "requests_total": ("since_start.requests", "Requests that clients at home sent."),
    "refusals_total": ("since_start.refusals", "Requests of clients at home that were refused, by whatever stage."),
    "events_total": ("since_start.events", "Events that were numbered and are complete."),
    "changes_total": ("since_start.changes", "Changes of subscriptions that are complete."),
    "reminders_total": (
        "since_start.reminders",
        "Times that a home stage was told that its clients have not acknowledged all of a topic: the ENS brings it late, or not.",
    ),
    "recalls_total": ("since_start.recalls", "Questions of home stages for what their clients miss."),
    "recalled_numbers_total": ("since_start.recalled_numbers", "Numbers that these asked for."),
    "dropped_total": ("since_start.dropped", "What was not taken on, since its identity had too much waiting."),
    "unfit_messages_total": (
        "since_start.unfit_messages",
        "Messages of other stages that cannot be, and were dropped.",
    ),
    "topics_behind": (
        "behind",
        "Topics that a client says to have more of than was given here: an older copy of the store, or a client that lies.",
    ),
    "healed_total": (
        "healed",
        "Times that something met an error that nobody had thought of, and was begun again: the log says which.",
    ),
    "commits_total": ("since_start.commits", "Batches that were written to the store."),
    "commit_seconds_total": ("since_start.commit_s", "How long writing them took."),
}
_NOT_ARRIVED = "ordered_pubsub_not_arrived_total"


def metrics(status: dict[str, Any]) -> str:
    """A stage's status as Prometheus reads it."""
    lines: list[str] = []
    label = json.dumps(status["stage"])
    for name, (path, words) in _METRICS.items():
        value: Any = status
        for key in path.split("."):
            value = value[key]
        full, kind = f"ordered_pubsub_{name}", "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}", f"{full}{{stage={label}}} {_number(value)}"]
    lines += ["# HELP ordered_pubsub_link_up Whether the link to another stage is there."]
    lines += ["# TYPE ordered_pubsub_link_up gauge"]
    for peer, state in status["links"].items():
        lines.append(f"ordered_pubsub_link_up{{stage={label},peer={json.dumps(peer)}}} {int(state == 'up')}")
    lines += [f"# HELP {_NOT_ARRIVED} What the broker brought to clients here and was not believed, as they say."]
    lines += [f"# TYPE {_NOT_ARRIVED} counter"]
    for cause, count in status["since_start"]["not_arrived"].items():
        lines.append(f"{_NOT_ARRIVED}{{stage={label},cause={json.dumps(cause)}}} {count}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """As it is: a counter that is rounded would stand still."""
    return str(int(value)) if isinstance(value, (bool, int)) else repr(value)


@attrs.define(eq=False)
class Monitoring:
    """The HTTP listener of one stage."""

    status: Callable[[], dict[str, Any]]
    """how the stage is, in detail"""
    health: Callable[[], dict[str, Any]]
    """what everybody may know: which stage it is, whether it is ready, and why not"""
    may_see: Callable[[str], bool] = attrs.field(default=lambda _: False)
    """whether who shows this token may see the details"""
    _server: asyncio.Server | None = None
    _serving: dict[asyncio.StreamWriter, str] = attrs.field(factory=dict)
    """connections with their addresses, the oldest first"""
    _seen: dict[str, Any] = attrs.field(factory=dict)
    _seen_at: float = 0.0

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnavailableError(
                f"health and metrics cannot be served at {host}:{port}: {reason}; change `http`"
            ) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._make_room(address)
        self._serving[writer] = address
        try:
            head = await asyncio.wait_for(_read_head(reader), REQUEST_S)
            if not head:
                writer.transport.abort()
                return
            writer.write(self._answer(head.split(b"\n", 1)[0].split(), _token_in(head)))
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), REQUEST_S)
        except (OSError, EOFError, asyncio.TimeoutError):
            writer.transport.abort()  # whoever asks that way gets no answer
        finally:
            self._serving.pop(writer, None)

    def _make_room(self, address: str) -> None:
        """Give up the oldest request that is not answered yet, if there are too many: of this address, or of any."""
        same = [writer for writer, other in self._serving.items() if other == address]
        if len(same) >= CONNECTIONS_PER_ADDRESS_MAX:
            oldest = same[0]
        elif len(self._serving) >= CONNECTIONS_MAX:
            oldest = next(iter(self._serving))
        else:
            return
        del self._serving[oldest]
        oldest.transport.abort()

    def _look(self) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        if not self._seen or now - self._seen_at > FRESH_S:
            self._seen, self._seen_at = self.status(), now
        return self._seen

    def _answer(self, words: list[bytes], token: str) -> bytes:
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("400 Bad Request", "text/plain", "expected GET /healthz or GET /metrics\n", False)
        path, with_body = words[1].partition(b"?")[0], words[0] == b"GET"
        if path == b"/metrics":
            return _response("200 OK", "text/plain; version=0.0.4", metrics(self._look()), with_body)
        if path == b"/healthz":
            if token and not self.may_see(token):
                return _response("401 Unauthorized", "text/plain", "no token with the right 'administer'\n", with_body)
            found = self._look() if token else self.health()
            state = "200 OK" if found["ready"] else "503 Service Unavailable"
            return _response(state, "application/json", json.dumps(found, indent=2) + "\n", with_body)
        return _response("404 Not Found", "text/plain", "there are /healthz and /metrics\n", with_body)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._serving):
            writer.transport.abort()


def _token_in(head: bytes) -> str:
    """The token that a request shows; empty if it shows none."""
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        value = value.strip()
        if name.strip().lower() == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip().decode("ascii", "replace")
    return ""


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of a request; nothing if it is none. (An error would keep its whole task in memory, in a circle.)"""
    head = b""
    while not _HEAD_ENDS.search(head):
        piece = await reader.read(REQUEST_BYTES_MAX)
        head += piece
        if not piece or len(head) > REQUEST_BYTES_MAX:
            return b""
    return head


def _response(status: str, content_type: str, text: str, with_body: bool) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
