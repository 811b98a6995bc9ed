"""Events as frames of the ENS and back.

An event's payload is the frame's, and its stamp (`wire.stamp`) and content type travel in headers of their own; all other
headers are the user's. With packing, a frame holds several events of its topic (`wire.pack`). An event whose stamp is too long
for a header travels as a pack of one.

What has a number must be published. So no frame of several events may be larger than the ENS takes, and no event may have what
an ENS cannot carry: sizes are counted here in bytes, as they are with the broker that needs most, and estimated upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from ordered_pubsub.adapter import Frame
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.messages import Mark, Publication
from ordered_pubsub.errors import ProtocolError, UsageError
from ordered_pubsub.wire.pack import (
    NO_HEADERS,
    Pack,
    PackedBatch,
    PackedEvent,
    decode_pack,
    encode_pack,
    packed_headers,
)
from ordered_pubsub.wire.stamp import Stamp, decode_stamp, encode_stamp

RESERVED_PREFIX = "ordered-pubsub-"
STAMP = "ordered-pubsub-stamp"
PACK = "ordered-pubsub-pack"
CONTENT_TYPE = "content-type"
PACK_TYPE = "application/vnd.ordered-pubsub.pack"

_NO_ENTRIES: dict[str, int] = {}
_NO_MARKS: list[Mark] = []

HEADER_NAME_LENGTH_MAX = 255
HEADERS_BYTES_MAX = 32_768
"""No broker of ours takes less; and what one would never take must be refused before the event has its number."""
CONTENT_TYPE_BYTES_MAX = 255
STAMP_BYTES_MAX = 8_192
"""A longer stamp is none for a header. It has room in all of them: Base64 (NATS) makes 11 KiB of it, of the 16 KiB that a client
keeps free at least; a property of MQTT has up to 64 KiB, and all headers of RabbitMQ, with 32 KiB of the user's, 128 KiB."""

# Upwards from what msgpack and the brokers put around things.
HEADER_BYTES = 10
EVENT_BYTES = 80
"""with an id of ours"""
BATCH_BYTES = 64
ENTRY_BYTES = 16
CHARACTER_BYTES = 4
HELD_ENTRY_BYTES = 100
"""what an entry of a timestamp takes in memory, about"""
PACK_BYTES = 4_096
"""Of a frame, this is kept for the topic as the broker spells it, the publisher's name, and the two headers of a pack."""

_PLAIN_IN_NAMES = frozenset("-_.")
_BASE64_MARKS = ("b64:", "u64:")


class Body(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What an arrival carries through the order."""

    payload: bytes
    content_type: object
    headers: Mapping[str, bytes | str]
    publisher: str
    id: str
    published_at: float


class Item(Protocol):
    """An event to be published."""

    id: str
    payload: bytes
    content_type: str
    headers: Mapping[str, bytes | str]
    size: int
    """how many bytes of a pack it takes, at most"""


# -- what an ENS can carry --------------------------------------------------------------------------------------------


def check_headers(headers: Any) -> Mapping[str, bytes | str]:
    """A copy of the user's headers, or a `UsageError` that names the one that does not fit."""
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers are a mapping from names to text or bytes, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not name.isascii() or not name.isprintable() or " " in name:
            raise UsageError(f"header {name!r} does not fit: a name is printable ASCII without spaces")
        if name.lower() == CONTENT_TYPE or name.lower().startswith(RESERVED_PREFIX):
            raise UsageError(f"header {name!r} is one that this library sets itself; choose another name")
        if not isinstance(value, (bytes, str)):
            raise UsageError(f"header {name!r} has a value of type {type(value).__name__}; expected text or bytes")
    _check_header_sizes(headers)
    return dict(headers)


def _check_header_sizes(headers: Mapping[str, bytes | str]) -> None:
    longest = max(map(len, headers), default=0)
    if longest > HEADER_NAME_LENGTH_MAX:
        raise UsageError(f"a header's name has {longest} characters; at most {HEADER_NAME_LENGTH_MAX} are allowed")
    size = headers_bytes(headers)
    if size > HEADERS_BYTES_MAX:
        raise UsageError(
            f"the headers take {size} bytes together on a broker (where bytes, and text other than plain ASCII, are written in "
            f"Base64); at most {HEADERS_BYTES_MAX} are allowed: use the payload"
        )


def headers_bytes(headers: Mapping[str, bytes | str]) -> int:
    """How many bytes headers take, at most, or a `UsageError` that names the one that no broker can carry."""
    return sum(HEADER_BYTES + _name_bytes(name) + _value_bytes(name, value) for name, value in headers.items())


@lru_cache(maxsize=1_024)
def _name_bytes(name: str) -> int:
    """NATS writes a character of a name as three if HTTP would not allow it."""
    return sum(1 if character.isalnum() or character in _PLAIN_IN_NAMES else 3 for character in name)


def _value_bytes(name: str, value: bytes | str) -> int:
    """As MQTT and NATS carry it, where headers are text; RabbitMQ needs less."""
    if isinstance(value, str):
        if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith(_BASE64_MARKS):
            return len(value)
        value = _encoded(f"header {name!r}", value)
    return len(_BASE64_MARKS[0]) + (len(value) + 2) // 3 * 4


@lru_cache(maxsize=256)
def content_type_bytes(content_type: str) -> int:
    """How many bytes a content type has, or a `UsageError` if an ENS could not carry it."""
    size = len(_encoded("the content type", content_type))
    if size > CONTENT_TYPE_BYTES_MAX:
        raise UsageError(
            f"the content type {content_type[:40]!r}... has {size} bytes; at most {CONTENT_TYPE_BYTES_MAX} are allowed: give the "
            "serializer a shorter one"
        )
    return size


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} has text that is not Unicode, and that nobody could read: {error}; give it other text, or bytes"
        ) from error


