"""What is in a store's tables, and whether it is what was written there.

    about      what the store is: its format, its stage, its own id, and who has it open
    snapshot   a stage's state, in pieces, after the commit of which it is; the newest that is whole counts
    batch      the commits since then, one row of journal records each, numbered without holes
    topic, events, stamps, fulls, pending      the log (`shelf`)
    number     the last numbers of topics that rest

A snapshot is written little by little, and what was before it goes little by little (`store`): so there may be commits before
the newest whole one, an older one, and some pieces of a newer one. All of these are as if they were not there.

What is read here is what is good: up to the first row that is missing, or is not what its checksum says.
"""

from __future__ import annotations

import sqlite3
import struct
from zlib import crc32

import attrs

from ordered_pubsub.core.stage.journal import split_records
from ordered_pubsub.server.store import shelf
from ordered_pubsub.server.store.shelf import PRIME

FORMAT, EARLIER_FORMATS = "3", ("1", "2")
TABLES = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE batch (number INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, records BLOB NOT NULL)",
    "CREATE TABLE snapshot (key INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, checksum INTEGER NOT NULL, state BLOB NOT NULL)",
    *shelf.TABLES,
)
CHECK = "check"
"""The key of the checksum over everything else that is in `about`."""
SHIFT = 20
"""A piece's key is its commit's number, shifted, plus its place."""
PIECES_MAX = 1 << SHIFT
NUMBER_MAX = 1 << 62 - SHIFT
_PIECE = struct.Struct(">QQ")


@attrs.frozen
class StoredJournal:
    """The journal that a store holds, as far as it is good."""

    snapshot: bytes | None
    records: list[bytes]
    commits: int
    """the number of the last commit that is good"""
    trouble: str = ""
    """what is wrong behind it"""
    covered: int = 0
    """the number of the commit of which the snapshot is"""


def batch_sum(number: int, records: bytes) -> int:
    """The checksum of a commit's row."""
    return crc32(records, number % PRIME)


def piece_key(number: int, piece: int) -> int:
    """The key of a piece of the snapshot that is of a commit."""
    return number << SHIFT | piece


def piece_sum(key: int, pieces: int, state: bytes) -> int:
    """The checksum of a piece of a snapshot."""
    return crc32(state, crc32(_PIECE.pack(key, pieces)))


def read_journal(connection: sqlite3.Connection) -> StoredJournal:
    """Read the snapshot and the rows since then, up to the first that is not as it must be."""
    pieces, unfinished = _find_snapshot(connection)
    states: list[bytes] = []
    covered = 0
    for key in pieces:
        total, checksum, state = connection.execute(
            "SELECT pieces, checksum, state FROM snapshot WHERE key = ?", (key,)
        ).fetchone()
        if type(state) is not bytes or piece_sum(key, total, state) != checksum:
            return StoredJournal(None, [], 0, f"piece {len(states)} of the snapshot is missing, or fails its checksum")
        states.append(state)
        covered = key >> SHIFT
    snapshot = b"".join(states) if pieces else None
    records: list[bytes] = []
    commits = covered
    rows = connection.execute(
        "SELECT number, checksum, records FROM batch WHERE number > ? ORDER BY number", (covered,)
    )
    for number, checksum, data in rows:
        if number != commits + 1:
            missing = unfinished if commits == covered and unfinished else f"commit {commits + 1} is missing"
            return StoredJournal(snapshot, records, commits, missing, covered)
        if not (_are_counts(number) and type(data) is bytes and batch_sum(number, data) == checksum):
            return StoredJournal(snapshot, records, commits, f"commit {number} fails its checksum", covered)
        records += split_records(data)
        commits = number
    trouble = "" if commits else unfinished
    return StoredJournal(snapshot, records, commits, trouble, covered)


def _find_snapshot(connection: sqlite3.Connection) -> tuple[list[int], str]:
    """The keys of the newest snapshot that has all its pieces, and what newer ones, or others if there is none, lack."""
    found: dict[int, dict[int, int]] = {}
    for key, pieces in connection.execute("SELECT key, pieces FROM snapshot ORDER BY key"):
        if _are_counts(key >> SHIFT, pieces):
            found.setdefault(key >> SHIFT, {})[key] = pieces
    lacks = ""
    for number, pieces in reversed(found.items()):
        total = next(iter(pieces.values()))
        keys = [piece_key(number, place) for place in range(min(total, PIECES_MAX))]
        if total == len(pieces) and all(pieces.get(key) == total for key in keys):
            return keys, lacks
        place = next((place for place, key in enumerate(keys) if key not in pieces), 0)
        lacks = lacks or f"piece {place} of the snapshot is missing, or fails its checksum"
    return [], lacks


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
    for last in ("SELECT max(number) FROM batch", f"SELECT max(key) >> {SHIFT} FROM snapshot"):
        (number,) = connection.execute(last).fetchone()
        if type(number) is int:
            return number
    return 0


def about_sum(about: dict[str, str]) -> str:
    """The checksum of what a store says of itself."""
    said = sorted((key, value) for key, value in about.items() if key != CHECK)
    return str(crc32(repr(said).encode()))
