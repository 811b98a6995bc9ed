"""One connection to an MQTT broker on the running event loop.

paho's own loop would need a thread. Instead the event loop watches the socket: it reads when something has come, writes at the
end of each turn in which something was said, and lets paho look at the keep-alive once in a while. Only making a connection
blocks (name, TCP, TLS), and happens in an executor; while it runs there, nothing else touches the client.

Whoever owns the link is told when the connection breaks, and decides what then.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Protocol

import attrs
from paho.mqtt.client import ConnectFlags, DisconnectFlags
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.errors import AdapterError
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub_adapters.mqtt_packets import PacketClient
from ordered_pubsub_adapters.mqtt_properties import properties
from ordered_pubsub_adapters.mqtt_reasons import not_connected, not_let_in, said
from ordered_pubsub_adapters.urls import BrokerUrl

READS_PER_TURN = 256
"""So many packets are read before others have their turn of the event loop."""
QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux only. Mosquitto, unless `set_tcp_nodelay` is on, holds a small packet back until the kernel here has acknowledged the one
before, and a kernel that hopes to do that along with something else takes up to 40 ms. It forgets what it was told, so it is
told again whenever we have nothing to say and wait for the broker."""
TICK_S = 1.0
CLOSE_S = 2.0


class TlsSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails; paho forgets to."""

    def do_handshake(self, block: bool = False) -> None:
        """Agree with the broker, or hang up."""
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


@attrs.frozen
class Welcome:
    """What the broker said when it let us in."""

    is_resumed: bool
    """it still has the session of the last connection"""
    receive_max: int
    packet_bytes_max: int | None
    qos_max: int
    session_s: int | None
    """how long it keeps the session, if that is not what was asked for"""


class Owner(Protocol):
    """Who is told what happens on a link. None of it raises."""

    def welcomed(self, welcome: Welcome) -> None:
        """A connection begins; nothing has been read from it yet."""

    def was_read(self) -> bool:
        """Something may have come, and there may be room to say something. Returns whether the broker owes an answer."""

    def was_written(self) -> None:
        """All that was said has left."""

    def lost(self, reason: str) -> None:
        """The connection has broken."""


@attrs.define(eq=False)
class Link:
    """A client's connection, which can be made again after it has broken."""

    url: BrokerUrl
    client: PacketClient
    keepalive_s: int
    owner: Owner
    supervisor: Supervisor
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _attempts: int = 0
    _attempt: asyncio.Future[None] | None = None
    """a connection that is being made in the executor"""
    _welcome: asyncio.Future[Welcome] | None = None
    """while somebody waits for it"""
    _socket: Any = None
    """what the loop watches"""
    _is_reading: bool = False
    _is_writing: bool = False
    """the socket takes nothing now; the loop tells when it does"""
    _is_flushing: bool = False
    _timer: asyncio.TimerHandle | None = None
    _closed: asyncio.Event = attrs.field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        client = self.client
        client.connect_timeout = self.url.connect_timeout_s
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_want_write
        client.on_socket_unregister_write = self._on_all_written

    # -- making a connection ------------------------------------------------------------------------------------------

    async def connect(self, asked: Properties, is_new: bool) -> Welcome:
        """Connect to the next of the hosts. `is_new` asks the broker to forget a session that it may have."""
        give_up_at = self._loop.time() + self.url.connect_timeout_s
        host, port = self.url.hosts[self._attempts % len(self.url.hosts)]
        self._attempts += 1
        welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._welcome = welcome
        try:
            await self._open_socket(host, port, asked, is_new, give_up_at)
            self._attach()
            await asyncio.wait((welcome,), timeout=give_up_at - self._loop.time())
            if not welcome.done():
                raise AdapterError(
                    f"{self.url.shown}: {host}:{port} is connected and says nothing for {self.url.connect_timeout_s:g} s "
                    f"(connect_timeout_s); is it an MQTT broker{'' if self.url.is_encrypted else ', and one without TLS'}?"
                )
            outcome = welcome.result()
            if self._socket is None:
                raise AdapterError(f"{self.url.shown}: the broker let us in, and ended the connection at once")
            return outcome
        except BaseException:
            self._welcome = None
            self.drop()
            raise
        finally:
            self._welcome = None
            if welcome.done() and not welcome.cancelled():
                welcome.exception()  # it may have come too late for anybody to look at it

    async def _open_socket(self, host: str, port: int, asked: Properties, is_new: bool, give_up_at: float) -> None:
        client, url = self.client, self.url

        def connect() -> None:
            password = url.read_password()
            client.username_pw_set(url.user or ("" if password is not None else None), password)
            client.connect_async(host, port, self.keepalive_s, clean_start=is_new, properties=asked)
            client.reconnect()

        if self._attempt is None:
            self._attempt = attempt = self._loop.run_in_executor(None, connect)
            attempt.add_done_callback(self._attempted)
            await asyncio.wait((attempt,), timeout=give_up_at - self._loop.time())
            if attempt.done():
                if (error := attempt.exception()) is not None:
                    raise not_connected(error, host, port, url) from error
                return
        raise AdapterError(
            f"{url.shown}: no connection to {host}:{port} within {url.connect_timeout_s:g} s (connect_timeout_s); is the address "
            "right, and does the network let it through?"
        )

    def _attempted(self, attempt: asyncio.Future[None]) -> None:
        self._attempt = None
        failed = attempt.cancelled() or attempt.exception() is not None
        if not failed and self._welcome is None:  # nobody waits for it any more
            self.client.hang_up()

    def _on_connect(
        self, client: Any, data: Any, flags: ConnectFlags, reason: ReasonCode, more: Properties | None
    ) -> None:
        """CONNACK. After this, paho sends again what it still has; so whoever wants to forget that must do it now."""
        if self._welcome is None or self._welcome.done():
            return
        if reason.is_failure:
            self._welcome.set_exception(AdapterError(f"{self.url.shown}: {not_let_in(reason, more)}"))
            return
        welcome = Welcome(
            is_resumed=flags.session_present,
            receive_max=getattr(more, "ReceiveMaximum", 65_535),
            packet_bytes_max=getattr(more, "MaximumPacketSize", None),
            qos_max=getattr(more, "MaximumQoS", 2),
            session_s=getattr(more, "SessionExpiryInterval", None),
        )
        self.owner.welcomed(welcome)
        self._welcome.set_result(welcome)

    # -- while it is there --------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        self._socket = self.client.socket()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is small was put together already
        self._closed.clear()
        self.resume()
        self._timer = self.supervisor.later(TICK_S, self._tick, "the tick")
        self._flush()

    def pause(self) -> None:
        """Stop reading."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Read, from now on."""
        if not self._is_reading and self._socket is not None:
            self._is_reading = True
            self._loop.add_reader(self._socket, self.supervisor.guarded, self._read, "reading")
            self.supervisor.soon(self._read, "reading")  # TLS may hold what the socket has no more

    def _read(self) -> None:
        """Read what there is, but not for ever. With TLS, more may be there than the socket knows."""
        client = self.client
        for _ in range(READS_PER_TURN):
            seen = client.packets
            if not self._is_reading or not self._guarded(client.loop_read) or client.packets == seen:
                break
        if self.owner.was_read() and not self._is_flushing and self._socket is not None and QUICK_ACK is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)
        if self._is_reading and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self.supervisor.soon(self._read, "reading")

    def _flush(self) -> None:
        self._is_flushing = False
        if self._socket is None or not self._guarded(self.client.loop_write) or self._socket is None:
            return
        if not self.client.want_write():
            self.owner.was_written()
        elif not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._socket, self.supervisor.guarded, self._flush, "writing")

    def _tick(self) -> None:
        """Let paho say that we are alive, and see whether the broker is: what has come counts first."""
        self._timer = self.supervisor.later(TICK_S, self._tick, "the tick")
        if self._is_reading:
            self._read()
        self._guarded(self.client.loop_misc)

    def _guarded(self, step: Any) -> bool:
        """Whether one of paho's steps went well. What it raises is a packet that it cannot read: there is no going on."""
        try:
            return not step()
        except Exception as error:
            self.client.hang_up()
            self._lose(f"the broker sent what cannot be read: {error!r}")
            return False

    # -- paho calls ---------------------------------------------------------------------------------------------------

    def _on_want_write(self, client: Any, data: Any, sock: Any) -> None:
        """Something was said. Also called in the executor, where the loop must be left alone."""
        if self._socket is not None and not self._is_flushing:
            self._is_flushing = True
            self.supervisor.soon(self._flush, "writing")

    def _on_all_written(self, client: Any, data: Any, sock: Any) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(sock)

    def _on_socket_close(self, client: Any, data: Any, sock: Any) -> None:
        if self._socket is not None:
            self._on_all_written(client, data, sock)
            self.pause()
            self._socket = None
            self._closed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_disconnect(
        self, client: Any, data: Any, flags: DisconnectFlags, reason: ReasonCode, more: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._lose(f"the broker ended the connection: {said(reason, more)}")
        elif str(reason) == "Keep alive timeout":
            self._lose(f"the broker has not been heard of for longer than keepalive_s allows ({self.keepalive_s} s)")
        else:
            self._lose("the connection broke")

    def _lose(self, reason: str) -> None:
        if self._welcome is None:
            self.owner.lost(reason)
        elif not self._welcome.done():
            wanted = " Or does it want a certificate (cert, key)?" if self.url.is_encrypted else ""
            why = f"{reason} before the broker had let us in; is it an MQTT broker that speaks MQTT 5?{wanted}"
            self._welcome.set_exception(AdapterError(f"{self.url.shown}: {why}"))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Say good-bye, so that the broker forgets the session, and hang up."""
        if self._socket is not None:
            self.client.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0))
            waiter = asyncio.ensure_future(self._closed.wait())
            await asyncio.wait((waiter,), timeout=CLOSE_S)
            waiter.cancel()
        self.drop()

    def drop(self) -> None:
        """Hang up, without a word; what is being connected hangs up as soon as it can."""
        if self._attempt is None:
            self.client.hang_up()
