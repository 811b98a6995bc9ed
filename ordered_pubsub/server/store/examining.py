"""What is looked at before a store is opened for writing, and in which order.

Nothing here changes a byte of it, nor lets SQLite do so: the write-ahead log is judged as the file that it is, and then the
store is read through a connection that may only read, which neither moves the log into the database nor removes it.

1. the database and its log as files: neither is gone while there is word of what was in them;
2. the log, frame by frame (`write_ahead`);
3. the tables, whether they are those of a store; `about`; the pages, if there are not too many of them;
4. the number of the last commit: it is not behind the mark.

The rows of the journal are checked when the stage reads them, those of the log when somebody reads them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import attrs

from ordered_pubsub.errors import JournalError, UnknownVersion
from ordered_pubsub.server.store._contents import (
    CHECK,
    EARLIER_FORMATS,
    FORMAT,
    TABLES,
    about_sum,
    last_commit,
    read_about,
)
from ordered_pubsub.server.store._write_ahead import PAGE_BYTES, judge
from ordered_pubsub.server.store.mark import HighWaterMark, mark_of
from ordered_pubsub.server.store.shelf import SQLITE_ERRORS, damaged, failed

CHECKED_BYTES_MAX = 256 * 1024 * 1024
"""Of a store up to this size all pages are checked at each start, which takes a tenth of a second. What is in them is checked
whenever it is read."""
FOUND_SHOWN_MAX = 3
_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100


@attrs.frozen
class Examined:
    """A store that a stage may start on, if its journal is whole."""

    about: dict[str, str]
    commits: int
    mark: HighWaterMark


def log_of(file: Path) -> Path:
    """Where SQLite has the write-ahead log of a database."""
    return file.with_name(file.name + "-wal")


def examine(file: Path, mark: HighWaterMark | None, boot: bytes) -> Examined | None:
    """Look at a store; None if nothing was ever in it. Raises what is wrong with it.

    `boot` tells this start of the machine from another: what the machine had written to before it lost its power may be torn.
    """
    has_history = mark is not None and mark.commits > 0
    may_be_torn = mark is None or not any(boot) or mark.boot != boot
    log = log_of(file)
    log_bytes = log.read_bytes() if log.exists() else None
    with file.open("rb") as opened:
        head = opened.read(_HEADER_BYTES)
    if not head:
        if has_history or log_bytes:
            word = f"its mark {mark_of(file)}" if has_history else f"its write-ahead log {log}"
            raise damaged(
                file,
                f"the database is gone or empty, but {word} is still here. To begin anew, remove {file.name}*, all of it",
            )
        return None
    if not head.startswith(_MAGIC) or len(head) < _HEADER_BYTES:
        raise damaged(file, "file is not a database")
    if log_bytes is not None:
        page_bytes = int.from_bytes(head[16:18], "big")
        trouble = judge(log_bytes, page_bytes if page_bytes in PAGE_BYTES else 65_536).trouble(may_be_torn)
        if trouble:
            raise damaged(file, f"its write-ahead log {log}: {trouble}")
    elif mark is not None and mark.is_open and may_be_torn:
        raise damaged(file, f"its stage was not stopped cleanly, and its write-ahead log {log} is not there")
    if not has_history and Path(f"{file}-journal").exists():
        return None  # ended while it was being made
    try:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)) as connection:
            return _look_inside(file, connection, mark, has_history)
    except SQLITE_ERRORS as error:
        raise failed(file, error) from error


def _look_inside(
    file: Path, connection: sqlite3.Connection, mark: HighWaterMark | None, has_history: bool
) -> Examined | None:
    tables = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
    if not tables and not has_history:
        return None
    if "about" in tables:
        _check_format(file, connection)
    elif tables and not has_history:
        raise JournalError(f"{file} is a database of something else: give the stage a file of its own as its `store`")
    if sorted(map(str, tables.values())) != sorted(TABLES):
        raise damaged(file, "its tables are not those of a store")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        raise damaged(file, "its header says that it has no write-ahead log")
    about = read_about(connection)
    if about.get(CHECK) != about_sum(about):
        raise damaged(file, "what it says of itself fails its checksum")
    if mark is None or mark.store.hex() != about["store"]:
        what = "is not there" if mark is None else "is that of another store"
        raise damaged(
            file,
            f"its mark {mark_of(file)}, which says how many commits it has had, {what}. A store is opened by the name under "
            "which it was made, and its mark is moved along with it",
        )
    pages, page_bytes = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    if pages * page_bytes <= CHECKED_BYTES_MAX:
        check_pages(file, connection)
    commits = last_commit(connection)
    if commits < mark.commits:
        raise damaged(
            file, f"it is behind its own mark: its last commit is number {commits}, and there were {mark.commits}"
        )
    return Examined({key: value for key, value in about.items() if key != CHECK}, commits, mark)


def _check_format(file: Path, connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT value FROM about WHERE key = 'format'").fetchone()
    if found is None or found[0] == FORMAT:
        return
    if found[0] in EARLIER_FORMATS:
        raise UnknownVersion(
            f"the store {file} has format {found[0]}, and this release reads {FORMAT}: it was written by an earlier one. Let "
            "subscribers come to the end with that release; then begin the whole system anew: remove the stores of all its "
            "stages, and restart all clients"
        )
    raise UnknownVersion(
        f"the store {file} has format {found[0]}, and this release reads {FORMAT}: it was written by a newer release; start the "
        "stage with that one"
    )


def check_pages(file: Path, connection: sqlite3.Connection) -> None:
    """Have SQLite look at all pages: whether each is where it belongs, and in order."""
    found = [str(line) for (line,) in connection.execute(f"PRAGMA quick_check({FOUND_SHOWN_MAX})")]
    if found != ["ok"]:
        raise damaged(file, "; ".join(" ".join(line.split()) for line in found))
