"""NATS with a stream (`nats://…?jetstream=STREAM`), which stores what is published and acknowledges it.

*Publishing*: each message has a reply subject of its own, under which the acknowledgement comes. The server acknowledges when it
has written the message, and by default syncs its disk every two minutes (`sync_interval`): a crash of the server loses nothing,
one of its machine may. A subject that no stream has is answered with 503 at once, so nothing is taken for stored that is not.

*Reading*: a connection has one consumer for all its topics, which acknowledges nothing and begins behind the last message that
came; so a break loses and repeats nothing. It sends what it is asked for, `PULL_MAX` messages and `PULL_BYTES` at most. More is
asked for when the application has taken some, so a slow consumer leaves its messages with the stream. Messages are numbered
twice: by the stream, and by the consumer, whose numbers have no gaps. When topics come or go, the consumer is replaced; a
message of a topic counts only if it was stored after its subscription. Now and then the server is asked how far the consumer is.

*The stream* that lets go of what somebody has read, or that does not acknowledge, is refused: every subscriber has to get
everything. A subject that the stream does not have is added to it if the user wants that (`create=true`). Only one client at a
time may do so. Two that change a stream at the same time would take each other's subjects away; and what is worse, servers (at
least 2.9.10 and 2.15.1) then forget to listen to subjects that they list, or listen to them twice and store each message as
often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from itertools import count
from random import uniform
from secrets import token_hex
from typing import Any

import attrs
import msgspec
from nats import errors

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.wire.tasks import end_task
from ordered_pubsub_adapters._nats_client import ours
from ordered_pubsub_adapters._nats_fast import FastClient, Headers
from ordered_pubsub_adapters._nats_headers import STATUS
from ordered_pubsub_adapters.base import NamedFrames, Window, in_time
from ordered_pubsub_adapters.nats import Client, NatsAdapter, NatsConnection, not_permitted

IN_FLIGHT_MAX, TURN_FRAMES = 256, 64
ACKNOWLEDGE_S = 10.0
"""So long the stream may acknowledge nothing."""
PULL_MAX, PULL_BYTES = 512, 8 * 2**20
AUDIT_S = 5.0
"""How often the consumer is looked at."""
INACTIVE_S = 300
"""A consumer that nobody asks for anything is gone after so long."""
ASK_AGAIN_S, ASK_ATTEMPTS = 5.0, 6
"""A busy server was seen to lose an answer now and then, so it is asked again."""
FILTER_BYTES_MAX = 2**17
"""A longer list of topics than this is not given to the server."""
COVERED_MAX = 65_536
"""subjects of which it is remembered that the stream stores them"""
EXTEND_ATTEMPTS = 5
TURN_S, TURN_PAUSE_S, TURN_MAX_S = 30.0, 0.05, 10
"""How long a client waits for its turn to change the stream, and after how long a turn is over in any case."""

SECOND_NS = 10**9
SHORT_REPLY_TOKENS = 9
"""$JS.ACK.stream.consumer.deliveries.sequence.own-sequence.time.pending; newer ones have two tokens more in front."""
ACKNOWLEDGE = "$JS.ACK."
NO_RESPONDERS = "503"
NO_STREAM, NAME_TAKEN, SUBJECT_TAKEN = 10059, 10058, 10065
TURN_IS_TAKEN = 10077
"""a stream that must not have more messages has as many"""
NOT_ENABLED = (10039, 10076)
"""JetStream is switched off for the account, or on the server"""


class JetStreamError(AdapterError):
    """The server refused a request to JetStream."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


# -- a connection -----------------------------------------------------------------------------------------------------


