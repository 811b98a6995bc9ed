"""JetStream: a stream of NATS that stores what is published, and acknowledges it.

One stream has all topics. Its subjects must cover those of the topics; a subject that nothing stores is answered with 503 by
the server at once, so a publication that is lost in this way is never taken for a published one.

Publications are written many at a time, each with the same reply subject for all of a batch, so that their acknowledgements
are only counted. At most `IN_FLIGHT_MAX` are unanswered. The server acknowledges when the message is written, and by default
syncs its disk every two minutes (`sync_interval`): a crash of the server loses nothing, a crash of its machine may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import uniform
from typing import Any

import attrs
import msgspec

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats_client import settle
from ordered_pubsub_adapters.nats_connection import Answers, Connection
from ordered_pubsub_adapters.nats_wire import pieces, status_of

IN_FLIGHT_MAX = 256
BATCH_FRAMES = 64
ACKNOWLEDGE_S = 10.0
COVERED_MAX = 65_536
"""subjects of which it is remembered that the stream stores them"""
EXTEND_ATTEMPTS = 20
EXTEND_PAUSE_S = 0.05

NO_RESPONDERS = b"503"
NO_STREAM = 10059
NAME_TAKEN = 10058
NOT_ENABLED = (10039, 10076)
"""JetStream is switched off for the account, or on the server"""


class JetStreamError(AdapterError):
    """The server refused a request to JetStream."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


