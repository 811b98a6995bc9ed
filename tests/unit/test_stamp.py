"""The order's metadata on the wire."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import Mark
from ordered_pubsub.errors import ProtocolError, UnknownVersion
from ordered_pubsub.wire.stamp import VERSION, Stamp, decode_stamp, encode_stamp

COUNTS = st.integers(0, 2**63)
STAMPS = st.builds(
    Stamp,
    COUNTS,
    st.dictionaries(st.text(max_size=9), COUNTS, max_size=9),
    st.booleans(),
    st.lists(st.builds(Mark, st.text(max_size=9), COUNTS), max_size=3),
    st.text(max_size=9),
    st.text(max_size=9),
    st.floats(0, 1e10),
)


@given(STAMPS)
def test_a_stamp_survives_the_wire(stamp: Stamp) -> None:
    assert decode_stamp(encode_stamp(stamp)) == stamp


def test_a_stamp_of_a_newer_version_is_refused_with_what_to_do() -> None:
    data = encode_stamp(Stamp(1, {}, False, [], "p", "p/1", 0.0))
    with pytest.raises(UnknownVersion, match=f"version {VERSION + 1}.*reads version {VERSION}.*install the newer one"):
        decode_stamp(bytes([VERSION + 1]) + data[1:])


@given(st.binary(max_size=30))
def test_garbage_is_refused_as_the_publishers_fault_and_nothing_else(data: bytes) -> None:
    with suppress(ProtocolError):
        decode_stamp(data)


def test_a_stamp_that_is_cut_off_says_so() -> None:
    data = encode_stamp(Stamp(1, {"t": 5}, False, [], "p", "p/1", 0.0))
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_stamp(data[:length])
