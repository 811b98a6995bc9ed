"""Where connections begin: nobody gets further before having said who they are.

A connection is counted from its first moment on, before any TLS. It has a short time and few bytes for its first frame, a
greeting. Then it belongs to a client's or a peer's handler, or gets a `Rejected` that says what was expected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address

import attrs

from ordered_pubsub.config.schema import IdentitySection, LimitsSection
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.doors.access import Access, Proof
from ordered_pubsub.server.doors.tls import StageTlsContexts
from ordered_pubsub.wire.channel import Channel, Owner
from ordered_pubsub.wire.protocol import (
    VERSION,
    ClientGreeting,
    Greeting,
    PeerGreeting,
    Rejected,
    decode,
    encode,
    greetings,
)
from ordered_pubsub.wire.tls import TlsLayer

_log = logging.getLogger(__name__)

_IPV6_HOST_BITS = 64
TURNED_AWAY_MAX = 64
"""So many connections beyond the limit are there at a time, to be told so."""
SAID_MAX, SAID_FOR_S = 20, 10.0
"""Of those who are sent away so many are named in the log, in so long: nobody fills it."""


@attrs.frozen
class Visitor:
    """Somebody who was let in."""

    identity: IdentitySection
    proof: Proof


@attrs.define(eq=False)
class Admission:
    """How many are in, from where, and as whom."""

    limits: LimitsSection
    access: Access
    tls: StageTlsContexts
    admit_client: Callable[[Channel, ClientGreeting, Visitor], None]
    admit_peer: Callable[[Channel, PeerGreeting, Visitor], None]
    is_closing: bool = False
    rejected: int = 0
    _inside: dict[Channel, bool] = attrs.field(factory=dict)
    _by_address: dict[str, int] = attrs.field(factory=dict)
    trouble: str = ""
    """why nobody can be let in now, though that may pass; in words for everybody"""
    room: int = 1 << 62
    """so many connections the process has files for, whatever the limit says"""
    clock: Callable[[], float] = time.monotonic
    _said: int = 0
    _unsaid: int = 0
    """so many were sent away of late, and it was not said of each"""
    _said_until: float = float("-inf")
    _shares: dict[str, Share] = attrs.field(factory=dict)
    """identity → what its connections hold"""

    def channel(self) -> Channel:
        """For a connection that was just accepted."""
        tls = TlsLayer(self.tls.server, is_server=True) if self.tls.server is not None else None
        doorstep = NewConnection(self)
        channel = Channel(doorstep, self.limits.unauthenticated_bytes_max, self.limits.buffered_bytes_max, tls)
        channel.arrival = doorstep.arrived
        return channel

    @property
    def total(self) -> int:
        """How many connections there are."""
        return len(self._inside)

    def enter(self, channel: Channel, address: str) -> str:
        """Count a connection in; return why it must go, if so."""
        self._inside[channel] = True
        self._by_address[address] = self._by_address.get(address, 0) + 1
        if self.total > self.connections_max:
            return f"this stage takes at most {self.connections_max} connections (limits.connections_max)"
        most = self.limits.connections_per_address_max
        if self._by_address[address] > most:
            return f"this stage takes at most {most} connections from one address (limits.connections_per_address_max)"
        return ""

    @property
    def connections_max(self) -> int:
        """How many connections there may be in all."""
        return min(self.limits.connections_max, self.room)

    @property
    def is_overrun(self) -> bool:
        """Whether there are so many more that those who are sent away are not even told why: each of them holds a file."""
        return self.total > self.connections_max + TURNED_AWAY_MAX

    def leave(self, channel: Channel, address: str, identity: str | None) -> None:
        """Count a connection out."""
        del self._inside[channel]
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        share = self._shares.get(identity) if identity is not None else None
        if identity is not None and share is not None:
            share.leave(channel)
            if not share.channels:
                del self._shares[identity]

    def identified(self, identity: str, channel: Channel) -> str:
        """Count an identity's connection; return why it must go, if so."""
        share = self._shares.setdefault(identity, Share())
        share.channels[channel] = 0
        most = self.limits.connections_per_identity_max
        if len(share.channels) > most:
            return f"identity {identity!r} has {most} connections, as many as allowed (limits.connections_per_identity_max)"
        return ""

    def holds_more(self, identity: str, change: int) -> str:
        """More is held of what came from an identity, or less; return why one of its connections must go, if so."""
        share, most = self._shares.get(identity), self.limits.received_bytes_per_identity_max
        if share is None:
            return ""
        share.received_bytes += change
        if change <= 0 or share.received_bytes <= most:
            return ""
        return (
            f"of frames that have not come to their end, or that wait for their turn, more than {most} bytes are held for "
            f"identity {identity!r} (limits.received_bytes_per_identity_max)"
        )

    def sent(self, identity: str, channel: Channel) -> None:
        """Something was sent. If more waits for an identity than may, the connection with the most of it must go."""
        share, most = self._shares.get(identity), self.limits.buffered_bytes_per_identity_max
        slowest = None if share is None or channel not in share.channels else share.sent(channel, most)
        if slowest is None:
            return
        if slowest.is_open:
            self.reject(
                slowest,
                "slow",
                f"more than {most} bytes waited for the clients of identity {identity!r} to read them "
                "(limits.buffered_bytes_per_identity_max); nothing is lost, they ask again",
            )
        else:
            slowest.drop()

    def reject(self, channel: Channel, code: str, reason: str) -> None:
        """Send somebody away, and say why."""
        self.rejected += 1
        self._note(f"{channel.address} is not let in ({code}): {reason}")
        channel.close(reason, encode(Rejected(code, reason)))

    def _note(self, line: str) -> None:
        """Say in the log who is sent away; of very many only that there were more."""
        now = self.clock()
        if now >= self._said_until:
            if self._unsaid:
                _log.info("%d more were not let in meanwhile", self._unsaid)
            self._said, self._unsaid, self._said_until = 0, 0, now + SAID_FOR_S
        if self._said < SAID_MAX:
            self._said += 1
            _log.info("%s", line)
        else:
            self._unsaid += 1

    async def close(self, reason: str) -> None:
        """Disconnect everybody, and return when they are gone."""
        for channel in list(self._inside):
            channel.close(reason)
        for channel in list(self._inside):
            await channel.wait_until_gone()


