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
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import chain, combinations
from random import Random
from tempfile import TemporaryFile
from typing import IO, Any

try:
    import nats
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
except ModuleNotFoundError:
    sys.exit("chat_rooms: this example uses nats-py: pip install 'ordered-pubsub[nats]', or pip install nats-py")
from surroundings import Publish, count_differing_pairs, patiently, run

import ordered_pubsub
from ordered_pubsub.adapter import redacted
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.brokers import NatsServer

LOBBY, MUSIC, FILMS, BOOKS = ROOMS = ("chat/lobby", "chat/music", "chat/films", "chat/books")
PEOPLE = {"Ann": (LOBBY, MUSIC, FILMS), "Ben": (LOBBY, MUSIC, BOOKS), "Cat": ROOMS, "Dan": (LOBBY, FILMS, BOOKS)}
QUESTIONS_EACH = 50
ROUNDS_MAX = 10

Question = dict[str, str]
"""Its answer is the same message in another room."""
Read = Callable[[str, Any], Awaitable[None]]
Join = Callable[[AsyncExitStack, Sequence[str], Read], Awaitable[Publish]]
"""Connects, joins rooms, and returns what publishes."""


def questions_of(asker: str) -> list[Question]:
    """What somebody asks, whom, and where this is answered."""
    random, questions = Random(asker), []
    for number in range(1, QUESTIONS_EACH + 1):
        room = random.choice((LOBBY, LOBBY, *PEOPLE[asker]))
        to = random.choice([name for name, rooms in PEOPLE.items() if name != asker and room in rooms])
        answered_in = random.choice([other for other in PEOPLE[to] if other != room])
        questions.append({"question": f"{asker} {number}", "asked_in": room, "to": to, "answered_in": answered_in})
    return questions


QUESTIONS = {name: questions_of(name) for name in PEOPLE}


class Member:
    """Somebody who reads and answers."""

    publish: Publish

    def __init__(self, name: str, rooms: Sequence[str], disk: IO[bytes] | None = None) -> None:
        self.name, self.rooms, self.disk = name, rooms, disk
        self.has_read: list[tuple[str, str]] = []
        """questions, each with the room that it, or its answer, was read in"""
        self.early_answers = 0
        """answers whose questions had not come, though they are in one of the rooms"""
        self.has_all = asyncio.Event()
        every = chain(*QUESTIONS.values())
        self._expected = sum((q["asked_in"] in rooms) + (q["answered_in"] in rooms) for q in every)

    async def read(self, room: str, message: Any) -> None:
        """Read a message. If it is a question to oneself, answer."""
        if self.disk is not None:
            await asyncio.to_thread(write, self.disk, message)
        question, asked_in = message["question"], message["asked_in"]
        if room != asked_in and asked_in in self.rooms and (question, asked_in) not in self.has_read:
            self.early_answers += 1
        self.has_read.append((question, room))
        if len(self.has_read) == self._expected:
            self.has_all.set()
        if room == asked_in and message["to"] == self.name:
            await self.publish(message["answered_in"], message)


def write(disk: IO[bytes], message: Any) -> None:
    """Write, and return when it is there."""
    disk.write(json.dumps(message).encode() + b"\n")
    disk.flush()
    os.fsync(disk.fileno())


async def ask(member: Member) -> None:
    """Ask everything that one wants to know."""
    for question in QUESTIONS[member.name]:
        await member.publish(question["asked_in"], question)


async def talk(join: Join) -> list[Member]:
    """Let all ask at once, until everybody has read everything that is said in his rooms."""
    people = [Member(name, rooms) for name, rooms in PEOPLE.items()]
    with TemporaryFile() as disk:
        members = [*people, Member("the archive", ROOMS, disk)]
        async with AsyncExitStack() as stack:
            for member in members:
                member.publish = await join(stack, member.rooms, member.read)
            await patiently(*map(ask, people), *(member.has_all.wait() for member in members))
    return members


def judge(kind: str, members: Sequence[Member]) -> tuple[int, int]:
    """Print and return how many answers came before their questions, and how often members differ in what was first."""
    early = {member.name: member.early_answers for member in members if member.early_answers}
    differing = sum(count_differing_pairs(one.has_read, two.has_read) for one, two in combinations(members, 2))
    print(f"{kind}: {sum(early.values())} answers were read before their questions")
    print(*(f"    {count} by {name}\n" for name, count in early.items()), sep="", end="")
    print(f"    {differing:,} times two members read two messages in different order")
    return sum(early.values()), differing


async def show(brokers: list[str], stages: list[str]) -> bool:
    """Without the order, then with it; return whether it held."""

    async def without_order(stack: AsyncExitStack, rooms: Sequence[str], read: Read) -> Publish:
        try:
            connection = await nats.connect(brokers[0], allow_reconnect=False)
        except (NatsError, OSError) as error:
            raise UnavailableError(
                f"expected {redacted(brokers[0])} to let nats-py in; it does not: {error!r}"
            ) from error
        stack.push_async_callback(connection.close)

        async def callback(message: Msg) -> None:
            await read(message.subject.replace(".", "/"), json.loads(message.data))

        async def publish(room: str, message: Any) -> None:
            await connection.publish(room.replace("/", "."), json.dumps(message).encode())
            await connection.flush()

        for room in rooms:
            await connection.subscribe(room.replace("/", "."), cb=callback)
        for _ in range(2):  # nats-py may write the first PING before what is pending: the subscriptions
            await connection.flush()
        return publish

    async def with_order(stack: AsyncExitStack, rooms: Sequence[str], read: Read) -> Publish:
        client = await stack.enter_async_context(ordered_pubsub.connect(brokers[0], sequencer=stages))
        await client.subscribe(*rooms, notify=lambda event: read(event.topic, event.data))
        return client.publish

    async with ordered_pubsub.connect(brokers[0], sequencer=stages):
        pass  # a broker that cannot be used is named here
    for number in range(1, ROUNDS_MAX + 1):
        if all(judge(f"without the order, round {number}", await talk(without_order))):
            break
    else:
        print("by luck, nothing went wrong without the order this time")
    return not any(judge("with the order", await talk(with_order)))


if __name__ == "__main__":
    run(show, lambda stack: [stack.enter_context(NatsServer()).url], ("nats", "tls"))
