"""Lines of standard input as they come, without holding up the event loop.

A thread reads the file descriptor: there may be a terminal, a pipe or a file, and only a thread can wait for all three. It holds
no lock of `sys.stdin`, so nobody has to wait for it at the end. It reads ahead by `CHUNKS_MAX` chunks, no further, so a pipe
that is faster than the broker waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures

import attrs

from ordered_pubsub.errors import UsageError

CHUNK_BYTES = 1 << 16
CHUNKS_MAX = 4


@attrs.frozen
class TextLine:
    """One line, without its end."""

    number: int
    """1, 2, 3, ..."""
    data: bytes
    size: int
    """how many bytes it has; `data` holds no more than the first ones if it is too long"""

    @property
    def is_whole(self) -> bool:
        """Whether `data` is all of it."""
        return len(self.data) == self.size


@attrs.define(eq=False)
class LineSplitter:
    """Makes lines of chunks; keeps no more of a line than `bytes_max`."""

    bytes_max: int
    _number: int = 0
    _kept: bytearray = attrs.field(factory=bytearray)
    _size: int = 0

    def feed(self, chunk: bytes) -> Iterator[TextLine]:
        """The lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield self._line()
        self._keep(rest)

    def end(self) -> Iterator[TextLine]:
        """The last line, if it has no end."""
        if self._size:
            yield self._line()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if len(self._kept) < self.bytes_max:
            self._kept += part[: self.bytes_max - len(self._kept)]

    def _line(self) -> TextLine:
        self._number += 1
        line = TextLine(self._number, bytes(self._kept), self._size)
        self._kept, self._size = bytearray(), 0
        if line.data.endswith(b"\r") and line.is_whole:
            line = attrs.evolve(line, data=line.data[:-1], size=line.size - 1)
        return line


async def read_lines(bytes_max: int) -> AsyncIterator[list[TextLine]]:
    """The lines of standard input, as many at once as there are. Raises `UsageError` if it cannot be read."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("standard input is closed: pipe lines into it, or give DATA")
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_MAX)
    reader = threading.Thread(
        target=_read, args=(sys.stdin.fileno(), chunks, asyncio.get_running_loop()), name="input", daemon=True
    )
    reader.start()
    splitter = LineSplitter(bytes_max)
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise UsageError(f"standard input cannot be read: {chunk.strerror}")
        yield list(splitter.feed(chunk))
    yield list(splitter.end())


def _read(descriptor: int, chunks: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    while True:
        chunk: bytes | OSError
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except OSError as error:
            chunk = error
        handing = chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(handing, loop).result()
        except (RuntimeError, futures.CancelledError):  # the loop is closed or about to be, and nobody wants more
            handing.close()
            return
        if not chunk or isinstance(chunk, OSError):
            return
