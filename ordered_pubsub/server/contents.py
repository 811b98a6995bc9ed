"""What is in a store's tables, and whether it is what was written there.

    about      what the store is: its format, its stage, its own id, and who has it open
    snapshot   a stage's state, in pieces, after the commit of which it is
    batch      the commits since then, one row of journal records each, numbered without holes
    topic, events, stamps, fulls, pending      the log (`shelf`)
    number     the last numbers of topics that rest

What is read here is what is good: up to the first row that is missing, or is not what its checksum says.
"""

from __future__ import annotations

import sqlite3
import struct
from zlib import crc32

import attrs

from ordered_pubsub.core.journal import split_records
from ordered_pubsub.server import shelf
from ordered_pubsub.server.shelf import PRIME

FORMAT = "2"
TABLES = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE batch (number INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, records BLOB NOT NULL)",
    "CREATE TABLE snapshot (piece INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, number INTEGER NOT NULL, "
    "checksum INTEGER NOT NULL, state BLOB NOT NULL)",
    *shelf.TABLES,
)
CHECK = "check"
"""The key of the checksum over everything else that is in `about`."""
NUMBER_MAX = 1 << 62
_PIECE = struct.Struct(">QQQ")


@attrs.frozen
class Found:
    """The journal that a store holds, as far as it is good."""

    snapshot: bytes | None
    records: list[bytes]
    commits: int
    """the number of the last commit that is good"""
    trouble: str = ""
    """what is wrong behind it"""


def batch_sum(number: int, records: bytes) -> int:
    """The checksum of a commit's row."""
    return crc32(records, number % PRIME)


def piece_sum(piece: int, pieces: int, number: int, state: bytes) -> int:
    """The checksum of a piece of a snapshot, which is of a commit."""
    return crc32(state, crc32(_PIECE.pack(piece, pieces, number)))


def read_journal(connection: sqlite3.Connection) -> Found:
    """Read the snapshot and the rows since then, up to the first that is not as it must be."""
    snapshot: bytes | None = None
    commits = 0
    pieces = connection.execute("SELECT piece, pieces, number, checksum, state FROM snapshot ORDER BY piece").fetchall()
    for at, (piece, total, number, checksum, state) in enumerate(pieces):
        is_good = (
            _are_counts(piece, total, number)
            and (piece, total, number) == (at, pieces[0][1], pieces[0][2])
            and type(state) is bytes
            and piece_sum(at, total, number, state) == checksum
        )
        if not is_good:
            return Found(None, [], 0, f"piece {at} of the snapshot is missing, or fails its checksum")
        commits = number
    if pieces and pieces[0][1] != len(pieces):
        return Found(None, [], 0, f"piece {len(pieces)} of the snapshot is missing, or fails its checksum")
    if pieces:
        snapshot = b"".join(state for *_, state in pieces)
    records: list[bytes] = []
    for number, checksum, data in connection.execute("SELECT number, checksum, records FROM batch ORDER BY number"):
        if number != commits + 1:
            return Found(snapshot, records, commits, f"commit {commits + 1} is missing")
        if not (_are_counts(number) and type(data) is bytes and batch_sum(number, data) == checksum):
            return Found(snapshot, records, commits, f"commit {number} fails its checksum")
        records += split_records(data)
        commits = number
    return Found(snapshot, records, commits)


def _are_counts(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < NUMBER_MAX for value in values)


def read_about(connection: sqlite3.Connection) -> dict[str, str]:
    """What a store says of itself."""
    said = connection.execute("SELECT key, value FROM about ORDER BY key")
    return {str(key): str(value) for key, value in said}  # what is damaged may be anything


def write_about(connection: sqlite3.Connection, about: dict[str, str]) -> None:
    """Have it say this."""
    about = {**about, CHECK: about_sum(about)}
    connection.execute("DELETE FROM about")
    connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())


def last_commit(connection: sqlite3.Connection) -> int:
    """The number of the last commit, without looking at anything before it."""
    for table in ("batch", "snapshot"):
        (number,) = connection.execute(f"SELECT max(number) FROM {table}").fetchone()
        if type(number) is int:
            return number
    return 0


def about_sum(about: dict[str, str]) -> str:
    """The checksum of what a store says of itself."""
    said = sorted((key, value) for key, value in about.items() if key != CHECK)
    return str(crc32(repr(said).encode()))
