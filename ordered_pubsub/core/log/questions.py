"""What readers of the logs and stages say: who reads much takes ranges of numbers, as they are on disk, from their owners.

    reader                     owner of a topic
      │ ── Find ────────────────> │   which topics are there?
      │ <── Found ─────────────── │
      │ ── Read, Read, … ───────> │   a few pieces ahead
      │ <── Rows, Rows, … ─────── │
      │ ── Bound ───────────────> │   where may a range end?
      │ <── Bounded ───────────── │
      │ ── Trace ───────────────> │   how far are my requests?
      │ <── Traced ────────────── │

A reader is a client like any other, with the same rights; it may ask for `ASKED_MAX` things at a time. Each is answered under its
number, in no particular order, or with `Unread`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ordered_pubsub.core.order.registrar import TOPICS_MAX

ASKED_MAX = 64
"""So much may be under way on a connection."""
PATTERNS_MAX = 1_000
PIECE_BYTES = 128 * 1024
"""About so much of a log is read at a time."""


class Find(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="find"):
    """A reader asks which topics with a log this stage owns, by their names or patterns of them."""

    number: int
    patterns: Annotated[list[str], msgspec.Meta(max_length=PATTERNS_MAX)]


class FoundTopics(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="found"):
    """Those that it may read."""

    number: int
    topics: dict[str, tuple[int, int]]
    """topic → up to where everything is gone, and its last number"""


class Read(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="read"):
    """A reader asks for a part of a topic's log, as it is on disk."""

    number: int
    topic: str
    first: int
    last: int
    full: bool = False
    """whether to say the full timestamp of the first number as well"""
    bytes_max: int = PIECE_BYTES
    """about so much at a time, and no more than `PIECE_BYTES`"""
    where: str = ""
    """a filter: events that it does not let through are left out, so that their numbers have none"""


class Rows(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="rows"):
    """The first piece of it: who wants more asks again. A row is its first number, its last one, and its bytes."""

    number: int
    floor: int
    """everything up to here is gone"""
    read_to: int
    """how far it goes; what is behind it may not be complete yet"""
    full: dict[str, int] | None
    stamps: list[tuple[int, int, bytes]]
    """batches without gaps, each with its timestamp (`core.log.shelf`)"""
    events: list[tuple[int, int, bytes]]
    """their events, in chunks; what has none is void, or was left out"""


class Bound(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="bound"):
    """A reader asks how far a topic goes before something beyond a clock comes before it."""

    number: int
    topic: str
    low: int
    """a number that is not too far"""
    high: int
    clock: Annotated[dict[str, int], msgspec.Meta(max_length=TOPICS_MAX)]
    is_whole: bool = True
    """whether it must not divide a batch"""


class Bounded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="bounded"):
    """The last number up to `high` that is not too far."""

    number: int
    last: int
    is_complete: bool = True
    """whether everything up to `high` is complete; else it may be further when it is"""


class Unread(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="unread"):
    """A reader gets no answer to what it asked under a number, and why."""

    number: int
    code: str
    """"forbidden", "unknown-topic", "bad-request", or "not-owned" if another stage has the topic"""
    reason: str


class Trace(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="trace"):
    """A client asks a stage how far it has taken the requests of the client's own session."""

    number: int


class Traced(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="traced"):
    """Those that it remembers, in this epoch; 0 and none of a session that it does not know.

    The last may not be on disk yet: that is certain when it is answered.
    """

    number: int
    epoch: int
    sequences: list[int]


LogQuestion = Find | Read | Bound
FromReader = LogQuestion | Trace
ToReader = FoundTopics | Rows | Bounded | Traced | Unread
