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
from ordered_pubsub.core.messages import ChangeMark, Publication
from ordered_pubsub.core.subscriber.buffer import Arrival, told_together
from ordered_pubsub.core.trust.authenticity import (
    NO_TAG,
    TAG_BYTES,
    Stamp,
    common_of,
    digests_of,
    first_body,
    head_of,
    pieces_of,
    stamp_body,
)
from ordered_pubsub.errors import ProtocolError, UsageError
from ordered_pubsub.wire.pack import (
    NO_HEADERS,
    PackedBatch,
    PackedEvent,
    decode_events,
    decode_pack,
    encode_event,
    encode_events,
    encode_pack,
    encode_plain,
    make_event,
    packed_headers,
)
from ordered_pubsub.wire.stamp import decode_body, decode_stamp, encode_stamp

RESERVED_PREFIX = "ordered-pubsub-"
STAMP = "ordered-pubsub-stamp"
PACK = "ordered-pubsub-pack"
CONTENT_TYPE = "content-type"
PACK_TYPE = "application/vnd.ordered-pubsub.pack"

_NO_ENTRIES: dict[str, int] = {}
_NO_MARKS: list[ChangeMark] = []

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
    written: bytes
    """the events that share its tag, as they are written, if that was done and it is the first of them"""


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
    longest = max(map(len, headers), default=0)
    if longest > HEADER_NAME_LENGTH_MAX:
        raise UsageError(f"a header's name has {longest} characters; at most {HEADER_NAME_LENGTH_MAX} are allowed")
    size = headers_bytes(headers)
    if size > HEADERS_BYTES_MAX:
        raise UsageError(
            f"the headers take {size} bytes together on a broker (where bytes, and text other than plain ASCII, are written in "
            f"Base64); at most {HEADERS_BYTES_MAX} are allowed: use the payload"
        )
    return dict(headers)


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


# -- out --------------------------------------------------------------------------------------------------------------


def packed_event(item: Item) -> PackedEvent:
    """An event as it is written together with others, and as it is digested."""
    return make_event(item.id, item.payload, item.content_type, item.headers)


def digests_by_event(items: Iterable[Item]) -> bytes:
    """The digests of events that travel by themselves."""
    return digests_of([encode_event(packed_event(item)) for item in items])


def written_together(items: Iterable[Item]) -> bytes:
    """Events as they are written in a chunk of a log and in a batch of a pack, and digested if they share a tag."""
    return encode_events(
        [
            packed_event(item) if item.headers else PackedEvent(item.id, item.payload, item.content_type)
            for item in items
        ]
    )


def stamped(part: Publication, items: Sequence[Item]) -> list[Frame]:
    """The frames of a batch, one for each event; those after the first differ in their own number only."""
    frames: list[Frame] = []
    tags, at = part.tags, 0
    common = common_of(part, 1) if len(items) > 1 else b""
    for number, item in enumerate(items, part.first):
        body = stamp_body(common, number, item.id) if at else first_body(part, number, item.id)
        data = encode_stamp(tags[at : at + TAG_BYTES] or NO_TAG, body)
        at += TAG_BYTES
        if len(data) > STAMP_BYTES_MAX:
            frames.append(_pack_frame(part.topic, [_batch(data[1 : 1 + TAG_BYTES], body, written_together([item]))]))
            continue
        headers: dict[str, bytes | str] = {STAMP: data, CONTENT_TYPE: item.content_type}
        frames.append(Frame(part.topic, item.payload, {**headers, **item.headers} if item.headers else headers))
    return frames


def packed(
    topic: str, batches: Iterable[tuple[Publication, Sequence[Item]]], events_max: int, bytes_max: int
) -> list[Frame]:
    """The frames of some batches on one topic, with so many events, and so many bytes, in each; one piece is always taken."""
    frames: list[Frame] = []
    filling: list[PackedBatch] = []
    events = size = 0
    for part, items in batches:
        for count, batch in _pieces(part, items):
            more = BATCH_BYTES + len(batch.stamp) + len(batch.events)
            if filling and (events + count > events_max or size + more > bytes_max):
                frames.append(_pack_frame(topic, filling))
                filling, events, size = [], 0, 0
            filling.append(batch)
            events, size = events + count, size + more
    if filling:
        frames.append(_pack_frame(topic, filling))
    return frames


def _pieces(part: Publication, items: Sequence[Item]) -> list[tuple[int, PackedBatch]]:
    """What shares a tag in a batch: how many events, and how they travel."""
    pieces: list[tuple[int, PackedBatch]] = []
    counts, tags, at, first = pieces_of(part), part.tags, 0, 0
    common = common_of(part, 1) if len(counts) > 1 else b""
    for count in counts:
        one = items[first]
        id = "" if part.pieces else one.id
        body = stamp_body(common, part.first + first, id) if first else first_body(part, part.first, id)
        events = one.written or written_together(items[first : first + count])
        pieces.append((count, _batch(tags[at : at + TAG_BYTES] or NO_TAG, body, events)))
        at, first = at + TAG_BYTES, first + count
    return pieces


def _batch(tag: bytes, body: bytes, events: bytes) -> PackedBatch:
    return PackedBatch(tag, msgspec.Raw(body), msgspec.Raw(events))


