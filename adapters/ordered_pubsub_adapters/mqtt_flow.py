"""What is on its way to the broker, and what has come from it and was not handled yet.

Going out, all calls of `publish` share a window of messages that the broker has not acknowledged. They take turns in it, a few
messages each, so that a call with thousands of frames does not keep the others waiting; the frames of one call stay in their
order. A call ends when all its frames were taken, or when one was not.

Coming in, messages are acknowledged when `on_frames` has returned. The broker sends no more than `RECEIVE_MAX` that were not,
so reading on is safe, and acknowledgements for what goes out are seen in time. That is not so at QoS 0, where nobody counts, nor
with very large messages: when the inbox is full, the link stops reading for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import attrs
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.adapter import Frame, FramesHandler
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.mqtt_packets import PacketClient
from ordered_pubsub_adapters.mqtt_properties import Packed, pack_headers, read_headers
from ordered_pubsub_adapters.mqtt_reasons import not_taken
from ordered_pubsub_adapters.names import NameTable

WINDOW = 64
"""So many messages may be unacknowledged, if the broker allows it (Mosquitto: 20, if nothing else is configured). A publisher's
microseconds a message, measured: 15.7 with 20, 14.5 with 64, 15.0 with 256."""
BURST = 8
"""A call's share of the window before it is another's turn."""
RECEIVE_MAX = 128
"""So many messages the broker may send before it hears that they were handled."""
INBOX_FRAMES_MAX = 4 * RECEIVE_MAX
INBOX_BYTES_MAX = 8 * 1024 * 1024
PACKET_BYTES_MAX = 268_435_455
"""No packet of MQTT can be larger."""
HEADERS_ROOM = 65_536
"""A payload that leaves so much of the largest packet free needs no closer look."""


@attrs.define(eq=False)
class _Call:
    """One call of `publish`."""

    frames: Sequence[Frame]
    done: asyncio.Future[None]
    sent: int = 0
    taken: int = 0


@attrs.define(eq=False)
class Outbox:
    """The calls of `publish` that have not ended, and their turns in the window."""

    client: PacketClient
    names: NameTable
    qos: int
    window: int = WINDOW
    packet_bytes_max: int = PACKET_BYTES_MAX
    _calls: deque[_Call] = attrs.field(factory=deque)
    """that have frames to send"""
    _unacknowledged: dict[int, _Call] = attrs.field(factory=dict)
    """by the identifier of the message; at QoS 0, those that were not written yet"""

    @property
    def is_waiting(self) -> bool:
        """Whether the broker has messages that it has not acknowledged."""
        return bool(self._unacknowledged)

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Send frames, and return when the broker has taken all of them; at QoS 0, when they were written."""
        self._check_sizes(frames)
        call = _Call(frames, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self.fill()
        await call.done

    def fill(self) -> None:
        """Send as much as the window allows."""
        calls = self._calls
        while calls and (room := self.window - len(self._unacknowledged)) > 0:
            call = calls.popleft()
            if call.done.done():  # cancelled or failed: the rest is not sent
                continue
            try:
                self._send(call, min(room, BURST) if calls else room)
            except AdapterError as error:
                call.done.set_exception(error)
                continue
            except ValueError as error:  # paho refuses it
                call.done.set_exception(
                    AdapterError(f"an event on {call.frames[call.sent].topic!r} cannot be sent: {error}")
                )
                continue
            if call.sent < len(call.frames):
                calls.append(call)

    def _send(self, call: _Call, count: int) -> None:
        publish, name_of, qos = self.client.publish, self.names.name_of, self.qos
        for frame in call.frames[call.sent : call.sent + count]:
            packed = Packed(pack_headers(frame.headers))
            info = publish(name_of(frame.topic), frame.payload, qos, properties=packed)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise AdapterError(f"an event on {frame.topic!r} could not be sent: {info.rc.name}")
            self._unacknowledged[info.mid] = call
            call.sent += 1

    def take(self, mid: int, reason: ReasonCode) -> None:
        """The broker has taken a message, or refused it."""
        call = self._unacknowledged.pop(mid, None)
        if call is None or call.done.done():
            return
        if reason.is_failure:
            call.done.set_exception(AdapterError(not_taken(call.frames[0].topic, reason)))
            return
        call.taken += 1
        if call.taken == len(call.frames):
            call.done.set_result(None)

    def take_written(self) -> None:
        """At QoS 0, everything has been written."""
        written, self._unacknowledged = self._unacknowledged, {}
        for call in written.values():
            call.taken += 1
            if call.taken == len(call.frames) and not call.done.done():
                call.done.set_result(None)

    def fail(self, reason: str) -> None:
        """The connection is gone: nobody knows what became of the messages without an acknowledgement."""
        for call in (*self._calls, *self._unacknowledged.values()):
            if not call.done.done():
                call.done.set_exception(
                    AdapterError(f"{len(call.frames)} events on {call.frames[0].topic!r} were not confirmed: {reason}")
                )
        self._calls.clear()

    def restart(self, keep_unacknowledged: bool) -> None:
        """A new connection begins. At QoS 2 paho may finish what a resumed session had begun; it stays in the window."""
        if not keep_unacknowledged:
            self.client.drop_out_messages()
            self._unacknowledged.clear()

    def _check_sizes(self, frames: Sequence[Frame]) -> None:
        """Refuse all frames before the first is sent, if one is too large for the broker."""
        most = self.packet_bytes_max
        for frame in frames:
            if len(frame.payload) + HEADERS_ROOM > most:
                size = (
                    9
                    + len(self.names.name_of(frame.topic).encode())
                    + len(pack_headers(frame.headers))
                    + len(frame.payload)
                )
                if size > most:
                    raise AdapterError(
                        f"an event on {frame.topic!r} needs a packet of {size} bytes; the broker takes {most} at most: "
                        "publish smaller events, or raise its limit (Mosquitto: max_packet_size)"
                    )


@attrs.define(eq=False)
class Inbox:
    """What has arrived and was not handled yet."""

    client: PacketClient
    names: NameTable
    on_frames: FramesHandler
    on_full: Callable[[], None]
    """called whenever something arrives and there is no room for more"""
    room: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set when frames are taken out"""
    dropped: int = 0
    """how many messages of QoS 0 came when there was no room"""
    _frames: list[Frame] = attrs.field(factory=list)
    _origins: list[tuple[int, int]] = attrs.field(factory=list)
    """the identifier and QoS of each"""
    _bytes: int = 0
    _connection: int = 0
    """counts connections, and their ends: what came by another one is not acknowledged on this one"""
    _is_connected: bool = True
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self.client.deliver = self.put

    @property
    def is_full(self) -> bool:
        """Whether reading should stop."""
        return len(self._frames) >= INBOX_FRAMES_MAX or self._bytes >= INBOX_BYTES_MAX

    def put(self, name: bytes, payload: bytes, data: bytes, qos: int, mid: int) -> None:
        """Take what has arrived. What nobody counts is dropped if there is no room; what nobody wants is acknowledged."""
        topic = self.names.topic_of(name.decode(errors="replace"))
        if topic is None:
            self.client.accept(mid, qos)
        elif not qos and self.is_full:
            self.dropped += 1
        else:
            self._frames.append(Frame(topic, payload, read_headers(data)))
            self._origins.append((mid, qos))
            self._bytes += len(payload) + len(data)
            self._news.set()
            if self.is_full:
                self.on_full()

    def disconnect(self) -> None:
        """Acknowledge nothing until a new connection begins: while it is being made, that would be the first word on it."""
        self._connection += 1
        self._is_connected = False

    def restart(self, is_resumed: bool) -> None:
        """A new connection begins. If the session was resumed, what was not acknowledged comes again, except at QoS 2."""
        self._connection += 1
        self._is_connected = True
        if is_resumed:
            kept = [
                (frame, origin) for frame, origin in zip(self._frames, self._origins, strict=True) if origin[1] != 1
            ]
            self._frames, self._origins = [frame for frame, _ in kept], [origin for _, origin in kept]
            self._bytes = sum(len(frame.payload) for frame in self._frames)
        self._origins = [(0, 0)] * len(self._origins)

    async def run(self) -> None:
        """Hand on what arrives, as much at once as there is."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._frames:
                await self._hand_on()

    async def _hand_on(self) -> None:
        frames, connection = self._frames, self._connection
        origins = self._origins if self._is_connected else []
        self._frames, self._origins, self._bytes = [], [], 0
        self.room.set()
        await self.on_frames(frames)
        if connection == self._connection:
            for mid, qos in origins:
                self.client.accept(mid, qos)
