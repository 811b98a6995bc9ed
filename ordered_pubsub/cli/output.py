"""Standard output for commands that must go on while nobody reads it.

A pager that waits for a key takes nothing from its pipe for as long as it likes. So a thread writes, straight to the file
descriptor, and the event loop goes on answering for the client meanwhile; whoever writes awaits it, so nothing piles up. The
thread is a daemon that holds no lock of `sys.stdout`: nobody has to wait for it at the end.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue

import attrs


@attrs.define(eq=False)
class Output:
    """Where lines go."""

    _queue: SimpleQueue[tuple[bytes, asyncio.Future[None]]] | None = None

    async def write(self, text: str) -> None:
        """Write; return when it is written. Cancelled, it may be, in part. Raises `BrokenPipeError` if nobody will read it."""
        if not text:
            return
        descriptor = _descriptor()
        if descriptor is None:
            sys.stdout.write(text)
            return
        if self._queue is None:
            sys.stdout.flush()
            self._queue = SimpleQueue()
            threading.Thread(target=_write_all, args=(descriptor, self._queue), name="output", daemon=True).start()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"), future))
        await future


def _descriptor() -> int | None:
    """That of standard output, unless it was replaced by something without one."""
    try:
        return sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def _write_all(descriptor: int, queue: SimpleQueue[tuple[bytes, asyncio.Future[None]]]) -> None:
    while True:
        data, future = queue.get()
        error = None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as trouble:
            error = trouble
        with suppress(RuntimeError):  # the loop is closed, and nobody waits for this
            future.get_loop().call_soon_threadsafe(_tell, future, error)


def _tell(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
