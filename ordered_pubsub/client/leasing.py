"""What nobody keeps: whether it may still be handed to the ENS, and what of it has become void (`core.lease`).

The core decides; this is the shell around it. Each batch on a topic without a log is announced here with its numbers. It is
used at once as long as the lease holds, else when its owner has said what has become of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.authenticity import TAG_BYTES, pieces_of
from ordered_pubsub.core.lease import Lease
from ordered_pubsub.core.messages import Handed, Leased, Publication, Span
from ordered_pubsub.core.ranges import Range, Ranges
from ordered_pubsub.core.session import Outcome
from ordered_pubsub.supervision import Supervisor

Batch = tuple[Publication, list[Any]]


class _Held(NamedTuple):
    """By which request a batch has its numbers, and when that was sent, or when it was asked since what has become of it."""

    sequence: int
    asked_at: float


@attrs.define(eq=False)
class Leasing:
    """The batches of one client of which nobody keeps the events."""

    lease: Lease
    say: Callable[[Handed], None]
    owner: Callable[[str], int]
    supervisor: Supervisor
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _held: dict[int, _Held] = attrs.field(factory=dict)
    """by the identity of the lists of events, which live as long"""
    _asked: dict[Span, asyncio.Future[tuple[float, list[Span]]]] = attrs.field(factory=dict)
    _timer: asyncio.TimerHandle | None = None

    def numbered(self, batches: list[Batch], outcome: Outcome) -> None:
        """Some batches have their numbers."""
        held, now = _Held(outcome.sequence, outcome.asked_at), self._loop.time()
        for part, items in batches:
            self._held[id(items)] = held
            self.lease.numbered(self.owner(part.topic), outcome.sequence, now)
        self._plan()

    def holds(self, part: Publication, items: list[Any]) -> bool:
        """Whether a batch may be used without asking."""
        held = self._held.get(id(items))
        return held is None or self.lease.holds(self.owner(part.topic), held.asked_at, self._loop.time())

    def holds_all(self, batches: list[Batch]) -> bool:
        """Whether some batches on one topic may be used without asking: then the oldest of them may."""
        if not self._held:
            return True
        asked = [held.asked_at for _, items in batches if (held := self._held.get(id(items))) is not None]
        return not asked or self.lease.holds(self.owner(batches[0][0].topic), min(asked), self._loop.time())

    async def voids_of(self, part: Publication, items: list[Any]) -> list[Range]:
        """Ask its owner which numbers of a batch are void. Cancelled, nothing changes."""
        span = Span(part.topic, part.first, part.last)
        future = self._asked.get(span)
        if future is None:
            future = self._asked[span] = self._loop.create_future()
            self.lease.ask(self.owner(part.topic), span, self._loop.time())
            self._plan()
        asked_at, voids = await asyncio.shield(future)
        self._held[id(items)] = _Held(self._held[id(items)].sequence, asked_at)
        return [(max(void.first, part.first), min(void.last, part.last)) for void in voids]

    def without(self, part: Publication, items: list[Any], voids: list[Range]) -> list[Batch]:
        """What is left of a batch, in pieces, which are used instead of it."""
        held = self._held.pop(id(items))
        for item in items:
            item.written = b""  # what was written together may not be together any more
        pieces: list[Batch] = []
        for first, last in Ranges(voids).missing(part.first, part.last):
            begins = first == part.first
            piece = replace(
                part,
                first=first,
                count=last - first + 1,
                entries=part.entries if part.full or begins else {},
                marks=part.marks if begins else [],
                **_tagged(part, first, last),
            )
            pieces.append((piece, items[first - part.first : last - part.first + 1]))
            self._held[id(pieces[-1][1])] = held
            self.lease.numbered(self.owner(part.topic), held.sequence, self._loop.time())
        self.lease.handed(held.sequence)
        return pieces

    def handed(self, items: list[Any]) -> None:
        """A batch is at the ENS, or void."""
        held = self._held.pop(id(items), None)
        if held is not None:
            self.lease.handed(held.sequence)

    def leased(self, leased: Leased) -> None:
        """An owner has answered."""
        for span, answer in self.lease.leased(leased, self._loop.time()).items():
            future = self._asked.pop(span, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def close(self) -> None:
        """Say once more what is at the ENS."""
        if self._timer is not None:
            self._timer.cancel()
        last = self.lease.take_due(float("inf"))
        if last is not None:
            self.say(last)

    def _plan(self) -> None:
        due = self.lease.next_due
        if due is None or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.supervisor.at(due, self._time_has_come, "saying what is at the ENS")

    def _time_has_come(self) -> None:
        self._timer = None
        said = self.lease.take_due(self._loop.time())
        if said is not None:
            self.say(said)
        self._plan()


def _tagged(part: Publication, first: int, last: int) -> dict[str, Any]:
    """The tags of some numbers of a batch. What shares one is seen together or not at all, so none is cut in two."""
    number, pieces, tags = part.first, [], []
    for index, count in enumerate(pieces_of(part)):
        if first <= number and number + count - 1 <= last:
            pieces.append(count)
            tags.append(part.tags[index * TAG_BYTES : (index + 1) * TAG_BYTES])
        number += count
    if sum(pieces) != last - first + 1:  # then nobody can tell that it is genuine
        return {"pieces": (last - first + 1,), "tags": b""}
    return {"pieces": tuple(pieces) if part.pieces else part.pieces, "tags": b"".join(tags)}
