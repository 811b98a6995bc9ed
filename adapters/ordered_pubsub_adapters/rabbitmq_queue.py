"""What an adapter declares on RabbitMQ: the exchange of all topics, and the queue of one subscriber.

The exchange is durable in any case, so that clients with different settings share it. The queue's name is unique; it is not
exclusive, since such a queue goes with its connection. It is a classic queue whatever the vhost's default is: a quorum queue
would give up messages that were delivered too often, and would put those that come back behind others.

Declaring is done on channels of their own, because the broker closes the channel on which it refuses something.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs

from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.rabbitmq_connection import Line, Refused, WireConnection, open_line

_log = logging.getLogger(__name__)

FORBIDDEN, NOT_FOUND = 403, 404
"""Codes with which the broker refuses."""
BINDINGS_AT_ONCE = 500
"""A binding takes the broker more than a millisecond, and it answers within a bounded time."""


@asynccontextmanager
async def passing_line(connection: WireConnection) -> AsyncIterator[Line]:
    """A channel for what may be refused."""
    line = await open_line(connection)
    try:
        yield line
    finally:
        await line.close()


async def declare_exchange(connection: WireConnection, name: str) -> None:
    """Make the exchange, if it is not there. Who may not make one can use one that is there."""
    try:
        async with passing_line(connection) as line:
            await line.call(line.channel.exchange_declare, name, exchange_type="topic", durable=True)
    except Refused as refusal:
        if refusal.code == FORBIDDEN and await _has_exchange(connection, name):
            return
        if not refusal.code:
            raise
        raise AdapterError(
            f"the exchange {name!r} cannot be used; expected a durable topic exchange, or the right to make one: {refusal}"
        ) from refusal


async def _has_exchange(connection: WireConnection, name: str) -> bool:
    try:
        async with passing_line(connection) as line:
            await line.call(line.channel.exchange_declare, name, passive=True)
    except Refused:
        return False
    return True


@attrs.define(eq=False)
class Queue:
    """One subscriber's queue."""

    name: str
    exchange: str
    durable: bool
    expires_s: int
    names: NameTable
    """those that it shall be bound to"""
    _was_declared: bool = False
    _bound: dict[str, bool] = attrs.field(factory=dict)
    """names that it may be bound to"""

    async def declare(self, connection: WireConnection) -> None:
        """Make it, if it is not there, with all its bindings."""
        was_lost = self._was_declared and not await self._is_there(connection)
        if was_lost:
            self._bound.clear()
        async with passing_line(connection) as line:
            arguments = {"x-queue-type": "classic", "x-expires": self.expires_s * 1000}
            await line.call(line.channel.queue_declare, self.name, durable=self.durable, arguments=arguments)
        self._was_declared = True
        await self.bind(connection, self.names.subscribed)
        await self.unbind(connection, list(self._bound))
        if was_lost:
            _log.warning("%s", self._loss())

    def _loss(self) -> str:
        why = "somebody deleted it, or the broker lost its disk" if self.durable else "the broker was started again"
        return (
            f"the queue {self.name!r} was gone when its client came back, and with it what was published meanwhile on "
            f"{len(self.names.subscribed)} topics: the client was away for more than {self.expires_s} s (expires_s), or {why}. "
            "Subscriptions that miss events wait for them: close them, and subscribe again"
        )

    async def _is_there(self, connection: WireConnection) -> bool:
        try:
            async with passing_line(connection) as line:
                await line.call(line.channel.queue_declare, self.name, passive=True)
        except Refused as refusal:
            if refusal.code == NOT_FOUND:
                return False
            raise
        return True

    async def bind(self, connection: WireConnection, names: Sequence[str]) -> None:
        """Let messages of these names come; returns when they do."""
        for at in range(0, len(names), BINDINGS_AT_ONCE):
            some = names[at : at + BINDINGS_AT_ONCE]
            self._bound.update(dict.fromkeys(some, True))
            async with passing_line(connection) as line:
                for name in some[:-1]:  # without an answer: that to the last one stands for all
                    line.tell(line.channel.queue_bind, self.name, self.exchange, name)
                await line.call(line.channel.queue_bind, self.name, self.exchange, some[-1])

    async def unbind(self, connection: WireConnection, names: Sequence[str]) -> None:
        """Let messages of these names come no more, as far as nobody holds them; returns when they do not."""
        stale = [name for name in names if name in self._bound and self.names.topic_of(name) is None]
        if stale:
            async with passing_line(connection) as line:
                for name in stale:
                    await line.call(line.channel.queue_unbind, self.name, self.exchange, name)
                    self._bound.pop(name, None)

    async def delete(self, connection: WireConnection) -> None:
        """Remove it, with whatever is in it."""
        async with passing_line(connection) as line:
            await line.call(line.channel.queue_delete, self.name)