def frame_bytes(frame: Frame) -> int:
    """How many bytes an ENS has to take for a frame, at least."""
    return len(frame.payload) + sum(len(name) + len(value) for name, value in frame.headers.items())


def _user_headers(frame: Frame) -> Mapping[str, bytes | str]:
    """The headers that the publisher gave."""
    if len(frame.headers) <= 2 and STAMP in frame.headers and CONTENT_TYPE in frame.headers:
        return NO_HEADERS
    return {name: value for name, value in frame.headers.items() if name not in (STAMP, CONTENT_TYPE)}


# -- one event in a frame ---------------------------------------------------------------------------------------------


def stamped(part: Publication, index: int, publisher: str, item: Item) -> Frame:
    """The frame of one event of a batch; those after the first differ in their own number only."""
    with_entries = part.full or not index
    stamp = Stamp(
        number=part.first + index,
        entries=part.entries if with_entries else _NO_ENTRIES,
        full=part.full,
        marks=_NO_MARKS if index else part.marks,
        publisher=publisher,
        id=item.id,
        published_at=part.published_at,
    )
    data = encode_stamp(stamp)
    if len(data) > STAMP_BYTES_MAX:
        return _pack_frame(part.topic, publisher, [_packed_batch(part, index, (item,))])
    headers: dict[str, bytes | str] = {STAMP: data, CONTENT_TYPE: item.content_type}
    return Frame(part.topic, item.payload, {**headers, **item.headers} if item.headers else headers)


def read_stamp(frame: Frame) -> Stamp | None:
    """What the order says of a frame; None if it says nothing. Raises a `ProtocolError` if it cannot be read."""
    data = frame.headers.get(STAMP)
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise ProtocolError(f"the header {STAMP!r} came as {type(data).__name__}; expected bytes")
    return decode_stamp(data)


# -- several events in a frame ----------------------------------------------------------------------------------------


def packed(
    topic: str, batches: Iterable[tuple[Publication, Sequence[Item]]], publisher: str, events_max: int, bytes_max: int
) -> list[Frame]:
    """The frames of some batches on one topic, with so many events, and so many bytes, in each; one event is always taken."""
    frames: list[Frame] = []
    filling: list[PackedBatch] = []
    events = size = 0
    for part, items in batches:
        more = _batch_bytes(part, 0) if part.entries or part.marks else BATCH_BYTES
        whole = more + (items[0].size if len(items) == 1 else sum(item.size for item in items))
        if events + len(items) <= events_max and size + whole <= bytes_max:
            filling.append(_packed_batch(part, 0, items))
            events, size = events + len(items), size + whole
            continue
        at = 0
        while at < len(items):
            more = _batch_bytes(part, at)
            taken = _fitting(items, at, events_max - events, bytes_max - size - more, must_take=not events)
            if not taken:
                frames.append(_pack_frame(topic, publisher, filling))
                filling, events, size = [], 0, 0
                continue
            chosen = items[at : at + taken]
            filling.append(_packed_batch(part, at, chosen))
            at, events = at + taken, events + taken
            size += more + sum(item.size for item in chosen)
    if filling:
        frames.append(_pack_frame(topic, publisher, filling))
    return frames


