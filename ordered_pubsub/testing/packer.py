"""Events as the topics' logs and the ENS of a simulation have them: their indices in its record, a few in a chunk.

Its filters are as simple as can be: they want the events whose index is a multiple of a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.messages import Chunk, LogItem, Publication, PublishAsk
from ordered_pubsub.core.subscriber.buffer import Arrival, told_together
from ordered_pubsub.core.subscriber.delivery import Wants
from ordered_pubsub.core.trust.authenticity import (
    NO_TAG,
    TAG_BYTES,
    Stamp,
    common_of,
    digests_of,
    pieces_of,
    stamp_body,
)
from ordered_pubsub.testing.network import Carried
from ordered_pubsub.testing.record import EventRecord

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation


@attrs.frozen
class RecordPacker:
    """Writes events for the log: their indices in the record, a few in a chunk."""

    simulation: Simulation

    def weigh(self, topic: str, items: Sequence[EventRecord]) -> int:
        """Next to nothing."""
        return len(items)

    def ask(self, topic: str, items: Sequence[EventRecord]) -> PublishAsk:
        """Ask for numbers for all these events; of every other client, those of a chunk share a tag."""
        size = 1 + items[0].index % 3
        pieces = [items[at : at + size] for at in range(0, len(items), size)]
        chunks = tuple(Chunk(len(piece), _written([event.index for event in piece])) for piece in pieces)
        shares = items[0].client % 2 == 1
        counts = tuple(map(len, pieces)) if shares else ()
        if topic in self.simulation.world.kept:
            return PublishAsk(topic, len(items), True, chunks, counts, publisher=items[0].publisher)
        contents = [chunk.data for chunk in chunks] if shares else [_written(event.index) for event in items]
        return PublishAsk(topic, len(items), pieces=counts, digests=digests_of(contents), publisher=items[0].publisher)

    def frames(self, part: Publication, items: Sequence[EventRecord]) -> list[Carried]:
        """What is given to the ENS of a batch."""
        frames: list[Carried] = []
        first = 0
        for index, count in enumerate(pieces_of(part)):
            chosen = [event.index for event in items[first : first + count]]
            tag = part.tags[index * TAG_BYTES : (index + 1) * TAG_BYTES] or NO_TAG
            body = stamp_body(common_of(part, first), part.first + first)
            frames.append(Carried(part.topic, tag, body, _written(chosen if part.pieces else chosen[0])))
            first += count
        return frames

    def arrivals(self, topic: str, stamp: Stamp, content: bytes) -> list[Arrival]:
        """The events that the ENS has brought, and that have arrived."""
        found = msgspec.msgpack.decode(content, type=int | list[int])
        arrivals: list[Arrival] = []
        entries, marks = stamp.entries, stamp.marks
        for number, index in enumerate(found if isinstance(found, list) else [found], stamp.number):
            arrivals.append(Arrival(topic, number, entries, marks, stamp.full, self._event(index)))
            entries, marks = entries if stamp.full else {}, []
        told_together(arrivals, stamp.transaction)
        return arrivals

    def unpack(self, topic: str, item: LogItem) -> list[Arrival]:
        """The events, or the silence, that the log tells of."""
        if not item.chunks:
            silence = Arrival(topic, item.first, item.entries, item.marks, item.full, last=item.last, is_logged=True)
            told_together([silence], item.transaction or "")
            return [silence]
        arrivals: list[Arrival] = []
        entries, number = item.entries if item.full else {}, item.first
        for chunk in item.chunks:
            if not chunk.data:
                arrivals.append(
                    Arrival(topic, number, entries, full=item.full, last=number + chunk.count - 1, is_logged=True)
                )
            for at, index in enumerate(indices_of(chunk)):
                arrivals.append(
                    Arrival(topic, number + at, entries, full=item.full, body=self._event(index), is_logged=True)
                )
            number += chunk.count
        arrivals[0].entries, arrivals[0].marks = item.entries, item.marks
        told_together(arrivals, item.transaction or "")
        return arrivals

    def choose(self, every: str, items: Iterable[LogItem]) -> Iterator[LogItem | None]:
        """What a home stage leaves of these for a subscription with this filter, each in a step of its own."""
        for item in items:
            yield self._chosen(every, item)
            yield None

    def _chosen(self, every: str, item: LogItem) -> LogItem:
        """Whole chunks, or a few events of them."""
        chunks: list[Chunk] = []
        for chunk in item.chunks:
            for index in indices_of(chunk):
                data = msgspec.msgpack.encode([index]) if index % int(every) == 0 else b""
                if chunks and not data and not chunks[-1].data:
                    chunks[-1] = Chunk(chunks[-1].count + 1, b"")
                else:
                    chunks.append(Chunk(1, data))
        return replace(item, chunks=chunks)

    def _event(self, index: int) -> EventRecord:
        return self.simulation.record.events[index]


def _written(indices: int | list[int]) -> bytes:
    return msgspec.msgpack.encode(indices)


def indices_of(chunk: Chunk) -> list[int]:
    """The events of a chunk, by their indices in the record; none if its filter has left them out."""
    return msgspec.msgpack.decode(chunk.data, type=list[int]) if chunk.data else []


def wants_of(every: str) -> Wants:
    """What decides, of a filter as it is written."""
    return lambda arrival: arrival.body.index % int(every) == 0
