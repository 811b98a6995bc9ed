"""The publisher's side of numbers whose events nobody keeps: it may use them as long as its lease holds.

The owner of a topic takes a number for void when it has not heard of its publisher for `lease_s` (`core.liveness.voids`). So a
publisher counts from when it asked for a number, or from when it sent the last word that the owner has answered: for half of that
time it may hand the event to the ENS. Later it asks first, and what is void it does not hand over; a word that is answered after
such a gap renews nothing of what came before it. It says which publications are at the ENS until the owners have answered.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import attrs

from ordered_pubsub.core.messages import LeaseRenewal, LeaseReply, TopicRange

LEASE_S = 30.0
SAY_S = 1.0
"""So often it says what is at the ENS, as long as that is not known."""
ASKS_MAX = 1_000
"""So many stretches of numbers are asked for at once."""
SAID_MAX = 64
"""So many of the last words may still be answered."""


@attrs.frozen
class _Renewed:
    """A lease that has held without a gap."""

    since: float
    """when the first answer came: what was asked for earlier may have lapsed before"""
    at: float
    """when the last of them was"""


@attrs.define(eq=False)
class Renewals:
    """Leases at several stages, renewed by words that are said to all of them and that each of them answers."""

    holds_s: float
    """for so long after a word that was answered"""
    _held_s: float = float("inf")
    """what was said before `_changed_at` holds no longer than this, for its stage may have counted by it"""
    _changed_at: float = float("-inf")
    _serial: int = 0
    _said: OrderedDict[int, float] = attrs.field(factory=OrderedDict)
    _renewed: dict[int, _Renewed] = attrs.field(factory=dict)

    def change(self, holds_s: float, now: float) -> None:
        """From now on they hold for so long; what was said before does not become longer by it, but shorter."""
        if holds_s != self.holds_s:
            self._held_s, self._changed_at = min(self._held_s, self.holds_s), now
            self.holds_s = holds_s

    def said(self, now: float) -> int:
        """Something is said; return its serial."""
        self._serial += 1
        self._said[self._serial] = now
        if len(self._said) > SAID_MAX:
            self._said.popitem(last=False)
        return self._serial

    def answered(self, rank: int, serial: int, now: float) -> float | None:
        """A stage has answered; return when that was said, if that is known. After a gap a lease begins anew."""
        at = self._said.get(serial)
        if at is not None:
            before = self._renewed.get(rank)
            if before is None or now >= self._end_of(before.at):
                self._renewed[rank] = _Renewed(now, at)
            elif at > before.at:
                self._renewed[rank] = _Renewed(before.since, at)
        return at

    def until(self, rank: int, since: float) -> float:
        """How long the lease of something holds that was asked for then."""
        renewed = self._renewed.get(rank)
        if renewed is not None and self._end_of(since) > renewed.since:
            since = max(since, renewed.at)
        return self._end_of(since)

    def _end_of(self, at: float) -> float:
        """How long what was said then holds."""
        return at + (min(self._held_s, self.holds_s) if at < self._changed_at else self.holds_s)


@attrs.define(eq=False)
class Lease:
    """What one session has published of what nobody keeps."""

    session: str
    lease_s: float = LEASE_S
    _renewals: Renewals = attrs.field(init=False)
    _last: int = 0
    """the highest sequence of a publication that has its numbers"""
    _open: dict[int, int] = attrs.field(factory=dict)
    """sequence → how many batches of it are not at the ENS"""
    _ranks: dict[int, int] = attrs.field(factory=dict)
    """owner → the last sequence with a publication there, as long as the owner does not know that it is at the ENS"""
    _asks: dict[TopicRange, int] = attrs.field(factory=dict)
    """numbers that cannot be used before their owner has answered"""
    _sent: OrderedDict[int, LeaseRenewal] = attrs.field(factory=OrderedDict)
    _due_at: float | None = None

    def __attrs_post_init__(self) -> None:
        self._renewals = Renewals(self.lease_s / 2)

    def change_time(self, lease_s: float, now: float) -> None:
        """A stage says how long a lease is."""
        self.lease_s = lease_s
        self._renewals.change(lease_s / 2, now)

    def numbered(self, rank: int, sequence: int, now: float) -> None:
        """A batch has its numbers, from this owner."""
        self._last = max(sequence, self._last)
        self._open[sequence] = self._open.get(sequence, 0) + 1
        self._ranks[rank] = max(sequence, self._ranks.get(rank, 0))
        if self._due_at is None:
            self._due_at = now + SAY_S

    def handed(self, sequence: int) -> None:
        """A batch is at the ENS, or void."""
        left = self._open.get(sequence, 0) - 1
        if left > 0:
            self._open[sequence] = left
        else:
            self._open.pop(sequence, None)

    def holds(self, rank: int, asked_at: float, now: float) -> bool:
        """Whether numbers that were asked for then may be used without asking what has become of them."""
        return now < self._renewals.until(rank, asked_at)

    def ask(self, rank: int, span: TopicRange, now: float) -> None:
        """Ask what has become of some numbers; `leased` has the answer."""
        self._asks[span] = rank
        self._due_at = now

    def take_due(self, now: float) -> LeaseRenewal | None:
        """What to say now, if anything."""
        if self._due_at is None or self._due_at > now:
            return None
        asks = dict(islice(self._asks.items(), ASKS_MAX))
        ranks = list({**self._ranks, **dict.fromkeys(asks.values())})
        self._due_at = now + SAY_S if ranks else None
        if not ranks:
            return None
        serial = self._renewals.said(now)
        self._sent[serial] = handed = LeaseRenewal(self.session, serial, self._at_ens, ranks, list(asks))
        if len(self._sent) > SAID_MAX:
            self._sent.popitem(last=False)
        return handed

    @property
    def _at_ens(self) -> int:
        """Everything up to this sequence is at the ENS."""
        return min(self._open) - 1 if self._open else self._last

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called; None if there is nothing to say."""
        return self._due_at

    def leased(self, leased: LeaseReply, now: float) -> dict[TopicRange, tuple[float, list[TopicRange]]]:
        """An owner has answered: for what it was asked for, when that was, and what of it is void."""
        rank = leased.rank
        handed, said_at = self._sent.get(leased.serial), self._renewals.answered(rank, leased.serial, now)
        if handed is None or said_at is None:
            return {}
        if self._ranks.get(rank, handed.sequence + 1) <= handed.sequence:
            del self._ranks[rank]
        answered = [span for span in handed.asks if self._asks.get(span) == rank]
        for span in answered:
            del self._asks[span]
        return {span: (said_at, [void for void in leased.voids if _overlap(void, span)]) for span in answered}


def _overlap(one: TopicRange, two: TopicRange) -> bool:
    return one.topic == two.topic and one.first <= two.last and two.first <= one.last
