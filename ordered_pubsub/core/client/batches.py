"""The batches of one client of which nobody keeps the events: which of them may be handed to the ENS, and what is left of one.

Each batch on a topic without a log is announced here with its numbers. What becomes of it then:

| it is | as long as | then |
| --- | --- | --- |
| good | its lease holds (`core.liveness.lease`) | it is handed over, and that is said to its owner |
| doubtful | its owner has not said what of it is void | good again, without that; or nothing is left of it |
| at the ENS | its client lives | forgotten here |

A batch is known by its list of events, which lives as long as it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.client.session import Outcome
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.messages import LeaseRenewal, LeaseReply, Publication, TopicRange
from ordered_pubsub.core.ranges import Range, Ranges
from ordered_pubsub.core.trust.authenticity import TAG_BYTES, pieces_of

Batch = tuple[Publication, list[Any]]
"""A publication that has its numbers, and its events."""


class _Held(NamedTuple):
    """By which request a batch has its numbers, and when that was sent, or when it was asked since what has become of it."""

    sequence: int
    asked_at: float


@attrs.define(eq=False)
class UnkeptBatches:
    """Those of one session."""

    lease: Lease
    owner: Callable[[str], int]
    _held: dict[int, _Held] = attrs.field(factory=dict)
    """by the identity of the lists of events"""

    def numbered(self, batches: Sequence[Batch], outcome: Outcome, now: float) -> None:
        """Some batches have their numbers."""
        held = _Held(outcome.sequence, outcome.asked_at)
        for part, items in batches:
            self._held[id(items)] = held
            self.lease.numbered(self.owner(part.topic), outcome.sequence, now)

    def is_good(self, part: Publication, items: list[Any], now: float) -> bool:
        """Whether a batch may be handed over without asking."""
        held = self._held.get(id(items))
        return held is None or self.lease.holds(self.owner(part.topic), held.asked_at, now)

    def are_good(self, batches: Sequence[Batch], now: float) -> bool:
        """Whether some batches on one topic may be: then the oldest of them may."""
        if not self._held:
            return True
        asked = [held.asked_at for _, items in batches if (held := self._held.get(id(items))) is not None]
        return not asked or self.lease.holds(self.owner(batches[0][0].topic), min(asked), now)

    def ask(self, part: Publication, now: float) -> TopicRange:
        """Ask the owner of a batch what of it is void; `leased` has the answer under what this returns."""
        span = TopicRange(part.topic, part.first, part.last)
        self.lease.ask(self.owner(part.topic), span, now)
        return span

    def leased(self, leased: LeaseReply, now: float) -> dict[TopicRange, tuple[float, list[TopicRange]]]:
        """An owner has answered: for what it was asked for, when that was, and what of it is void."""
        return self.lease.leased(leased, now)

    def settled(
        self, part: Publication, items: list[Any], asked_at: float, voids: Sequence[TopicRange], now: float
    ) -> tuple[list[Range], list[Batch]]:
        """It is known what of a batch is void: that, and what is left of it, in pieces that are handed over instead of it.

        Where nothing is void it is left as it is.
        """
        held = self._held[id(items)] = _Held(self._held[id(items)].sequence, asked_at)
        ranges = [(max(void.first, part.first), min(void.last, part.last)) for void in voids]
        if not ranges:
            return [], [(part, items)]
        del self._held[id(items)]
        pieces: list[Batch] = []
        for first, last in Ranges(ranges).missing(part.first, part.last):
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
            self.lease.numbered(self.owner(part.topic), held.sequence, now)
        self.lease.handed(held.sequence)
        return ranges, pieces

    def handed(self, items: list[Any]) -> None:
        """A batch is at the ENS."""
        held = self._held.pop(id(items), None)
        if held is not None:
            self.lease.handed(held.sequence)

    def take_due(self, now: float) -> LeaseRenewal | None:
        """What to say of them now, if anything."""
        return self.lease.take_due(now)

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called; None if there is nothing to say."""
        return self.lease.next_due


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
