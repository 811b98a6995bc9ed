"""What a subscription's filter does not let through is left out of what the home stage brings it from a log.

What is left out keeps its numbers, so the order is the same. The payload is decoded as clients without a serializer do it; an
event with another content type is brought, and its client decides.

Who brings something to many asks the filters of all of them one after the other; events are read once for all of these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.log import Row
from ordered_pubsub.core.messages import Chunk, Recalled
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.content import BYTES, JSON, fields_of
from ordered_pubsub.wire.pack import Logged, decode_logged, encode_logged, packed_headers

FILTERS_MAX = 1_024
"""So many filters are kept compiled."""
OPENED_MAX, OPENED_BYTES_MAX = 64, 2 << 20
"""So many chunks, and about so many bytes of them, are kept as they were read last."""


@lru_cache(maxsize=FILTERS_MAX)
def read_filter(where: str) -> Filter:
    """The filter that is written so, or a `FilterError`."""
    return Filter.parse(where)


def choose(where: str, recalled: Recalled) -> Recalled:
    """A part of a log without the events that a filter does not let through."""
    chosen = read_filter(where)
    chunks = [piece for chunk in recalled.chunks for piece in _choose(chosen, chunk)]
    return replace(recalled, chunks=chunks)


@attrs.define(eq=False)
class _Opened:
    """The events of a chunk, and what filters see of them."""

    logged: Logged
    _fields: dict[int, Any] = attrs.field(factory=dict)

    def is_wanted(self, chosen: Filter, at: int) -> bool:
        """Whether a filter lets an event through."""
        event, data = self.logged.events[at], None
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
        found = _opened[chunk] = _Opened(decode_logged(chunk.data, chunk.count))
        size = sum(len(known.data) for known in _opened)
        while len(_opened) > 1 and (len(_opened) > OPENED_MAX or size > OPENED_BYTES_MAX):
            oldest, _ = _opened.popitem(last=False)
            size -= len(oldest.data)
    return found


def _choose(chosen: Filter, chunk: Chunk) -> list[Chunk]:
    try:
        opened = _open(chunk)
    except ProtocolError:
        return [chunk]  # whoever reads it says so
    wanted = [opened.is_wanted(chosen, at) for at in range(chunk.count)]
    return [chunk] if all(wanted) else list(_pieces(opened.logged, wanted))


def _pieces(logged: Logged, wanted: list[bool]) -> Iterator[Chunk]:
    """What is wanted, and between that only how many are not."""
    first = 0
    for at in range(1, len(wanted) + 1):
        if at == len(wanted) or wanted[at] != wanted[first]:
            data = encode_logged(Logged(logged.publisher, logged.events[first:at])) if wanted[first] else b""
            yield Chunk(at - first, data)
            first = at


def choose_rows(where: str, rows: list[Row]) -> list[Row]:
    """Events of a log as they are on disk, without those that a filter does not let through."""
    chosen = read_filter(where)
    found: list[Row] = []
    for row in rows:
        first = row.first
        for piece in _choose(chosen, Chunk(row.last - first + 1, row.data)):
            if piece.data:
                found.append(Row(first, first + piece.count - 1, piece.data))
            first += piece.count
    return found
