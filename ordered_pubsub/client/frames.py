"""Events as frames of the ENS and back: what the headers say.

The stamp (`wire.stamp`) and the content type travel in headers of their own; all others are the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ordered_pubsub.adapter import Frame
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.messages import Mark, Publication
from ordered_pubsub.errors import ProtocolError, UsageError
from ordered_pubsub.wire.stamp import Stamp, decode_stamp, encode_stamp

RESERVED_PREFIX = "ordered-pubsub-"
STAMP = "ordered-pubsub-stamp"
CONTENT_TYPE = "content-type"

_NO_ENTRIES: dict[str, int] = {}
_NO_MARKS: list[Mark] = []
NO_HEADERS: Mapping[str, bytes | str] = {}


class Body(msgspec.Struct, frozen=True, eq=False):
    """What an arrival carries through the order: its frame, and the stamp that was read from it."""

    frame: Frame
    stamp: Stamp


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
    return dict(headers)


def user_headers(frame: Frame) -> Mapping[str, bytes | str]:
    """The headers that the publisher gave."""
    if len(frame.headers) <= 2:
        return NO_HEADERS
    return {name: value for name, value in frame.headers.items() if name not in (STAMP, CONTENT_TYPE)}


def stamped(
    part: Publication, index: int, publisher: str, identity: str, payload: bytes, headers: Mapping[str, bytes | str]
) -> Frame:
    """The frame of one event of a batch; those after the first differ in their own number only."""
    with_entries = part.full or not index
    stamp = Stamp(
        number=part.first + index,
        entries=part.entries if with_entries else _NO_ENTRIES,
        full=part.full,
        marks=_NO_MARKS if index else part.marks,
        publisher=publisher,
        id=identity,
        published_at=part.published_at,
    )
    return Frame(part.topic, payload, {STAMP: encode_stamp(stamp), **headers})


def read_stamp(frame: Frame) -> Stamp | None:
    """What the order says of a frame; None if it says nothing. Raises a `ProtocolError` if it cannot be read."""
    data = frame.headers.get(STAMP)
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise ProtocolError(f"the header {STAMP!r} came as {type(data).__name__}; expected bytes")
    return decode_stamp(data)


def read_arrival(frame: Frame) -> Arrival | None:
    """The event that a frame carries; None if it was not published through the order."""
    stamp = read_stamp(frame)
    if stamp is None:
        return None
    return Arrival(frame.topic, stamp.number, stamp.entries, stamp.marks, stamp.full, Body(frame, stamp))
