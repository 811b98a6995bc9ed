"""The mark beside a store: how many commits the store has had, in a file of its own.

A store can lose its end without a trace in itself: a write-ahead log that is gone, or cut at a flipped bit, leaves a database
that is whole, and older. Numbers that were given after it would be given again. So each commit has a number, and the last one's
stands in `STORE.mark` as well. A store whose own last commit has a smaller number does not start.

The mark follows the store, and is never ahead of it: it is written when a commit is done, before anything of it is said. As long
as the machine runs, what was written is there, so the mark is exact after any end of the process. Of a machine that lost its
power it may be older than the store, by a second of commits (`SYNC_S`) or what the system had not written by itself; never newer,
for with durability "fsync" a commit is on the disk before its mark is written at all. So a stage that was only cut off always
starts, and one that lost commits does not, as far as the mark reaches.

The file has two slots, which are written in turns, each with a checksum: whatever becomes of one, the other says what was true
one commit before. They lie 4 KiB apart, so that no sector holds both.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import attrs

from ordered_pubsub.errors import JournalDamaged
from ordered_pubsub.server.store.shelf import remedy

SUFFIX = ".mark"
STORE_BYTES = 16
SYNC_S = 1.0
"""At most so long the disk does not have the mark of a store that is written to."""
_MAGIC = b"opsmark2"
_SLOT = struct.Struct("<8sQ16sQQB16s")
_CHECKSUM = struct.Struct("<I")
_SLOT_BYTES = _SLOT.size + _CHECKSUM.size
_SLOTS_AT = (0, 4096)


@attrs.frozen
class HighWaterMark:
    """What is known of a store from outside of it."""

    store: bytes
    """the store's own id, which it has drawn when it was made"""
    commits: int = 0
    """the number of its last commit"""
    given: int = 0
    """how many numbers its stage had given by then, of all topics together"""
    is_open: bool = True
    """whether a stage has it open, or was ended without closing it"""
    boot: bytes = bytes(16)
    """which start of the machine that was; zeros where the system does not tell"""


def boot_mark(boot: str) -> bytes:
    """What tells one start of the machine from another, in the space that a mark has for it."""
    return blake2b(boot.encode(), digest_size=16).digest() if boot else bytes(16)


@attrs.define(eq=False)
class MarkFile:
    """The file, open for writing."""

    path: Path
    _file: int
    _sequence: int = 0
    _mark: HighWaterMark = HighWaterMark(bytes(STORE_BYTES))
    _synced_at: float = float("-inf")

    @classmethod
    def open(cls, path: Path) -> tuple[MarkFile, HighWaterMark | None]:
        """Open it, or make it, readable by its owner only; with what it says, if that was not made just now."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            sequence, mark = _read(path, file)
        except BaseException:
            os.close(file)
            raise
        return cls(path, file, sequence), mark

    def begin(self, mark: HighWaterMark) -> None:
        """Say it in both slots, on the disk, as well as that there is such a file."""
        self._mark = mark
        self._write(mark.commits, mark.given)
        self._write(mark.commits, mark.given)
        self.sync()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def follow(self, commits: int, given: int, syncs: bool) -> None:
        """A commit is done: say so. It is to be on the disk within some time if `syncs`."""
        self._write(commits, given)
        if syncs and time.monotonic() >= self._synced_at + SYNC_S:
            self.sync()

    def end(self, commits: int, given: int) -> None:
        """Say that the store is being closed, on the disk."""
        self._mark = attrs.evolve(self._mark, is_open=False)
        self._write(commits, given)
        self.sync()

    def _write(self, commits: int, given: int) -> None:
        """A few microseconds: this is done for each commit."""
        self._sequence = sequence = self._sequence + 1
        mark = self._mark
        body = _SLOT.pack(_MAGIC, sequence, mark.store, commits, given, mark.is_open, mark.boot)
        os.pwrite(self._file, body + _CHECKSUM.pack(crc32(body)), _SLOTS_AT[sequence & 1])

    def sync(self) -> None:
        """Have it on the disk."""
        full_sync(self._file)
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Let it go."""
        os.close(self._file)


def mark_of(store: Path) -> Path:
    """Where the mark of a store is."""
    return store.with_name(store.name + SUFFIX)


def read_mark(path: Path) -> HighWaterMark | None:
    """What a mark says; None if there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _read(path, file)[1]
    finally:
        os.close(file)


def _read(path: Path, file: int) -> tuple[int, HighWaterMark | None]:
    if not os.fstat(file).st_size:
        return 0, None
    found = [slot for at in _SLOTS_AT if (slot := _read_slot(os.pread(file, _SLOT_BYTES, at))) is not None]
    if not found:
        raise JournalDamaged(
            f"the mark {path}, which says how many commits its store has had, is damaged: both of its slots fail their checksum. "
            + remedy(path.with_name(path.name[: -len(SUFFIX)]))
        )
    return max(found, key=lambda slot: slot[0])


def _read_slot(data: bytes) -> tuple[int, HighWaterMark] | None:
    if len(data) != _SLOT_BYTES or _CHECKSUM.unpack_from(data, _SLOT.size)[0] != crc32(data[: _SLOT.size]):
        return None
    magic, sequence, store, commits, given, is_open, boot = _SLOT.unpack_from(data)
    if magic != _MAGIC:
        return None
    return sequence, HighWaterMark(store, commits, given, bool(is_open), boot)


def full_sync(file: int) -> None:
    """Have a file's content on the disk, also where the system's own sync stops at the disk's cache (macOS)."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)
