"""A home over the network: one connection to one of the stages, and another one when that is lost.

Any stage will do. The addresses that were given are tried in their order, then those that the stages say of themselves; after
a loss the same stage is tried first (unless it had fallen silent), then the next, with growing pauses. They grow as well while
stages let this client in and send it away again, or lose it at once: only a connection that has lasted begins anew with short
ones. The session goes on at whichever answers: it asks again what it has no answer to, and its id with its secret is all that
a stage needs to know it by.

What cannot get better by trying again (a token that is not accepted, a name that is taken) ends `open` with the reason; later
it is tried again all the same, for rights are given back and names get free, and `trouble` says what is wrong meanwhile. Whose
name was given to another client meanwhile waits outside until that one is gone, as a newcomer would.

A request that is larger than the stage takes is refused here, since the stage would end the connection over it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from ordered_pubsub.client.home.home import NOBODY, Home, Listener
from ordered_pubsub.client.home.talk import Talk
from ordered_pubsub.config.addresses import Address, parse_address
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.messages import Answer, FromSubscriber, Refusal, Request, ToSession
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import AccessDenied, ConfigurationError, OrderedPubSubError, ProtocolError, UnavailableError
from ordered_pubsub.supervision import Backoff, Supervisor
from ordered_pubsub.wire.framing import HEAD_BYTES
from ordered_pubsub.wire.protocol import (
    REQUESTS_MAX,
    VERSION,
    Ask,
    ClientGreeting,
    Inquire,
    Ping,
    Report,
    TurnKeys,
    Welcome,
    encode,
)
from ordered_pubsub.wire.sessions import SessionKey
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub.wire.tls import TlsLayer

_log = logging.getLogger(__name__)

DIAL_S = 5.0
PAUSE_FIRST_S = 0.05
PAUSE_MOST_S = 2.0
LASTED_S = 5.0
"""A connection that was lost earlier may be lost for the same reason again."""
GROWTH_BYTES = 8
"""By so much a request can grow when it is asked again, since its `done` does."""
ADDRESSES_MAX = 64
HEARTBEAT_S_MIN, HEARTBEAT_S_MOST = 0.1, 60.0
"""Between these, a stage says how often it wants to be heard."""
_PING = encode(Ping())


class NetworkHome(Home):
    """One client's way to the stages of a system."""

    def __init__(
        self,
        addresses: Sequence[Address],
        token: str | Callable[[], str] = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
        connect_timeout_s: float = 0.0,
    ) -> None:
        """What `token` and `tls` return is asked for anew at each connection, so files may be replaced meanwhile.

        While no stage can be reached `open` tries again, for `connect_timeout_s`: they may all be just starting.
        """
        for address in addresses:
            if token and not address.tls and not address.is_loopback:
                raise ConfigurationError(
                    f"the token would go to {address} unencrypted, for everybody on the way to read: use opss:// (TLS)"
                )
        self._addresses = list(addresses)
        self._token = token
        self._tls = tls
        self._key = SessionKey("", b"")
        self._name: str | None = None
        self._listener = NOBODY
        self._talk: Talk | None = None
        self._topology: Topology | None = None
        self._welcome: Welcome | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self._reports: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reports_asked = 0
        self._resumes = False
        """whether the name is this client's, as far as it knows"""
        self._let_in_at = 0.0
        self._connect_timeout_s = connect_timeout_s
        self._backoff = Backoff(PAUSE_FIRST_S, PAUSE_MOST_S)
        self._supervisor = Supervisor("the connection to the stages", lambda error: self._listener.on_failure(error))
        self._must_pause = False
        """whether to dial again at once could end as it did before"""
        self._sent_most = 0
        """the last request that a stage may have seen"""
        self.trouble = ""

    @property
    def where(self) -> str:
        """The stage that it is connected to, or why there is none."""
        if self._talk is None or self._welcome is None:
            return f"none: {self.trouble or 'not connected yet'}"
        return f"stage {self._welcome.stage} at {self._talk.address}"

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where stages are, as far as it is known: those that were given, and those that it was told of."""
        return tuple(self._addresses)

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        """Connect to the first stage that answers. Cancelled, it leaves nothing open."""
        self._key, self._name, self._listener = key, name, listener
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._connect_timeout_s
        while troubles := await self._connect_to_any():
            left_s = give_up_at - loop.time()
            if left_s <= 0:
                waited = (
                    f"; tried for {self._connect_timeout_s:g} s (connect_timeout_s)" if self._connect_timeout_s else ""
                )
                raise UnavailableError(
                    f"no stage can be reached: {troubles}{waited}. Is it running (ordered-pubsub serve), and is sequencer= right?"
                )
            if troubles != self.trouble:
                _log.warning("no stage can be reached yet, trying again for %.3g s: %s", left_s, troubles)
                self.trouble = troubles
            await asyncio.sleep(min(self._backoff.next_s(), left_s))
        self._backoff.reset()
        self.trouble = ""
        self._tasks = [
            self._supervisor.keep(self._stay_connected, "staying connected"),
            self._supervisor.keep(self._watch, "asking whether the stage is there"),
        ]
        assert self._topology is not None
        return self._topology

    async def _connect_to_any(self, passing: type[OrderedPubSubError] = UnavailableError) -> str:
        """Connect to the first stage that answers, or say what is wrong with each. Raises what waiting does not change."""
        troubles: list[str] = []
        for address in list(self._addresses):
            try:
                await self._connect(address)
                return ""
            except passing as error:
                troubles.append(str(error))
        return "; ".join(troubles)

    async def _connect(self, address: Address) -> None:
        """Connect to one stage, and be let in. Raises an `UnavailableError`, or what trying again does not change."""
        token = self._token() if callable(self._token) else self._token
        greeting = ClientGreeting(VERSION, self._key.session, self._key.secret, self._name, token, self._resumes)
        talk = Talk(self, address, greeting, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait_for(self._dial(address, talk), DIAL_S)
            welcome = await asyncio.wait_for(talk.welcome, 2 * DIAL_S)
            self._check_topology(address, welcome)
            if talk.farewell or not talk.is_open:  # welcomed, and sent away before this task had its turn
                raise UnavailableError(talk.farewell or f"{address} closed the connection at once")
        except BaseException as error:
            talk.welcome.cancel()
            if talk.welcome.done() and not talk.welcome.cancelled():
                talk.welcome.exception()  # it is raised from here, or replaced by what is
            talk.abort("not let in")
            if isinstance(error, (OSError, asyncio.TimeoutError)):
                nobody = isinstance(error, ConnectionRefusedError)  # asyncio's own words are for those who know it
                reason = "nobody listens there" if nobody else str(error) or "no answer in time"
                raise UnavailableError(f"{address}: {reason}") from error
            raise
        self._talk, self._welcome = talk, welcome
        self._resumes, self._let_in_at = True, asyncio.get_running_loop().time()
        self._learn(address, welcome)

    async def _dial(self, address: Address, talk: Talk) -> None:
        tls = None
        if address.tls:
            context = self._tls() if self._tls is not None else ssl.create_default_context()
            tls = TlsLayer(context, is_server=False, host=address.host)
        await asyncio.get_running_loop().create_connection(lambda: talk.make_channel(tls), address.host, address.port)

    def _check_topology(self, address: Address, welcome: Welcome) -> None:
        try:
            topology = Topology.load(welcome.topology)
            levels = Levels.load(welcome.levels)
            times = Times(session_ttl_s=welcome.session_ttl_s, lease_s=welcome.lease_s)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"what stage {address} says of the line of stages cannot be read: {error}") from error
        if self._topology is not None:
            topology.check_same(self._topology.fingerprint, f"this client, compared with stage {address},")
        self._topology, self.levels, self.times = topology, levels, times
        self.payload_bytes_max, self.has_tags = welcome.payload_bytes_max, welcome.tags

    def _learn(self, address: Address, welcome: Welcome) -> None:
        """Put this address first, and add what the stage knows."""
        at = self._addresses.index(address)
        self._addresses = self._addresses[at:] + self._addresses[:at]
        for text in welcome.addresses:
            try:
                learned = parse_address(text)
            except ConfigurationError:
                continue  # the stage's own, and of no use here
            may_be_used = learned.tls or (not address.tls and (not self._token or learned.is_loopback))
            if may_be_used and learned not in self._addresses and len(self._addresses) < ADDRESSES_MAX:
                self._addresses.append(learned)

    async def _stay_connected(self) -> None:
        while True:
            if self._talk is not None:  # else an error has ended this task before it had another connection
                await self._gone.wait()
            self._gone.clear()
            if self._must_pause:
                await self._backoff.pause()
            while troubles := await self._connect_to_any(OrderedPubSubError):  # whatever it is: rights are given back
                self.trouble = troubles
                await self._backoff.pause()
            self.trouble = ""
            self._listener.on_state(True, self.where)

    async def _watch(self) -> None:
        """Ask a silent stage whether it is there; give it up if it does not say so."""
        loop = asyncio.get_running_loop()
        while True:
            assert self._welcome is not None
            heartbeat_s = min(HEARTBEAT_S_MOST, max(HEARTBEAT_S_MIN, self._welcome.heartbeat_s))
            await asyncio.sleep(heartbeat_s)
            talk = self._talk
            if talk is None or talk.channel is None:
                continue
            silent_s = loop.time() - talk.channel.heard_at
            if silent_s > 3 * heartbeat_s:
                self._addresses.append(self._addresses.pop(0))  # this one, which would be waited for again
                talk.channel.abort(f"nothing was heard for {silent_s:.0f} s")
            elif silent_s > 0.5 * heartbeat_s:
                talk.send(_PING)

    # -- talking ------------------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests to the stage; when there is none, they are lost and asked again."""
        if self._talk is None or self._welcome is None:
            return
        for first in range(0, len(requests), REQUESTS_MAX):
            self._send(self._talk, self._welcome, requests[first : first + REQUESTS_MAX])

    def _send(self, talk: Talk, welcome: Welcome, requests: Sequence[Request]) -> None:
        """Send requests in as few frames as the stage takes them in, and refuse one that it would not take."""
        frame = encode(Ask(list(requests)))
        size, half = len(frame) - HEAD_BYTES, len(requests) // 2
        if half and size > welcome.frame_bytes_max:
            self._send(talk, welcome, requests[:half])
            self._send(talk, welcome, requests[half:])
        elif not half and size + GROWTH_BYTES > welcome.frame_bytes_max and requests[0].sequence > self._sent_most:
            # One that was sent before may have been taken by a stage whose frames are larger: only a stage may refuse it.
            reason = (
                f"the request has {size} bytes, and stage {welcome.stage!r} takes at most {welcome.frame_bytes_max} at once "
                "(limits.frame_bytes_max): name fewer topics in one call, or let the stage take more"
            )
            refusals: list[Answer | Refusal] = [requests[0].refused("limit", reason)]
            self._supervisor.soon(self.answered, "refusing a request", refusals)  # no answer comes from within `send`
        else:
            talk.send(frame)
            self._sent_most = max(self._sent_most, requests[-1].sequence)

    def answered(self, answers: list[Answer | Refusal]) -> None:
        """The stage brings answers."""
        self._listener.on_answers(answers)

    def say(self, message: FromSubscriber) -> None:
        """Send what a subscription says; without a stage it is lost."""
        if self._talk is not None:
            self._talk.send(encode(message))

    def told(self, messages: list[ToSession]) -> None:
        """The stage tells subscriptions something."""
        self._listener.on_told(messages)

    async def inquire(self, timeout_s: float) -> dict[str, Any]:
        """How the stage is."""
        return await self._request(Inquire, timeout_s)

    async def turn_keys(self, timeout_s: float) -> int:
        """Let another epoch of keys begin; return the one that is used until then."""
        report = await self._request(TurnKeys, timeout_s)
        return int(report["key_epoch"])

    async def _request(self, kind: type[Inquire] | type[TurnKeys], timeout_s: float) -> dict[str, Any]:
        talk = self._talk
        if talk is None:
            raise UnavailableError(f"no stage is connected now: {self.trouble}")
        self._reports_asked += 1
        number = self._reports_asked
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reports[number] = future
        talk.send(encode(kind(number)))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise UnavailableError(f"stage {talk.address} did not say within {timeout_s:g} s how it is") from None
        finally:
            del self._reports[number]

    def reported(self, report: Report) -> None:
        """The stage says how it is."""
        future = self._reports.get(report.number)
        if future is None or future.done():
            return
        if report.refusal:
            future.set_exception(AccessDenied(report.refusal))
        else:
            future.set_result(report.data)

    def lost(self, talk: Talk, reason: str) -> None:
        """A connection is gone."""
        if talk is not self._talk:
            return  # it was never let in
        self._talk = None
        self.trouble = reason
        has_lasted = asyncio.get_running_loop().time() - self._let_in_at >= LASTED_S
        if has_lasted:
            self._backoff.reset()
        self._must_pause = bool(talk.farewell) or not has_lasted
        for future in self._reports.values():
            if not future.done():
                future.set_exception(UnavailableError(f"the connection was lost before it was answered: {reason}"))
        self._gone.set()
        self._listener.on_state(False, reason)

    def lose_name(self) -> None:
        """Another client has the name now: to come again is to ask for it anew."""
        self._resumes = False

    async def close(self) -> None:
        """Disconnect; no answer comes any more."""
        self._listener = NOBODY
        for task in self._tasks:
            await end_task(task)
        talk = self._talk
        if talk is not None and talk.channel is not None:
            talk.end("the client is closed")
            await talk.channel.wait_until_gone()
