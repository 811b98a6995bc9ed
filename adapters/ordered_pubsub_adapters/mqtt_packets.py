"""paho's client, with the packets that carry events read and written here.

Theory of operation
===================
paho keeps the connection, the identifiers and the acknowledgements. What it does to each single message is replaced, for two
reasons:

- *Speed.* paho makes objects for the properties of every packet, also of one that has none: half of a publisher's time and
  two thirds of a subscriber's (`mqtt_properties` says what is done instead). And it writes each packet by itself: a quarter of
  what is left. Here small ones are written together.
- *Truth.* paho ignores the reason code of a PUBREC: at QoS 2 it would report as published what the broker refused. And with
  manual acknowledgements it never answers the PUBREL of a message that it does not know, so that a resumed session loses a
  place in the broker's window with each of them.

Acknowledging is "this is ours now": PUBACK at QoS 1, PUBREC at QoS 2, both sent by whoever handled the message. At QoS 2 a
message is handed on when it arrives, not when it is released, and its identifier is remembered until it is released: what the
broker sends again after a break is not handed on again (MQTT 5, section 4.3.3, allows this order).

What is replaced is not part of paho's interface, so `check_paho` refuses a version that has it no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paho.mqtt
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub_adapters.mqtt_properties import properties

FAILURES = 0x80
"""Reason codes from here on are failures."""

PIECE_BYTES = 65_536
"""So much is written at once."""

_PUBACK, _DISCONNECT = 0x40, 0xE0
_REPLACED = ("_handle_publish", "_handle_pubackcomp", "_handle_pubrec", "_handle_pubrel", "loop_write")
_CALLED = ("_do_on_publish", "_send_puback", "_send_pubrec", "_send_pubcomp", "_sock_close", "drop_out_messages")
_HELD = ("_in_packet", "_out_packet", "_out_messages")

Deliver = Callable[[bytes, bytes, bytes, int, int], None]
"""Takes a message that has arrived: its topic, payload, properties, QoS and identifier."""


def check_paho() -> None:
    """Raise a `ConfigurationError` if this version of paho is not one that this module fits."""
    client = Client(CallbackAPIVersion.VERSION2)
    missing = [name for name in (*_REPLACED, *_CALLED, *_HELD) if not hasattr(client, name)]
    if missing:
        raise ConfigurationError(
            f"paho-mqtt {paho.mqtt.__version__} does not have {missing[0]}, which the adapter for mqtt:// needs; install "
            "'paho-mqtt>=2.2,<3'"
        )


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

    def loop_write(self) -> MQTTErrorCode:
        """Write what waits, small packets together."""
        if len(self._out_packet) > 1:
            self._join_packets()
        return super().loop_write()

    def _join_packets(self) -> None:
        """Make one packet of many, as paho sends each by itself. That of a DISCONNECT, or that has begun, stays alone."""
        waiting, together = list(self._out_packet), bytearray()
        self._out_packet.clear()
        for packet in waiting:
            data = packet["packet"]
            is_alone = packet["pos"] > 0 or packet["command"] == _DISCONNECT or len(data) > PIECE_BYTES
            if together and (is_alone or len(together) + len(data) > PIECE_BYTES):
                self._out_packet.append(_written_without_a_word(together))
                together = bytearray()
            if is_alone:
                self._out_packet.append(packet)
            else:
                together += data
        if together:
            self._out_packet.append(_written_without_a_word(together))

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


def _written_without_a_word(data: bytearray) -> Any:
    """Bytes as paho keeps what it has to write: to it, they are an acknowledgement, after which there is nothing to do."""
    return {"command": _PUBACK, "mid": 0, "qos": 1, "pos": 0, "to_process": len(data), "packet": data, "info": None}


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
