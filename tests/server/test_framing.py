"""Frames in a stream of bytes: however it is cut into pieces, and whatever it announces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.framing import HEAD_BYTES, Deframer, frame

PAYLOADS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def test_frames_come_out_that_were_put_in_byte_by_byte() -> None:
    payloads = [b"a", b"bc" * 200, b"\x00" * 5]
    deframer = Deframer(1000)

    found = [payload for byte in b"".join(map(frame, payloads)) for payload in deframer.feed(bytes([byte]))]

    assert found == payloads


@given(PAYLOADS, st.lists(st.integers(0, 2500), max_size=10))
def test_it_does_not_matter_where_the_stream_is_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, payloads))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    deframer = Deframer(1000)

    found = [p for start, end in pairwise(edges) for p in deframer.feed(stream[start:end])]

    assert found == payloads


def test_what_follows_a_frame_waits_for_its_rest() -> None:
    deframer = Deframer(1000)

    assert deframer.feed(frame(b"first") + frame(b"second")[:-1]) == [b"first"]
    assert deframer.waiting_bytes == HEAD_BYTES + len(b"second") - 1
    assert deframer.feed(b"d") == [b"second"]
    assert deframer.waiting_bytes == 0


def test_a_frame_as_large_as_allowed_is_taken() -> None:
    assert Deframer(1000).feed(frame(b"x" * 1000)) == [b"x" * 1000]


@pytest.mark.parametrize("length", [0, 1001, 1 << 31, (1 << 32) - 1])
def test_a_length_that_is_not_allowed_is_refused_when_it_is_announced(length: int) -> None:
    deframer = Deframer(1000)

    with pytest.raises(ProtocolError, match=rf"a frame of {length} bytes was announced; expected 1 to 1000"):
        deframer.feed(length.to_bytes(HEAD_BYTES, "big"))


def test_nothing_is_kept_of_a_frame_that_is_refused() -> None:
    deframer = Deframer(1000)

    with pytest.raises(ProtocolError):
        deframer.feed(frame(b"x" * 5000))

    assert deframer.waiting_bytes == 0


def test_a_good_frame_before_a_bad_one_does_not_save_it() -> None:
    with pytest.raises(ProtocolError):
        Deframer(1000).feed(frame(b"fine") + b"\xff\xff\xff\xff")
