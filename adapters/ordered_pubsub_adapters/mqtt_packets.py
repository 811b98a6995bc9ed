"""paho's client, with the packets that carry events read and written here.

Theory of operation
===================
paho keeps the connection, the identifiers and the acknowledgements. What it does to each single message is replaced, for two
reasons:

- *Speed.* paho makes an object of tables for the properties of every packet, in both directions, and in an acknowledgement
  without properties two. With 200 bytes of payload, the broker aside, that is 60 % of a publisher's time and 70 % of a
  subscriber's. Here properties are bytes that are put together and taken apart once.
- *Truth.* paho ignores the reason code of a PUBREC: at QoS 2 it would report as published what the broker refused. And with
  manual acknowledgements it never answers the PUBREL of a message that it does not know, so that a resumed session loses a
  place in the broker's window with each of them.

Acknowledging is "this is ours now": PUBACK at QoS 1, PUBREC at QoS 2, both sent by whoever handled the message. At QoS 2 a
message is handed on when it arrives, not when it is released, and its identifier is remembered until it is released: what the
broker sends again after a break is not handed on again (MQTT 5, section 4.3.3, allows this order).

The methods that are replaced are not part of paho's interface: `check_paho` refuses a version that has them no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import paho.mqtt
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters.headers import header_from_text, header_to_text

CONTENT_TYPE = "content-type"
STAMP = "ordered-pubsub-stamp"
STAMP_MARK = b"ops\x01"
"""Begins the correlation data that are a stamp, so that those of a plain client are not mistaken for one."""
TEXT_BYTES_MAX = 65_535
FAILURES = 0x80
"""Reason codes from here on are failures."""

_CONTENT_TYPE, _CORRELATION_DATA, _USER_PROPERTY = 0x03, 0x09, 0x26
_SIZES = {0x01: 1, 0x02: 4, 0x08: 0, 0x09: 0, 0x0B: -1, 0x23: 2}
"""The other properties that a PUBLISH may have, by how many bytes they take: 0 is a length and data, -1 is a varint."""
_REPLACED = ("_handle_publish", "_handle_pubackcomp", "_handle_pubrec", "_handle_pubrel")
_NEEDED = ("_do_on_publish", "_send_puback", "_send_pubrec", "_send_pubcomp", "_sock_close", "drop_out_messages")

Deliver = Callable[[bytes, bytes, bytes, int, int], None]
"""Takes a message that has arrived: its topic, payload, properties, QoS and identifier."""


def check_paho() -> None:
    """Raise a `ConfigurationError` if this version of paho is not one that this module fits."""
    missing = [name for name in (*_REPLACED, *_NEEDED) if not hasattr(Client, name)]
    if missing:
        raise ConfigurationError(
            f"paho-mqtt {paho.mqtt.__version__} does not have {missing[0]}, which the adapter for mqtt:// needs; install "
            "'paho-mqtt>=2.2,<3'"
        )


# -- properties -----------------------------------------------------------------------------------------------------------


class Packed(Properties):
    """Properties that are bytes already, their length in front."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        object.__setattr__(self, "data", data)  # paho's own knows no other names than those of properties

    def pack(self) -> bytes:
        """The bytes, as paho sends them."""
        return self.data

    def __str__(self) -> str:
        """For paho's log."""
        return f"{len(self.data)} bytes"


def properties(kind: int, **values: int) -> Properties:
    """Properties of a packet of some kind."""
    made = Properties(kind)  # type: ignore[no-untyped-call]  # paho has no types here
    for name, value in values.items():
        setattr(made, name, value)
    return made


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
    return _varint(len(data)) + data


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


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def read_headers(data: bytes) -> dict[str, bytes | str]:
    """The headers that the properties of a PUBLISH carry. Of several user properties with one name the last one counts."""
    headers: dict[str, bytes | str] = {}
    at, end = 0, len(data)
    while at < end:
        kind = data[at]
        if kind in _SIZES and kind != _CORRELATION_DATA:
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


# -- the client -----------------------------------------------------------------------------------------------------------

_PUBLISHED = ReasonCode(PacketTypes.PUBACK)
_NO_PROPERTIES = properties(PacketTypes.PUBACK)


class PacketClient(Client):
    """paho's client; acknowledges nothing by itself."""

    deliver: Deliver
    """set by whoever takes what arrives, before connecting"""

    def __init__(self, client_id: str) -> None:
        check_paho()
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self.packets = 0
        """how many messages and acknowledgements have come: says whether there may be more to read"""
        self._unreleased: dict[int, bool] = {}
        """the identifiers of QoS 2 that have come, and may come again"""

    def forget_session(self) -> None:
        """The broker has none any more: what comes in is new."""
        self._unreleased.clear()

    def hang_up(self) -> None:
        """Close the socket, if there is one, without a word to the broker."""
        self._sock_close()

    def accept(self, mid: int, qos: int) -> None:
        """Tell the broker that a message is ours now."""
        if qos == 1:
            self._send_puback(mid)
        elif qos == 2:
            self._send_pubrec(mid)

    def _handle_publish(self) -> MQTTErrorCode:
        self.packets += 1
        packet = self._in_packet["packet"]
        qos = self._in_packet["command"] >> 1 & 3
        try:
            topic, payload, data, mid = split_publish(packet, qos)
            if qos == 2:
                if mid in self._unreleased:
                    return self._send_pubrec(mid)
                self._unreleased[mid] = True
            self.deliver(topic, payload, data, qos, mid)
        except (IndexError, ValueError):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubrel(self) -> MQTTErrorCode:
        self.packets += 1
        packet = self._in_packet["packet"]
        mid = packet[0] << 8 | packet[1]
        self._unreleased.pop(mid, None)
        return self._send_pubcomp(mid)

    def _handle_pubackcomp(self, cmd: str) -> MQTTErrorCode:
        self.packets += 1
        packet = self._in_packet["packet"]
        if len(packet) == 2:
            mid = packet[0] << 8 | packet[1]
            if mid in self._out_messages:
                return self._do_on_publish(mid, _PUBLISHED, _NO_PROPERTIES)
        return super()._handle_pubackcomp(cmd)  # type: ignore[arg-type]  # a Literal that only paho names

    def _handle_pubrec(self) -> MQTTErrorCode:
        self.packets += 1
        packet = self._in_packet["packet"]
        if len(packet) > 2 and packet[2] >= FAILURES:
            mid = packet[0] << 8 | packet[1]
            if mid in self._out_messages:
                return self._do_on_publish(mid, ReasonCode(PacketTypes.PUBREC, identifier=packet[2]), _NO_PROPERTIES)
        return super()._handle_pubrec()


def split_publish(packet: bytes | bytearray, qos: int) -> tuple[bytes, bytes, bytes, int]:
    """Topic, payload, properties and identifier of a PUBLISH; raises `IndexError` or `ValueError` if it is none."""
    at = 2 + (packet[0] << 8 | packet[1])
    topic, mid = bytes(packet[2:at]), 0
    if qos:
        mid = packet[at] << 8 | packet[at + 1]
        at += 2
    size, shift = 0, 0
    while True:
        byte = packet[at]
        size |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            break
    if at + size > len(packet) or shift > 28:
        raise ValueError("the properties are longer than the packet")
    return topic, bytes(packet[at + size :]), bytes(packet[at : at + size]), mid
