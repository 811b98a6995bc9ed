"""Handlers (`notify=`, `on_bad_event=`) of blocking subscriptions, which may block and so have threads of their own.

The loop gives such a thread one event at a time and awaits that the handler has returned, so what is true of handlers in the
asynchronous face is true here. A handler runs in the context of the subscription whose event it is given: when it closes that
one itself, nobody waits for it. The thread ends when nothing has come for a while, and begins again when something does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import isawaitable, iscoroutinefunction
from queue import Empty, SimpleQueue
from typing import Any

import attrs

from ordered_pubsub.client.event import Event
from ordered_pubsub.client.waiting import tell
from ordered_pubsub.errors import UsageError

IDLE_S = 1.0

Handler = Callable[[Event], object]
"""What `notify=` takes: a plain function."""

_Call = tuple[Context, Event, "asyncio.Future[None]"]


@attrs.define(eq=False)
class HandlerThread:
    """A handler, and the thread that it runs in when there is something to do."""

    handler: Handler
    name: str
    _calls: SimpleQueue[_Call | None] = attrs.field(factory=SimpleQueue)
    _gate: threading.Lock = attrs.field(factory=threading.Lock)
    _is_running: bool = False

    async def __call__(self, event: Event) -> None:
        """Have an event handled. Cancelled, the handler goes on by itself."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._gate:
            self._calls.put((copy_context(), event, future))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name=self.name, daemon=True).start()
        await future

    def end(self) -> None:
        """Let the thread end now."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            context, event, future = call
            tell(future, context.run(self._handle, event))

    def _next(self) -> _Call | None:
        call = None
        with suppress(Empty):
            call = self._calls.get(timeout=IDLE_S)
        with self._gate:
            while call is None and not self._calls.empty():
                call = self._calls.get_nowait()
            self._is_running = call is not None
        return call

    def _handle(self, event: Event) -> Exception | None:
        try:
            result = self.handler(event)
        except BaseException as error:
            # A future cannot hold a StopIteration, and a SystemExit would end the loop that all clients share.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return error
            return RuntimeError(f"the handler raised {type(error).__name__}: {error}")
        if isawaitable(result):
            return UsageError(f"{self.handler!r} returned something to be awaited: {_PLAIN}")
        return None


_PLAIN = "handlers of ordered_pubsub.sync are plain functions, async ones are for ordered_pubsub.connect()"


def check_plain(key: str, handler: Any) -> None:
    """Raise if a handler is async."""
    if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004  (not to call it)
        raise UsageError(f"{key}={handler!r} does not fit: {_PLAIN}")