def _batch_bytes(part: Publication, index: int) -> int:
    """How many bytes of a pack a batch takes from this event on, at most, without its events."""
    size = BATCH_BYTES
    if part.entries and (part.full or not index):
        size += ENTRY_BYTES * len(part.entries) + CHARACTER_BYTES * sum(map(len, part.entries))
    if part.marks and not index:
        size += sum(ENTRY_BYTES + CHARACTER_BYTES * len(mark.subscription) for mark in part.marks)
    return size


def _fitting(items: Sequence[Item], at: int, events_max: int, bytes_max: int, must_take: bool) -> int:
    """How many items from `at` on fit."""
    taken = 0
    for item in items[at : at + events_max]:
        bytes_max -= item.size
        if bytes_max < 0 and not (must_take and not taken):
            break
        taken += 1
    return taken


def _packed_batch(part: Publication, index: int, items: Sequence[Item]) -> PackedBatch:
    return PackedBatch(
        number=part.first + index,
        entries=part.entries if part.full or not index else _NO_ENTRIES,
        full=part.full,
        marks=_NO_MARKS if index else part.marks,
        published_at=part.published_at,
        events=[packed_event(item) for item in items],
    )


def packed_event(item: Item) -> PackedEvent:
    """An event as it is written together with others."""
    if not item.headers:
        return PackedEvent(item.id, item.payload, item.content_type)
    texts = {name: value for name, value in item.headers.items() if isinstance(value, str)}
    binaries = {name: value for name, value in item.headers.items() if isinstance(value, bytes)}
    return PackedEvent(item.id, item.payload, item.content_type, texts or None, binaries or None)


def _pack_frame(topic: str, publisher: str, batches: list[PackedBatch]) -> Frame:
    return Frame(topic, encode_pack(Pack(publisher, batches)), {PACK: "1", CONTENT_TYPE: PACK_TYPE})


# -- back -------------------------------------------------------------------------------------------------------------


def read_arrivals(frame: Frame) -> list[Arrival]:
    """The events that a frame carries; none if it was not published through the order."""
    if PACK in frame.headers:
        return _read_pack(frame)
    stamp = read_stamp(frame)
    if stamp is None:
        return []
    content_type, headers = frame.headers.get(CONTENT_TYPE), _user_headers(frame)
    body = Body(frame.payload, content_type, headers, stamp.publisher, stamp.id, stamp.published_at)
    size = len(frame.payload) + HELD_ENTRY_BYTES * len(stamp.entries)
    if headers:
        size += held_bytes(headers)
    return [Arrival(frame.topic, stamp.number, stamp.entries, stamp.marks, stamp.full, body, size)]


def _read_pack(frame: Frame) -> list[Arrival]:
    pack = decode_pack(frame.payload)
    arrivals: list[Arrival] = []
    for batch in pack.batches:
        entries, marks = batch.entries, batch.marks
        more = HELD_ENTRY_BYTES * len(entries)  # which all share if the batch is full
        for number, event in enumerate(batch.events, batch.number):
            headers = packed_headers(event)
            body = Body(event.payload, event.content_type, headers, pack.publisher, event.id, batch.published_at)
            size = len(event.payload) + more
            if headers:
                size += held_bytes(headers)
            arrivals.append(Arrival(frame.topic, number, entries, marks, batch.full, body, size))
            if not batch.full:
                entries = _NO_ENTRIES
            marks = _NO_MARKS
            more = 0
    return arrivals


def held_bytes(headers: Mapping[str, bytes | str]) -> int:
    """What headers count for while an event waits."""
    return sum(len(name) + len(value) for name, value in headers.items())


def read_unordered(frame: Frame) -> Arrival:
    """A message that has no place in the order, as an event without a number."""
    headers = _user_headers(frame)
    body = Body(frame.payload, frame.headers.get(CONTENT_TYPE), headers, "", "", 0.0)
    return Arrival(frame.topic, 0, _NO_ENTRIES, body=body, size=len(frame.payload) + held_bytes(headers))
