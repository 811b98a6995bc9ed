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
from queue import SimpleQueue

import attrs

from ordered_pubsub.client.waiting import tell


@attrs.define(eq=False)
class Output:
    """Where lines go."""

    _queue: SimpleQueue[tuple[bytes, asyncio.Future[None]]] | None = None

    async def write(self, text: str) -> None:
        """Write; return when it is written. Cancelled, it may be, in part. Raises `BrokenPipeError` if nobody will read it."""
        if not text:
            return
        try:
            descriptor = sys.stdout.fileno()
        except (io.UnsupportedOperation, AttributeError):  # it was replaced by something without a descriptor
            sys.stdout.write(text)
            return
        if self._queue is None:
            sys.stdout.flush()
            self._queue = SimpleQueue()
            threading.Thread(target=_write_all, args=(descriptor, self._queue), name="output", daemon=True).start()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"), future))
        await future


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
        tell(future, error)
