"""Links to the other stages: one connection for each pair.

The stage of lower rank (the larger number) dials the one above, again and again with growing pauses, for as long as both
run. Whatever breaks a link, what was on its way is sent again when it is back (`core.stage._links`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.core.messages import PeerMessage
from ordered_pubsub.errors import OrderedPubSubError, ProtocolError
from ordered_pubsub.server.doors.access import Access, Proof
from ordered_pubsub.server.doors.claims import Claims
from ordered_pubsub.server.links.agreement import Common
from ordered_pubsub.server.stage.node import Node
from ordered_pubsub.supervision import Backoff, Supervisor
from ordered_pubsub.wire.channel import Channel, Owner
from ordered_pubsub.wire.protocol import (
    Claim,
    Claimed,
    Differs,
    FromPeer,
    NamesGranted,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Say,
    Welcome,
    decode_from_peer,
    encode,
)
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub.wire.tls import TlsLayer

_log = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.05
PAUSE_MOST_S = 2.0
DIAL_S = 5.0
WELCOME_S = 10.0
SIGN_OF_LIFE_S = 1.0
"""A connection that says nothing for so long after it was asked may be replaced by another one."""
LINK_BYTES_MAX = 1 << 28
"""What one frame of a link may have, and what may wait to be sent on one."""
MUCH_BYTES = 1 << 19
"""When so much waits to be sent on a link, nothing is read from the log for the other side."""
SAY_BYTES_MAX = 1 << 20
"""More than this is said in several frames, if it is several messages."""

_PING, _PONG = encode(Ping()), encode(Pong())


class Handler(Protocol):
    """What a link tells what its peer says: the server."""

    @property
    def configuration(self) -> Configuration:
        """What this stage was started with."""

    @property
    def claims(self) -> Claims:
        """Who hears what is said of names."""

    @property
    def node(self) -> Node:
        """The stage, which hears the rest."""

    def connected(self, peer: int) -> None:
        """The link is there."""


@attrs.define(eq=False)
class PeerLink(Owner):
    """This stage's side of the link to one other stage."""

    rank: int
    name: str
    address: Address | None
    """where to dial; None if the peer dials"""
    handler: Handler
    greeting: Callable[[], PeerGreeting]
    common: Common
    tls: Callable[[], ssl.SSLContext]
    proof: Proof | None = None
    """what the peer has shown, if it was the peer that dialled"""
    trouble: str = "not connected yet"
    """why there is no link now; empty if there is one"""
    _channel: Channel | None = None
    is_up: bool = False
    """whether the other side has let us in, or we it"""
    _was_up: bool = False
    """since the last dial"""
    _rival: _Rival | None = None
    """a newer connection, while the older one is asked whether it is there"""
    _task: asyncio.Task[None] | None = None
    _supervisor: Supervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._supervisor = Supervisor(f"the link to stage {self.name}", lambda error: self.break_off(str(error)))

    # -- making the connection ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to dial, if it is this side that does."""
        if self.address is not None:
            self._task = self._supervisor.keep(self._dial_for_ever, "dialling")

    async def _dial_for_ever(self) -> None:
        backoff = Backoff(PAUSE_FIRST_S, PAUSE_MOST_S)
        self.break_off("dialling begins anew")
        while True:
            self._was_up = False
            try:
                channel = await self._dial()
            except (OSError, ValueError, asyncio.TimeoutError) as error:  # a name that cannot be is a ValueError
                self._note(f"{self.address} cannot be reached: {str(error) or 'no answer in time'}")
            else:
                await self._stay(channel)
                if self._was_up:
                    backoff.reset()
            await backoff.pause()

    async def _dial(self) -> Channel:
        assert self.address is not None
        host, port = self.address.host, self.address.port
        tls = TlsLayer(self.tls(), is_server=False, host=host) if self.address.tls else None
        dialling = asyncio.get_running_loop().create_connection(lambda: self._make_channel(tls), host, port)
        try:
            _, channel = await asyncio.wait_for(dialling, DIAL_S)
        except BaseException:
            self._channel = None  # if there was one, the loop has closed it; uvloop then tells nobody that it is lost
            raise
        return channel

    def _make_channel(self, tls: TlsLayer | None) -> Channel:
        self._channel = Channel(self, LINK_BYTES_MAX, LINK_BYTES_MAX, tls)
        return self._channel

    async def _stay(self, channel: Channel) -> None:
        """Return when a connection is gone, which is soon if the other side does not let us in."""
        timer = asyncio.get_running_loop().call_later(WELCOME_S, self._give_up, channel)
        try:
            await channel.wait_until_gone()
        finally:
            timer.cancel()

    def _give_up(self, channel: Channel) -> None:
        if not self.is_up:
            channel.abort(f"{self.address} said nothing to this stage within {WELCOME_S:g} s")

    def opened(self, channel: Channel) -> None:
        """This side has dialled: greet, but show no token that others could read on the way."""
        assert self.address is not None
        greeting = self.greeting()
        is_private = self.address.tls or self.address.is_loopback
        if greeting.token and not is_private and not self.handler.configuration.insecure_allow_plaintext:
            channel.abort(
                f"this stage's token would go to {self.address} unencrypted, for everybody on the way to read: let stage "
                f"{self.name} speak TLS, or let it be read by insecure_allow_plaintext = true"
            )
        else:
            channel.send(encode(greeting))

    def accept(self, channel: Channel, welcome: Welcome, proof: Proof) -> None:
        """The other side has dialled, and may be let in. A connection that is there already is asked whether it is.

        If it answers, it stays, and the newer one is sent away: whoever has a token of that stage, or has taken its place, does
        not break what works. If not, as after a cut that only the other side has noticed, it is replaced.
        """
        if self._rival is not None:
            self._keep_out(channel, welcome)
            return
        older = self._channel
        if older is None or not older.is_open or not self.is_up:
            self._replace(channel, welcome, proof)
            return
        self._write(_PING)
        timer = self._supervisor.later(SIGN_OF_LIFE_S, self._decide, "letting one of two in", older, welcome)
        channel.owner = self._rival = _Rival(channel, proof, timer)

    def _decide(self, older: Channel, welcome: Welcome) -> None:
        """The older connection has answered, or it has not."""
        rival, self._rival = self._rival, None
        if rival is None or not rival.channel.is_open:
            return
        if self._channel is older and older.is_open and rival.has_older_answered:
            self._keep_out(rival.channel, welcome)
        else:
            self._replace(rival.channel, welcome, rival.proof)

    def _keep_out(self, channel: Channel, welcome: Welcome) -> None:
        reason = f"stage {self.name} is linked to stage {welcome.stage} already, by a connection that works"
        _log.warning("%s, and somebody else has come as that stage from %s", reason, channel.address)
        channel.owner = Owner()
        channel.close(reason, encode(Rejected("unavailable", reason)))

    def _replace(self, channel: Channel, welcome: Welcome, proof: Proof) -> None:
        if self._channel is not None:
            self._channel.owner = Owner()
            self._channel.abort("replaced by a newer connection")
            self._is_down("replaced by a newer connection")
        channel.owner = self
        channel.widen(LINK_BYTES_MAX)
        channel.buffered_bytes_max = LINK_BYTES_MAX
        self._channel, self.proof = channel, proof
        channel.send(encode(welcome))
        self._becomes_up()

    def _becomes_up(self) -> None:
        self.is_up = self._was_up = True
        self.trouble = ""
        _log.info("linked to stage %s", self.name)
        self.handler.connected(self.rank)

    # -- while it is there --------------------------------------------------------------------------------------------

    @property
    def healed(self) -> int:
        """How often it went on after an error that nobody has thought of."""
        return self._supervisor.healed

    @property
    def is_clogged(self) -> bool:
        """Whether so much waits to be sent that what can wait should."""
        return self._channel is not None and self._channel.is_open and self._channel.unsent_bytes > MUCH_BYTES

    def say(self, messages: Sequence[PeerMessage]) -> None:
        """Send what the state machine says."""
        if not self.is_up:
            return
        frame = encode(Say(list(messages)))
        half = len(messages) // 2
        if len(frame) > SAY_BYTES_MAX and half:
            self.say(messages[:half])
            self.say(messages[half:])
        else:
            self._write(frame)

    def send(self, message: Claim | Claimed | NamesGranted) -> None:
        """Say something about names, if the link is there. If not, it is said when it is."""
        if self.is_up:
            self._write(encode(message))

    def received(self, payloads: list[bytes]) -> None:
        """The peer says something. Whatever is met by that, what both sides know is made anew with the link."""
        if self._rival is not None:
            self._rival.has_older_answered = True
        try:
            self._receive(payloads)
        except OrderedPubSubError as error:
            self.break_off(str(error))
        except Exception as error:
            self._supervisor.note("hearing it", error)
            self.break_off(f"what it said was met by {error!r} here")

    def _receive(self, payloads: list[bytes]) -> None:
        said: list[PeerMessage] = []
        for payload in payloads:
            message = self._decode(payload)
            if isinstance(message, Say):
                said += message.messages
            else:
                self._handle(message)
        if said and self.is_up:
            self.handler.node.handle_peer(self.rank, said)
            if self._channel is not None and self.handler.node.is_behind(self.rank):
                self._channel.pause()

    def _decode(self, payload: bytes) -> FromPeer:
        """What a frame says, as far as it can be read, unless what cannot be must not get lost."""
        readable, errors = decode_from_peer(payload, f"stage {self.name}")
        for error in errors:
            self.handler.node.drop(self.rank, error)
        return readable

    def _handle(self, message: Welcome | Rejected | Differs | Claim | Claimed | NamesGranted | Ping | Pong) -> None:
        if isinstance(message, Ping):
            self._write(_PONG)
        elif isinstance(message, Welcome):
            if self.is_up:
                raise ProtocolError(f"stage {self.name} welcomed this one, which is in already")
            if message.stage != self.name:
                raise ProtocolError(f"{self.address} is stage {message.stage!r}, and {self.name!r} was expected there")
            self._becomes_up()
        elif isinstance(message, Rejected):
            self.break_off(f"stage {self.name} does not let this one in ({message.code}): {message.reason}")
        elif isinstance(message, Differs):
            if self._channel is not None:  # the other stage is to be able to say in what they differ, too
                self._channel.close(self.common.compared_with(message.common), self.common.message())
        elif isinstance(message, Pong) or not self.is_up:
            return
        elif isinstance(message, Claim):
            self.handler.claims.handle_claim(self.rank, message)
        elif isinstance(message, Claimed):
            self.handler.claims.handle_claimed(message)
        else:
            self.handler.claims.handle_names(self.rank, message)

    def check_alive(self, now: float, heartbeat_s: float) -> None:
        """Ask a silent peer whether it is there; give one up that does not say so."""
        channel = self._channel
        if channel is None or not channel.is_open or channel.is_paused:
            return
        silent_s = now - channel.heard_at
        if silent_s > 3 * heartbeat_s:
            channel.abort(f"nothing was heard of stage {self.name} for {silent_s:.0f} s")
        elif silent_s > heartbeat_s and self.is_up:
            self._write(_PING)

    def _write(self, frame: bytes) -> None:
        if self._channel is not None:
            self._channel.send(frame)
            if self._channel.is_clogged:
                self._channel.abort(f"stage {self.name} does not read: {LINK_BYTES_MAX} bytes were waiting")

    # -- the end of a connection --------------------------------------------------------------------------------------

    def broken(self, error: ProtocolError) -> None:
        """The peer sent what it must not."""
        self.break_off(str(error))

    def judge(self, access: Access) -> None:
        """Who may link has changed: disconnect who may not any more."""
        reason = "the other stage took the right to link away from this one"
        theirs = [] if self._channel is None or self.proof is None else [(self._channel, self.proof)]
        theirs += [] if self._rival is None else [(self._rival.channel, self._rival.proof)]
        for channel, proof in theirs:
            identity = access.identify(proof)
            if identity is None or not identity.may("stage", self.name):
                channel.close(reason, encode(Rejected("denied", reason)))

    def note(self, trouble: str) -> None:
        """Something keeps the other side from linking."""
        if not self.is_up:
            self._note(trouble)

    def go_on(self) -> None:
        """Read on."""
        if self._channel is not None:
            self._channel.resume()

    def break_off(self, reason: str) -> None:
        """Connect anew: the peer has said what it must not, or for a state machine that is not there any more."""
        if self._channel is not None:
            self._channel.abort(reason)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._channel = None
        self._is_down(reason)

    def _is_down(self, reason: str) -> None:
        if self.is_up:
            self.is_up = False
            self.handler.node.disconnected(self.rank)
        self._note(reason)

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("no link to stage %s: %s", self.name, trouble)
        self.trouble = trouble

    async def close(self) -> None:
        """Dial no more, let nobody in, and disconnect."""
        if self._task is not None:
            await end_task(self._task)
        rival, self._rival = self._rival, None
        if rival is not None:
            rival.timer.cancel()
            rival.channel.close("this stage stops", encode(Rejected("draining", "this stage stops")))
        channel = self._channel
        if channel is not None and channel.is_open:
            channel.close("this stage stops")
            await channel.wait_until_gone()


@attrs.define(eq=False)
class _Rival(Owner):
    """A newer connection of a stage that has one already."""

    channel: Channel
    proof: Proof
    timer: asyncio.TimerHandle
    """when the older one must have answered"""
    has_older_answered: bool = False
    """whether anything was heard of the older one since"""
