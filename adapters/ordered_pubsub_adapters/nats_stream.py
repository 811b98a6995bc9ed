"""The JetStream stream that stores what is published on all topics of one adapter.

A stream that lets go of what somebody has read, or that does not acknowledge, is refused: every subscriber has to get
everything. A subject that the stream does not have is added to it if the user wants that (`create=true`).

Only one client at a time may do so. Two that change a stream at the same time would take each other's subjects away; and what
is worse, servers (at least 2.9.10 and 2.15.1) then forget to listen to subjects that they list, or listen to them twice and
store each message as often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_jetstream import NO_STREAM, JetStreamError, ask, turn

COVERED_MAX = 65_536
"""subjects of which it is remembered that the stream stores them"""
EXTEND_ATTEMPTS = 5


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
        """Make sure that it stores these subjects, and return what it is now."""
        async with self._turn:
            state = await self._read(connection)
            missing = uncovered(state, subjects)
            if missing:
                self._check_may(connection, state, missing)
                async with turn(connection, self.name):
                    state = await self._extended(connection, subjects)
            assert state is not None
            self._remember(subjects)
            return state

    async def _extended(self, connection: Connection, subjects: Sequence[str]) -> StreamState:
        for _ in range(EXTEND_ATTEMPTS):
            state = await self._read(connection)
            missing = uncovered(state, subjects)
            if state is not None and not missing:
                return state
            await self._extend(connection, state, [*(state.subjects if state else ()), *missing])
        raise connection.error(
            f"stream {self.name!r} does not keep its subjects: something else changes it. Give it subjects that cover all "
            f"topics, as in: nats stream edit {self.name} --subjects 'eu.>,us.>'"
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
        subjects = ", ".join(state.subjects) or "none"
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
        await ask(connection, f"STREAM.CREATE.{self.name}", request)
