"""What the hub and its clients say to each other: msgpack, each message with its length in four bytes before it.

A client asks, with a number of its own, and the hub answers `Done` with that number. It brings frames one batch at a time,
and the next one when the client has said `Took`: so what a client does not take yet stays with the hub, and its answers
still get through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MESSAGE_BYTES_MAX = 2**26
BATCH_ITEMS_MAX = 500
BATCH_BYTES_MAX = 2**20


class Item(msgspec.Struct):
    """A frame as it travels. A header's value is text or bytes; msgpack tells them apart by itself."""

    topic: str
    payload: bytes
    headers: Mapping[str, Any]


class Publish(msgspec.Struct, tag=True):
    """Pass these on. Done when their subscribers have room for more."""

    number: int
    items: list[Item]


class Subscribe(msgspec.Struct, tag=True):
    """Bring the frames of these topics, too."""

    number: int
    topics: list[str]


class Unsubscribe(msgspec.Struct, tag=True):
    """Bring no more frames of these topics."""

    number: int
    topics: list[str]


class Took(msgspec.Struct, tag=True):
    """The last batch was taken."""


class Done(msgspec.Struct, tag=True):
    """What was asked for under this number is so."""

    number: int


class Bring(msgspec.Struct, tag=True):
    """Frames of topics that were subscribed to."""

    items: list[Item]


Ask = Publish | Subscribe | Unsubscribe
Message = Ask | Took | Done | Bring
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as it travels."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message; an OSError or EOFError if the connection ends, a ValueError if it is not one."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {length} bytes was announced; at most {MESSAGE_BYTES_MAX} are allowed")
    return _decoder.decode(await reader.readexactly(length))


def size_of(item: Item) -> int:
    """Roughly the bytes that a frame takes."""
    return 100 + len(item.payload) + sum(len(name) + len(value) for name, value in item.headers.items())


def batch_of(items: Sequence[Item]) -> int:
    """How many of the first ones make a batch: at least one."""
    size = 0
    for count, item in enumerate(items[:BATCH_ITEMS_MAX]):
        size += size_of(item)
        if count and size > BATCH_BYTES_MAX:
            return count
    return min(len(items), BATCH_ITEMS_MAX)
