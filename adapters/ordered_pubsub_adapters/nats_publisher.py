"""Publishing to a JetStream stream: many messages at a time, each of them acknowledged.

All messages of a batch have the same reply subject, so acknowledgements are only counted. At most `IN_FLIGHT_MAX` messages are
unanswered. The server acknowledges when it has written the message, and by default syncs its disk every two minutes
(`sync_interval`): a crash of the server loses nothing, one of its machine may. A subject that no stream has is answered with
503 at once, so nothing is taken for stored that is not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import msgspec

from ordered_pubsub.adapter import Frame
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_jetstream import NO_RESPONDERS
from ordered_pubsub_adapters.nats_replies import Answers
from ordered_pubsub_adapters.nats_stream import Stream
from ordered_pubsub_adapters.nats_waiting import in_time, settle
from ordered_pubsub_adapters.nats_wire import pieces, status_of

IN_FLIGHT_MAX = 256
BATCH_FRAMES = 64
ACKNOWLEDGE_S = 10.0


@attrs.define(eq=False)
class Window:
    """How many publications may still be sent before some are acknowledged."""

    free: int = IN_FLIGHT_MAX
    _waiting: deque[tuple[int, asyncio.Future[None]]] = attrs.field(factory=deque)

    async def take(self, count: int) -> None:
        """Return when so many may be sent, after those who asked before."""
        if not self._waiting and self.free >= count:
            self.free -= count
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        try:
            await in_time(future, ACKNOWLEDGE_S)
        except BaseException:
            if future.done():
                self.give(count)
            else:
                future.cancel()
                self.give(0)
            raise

    def give(self, count: int) -> None:
        """So many need not be waited for any more."""
        self.free += count
        while self._waiting and (self._waiting[0][1].done() or self.free >= self._waiting[0][0]):
            wanted, future = self._waiting.popleft()
            if not future.done():
                self.free -= wanted
                future.set_result(None)


@attrs.define(eq=False)
class StreamPublisher:
    """Publishes to a stream."""

    connection: Connection
    names: NameTable
    stream: Stream
    _window: Window = attrs.field(factory=Window)
    _taken: bytes = attrs.field(init=False)
    """how the acknowledgement of our stream begins"""

    def __attrs_post_init__(self) -> None:
        self._taken = b'{"stream":"%b",' % self.stream.name.encode()

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Return when the stream has all frames."""
        self.connection.check_up()
        subjects = list(dict.fromkeys(self.names.name_of(frame.topic) for frame in frames))
        if not self.stream.is_covered(subjects):
            await self.stream.cover(self.connection, subjects)
        batches: list[Answers] = []
        since = self.connection.turn
        try:
            for piece in pieces(frames, BATCH_FRAMES):
                await self._window.take(len(piece))
                self.connection.check_up()
                answers = self.connection.replies.expect(len(piece), self._read)
                batches.append(answers)
                self.connection.publish(piece, self.names, answers.reply)
            await self._acknowledged(batches, subjects, since)
        except asyncio.TimeoutError:
            self.connection.check_refusals(subjects, since)
            raise self.connection.error(f"{len(frames)} messages were not sent: {self._silence}") from None
        finally:
            for answers in batches:
                self.connection.replies.forget(answers)
                self._window.give(answers.missing)

    async def _acknowledged(self, batches: Sequence[Answers], subjects: Sequence[str], since: int) -> None:
        await self.connection.flush()
        self.connection.check_refusals(subjects, since)
        timer = asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._give_up, batches)
        try:
            for answers in batches:
                trouble = await answers.done
                if trouble:
                    self.stream.forget()
                    what = ", ".join(map(repr, subjects[:3]))
                    raise self.connection.error(f"a message on {what} was not stored: {trouble}")
        finally:
            timer.cancel()

    def _give_up(self, batches: Sequence[Answers]) -> None:
        for answers in batches:
            settle(answers.done, self._silence)

    @property
    def _silence(self) -> str:
        return f"stream {self.stream.name!r} acknowledged nothing for {ACKNOWLEDGE_S:g} s; has it a leader, and room on its disk?"

    def _read(self, headers: bytes | None, data: bytes) -> str:
        """What an acknowledgement says is wrong."""
        self._window.give(1)
        if data.startswith(self._taken):
            return ""
        if status_of(headers).startswith(NO_RESPONDERS):
            return f"no stream has this subject; {self.stream.name!r} had it before, who changed it?"
        answer: dict[str, Any] = {}
        with suppress(msgspec.MsgspecError):
            answer = msgspec.json.decode(data, type=dict)
        if "error" in answer:
            return f"stream {self.stream.name!r} says: {answer['error'].get('description')}"
        other = answer.get("stream")
        return "" if other == self.stream.name else f"stream {other!r} took it, and not {self.stream.name!r}"
