"""Systems of stages in this process: on free ports, with a line between any two that can be cut, and clients of any kind."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs

import ordered_pubsub
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.server.server import Server
from ordered_pubsub.testing.processes import HOST, free_port
from ordered_pubsub.testing.proxy import Proxy
from ordered_pubsub.wire.framing import Deframer
from ordered_pubsub.wire.protocol import Ping, Pong, decode, encode, to_client
from server.waiting import soon


@attrs.define(eq=False)
class Raw:
    """A connection to a stage on which anything can be said."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    decoder: Any = to_client
    heard: list[Any] = attrs.field(factory=list)
    _deframer: Deframer = attrs.field(factory=lambda: Deframer(1 << 28))

    def send(self, *messages: Any) -> None:
        """Messages, or bytes as they are."""
        for message in messages:
            self.writer.write(message if isinstance(message, bytes) else encode(message))

    async def receive(self) -> Any:
        """The next message; None at the end."""
        while not self.heard:
            data = await soon(self.reader.read(1 << 16))
            if not data:
                return None
            self.heard += [decode(self.decoder, payload, "the stage") for payload in self._deframer.feed(data)]
        return self.heard.pop(0)

    async def expect(self, kind: type) -> Any:
        """The next message of a kind; signs of life do not count."""
        while isinstance(message := await self.receive(), (Ping, Pong)) and kind not in (Ping, Pong):
            pass
        assert isinstance(message, kind), f"expected {kind.__name__}; there came {message!r}"
        return message

    async def find(self, kind: type) -> Any:
        """The next message of a kind, whatever comes before it."""
        while (message := await self.receive()) is not None and not isinstance(message, kind):
            pass
        return message


@asynccontextmanager
async def raw(port: int, tls: ssl.SSLContext | None = None, decoder: Any = to_client) -> AsyncIterator[Raw]:
    """A connection to a stage."""
    host = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls, server_hostname=host)
    try:
        yield Raw(reader, writer, decoder)
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def configure(text: str, folder: Path | None = None) -> Configuration:
    """The configuration that a text holds."""
    return read_text(text, "ordered_pubsub.toml", str(folder or ""))


def one_stage(more: str = "", before: str = "", folder: Path | None = None) -> Configuration:
    """A stage that owns everything; `more` is about it, `before` comes before it."""
    store = "" if "store" in more else 'store = "memory"\n'
    return configure(f'{before}\n[[stage]]\nname = "main"\nlisten = "{HOST}:0"\n{store}{more}\n', folder)


@asynccontextmanager
async def serving(configuration: Configuration, token: str = "") -> AsyncIterator[Server]:
    """The first stage of a configuration."""
    server = Server(configuration, 0, token)
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def connect(server: Server, name: str | None = None, **settings: Any) -> Connecting:
    """A client of a stage, on an ENS of its own."""
    ens = settings.pop("ens", f"memory://{uuid4().hex}")
    return ordered_pubsub.connect(ens, sequencer=f"ops://{HOST}:{server.port}", name=name, **settings)


@attrs.define(eq=False)
class System:
    """Several stages, each with its store, and the lines between them."""

    folder: Path
    topics: Sequence[Sequence[str]]
    """for each stage the patterns of the topics that it owns"""
    before: str = ""
    """what else the configuration says"""
    token: str = ""
    """what each stage shows to the others"""
    ens: str = attrs.field(factory=lambda: f"memory://{uuid4().hex}")
    servers: dict[int, Server] = attrs.field(factory=dict)
    lines: dict[tuple[int, int], Proxy] = attrs.field(factory=dict)
    """(who dials, who is dialled) → the line between them"""
    ports: list[int] = attrs.field(factory=list)

    async def __aenter__(self) -> System:
        self.ports = [free_port() for _ in self.topics]
        for lower, higher in itertools.combinations(reversed(range(len(self.topics))), 2):
            line = self.lines[lower, higher] = Proxy((HOST, self.ports[higher]))
            await line.__aenter__()
        for rank in range(len(self.topics)):
            await self.start(rank)
        return self

    async def __aexit__(self, *_: object) -> None:
        for rank in list(self.servers):
            await self.stop(rank)
        for line in self.lines.values():
            await line.__aexit__()

    def configuration(self, rank: int) -> Configuration:
        """As one stage has it: it dials the others through their lines."""
        parts = [self.before]
        for other, patterns in enumerate(self.topics):
            line = self.lines.get((rank, other))
            reached = line.port if line is not None else self.ports[other]
            parts.append(
                f'[[stage]]\nname = "s{other}"\nlisten = "{HOST}:{self.ports[other]}"\n'
                f'advertise = "ops://{HOST}:{reached}"\ntopics = {json.dumps(list(patterns))}\nstore = "sqlite:s{other}.db"\n'
            )
        return configure("\n".join(parts), self.folder)

    async def start(self, rank: int) -> Server:
        """Start a stage, on the store that it has."""
        server = self.servers[rank] = Server(self.configuration(rank), rank, self.token)
        await server.open()
        return server

    async def stop(self, rank: int) -> None:
        """Stop a stage, as SIGTERM does."""
        await self.servers.pop(rank).close()

    async def restart(self, rank: int) -> None:
        """Stop a stage and start it again."""
        await self.stop(rank)
        await self.start(rank)

    @property
    def is_linked(self) -> bool:
        """Whether every stage is linked to every other, and takes requests."""
        return len(self.servers) == len(self.topics) and all(
            server.node.status()["ready"] and all(link.is_up for link in server.links.values())
            for server in self.servers.values()
        )

    def address(self, rank: int) -> str:
        """Where a stage is reached directly."""
        return f"ops://{HOST}:{self.ports[rank]}"

    def connect(self, *ranks: int, name: str | None = None, **settings: Any) -> Connecting:
        """A client that is at home at the first of these stages that answers; left out, at any."""
        wanted = ranks or range(len(self.topics))
        return ordered_pubsub.connect(
            self.ens, sequencer=[self.address(rank) for rank in wanted], name=name, **settings
        )
