"""For tests of the blocking client: the same as `clients`, for threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ordered_pubsub
from helpers.clients import PATIENCE_S
from ordered_pubsub import sync
from ordered_pubsub.adapter import Frame, FramesHandler, StateHandler
from ordered_pubsub_adapters.memory import MemoryAdapter


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ordered-pubsub")]


def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def take(subscription: sync.Subscription, count: int) -> list[ordered_pubsub.Event]:
    """The next events."""
    events = []
    for _ in range(count):
        event = subscription.next(PATIENCE_S)
        assert event is not None
        events.append(event)
    return events


class Beside(threading.Thread):
    """Does something in another thread; `outcome` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def outcome(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


class GatedAdapter(MemoryAdapter):
    """A `memory://` adapter that publishes nothing before its gate is opened."""

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self._gate = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await super().open(on_frames, on_state)

    async def publish(self, frames: Sequence[Frame]) -> None:
        await self._gate.wait()
        await super().publish(frames)

    def open_gate(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)
