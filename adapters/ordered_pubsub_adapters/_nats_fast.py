"""What is quicker than nats-py, and stops reading while nobody takes what came: used if it passes a check, else nats-py alone.

    HPUB subject [reply] header-bytes all-bytes CRLF header-block payload CRLF

nats-py makes each command in a coroutine of its own, and for each message that comes an object, a queue and a task's turn. Here
a batch becomes one write, and a message is read where it comes in (`_process_msg`). While that has not returned, nats-py reads
nothing: so a slow consumer is felt by the server, where nats-py alone would drop messages.

None of this is part of nats-py's interface. So before it is used, it talks once, over a socket of this machine, to a server that
knows what is to be said (`is_fit`). The same talk shows that no password is sent without encryption (`_nats_client`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import attrs

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters._nats_client import NatsClient
from ordered_pubsub_adapters._nats_headers import BEGIN, STATUS, header_block
from ordered_pubsub_adapters.base import NamedFrames, in_time
from ordered_pubsub_adapters.headers import header_from_text

_log = logging.getLogger(__name__)

CHECK_S = 5.0
OF_STREAM = b"$JS.ACK."
"""How the reply subject of a stream's message begins."""
Headers = Mapping[str, bytes | str]
MessageHandler = Callable[[str, str, Headers, bytes], None]
"""Takes a message's subject, reply subject, headers and payload."""


def read_block(block: bytes) -> dict[str, bytes | str]:
    """The headers of a block, ours or a plain client's. Lines that are none are left out; of equal names the last one counts."""
    first, *lines = block.decode("utf-8", "replace").split("\r\n")
    headers: dict[str, bytes | str] = {}
    if status := first[len(BEGIN) :].strip():
        headers[STATUS] = status.partition(" ")[0]
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[unquote(name) if "%" in name else name] = header_from_text(value.strip())
    return headers


def command(subject: str, reply: str, frame: Frame) -> bytes:
    """What publishes a frame, with a reply subject if it is not empty."""
    to, size = f"{subject} {reply} " if reply else f"{subject} ", len(frame.payload)
    if not frame.headers:
        return b"%b%b\r\n" % (f"PUB {to}{size}\r\n".encode(), frame.payload)
    block = header_block(frame.headers)
    head = f"HPUB {to}{len(block)} {len(block) + size}\r\n{block}"
    return b"%b%b\r\n" % (head.encode(), frame.payload)


class FastClient(NatsClient):
    """nats-py's client, with messages read and written here."""

    def __init__(
        self, is_encrypted: bool, on_message: MessageHandler, subjects: Mapping[bytes, Any], inbox: str
    ) -> None:
        super().__init__(is_encrypted)
        self._on_message = on_message
        """is given what comes on these subjects, below this inbox, and of a stream"""
        self._subjects, self._inbox = subjects, inbox.encode()
        self._unsent: list[bytes] = []
        self.room = asyncio.Event()
        """while it is not set, nothing is read"""
        self.room.set()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if subject in self._subjects or reply.startswith(OF_STREAM) or subject.startswith(self._inbox):
            self.heard += 1
            self._on_message(subject.decode(), reply.decode(), read_block(headers) if headers else {}, data)
            if not self.room.is_set():
                await self.room.wait()
        else:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]  # it may be None

    def write(self, frames: NamedFrames, replies: Sequence[str] = ()) -> None:
        """Publish at the end of this turn of the loop, each with its reply subject, if there are any."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.write_out)
        if replies:
            self._unsent += [command(name, reply, frame) for (name, frame), reply in zip(frames, replies, strict=True)]
        else:
            self._unsent += [command(name, "", frame) for name, frame in frames]

    def write_out(self) -> None:
        """Write what waits for that; a `flush` is behind it."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and self.is_connected:
            self._transport.write(b"".join(unsent))


# -- the check --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Fitness:
    """What was found of the nats-py that is installed."""

    is_fast: bool
    """the fast client can be used"""
    is_safe: bool
    """no password is sent without encryption"""


_found: list[Fitness] = []


async def fitness() -> Fitness:
    """What can be relied on; found out once, and logged if it is not all."""
    if not _found:
        found = Fitness(await _passes(_talk), await _passes(_refuse))
        if not found.is_fast:
            _log.warning("nats-py %s is used without what is fast, since its inside is another one", version("nats-py"))
        _found.append(found)
    return _found[0]


async def _passes(check: Callable[[], Any]) -> bool:
    try:
        return bool(await in_time(check(), CHECK_S, "the check did not end"))
    except Exception:
        _log.info("nats-py %s fails %s", version("nats-py"), check.__name__, exc_info=True)
        return False


async def _serve(info: str, answers: dict[bytes, bytes], use: Callable[[int], Any]) -> bytes:
    """What a server hears that answers some lines, while somebody uses it."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + info.encode() + b"\r\n")
        with suppress(ConnectionError):
            while line := await reader.readline():
                heard.extend(line)
                writer.write(answers.get(line.split()[0] if line.split() else b"", b""))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await use(server.sockets[0].getsockname()[1])
    return bytes(heard)


async def _talk() -> bool:
    """A known frame is written behind a known one, with the PING behind it, and a known one is read."""
    frame = Frame("", b"\r\nx\xff", {"a b": b"\x00", "c": "d"})
    block = header_block(frame.headers).encode()
    message = b"HMSG s 1 r %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(frame.payload), block, frame.payload)
    read: list[Any] = []

    async def use(port: int) -> None:
        client = FastClient(False, lambda *came: read.append(came), {b"s": True}, "_INBOX.")
        await client.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=_expected)
        try:
            await client.subscribe("s")
            await client.flush()
            client.write([("t", frame), ("t", Frame("", b"y"))], ["q", "q"])
            client.write_out()
            await client.flush()
        finally:
            await client.finish()

    heard = await _serve('{"headers":true,"max_payload":1000}', {b"PING": b"PONG\r\n", b"SUB": message}, use)
    wanted = command("t", "q", frame) + command("t", "q", Frame("", b"y")) + b"PING\r\n"
    return wanted in heard and read == [("s", "r", dict(frame.headers), frame.payload)]


async def _refuse() -> bool:
    """A server that offers no encryption hears nothing."""
    refused: list[bool] = []

    async def use(port: int) -> None:
        client = NatsClient(is_encrypted=True)
        try:
            await client.connect(
                f"tls://127.0.0.1:{port}",
                user="u",
                password="p",
                tls=ssl.create_default_context(),
                allow_reconnect=False,
                error_cb=_expected,
            )
        except Exception:
            refused.append(True)
        finally:
            await client.finish()

    heard = await _serve('{"auth_required":true}', {}, use)
    return heard == b"" and refused == [True]


async def _expected(error: Exception) -> None:
    """nats-py would log it as an error."""


def check_safe(fit: Fitness, is_encrypted: bool, shown: str) -> None:
    """Raise rather than send a password without encryption."""
    if is_encrypted and not fit.is_safe:
        raise AdapterError(
            f"{shown}: nats-py {version('nats-py')} would send a password to a server that does not encrypt, and cannot be kept "
            "from it; install another release of nats-py"
        )