async def ask(connection: Connection, call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask JetStream; returns its answer or raises why it refused."""
    payload = b"" if request is None else msgspec.json.encode(request)
    headers, data = await connection.request(f"$JS.API.{call}", payload)
    if status_of(headers).startswith(NO_RESPONDERS):
        raise _no_jetstream(connection, "nobody answers its requests")
    answer: dict[str, Any] = msgspec.json.decode(data)
    error = answer.get("error")
    if error is None:
        return answer
    if error.get("err_code") in NOT_ENABLED:
        raise _no_jetstream(connection, error.get("description"))
    raise JetStreamError(
        f"{connection.url.shown}: JetStream refused {call}: {error.get('description')} (error {error.get('err_code')})",
        error.get("err_code", 0),
    )


def _no_jetstream(connection: Connection, reason: object) -> AdapterError:
    return connection.error(
        f"the server has no JetStream for this user ({reason}); start it with -js (jetstream in its configuration), or leave "
        "?jetstream= out"
    )


def covers(pattern: str, subject: str) -> bool:
    """Whether a stream's subject, which may have wildcards, covers a plain one."""
    ours, theirs = subject.split("."), pattern.split(".")
    for place, token in enumerate(theirs):
        if token == ">":
            return len(ours) > place
        if place >= len(ours) or token not in ("*", ours[place]):
            return False
    return len(ours) == len(theirs)


def uncovered(patterns: Sequence[str], subjects: Sequence[str]) -> list[str]:
    """Those of the plain subjects that none of a stream's covers."""
    plain = dict.fromkeys(patterns)
    wild = [pattern for pattern in patterns if "*" in pattern or ">" in pattern]
    return [one for one in subjects if one not in plain and not any(covers(pattern, one) for pattern in wild)]


# -- the stream -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class StreamState:
    """What is known of a stream now."""

    config: dict[str, Any]
    created: str
    last_sequence: int


@attrs.define(eq=False)
class Stream:
    """The stream that one adapter uses."""

    name: str
    may_create: bool
    """also: may be given more subjects"""
    _covered: dict[str, bool] = attrs.field(factory=dict)
    _turn: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    async def check(self, connection: Connection) -> None:
        """Raise if it is not there, and must not be made, or cannot be used."""
        if await self._read(connection) is None and not self.may_create:
            raise self._missing(connection)

    def is_covered(self, subjects: Iterable[str]) -> bool:
        """Whether the stream stored these subjects when it was last looked at."""
        return all(subject in self._covered for subject in subjects)

    def forget(self) -> None:
        """Look again: the stream is not what it was."""
        self._covered.clear()

    async def cover(self, connection: Connection, subjects: Sequence[str]) -> StreamState:
        """Make sure that it stores these subjects, and return what it is now.

        Others may change it at the same time, and the last change counts: so look again after each.
        """
        async with self._turn:
            for attempt in range(EXTEND_ATTEMPTS):
                state = await self._read(connection)
                stored = state.config.get("subjects") or [] if state else []
                missing = uncovered(stored, subjects)
                if state is not None and not missing:
                    self._remember(subjects)
                    return state
                self._check_may(connection, state, missing)
                await self._extend(connection, state, [*stored, *missing])
                await asyncio.sleep(uniform(0, attempt * EXTEND_PAUSE_S))
        raise connection.error(
            f"stream {self.name!r} does not keep its subjects: others change it again and again. Give it subjects that cover "
            f"all topics, as in: nats stream edit {self.name} --subjects 'eu.>,us.>'"
        )

    def _remember(self, subjects: Sequence[str]) -> None:
        if len(self._covered) > COVERED_MAX:
            self._covered.clear()
        self._covered.update(dict.fromkeys(subjects, True))

    async def _read(self, connection: Connection) -> StreamState | None:
        try:
            answer = await ask(connection, f"STREAM.INFO.{self.name}")
        except JetStreamError as error:
            if error.code == NO_STREAM:
                return None
            raise
        self._check_config(connection, answer["config"])
        return StreamState(answer["config"], answer["created"], answer["state"]["last_seq"])

    def _check_config(self, connection: Connection, config: dict[str, Any]) -> None:
        """A stream that forgets what somebody has read, or does not acknowledge, is of no use."""
        for key, wanted in (("retention", "limits"), ("no_ack", False), ("sealed", False)):
            if config.get(key, wanted) != wanted:
                raise ConfigurationError(
                    f"{connection.url.shown}: stream {self.name!r} has {key}={config[key]!r}, and {wanted!r} is needed, so that "
                    "every subscriber gets everything; name another stream"
                )

    def _check_may(self, connection: Connection, state: StreamState | None, missing: Sequence[str]) -> None:
        if self.may_create:
            return
        if state is None:
            raise self._missing(connection)
        subjects = ", ".join(state.config.get("subjects") or ()) or "none"
        raise ConfigurationError(
            f"{connection.url.shown}: stream {self.name!r} does not store {', '.join(map(repr, missing[:3]))} (its subjects: "
            f"{subjects}). Give it a subject that covers it, as in: nats stream edit {self.name} --subjects "
            f"'{subjects},{missing[0]}'; or let it be done here, with &create=true"
        )

    def _missing(self, connection: Connection) -> ConfigurationError:
        return ConfigurationError(
            f"{connection.url.shown}: there is no stream {self.name!r}. Make it, with subjects that cover all topics, as in: "
            f"nats stream add {self.name} --subjects 'eu.>' --defaults; or let it be made here, with &create=true"
        )

    async def _extend(self, connection: Connection, state: StreamState | None, subjects: list[str]) -> None:
        if state is not None:
            await ask(connection, f"STREAM.UPDATE.{self.name}", {**state.config, "subjects": subjects})
            return
        request = {"name": self.name, "subjects": subjects, "retention": "limits", "storage": "file", "discard": "old"}
        try:
            await ask(connection, f"STREAM.CREATE.{self.name}", request)
        except JetStreamError as error:
            if error.code != NAME_TAKEN:  # by somebody who made it at the same time
                raise


# -- publishing -----------------------------------------------------------------------------------------------------------


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
            await asyncio.wait_for(asyncio.shield(future), ACKNOWLEDGE_S)
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
        try:
            for piece in pieces(frames, BATCH_FRAMES):
                await self._window.take(len(piece))
                self.connection.check_up()
                answers = self.connection.expect(len(piece), self._read)
                batches.append(answers)
                self.connection.publish(piece, self.names, answers.reply)
            await self._acknowledged(batches, subjects)
        except asyncio.TimeoutError:
            self.connection.check_refusals(subjects)
            raise self.connection.error(f"{len(frames)} messages were not sent: {self._silence}") from None
        finally:
            for answers in batches:
                self.connection.forget(answers)
                self._window.give(answers.missing)

    async def _acknowledged(self, batches: Sequence[Answers], subjects: Sequence[str]) -> None:
        await self.connection.flush()
        self.connection.check_refusals(subjects)
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
