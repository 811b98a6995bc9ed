"""The order's metadata on the wire."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import ChangeMark
from ordered_pubsub.core.trust.authenticity import Stamp
from ordered_pubsub.errors import ProtocolError, UnknownVersion
from ordered_pubsub.wire.stamp import VERSION, decode_stamp, encode_stamp

COUNTS = st.integers(0, 2**63)
TEXTS = st.text(max_size=9)
STAMPS = st.builds(
    Stamp,
    st.binary(max_size=9),
    COUNTS,
    TEXTS,
    st.floats(0, 1e10),
    TEXTS,
    st.booleans(),
    st.dictionaries(TEXTS, COUNTS, max_size=9),
    st.lists(st.builds(ChangeMark, TEXTS, COUNTS), max_size=3),
    COUNTS,
    TEXTS,
)
TAG = bytes(range(16))
PLAIN = Stamp(b"system", 1, "p", 0.0, "", False, {"t": 5}, [], 1, "p/1")


def written(stamp: Stamp) -> bytes:
    return encode_stamp(TAG, msgspec.msgpack.encode(stamp))


@given(STAMPS)
def test_a_stamp_survives_the_wire(stamp: Stamp) -> None:
    tag, body, read = decode_stamp(written(stamp))

    assert (tag, msgspec.msgpack.decode(body, type=Stamp), read) == (TAG, stamp, stamp)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_stamp_of_another_version_is_refused_with_what_to_do(version: int) -> None:
    with pytest.raises(UnknownVersion, match=f"version {version}.*reads version {VERSION}.*install the same one"):
        decode_stamp(bytes([version]) + written(PLAIN)[1:])


@given(st.binary(max_size=30))
def test_garbage_is_refused_as_the_publishers_fault_and_nothing_else(data: bytes) -> None:
    with suppress(ProtocolError):
        decode_stamp(data)


def test_a_stamp_that_is_cut_off_says_so() -> None:
    data = written(PLAIN)
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_stamp(data[:length])