class StreamConnection(NatsConnection):
    """A connection that publishes to a stream and reads from it."""

    window: Window

    def __init__(self, adapter: NatsAdapter) -> None:
        super().__init__(adapter)
        self.stream = adapter.stream
        self._client = Client(self)
        self.window = Window(self._send, frames_max=IN_FLIGHT_MAX, turn_frames=TURN_FRAMES)
        self._inbox = f"_INBOX.{token_hex(11)}."
        self._numbers = count(1)
        self._taken_by_stream = f'{{"stream":"{self.stream.name}",'.encode()
        self._acknowledged = 0
        self._outgoing: asyncio.Queue[tuple[NamedFrames, list[str]]] = asyncio.Queue()
        """what nats-py itself has to publish; bounded by the window"""
        self._tasks: list[asyncio.Task[None]] = []
        self._consumer = ""
        """its name; empty if there is none"""
        self._is_whole = False
        """whether it reads the whole stream"""
        self._pull_inbox = ""
        self._next = 1
        """the consumer's number of the next message"""
        self._asked_for = 0

    async def open(self, host: str, port: int) -> None:
        """Connect, and see whether the stream can be used."""
        await self._client.open(host, port, self._came, {}, self._inbox)
        self.nats = self._client.nats
        self.adapter.bytes_max = self.nats.max_payload
        await self._client.subscribe(f"{self._inbox}>")
        await self.stream.check(self)
        works = {
            self._audit: "its consumer",
            self._watch_window: "its acknowledgements",
            self._write: "what is to be written",
        }
        self._tasks = [self.adapter.supervisor.keep(work, f"seeing to {what}") for work, what in works.items()]

    async def close(self, is_last: bool) -> None:
        """The consumer is not needed any more."""
        for task in self._tasks:
            await end_task(task)
        if self._consumer and self.nats.is_connected:
            with suppress(errors.Error, AdapterError, OSError, asyncio.TimeoutError):
                await self._drop_consumer()
                await in_time(self.nats.flush(), ACKNOWLEDGE_S, "it does not answer") if is_last else None
        await super().close(is_last)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, frames: NamedFrames) -> None:
        """Return when the stream has all of them."""
        for _, frame in frames:
            self._client.check_size(frame)
        names = list(dict.fromkeys(name for name, _ in frames))
        if not self.stream.is_covered(names):
            await self.stream.cover(self, names)
        await self.window.publish(frames)

    def _send(self, frames: NamedFrames) -> list[str]:
        replies = [f"{self._inbox}{number}" for number, _ in zip(self._numbers, frames, strict=False)]
        if isinstance(self.nats, FastClient):
            self.nats.write(frames, replies)
        else:
            self._outgoing.put_nowait((frames, replies))
        return replies

    async def _write(self) -> None:
        """Have nats-py publish, in order."""
        while True:
            work = await self._outgoing.get()
            try:
                await self._client.publish(*work)
            except AdapterError as error:
                self.end(str(error))

    async def _watch_window(self) -> None:
        """Fail what is not acknowledged in time."""
        while True:
            before = self._acknowledged
            await asyncio.sleep(ACKNOWLEDGE_S)
            if len(self.window) and before == self._acknowledged:
                self.window.fail(
                    f"{self.adapter.shown}: stream {self.stream.name!r} acknowledged nothing for {ACKNOWLEDGE_S:g} s; has it a "
                    "leader, and room on its disk?"
                )

    def refused(self, subject: str | None, text: str) -> None:
        """Who publishes on it gets no acknowledgement."""
        error = not_permitted(self.adapter.shown, text)
        self.window.refuse_all(lambda name: subject in (None, name.casefold()), lambda _: error)
        self.window.fill()

    def _came(self, subject: str, reply: str, headers: Headers, data: bytes) -> None:
        if self.ended.done():
            return  # the next connection reads on where this one has ended
        if reply.startswith(ACKNOWLEDGE):
            self._take(subject, reply, headers, data)
        elif subject == self._pull_inbox:
            # The server will not send all that it was asked for: it would be too many bytes, or the consumer is gone.
            self._asked_for -= int(headers.get("Nats-Pending-Messages") or 0)
            self._pull()
        else:
            self._acknowledged += 1
            if data.startswith(self._taken_by_stream):
                self.window.confirm(subject)
            else:
                trouble = self._trouble(headers, data)
                self.stream.forget()
                self.window.refuse(
                    subject, lambda topic: AdapterError(f"an event on {topic!r} was not stored: {trouble}")
                )
            self.window.fill_soon()

    def _trouble(self, headers: Headers, data: bytes) -> str:
        """What an acknowledgement says is wrong."""
        if headers.get(STATUS) == NO_RESPONDERS:
            return f"no stream has this subject; {self.stream.name!r} had it before, who changed it?"
        answer: dict[str, Any] = {}
        with suppress(msgspec.MsgspecError):
            answer = msgspec.json.decode(data, type=dict)
        if "error" in answer:
            return f"stream {self.stream.name!r} says: {answer['error'].get('description')}"
        return f"stream {answer.get('stream')!r} took it, and not {self.stream.name!r}"

    # -- topics -------------------------------------------------------------------------------------------------------

    async def subscribe(self, names: Sequence[str]) -> None:
        """What is stored from now on comes; the others go on where they are."""
        if not names:
            return
        stream = self.stream
        state = await stream.cover(self, names if self._consumer else [*stream.positions, *names])
        start = stream.resume(state) if not self._consumer else None
        new = [name for name in names if name not in stream.positions]
        stream.positions.update(dict.fromkeys(new, state.last_sequence))
        is_enough = self._consumer and (self._is_whole or not new)
        if not is_enough:
            await self._replace(start, new)

    async def unsubscribe(self, names: Sequence[str]) -> None:
        """The others go on."""
        positions = self.stream.positions
        held = [name for name in names if positions.pop(name, None) is not None]
        if held and self._consumer and not (self._is_whole and len(positions) > 1):
            await self._replace(None, [])

    async def _replace(self, start: dict[str, object] | None, new: Sequence[str]) -> None:
        """Have another consumer, from behind the last message that came; or another connection, if that fails."""
        try:
            if self._consumer:
                await self._drop_consumer()
            if self.stream.positions:
                await self._consume(start or self.stream.behind_last())
        except BaseException as error:
            for name in new:
                self.stream.positions.pop(name, None)
            self.end(f"its consumer could not be replaced: {error}")
            raise

    async def _drop_consumer(self) -> None:
        """The server would find out by itself, some minutes later."""
        name, self._consumer = self._consumer, ""
        with ours(self.adapter.shown, "deleting the consumer"):
            await self.nats.publish(f"$JS.API.CONSUMER.DELETE.{self.stream.name}.{name}")

    async def _consume(self, start: dict[str, object]) -> None:
        names = list(self.stream.positions)
        config = {
            **start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": INACTIVE_S * SECOND_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if len(names) == 1:
            config["filter_subject"] = names[0]
        elif sum(map(len, names)) <= FILTER_BYTES_MAX:
            config["filter_subjects"] = names
        answer = await self.ask(
            f"CONSUMER.CREATE.{self.stream.name}", {"stream_name": self.stream.name, "config": config}
        )
        got = answer["config"]
        self._is_whole = not (got.get("filter_subject") or got.get("filter_subjects"))
        self._pull_inbox = f"{self._inbox}pull.{next(self._numbers)}"
        self._consumer, self._next, self._asked_for = answer["name"], 1, 0
        self._pull()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Ask for more, if there is room for it."""
        held = self.adapter.held_frames
        half, half_bytes = PULL_MAX // 2, max(PULL_BYTES // 2, 2 * self.nats.max_payload)
        if self._consumer and self._asked_for <= half and held <= half and self.adapter.held_bytes < PULL_BYTES // 2:
            self._asked_for += half
            request = msgspec.json.encode({"batch": half, "max_bytes": half_bytes})
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream.name}.{self._consumer}"
            frames, replies = [(subject, Frame("", request))], [self._pull_inbox]
            if isinstance(self.nats, FastClient):
                self.nats.write(frames, replies)
            else:
                self._outgoing.put_nowait((frames, replies))

    def taken(self, tokens: Sequence[Any]) -> None:
        """There is room for more."""
        self._pull()

    def _take(self, subject: str, reply: str, headers: Headers, data: bytes) -> None:
        tokens, stream = reply.split("."), self.stream
        at = 5 if len(tokens) == SHORT_REPLY_TOKENS else 7
        if tokens[at - 2] != self._consumer:
            return  # of one that was replaced
        if int(tokens[at + 1]) != self._next:
            self.end(
                f"stream {stream.name!r}: message {self._next} was to come, and {tokens[at + 1]} came; reading on behind message "
                f"{stream.last} of the stream"
            )
            return
        self._next += 1
        self._asked_for -= 1
        stream.last = sequence = int(tokens[at])
        stream.last_time = tokens[at + 2]
        topic = self.adapter.names.topic_of(subject)
        if topic is not None and sequence > stream.positions.get(subject, sequence):
            self.adapter.received(self, Frame(topic, data, headers))
        elif self._asked_for <= PULL_MAX // 2:
            self._pull()

    async def _audit(self) -> None:
        """Begin anew when the consumer is gone, or has sent what did not come, or does not know that it was asked."""
        seen = 0
        while True:
            await asyncio.sleep(AUDIT_S)
            name, before, asked_for = self._consumer, self._next, self._asked_for
            if not name:
                continue
            try:
                info = await self.ask(f"CONSUMER.INFO.{self.stream.name}.{name}")
            except AdapterError as error:
                if name == self._consumer:
                    self.end(f"stream {self.stream.name!r}: nothing is known of its consumer: {error}")
                    return
                continue
            delivered = info["delivered"]["consumer_seq"]
            is_idle = before == self._next == seen and asked_for == self._asked_for
            if (
                name == self._consumer
                and is_idle
                and (delivered != before - 1 or (asked_for and not info["num_waiting"]))
            ):
                self.end(
                    f"stream {self.stream.name!r}: message {delivered} was the last to be sent, and {before - 1} the last to come"
                )
                return
            seen = self._next

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream; returns its answer or raises why it refused."""
        return self.read(
            call, await self.request(f"$JS.API.{call}", b"" if request is None else msgspec.json.encode(request))
        )

    async def request(self, subject: str, payload: bytes = b"") -> bytes | None:
        """The answer to a question, which may be asked again; None if nobody listens."""
        since = self._client.refusals.count
        for _ in range(ASK_ATTEMPTS):
            try:
                work = self.nats.request(subject, payload, timeout=ASK_AGAIN_S)
                return (await in_time(work, 2 * ASK_AGAIN_S, "no answer")).data
            except errors.NoRespondersError:
                return None
            except errors.TimeoutError:
                self._client.refusals.check(self.adapter.shown, (subject,), since)
            except (errors.Error, OSError) as error:
                raise AdapterError(
                    f"{self.adapter.shown}: JetStream could not be asked ({subject}): {error}"
                ) from error
        raise AdapterError(
            f"{self.adapter.shown}: JetStream did not answer {subject} in {ASK_ATTEMPTS * ASK_AGAIN_S:g} s"
        )

    def read(self, call: str, data: bytes | None) -> dict[str, Any]:
        """An answer of JetStream, or an error that says why it refused."""
        if data is None:
            raise self._no_jetstream("nobody answers its requests")
        answer: dict[str, Any] = msgspec.json.decode(data)
        error = answer.get("error")
        if error is None:
            return answer
        code = error.get("err_code", 0)
        if code in NOT_ENABLED:
            raise self._no_jetstream(error.get("description"))
        raise JetStreamError(
            f"{self.adapter.shown}: JetStream refused {call}: {error.get('description')} (error {code})", code
        )

    def _no_jetstream(self, reason: object) -> AdapterError:
        return AdapterError(
            f"{self.adapter.shown}: the server has no JetStream for this user ({reason}); start it with -js (jetstream in its "
            "configuration), or leave ?jetstream= out"
        )


# -- a stream ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class StreamState:
    """What is known of a stream now."""

    config: dict[str, Any]
    created: str
    last_sequence: int

    @property
    def subjects(self) -> list[str]:
        """What it stores; there may be wildcards."""
        return self.config.get("subjects") or []


def covers(pattern: str, subject: str) -> bool:
    """Whether a stream's subject, which may have wildcards, covers a plain one."""
    ours, theirs = subject.split("."), pattern.split(".")
    for place, token in enumerate(theirs):
        if token == ">":
            return len(ours) > place
        if place >= len(ours) or token not in ("*", ours[place]):
            return False
    return len(ours) == len(theirs)


def uncovered(stream: StreamState | None, subjects: Sequence[str]) -> list[str]:
    """Those of the plain subjects that a stream does not store."""
    patterns = stream.subjects if stream is not None else []
    plain = dict.fromkeys(patterns)
    wild = [pattern for pattern in patterns if "*" in pattern or ">" in pattern]
    return [one for one in subjects if one not in plain and not any(covers(pattern, one) for pattern in wild)]


@attrs.define(eq=False)
class Stream:
    """The stream that one adapter uses, and how far it was read."""

    adapter: NatsAdapter
    name: str
    may_create: bool
    """also: may be given more subjects"""
    positions: dict[str, int] = attrs.field(factory=dict)
    """by subject, from behind which message it is wanted"""
    last: int = 0
    """the number of the last message that came"""
    last_time: str = ""
    """when it was stored, in nanoseconds since 1970; empty if none came"""
    _created: str = ""
    """when the stream was made, whose numbers these are"""
    _covered: dict[str, bool] = attrs.field(factory=dict)
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    def resume(self, state: StreamState) -> dict[str, object]:
        """Where a new connection begins to read."""
        if not self.positions:
            self.last, self._created, self.last_time = state.last_sequence, state.created, ""
        elif state.created != self._created or state.last_sequence < self.last:  # it was made anew
            self.last, self._created = 0, state.created
            self.positions = dict.fromkeys(self.positions, 0)
            if self.last_time:
                return {"deliver_policy": "by_start_time", "opt_start_time": time_text(int(self.last_time) + 1)}
            return {"deliver_policy": "all"}
        return self.behind_last()

    def behind_last(self) -> dict[str, object]:
        """Behind the last message that came."""
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last + 1}

    async def check(self, connection: StreamConnection) -> None:
        """Raise if it is not there, and must not be made, or cannot be used."""
        if await self._read(connection) is None and not self.may_create:
            raise self._missing()

    def is_covered(self, subjects: Iterable[str]) -> bool:
        """Whether the stream stored these subjects when it was last looked at."""
        return all(subject in self._covered for subject in subjects)

    def forget(self) -> None:
        """Look again: the stream is not what it was."""
        self._covered.clear()

    async def cover(self, connection: StreamConnection, subjects: Sequence[str]) -> StreamState:
        """Make sure that it stores these subjects, and return what it is now."""
        async with self._turn:
            state = await self._read(connection)
            if missing := uncovered(state, subjects):
                if not self.may_create:
                    raise self._missing() if state is None else self._lacking(state, missing)
                async with turn(connection, self.name):
                    state = await self._extended(connection, subjects)
            assert state is not None
            if len(self._covered) > COVERED_MAX:
                self._covered.clear()
            self._covered.update(dict.fromkeys(subjects, True))
            return state

    async def _extended(self, connection: StreamConnection, subjects: Sequence[str]) -> StreamState:
        for _ in range(EXTEND_ATTEMPTS):
            state = await self._read(connection)
            missing = uncovered(state, subjects)
            if state is None:
                rules = {"retention": "limits", "storage": "file", "discard": "old"}
                await connection.ask(f"STREAM.CREATE.{self.name}", {"name": self.name, "subjects": missing, **rules})
            elif missing:
                changed = {**state.config, "subjects": [*state.subjects, *missing]}
                await connection.ask(f"STREAM.UPDATE.{self.name}", changed)
            else:
                return state
        raise AdapterError(
            f"{self.adapter.shown}: stream {self.name!r} does not keep its subjects: something else changes it. Give it subjects "
            f"that cover all topics, as in: nats stream edit {self.name} --subjects 'eu.>,us.>'"
        )

    async def _read(self, connection: StreamConnection) -> StreamState | None:
        try:
            answer = await connection.ask(f"STREAM.INFO.{self.name}")
        except JetStreamError as error:
            if error.code == NO_STREAM:
                return None
            raise
        config = answer["config"]
        for key, wanted in (("retention", "limits"), ("no_ack", False), ("sealed", False)):
            if config.get(key, wanted) != wanted:
                raise ConfigurationError(
                    f"{self.adapter.shown}: stream {self.name!r} has {key}={config[key]!r}, and {wanted!r} is needed, so that "
                    "every subscriber gets everything; name another stream"
                )
        return StreamState(config, answer["created"], answer["state"]["last_seq"])

    def _lacking(self, state: StreamState, missing: Sequence[str]) -> ConfigurationError:
        subjects = ", ".join(state.subjects) or "none"
        return ConfigurationError(
            f"{self.adapter.shown}: stream {self.name!r} does not store {', '.join(map(repr, missing[:3]))} (its subjects: "
            f"{subjects}). Give it a subject that covers it, as in: nats stream edit {self.name} --subjects "
            f"'{subjects},{missing[0]}'; or let it be done here, with &create=true"
        )

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.adapter.shown}: there is no stream {self.name!r}. Make it, with subjects that cover all topics, as in: "
            f"nats stream add {self.name} --subjects 'eu.>' --defaults; or let it be made here, with &create=true"
        )


