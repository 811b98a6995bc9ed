"""What the hub and its clients say to each other: msgpack, each message with its length in four bytes before it.

A client asks, with a number of its own, and the hub answers `Done` with that number. It brings frames one batch at a time,
and the next one when the client has said `Took`: so what a client does not take yet stays with the hub, and its answers
still get through.
"""

from __future__ import annotations

import asyncio

import msgspec

from ordered_pubsub.adapter import Frame

MESSAGE_BYTES_MAX = 2**26
BATCH_FRAMES_MAX = 500
BATCH_BYTES_MAX = 2**20


class Publish(msgspec.Struct, tag=True):
    """Pass these on. Done when their subscribers have room for more."""

    number: int
    frames: list[Frame]


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

    frames: list[Frame]


Ask = Publish | Subscribe | Unsubscribe
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Publish | Subscribe | Unsubscribe | Took | Done | Bring] = msgspec.msgpack.Decoder(
    Publish | Subscribe | Unsubscribe | Took | Done | Bring
)


def encode(message: msgspec.Struct) -> bytes:
    """A message as it travels."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read(reader: asyncio.StreamReader) -> msgspec.Struct:
    """The next message; an OSError or EOFError if the connection ends, a ValueError if it is not one."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {length} bytes was announced; at most {MESSAGE_BYTES_MAX} are allowed")
    return _decoder.decode(await reader.readexactly(length))


def size_of(frame: Frame) -> int:
    """Roughly the bytes that a frame takes."""
    return 100 + len(frame.payload) + sum(len(name) + len(value) for name, value in frame.headers.items())


def batch_of(frames: list[Frame]) -> int:
    """How many of the first frames make a batch: at least one."""
    size = 0
    for count, frame in enumerate(frames[:BATCH_FRAMES_MAX]):
        size += size_of(frame)
        if count and size > BATCH_BYTES_MAX:
            return count
    return min(len(frames), BATCH_FRAMES_MAX)
