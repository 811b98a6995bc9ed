"""What is quicker than paho, and QoS 2: used if it passes a check, else paho alone.

Theory of operation
===================
paho keeps the connection, the identifiers and the acknowledgements. What it does to each single message is replaced, for two
reasons:

- *Speed.* paho makes objects for the properties of every packet, also of one that has none: half of a publisher's time and
  two thirds of a subscriber's (`_mqtt_properties` says what is done instead). And it writes each packet by itself: a quarter of
  what is left. Here small ones are written together.
- *Truth.* paho ignores the reason code of a PUBREC: at QoS 2 it would report as published what the broker refused. And with
  manual acknowledgements it never answers the PUBREL of a message that it does not know, so that a resumed session loses a
  place in the broker's window with each of them. So there is QoS 2 only with what is here.

Acknowledging is "this is ours now": PUBACK at QoS 1, PUBREC at QoS 2, both sent by whoever handled the message. At QoS 2 a
message is handed on when it arrives, not when it is released, and its identifier is remembered until it is released: what the
broker sends again after a break is not handed on again (MQTT 5, section 4.3.3, allows this order).

What is replaced is not part of paho's interface. So before it is used, it talks once, over a socket of this machine, to a broker
that knows what is to be said (`is_fit`).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from select import select
from typing import Any

import paho.mqtt
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub_adapters._mqtt_properties import pack_headers, properties

_log = logging.getLogger(__name__)

FAILURES = 0x80
"""Reason codes from here on are failures."""
PIECE_BYTES = 65_536
"""So much is written at once."""
CHECK_S = 5.0

_PUBACK, _DISCONNECT = 0x40, 0xE0

Deliver = Callable[[bytes, bytes, bytes, int, int], None]
"""Takes a message that has arrived: its topic, payload, properties, QoS and identifier."""


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


# -- the client -----------------------------------------------------------------------------------------------------------

_PUBLISHED = ReasonCode(PacketTypes.PUBACK)
_NO_PROPERTIES = properties(PacketTypes.PUBACK)


class FastClient(Client):
    """paho's client; acknowledges nothing by itself."""

    deliver: Deliver
    """set by whoever takes what arrives, before connecting"""

    def __init__(self, client_id: str, unreleased: dict[int, bool], unfinished: dict[Any, bool]) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self._unreleased = unreleased
        """the identifiers of QoS 2 that have come, and may come again; of a session, not of a connection"""
        self.unfinished = unfinished
        """those that earlier connections of the session have begun to publish with, until the broker has ended that"""

    def accept(self, mid: int, qos: int) -> None:
        """Tell the broker that a message is ours now."""
        if qos == 1:
            self._send_puback(mid)
        elif qos == 2:
            self._send_pubrec(mid)

    def finish(self) -> None:
        """End what earlier connections have begun to publish at QoS 2: the identifiers are used again."""
        for mid in self.unfinished:
            self._send_pubrel(mid)

    def loop_write(self) -> MQTTErrorCode:
        """Write what waits, in one packet, as paho sends each by itself. That of a DISCONNECT, or that has begun, stays alone."""
        if len(self._out_packet) > 1:
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
        return super().loop_write()

    def _handle_publish(self) -> MQTTErrorCode:
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
        packet = self._in_packet["packet"]
        mid = packet[0] << 8 | packet[1]
        self._unreleased.pop(mid, None)
        return self._send_pubcomp(mid)

    def _handle_pubackcomp(self, cmd: str) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        mid = packet[0] << 8 | packet[1]
        if cmd == "PUBCOMP" and self.unfinished.pop(mid, False):
            return MQTTErrorCode.MQTT_ERR_SUCCESS  # of before: what has the identifier now is answered later
        if len(packet) == 2 and mid in self._out_messages:
            return self._do_on_publish(mid, _PUBLISHED, _NO_PROPERTIES)
        return super()._handle_pubackcomp(cmd)  # type: ignore[arg-type]  # a Literal that only paho names

    def _handle_pubrec(self) -> MQTTErrorCode:
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


# -- the check ----------------------------------------------------------------------------------------------------------

_HEADERS: dict[str, bytes | str] = {"ordered-pubsub-stamp": b"\x01", "content-type": "x", "a": "b"}
_found: list[bool] = []


def is_fit() -> bool:
    """Whether this fits the paho that is installed; found out once, and logged if not. It blocks for some milliseconds."""
    if not _found:
        try:
            is_as_expected = _talk()
        except Exception:
            _log.info("paho-mqtt %s fails the check", paho.mqtt.__version__, exc_info=True)
            is_as_expected = False
        if not is_as_expected:
            _log.warning(
                "paho-mqtt %s is used without what is fast, and without QoS 2, since its inside is another one",
                paho.mqtt.__version__,
            )
        _found.append(is_as_expected)
    return _found[0]


def _talk() -> bool:
    """Known frames are written together, known messages are read, acknowledged and released, and acknowledgements told."""
    data = pack_headers(_HEADERS)
    read: list[Any] = []
    client = FastClient("check", {}, {5: True})
    client.deliver = lambda *message: read.append(message)
    client.on_publish = lambda _, __, mid, reason, more: read.append((mid, reason.value))
    client.on_socket_register_write = lambda *_: None  # what waits is written when it is asked for
    client.connect_timeout = CHECK_S
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CHECK_S)
        client.connect("127.0.0.1", server.getsockname()[1])
        with server.accept()[0] as peer, client.socket() as ours:  # type: ignore[union-attr]  # it is connected
            peer.settimeout(CHECK_S)
            client.loop_write()
            peer.recv(1_000)  # CONNECT

            def say(packet: bytes) -> None:
                peer.sendall(packet)
                select([ours], [], [], CHECK_S)
                client.loop_read()

            say(b"\x20\x03\x00\x00\x00")
            for payload, qos in ((b"1", 1), (b"2", 2)):
                client.publish("t", payload, qos, properties=Packed(data))
            client.loop_write()
            size = len(data) + 6
            wanted = b"".join(
                bytes((0x30 | qos << 1, size)) + b"\x00\x01t\x00" + bytes((qos,)) + data + b"%d" % qos for qos in (1, 2)
            )
            is_written = peer.recv(1_000) == wanted
            # Taken, refused (QoS 2), a message of each QoS, one of them again, a release, and one of something unknown.
            message = bytes((0x34, size)) + b"\x00\x01t\x00\x07" + data + b"m"
            packets = [
                b"\x40\x02\x00\x01",
                b"\x50\x03\x00\x02\x87",
                bytes((0x32, size)) + b"\x00\x01t\x00\x06" + data + b"m",
                message,
                message,
                b"\x62\x02\x00\x07",
                b"\x62\x02\x00\x09",
            ]
            for packet in packets:
                say(packet)
            client.accept(6, 1)
            client.finish()
            client.loop_write()
            answers = b"\x50\x02\x00\x07\x70\x02\x00\x07\x70\x02\x00\x09\x40\x02\x00\x06\x62\x02\x00\x05"
            is_answered = peer.recv(1_000) == answers
    body = data[1:]
    return (
        is_written and is_answered and read == [(1, 0), (2, 0x87), (b"t", b"m", body, 1, 6), (b"t", b"m", body, 2, 7)]
    )
