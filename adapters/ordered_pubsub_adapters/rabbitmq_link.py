"""A connection to RabbitMQ that comes back by itself.

A link has one connection at a time, and makes it useful with `set_up`: declares, binds, consumes. When the connection breaks,
what was on its way is dropped (`on_break`), and the link connects again, for ever, with pauses that grow and differ between
clients, so that a broker that comes back is not met by all of them at once. `set_up` is then called again, and nothing else
is: what is on the broker may be gone or may still be there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import attrs

from ordered_pubsub.errors import AdapterError, OrderedPubSubError
from ordered_pubsub.supervision import Backoff, Failing, Supervisor
from ordered_pubsub_adapters.rabbitmq_connection import WireConnection, connect, explain
from ordered_pubsub_adapters.urls import BrokerUrl

_log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0


@attrs.define(eq=False)
class Link:
    """One of the connections of an adapter."""

    url: BrokerUrl
    purpose: str
    set_up: Callable[[WireConnection], Awaitable[None]]
    on_break: Callable[[str], None]
    """is told why, before `on_state`; also of a connection that broke while it was set up"""
    on_state: Callable[[bool, str], None]
    """is told of breaks and returns; not of the first connection"""
    on_failure: Failing
    reason: str = "it was not opened"
    """why it is not connected, if it is not"""
    _connection: WireConnection | None = None
    _is_up: asyncio.Event = attrs.field(factory=asyncio.Event)
    _keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, or raise an `AdapterError`. Cancelled, it leaves nothing open."""
        self._connection = await self._connect()
        self._is_up.set()
        supervisor = Supervisor(f"{self.url.shown} {self.purpose}", self.on_failure)
        self._keeper = supervisor.keep(self._keep, "staying connected")

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    @property
    def connection(self) -> WireConnection:
        """The connection, or an `AdapterError` that says why there is none."""
        if self._connection is None:
            raise AdapterError(f"{self.url.shown} is not connected: {self.reason}")
        return self._connection

    async def wait(self) -> WireConnection:
        """The connection, as soon as there is one; an `AdapterError` if it takes longer than connecting may."""
        up = asyncio.ensure_future(self._is_up.wait())
        try:
            await asyncio.wait((up,), timeout=self.url.connect_timeout_s)
        finally:
            up.cancel()
        return self.connection

    async def _keep(self) -> None:
        while True:
            if self._connection is not None:  # else an error has ended this task before it had another one
                reason = explain(await asyncio.shield(self._connection.ended))
                self._down(reason)
            self._connection = await self._come_back()
            self._is_up.set()
            self.on_state(True, f"connected again to {self.url.shown}")

    def _down(self, reason: str) -> None:
        self._connection = None
        self._is_up.clear()
        self.reason = reason
        self.on_break(reason)
        self.on_state(False, f"the connection to {self.url.shown} broke: {reason}")

    async def _come_back(self) -> WireConnection:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            await backoff.pause()
            try:
                return await self._connect()
            except Exception as error:  # whatever it is, the next attempt may succeed
                self.reason = str(error)
                is_expected = isinstance(error, OrderedPubSubError)
                level = logging.INFO if is_expected else logging.WARNING
                _log.log(level, "%s; trying again", error, exc_info=not is_expected)

    async def _connect(self) -> WireConnection:
        """Connect to the first host that answers, and make the connection useful."""
        refusals = []
        for host, port in self.url.hosts:
            try:
                connection = await connect(self.url, host, port, self.purpose)
            except AdapterError as error:
                refusals.append(str(error))
                continue
            await self._prepare(connection)
            return connection
        raise AdapterError("; ".join(refusals))

    async def _prepare(self, connection: WireConnection) -> None:
        try:
            await self.set_up(connection)
            if connection.ended.done():
                raise AdapterError(
                    f"{self.url.shown}: the connection broke at once: {explain(connection.ended.result())}"
                )
        except BaseException as error:
            self.on_break(str(error))
            await connection.shut()
            raise

    async def close(self) -> None:
        """Disconnect."""
        self.reason = "it was closed"
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None
        connection, self._connection = self._connection, None
        self._is_up.clear()
        if connection is not None:
            await connection.shut()
