"""JetStream: requests to it, and the stream that stores what is published.

One stream has all topics. Its subjects must cover those of the topics. A stream that lets go of what somebody has read, or
that does not acknowledge, is refused: every subscriber has to get everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import uniform
from typing import Any

import attrs
import msgspec

from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_wire import status_of

COVERED_MAX = 65_536
"""subjects of which it is remembered that the stream stores them"""
EXTEND_ATTEMPTS = 20
EXTEND_PAUSE_S = 0.05

NO_RESPONDERS = b"503"
NO_STREAM = 10059
NAME_TAKEN = 10058
NOT_STORED = 10093
"""a consumer's filter names what the stream does not have; older servers say so"""
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
