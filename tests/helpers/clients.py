"""For tests of the asynchronous client: waiting, taking events, and an ENS and a stage that do what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

import ordered_pubsub
from ordered_pubsub import embedded
from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.home.home import Home, Listener
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.messages import Answer, AskKeys, FromSubscriber, Keys, Refusal, Request, SystemKeys
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.authenticity import Stamp, digest_of, head_of, keyed, tag_of, topic_key
from ordered_pubsub.embedded import EmbeddedHome
from ordered_pubsub.wire.event_frames import CONTENT_TYPE, STAMP
from ordered_pubsub.wire.pack import PackedBatch, PackedEvent, encode_event, encode_events, make_event
from ordered_pubsub.wire.sessions import SessionKey
from ordered_pubsub.wire.stamp import encode_stamp
from ordered_pubsub_adapters.memory import MemoryAdapter

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""


async def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    while not condition():
        assert loop.time() < give_up_at, "waited in vain"
        await asyncio.sleep(0)


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    """The next events."""

    async def read() -> list[ordered_pubsub.Event]:
        return [await subscription.__anext__() for _ in range(count)]

    return await asyncio.wait_for(read(), PATIENCE_S)


async def rest(subscription: ordered_pubsub.Subscription) -> list[ordered_pubsub.Event]:
    """All events until iteration ends."""

    async def read() -> list[ordered_pubsub.Event]:
        return [event async for event in subscription]

    return await asyncio.wait_for(read(), PATIENCE_S)


def names(events: Sequence[ordered_pubsub.Event]) -> list[tuple[str, int]]:
    return [(event.topic, event.number) for event in events]


class HeldAdapter(MemoryAdapter):
    """A `memory://` adapter whose ways can be closed, and that remembers what was done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.may_subscribe = asyncio.Event()
        self.may_subscribe.set()
        self.failures: list[Exception] = []
        self.subscribed: list[str] = []
        self.unsubscribed: list[str] = []

    async def publish(self, frames: Sequence[Frame]) -> None:
        await self.may_publish.wait()
        if self.failures:
            raise self.failures.pop(0)
        await super().publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.may_subscribe.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.subscribed.extend(topics)
        await super().subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        self.unsubscribed.extend(topics)
        await super().unsubscribe(topics)


class LossyAdapter(MemoryAdapter):
    """A `memory://` adapter on whose way out messages are lost: those of which `is_lost` says so, by their count."""

    def __init__(self, url: str, is_lost: Callable[[int], bool]) -> None:
        super().__init__(url)
        self.is_lost = is_lost
        self.frames = 0

    async def publish(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self.frames += 1
            if not self.is_lost(self.frames):
                await super().publish([frame])


class DeafHome(EmbeddedHome):
    """A home whose connection can be broken: what is sent meanwhile is lost."""

    is_deaf = False

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        self.on_state = listener.on_state
        return await super().open(key, name, listener)

    def send(self, requests: Sequence[Request]) -> None:
        if not self.is_deaf:
            super().send(requests)


class RefusingHome(Home):
    """A home that refuses whatever it is asked."""

    where = "here"
    levels = Levels()

    def __init__(self, code: str) -> None:
        self.code = code

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        self.on_answers, self.on_told = listener.on_answers, listener.on_told
        return Topology((StageSpec("one"),))

    def send(self, requests: Sequence[Request]) -> None:
        refusals: list[Answer | Refusal] = [
            Refusal(r.client, r.epoch, r.sequence, self.code, "because") for r in requests
        ]
        asyncio.get_running_loop().call_soon(self.on_answers, refusals)

    def say(self, message: FromSubscriber) -> None:
        if isinstance(message, AskKeys):
            keys = Keys(message.session, b"system", [(1, 0.0)], {topic: [bytes(32)] for topic in message.topics}, 0.0)
            asyncio.get_running_loop().call_soon(self.on_told, [keys])

    async def close(self) -> None:
        pass


async def make_client(adapter: Adapter, home: Home, **settings: Any) -> Client:
    """A client with a home of our choice."""
    engine = Engine(None, adapter, home, Settings(**settings))
    await engine.open()
    return Client(engine, None)


def stamp(number: int, **fields: Any) -> dict[str, Any]:
    """The headers of an event that says to have this number; `signed` makes a stamp of them."""
    known: dict[str, Any] = {
        "system": b"", "key_epoch": 0, "publisher": "x", "published_at": 0.0, "transaction": "", "full": False, "entries": {},
        "marks": [], "number": number, "id": f"x-{number}",
    }  # fmt: skip
    return {STAMP: Stamp(**{**known, **fields}), CONTENT_TYPE: "application/json"}


def keys_of(url: str) -> SystemKeys:
    """The keys of the system that lives in this process."""
    return embedded._stages[url.removeprefix("memory://").partition("?")[0]].driver.stage.state.keys


def signed_batch(url: str, topic: str, events: Sequence[PackedEvent], stamp: Stamp) -> PackedBatch:
    """Several events that share a tag, as the stage of the system could have made it."""
    keys = keys_of(url)
    body = msgspec.msgpack.encode(replace(stamp, system=keys.system, key_epoch=keys.epoch, id=""))
    content = encode_events(list(events))
    key = keyed(topic_key(keys.secret, keys.epoch, topic))
    tag = tag_of(key, head_of(body, ""), digest_of(content))
    return PackedBatch(tag, msgspec.Raw(body), msgspec.Raw(content))


def signed(url: str, topic: str, payload: bytes, headers: dict[str, Any]) -> Frame:
    """A frame with a stamp that the stage of the system could have made."""
    stamped = headers.get(STAMP)
    if not isinstance(stamped, Stamp):
        return Frame(topic, payload, headers)
    keys = keys_of(url)
    stamped = replace(stamped, system=stamped.system or keys.system, key_epoch=stamped.key_epoch or keys.epoch)
    body = msgspec.msgpack.encode(stamped)
    rest = {name: value for name, value in headers.items() if name not in (STAMP, CONTENT_TYPE)}
    content = encode_event(make_event(stamped.id, payload, headers[CONTENT_TYPE], rest))
    key = keyed(topic_key(keys.secret, stamped.key_epoch, topic))
    tag = tag_of(key, head_of(body, stamped.id), digest_of(content))
    return Frame(topic, payload, {**headers, STAMP: encode_stamp(tag, body)})


class Reversed:
    """A serializer."""

    content_type = "text/x-reversed"

    def dumps(self, data: Any) -> bytes:
        return str(data)[::-1].encode()

    def loads(self, payload: bytes) -> Any:
        return payload.decode()[::-1]
