"""A look at SQLite's write-ahead log as it lies on the disk, before SQLite may cut it.

SQLite reads its log up to the first frame whose checksum fails, and takes that for the end: right for a machine that lost its
power while a commit was being written, and wrong for a flipped bit in the middle, behind which commits are lost that were
answered long ago. The difference can be seen: behind a tear nothing was committed. (The file format is SQLite's own,
https://www.sqlite.org/fileformat2.html#walformat.)

    header   magic · version · page size · checkpoint number · two salts · two sums over this
    frame    page number · size of the database after a commit, or 0 · the salts · two sums over all since the header · the page

The sums of a frame go on from those of the frame before, and those stand in it. So a frame can be judged by itself, also behind a
bad one: it is whole if its sums follow from the ones that the frame before it claims. Frames with other salts are left from an
earlier round of the log, and count for nothing.

A commit is written only when the one before it is on the disk. So when the power fails, at most one commit is incomplete, and
its frames may be there in any selection, the last one, which makes it a commit, included. When only the process ends, what was
written is there up to some byte.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter

import attrs

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_SUMS = struct.Struct(">2I")
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_VERSION = 3_007_000
_WORD = 0xFFFFFFFF
PAGE_BYTES = tuple(1 << power for power in range(9, 17))
"""The sizes that SQLite's pages can have."""


@attrs.frozen
class WriteAhead:
    """What a write-ahead log holds."""

    frames: int
    """whole ones, up to which SQLite reads it"""
    commits: int
    """among them"""
    bad_at: int | None = None
    """the byte at which the header or a frame begins that is not whole"""
    commits_behind: int = 0
    """whole commits of the same round behind that place; and the one there, if it says that it is one and others follow"""

    def trouble(self, may_be_torn: bool) -> str:
        """What is wrong with it, if anything is. One commit may be torn if the machine may have lost its power since."""
        if self.bad_at is None or self.commits_behind <= (1 if may_be_torn and self.bad_at else 0):
            return ""
        what = f"frame {self.frames + 1}, at byte {self.bad_at}, fails its" if self.bad_at else "its header fails the"
        return (
            f"{what} checksum, but commits follow ({self.commits_behind} in all): what was answered would be lost where SQLite "
            "cuts it"
        )


def judge(data: bytes, page_bytes: int) -> WriteAhead:
    """Judge the bytes of a log. Its own header says how large pages are; if that is damaged, they have this size."""
    if len(data) < _HEADER.size:
        return WriteAhead(0, 0)
    magic, version, own_page_bytes, _, *salts, sum0, sum1 = _HEADER.unpack_from(data)
    is_big = magic == _MAGIC_BIG
    is_whole = (
        magic in (_MAGIC_LITTLE, _MAGIC_BIG)
        and version == _VERSION
        and own_page_bytes in PAGE_BYTES
        and _sums(data[: _HEADER.size - 8], 0, 0, is_big) == (sum0, sum1)
    )
    step = _FRAME.size + (own_page_bytes if is_whole else page_bytes)
    starts = range(_HEADER.size, len(data) - step + 1, step)
    if not starts:
        return WriteAhead(0, 0)
    if not is_whole:
        salts = _salts(data, starts[0])
        behind = max(_commits_behind(data, starts, salts, (sum0, sum1), is_big) for is_big in (False, True))
        return WriteAhead(0, 0, 0, behind)
    commits = 0
    for number, start in enumerate(starts):
        _, size, _, _, claimed0, claimed1 = _FRAME.unpack_from(data, start)
        is_of_round = _salts(data, start) == salts
        if not is_of_round and not any(_salts(data, later) == salts for later in starts[number:]):
            return WriteAhead(number, commits)  # from here on it is left from an earlier round
        sum0, sum1 = _frame_sums(data, start, step, sum0, sum1, is_big)
        if not is_of_round or (sum0, sum1) != (claimed0, claimed1):
            behind = _commits_behind(data, starts[number + 1 :], salts, (claimed0, claimed1), is_big)
            is_commit = bool(is_of_round and size and behind)
            return WriteAhead(number, commits, start, behind + is_commit)
        commits += bool(size)
    return WriteAhead(len(starts), commits)


def mended(data: bytes, page_bytes: int) -> bytes:
    """The same log up to its last commit, with checksums that fit what is there: what is wrong in it is for others to find."""
    magic, _, own_page_bytes, round_number, *salts, _, _ = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\0"))
    if own_page_bytes not in PAGE_BYTES:
        own_page_bytes = page_bytes
    step = _FRAME.size + own_page_bytes
    starts = range(_HEADER.size, len(data) - step + 1, step)
    found = Counter(tuple(_salts(data, start)) for start in starts)
    if found and tuple(salts) not in found:
        salts = list(found.most_common(1)[0][0])
    is_big = magic == _MAGIC_BIG
    head = _HEADER.pack(_MAGIC_BIG if is_big else _MAGIC_LITTLE, _VERSION, own_page_bytes, round_number, *salts, 0, 0)[
        :-8
    ]
    sums = _sums(head, 0, 0, is_big)
    log, end = [head, _SUMS.pack(*sums)], 1
    last = max((at for at, start in enumerate(starts) if _salts(data, start) == salts), default=-1)
    for start in starts[: last + 1]:
        frame = bytearray(data[start : start + step])
        frame[8:16] = _SUMS.pack(*salts)
        sums = _frame_sums(bytes(frame), 0, step, *sums, is_big)
        frame[16:24] = _SUMS.pack(*sums)
        log.append(bytes(frame))
        if any(frame[4:8]):  # a commit
            end = len(log)
    return b"".join(log[: max(end, 2)])


def _salts(data: bytes, start: int) -> list[int]:
    return list(_FRAME.unpack_from(data, start)[2:4])


def _commits_behind(data: bytes, starts: range, salts: list[int], claimed: tuple[int, int], is_big: bool) -> int:
    """How many of these frames are whole, and make a commit. `claimed` are the sums that the frame before them has."""
    commits = 0
    for start in starts:
        page, size, _, _, *sums = _FRAME.unpack_from(data, start)
        if page and size and _salts(data, start) == salts:
            commits += _frame_sums(data, start, starts.step, *claimed, is_big) == tuple(sums)
        claimed = (sums[0], sums[1])
    return commits


def _frame_sums(data: bytes, start: int, step: int, sum0: int, sum1: int, is_big: bool) -> tuple[int, int]:
    sum0, sum1 = _sums(data[start : start + 8], sum0, sum1, is_big)
    return _sums(data[start + _FRAME.size : start + step], sum0, sum1, is_big)


def _sums(data: bytes, sum0: int, sum1: int, is_big: bool) -> tuple[int, int]:
    """SQLite's checksum: two sums over pairs of words, each of which goes into the other."""
    words = array("I", data)
    if is_big != (sys.byteorder == "big"):
        words.byteswap()
    pairs = iter(words)
    for one, other in zip(pairs, pairs):  # noqa: B905 (there is an even number of them)
        sum0 = (sum0 + one + sum1) & _WORD
        sum1 = (sum1 + other + sum0) & _WORD
    return sum0, sum1