def _pack_frame(topic: str, batches: list[PackedBatch]) -> Frame:
    return Frame(topic, encode_pack(batches), {PACK: "1", CONTENT_TYPE: PACK_TYPE})


# -- back -------------------------------------------------------------------------------------------------------------


class UntrustedStamp(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a frame says of one event, or of several that share a tag; it has to be judged whether that is true."""

    tag: bytes
    stamp: Stamp
    head: bytes
    """what is tagged of the stamp"""
    content: bytes | msgspec.Raw
    """the events as they are digested"""
    frame: Frame | None
    """the one that brought the event, if it was one by itself"""


_ONE_EVENT = bytes([encode_events([])[0] + 1])
"""An array of one element begins so."""
_NO_ID_BYTES = 1
"""So much has an empty text at the end of a stamp."""


def read_claims(frame: Frame, has_tags: bool = True) -> list[UntrustedStamp]:
    """What a frame claims to be; nothing if it was not published through the order. Raises a `ProtocolError` if it is unreadable.

    Without tags nothing is digested, so what is needed for that only is left out.
    """
    headers = frame.headers
    if PACK in headers:
        claims = []
        for batch in decode_pack(frame.payload):
            body = bytes(batch.stamp)
            stamp = decode_body(body)
            if not stamp.id:
                claims.append(UntrustedStamp(batch.tag, stamp, body[:-_NO_ID_BYTES], batch.events, None))
                continue
            events = bytes(batch.events)  # a stamp with an id is of one event, which was to travel by itself
            if events[:1] != _ONE_EVENT:
                raise ProtocolError(f"a pack has the stamp of one event, {stamp.id!r:.80}, and not one event")
            claims.append(UntrustedStamp(batch.tag, stamp, head_of(body, stamp.id), events[1:], None))
        if not claims:
            raise ProtocolError("a pack has nothing in it")
        return claims
    data = headers.get(STAMP)
    if data is None:
        return []
    if not isinstance(data, bytes):
        raise ProtocolError(f"the header {STAMP!r} came as {type(data).__name__}; expected bytes")
    tag, body, stamp = decode_stamp(data)
    if not has_tags:
        return [UntrustedStamp(tag, stamp, b"", b"", frame)]
    content_type = headers.get(CONTENT_TYPE)
    kind = content_type if isinstance(content_type, str) else ""
    if len(headers) == 2:  # these two
        content = encode_plain(stamp.id, frame.payload, kind)
    else:
        content = encode_event(make_event(stamp.id, frame.payload, kind, _user_headers(frame)))
    return [UntrustedStamp(tag, stamp, head_of(body, stamp.id), content, frame)]


def arrivals_of(topic: str, claim: UntrustedStamp) -> list[Arrival]:
    """The events of what has turned out to be true. Raises a `ProtocolError` if it cannot be read all the same."""
    stamp, content = claim.stamp, claim.content
    if claim.frame is not None:
        kind, headers = claim.frame.headers.get(CONTENT_TYPE), _user_headers(claim.frame)
        body = Body(claim.frame.payload, kind, headers, stamp.publisher, stamp.id, stamp.published_at)
        size = len(body.payload) + HELD_ENTRY_BYTES * len(stamp.entries)
        if headers:
            size += held_bytes(headers)
        arrival = Arrival(topic, stamp.number, stamp.entries, stamp.marks, stamp.full, body, size)
        arrival.transaction = stamp.transaction
        return [arrival]
    arrivals: list[Arrival] = []
    number, entries, marks = stamp.number, stamp.entries, stamp.marks
    more = HELD_ENTRY_BYTES * len(entries)  # which all share if the batch is full
    for event in decode_events(_ONE_EVENT + bytes(content) if stamp.id else content):
        headers = packed_headers(event) if event.texts or event.binaries else NO_HEADERS
        body = Body(event.payload, event.content_type, headers, stamp.publisher, event.id, stamp.published_at)
        size = len(event.payload) + more
        if headers:
            size += held_bytes(headers)
        arrivals.append(Arrival(topic, number, entries, marks, stamp.full, body, size))
        if not stamp.full:
            entries = _NO_ENTRIES
        marks = _NO_MARKS
        more = 0
        number += 1
    told_together(arrivals, stamp.transaction)
    return arrivals


def read_arrivals(frame: Frame) -> list[Arrival]:
    """What a frame claims to carry, judged by nobody; nothing if it was not published through the order."""
    return [arrival for claim in read_claims(frame, has_tags=False) for arrival in arrivals_of(frame.topic, claim)]


def held_bytes(headers: Mapping[str, bytes | str]) -> int:
    """What headers count for while an event waits."""
    return sum(len(name) + len(value) for name, value in headers.items())


def read_unordered(frame: Frame) -> Arrival:
    """A message that has no place in the order, as an event without a number."""
    headers = _user_headers(frame)
    body = Body(frame.payload, frame.headers.get(CONTENT_TYPE), headers, "", "", 0.0)
    return Arrival(frame.topic, 0, _NO_ENTRIES, body=body, size=len(frame.payload) + held_bytes(headers))
