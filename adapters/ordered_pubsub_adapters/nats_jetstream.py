"""Requests to JetStream, and one client at a time among all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import uniform
from typing import Any

import msgspec

from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_wire import plain, status_of

TURN_S = 30.0
"""How long a client waits for its turn."""
TURN_PAUSE_S = 0.05
TURN_MAX_S = 10
"""After so long a turn is over, in any case."""

SECOND_NS = 10**9

NO_RESPONDERS = b"503"
NO_STREAM = 10059
NAME_TAKEN = 10058
SUBJECT_TAKEN = 10065
TURN_IS_TAKEN = 10077
"""a stream that must not have more messages has as many"""
NOT_ENABLED = (10039, 10076)
"""JetStream is switched off for the account, or on the server"""


class JetStreamError(AdapterError):
    """The server refused a request to JetStream."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


async def ask(connection: Connection, call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask JetStream; returns its answer or raises why it refused."""
    payload = b"" if request is None else msgspec.json.encode(request)
    headers, data = await connection.request(f"$JS.API.{call}", payload)
    if status_of(headers).startswith(NO_RESPONDERS):
        raise _no_jetstream(connection, "nobody answers its requests")
    return _read(connection, call, data)


def _read(connection: Connection, call: str, data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(data)
    error = answer.get("error")
    if error is None:
        return answer
    if error.get("err_code") in NOT_ENABLED:
        raise _no_jetstream(connection, error.get("description"))
    raise JetStreamError(
        f"{connection.url.shown}: JetStream refused {call}: {error.get('description')} (error {error.get('err_code')})",
        error.get("err_code", 0),
    )


def _no_jetstream(connection: Connection, reason: object) -> AdapterError:
    return connection.error(
        f"the server has no JetStream for this user ({reason}); start it with -js (jetstream in its configuration), or leave "
        "?jetstream= out"
    )


@asynccontextmanager
async def turn(connection: Connection, name: str) -> AsyncIterator[None]:
    """For as long as no other client has its turn under this name.

    A stream of its own has room for one message, which is refused to all others, and which goes when its time is over: so a
    client that dies holds up nobody for long.
    """
    stream, subject = f"{name}_TURN", f"$ordered_pubsub.turn.{name}"
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + TURN_S
    while (sequence := await _take_turn(connection, stream, subject)) is None:
        if loop.time() > give_up_at:
            raise connection.error(f"others kept changing stream {name!r} for {TURN_S:g} s; look at stream {stream!r}")
        await asyncio.sleep(uniform(0, TURN_PAUSE_S))
    try:
        yield
    finally:
        payload = msgspec.json.encode({"seq": sequence})
        connection.send(plain(f"$JS.API.STREAM.MSG.DELETE.{stream}", payload=payload))


async def _take_turn(connection: Connection, stream: str, subject: str) -> int | None:
    """Our message's sequence, None if it is not our turn."""
    headers, data = await connection.request(subject)
    with _ignoring(TURN_IS_TAKEN, NAME_TAKEN, SUBJECT_TAKEN):
        if not status_of(headers).startswith(NO_RESPONDERS):
            return int(_read(connection, subject, data)["seq"])
        rules = {"max_msgs": 1, "discard": "new", "max_age": TURN_MAX_S * SECOND_NS, "duplicate_window": SECOND_NS}
        request = {"name": stream, "subjects": [subject], "storage": "memory", **rules}
        await ask(connection, f"STREAM.CREATE.{stream}", request)
    return None


@contextmanager
def _ignoring(*codes: int) -> Iterator[None]:
    """Of these errors, it is enough that they happened: somebody else was quicker."""
    try:
        yield
    except JetStreamError as error:
        if error.code not in codes:
            raise
