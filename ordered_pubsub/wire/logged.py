"""Events as their topic's log keeps them: written by who publishes them, read by who missed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.messages import Chunk, LogItem, PublishAsk
from ordered_pubsub.core.subscriber.buffer import Arrival, told_together
from ordered_pubsub.core.trust.authenticity import digest_of
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.event_frames import HELD_ENTRY_BYTES, Body, digests_by_event, held_bytes, written_together
from ordered_pubsub.wire.pack import decode_logged, head_of_chunk, packed_headers, unreadable

CHUNK_BYTES = 1 << 15
"""About so many bytes are read together, unless one event has more."""


class Knowing(Protocol):
    """Who knows what topics give."""

    @property
    def levels(self) -> Levels:
        """As far as it has been told by now."""


@attrs.frozen
class Sharing:
    """How events are put together that travel in one message, and share a tag."""

    events_max: int
    bytes_max: Callable[[], int]
    """what a message may have now"""


@attrs.frozen
class LogPacker:
    """Writes the events of one client for the logs of their topics."""

    publisher: str
    home: Knowing
    sharing: Sharing | None = None
    """None: each event travels by itself, and has its own tag"""
    is_tagged: bool = True
    """whether the events are to be published on a broker as well"""
    _head: bytes = attrs.field(
        default=attrs.Factory(lambda self: head_of_chunk(self.publisher), takes_self=True), init=False, repr=False
    )
    """what all chunks begin with"""

    def weigh(self, topic: str, items: Sequence[Any]) -> int:
        """How many bytes they are, about; 0 for a topic without a log."""
        if not self.home.levels.is_kept(topic):
            return 0
        return items[0].size if len(items) == 1 else sum([item.size for item in items])

    def ask(self, topic: str, items: Sequence[Any]) -> PublishAsk:
        """Ask for numbers for all of them: what a log keeps goes along, of the rest only digests."""
        is_kept, shares = self.home.levels.is_kept(topic), self.sharing is not None
        pieces: tuple[int, ...] | None = () if self.is_tagged else None
        if not is_kept and not shares:
            return PublishAsk(topic, len(items), False, (), pieces, digests_by_event(items) if self.is_tagged else b"")
        runs, digests = self._runs(items), b""
        chunks: list[Chunk] = []
        for run in runs:
            events = written_together(run)
            if shares:
                run[0].written = events
            if is_kept:
                chunks.append(Chunk(len(run), self._head + events))
            else:
                digests += digest_of(events)
        if shares:
            pieces = tuple([len(run) for run in runs])
        return PublishAsk(topic, len(items), is_kept, tuple(chunks), pieces, digests)

    def _runs(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        """What is written together: so many bytes, and, where it travels together as well, no more than a message takes."""
        if len(items) == 1:
            return [items]
        events_max, bytes_max = len(items), CHUNK_BYTES
        if self.sharing is not None:
            events_max = self.sharing.events_max
            bytes_max = max(1, min(bytes_max, self.sharing.bytes_max()))
        runs: list[Sequence[Any]] = []
        size = at = 0
        for index, item in enumerate(items):
            size += item.size
            if index > at and (size > bytes_max or index - at >= events_max):
                runs.append(items[at:index])
                at, size = index, item.size
        runs.append(items[at:] if at else items)
        return runs


def read_recalled(topic: str, recalled: LogItem) -> list[Arrival]:
    """What a part of a log says: its events, or silence. What cannot be read of it is an event all the same, with an `error`."""
    entries, marks, full = recalled.entries, recalled.marks, recalled.full
    if not recalled.chunks:
        silence = Arrival(topic, recalled.first, entries, marks, full, last=recalled.last, is_logged=True)
        told_together([silence], recalled.transaction or "")
        return [silence]
    arrivals: list[Arrival] = []
    shared = entries if full else {}  # of a batch whose timestamp is full, so is every event's
    number = recalled.first
    for chunk in recalled.chunks:
        if not chunk.data:
            arrivals.append(Arrival(topic, number, shared, [], full, last=number + chunk.count - 1, is_logged=True))
            number += chunk.count
            continue
        try:
            logged = decode_logged(chunk.data, chunk.count)
        except ProtocolError as error:  # something else is written there: events that say so when they are decoded
            logged = unreadable(chunk.data, chunk.count, error)
        for event in logged.events:
            headers = packed_headers(event)
            body = Body(event.payload, event.content_type, headers, logged.publisher, event.id, recalled.published_at)
            size = len(event.payload) + (held_bytes(headers) if headers else 0)
            arrivals.append(Arrival(topic, number, shared, [], full, body, size, is_logged=True))
            number += 1
    if not arrivals:
        raise ProtocolError(
            f"a log has chunks of topic {topic!r} from number {recalled.first} on, and no event in them"
        )
    first = arrivals[0]
    first.entries, first.marks = entries, marks
    first.size += HELD_ENTRY_BYTES * len(entries)
    told_together(arrivals, recalled.transaction or "")
    return arrivals
