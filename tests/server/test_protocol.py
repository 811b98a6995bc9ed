"""Messages as bytes: there and back, from other releases, and made of anything at all."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire import protocol
from ordered_pubsub.wire.framing import HEAD_BYTES
from ordered_pubsub.wire.protocol import REQUESTS_MAX, Ask, Ping, decode, encode
from server.messages import FROM_CLIENT, FROM_PEER, GREETINGS, TO_CLIENT, request

ROADS = {
    "greeting": (protocol.greetings, GREETINGS),
    "from a client": (protocol.from_client, FROM_CLIENT),
    "to a client": (protocol.to_client, TO_CLIENT),
    "from a stage": (protocol.from_peer, FROM_PEER),
}
EVERY = [
    pytest.param(decoder, message, id=f"{road}: {type(message).__name__}")
    for road, (decoder, messages) in ROADS.items()
    for message in messages
]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
TAGS = sorted({str(type(message).__struct_config__.tag) for _, messages in ROADS.values() for message in messages})


def payload_of(message: Any) -> bytes:
    return encode(message)[HEAD_BYTES:]


@pytest.mark.parametrize(("decoder", "message"), EVERY)
def test_a_message_is_read_as_it_was_written(decoder: Any, message: Any) -> None:
    assert decode(decoder, payload_of(message), "somebody") == message


@pytest.mark.parametrize(("decoder", "message"), EVERY)
def test_a_message_of_a_later_release_with_more_at_its_end_is_read(decoder: Any, message: Any) -> None:
    grown = msgspec.msgpack.encode([*msgspec.msgpack.decode(payload_of(message)), {"new": 1}])

    assert decode(decoder, grown, "somebody") == message


@pytest.mark.parametrize(("decoder", "message"), EVERY)
def test_a_message_that_was_cut_off_is_refused(decoder: Any, message: Any) -> None:
    whole = payload_of(message)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError, match="is not a message known here"):
            decode(decoder, whole[:length], "somebody")


@pytest.mark.parametrize(("decoder", "message"), EVERY)
def test_bytes_behind_a_message_are_refused(decoder: Any, message: Any) -> None:
    with pytest.raises(ProtocolError, match="is not a message known here"):
        decode(decoder, payload_of(message) + b"\xc0", "somebody")


@pytest.mark.parametrize("road", ROADS)
@given(data=st.data())
def test_whatever_comes_is_a_message_or_a_protocol_error(road: str, data: st.DataObject) -> None:
    value = data.draw(st.lists(VALUES, max_size=8).map(lambda rest: [data.draw(st.sampled_from(TAGS)), *rest]) | VALUES)
    with suppress(ProtocolError):
        decode(ROADS[road][0], msgspec.msgpack.encode(value), "somebody")


@pytest.mark.parametrize("road", ROADS)
@given(st.binary(max_size=200))
def test_bytes_by_chance_are_a_message_or_a_protocol_error(road: str, data: bytes) -> None:
    with suppress(ProtocolError):
        decode(ROADS[road][0], data, "somebody")


@pytest.mark.parametrize("nesting", [b"\x91", b"\x81\xa1a"])
def test_nesting_without_end_is_refused(nesting: bytes) -> None:
    """Of all the messages to a stage only `differs` holds data of any form."""
    with pytest.raises(ProtocolError):
        decode(protocol.from_peer, b"\x92\xa7differs\x81\xa1a" + nesting * 20_000, "somebody")


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(protocol.to_client, b"\x93\xa8rejected\xa1\xff\xa0", "somebody")


def test_a_frame_does_not_hold_more_requests_than_a_stage_takes_at_once() -> None:
    many = Ask([request()] * (REQUESTS_MAX + 1))

    with pytest.raises(ProtocolError, match="length <= "):
        decode(protocol.from_client, payload_of(many), "somebody")


def test_a_message_that_does_not_belong_on_a_road_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(protocol.greetings, payload_of(Ping()), "somebody")
    with pytest.raises(ProtocolError):
        decode(protocol.from_client, payload_of(GREETINGS[0]), "somebody")
