"""`mqtt://` and `mqtts://`: events over an MQTT 5 broker, with paho-mqtt on the running event loop.

    mqtt://user:password@broker:1883?qos=1&keepalive_s=60&session_s=300

Theory of operation
===================
An event is a PUBLISH whose payload is the application's own, so plain clients read and write the same topics. Its content type
is MQTT's, its other headers are user properties, and its stamp is the correlation data, behind a mark.

paho's own loop would need a thread. Instead the event loop watches the socket: it reads when something has come, writes at the
end of each turn in which something was said, and lets paho look at the keep-alive once in a while. Only making a connection
blocks (name, TCP, TLS), and happens in an executor.

Each client has one connection, and a session at the broker that outlives breaks of `session_s` seconds. When the connection
breaks, everything that is being published fails, to be handed over again, and the session connects again by itself. If the
broker has forgotten it, the topics are subscribed to again, and the log says that events were lost. Several hosts in the URL are
tried in turn; unless they are one cluster, the next one does not know the session.

What can be relied on, and why:

- `qos=0`: nobody counts. Frames are lost when a connection breaks or a queue is full.
- `qos=1`, the default: the broker confirms what it takes, and so do we, when `on_frames` has returned. What was not confirmed
  when the connection broke comes again, so there are duplicates.
- `qos=2`: the broker repeats nothing. What `publish` raised for is another message to it when it is handed over again. paho
  alone cannot do it (`_mqtt_fast` says why), so it is refused with a release that this does not fit.
- The messages of one topic keep their order, since a broker keeps it from each publisher to each subscriber, and each has one
  connection. All publishers of a topic should have the same QoS: between different ones a broker promises nothing.
- What is published while a subscriber is away is kept as far as the broker keeps it. When Mosquitto is killed it forgets all
  that it has not saved (`persistence`, every half an hour if nothing else is configured). And without telling anybody it drops
  what exceeds `max_queued_messages`, 1000 if nothing else is configured: raise that where no event may be lost.
- MQTT does not hold up publishers. A subscriber that does not keep up fills queues at the broker, and not this process.

Going out, all calls of `publish` share a window of messages that the broker has not acknowledged. Coming in, messages are
acknowledged when the application has taken them; the broker sends no more than `RECEIVE_MAX` that were not. At QoS 0 nobody
counts: what comes when `HELD_BYTES_MAX` wait for the application is dropped.

Costs. With Mosquitto 2.0, QoS 1, 200 bytes of payload and a stamp of 90, plain paho with MQTT 5 and its loop in a thread takes
a publisher 50 µs of processor time a message, and a subscriber 37; `_mqtt_fast` takes 16 and 12. The stamp as a user property,
which is text, would take 0.6 µs more on either side and 45 to 70 bytes more, and a plain subscriber with paho 7 µs more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ordered_pubsub.adapter import Capabilities, Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError, OrderedPubSubError
from ordered_pubsub_adapters._mqtt_fast import FastClient, Packed, is_fit
from ordered_pubsub_adapters._mqtt_properties import headers_of, pack_headers, properties, properties_of, read_headers
from ordered_pubsub_adapters.base import CLOSE_S, BrokerAdapter, Connection, NamedFrames, Window, in_time
from ordered_pubsub_adapters.names import NameRules
from ordered_pubsub_adapters.urls import BrokerUrl, UrlRules, whole

QOS, KEEPALIVE_S, SESSION_S = 1, 60, 300
WINDOW = 64
"""So many messages may be unacknowledged, if the broker allows it (Mosquitto: 20, if nothing else is configured). A publisher's
microseconds a message, measured: 15.7 with 20, 14.5 with 64, 15.0 with 256."""
BURST = 8
"""A call's share of the window before it is another's turn."""
RECEIVE_MAX = 128
"""So many messages the broker may send before it hears that they were handled."""
HELD_BYTES_MAX = 8 * 2**20
PACKET_BYTES_MAX = 268_435_455
"""No packet of MQTT can be larger."""
HEADERS_ROOM = 65_536
"""A payload that leaves so much of the largest packet free needs no closer look."""
TOPICS_PER_PACKET, TOPICS_ROOM = 100, 20
"""and what a SUBSCRIBE has besides its topics, in bytes"""
READS_PER_TURN = 256
"""So many packets are read before others have their turn of the event loop."""
QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux only. Mosquitto, unless `set_tcp_nodelay` is on, holds a small packet back until the kernel here has acknowledged the one
before, and a kernel that hopes to do that along with something else takes up to 40 ms. It forgets what it was told, so it is
told again whenever we have nothing to say and wait for the broker."""
TICK_S = 1.0
CUT = "it was cut by the broker or the network"


