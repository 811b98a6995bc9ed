"""Events as frames of the ENS and back.

An event's payload is the frame's, and its stamp (`wire.stamp`) and content type travel in headers of their own; all other
headers are the user's. With packing, a frame holds several events of its topic (`wire.pack`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ordered_pubsub.adapter import Frame
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.messages import Mark, Publication
from ordered_pubsub.errors import ProtocolError, UsageError
from ordered_pubsub.wire.pack import Pack, PackedBatch, PackedEvent, decode_pack, encode_pack
from ordered_pubsub.wire.stamp import Stamp, decode_stamp, encode_stamp

RESERVED_PREFIX = "ordered-pubsub-"
STAMP = "ordered-pubsub-stamp"
PACK = "ordered-pubsub-pack"
CONTENT_TYPE = "content-type"
PACK_TYPE = "application/vnd.ordered-pubsub.pack"

_NO_ENTRIES: dict[str, int] = {}
_NO_MARKS: list[Mark] = []
NO_HEADERS: Mapping[str, bytes | str] = {}

HEADER_NAME_LENGTH_MAX = 255
HEADERS_BYTES_MAX = 32_768
"""No broker of ours takes less; and what one would never take must be refused before the event has its number."""


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
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > HEADERS_BYTES_MAX:
        raise UsageError(
            f"the headers have {size} bytes together; at most {HEADERS_BYTES_MAX} are allowed: use the payload"
        )


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
    headers: dict[str, bytes | str] = {STAMP: encode_stamp(stamp), CONTENT_TYPE: item.content_type}
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
    """The frames of some batches on one topic, with so many events in each, and not more bytes of payload if possible."""
    frames: list[Frame] = []
    filling: list[PackedBatch] = []
    events = size = 0
    for part, items in batches:
        at = 0
        while at < len(items):
            taken = _fitting(items, at, events_max - events, bytes_max - size, must_take=not events)
            if not taken:
                frames.append(_pack_frame(topic, publisher, filling))
                filling, events, size = [], 0, 0
                continue
            chosen = items[at : at + taken]
            filling.append(_packed_batch(part, at, chosen))
            at, events = at + taken, events + taken
            size += sum(len(item.payload) for item in chosen)
    if filling:
        frames.append(_pack_frame(topic, publisher, filling))
    return frames


def _fitting(items: Sequence[Item], at: int, events_max: int, bytes_max: int, must_take: bool) -> int:
    """How many items from `at` on fit."""
    taken = 0
    for item in items[at : at + events_max]:
        bytes_max -= len(item.payload)
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
        events=[_packed_event(item) for item in items],
    )


def _packed_event(item: Item) -> PackedEvent:
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
    return [Arrival(frame.topic, stamp.number, stamp.entries, stamp.marks, stamp.full, body)]


def _read_pack(frame: Frame) -> list[Arrival]:
    pack = decode_pack(frame.payload)
    arrivals: list[Arrival] = []
    for batch in pack.batches:
        entries, marks = batch.entries, batch.marks
        for number, event in enumerate(batch.events, batch.number):
            body = Body(
                event.payload, event.content_type, _packed_headers(event), pack.publisher, event.id, batch.published_at
            )
            arrivals.append(Arrival(frame.topic, number, entries, marks, batch.full, body))
            if not batch.full:
                entries = _NO_ENTRIES
            marks = _NO_MARKS
    return arrivals


def _packed_headers(event: PackedEvent) -> Mapping[str, bytes | str]:
    if not event.texts and not event.binaries:
        return NO_HEADERS
    headers: dict[str, bytes | str] = dict(event.texts or {})
    headers.update(event.binaries or {})
    return headers


def read_unordered(frame: Frame) -> Arrival:
    """A message that has no place in the order, as an event without a number."""
    body = Body(frame.payload, frame.headers.get(CONTENT_TYPE), _user_headers(frame), "", "", 0.0)
    return Arrival(frame.topic, 0, _NO_ENTRIES, body=body)
