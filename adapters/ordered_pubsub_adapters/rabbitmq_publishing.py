"""The way out: messages that the broker has not confirmed yet.

    publish ──> calls, in turns ──> window: sent, not confirmed ──> basic.ack ──> publish returns

The window is bounded, in messages and in bytes, and shared by all calls that are under way: each sends a few messages, then it
is the next one's turn, so a long call does not hold up a short one for another topic. The messages of one call are sent in
their order.

A broker that runs out of memory or disk confirms nothing more for a while: then the window fills, and `publish` waits.

The broker numbers messages (delivery tags: 1, 2, 3, ... of the channel) and often confirms many at once: all up to a tag.
The lowest unconfirmed tag is remembered, so each confirmation looks only at those that it confirms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters import rabbitmq_wire as wire

WINDOW_MESSAGES = 256
WINDOW_BYTES = 8 * 2**20
"""One message may be larger; then it is alone."""
MESSAGE_BYTES_MAX = 16 * 2**20
"""The largest payload that every broker takes, if nothing else is configured."""
TURN_MESSAGES = 32
METHODS_MAX = 4_096
"""The first frames of messages are kept for so many topics."""


@attrs.define(eq=False)
class Sink:
    """The channel that messages are sent on."""

    send: Callable[[bytes], None]
    channel: int
    frame_max: int


@attrs.define(eq=False)
class Call:
    """One call of `publish`."""

    messages: Sequence[tuple[bytes, Frame]]
    """method and header of each, and the frame whose payload follows"""
    done: asyncio.Future[None]
    sent: int = 0
    confirmed: int = 0

    def fail(self, reason: str) -> None:
        """It does not matter any more what becomes of its messages."""
        if not self.done.done():
            self.done.set_exception(AdapterError(reason))

    def confirm(self) -> None:
        """One more of its messages is the broker's."""
        self.confirmed += 1
        if self.confirmed == len(self.messages) and not self.done.done():
            self.done.set_result(None)


@attrs.define(eq=False)
class Window:
    """What is being published on one channel after the other."""

    exchange: str
    name_of: Callable[[str], str]
    delivery_mode: int
    message_bytes_max: int = MESSAGE_BYTES_MAX
    _sink: Sink | None = None
    _reason: str = "it was not opened"
    _waiting: deque[Call] = attrs.field(factory=deque)
    _unconfirmed: dict[int, tuple[Call, int]] = attrs.field(factory=dict)
    """tag -> whose message it is, and its size"""
    _unconfirmed_bytes: int = 0
    _first: int = 1
    """no lower tag is unconfirmed"""
    _next: int = 1
    _methods: dict[str, bytes] = attrs.field(factory=dict)

    # -- the channel --------------------------------------------------------------------------------------------------

    def attach(self, sink: Sink) -> None:
        """There is a new channel, on which nothing has been sent."""
        self._sink = sink
        self._methods.clear()
        self._first = self._next = 1

    def detach(self, reason: str) -> None:
        """The channel is gone: whatever was not confirmed fails."""
        self._sink = None
        self._reason = reason
        calls = {call: True for call, _ in self._unconfirmed.values()}
        calls.update(dict.fromkeys(self._waiting, True))
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0
        self._waiting.clear()
        for call in calls:
            call.fail(f"the broker did not confirm {len(call.messages) - call.confirmed} messages: {reason}")

    # -- out ----------------------------------------------------------------------------------------------------------

    def publish(self, frames: Sequence[Frame]) -> asyncio.Future[None]:
        """Send frames as soon as there is room; the future is done when all of them are confirmed."""
        sink = self._sink
        if sink is None:
            raise AdapterError(f"there is no connection to publish on: {self._reason}")
        messages = [(self._head(sink, frame), frame) for frame in frames]
        call = Call(messages, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._pump()
        return call.done

    def _head(self, sink: Sink, frame: Frame) -> bytes:
        if len(frame.payload) > self.message_bytes_max:
            raise AdapterError(
                f"a message on {frame.topic!r} has {len(frame.payload)} bytes; at most {self.message_bytes_max} are taken "
                "(message_bytes_max in the URL): publish smaller ones, or raise it as far as the broker's max_message_size"
            )
        method = self._methods.get(frame.topic)
        if method is None:
            if len(self._methods) >= METHODS_MAX:
                self._methods.clear()
            method = wire.publish_method(sink.channel, self.exchange, self.name_of(frame.topic))
            self._methods[frame.topic] = method
        return method + wire.header_frame(sink.channel, frame, self.delivery_mode, sink.frame_max)

    def _pump(self) -> None:
        """Send what there is room for, in turns."""
        sink = self._sink
        while sink is not None and self._waiting and self._has_room:
            call = self._waiting.popleft()
            if not call.done.done():  # it may have been cancelled
                sink.send(self._turn(sink, call))
                if call.sent < len(call.messages):
                    self._waiting.append(call)

    @property
    def _has_room(self) -> bool:
        unconfirmed = self._unconfirmed
        return not unconfirmed or (len(unconfirmed) < WINDOW_MESSAGES and self._unconfirmed_bytes < WINDOW_BYTES)

    def _turn(self, sink: Sink, call: Call) -> bytes:
        """The next messages of a call, at least one."""
        pieces: list[bytes] = []
        for head, frame in call.messages[call.sent : call.sent + TURN_MESSAGES]:
            pieces.append(head)
            pieces += wire.body_frames(sink.channel, frame.payload, sink.frame_max)
            size = len(head) + len(frame.payload)
            self._unconfirmed[self._next] = (call, size)
            self._unconfirmed_bytes += size
            self._next += 1
            call.sent += 1
            if not self._has_room:
                break
        return b"".join(pieces)

    # -- confirmed ----------------------------------------------------------------------------------------------------

    def settle(self, tag: int, is_multiple: bool, is_taken: bool) -> None:
        """The broker has taken a message, or has refused it; with `is_multiple` all before it, too."""
        unconfirmed = self._unconfirmed
        for one in range(self._first, tag + 1) if is_multiple else (tag,):
            found = unconfirmed.pop(one, None)
            if found is not None:
                call, size = found
                self._unconfirmed_bytes -= size
                if is_taken:
                    call.confirm()
                else:
                    call.fail("the broker refused a message (basic.nack): its log may say why")
        while self._first < self._next and self._first not in unconfirmed:
            self._first += 1
        self._pump()
