"""Did a task's input come whole? When what computes the rows fails, or Spark is killed, they simply end, as if that were all.

Who has to see all rows before the first one is published must know. Spark does not say it, but it leaves the connection to a
task's process open as long as all is well, and closes its side of it when the rows break off.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import attrs

_OPEN_FILES = Path("/dev/fd")


@attrs.frozen
class Input:
    """The connections of this process at the beginning of a task, before it makes its own: Spark's is among them."""

    files: tuple[int, ...]

    @classmethod
    def now(cls) -> Input:
        """Those that there are. One that has ended before is not Spark's, unless there is no other."""
        files = os.listdir(_OPEN_FILES) if _OPEN_FILES.exists() else []  # there is on Linux and macOS
        connected = [file for file in map(int, files) if _is_connected(file)]
        return cls(tuple(file for file in connected if not _has_ended(file)) or tuple(connected))

    @property
    def is_whole(self) -> bool:
        """Whether all of them are open still."""
        return not any(map(_has_ended, self.files))


def _duplicate(file: int) -> socket.socket | None:
    try:
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            return None
        return socket.socket(fileno=os.dup(file))
    except OSError:  # it was closed meanwhile
        return None


def _is_connected(file: int) -> bool:
    found = _duplicate(file)
    if found is None:
        return False
    with found:
        try:
            found.getpeername()
        except OSError:
            return False
        return True


def _has_ended(file: int) -> bool:
    """Whether the other side has said its last."""
    found = _duplicate(file)
    if found is None:
        return True
    with found:
        try:
            return not found.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
