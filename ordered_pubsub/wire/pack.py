"""Several events of one topic in one message of the ENS.

Where a message costs more than an event, packing is faster; the price is that a plain consumer cannot read the topic. A pack is
one byte of version and a msgpack array: the publisher once, and for each batch what its events have in common. The events of a
batch have consecutive numbers from `number` on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ordered_pubsub.core.log import NEVER_KEPT
from ordered_pubsub.core.messages import Mark
from ordered_pubsub.errors import ProtocolError, UnknownVersion

VERSION = 1


class PackedEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an event has for itself."""

    id: str
    payload: bytes
    content_type: str
    texts: dict[str, str] | None = None
    """headers with text"""
    binaries: dict[str, bytes] | None = None
    """headers with bytes"""


class PackedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events that were numbered together; `entries` and `marks` are those of the first, and of all if it is `full`."""

    number: int
    entries: dict[str, int]
    full: bool
    marks: list[Mark]
    published_at: float
    events: list[PackedEvent]


class Pack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a message holds."""

    publisher: str
    batches: list[PackedBatch]


class Logged(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive events of one publisher, as the log of their topic keeps them."""

    publisher: str
    events: list[PackedEvent]


class SignedEvents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same, for who does not look into the events: each is its bytes."""

    publisher: str
    events: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Pack)
_logged_decoder = msgspec.msgpack.Decoder(Logged)
_signed_decoder = msgspec.msgpack.Decoder(SignedEvents)
_prefix = bytes([VERSION])
_Events = TypeVar("_Events", Logged, SignedEvents)
NO_HEADERS: Mapping[str, bytes | str] = {}


def encode_pack(pack: Pack) -> bytes:
    """The pack as bytes."""
    return _prefix + _encoder.encode(pack)


def decode_pack(data: bytes) -> Pack:
    """The pack that was written; raises a `ProtocolError` that says what is wrong with it."""
    if not data:
        raise ProtocolError("a pack of events is empty: expected a byte of version and a msgpack array")
    if data[0] != VERSION:
        raise UnknownVersion(
            f"a pack of events has version {data[0]}, and this release reads version {VERSION}: its publisher runs another "
            "release of ordered_pubsub; install the newer one here"
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a pack of events of version {VERSION} cannot be read: {error}") from error


def encode_logged(logged: Logged) -> bytes:
    """The events as bytes."""
    return _prefix + _encoder.encode(logged)


def decode_logged(data: bytes, count: int) -> Logged:
    """The events that were written, so many; raises a `ProtocolError` that says what is wrong with them."""
    return _decode_chunk(_logged_decoder, data, count)


def decode_signed(data: bytes, count: int) -> SignedEvents:
    """Who has written so many events, and the bytes of each; raises a `ProtocolError` that says what is wrong with them.

    It costs a third of `decode_logged`, and does not find out whether each is an event.
    """
    return _decode_chunk(_signed_decoder, data, count)


def _decode_chunk(decoder: msgspec.msgpack.Decoder[_Events], data: bytes, count: int) -> _Events:
    if data[:1] != _prefix:
        raise _not_this_version(data)
    try:
        events = decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"events in a log, of version {VERSION}, cannot be read: {error}") from error
    if len(events.events) != count:
        raise ProtocolError(f"a log has {len(events.events)} events where its stage counts {count}")
    return events


def _not_this_version(data: bytes) -> ProtocolError:
    if data == NEVER_KEPT:
        return ProtocolError(
            "what was published here is at the broker only, if anywhere: when it was asked for, the stage did not keep the "
            "events of this topic, and when it was numbered, it did"
        )
    return UnknownVersion(
        f"events in a log have version {data[0] if data else 'none'}, and this release reads version {VERSION}: their "
        "publisher runs another release of ordered_pubsub; install the newer one here"
    )


class Unreadable(str):
    """The content type of events that are numbered, and that nobody can read; it says why."""

    __slots__ = ()


def unreadable(data: bytes, count: int, error: ProtocolError) -> Logged:
    """So many events, of which nothing is known but that they are there. The first has what is written there as its payload."""
    reason = Unreadable(error)
    return Logged("", [PackedEvent("", b"" if index else data, reason) for index in range(count)])


def packed_headers(event: PackedEvent) -> Mapping[str, bytes | str]:
    """The headers of an event that was written together with others."""
    if not event.texts and not event.binaries:
        return NO_HEADERS
    headers: dict[str, bytes | str] = dict(event.texts or {})
    headers.update(event.binaries or {})
    return headers