@attrs.define(eq=False)
class Share:
    """What the connections of one identity hold."""

    channels: dict[Channel, int] = attrs.field(factory=dict)
    """connection → what waited to be sent to it when something was sent last"""
    received_bytes: int = 0
    """what has come, and was not looked at, or is no whole frame yet"""
    unsent_bytes: int = 0

    def leave(self, channel: Channel) -> None:
        """A connection is gone."""
        self.unsent_bytes -= self.channels.pop(channel, 0)
        self.received_bytes -= channel.measured_bytes

    def sent(self, channel: Channel, most: int) -> Channel | None:
        """Something was sent on a connection. If more than so much waits for all of them, return the one with the most."""
        waiting = channel.unsent_bytes
        self.unsent_bytes += waiting - self.channels[channel]
        self.channels[channel] = waiting
        if self.unsent_bytes <= most or not waiting:
            return None
        for other in self.channels:  # they have read on since
            self.channels[other] = other.unsent_bytes
        self.unsent_bytes = sum(self.channels.values())
        return max(self.channels, key=self.channels.__getitem__) if self.unsent_bytes > most else None


def neighbourhood(address: str) -> str:
    """What counts as one address: in IPv6 everybody has 2**64 of them."""
    with suppress(ValueError):
        return str(IPv6Address(int(IPv6Address(address.partition("%")[0])) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS))
    return address


@attrs.define(eq=False)
class NewConnection(Owner):
    """The first owner of a connection. It counts it for as long as it lasts, whoever owns it later."""

    doors: Admission
    channel: Channel = attrs.field(init=False)
    address: str = ""
    identity: str | None = None
    _timer: asyncio.TimerHandle | None = None

    def arrived(self, channel: Channel) -> None:
        """Somebody has connected."""
        self.channel = channel
        self.address = neighbourhood(channel.address)
        channel.farewell = self._gone
        refusal = self.doors.enter(channel, self.address)
        if self.doors.is_overrun:
            self.doors.rejected += 1
            channel.abort("there are too many connections")
        elif self.doors.trouble:
            self._reject("unavailable", self.doors.trouble)
        elif self.doors.is_closing:
            self._reject("draining", "this stage is about to stop; try another one")
        elif refusal:
            self._reject("limit", refusal)
        else:
            limit_s = self.doors.limits.authentication_s
            self._timer = asyncio.get_running_loop().call_later(
                limit_s, self._reject, "bad-greeting", f"no greeting came within {limit_s:g} s"
            )

    def received(self, payloads: list[bytes]) -> None:
        """The first frame, and no other before it has an answer."""
        if len(payloads) > 1:
            raise ProtocolError("a greeting was followed by other frames before it had an answer")
        greeting = decode(greetings, payloads[0], f"{self.address}, instead of a greeting,")
        if greeting.version != VERSION:
            self._reject(
                "version",
                f"this stage speaks version {VERSION} of the protocol, the other side {greeting.version}: install the same "
                "release of ordered-pubsub on both",
            )
            return
        proof = Proof.of(greeting.token, self.channel.certificate)
        identity = self.doors.access.identify(proof)
        if identity is None:
            self._reject("denied", _denial(greeting, proof))
            return
        self._let_in(greeting, Visitor(identity, proof))

    def _let_in(self, greeting: Greeting, visitor: Visitor) -> None:
        self.identity = visitor.identity.name
        refusal = self.doors.identified(self.identity, self.channel)
        if refusal:
            self._reject("limit", refusal)
            return
        self._stop_timer()
        self.channel.widen(self.doors.limits.frame_bytes_max)
        if isinstance(greeting, ClientGreeting):
            self.channel.measure = self._measured
            self.doors.admit_client(self.channel, greeting, visitor)
        else:
            self.doors.admit_peer(self.channel, greeting, visitor)

    def _measured(self, change: int) -> None:
        """More is held of what has come on this connection, or less."""
        refusal = self.doors.holds_more(self.identity or "", change)
        if refusal:
            self._reject("limit", refusal)

    def broken(self, error: ProtocolError) -> None:
        """What came was not a greeting."""
        self._reject("bad-greeting", str(error))

    def _reject(self, code: str, reason: str) -> None:
        self._stop_timer()
        self.doors.reject(self.channel, code, reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gone(self) -> None:
        self._stop_timer()
        self.doors.leave(self.channel, self.address, self.identity)


def _denial(greeting: Greeting, proof: Proof) -> str:
    if greeting.token:
        return "the token that was shown is not one of this stage's: check token_file (or ORDERED_PUBSUB_TOKEN)"
    if proof.names:
        return "the certificate that was shown names no identity of this stage: check its common name, or show a token"
    return "this stage wants to know who you are: set token_file (or ORDERED_PUBSUB_TOKEN), or show a certificate"