def time_text(time_ns: int) -> str:
    """A time since 1970 as JetStream reads it."""
    moment = datetime.fromtimestamp(time_ns // SECOND_NS, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % SECOND_NS:09d}Z"


# -- one at a time ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def turn(connection: StreamConnection, name: str) -> AsyncIterator[None]:
    """For as long as no other client has its turn under this name.

    A stream of its own has room for one message, which is refused to all others, and which goes when its time is over: so a
    client that dies holds up nobody for long.
    """
    stream, subject = f"{name}_TURN", f"$ordered_pubsub.turn.{name}"
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + TURN_S
    while (sequence := await _take_turn(connection, stream, subject)) is None:
        if loop.time() > give_up_at:
            raise AdapterError(
                f"{connection.adapter.shown}: others kept changing stream {name!r} for {TURN_S:g} s; look at stream {stream!r}"
            )
        await asyncio.sleep(uniform(0, TURN_PAUSE_S))
    try:
        yield
    finally:
        with suppress(errors.Error):
            await connection.nats.publish(f"$JS.API.STREAM.MSG.DELETE.{stream}", msgspec.json.encode({"seq": sequence}))


async def _take_turn(connection: StreamConnection, stream: str, subject: str) -> int | None:
    """Our message's number, None if it is not our turn."""
    data = await connection.request(subject)
    try:
        if data is not None:
            return int(connection.read(subject, data)["seq"])
        rules = {"max_msgs": 1, "discard": "new", "max_age": TURN_MAX_S * SECOND_NS, "duplicate_window": SECOND_NS}
        request = {"name": stream, "subjects": [subject], "storage": "memory", **rules}
        await connection.ask(f"STREAM.CREATE.{stream}", request)
    except JetStreamError as error:
        if error.code not in (TURN_IS_TAKEN, NAME_TAKEN, SUBJECT_TAKEN):  # then somebody else was quicker
            raise
    return None
