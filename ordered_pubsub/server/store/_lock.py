"""One process on one store, whatever the path: the lock is on the file itself, not on its name.

A symbolic link, a hard link or another mount leads to the same file, so it meets the same lock. It is not one of SQLite's: those
go when any descriptor of the file is closed in the same process, and `locking_mode = EXCLUSIVE` would shut out the stage's own
connection for readers, since a write-ahead log without shared memory has room for one connection only.

On Linux it is `flock`, which has nothing to do with SQLite's record locks. Elsewhere `flock` and record locks meet in one list
and would hold each other up, so there it is a record lock, on a byte far behind those that SQLite uses; it goes when SQLite
closes a descriptor, so `renew` takes it again. Within the process a list says which files are held: a second attempt does not
even open the file, for closing it would let go of record locks.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path

import attrs

HAS_OWN_FLOCK = sys.platform == "linux"
_BYTE = (1 << 62) - 1
_LOCKED = "database is locked; probably another stage runs on it: stop that one, or give this one another store"

_held: set[tuple[int, int]] = set()
"""device and inode of the files that this process has locked"""
_guard = threading.Lock()


@attrs.define(eq=False)
class FileLock:
    """A file that nobody else has."""

    _file: int
    _identity: tuple[int, int]

    @classmethod
    def take(cls, path: Path) -> FileLock:
        """Lock a file that is there, or raise an `OSError`."""
        with _guard:
            found = path.stat()
            identity = (found.st_dev, found.st_ino)
            if identity in _held:
                raise OSError(_LOCKED)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            lock = cls(file, identity)
            try:
                lock.renew()
            except OSError:
                os.close(file)
                raise
            _held.add(identity)
        return lock

    def renew(self) -> None:
        """Lock it once more, since a descriptor of it was closed."""
        try:
            if HAS_OWN_FLOCK:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _BYTE)
        except OSError:
            raise OSError(_LOCKED) from None

    def release(self) -> None:
        """Let it go; when nobody of this process has the file open any more."""
        with _guard:
            _held.discard(self._identity)
            os.close(self._file)
