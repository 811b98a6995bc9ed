"""What a subscription's filter does not let through is left out of what the home stage brings it from a log.

What is left out keeps its numbers, so the order is the same. The payload is decoded as clients without a serializer do it; an
event with another content type is brought, and its client decides.

Who brings something to many asks the filters of all of them one after the other; events are read once for all of these.
However many events a chunk has, they are read and judged a few at a time, so that others have their turns between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.messages import Chunk, LogItem
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.content import BYTES, JSON, fields_of
from ordered_pubsub.wire.pack import (
    PackedEvent,
    SignedEvents,
    decode_event,
    decode_signed,
    encode_logged,
    packed_headers,
)

STEP_BYTES = 64 * 1024
"""So much is done in one step, in bytes of JSON that are decoded."""
EVENT_BYTES, LETTERS_A_BYTE, COPIED_A_BYTE = 256, 4, 32
"""An event costs as much as so many, beside its own; a letter of a filter, and a byte that is only copied, as a part of one."""
FILTERS_MAX, LETTERS_MAX = 1_024, 1 << 18
"""So many filters are kept compiled, and of so many letters together: compiled they take some thirty times as much."""
OPENED_MAX, OPENED_BYTES_MAX = 64, 2 << 20
"""So many chunks, and about so many bytes of them, are kept as they were read last."""


@attrs.define(eq=False)
class Filters:
    """Filters that were read lately."""

    letters: int = 0
    """of all of them"""
    _read: OrderedDict[str, Filter] = attrs.field(factory=OrderedDict)
    """the oldest first"""

    def read(self, where: str) -> Filter:
        """The filter that is written so, or a `FilterError`."""
        found = self._read.get(where)
        if found is not None:
            self._read.move_to_end(where)
            return found
        found = self._read[where] = Filter.parse(where)
        self.letters += len(where)
        while len(self._read) > FILTERS_MAX or (self.letters > LETTERS_MAX and len(self._read) > 1):
            oldest, _ = self._read.popitem(last=False)
            self.letters -= len(oldest)
        return found


read_filter = Filters().read


@attrs.define(slots=True)
class _Step:
    """How much is left to be done until the others have their turn."""

    left: int = STEP_BYTES


def choosing(where: str, items: Iterable[LogItem]) -> Iterator[LogItem | None]:
    """Parts of a log without the events that a filter does not let through; and None at the end of each small step between."""
    chosen, step = read_filter(where), _Step()
    for item in items:
        chunks: list[Chunk] = []
        for chunk in item.chunks:
            yield from _choosing(where, chosen, chunk, chunks, step)
        yield replace(item, chunks=chunks)


def choosing_rows(
    where: str, rows: Iterable[tuple[int, int, bytes]], found: list[tuple[int, int, bytes]]
) -> Iterator[None]:
    """Find events of a log as they are on disk, without those that a filter does not let through, in small steps."""
    chosen, step = read_filter(where), _Step()
    for first, last, data in rows:
        pieces = list[Chunk]()
        yield from _choosing(where, chosen, Chunk(last - first + 1, data), pieces, step)
        for piece in pieces:
            if piece.data:
                found.append((first, first + piece.count - 1, piece.data))
            first += piece.count


@attrs.define(eq=False)
class _Opened:
    """The events of a chunk, and what filters see of them."""

    signed: SignedEvents
    _events: dict[int, PackedEvent] = attrs.field(factory=dict)
    _fields: dict[int, Any] = attrs.field(factory=dict)

    def is_wanted(self, chosen: Filter, at: int) -> bool:
        """Whether a filter lets an event through; raises a `ProtocolError` if it is none."""
        event, data = self._events.get(at), None
        if event is None:
            event = self._events[at] = decode_event(self.signed.events[at])
        if chosen.needs_payload:
            if event.content_type not in (BYTES, JSON):
                return True
            if at not in self._fields:
                self._fields[at] = fields_of(event.payload, event.content_type)
            data = self._fields[at]
        return chosen.matcher(data, packed_headers(event))


_opened: OrderedDict[Chunk, _Opened] = OrderedDict()
"""what was read last, the oldest first"""


def _open(chunk: Chunk) -> _Opened:
    found = _opened.get(chunk)
    if found is None:
        found = _opened[chunk] = _Opened(decode_signed(chunk.data, chunk.count))
        size = sum(len(known.data) for known in _opened)
        while len(_opened) > 1 and (len(_opened) > OPENED_MAX or size > OPENED_BYTES_MAX):
            oldest, _ = _opened.popitem(last=False)
            size -= len(oldest.data)
    return found


def _choosing(where: str, chosen: Filter, chunk: Chunk, left: list[Chunk], step: _Step) -> Iterator[None]:
    """Find what is left of a chunk."""
    wanted, cost = bytearray(), EVENT_BYTES + len(where) // LETTERS_A_BYTE
    try:
        opened = _open(chunk)
        step.left -= len(chunk.data) // COPIED_A_BYTE
        for at, event in enumerate(opened.signed.events):
            if step.left <= 0:
                step.left = STEP_BYTES
                yield
            wanted.append(opened.is_wanted(chosen, at))
            step.left -= cost + len(event)
    except ProtocolError:
        left.append(chunk)  # whoever reads it says so
        return
    if all(wanted):
        left.append(chunk)
    else:
        yield from _cutting(opened.signed, wanted, left, step)


def _cutting(signed: SignedEvents, wanted: bytearray, left: list[Chunk], step: _Step) -> Iterator[None]:
    """Cut out what is wanted; between that is only how many are not."""
    first = 0
    while first < len(wanted):
        last = wanted.find(not wanted[first], first)
        last = last if last > 0 else len(wanted)
        data = b""
        if wanted[first]:
            if step.left <= 0:
                step.left = STEP_BYTES
                yield
            data = encode_logged(SignedEvents(signed.publisher, signed.events[first:last]))
            step.left -= EVENT_BYTES + len(data) // COPIED_A_BYTE
        left.append(Chunk(last - first, data))
        first = last
