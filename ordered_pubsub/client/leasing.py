"""What nobody keeps: whether it may still be handed to the ENS, and what of it has become void.

`core.batches` decides; this is the shell around it, which waits for the answers of owners and says what is at the ENS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ordered_pubsub.core.batches import Batch, Batches
from ordered_pubsub.core.messages import Handed, Leased, Publication, Span
from ordered_pubsub.core.ranges import Range
from ordered_pubsub.core.session import Outcome
from ordered_pubsub.supervision import Supervisor


@attrs.define(eq=False)
class Leasing:
    """The batches of one client of which nobody keeps the events."""

    batches: Batches
    say: Callable[[Handed], None]
    supervisor: Supervisor
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _asked: dict[Span, asyncio.Future[tuple[float, list[Span]]]] = attrs.field(factory=dict)
    _timer: asyncio.TimerHandle | None = None

    def numbered(self, batches: Sequence[Batch], outcome: Outcome) -> None:
        """Some batches have their numbers."""
        self.batches.numbered(batches, outcome, self._loop.time())
        self._plan()

    def is_good(self, part: Publication, items: list[Any]) -> bool:
        """Whether a batch may be handed over without asking."""
        return self.batches.is_good(part, items, self._loop.time())

    def are_good(self, batches: Sequence[Batch]) -> bool:
        """Whether some batches on one topic may be."""
        return self.batches.are_good(batches, self._loop.time())

    async def settle(self, part: Publication, items: list[Any]) -> tuple[list[Range], list[Batch]]:
        """Ask its owner what of a batch is void; return that, and what is left of it. Cancelled, nothing changes."""
        span = Span(part.topic, part.first, part.last)
        future = self._asked.get(span)
        if future is None:
            future = self._loop.create_future()
            self._asked[self.batches.ask(part, self._loop.time())] = future
            self._plan()
        asked_at, voids = await asyncio.shield(future)
        void, left = self.batches.settled(part, items, asked_at, voids, self._loop.time())
        for item in items if void else ():
            item.written = b""  # what was written together may not be together any more
        return void, left

    def handed(self, items: list[Any]) -> None:
        """A batch is at the ENS."""
        self.batches.handed(items)

    def leased(self, leased: Leased) -> None:
        """An owner has answered."""
        for span, answer in self.batches.leased(leased, self._loop.time()).items():
            future = self._asked.pop(span, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def close(self) -> None:
        """Say once more what is at the ENS."""
        if self._timer is not None:
            self._timer.cancel()
        last = self.batches.take_due(float("inf"))
        if last is not None:
            self.say(last)

    def _plan(self) -> None:
        due = self.batches.next_due
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.supervisor.at(due, self._time_has_come, "saying what is at the ENS")

    def _time_has_come(self) -> None:
        self._timer = None
        said = self.batches.take_due(self._loop.time())
        if said is not None:
            self.say(said)
        self._plan()
