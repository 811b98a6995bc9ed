"""People talk in several chat rooms at once, and nobody reads an answer before its question. Over NATS.

    python examples/chat_rooms.py
    python examples/chat_rooms.py --ens nats://127.0.0.1:4222

Four people ask each other in one room, mostly in the lobby, and answer in another. An archive is in all rooms, and has each
message on its disk before it goes on.

First without the order, as nats-py is used: a subscription for each room, with a callback. NATS keeps an order within one room
only, and nats-py gives each subscription a task of its own. So while the archive is busy with the lobby, it writes down
answers from quiet rooms whose questions are yet to come; and people differ in what was said first. Then with the order, the
archive as slow as before: one subscription to all rooms, cause before effect, and the same order for everybody in the same
rooms. The exit code is 0 if that is so.

Without --ens (or ORDERED_PUBSUB_ENS) a NATS server is started.
"""

from __future__ import annotations

import asyncio
import json
import os
from bisect import bisect, insort
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import chain, combinations
from random import Random
from tempfile import TemporaryFile
from typing import IO, Any

import nats
from nats.aio.msg import Msg
from surroundings import Publish, run

import ordered_pubsub
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.brokers import NatsServer

ROOMS = ("chat/lobby", "chat/music", "chat/films", "chat/books")
PEOPLE = {"Ann": ROOMS[:3], "Ben": (*ROOMS[:2], ROOMS[3]), "Cat": ROOMS, "Dan": (ROOMS[0], *ROOMS[2:])}
ARCHIVE = "the archive"
QUESTIONS_EACH = 50
ROUNDS_MAX = 10
PATIENCE_S = 20.0

Read = Callable[[str, Any], Awaitable[None]]
Join = Callable[[AsyncExitStack, Sequence[str], Read], Awaitable[Publish]]
"""Connects, joins rooms, and returns what publishes."""


def questions_of(asker: str) -> list[dict[str, str]]:
    """What somebody asks, whom, and where this is answered."""
    random, questions = Random(asker), []
    for number in range(1, QUESTIONS_EACH + 1):
        room = random.choice((ROOMS[0], ROOMS[0], *PEOPLE[asker]))
        to = random.choice([name for name, rooms in PEOPLE.items() if name != asker and room in rooms])
        other = random.choice([other for other in PEOPLE[to] if other != room])
        questions.append({"question": f"{asker} {number}", "asked_in": room, "to": to, "answered_in": other})
    return questions


QUESTIONS = {name: questions_of(name) for name in PEOPLE}


class Member:
    """Somebody who reads and answers. Knows nothing of brokers."""

    def __init__(self, name: str, rooms: Sequence[str], disk: IO[bytes] | None = None) -> None:
        self.name, self.rooms, self.disk = name, rooms, disk
        self.publish: Publish
        self.said: list[tuple[str, str]] = []
        """what was read so far: which question or its answer, and in which room"""
        self.early = 0
        """answers that were there before their questions"""
        self.has_all = asyncio.Event()
        places = [q[place] for q in chain(*QUESTIONS.values()) for place in ("asked_in", "answered_in")]
        self.expected = sum(place in rooms for place in places)

    async def read(self, room: str, message: Any) -> None:
        """Read a message. If it is a question to oneself, answer."""
        if self.disk is not None:
            await asyncio.to_thread(self._write, message)
        question, asked_in = message["question"], message["asked_in"]
        self.early += asked_in in self.rooms and room != asked_in and (question, asked_in) not in self.said
        self.said.append((question, room))
        if len(self.said) == self.expected:
            self.has_all.set()
        if room == asked_in and message["to"] == self.name:
            await self.publish(message["answered_in"], message)

    def _write(self, message: Any) -> None:
        assert self.disk is not None
        self.disk.write(json.dumps(message).encode() + b"\n")
        self.disk.flush()
        os.fsync(self.disk.fileno())


async def ask(member: Member) -> None:
    """Ask everything that one wants to know."""
    for question in QUESTIONS[member.name]:
        await member.publish(question["asked_in"], question)


async def talk(join: Join) -> list[Member]:
    """Let all ask at once, until everybody has read everything in his rooms."""
    async with AsyncExitStack() as stack:
        people = [Member(name, rooms) for name, rooms in PEOPLE.items()]
        members = [*people, Member(ARCHIVE, ROOMS, stack.enter_context(TemporaryFile()))]
        for member in members:
            member.publish = await join(stack, member.rooms, member.read)
        await asyncio.gather(*map(ask, people))
        await asyncio.wait([asyncio.ensure_future(member.has_all.wait()) for member in members], timeout=PATIENCE_S)
    return members


def differing_pairs(one: Member, two: Member) -> int:
    """Pairs of messages that both have read, and in different order."""
    places = {message: place for place, message in enumerate(two.said)}
    count, before = 0, list[int]()
    for place in (places[message] for message in one.said if message in places):
        count += len(before) - bisect(before, place)
        insort(before, place)
    return count


def report(kind: str, members: Sequence[Member]) -> tuple[int, int]:
    """Print what went wrong, and return it: early answers, pairs that two members read in different order."""
    early = sum(member.early for member in members)
    differing = sum(differing_pairs(one, two) for one, two in combinations(members, 2))
    worst = max(members, key=lambda member: member.early)
    print(f"{kind}: {early} answers were read before their questions" + (f", most by {worst.name}" if early else ""))
    print(f"    {differing:,} times two members read two messages in different order")
    return early, differing


async def show(brokers: list[str], stages: list[str]) -> bool:
    """Without the order, then with it; return whether it held."""

    async def without_order(stack: AsyncExitStack, rooms: Sequence[str], read: Read) -> Publish:
        try:
            connection = await nats.connect(brokers[0], allow_reconnect=False)
        except (OSError, asyncio.TimeoutError, nats.errors.Error) as error:
            raise UnavailableError(f"expected a NATS server at {brokers[0]}; it cannot be reached: {error}") from error
        stack.push_async_callback(connection.close)

        async def callback(message: Msg) -> None:
            await read(message.subject.replace(".", "/"), json.loads(message.data))

        for room in rooms:
            await connection.subscribe(room.replace("/", "."), cb=callback)
        await connection.flush()

        async def publish(room: str, message: Any) -> None:
            await connection.publish(room.replace("/", "."), json.dumps(message).encode())
            await connection.flush()

        return publish

    async def with_order(stack: AsyncExitStack, rooms: Sequence[str], read: Read) -> Publish:
        client = await stack.enter_async_context(ordered_pubsub.connect(brokers[0], sequencer=stages))
        await client.subscribe(*rooms, notify=lambda event: read(event.topic, event.data))
        return client.publish

    for number in range(1, ROUNDS_MAX + 1):
        if all(report(f"without the order, round {number}", await talk(without_order))):
            break
    members = await talk(with_order)
    is_good = not any(report("with the order", members))
    return is_good and all(len(member.said) == member.expected for member in members)


def start_nats(stack: ExitStack) -> list[str]:
    """A server of our own."""
    return [stack.enter_context(NatsServer()).url]


if __name__ == "__main__":
    run(show, start_nats, [["**"]])
