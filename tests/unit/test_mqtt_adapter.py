"""The pieces of the adapter to MQTT, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ordered_pubsub.adapter import load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.wire.event_frames import CONTENT_TYPE, STAMP
from ordered_pubsub_adapters import _mqtt_fast
from ordered_pubsub_adapters._mqtt_fast import PIECE_BYTES, FastClient, Packed, is_fit, split_publish
from ordered_pubsub_adapters._mqtt_properties import (
    STAMP_MARK,
    headers_of,
    pack_headers,
    properties,
    properties_of,
    read_headers,
    varint,
)
from ordered_pubsub_adapters.mqtt import MqttAdapter

# -- the URL ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mqtt://h?qos=3", "qos is a whole number from 0 to 2"),
        ("mqtt://h?keepalive_s=1", "keepalive_s is a whole number from 2 to 65535"),
        ("mqtt://h?session_s=-1", "session_s is a whole number from 0 to 604800"),
        ("mqtt://h?ca=x.pem", "ca is for encrypted connections, and mqtt:// is none"),
        ("mqtt://h/topic", "there is a path behind the host"),
        ("mqtts://h?clean=1", "there is no parameter 'clean'; there are qos, keepalive_s, session_s, ca"),
    ],
)
def test_a_url_that_does_not_fit_is_refused_before_anything_is_connected(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        load_adapter(url)


@pytest.mark.parametrize(
    ("query", "loses", "duplicates", "keeps", "confirms"),
    [
        ("", False, True, True, True),
        ("?qos=0", True, False, False, False),
        ("?qos=1", False, True, True, True),
        ("?qos=1&session_s=0", False, True, False, True),
        ("?qos=2", False, False, True, True),
    ],
)
def test_capabilities_say_what_the_quality_of_service_promises(
    query: str, loses: bool, duplicates: bool, keeps: bool, confirms: bool
) -> None:
    said = load_adapter(f"mqtts://h{query}").capabilities

    assert (said.loses, said.duplicates, said.keeps_while_away, said.confirms) == (loses, duplicates, keeps, confirms)
    assert (said.reorders, said.carries_headers) == (False, True)


async def test_an_adapter_that_is_not_open_says_so() -> None:
    adapter = MqttAdapter("mqtt://me:secret@h")

    with pytest.raises(AdapterError, match=r"mqtt://me:\*\*\*@h is not open"):
        await adapter.subscribe(["a"])
    await adapter.close()


# -- properties ---------------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
VALUES = st.one_of(st.binary(max_size=300), st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
HEADERS = st.dictionaries(st.one_of(NAMES, st.sampled_from([CONTENT_TYPE, STAMP])), VALUES, max_size=5)


def unpacked(data: bytes) -> Properties:
    """As paho reads them, so as a plain client sees them."""
    made = properties(PacketTypes.PUBLISH)
    _, size = made.unpack(data)
    assert size == len(data)
    return made


def body_of(packed: bytes) -> bytes:
    """Without the length in front."""
    _, _, body, _ = split_publish(b"\x00\x00" + packed, qos=0)
    return body


@given(HEADERS)
def test_headers_that_are_packed_are_read(headers: Mapping[str, bytes | str]) -> None:
    assert read_headers(body_of(pack_headers(headers))) == headers


@given(HEADERS)
def test_what_is_packed_is_what_paho_packs(headers: Mapping[str, bytes | str]) -> None:
    """So that a plain client can read it."""
    read = unpacked(pack_headers(headers))

    if isinstance(stamp := headers.get(STAMP), bytes):
        assert read.CorrelationData == STAMP_MARK + stamp
    pairs = dict(getattr(read, "UserProperty", []))
    assert {*pairs, *({CONTENT_TYPE} & {*headers})} >= {name for name in headers if name != STAMP}
    assert Packed(pack_headers(headers)).pack() == pack_headers(headers)
    assert headers_of(read) == headers


@given(HEADERS.filter(lambda headers: all(len(value) < 1_000 for value in headers.values())))
def test_headers_are_the_same_when_paho_packs_them(headers: Mapping[str, bytes | str]) -> None:
    """Whichever way is used at either end."""
    assert read_headers(body_of(properties_of(headers).pack())) == headers


def test_plain_text_is_plain_on_the_broker() -> None:
    read = unpacked(pack_headers({CONTENT_TYPE: "application/json", "trace": "a1"}))

    assert (read.ContentType, read.UserProperty) == ("application/json", [("trace", "a1")])


def plain(**values: Any) -> bytes:
    """Properties as a plain client packs them, without the length in front."""
    return body_of(properties(PacketTypes.PUBLISH, **values).pack())


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", {}),
        (plain(ContentType="text/plain"), {CONTENT_TYPE: "text/plain"}),
        (plain(UserProperty=[("a", "1"), ("b", "é")]), {"a": "1", "b": "é"}),
        (plain(UserProperty=[("a", "1"), ("a", "2")]), {"a": "2"}),
        (plain(CorrelationData=b"request 7", ResponseTopic="replies"), {}),
        (plain(PayloadFormatIndicator=1, MessageExpiryInterval=9, TopicAlias=3, UserProperty=("a", "1")), {"a": "1"}),
        (plain(SubscriptionIdentifier=300, UserProperty=("a", "1")), {"a": "1"}),
        (b"\x26\x00\x01\xff\x00\x01\xfe", {"\ufffd": "\ufffd"}),
    ],
)
def test_a_plain_client_s_message_has_its_own_headers_and_no_stamp(data: bytes, headers: Mapping[str, str]) -> None:
    assert read_headers(data) == headers


def test_a_header_that_is_too_long_for_mqtt_is_named() -> None:
    with pytest.raises(
        AdapterError, match=r"the header 'large' takes 93344 bytes on the broker; MQTT carries 65535 at most"
    ):
        pack_headers({"large": b"x" * 70_005})


# -- packets -----------------------------------------------------------------------------------------------------------------


class Wire(FastClient):
    """A client whose packets are seen instead of sent."""

    def __init__(self) -> None:
        super().__init__("wire", {}, {})
        self.came: list[tuple[bytes, bytes, bytes, int, int]] = []
        self.sent: list[bytes] = []
        self.published: list[tuple[int, int]] = []
        self.deliver = lambda *message: self.came.append(message)
        self.on_publish = lambda client, data, mid, reason, more: self.published.append((mid, reason.value))

    def comes(self, command: int, packet: bytes) -> MQTTErrorCode:
        """A packet has arrived, as paho gives it to its handlers."""
        self._in_packet["command"] = command
        self._in_packet["packet"] = bytearray(packet)
        self._in_packet["remaining_length"] = len(packet)
        return self._packet_handle()

    def _packet_queue(self, command: int, packet: bytes, *more: Any) -> MQTTErrorCode:
        self.sent.append(bytes(packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def sends(self, qos: int) -> int:
        """Publish something; returns its identifier."""
        self._sock = object()  # type: ignore[assignment]  # only its being there is asked for
        mid = self.publish("t", b"", qos).mid
        self._sock = None
        self.sent.clear()
        return mid


def publication(topic: bytes, mid: int, data: bytes, payload: bytes, qos: int) -> bytes:
    number = mid.to_bytes(2, "big") if qos else b""
    return len(topic).to_bytes(2, "big") + topic + number + varint(len(data)) + data + payload


@given(
    topic=st.binary(max_size=300),
    mid=st.integers(1, 65_535),
    data=st.integers(0, 20_000).map(bytes),
    payload=st.binary(max_size=50),
    qos=st.sampled_from([0, 1, 2]),
)
def test_a_publish_is_split_into_its_parts(topic: bytes, mid: int, data: bytes, payload: bytes, qos: int) -> None:
    packet = publication(topic, mid, data, payload, qos)

    assert split_publish(packet, qos) == (topic, payload, data, mid if qos else 0)


@given(st.binary(max_size=40), st.sampled_from([0x30, 0x32, 0x34]))
def test_what_is_no_publish_is_a_protocol_error_and_nothing_worse(packet: bytes, command: int) -> None:
    wire = Wire()
    wire.deliver = lambda name, payload, data, qos, mid: read_headers(data) and None

    assert wire.comes(command, packet) in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_PROTOCOL)


@pytest.mark.parametrize(("qos", "answer"), [(0, []), (1, [b"\x40\x02\x00\x07"]), (2, [b"\x50\x02\x00\x07"])])
def test_what_arrives_is_acknowledged_when_it_was_accepted_and_not_before(qos: int, answer: list[bytes]) -> None:
    wire = Wire()

    wire.comes(0x30 | qos << 1, publication(b"t", 7, b"", b"x", qos))
    assert (wire.came, wire.sent) == ([(b"t", b"x", b"", qos, 7 if qos else 0)], [])

    wire.accept(7, qos)
    assert wire.sent == answer


def test_at_qos_2_what_comes_again_is_not_handed_on_again() -> None:
    """Though it was released under another connection, or its acknowledgement was lost."""
    wire = Wire()
    packet = publication(b"t", 7, b"", b"x", 2)
    wire.comes(0x34, packet)
    wire.comes(0x3C, packet)

    assert len(wire.came) == 1
    assert wire.sent == [b"\x50\x02\x00\x07"]


def test_at_qos_2_an_identifier_that_was_released_stands_for_a_new_message() -> None:
    wire = Wire()
    packet = publication(b"t", 7, b"", b"x", 2)
    wire.comes(0x34, packet)
    wire.comes(0x62, b"\x00\x07")
    wire.comes(0x34, packet)

    assert len(wire.came) == 2
    assert wire.sent == [b"\x70\x02\x00\x07"]


def test_a_release_of_something_unknown_is_answered_too() -> None:
    """Otherwise the broker waits for ever, and its window shrinks."""
    wire = Wire()
    wire.comes(0x62, b"\x00\x09")

    assert wire.sent == [b"\x70\x02\x00\x09"]


def test_identifiers_of_qos_2_belong_to_the_session_and_not_to_a_connection() -> None:
    """What comes again over the next one is known there."""
    first, second = Wire(), Wire()
    second._unreleased = first._unreleased
    packet = publication(b"t", 7, b"", b"x", 2)
    first.comes(0x34, packet)
    second.comes(0x3C, packet)
    assert second.came == []
    assert second.sent == [b"\x50\x02\x00\x07"]


@pytest.mark.parametrize(
    ("packet", "reason"), [(b"", 0), (b"\x00", 0), (b"\x10\x00", 0x10), (b"\x97", 0x97), (b"\x97\x00", 0x97)]
)
def test_the_broker_s_reason_is_told_at_qos_1(packet: bytes, reason: int) -> None:
    wire = Wire()
    mid = wire.sends(qos=1)
    wire.comes(0x40, mid.to_bytes(2, "big") + packet)

    assert wire.published == [(mid, reason)]


def test_at_qos_2_a_refusal_is_told_and_not_released() -> None:
    """paho alone would release it, and report it as published."""
    wire = Wire()
    mid = wire.sends(qos=2)
    wire.comes(0x50, mid.to_bytes(2, "big") + b"\x87\x00")

    assert wire.published == [(mid, 0x87)]
    assert wire.sent == []


def test_at_qos_2_what_was_taken_is_released_and_told_when_it_is_complete() -> None:
    wire = Wire()
    number = wire.sends(qos=2).to_bytes(2, "big")
    wire.comes(0x50, number)
    assert (wire.sent, wire.published) == ([b"\x62\x02" + number], [])

    wire.comes(0x70, number)
    assert wire.published == [(int.from_bytes(number, "big"), 0)]


def test_what_an_earlier_connection_has_begun_at_qos_2_is_ended_and_not_taken_for_what_is_new() -> None:
    """Its identifier is used again, and the broker answers in order."""
    wire = Wire()
    wire.unfinished.update({1: True, 9: True})
    wire.finish()
    assert wire.sent == [b"\x62\x02\x00\x01", b"\x62\x02\x00\x09"]

    assert wire.sends(qos=2) == 1
    wire.comes(0x70, b"\x00\x01")
    wire.comes(0x70, b"\x00\x09\x92")
    assert (wire.published, wire.unfinished) == ([], {})
    wire.comes(0x50, b"\x00\x01")
    wire.comes(0x70, b"\x00\x01")
    assert (wire.sent, wire.published) == ([b"\x62\x02\x00\x01"], [(1, 0)])


def test_an_acknowledgement_of_something_unknown_is_ignored() -> None:
    wire = Wire()
    for command, reason in ((0x40, b"\x97"), (0x50, b"\x97"), (0x70, b"\x92")):
        assert wire.comes(command, b"\x00\x05") == MQTTErrorCode.MQTT_ERR_SUCCESS
        assert wire.comes(command, b"\x00\x05" + reason) == MQTTErrorCode.MQTT_ERR_SUCCESS

    assert wire.published == []


class Narrow:
    """A socket that takes little at once."""

    def __init__(self, takes: Sequence[int]) -> None:
        self.takes = list(takes)
        self.pieces: list[bytes] = []

    def send(self, data: bytes) -> int:
        """Take some of it; nothing when it has to wait."""
        if not self.takes:
            raise BlockingIOError
        taken = self.takes.pop()
        self.pieces.append(bytes(data[:taken]))
        return min(taken, len(data))

    def close(self) -> None:
        """There is nothing to do."""


SIZES = st.one_of(st.integers(1, 300), st.integers(PIECE_BYTES - 300, PIECE_BYTES + 300))


@given(
    packets=st.lists(st.integers(1, 9_000).map(lambda size: b"%d" % size * size), max_size=20), takes=st.lists(SIZES)
)
def test_everything_is_written_in_its_order_whatever_the_socket_takes(packets: list[bytes], takes: list[int]) -> None:
    client = FastClient("writer", {}, {})
    client.on_socket_register_write = lambda *more: None
    client._sock = narrow = Narrow(takes)  # type: ignore[assignment]  # as much of a socket as is needed
    for packet in packets:
        client._packet_queue(0x30, packet, 1, 1)
        client.loop_write()
    narrow.takes = [1_000_000] * 100
    client.loop_write()

    assert b"".join(narrow.pieces) == b"".join(packets)
    assert not client.want_write()


def test_small_packets_are_written_together_and_a_large_one_by_itself() -> None:
    client = FastClient("writer", {}, {})
    client.on_socket_register_write = lambda *more: None
    client._sock = narrow = Narrow([10 * PIECE_BYTES] * 10)  # type: ignore[assignment]  # as much as is needed
    large = b"x" * (PIECE_BYTES + 1)
    for packet in (b"1", b"2", large, b"3", b"4"):
        client._packet_queue(0x30, packet, 1, 1)
    client.loop_write()

    assert narrow.pieces == [b"12", large, b"34"]


def test_a_good_bye_is_the_last_word_and_hangs_up() -> None:
    client = FastClient("writer", {}, {})
    client.on_socket_register_write = lambda *more: None
    client._sock = narrow = Narrow([PIECE_BYTES] * 10)  # type: ignore[assignment]  # as much of a socket as is needed
    client._packet_queue(0x40, b"ack", 1, 1)
    client._packet_queue(0x40, b"ack", 1, 1)
    client.disconnect()
    client.loop_write()

    assert narrow.pieces == [b"ackack", b"\xe0\x00"]
    assert client.socket() is None


# -- releases of paho --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _unknown() -> Iterator[None]:
    """Nothing was found out yet."""
    found, _mqtt_fast._found[:] = list(_mqtt_fast._found), []
    yield
    _mqtt_fast._found[:] = found


@pytest.mark.usefixtures("_unknown")
def test_the_paho_that_is_installed_passes_the_check() -> None:
    assert is_fit()


@pytest.mark.usefixtures("_unknown")
@pytest.mark.parametrize("name", ["_handle_publish", "_handle_pubrec", "loop_write"])
def test_what_does_not_fit_is_not_used_and_said_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release whose inside is another one, in which ours is not called."""
    if name == "loop_write":
        monkeypatch.setattr(FastClient, name, lambda client: MQTTErrorCode.MQTT_ERR_SUCCESS)
    else:
        monkeypatch.setattr(FastClient, name, getattr(Client, name))
    monkeypatch.setattr(_mqtt_fast, "CHECK_S", 0.05)

    assert [is_fit(), is_fit()] == [False, False]
    assert caplog.text.count("is used without what is fast, and without QoS 2") == 1


async def test_qos_2_is_refused_with_the_reason_where_only_paho_could_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mqtt_fast, "_found", [False])
    adapter = MqttAdapter("mqtt://127.0.0.1?qos=2")

    with pytest.raises(ConfigurationError, match=r"does not do QoS 2 .*take \?qos=1"):
        await adapter.open(lambda frames: asyncio.sleep(0), lambda is_connected, reason: None)
    await adapter.close()
