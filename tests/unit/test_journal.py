"""Records: whole ones are read, a torn last one is cut off, damage elsewhere refuses to start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import PublishAsk, Request, RequestTaken, TopologyOffered
from ordered_pubsub.core.stage.journal import decode_input, encode_input, frame_record, scan
from ordered_pubsub.errors import JournalDamaged

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def journal(payloads: list[bytes]) -> bytes:
    return b"".join(map(frame_record, payloads))


@given(PAYLOADS)
def test_what_was_written_is_read(payloads: list[bytes]) -> None:
    data = journal(payloads)
    found = scan(data)
    assert (found.records, found.good_bytes, found.torn_bytes) == (payloads, len(data), 0)


@given(PAYLOADS.filter(bool), st.data())
def test_a_record_torn_at_any_byte_is_cut_off_and_those_before_it_are_kept(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = journal(payloads[:-1])
    last = frame_record(payloads[-1])
    kept = data.draw(st.integers(1, len(last) - 1))
    found = scan(whole + last[:kept])
    assert (found.records, found.good_bytes, found.torn_bytes) == (payloads[:-1], len(whole), kept)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=8), st.data())
def test_a_bit_flipped_before_the_last_record_refuses_to_start(payloads: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(journal(payloads))
    last = len(frame_record(payloads[-1]))
    place = data.draw(st.integers(0, len(whole) - last - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(JournalDamaged, match="restore the file from a copy"):
        scan(bytes(whole), "eu.journal")


def test_a_tail_of_zeros_is_cut_off() -> None:
    found = scan(journal([b"first"]) + bytes(100))
    assert (found.records, found.torn_bytes) == ([b"first"], 100)


def test_a_damaged_file_is_named_with_record_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "eu.journal"
    path.write_bytes(journal([b"first", b"second", b"third"]))
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"eu.journal: record 2 at byte 13 fails its checksum.*at byte 27"):
        scan(path.read_bytes(), path.name)


def test_a_torn_file_is_good_up_to_the_torn_record(tmp_path: Path) -> None:
    path = tmp_path / "eu.journal"
    path.write_bytes(journal([b"first", b"second"])[:-2])
    found = scan(path.read_bytes(), path.name)
    assert found.records == [b"first"]
    assert "record 2 at byte 13 was cut off after 12 bytes" in found.torn_message
    assert scan(path.read_bytes()[:13]).torn_message == ""


@pytest.mark.parametrize(
    "event",
    [
        TopologyOffered(1, [["a", ["x"]], ["b", []]], True),
        RequestTaken(Request("c", 1, 2, 1, 0, (PublishAsk("t", 3),)), 0, 1.5),
    ],
)
def test_an_input_survives_the_journal(event: TopologyOffered | RequestTaken) -> None:
    assert decode_input(encode_input(event)) == event


def test_an_input_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(JournalDamaged, match="written by a newer version"):
        decode_input(b"\x81\xa4type\xa7teleport")