# -- what went wrong --------------------------------------------------------------------------------------------------

_LOGIN = "; check user and password (password_file) in the URL"
_OF_CONNECTING = {
    "Bad user name or password": _LOGIN,
    "Not authorized": f"{_LOGIN}, and that the broker lets this user in",
    "Unsupported protocol version": "; it must speak MQTT 5",
}
_OF_PUBLISHING = {
    "Not authorized": "; allow this user to publish there",
    "Quota exceeded": "; it holds too much already, or this client may have no more",
    "Packet too large": "; publish smaller events, or raise its limit",
}


def said(reason: ReasonCode, more: Properties | None) -> str:
    """What the broker gave as its reason."""
    text = getattr(more, "ReasonString", None)
    return f"{reason} ({text})" if text else str(reason)


def not_taken(topic: str, reason: ReasonCode) -> AdapterError:
    """Of a PUBACK, PUBREC or PUBCOMP that is a refusal."""
    return AdapterError(f"the broker refused an event on {topic!r}: {reason}{_OF_PUBLISHING.get(str(reason), '')}")


def not_connected(error: Exception, host: str, port: int, url: BrokerUrl) -> OrderedPubSubError:
    """Of an attempt that did not get as far as MQTT."""
    if isinstance(error, OrderedPubSubError):
        return error
    what = f"{url.shown}: cannot connect to {host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return AdapterError(
            f"{what}: its certificate does not convince: {error.verify_message}; name its authority with ca=FILE"
        )
    if isinstance(error, ssl.SSLError) or (url.is_encrypted and isinstance(error, ConnectionResetError)):
        return AdapterError(f"{what}: TLS failed: {error}; is the port one for TLS?")
    return AdapterError(f"{what}: {error}; is the broker running, and the address right?")


class TlsSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails; paho forgets to."""

    def do_handshake(self, block: bool = False) -> None:
        """Agree with the broker, or hang up."""
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


# -- a connection -----------------------------------------------------------------------------------------------------


class MqttConnection(Connection):
    """A client of paho's own, on the running event loop."""

    adapter: MqttAdapter
    window: Window

    def __init__(self, adapter: MqttAdapter) -> None:
        super().__init__(adapter)
        self._loop = asyncio.get_running_loop()
        self._qos = adapter.qos
        self._heard = 0
        """how many messages and acknowledgements have come: says whether there may be more to read"""
        self._is_welcome = False
        self._client: Any = None
        """paho's, as soon as it was made"""
        self._socket: Any = None
        """what the loop watches"""
        self._is_writing = False
        """the socket takes nothing now; the loop tells when it does"""
        self._is_flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self.window = Window(self._send, WINDOW, turn_frames=BURST)

    async def open(self, host: str, port: int) -> None:
        """Connect, which blocks in a thread, and be let in."""
        if self.adapter.attempt is not None:  # one that was given up, and does not end: threads are few
            await asyncio.wait((self.adapter.attempt,))
        self.adapter.attempt = attempt = self._loop.run_in_executor(None, self._connect, host, port)
        attempt.add_done_callback(self._attempted)
        try:
            await asyncio.shield(attempt)
        except (OSError, ValueError, OrderedPubSubError) as error:
            raise not_connected(error, host, port, self.adapter.parsed) from error
        with self.expecting("welcome") as welcome:
            self._attach()
            reason, more = await welcome
        if reason.is_failure:
            advice = _OF_CONNECTING.get(str(reason), "")
            raise AdapterError(f"{self.adapter.shown}: the broker does not let us in: {said(reason, more)}{advice}")
        if (best := getattr(more, "MaximumQoS", 2)) < self._qos:
            raise AdapterError(
                f"{self.adapter.shown}: the broker offers QoS {best} at most, and QoS {self._qos} was asked for: take "
                f"?qos={best}, or allow more there"
            )

    def _connect(self, host: str, port: int) -> None:
        """In a thread."""
        adapter, url = self.adapter, self.adapter.parsed
        client = self._client = self._make_client()
        if (context := url.tls_context()) is not None:
            context.sslsocket_class = TlsSocket
            client.tls_set_context(context)
        password = url.read_password()
        client.username_pw_set(url.user or ("" if password is not None else None), password)
        client.connect_timeout = url.connect_timeout_s
        receive_max = max(1, RECEIVE_MAX - adapter.held_frames)
        asked = properties(PacketTypes.CONNECT, SessionExpiryInterval=adapter.session_s, ReceiveMaximum=receive_max)
        client.connect(host, port, adapter.keepalive_s, clean_start=not adapter.was_connected, properties=asked)

    def _make_client(self) -> Client:
        adapter = self.adapter
        client: Client
        if is_fit():
            client = FastClient(adapter.client_id, adapter.unreleased, adapter.unfinished)
            client.deliver = self._deliver
        elif self._qos == 2:
            raise ConfigurationError(
                f"{adapter.shown}: this release of paho-mqtt does not do QoS 2 (it never ends the exchange of a message that it "
                "does not know); take ?qos=1, or install paho-mqtt 2.2"
            )
        else:
            client = Client(
                CallbackAPIVersion.VERSION2, adapter.client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=True
            )
            client.on_message = self._on_message
        client.max_inflight_messages_set(
            0
        )  # the window counts; paho would look at all of them at every acknowledgement
        return client

    def _attempted(self, attempt: asyncio.Future[None]) -> None:
        self.adapter.attempt = None
        failed = attempt.cancelled() or attempt.exception() is not None
        if not failed and self.ended.done():  # nobody waits for it any more
            self._hang_up()

    def _on_connect(
        self, client: Any, data: Any, flags: ConnectFlags, reason: ReasonCode, more: Properties | None
    ) -> None:
        """CONNACK. What is behind it may be read next."""
        adapter = self.adapter
        if not reason.is_failure:
            if not flags.session_present:
                self._forget_session()
            self.greeting = f"; the broker has {'kept' if flags.session_present else 'forgotten'} the session"
            self.brings_again = flags.session_present and self._qos == 1
            self._is_welcome = adapter.was_connected = True
            self.window.frames_max = min(WINDOW, getattr(more, "ReceiveMaximum", WINDOW)) if self._qos else WINDOW
            adapter.session_s = getattr(more, "SessionExpiryInterval", adapter.session_s)
            adapter.packet_bytes_max = getattr(more, "MaximumPacketSize", None) or PACKET_BYTES_MAX
            if isinstance(client, FastClient):
                client.finish()
        self.answer("welcome", (reason, more))

    def _forget_session(self) -> None:
        adapter = self.adapter
        adapter.unreleased.clear()
        adapter.unfinished.clear()
        if adapter.was_connected and self._qos and adapter.session_s and adapter.names.subscribed:
            adapter.warn_of_loss(
                "the broker has forgotten the session",
                f"{adapter.session_s} s (session_s)",
                "the broker was started again without what it had stored",
            )

    # -- paho on the event loop ---------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Have paho call us from now on: what it meets in the thread it must not tell there."""
        client = self._client
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        client.on_socket_close = self._on_socket_close
        if self._qos:
            client.on_publish = self._on_publish
        self._socket = client.socket()
        if self._socket is None:
            raise self._not_welcome(CUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is small was put together already
        client.on_socket_register_write = self._on_want_write
        client.on_socket_unregister_write = self._on_all_written
        self._loop.add_reader(self._socket, self.adapter.supervisor.guarded, self._read, "reading")
        self._soon(self._read)  # TLS may hold what the socket has no more
        self._timer = self.adapter.supervisor.later(TICK_S, self._tick, "the tick")

    def _soon(self, step: Callable[[], None]) -> None:
        self.adapter.supervisor.soon(step, "reading and writing")

    def _step(self, step: Callable[[], MQTTErrorCode]) -> bool:
        """Whether one of paho's steps went well. What it raises is a packet that it cannot read: there is no going on."""
        try:
            return not step() and self._socket is not None
        except Exception as error:
            self.end(f"the broker sent what cannot be read: {error!r}")
            self._detach()
            return False

    def _read(self) -> None:
        """Read what there is, but not for ever. With TLS, more may be there than the socket knows."""
        for _ in range(READS_PER_TURN):
            heard = self._heard
            if self._socket is None or not self._step(self._client.loop_read) or heard == self._heard:
                break
        self.window.fill()
        if self._socket is None:
            return
        if QUICK_ACK is not None and len(self.window) and not self._is_flushing:
            self._socket.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._soon(self._read)

    def _on_want_write(self, client: Any, data: Any, sock: Any) -> None:
        if self._socket is not None and not self._is_flushing:
            self._is_flushing = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._socket is None or not self._step(self._client.loop_write):
            return
        if self._client.want_write():
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket, self.adapter.supervisor.guarded, self._flush, "writing")
        elif not self._qos:  # that is all there is to know
            self.window.confirm_all()
            self.window.fill()

    def _on_all_written(self, client: Any, data: Any, sock: Any) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(sock)

    def _tick(self) -> None:
        """Let paho say that we are alive, and see whether the broker is: what has come counts first."""
        self._timer = self.adapter.supervisor.later(TICK_S, self._tick, "the tick")
        self._read()
        if self._socket is not None:
            self._step(self._client.loop_misc)

    def _detach(self) -> None:
        sock, self._socket = self._socket, None
        if self._timer is not None:
            self._timer.cancel()
        if sock is not None:
            self._on_all_written(None, None, sock)
            self._loop.remove_reader(sock)

    def _on_socket_close(self, *_: Any) -> None:
        self._detach()
        self._closed.set()

    def _on_disconnect(
        self, client: Any, data: Any, flags: DisconnectFlags, reason: ReasonCode, more: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            why = f"the broker ended the connection: {said(reason, more)}"
        elif str(reason) == "Keep alive timeout":
            limit = f"keepalive_s allows ({self.adapter.keepalive_s} s)"
            why = f"the broker has not been heard of for longer than {limit}"
        else:
            why = CUT
        if not self._is_welcome:
            self.answer("welcome", self._not_welcome(why))
        self.end(why)

    def _not_welcome(self, why: str) -> AdapterError:
        wanted = " Or does it want a certificate (cert, key)?" if self.adapter.parsed.is_encrypted else ""
        return AdapterError(
            f"{self.adapter.shown}: {why} before the broker had let us in; is it an MQTT broker that speaks MQTT 5?{wanted}"
        )

    def _hang_up(self) -> None:
        """Without a word, and for good: the next connection has another client of paho's."""
        self._detach()
        if self._client is not None and (sock := self._client.socket()) is not None:
            sock.close()

    async def close(self, is_last: bool) -> None:
        """Say good-bye if it is the last connection, so that the broker forgets the session, and hang up."""
        if self._socket is not None and is_last:
            self._client.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0))
            with suppress(AdapterError):
                await in_time(self._closed.wait(), CLOSE_S, "it does not close")
        if self.adapter.attempt is None:
            self._hang_up()

    # -- messages -----------------------------------------------------------------------------------------------------

    async def publish(self, frames: NamedFrames) -> None:
        """Return when the broker has confirmed all of them; at QoS 0, when they were written."""
        most = self.adapter.packet_bytes_max
        for name, frame in frames:
            if len(frame.payload) + HEADERS_ROOM > most:
                size = 9 + len(name.encode()) + len(pack_headers(frame.headers)) + len(frame.payload)
                if size > most:
                    raise AdapterError(
                        f"an event on {frame.topic!r} needs a packet of {size} bytes; the broker takes {most} at most: publish "
                        "smaller events, or raise its limit (Mosquitto: max_packet_size)"
                    )
        await self.window.publish(frames)

    def _send(self, frames: NamedFrames) -> list[int]:
        publish, qos, mids = self._client.publish, self._qos, []
        is_fast = isinstance(self._client, FastClient)
        for name, frame in frames:
            more = Packed(pack_headers(frame.headers)) if is_fast else properties_of(frame.headers)
            try:
                info = publish(name, frame.payload, qos, properties=more)
            except ValueError as error:  # paho refuses it
                raise AdapterError(f"an event on {frame.topic!r} cannot be sent: {error}") from error
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise AdapterError(f"an event on {frame.topic!r} could not be sent: {info.rc.name}")
            mids.append(info.mid)
        return mids

    def _on_publish(self, client: Any, data: Any, mid: int, reason: ReasonCode, more: Properties | None) -> None:
        self._heard += 1
        if reason.is_failure:
            self.window.refuse(mid, lambda topic: not_taken(topic, reason))
        else:
            self.window.confirm(mid)

    def end(self, reason: str) -> None:
        """It is over."""
        if self._qos == 2 and not self.ended.done():
            self.adapter.unfinished.update(dict.fromkeys(self.window.tags, True))
        super().end(reason)

    def _deliver(self, name: bytes, payload: bytes, data: bytes, qos: int, mid: int) -> None:
        """A message, as the fast client reads it."""
        self._came(name.decode(errors="replace"), payload, read_headers(data), qos, mid)

    def _on_message(self, client: Any, data: Any, message: MQTTMessage) -> None:
        """A message, as paho reads it."""
        self._came(message.topic, bytes(message.payload), headers_of(message.properties), message.qos, message.mid)

    def _came(self, name: str, payload: bytes, headers: dict[str, bytes | str], qos: int, mid: int) -> None:
        self._heard += 1
        adapter = self.adapter
        topic = adapter.names.topic_of(name)
        if not qos and adapter.held_bytes > HELD_BYTES_MAX:
            self.dropped += 1
            return
        adapter.received(self, None if topic is None else Frame(topic, payload, headers), (mid, qos))

    def taken(self, tokens: Sequence[tuple[int, int]]) -> None:
        """Acknowledge."""
        if self._socket is not None:
            accept = self._client.accept if isinstance(self._client, FastClient) else self._client.ack
            for mid, qos in tokens:
                if qos:
                    accept(mid, qos)
        self.report_dropped("messages of QoS 0")

    # -- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, names: Sequence[str]) -> None:
        """In pieces, each answered."""
        options = SubscribeOptions(qos=self._qos, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        for chunk in self._chunks(names):
            reasons = await self._answer(*self._client.subscribe([(name, options) for name in chunk]))
            for name, reason in zip(chunk, reasons, strict=True):
                if reason.is_failure:
                    raise AdapterError(
                        f"{self.adapter.shown}: the broker refused the subscription to {name!r}: {reason}; does it let this user "
                        "subscribe there?"
                    )
                if reason.value < self._qos:
                    raise AdapterError(
                        f"{self.adapter.shown}: the broker grants QoS {reason.value} on {name!r}, and QoS {self._qos} was asked "
                        f"for: take ?qos={reason.value}, or allow more there"
                    )

    async def unsubscribe(self, names: Sequence[str]) -> None:
        """In pieces, each answered."""
        for chunk in self._chunks(names):
            await self._answer(*self._client.unsubscribe(chunk))

    def _chunks(self, names: Sequence[str]) -> Iterator[list[str]]:
        """As many names at once as fit in a packet."""
        room = self.adapter.packet_bytes_max - TOPICS_ROOM
        chunk: list[str] = []
        size = 0
        for name in names:
            size += len(name.encode()) + 3
            if chunk and (len(chunk) >= TOPICS_PER_PACKET or size > room):
                yield chunk
                chunk, size = [], len(name.encode()) + 3
            chunk.append(name)
        if chunk:
            yield chunk

    async def _answer(self, code: MQTTErrorCode, mid: int | None) -> list[ReasonCode]:
        """The reason codes of a SUBACK or UNSUBACK."""
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise AdapterError(f"{self.adapter.shown}: not connected ({code.name})")
        seconds = self.adapter.parsed.connect_timeout_s
        with self.expecting(("answer", mid)) as answer:
            await asyncio.wait((answer,), timeout=seconds)
            if not answer.done():
                raise AdapterError(
                    f"{self.adapter.shown}: the broker did not confirm a change of subscriptions within {seconds:g} s "
                    "(connect_timeout_s); try again, or give it longer"
                )
            reasons: list[ReasonCode] = answer.result()
            return reasons

    def _on_answer(self, client: Any, data: Any, mid: int, reasons: Any, more: Properties | None) -> None:
        self.answer(("answer", mid), reasons)


# -- the adapter ------------------------------------------------------------------------------------------------------

RULES = UrlRules(
    ports={"mqtt": 1883, "mqtts": 8883},
    encrypted=("mqtts",),
    parameters={"qos": whole(0, 2), "keepalive_s": whole(2, 65_535), "session_s": whole(0, 604_800)},
)
NAMES = NameRules(separator="/", special="+#", bytes_max=65_535, reserved=("$",))


class MqttAdapter(BrokerAdapter):
    """One client's session at an MQTT broker."""

    url_rules = RULES
    name_rules = NAMES
    kind = "an MQTT broker"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.qos: int = self.parsed.get("qos", QOS)
        self.keepalive_s: int = self.parsed.get("keepalive_s", KEEPALIVE_S)
        self.session_s: int = self.parsed.get("session_s", SESSION_S)
        """how long the broker keeps the session while we are away"""
        self.packet_bytes_max = PACKET_BYTES_MAX
        self.attempt: asyncio.Future[None] | None = None
        """a connection that is being made in a thread"""

    def begin(self) -> None:
        """A session of its own."""
        self.client_id = f"ops{token_hex(10)}"  # 23 characters are what every broker must accept
        self.session_s = self.parsed.get("session_s", SESSION_S)
        self.was_connected = False
        self.unreleased: dict[int, bool] = {}
        """identifiers of messages of QoS 2 that have come, and may come again"""
        self.unfinished: dict[Any, bool] = {}
        """identifiers of messages of QoS 2 that earlier connections have sent, and of which the broker may still know"""

    @property
    def capabilities(self) -> Capabilities:
        """What the quality of service promises; see the top of this module."""
        return Capabilities(
            loses=self.qos == 0,
            reorders=False,
            duplicates=self.qos == 1,
            keeps_while_away=self.qos > 0 and self.session_s > 0,
            carries_headers=True,
            confirms=self.qos > 0,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest packet that the broker takes."""
        return self.packet_bytes_max if self.is_open else None

    def make_connection(self) -> MqttConnection:
        """A new client of paho's."""
        return MqttConnection(self)
