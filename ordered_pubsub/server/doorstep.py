"""Where connections begin: nobody gets further before having said who they are.

A connection has a short time and few bytes for its first frame, a greeting. Then it belongs to a client's or a peer's
handler, or gets a `Rejected` that says what was expected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ordered_pubsub.config.schema import IdentitySection, LimitsSection
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.access import Access
from ordered_pubsub.wire.channel import Channel
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

_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class Doors:
    """How many are in, from where, and as whom."""

    limits: LimitsSection
    access: Access
    admit_client: Callable[[Channel, ClientGreeting, IdentitySection], None]
    admit_peer: Callable[[Channel, PeerGreeting, IdentitySection], None]
    is_closing: bool = False
    rejected: int = 0
    _by_address: dict[str, int] = attrs.field(factory=dict)
    _by_identity: dict[str, int] = attrs.field(factory=dict)
    _total: int = 0

    def channel(self) -> Channel:
        """For a connection that was just accepted."""
        return Channel(Doorstep(self), self.limits.unauthenticated_bytes_max, self.limits.buffered_bytes_max)

    @property
    def total(self) -> int:
        """How many connections there are."""
        return self._total

    def enter(self, address: str) -> str:
        """Count a connection in; return why it must go, if so."""
        self._total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._total > self.limits.connections_max:
            return f"this stage takes at most {self.limits.connections_max} connections (limits.connections_max)"
        most = self.limits.connections_per_address_max
        if self._by_address[address] > most:
            return f"this stage takes at most {most} connections from one address (limits.connections_per_address_max)"
        return ""

    def leave(self, address: str, identity: str | None) -> None:
        """Count a connection out."""
        self._total -= 1
        _count_down(self._by_address, address)
        if identity is not None:
            _count_down(self._by_identity, identity)

    def identified(self, identity: str) -> str:
        """Count an identity's connection; return why it must go, if so."""
        self._by_identity[identity] = count = self._by_identity.get(identity, 0) + 1
        most = self.limits.connections_per_identity_max
        if count > most:
            return f"identity {identity!r} has {most} connections, as many as allowed (limits.connections_per_identity_max)"
        return ""


def _count_down(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


@attrs.define(eq=False)
class Doorstep:
    """The first owner of a connection. It counts it for as long as it lasts, whoever owns it later."""

    doors: Doors
    channel: Channel = attrs.field(init=False)
    address: str = ""
    identity: str | None = None
    _timer: asyncio.TimerHandle | None = None

    def opened(self, channel: Channel) -> None:
        """Somebody is there."""
        self.channel = channel
        peer = channel.extra("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else "local"
        channel.farewell = self._gone
        refusal = self.doors.enter(self.address)
        if self.doors.is_closing:
            self._reject("draining", "this stage is about to stop; try another one")
        elif refusal:
            self._reject("limit", refusal)
        else:
            limit_s = self.doors.limits.authentication_s
            self._timer = asyncio.get_running_loop().call_later(limit_s, self._too_late, limit_s)

    def _too_late(self, limit_s: float) -> None:
        self._reject("bad-greeting", f"no greeting came within {limit_s:g} s")

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
        identity = self.doors.access.identify(greeting.token, self._certificate())
        if identity is None:
            self._reject("denied", _denial(greeting, self._certificate()))
            return
        self._let_in(greeting, identity)

    def _let_in(self, greeting: Greeting, identity: IdentitySection) -> None:
        self.identity = identity.name
        refusal = self.doors.identified(identity.name)
        if refusal:
            self._reject("limit", refusal)
            return
        self._stop_timer()
        self.channel.widen(self.doors.limits.frame_bytes_max)
        if isinstance(greeting, ClientGreeting):
            self.doors.admit_client(self.channel, greeting, identity)
        else:
            self.doors.admit_peer(self.channel, greeting, identity)

    def _certificate(self) -> Mapping[str, Any] | None:
        certificate: Mapping[str, Any] | None = self.channel.extra("peercert")
        return certificate

    def broken(self, error: ProtocolError) -> None:
        """What came was not a greeting."""
        self._reject("bad-greeting", str(error))

    def _reject(self, code: str, reason: str) -> None:
        self._stop_timer()
        self.doors.rejected += 1
        _log.info("%s is not let in (%s): %s", self.address, code, reason)
        self.channel.close(reason, encode(Rejected(code, reason)))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lost(self, reason: str) -> None:
        """Gone before it was let in."""

    def _gone(self) -> None:
        self._stop_timer()
        self.doors.leave(self.address, self.identity)


def _denial(greeting: Greeting, certificate: Mapping[str, Any] | None) -> str:
    if greeting.token:
        return "the token that was shown is not one of this stage's: check token_file (or ORDERED_PUBSUB_TOKEN)"
    if certificate:
        return "the certificate that was shown names no identity of this stage: check its common name, or show a token"
    return "this stage wants to know who you are: set token_file (or ORDERED_PUBSUB_TOKEN), or show a certificate"
