"""How much there is in a frame, before it is read.

Bytes are bounded by the size of a frame, and a payload of a megabyte is quickly read; but the same megabyte may hold a million
elements, each of which becomes an object. So of a large frame the elements are counted first, which costs little: what is
announced at the head of each array and map, and what there may be at most in small ones.
"""

from __future__ import annotations

import msgspec

from ordered_pubsub.errors import ProtocolError

LOOKED_INTO_BYTES = 16_384
"""What is smaller than this is not looked into."""
ELEMENT_BYTES = 4
"""So much has an element at least, about, that becomes an object worth counting."""
ELEMENTS_MAX = 60_000
"""What a frame, or a request in it, may hold: three texts or numbers for each topic of the largest subscription."""

_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_maps = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def check_weight(data: bytes | msgspec.Raw, who: str) -> None:
    """Raise a `ProtocolError` for what has too many elements to be read at once."""
    if len(memoryview(data)) >= LOOKED_INTO_BYTES:
        found = _elements(memoryview(data), ELEMENTS_MAX)
        if found > ELEMENTS_MAX:
            raise ProtocolError(f"{who} sent a frame with more than {ELEMENTS_MAX} elements; expected fewer at a time")


def _elements(data: memoryview, most: int) -> int:
    """How many elements there are, about; counted no further than somewhat beyond `most`."""
    announced = _announced(data)
    if announced is None:
        return 0
    count, is_map = announced
    if count > most:
        return count
    try:
        parts = list(_maps.decode(data).values()) if is_map else _parts.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return 0  # whoever reads it says what is wrong
    total = count
    for raw in parts:
        if total > most:
            break
        part = memoryview(raw)
        if len(part) >= LOOKED_INTO_BYTES:
            total += _elements(part, most - total)
        elif _announced(part) is not None:
            total += len(part) // ELEMENT_BYTES
    return total


def _announced(data: memoryview) -> tuple[int, bool] | None:
    """How many elements an array or a map says that it has, and whether it is a map; None for anything else."""
    kind = data[0]
    if 0x80 <= kind <= 0x9F:
        return kind & 0x0F, kind < 0x90
    if kind in (0xDC, 0xDE):
        return int.from_bytes(data[1:3], "big"), kind == 0xDE
    if kind in (0xDD, 0xDF):
        return int.from_bytes(data[1:5], "big"), kind == 0xDF
    return None
