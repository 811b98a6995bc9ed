"""The headers of an event as properties of an MQTT 5 PUBLISH, and back.

The content type is MQTT's own. The stamp is the correlation data, which are bytes and cost least; a mark tells it from those
of a plain client, who uses them for requests and replies. All other headers are user properties, which are text (`headers`).

Here they are bytes, put together and taken apart once (`pack_headers`, `read_headers`). paho has objects for properties, which
look up the tables of all properties for each that is set, packed or read; these are for releases of it that take nothing else
(`properties_of`, `headers_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.headers import header_from_text, header_to_text

CONTENT_TYPE = "content-type"
STAMP = "ordered-pubsub-stamp"
STAMP_MARK = b"ops\x01"
TEXT_BYTES_MAX = 65_535

_CONTENT_TYPE, _CORRELATION_DATA, _USER_PROPERTY = 0x03, 0x09, 0x26
_SIZES = {0x01: 1, 0x02: 4, 0x08: 0, 0x0B: -1, 0x23: 2}
"""The other properties that a PUBLISH may have, by how many bytes they take: 0 is a length and data, -1 is a varint."""


def properties(kind: int, **values: Any) -> Properties:
    """Properties of a packet of some kind."""
    made = Properties(kind)  # type: ignore[no-untyped-call]  # paho has no types here
    for name, value in values.items():
        setattr(made, name, value)
    return made


def properties_of(headers: Mapping[str, bytes | str]) -> Properties:
    """The properties of a message that carries these headers, as paho takes them."""
    made, _ = properties(PacketTypes.PUBLISH).unpack(pack_headers(headers))  # type: ignore[no-untyped-call]
    return cast(Properties, made)


def headers_of(read: Properties | None) -> dict[str, bytes | str]:
    """The headers that a message's properties carry, as paho has read them."""
    packed: bytes = b"\0" if read is None else read.pack()  # type: ignore[no-untyped-call]
    return read_headers(packed[_skip(packed, 0, -1) :])


def pack_headers(headers: Mapping[str, bytes | str]) -> bytes:
    """The properties of a PUBLISH that carries these headers."""
    parts = []
    for name, value in headers.items():
        if name == STAMP and isinstance(value, bytes):
            parts.append(b"\x09" + _sized(STAMP_MARK + value, name))
        elif name == CONTENT_TYPE:
            parts.append(_pack_content_type(value))
        else:
            parts.append(b"\x26" + _sized(name.encode(), name) + _sized(header_to_text(value).encode(), name))
    data = b"".join(parts)
    return varint(len(data)) + data


@lru_cache(maxsize=256)
def _pack_content_type(value: bytes | str) -> bytes:
    return b"\x03" + _sized(header_to_text(value).encode(), CONTENT_TYPE)


def _sized(data: bytes, name: str) -> bytes:
    if len(data) > TEXT_BYTES_MAX:
        raise AdapterError(
            f"the header {name[:40]!r} takes {len(data)} bytes on the broker; MQTT carries {TEXT_BYTES_MAX} at most: put "
            "what is larger into the payload"
        )
    return len(data).to_bytes(2, "big") + data


def varint(number: int) -> bytes:
    """A number as MQTT has it in front of properties."""
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + varint(number >> 7)


def read_headers(data: bytes) -> dict[str, bytes | str]:
    """The headers that the properties of a PUBLISH carry. Of several user properties with one name the last one counts."""
    headers: dict[str, bytes | str] = {}
    at, end = 0, len(data)
    while at < end:
        kind = data[at]
        if kind in _SIZES:
            at = _skip(data, at + 1, _SIZES[kind])
            continue
        value, at = _read_sized(data, at + 1)
        if kind == _CORRELATION_DATA:
            if value.startswith(STAMP_MARK):
                headers[STAMP] = value[len(STAMP_MARK) :]
        elif kind == _CONTENT_TYPE:
            headers[CONTENT_TYPE] = _read_text(value)
        elif kind == _USER_PROPERTY:
            name = value.decode(errors="replace")
            value, at = _read_sized(data, at)
            headers[name] = _read_text(value)
        else:
            raise ValueError(f"a PUBLISH has no property {kind:#04x}")
    return headers


def _read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise ValueError("a property is longer than the packet")
    return data[start:end], end


def _read_text(data: bytes) -> bytes | str:
    """Bytes that are not UTF-8 do not come from here; a broker that lets them pass must not make us hang up."""
    return header_from_text(data.decode(errors="replace"))


def _skip(data: bytes, at: int, size: int) -> int:
    if size > 0:
        return at + size
    if size == 0:
        return _read_sized(data, at)[1]
    while data[at] & 0x80:
        at += 1
    return at + 1
