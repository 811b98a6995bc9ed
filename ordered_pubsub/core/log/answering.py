"""What a log says to who reads much of it: pieces as they are on disk, and how far a range may go."""

from __future__ import annotations

from collections.abc import Generator

from ordered_pubsub.core.log.questions import PIECE_BYTES, Bound, Bounded, Read, Rows
from ordered_pubsub.core.log.reader import LogReader


def read(log: LogReader, ask: Read) -> Rows:
    """A piece: consecutive batches that are complete."""
    found = log.rows(ask.topic, ask.first, ask.last, min(ask.bytes_max, PIECE_BYTES))
    full = log.full_at(ask.topic, found.stamps[0].first) if ask.full and found.stamps else None
    if ask.full and found.stamps and full is None:  # forgotten since the rest of it was read
        return Rows(ask.number, log.shelf.floor(ask.topic), ask.first - 1, None, [], [])
    return Rows(ask.number, found.floor, found.read_to, full, list(found.stamps), list(found.events))


def bounding(log: LogReader, ask: Bound) -> Generator[bool, None, Bounded]:
    """Search by halves, in small steps: `low` is not too far, what is behind `high` is."""
    low, high = max(ask.low, log.shelf.floor(ask.topic)), ask.high
    while low < high:
        middle = (low + high + 1) // 2
        if log.is_within(ask.topic, middle, ask.clock):
            low = middle
        else:
            high = middle - 1
        yield True
    last = max(ask.low, log.whole_batches(ask.topic, low)) if ask.is_whole else low
    is_complete = ask.high <= log.shelf.floor(ask.topic) or log.full_at(ask.topic, ask.high) is not None
    return Bounded(ask.number, min(last, ask.high), is_complete)
