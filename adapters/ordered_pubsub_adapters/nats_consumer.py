"""Reading a JetStream stream: one consumer for each adapter, made anew from the last message seen whenever anything is amiss.

Theory of operation
===================
The consumer is an ephemeral one without acknowledgements, as what NATS calls an ordered consumer. Its messages have the
consumer's own sequence, which has no gaps, and the stream's. A gap, a heartbeat that does not come or names another
sequence, a break, a crash: each ends the connection, and the next one makes a consumer that begins behind the last message of
the stream that was seen. So nothing is left out and nothing repeated, and there is one way back, whatever happened.

*One consumer for all topics*, and not one for each: hundreds of topics would be hundreds of consumers to be made again after
each break, each with its heartbeat, its window and its work for every message that is stored. When topics come or go, the
consumer is replaced by one that begins where it ended, with the new list of topics (`filter_subjects`, servers from 2.10
on). Older servers know no such list: there, with more than one topic, the consumer reads the whole stream, and what is not
subscribed to is dropped here; what the server did is read from its answer. The same happens if the list is very long.

*Slow clients*: with flow control, the server sends no more than a window (2 MiB at first, at most 32) until it is asked to go
on, and is not asked while the inbox is full. Since nothing is read then either, a window that had grown may lead to the
connection being cut off, once; the next one begins with a small window.

A stream that is shorter than what was seen, or another one of the same name, was lost and made again: then everything since
the time of the last message is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timezone
from typing import Any

import attrs

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats_connection import WAIT_S, Connection
from ordered_pubsub_adapters.nats_inbox import Inbox
from ordered_pubsub_adapters.nats_jetstream import SECOND_NS, JetStreamError, ask
from ordered_pubsub_adapters.nats_stream import Stream, StreamState
from ordered_pubsub_adapters.nats_waiting import end
from ordered_pubsub_adapters.nats_wire import plain, read_headers, status_of

HEARTBEAT_S = 5.0
SILENCE_S = 3 * HEARTBEAT_S
FILTER_BYTES_MAX = 2**17
"""A longer list of topics than this is not given to the server."""

ACKNOWLEDGE = b"$JS.ACK."
CONTROL = b"100"
SHORT_REPLY_TOKENS = 9
"""$JS.ACK.stream.consumer.deliveries.sequence.own-sequence.time.pending; newer ones have two tokens more in front."""


@attrs.define(eq=False)
class Consumer:
    """What one adapter reads of a stream."""

    connection: Connection
    inbox: Inbox
    names: NameTable
    stream: Stream
    _topics: dict[bytes, tuple[str, int]] = attrs.field(factory=dict)
    """by subject: the topic, and the sequence from behind which its messages are wanted"""
    _sid: int = 0
    """of the consumer's subscription; 0 if there is none"""
    _name: str = ""
    _is_whole: bool = False
    """whether it reads the whole stream"""
    _next: int = 1
    """the consumer's sequence of the next message"""
    _last: int = 0
    """the stream's sequence of the last message seen"""
    _last_time_ns: int = 0
    _created: str = ""
    """when the stream was made, whose sequences these are"""
    _heard: bool = True
    _held_reply: bytes = b""
    """how to ask the server to go on, when there is room"""
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)
    _tasks: dict[asyncio.Task[None], bool] = attrs.field(factory=dict)
    _watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The connection is open."""
        self._watching = self.connection.supervisor.keep(self._watch, f"watching stream {self.stream.name}")

    # -- topics -----------------------------------------------------------------------------------------------------------

    async def add(self, topics: Sequence[str]) -> None:
        """Let the messages of these topics come from now on. Cancelled, it goes on."""
        await self._finish(self._add(topics))

    async def remove(self, topics: Sequence[str]) -> None:
        """Let no more messages of these topics come. Cancelled, it goes on."""
        await self._finish(self._remove(topics))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that goes on if whoever waits for it is cancelled, and ends when the adapter is closed."""
        task = self._spawn(work)
        await asyncio.wait((task,))
        if task.cancelled():
            raise AdapterError(f"stream {self.stream.name}: this adapter was closed meanwhile")
        task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"topics of stream {self.stream.name}")
        self._tasks[task] = True
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # whoever asked is told, if still there

    async def close(self) -> None:
        """Give up what is under way."""
        watching = () if self._watching is None else (self._watching,)
        await end(*watching, *self._tasks)

    async def _add(self, topics: Sequence[str]) -> None:
        """Over breaks, if need be."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            new = [topic for topic in dict.fromkeys(topics) if self._subject(topic) not in self._topics]
            give_up_at = loop.time() + WAIT_S
            while new:
                await self.connection.wait_until_up(max(give_up_at - loop.time(), 0.0))
                try:
                    return await self._begin(new)
                except JetStreamError:
                    raise
                except AdapterError:
                    if loop.time() > give_up_at:
                        raise

    def _subject(self, topic: str) -> bytes:
        return self.names.name_of(topic).encode()

    async def _begin(self, topics: Sequence[str]) -> None:
        state = await self.stream.cover(self.connection, [self.names.name_of(topic) for topic in topics])
        if not self._topics:
            self._last, self._created, self._last_time_ns = state.last_sequence, state.created, 0
        new = {self._subject(topic): (topic, state.last_sequence) for topic in topics}
        self._topics.update(new)
        try:
            if not (self._sid and self._is_whole):
                await self._replace()
        except BaseException as error:
            for subject in new:
                self._topics.pop(subject, None)
            self.connection.fail(f"its consumer could not be replaced: {error}")  # the other topics need one
            raise

    async def _remove(self, topics: Sequence[str]) -> None:
        async with self._turn:
            held = [subject for topic in topics if (subject := self._subject(topic)) in self._topics]
            for subject in held:
                del self._topics[subject]
            if not held or not self.connection.is_up or (self._is_whole and len(self._topics) > 1):
                return
            try:
                await self._replace()
            except AdapterError as error:
                self.connection.fail(str(error))

    async def resume(self) -> None:
        """The connection is back: go on behind the last message. What the old consumer still sends does not count."""
        self._drop()
        if not self._topics:
            await self.connection.flush()
            return
        state = await self.stream.cover(self.connection, [subject.decode() for subject in self._topics])
        is_another = state.created != self._created or state.last_sequence < self._last
        await self._replace(state if is_another else None)

    # -- the consumer -----------------------------------------------------------------------------------------------------

    async def _replace(self, another: StreamState | None = None) -> None:
        """Make a consumer for the topics, behind the last message seen. `another`: the stream is not the one that it was."""
        self._drop()
        if not self._topics:
            return
        start = self._start(another)
        inbox = self.connection.replies.new_inbox()
        self._sid, self._next, self._heard = self.connection.subscribe(inbox), 1, True
        config = {
            **start,
            **self._filter(),
            "deliver_subject": inbox,
            "ack_policy": "none",
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * SECOND_NS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        request = {"stream_name": self.stream.name, "config": config}
        answer = await ask(self.connection, f"CONSUMER.CREATE.{self.stream.name}", request)
        self._name = answer["name"]
        got = answer["config"]
        self._is_whole = not (got.get("filter_subject") or got.get("filter_subjects"))

    def _start(self, another: StreamState | None) -> dict[str, object]:
        if another is None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._last + 1}
        self._last, self._created = 0, another.created
        self._topics = {subject: (topic, 0) for subject, (topic, _) in self._topics.items()}
        if not self._last_time_ns:
            return {"deliver_policy": "all"}
        return {"deliver_policy": "by_start_time", "opt_start_time": time_text(self._last_time_ns + 1)}

    def _filter(self) -> dict[str, object]:
        subjects = [subject.decode() for subject in self._topics]
        if len(subjects) == 1:
            return {"filter_subject": subjects[0]}
        if sum(map(len, self._topics)) > FILTER_BYTES_MAX:
            return {}
        return {"filter_subjects": subjects}

    def _drop(self) -> None:
        """Be done with the consumer, if there is one. The server would find out by itself, some seconds later."""
        if self._sid:
            self.connection.unsubscribe(self._sid)
        if self._name:
            self.connection.send(plain(f"$JS.API.CONSUMER.DELETE.{self.stream.name}.{self._name}"))
        self._sid, self._name, self._is_whole, self._held_reply = 0, "", False, b""

    # -- messages ---------------------------------------------------------------------------------------------------------

    def take(self, sid: int, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        """A message came."""
        if sid != self._sid:
            return
        self._heard = True
        if not reply.startswith(ACKNOWLEDGE):
            self._take_control(reply, headers)
            return
        tokens = reply.split(b".")
        at = 5 if len(tokens) == SHORT_REPLY_TOKENS else 7
        if int(tokens[at + 1]) != self._next:
            self._amiss(f"message {self._next} was to come, and {int(tokens[at + 1])} came")
            return
        self._next += 1
        self._last = sequence = int(tokens[at])
        self._last_time_ns = int(tokens[at + 2])
        topic, after = self._topics.get(subject, ("", sequence))
        if sequence > after:
            if headers:
                self.inbox.put(Frame(topic, data, read_headers(headers)), len(data) + len(headers))
            else:
                self.inbox.put(Frame(topic, data), len(data))

    def _take_control(self, reply: bytes, headers: bytes | None) -> None:
        """The server asks whether it may go on, or says that it is there and what it sent last."""
        status = status_of(headers)
        if not status.startswith(CONTROL) or headers is None:
            return
        if reply:
            self._held_reply = reply
        else:
            said = read_headers(headers)
            last = str(said.get("Nats-Last-Consumer"))
            if last != str(self._next - 1):
                self._amiss(f"message {last} was the last to be sent, and {self._next - 1} the last to come")
                return
            self._held_reply = str(said.get("Nats-Consumer-Stalled", "")).encode()
        if not self.inbox.is_full:
            self.go_on()

    def go_on(self) -> None:
        """There is room: ask the server for more, if it waits for that."""
        if self._held_reply:
            self.connection.send(plain(self._held_reply.decode()))
            self._held_reply = b""

    def _amiss(self, what: str) -> None:
        self.connection.unsubscribe(self._sid)
        self._sid = 0  # nothing of this consumer counts any more
        self.connection.fail(
            f"stream {self.stream.name!r}: {what}; reading on behind message {self._last} of the stream"
        )

    async def _watch(self) -> None:
        """Begin anew when the consumer is silent: it may have been deleted, or its server is gone."""
        while True:
            self._heard = False
            await asyncio.sleep(SILENCE_S)
            if self._sid and not self._heard and not self.inbox.is_full and self.connection.is_up:
                self._amiss(f"nothing came of its consumer for {SILENCE_S:g} s")


def time_text(time_ns: int) -> str:
    """A time since 1970 as JetStream reads it."""
    moment = datetime.fromtimestamp(time_ns // SECOND_NS, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % SECOND_NS:09d}Z"
