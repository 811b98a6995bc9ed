"""Links to the other stages: one connection for each pair.

The stage of lower rank (the larger number) dials the one above, again and again with growing pauses, for as long as both
run. Whatever breaks a link, what was on its way is sent again when it is back (`core.links`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import Protocol

import attrs

from ordered_pubsub.config.addresses import Address
from ordered_pubsub.core.messages import PeerMessage
from ordered_pubsub.errors import OrderedPubSubError, ProtocolError
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.protocol import (
    Claim,
    Claimed,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Say,
    Welcome,
    decode,
    encode,
    from_peer,
)

_log = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.05
PAUSE_MOST_S = 2.0
DIAL_S = 5.0
LINK_BYTES_MAX = 1 << 28
"""What one frame of a link may have, and what may wait to be sent on one."""

_PING, _PONG = encode(Ping()), encode(Pong())


class Handler(Protocol):
    """What a link tells what its peer says: the server."""

    def connected(self, peer: int) -> None:
        """The link is there."""

    def disconnected(self, peer: int) -> None:
        """The link is gone."""

    def handle_peer(self, peer: int, messages: list[PeerMessage]) -> None:
        """The peer's state machine says something; raises if it must not."""

    def handle_claim(self, peer: int, claim: Claim) -> None:
        """The peer claims a name for a client, or gives one back."""

    def handle_claimed(self, claimed: Claimed) -> None:
        """The peer answers a claim."""


@attrs.define(eq=False)
class PeerLink:
    """This stage's side of the link to one other stage."""

    rank: int
    name: str
    address: Address | None
    """where to dial; None if the peer dials"""
    handler: Handler
    greeting: Callable[[], PeerGreeting]
    tls: Callable[[], ssl.SSLContext | None]
    trouble: str = "not connected yet"
    """why there is no link now; empty if there is one"""
    _channel: Channel | None = None
    _is_up: bool = False
    _was_up: bool = False
    """since the last dial"""
    _gone: asyncio.Event = attrs.field(factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    # -- making the connection ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to dial, if it is this side that does."""
        if self.address is not None:
            self._task = asyncio.get_running_loop().create_task(self._dial_for_ever(), name=f"link to {self.name}")

    async def _dial_for_ever(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            self._gone.clear()
            self._was_up = False
            try:
                await self._dial()
            except (OSError, asyncio.TimeoutError) as error:
                self._note(f"{self.address} cannot be reached: {str(error) or 'no answer in time'}")
            else:
                await self._gone.wait()
                if self._was_up:
                    pause_s = PAUSE_FIRST_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    async def _dial(self) -> None:
        assert self.address is not None
        loop = asyncio.get_running_loop()
        tls = self.tls() if self.address.tls else None
        name = self.address.host if tls is not None else None
        await asyncio.wait_for(
            loop.create_connection(
                lambda: Channel(self, LINK_BYTES_MAX, LINK_BYTES_MAX),
                self.address.host,
                self.address.port,
                ssl=tls,
                server_hostname=name,
            ),
            DIAL_S,
        )

    def opened(self, channel: Channel) -> None:
        """This side has dialled: greet."""
        self._channel = channel
        channel.send(encode(self.greeting()))

    def accept(self, channel: Channel, welcome: Welcome) -> None:
        """The other side has dialled, and was let in. An older connection is replaced."""
        if self._channel is not None:
            self._channel.owner = _Nobody()
            self._channel.abort("replaced by a newer connection")
            self._is_down("replaced by a newer connection")
        channel.owner = self
        channel.widen(LINK_BYTES_MAX)
        channel.buffered_bytes_max = LINK_BYTES_MAX
        self._channel = channel
        channel.send(encode(welcome))
        self._becomes_up()

    def _becomes_up(self) -> None:
        self._is_up = self._was_up = True
        self.trouble = ""
        _log.info("linked to stage %s", self.name)
        self.handler.connected(self.rank)

    # -- while it is there --------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether the other side has let us in, or we it."""
        return self._is_up

    def say(self, messages: list[PeerMessage]) -> None:
        """Send what the state machine says."""
        if self._is_up:
            self.send(Say(messages))

    def send(self, message: Say | Claim | Claimed) -> None:
        """Send a message, if there is a connection."""
        if self._channel is not None:
            self._channel.send(encode(message))
            if self._channel.is_clogged:
                self._channel.abort(f"stage {self.name} does not read: {LINK_BYTES_MAX} bytes were waiting")

    def received(self, payloads: list[bytes]) -> None:
        """The peer says something."""
        said: list[PeerMessage] = []
        for payload in payloads:
            message = decode(from_peer, payload, f"stage {self.name}")
            if isinstance(message, Say):
                said += message.messages
            else:
                self._handle(message)
        if said and self._is_up:
            try:
                self.handler.handle_peer(self.rank, said)
            except OrderedPubSubError as error:
                self._break(str(error))

    def _handle(self, message: Welcome | Rejected | Claim | Claimed | Ping | Pong) -> None:
        if isinstance(message, Ping):
            self._write(_PONG)
        elif isinstance(message, Welcome):
            if message.stage != self.name:
                raise ProtocolError(f"{self.address} is stage {message.stage!r}, and {self.name!r} was expected there")
            self._becomes_up()
        elif isinstance(message, Rejected):
            self._break(f"stage {self.name} does not let this one in ({message.code}): {message.reason}")
        elif isinstance(message, Claim):
            self.handler.handle_claim(self.rank, message)
        elif isinstance(message, Claimed):
            self.handler.handle_claimed(message)

    def check_alive(self, now: float, heartbeat_s: float) -> None:
        """Ask a silent peer whether it is there; give one up that does not say so."""
        channel = self._channel
        if channel is None:
            return
        silent_s = now - channel.heard_at
        if silent_s > 3 * heartbeat_s:
            channel.abort(f"nothing was heard of stage {self.name} for {silent_s:.0f} s")
        elif silent_s > heartbeat_s:
            self._write(_PING)

    def _write(self, frame: bytes) -> None:
        if self._channel is not None:
            self._channel.send(frame)

    # -- the end of a connection --------------------------------------------------------------------------------------

    def broken(self, error: ProtocolError) -> None:
        """The peer sent what it must not."""
        self._break(str(error))

    def _break(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.abort(reason)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._channel = None
        self._is_down(reason)

    def _is_down(self, reason: str) -> None:
        if self._is_up:
            self._is_up = False
            self.handler.disconnected(self.rank)
        self._note(reason)
        self._gone.set()

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("no link to stage %s: %s", self.name, trouble)
        self.trouble = trouble

    async def close(self) -> None:
        """Dial no more, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._channel is not None:
            self._channel.close("this stage stops")


class _Nobody:
    """Owns a connection that was replaced."""

    def opened(self, channel: Channel) -> None:
        """Never."""

    def received(self, payloads: list[bytes]) -> None:
        """Too late."""

    def broken(self, error: ProtocolError) -> None:
        """Too late."""

    def lost(self, reason: str) -> None:
        """At last."""
