"""The journal's records: framed, numbered by their place and protected by a checksum.

A stage is a deterministic state machine, so its journal holds its inputs; a snapshot bounds how many must be read again.
A record is `length (4 bytes) · checksum (4 bytes) · payload`. A record that the power cut off in the middle can only be the
last one (or a tail of zeros, which some file systems leave): it is dropped, for nothing that depended on it was sent. A
record that fails anywhere else means that the disk has lost what was answered: `JournalDamaged`, and the stage must not
start.
"""

from __future__ import annotations

import struct
from zlib import crc32

import attrs
import msgspec

from ordered_pubsub.core.messages import Input
from ordered_pubsub.errors import JournalDamaged

_HEAD = struct.Struct(">II")
_LENGTH = struct.Struct(">I")
RECORD_BYTES_MAX = 1 << 28

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Input)


@attrs.frozen
class Scan:
    """What a journal's bytes hold: whole records, and how many bytes of them are good."""

    records: list[bytes]
    good_bytes: int
    torn_bytes: int

    @property
    def torn_message(self) -> str:
        """What to tell the operator about a torn last record; empty if there is none."""
        if not self.torn_bytes:
            return ""
        return (
            f"record {len(self.records) + 1} at byte {self.good_bytes} was cut off after {self.torn_bytes} bytes, as by a loss "
            "of power: nothing that depends on it was ever sent, so it is dropped and the stage goes on after record "
            f"{len(self.records)}"
        )


def encode_input(event: Input) -> bytes:
    """The payload of a record."""
    return _encoder.encode(event)


def decode_input(payload: bytes) -> Input:
    """The input that a record holds."""
    try:
        event: Input = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise JournalDamaged(
            f"a journal record has a good checksum but is not a known input ({error}); it was probably written by a newer "
            "version: start the stage with that version"
        ) from error
    return event


def frame_record(payload: bytes) -> bytes:
    """A record as it stands in the journal."""
    return _HEAD.pack(len(payload), crc32(payload)) + payload


def join_records(records: list[bytes]) -> bytes:
    """Records that are kept together, under one checksum of whoever keeps them."""
    if len(records) == 1:
        return _LENGTH.pack(len(records[0])) + records[0]
    return b"".join(_LENGTH.pack(len(record)) + record for record in records)


def split_records(data: bytes) -> list[bytes]:
    """The records that were joined."""
    records: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        records.append(data[start:at])
    return records


def scan(data: bytes, name: str = "journal") -> Scan:
    """Read the records of a journal; cut off a torn last one; refuse damage anywhere else."""
    records: list[bytes] = []
    at = 0
    while at < len(data):
        payload = _read(data, at)
        if payload is None:
            _check_torn(data, at, name, len(records))
            break
        records.append(payload)
        at += _HEAD.size + len(payload)
    return Scan(records, at, len(data) - at)


def _read(data: bytes, at: int) -> bytes | None:
    if at + _HEAD.size > len(data):
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    if not length or length > RECORD_BYTES_MAX or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32(payload) == checksum else None


def _check_torn(data: bytes, at: int, name: str, number: int) -> None:
    """A bad record is torn if no good one follows it; look for one at every later place."""
    for later in range(at + 1, len(data) - _HEAD.size):
        length, _ = _HEAD.unpack_from(data, later)
        if 0 < length <= len(data) - later - _HEAD.size and _read(data, later) is not None:
            raise JournalDamaged(
                f"{name}: record {number + 1} at byte {at} fails its checksum, but a good record follows at byte {later}: "
                "the file is damaged in the middle and what was answered may be lost. The stage does not start on it: "
                "restore the file from a copy"
            )
