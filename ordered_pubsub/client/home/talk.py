"""One connection of a client to a stage: its greeting, what the stage says, and why it ended.

Whoever made it decides what then: see `client.home.network`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import attrs

from ordered_pubsub.config.addresses import Address
from ordered_pubsub.core.messages import Answer, Refusal, ToSession
from ordered_pubsub.errors import ProtocolError, UnavailableError
from ordered_pubsub.wire.channel import Channel, Owner
from ordered_pubsub.wire.protocol import (
    ClientGreeting,
    Ping,
    Pong,
    Rejected,
    Report,
    Tell,
    Welcome,
    decode,
    encode,
    to_client,
)
from ordered_pubsub.wire.rejection import FRAME_BYTES_MAX, rejection_error
from ordered_pubsub.wire.tls import TlsLayer

_PONG = encode(Pong())


class Hearer(Protocol):
    """Who is told what a stage says. None of it raises."""

    def answered(self, answers: list[Answer | Refusal]) -> None:
        """The stage brings answers."""

    def told(self, messages: list[ToSession]) -> None:
        """The stage tells subscriptions something."""

    def reported(self, report: Report) -> None:
        """The stage says how it is."""

    def lose_name(self) -> None:
        """Another client has the name now."""

    def lost(self, talk: Talk, reason: str) -> None:
        """The connection is gone."""


@attrs.define(eq=False)
class Talk(Owner):
    """One connection to a stage, from its greeting to its end."""

    home: Hearer
    address: Address
    greeting: ClientGreeting
    welcome: asyncio.Future[Welcome]
    channel: Channel | None = None
    farewell: str = ""

    @property
    def is_open(self) -> bool:
        """Whether something can be sent."""
        return self.channel is not None and self.channel.is_open

    def make_channel(self, tls: TlsLayer | None) -> Channel:
        """For the connection that is about to be made."""
        self.channel = Channel(self, FRAME_BYTES_MAX, FRAME_BYTES_MAX, tls)
        return self.channel

    def opened(self, channel: Channel) -> None:
        """Connected: greet."""
        channel.send(encode(self.greeting))

    def received(self, payloads: list[bytes]) -> None:
        """The stage says something."""
        answers: list[Answer | Refusal] = []
        told: list[ToSession] = []
        for payload in payloads:
            message = decode(to_client, payload, f"stage {self.address}")
            if isinstance(message, Tell):
                answers += message.answers
            elif isinstance(message, ToSession):
                told.append(message)
            elif isinstance(message, Ping):
                self.send(_PONG)
            elif isinstance(message, Welcome):
                if not self.welcome.done():
                    self.welcome.set_result(message)
            elif isinstance(message, Rejected):
                error = rejection_error(message, self.address)
                self.farewell = str(error)
                if message.code == "name-in-use":
                    self.home.lose_name()
                if not self.welcome.done():
                    self.welcome.set_exception(error)
            elif isinstance(message, Report):
                self.home.reported(message)
        if answers:
            self.home.answered(answers)
        if told:
            self.home.told(told)

    def broken(self, error: ProtocolError) -> None:
        """Who is there does not speak this protocol."""
        if not self.welcome.done():
            self.welcome.set_exception(
                UnavailableError(
                    f"{self.address} does not answer like a stage: {error}; check host, port and ops:// or opss://"
                )
            )
        assert self.channel is not None
        self.channel.abort(str(error))

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        if not self.welcome.done():
            self.welcome.set_exception(
                UnavailableError(f"{self.address} did not welcome this client ({reason}); check that a stage is there")
            )
        self.home.lost(self, self.farewell or f"stage {self.address}: {reason}")

    def send(self, frame: bytes) -> None:
        """Write a frame."""
        if self.channel is not None:
            self.channel.send(frame)

    def end(self, reason: str) -> None:
        """Disconnect; `lost` follows."""
        if self.channel is not None:
            self.channel.close(reason)

    def abort(self, reason: str) -> None:
        """Disconnect at once: nothing of it stays open for a moment."""
        if self.channel is not None:
            self.channel.abort(reason)
