"""Answers: what comes back under the reply subjects of one connection, all by way of one subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex

import attrs

from ordered_pubsub_adapters.nats_waiting import settle

AnswerReader = Callable[["bytes | None", bytes], str]
"""Takes an answer's header block and payload, and says what is wrong with it."""


@attrs.define(eq=False)
class Answers:
    """So many messages are to come under one reply subject."""

    token: bytes
    reply: bytes
    """the subject, and a space"""
    missing: int
    read: AnswerReader
    done: asyncio.Future[str]
    """what is wrong: empty if nothing is"""
    trouble: str = ""

    def take(self, headers: bytes | None, data: bytes) -> None:
        """One of them has come."""
        self.missing -= 1
        self.trouble = self.read(headers, data) or self.trouble
        if not self.missing:
            settle(self.done, self.trouble)


class Replies:
    """The reply subjects of one connection."""

    def __init__(self) -> None:
        self._prefix = f"_INBOX.{token_hex(11)}."
        self._expected: dict[bytes, Answers] = {}
        self._tokens = 0

    @property
    def pattern(self) -> str:
        """What to subscribe to."""
        return f"{self._prefix}*"

    def new_inbox(self) -> str:
        """A subject that nobody else uses, and that is none of these."""
        self._tokens += 1
        return f"{self._prefix}inbox.{self._tokens}"

    def expect(self, count: int, read: AnswerReader) -> Answers:
        """A reply subject, under which so many messages are to come. To be given to `forget`."""
        self._tokens += 1
        token = b"%d" % self._tokens
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answers = self._expected[token] = Answers(token, self._prefix.encode() + token + b" ", count, read, done)
        return answers

    def forget(self, answers: Answers) -> None:
        """Answers that are not waited for any more."""
        self._expected.pop(answers.token, None)

    def take(self, subject: bytes, headers: bytes | None, data: bytes) -> None:
        """An answer has come."""
        answers = self._expected.get(subject[len(self._prefix) :])
        if answers is not None:
            answers.take(headers, data)

    def give_up(self, reason: str) -> None:
        """None of those that are expected will come."""
        for answers in self._expected.values():
            settle(answers.done, reason)
        self._expected.clear()
