"""Messages as bytes of AMQP 0-9-1: what is written and read by the thousand.

A message travels in frames of the wire: a method (`basic.publish`, `basic.deliver`), a header (size, properties) and bodies of
bounded length. pika would make objects of each, which takes five times as long as the bytes themselves; and a field that it
cannot decode (a timestamp in milliseconds: https://github.com/pika/pika/issues/1698) makes it drop the connection, to be given
the same message again, for ever. So these frames are written and read here, and all others by pika.

Headers are an AMQP table: our bytes are a field of type `x`, our text one of type `S`. What plain publishers send beyond that
is read by this rule: numbers, truth values (`true`, `false`) and timestamps (seconds since 1970) arrive as text; tables,
arrays, empty fields and names that are not UTF-8 are left out; text that is not UTF-8 arrives as bytes. The content type is a
property of AMQP's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from struct import Struct, error
from typing import Any

from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import AdapterError

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = 0xCE
FRAME_START = Struct(">BHI")
"""type, channel, size"""
FRAME_OVERHEAD = FRAME_START.size + 1
CONTENT_TYPE = "content-type"
SHORT_MAX = 255
"""bytes of a routing key, a header's name, a content type"""
TRANSIENT, PERSISTENT = 1, 2

_END = bytes([FRAME_END])
_BASIC = 60
_PUBLISH = Struct(">HHH")
"""class, method, and a field that is not used any more"""
_PUBLISH_METHOD = 40
DELIVER = (_BASIC << 16) | 60
_METHOD_ID = Struct(">I")
_CONTENT = Struct(">HHQH")
"""class, weight, size of the body, flags of the properties"""
_SIZE = Struct(">I")
_TAG = Struct(">Q")
_HAS_CONTENT_TYPE, _HAS_ENCODING, _HAS_HEADERS, _HAS_DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000

_TEXT, _BYTES, _ARRAY, _TABLE, _VOID = b"SxAFV"
_DECIMAL = b"D"[0]
_NUMBERS = {
    kind[0]: Struct(form)
    for kind, form in (
        (b"t", ">?"),
        (b"b", ">b"),
        (b"B", ">B"),
        (b"s", ">h"),
        (b"U", ">h"),
        (b"u", ">H"),
        (b"I", ">i"),
        (b"i", ">I"),
        (b"l", ">q"),
        (b"L", ">q"),
        (b"T", ">Q"),
        (b"f", ">f"),
        (b"d", ">d"),
        (b"D", ">Bi"),
    )
}


# -- out ----------------------------------------------------------------------------------------------------------------


def publish_method(channel: int, exchange: str, routing_key: str) -> bytes:
    """The first frame of each message of a topic."""
    method = (
        _PUBLISH.pack(_BASIC, _PUBLISH_METHOD, 0) + _short(exchange.encode()) + _short(routing_key.encode()) + b"\0"
    )
    return _frame(METHOD, channel, method)


def header_frame(channel: int, frame: Frame, delivery_mode: int, frame_max: int) -> bytes:
    """The second frame of a message: its size and properties. Raises an `AdapterError` if AMQP cannot carry them."""
    flags = _HAS_DELIVERY_MODE
    properties = b""
    headers = frame.headers
    content_type = headers.get(CONTENT_TYPE)
    if isinstance(content_type, str) and len(encoded := content_type.encode()) <= SHORT_MAX:
        flags |= _HAS_CONTENT_TYPE
        properties = _short(encoded)
        headers = {name: value for name, value in headers.items() if name != CONTENT_TYPE}
    if headers:
        flags |= _HAS_HEADERS
        properties += _table(frame.topic, headers)
    content = _CONTENT.pack(_BASIC, 0, len(frame.payload), flags) + properties + bytes((delivery_mode,))
    if len(content) + FRAME_OVERHEAD > frame_max:
        raise AdapterError(
            f"a message on {frame.topic!r} has headers of {len(content)} bytes; this broker takes at most "
            f"{frame_max - FRAME_OVERHEAD} (its frame_max): give it fewer or shorter ones"
        )
    return _frame(HEADER, channel, content)


