"""One client's session at an MQTT broker, over all the connections that it takes.

    publish ──> outbox ─┐          ┌─> inbox ──> on_frames
                        link (paho, socket)
    subscribe ──────────┘          └─> lost ──> again, after a moment ──> welcomed

When the connection breaks, what is being published or subscribed to fails at once. The session then connects again until it
is closed, first at once and later every few seconds, with chance in it so that not all clients of a broker that restarts come
in the same moment. If the broker has forgotten the session, it subscribes again before anybody may publish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.adapter import Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError, OrderedPubSubError
from ordered_pubsub.supervision import Backoff, Failing, Supervisor
from ordered_pubsub_adapters.mqtt_flow import PACKET_BYTES_MAX, RECEIVE_MAX, WINDOW, Inbox, Outbox
from ordered_pubsub_adapters.mqtt_link import Link, TlsSocket, Welcome
from ordered_pubsub_adapters.mqtt_packets import PacketClient
from ordered_pubsub_adapters.mqtt_properties import properties
from ordered_pubsub_adapters.mqtt_subscriptions import Subscriptions
from ordered_pubsub_adapters.names import NameRules, NameTable
from ordered_pubsub_adapters.urls import BrokerUrl

_log = logging.getLogger(__name__)

RULES = NameRules(separator="/", special="+#", bytes_max=65_535, reserved=("$",))
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
REST_MAX_S = 5.0
"""So long nothing is read when the inbox is full; then what nobody counts is dropped, so that the rest can be seen."""


class Session:
    """What an open adapter is."""

    def __init__(
        self,
        url: BrokerUrl,
        qos: int,
        keepalive_s: int,
        session_s: int,
        on_state: StateHandler,
        on_failure: Failing,
    ) -> None:
        self.session_s = session_s
        """how long the broker keeps the session while we are away"""
        self._url, self._qos, self._keepalive_s, self._on_state = url, qos, keepalive_s, on_state
        self._names = NameTable(RULES)
        self._supervisor = Supervisor(url.shown, on_failure)
        self._up = asyncio.Event()
        self._broken = asyncio.Event()
        self._reason = "the client was closed"
        """why it is not connected, if it is not"""
        self._tasks: list[asyncio.Task[None]] = []
        self._rest: asyncio.Task[None] | None = None
        self._is_overrun = False
        self._is_closed = False

    # -- opening and closing --------------------------------------------------------------------------------------------

    async def open(self, on_frames: FramesHandler) -> None:
        """Connect, or raise; the session then keeps itself."""
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(None, self._url.tls_context)
        # 23 characters are what every broker must accept.
        self._client = client = PacketClient(f"ops{token_hex(10)}")
        client.max_inflight_messages_set(
            0
        )  # the outbox counts; paho would look at all of them at every acknowledgement
        if context is not None:
            context.sslsocket_class = TlsSocket
            client.tls_set_context(context)
        if self._qos:
            client.on_publish = self._on_publish
        self._outbox = Outbox(client, self._names, self._qos)
        self._subscriptions = Subscriptions(client, self._names, self._url, self._qos, PACKET_BYTES_MAX)
        self._inbox = Inbox(client, self._names, on_frames, self._pause)
        self._link = Link(self._url, client, self._keepalive_s, self, self._supervisor)
        await self._connect_to_any()
        self._tasks = [
            self._supervisor.must(self._inbox.run(), "giving on what has come"),
            self._supervisor.keep(self._keep, "staying connected"),
        ]

    async def close(self) -> None:
        """End the session at the broker, if it can be told in time."""
        self._is_closed = True
        self._up.clear()
        tasks = [task for task in (*self._tasks, self._rest) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._fail("the client was closed")
        await self._link.end()

    async def _connect_to_any(self) -> None:
        for left in reversed(range(len(self._url.hosts))):
            try:
                await self._connect(is_new=True)
                return
            except AdapterError:
                if not left:
                    raise

    # -- the connection -------------------------------------------------------------------------------------------------

    async def _connect(self, is_new: bool) -> Welcome:
        asked = properties(PacketTypes.CONNECT, SessionExpiryInterval=self.session_s, ReceiveMaximum=RECEIVE_MAX)
        self._broken.clear()
        self._inbox.disconnect()
        welcome = await self._link.connect(asked, is_new)
        try:
            self._check_qos(welcome)
            if welcome.is_resumed:
                await self._subscriptions.leave()
            else:
                await self._subscriptions.renew()
            if self._broken.is_set():
                raise AdapterError(self._reason)
        except BaseException:
            self._link.drop()
            raise
        self._up.set()
        return welcome

    def _check_qos(self, welcome: Welcome) -> None:
        if welcome.qos_max < self._qos:
            raise AdapterError(
                f"{self._url.shown}: the broker offers QoS {welcome.qos_max} at most, and QoS {self._qos} was asked for: take "
                f"?qos={welcome.qos_max}, or allow more there"
            )

    async def _keep(self) -> None:
        """Come back whenever the connection has broken."""
        while True:
            if self._up.is_set():  # else an error has ended this task before it had another connection
                await self._broken.wait()
            self._on_state(False, self._reason)
            welcome = await self._come_back()
            kept = "has kept" if welcome.is_resumed else "has forgotten"
            if not welcome.is_resumed and self._qos and self.session_s and self._names.subscribed:
                _log.warning("%s", self._loss())
            self._on_state(True, f"{self._url.shown}: connected again; the broker {kept} the session")

    def _loss(self) -> str:
        return (
            f"{self._url.shown}: the broker has forgotten the session, and with it what was published meanwhile on "
            f"{len(self._names.subscribed)} topics: the client was away for more than {self.session_s} s (session_s), or the "
            "broker was started again without what it had stored. Subscriptions that miss events wait for them: close them, "
            "and subscribe again"
        )

    async def _come_back(self) -> Welcome:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            await backoff.pause()
            if self._inbox.is_full:  # a new session may bring as much again
                await self._wait_for_room(REST_MAX_S)
            try:
                return await self._connect(is_new=False)
            except OrderedPubSubError as error:
                if str(error) != self._reason:
                    self._reason = str(error)
                    _log.warning("not connected yet: %s", error)

    def welcomed(self, welcome: Welcome) -> None:
        """A connection begins: forget what the broker has forgotten, and keep to its limits."""
        if not welcome.is_resumed:
            self._client.forget_session()
        if welcome.session_s is not None:
            self.session_s = welcome.session_s
        self._inbox.restart(welcome.is_resumed)
        self._outbox.restart(keep_unacknowledged=welcome.is_resumed and self._qos == 2)
        self._outbox.window = min(WINDOW, welcome.receive_max) if self._qos else WINDOW
        self._outbox.packet_bytes_max = welcome.packet_bytes_max or PACKET_BYTES_MAX
        self._subscriptions.packet_bytes_max = self._outbox.packet_bytes_max

    def lost(self, reason: str) -> None:
        """The connection has broken."""
        if not self._is_closed:
            self._reason = f"{self._url.shown}: {reason}"
            self._up.clear()
            self._fail(self._reason)
            self._broken.set()

    def _fail(self, reason: str) -> None:
        self._outbox.fail(reason)
        self._subscriptions.fail(reason)

    async def _until_up(self) -> None:
        """Wait for the connection, if it is broken; but not for long."""
        if not self._up.is_set() and not self._is_closed:
            await _first(self._up, self._url.connect_timeout_s)
        if not self._up.is_set():
            raise AdapterError(f"not connected: {self._reason}")

    # -- publishing and receiving ---------------------------------------------------------------------------------------

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet that the broker takes."""
        return self._outbox.packet_bytes_max

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Publish frames; see `Outbox`."""
        await self._until_up()
        await self._outbox.publish(frames)

    def _on_publish(self, client: Any, data: Any, mid: int, reason: ReasonCode, more: Properties) -> None:
        self._outbox.take(mid, reason)

    def was_written(self) -> None:
        """At QoS 0 that is all there is to know."""
        if not self._qos:
            self._outbox.take_written()
            self._outbox.fill()

    def was_read(self) -> bool:
        """The window may have room."""
        self._outbox.fill()
        return self._outbox.is_waiting

    def _pause(self) -> None:
        """The inbox is full: stop reading, unless that has been tried for long enough."""
        if self._rest is None and not self._is_overrun:
            self._link.pause()
            self._rest = self._supervisor.must(self._take_rest(), "resting")

    async def _take_rest(self) -> None:
        """Read nothing until there is room again, or until it has been too long: other answers wait behind."""
        await self._wait_for_room(REST_MAX_S)
        if self._inbox.is_full:
            self._is_overrun = True
            self._link.resume()
            _log.warning(
                "%s: what came has not been taken for %g s; messages of QoS 0 are dropped until it is",
                self._url.shown,
                REST_MAX_S,
            )
            await self._wait_for_room()
            _log.warning("%s: %d messages of QoS 0 have been dropped so far", self._url.shown, self._inbox.dropped)
        self._is_overrun = False
        self._rest = None
        self._link.resume()

    async def _wait_for_room(self, timeout_s: float | None = None) -> None:
        if self._inbox.is_full:
            self._inbox.room.clear()
            await _first(self._inbox.room, timeout_s)

    # -- subscribing ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe, and return when the broker has agreed to all of it."""
        await self._until_up()
        await self._subscriptions.subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Take no more of these topics, and tell the broker, now or when the connection is back."""
        self._subscriptions.forget(topics)
        try:
            if self._up.is_set():
                await self._subscriptions.leave()
        except AdapterError:
            if self._up.is_set():
                raise


async def _first(event: asyncio.Event, timeout_s: float | None) -> None:
    """Return when the event has happened, or the time is over."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((waiter,), timeout=timeout_s)
    finally:
        waiter.cancel()