def body_frames(channel: int, payload: bytes, frame_max: int) -> list[bytes]:
    """The frames of a payload, as pieces; none if it is empty."""
    pieces = []
    step = frame_max - FRAME_OVERHEAD
    for at in range(0, len(payload), step):
        part = payload if len(payload) <= step else payload[at : at + step]
        pieces += [FRAME_START.pack(BODY, channel, len(part)), part, _END]
    return pieces


def _frame(kind: int, channel: int, content: bytes) -> bytes:
    return FRAME_START.pack(kind, channel, len(content)) + content + _END


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _table(topic: str, headers: Mapping[str, bytes | str]) -> bytes:
    fields = []
    for name, value in headers.items():
        encoded = name.encode()
        if len(encoded) > SHORT_MAX:
            raise AdapterError(
                f"a message on {topic!r} has a header whose name has {len(encoded)} bytes; AMQP takes at most {SHORT_MAX}: "
                f"give {name[:20]!r}… a shorter one"
            )
        kind, data = (b"x", value) if isinstance(value, bytes) else (b"S", value.encode())
        fields.append(_short(encoded) + kind + _SIZE.pack(len(data)) + data)
    table = b"".join(fields)
    return _SIZE.pack(len(table)) + table


# -- in -----------------------------------------------------------------------------------------------------------------


def is_delivery(data: bytes, start: int) -> bool:
    """Whether a method announces a message for a consumer."""
    return bool(_METHOD_ID.unpack_from(data, start)[0] == DELIVER)


def read_delivery(data: bytes, start: int) -> tuple[int, str]:
    """The delivery tag and the routing key of a `basic.deliver`."""
    at = start + _METHOD_ID.size
    at += 1 + data[at]  # the consumer's tag
    (tag,) = _TAG.unpack_from(data, at)
    at += _TAG.size + 1  # whether it was delivered before
    at += 1 + data[at]  # the exchange
    return tag, data[at + 1 : at + 1 + data[at]].decode(errors="replace")


def read_header(data: bytes, start: int) -> tuple[int, dict[str, bytes | str]]:
    """The size of a message's body, and what its properties say."""
    _, _, size, flags = _CONTENT.unpack_from(data, start)
    at = start + _CONTENT.size
    content_type = None
    if flags & _HAS_CONTENT_TYPE:
        at, content_type = at + 1 + data[at], data[at + 1 : at + 1 + data[at]]
    if flags & _HAS_ENCODING:
        at += 1 + data[at]
    headers = read_table(data, at) if flags & _HAS_HEADERS else {}
    if content_type is not None:
        headers[CONTENT_TYPE] = content_type.decode(errors="replace")
    return size, headers


def read_table(data: bytes, start: int) -> dict[str, bytes | str]:
    """A table as headers, by the rule above. Of a type that nobody knows, what stands before it is read."""
    headers: dict[str, bytes | str] = {}
    at = start + _SIZE.size
    with suppress(error, IndexError):
        end = at + _SIZE.unpack_from(data, start)[0]
        while at < end:
            kind_at = at + 1 + data[at]
            name = data[at + 1 : kind_at]
            value, at = _read_field(data, kind_at)
            if value is not None:
                with suppress(UnicodeDecodeError):
                    headers[name.decode()] = value
    return headers


def _read_field(data: bytes, at: int) -> tuple[bytes | str | None, int]:
    """A field's value, None if it is left out, and where the next one starts."""
    kind = data[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return _number_text(kind, number.unpack_from(data, at)), at + number.size
    if kind == _VOID:
        return None, at
    if kind not in _SIZED:
        raise IndexError(f"a field of type {kind} has an unknown length")
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    return _SIZED[kind](data[at : at + size]), at + size


def _number_text(kind: int, values: tuple[Any, ...]) -> str:
    if kind == _DECIMAL:
        places, digits = values
        return str(Decimal(digits).scaleb(-places))
    return str(values[0]).lower()


def _text_or_bytes(data: bytes) -> bytes | str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _left_out(data: bytes) -> None:
    return None


_SIZED: dict[int, Callable[[bytes], bytes | str | None]] = {
    _TEXT: _text_or_bytes,
    _BYTES: bytes,
    _ARRAY: _left_out,
    _TABLE: _left_out,
}
