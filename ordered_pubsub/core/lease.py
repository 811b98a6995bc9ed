"""The publisher's side of numbers whose events nobody keeps: it may use them as long as its lease holds.

The owner of a topic takes a number for void when it has not heard of its publisher for `LEASE_S` (`core.voids`). So a publisher
counts from when it asked for a number, or from when it sent the last word that the owner has answered: for half of that time it
may hand the event to the ENS. Later it asks first, and what is void it does not hand over; a word that is answered after such a
gap renews nothing of what came before it. It says which publications are at the ENS until the owners have answered.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import attrs

from ordered_pubsub.core.messages import Handed, Leased, Span

LEASE_S = 30.0
SAY_S = 1.0
"""So often it says what is at the ENS, as long as that is not known."""
ASKS_MAX = 1_000
"""So many stretches of numbers are asked for at once."""
SENT_MAX = 64
"""So many of the last words may still be answered."""


@attrs.frozen
class _Sent:
    at: float
    handed: Handed


@attrs.frozen
class _Renewed:
    """A lease that has held without a gap."""

    since: float
    """when the first of the words was sent that have renewed it"""
    at: float
    """when the last of them was"""


@attrs.define(eq=False)
class Lease:
    """What one session has published of what nobody keeps."""

    session: str
    lease_s: float = LEASE_S
    _serial: int = 0
    _last: int = 0
    """the highest sequence of a publication that has its numbers"""
    _open: dict[int, int] = attrs.field(factory=dict)
    """sequence → how many batches of it are not at the ENS"""
    _ranks: dict[int, int] = attrs.field(factory=dict)
    """owner → the last sequence with a publication there, as long as the owner does not know that it is at the ENS"""
    _renewed: dict[int, _Renewed] = attrs.field(factory=dict)
    """owner → how long its lease holds"""
    _asks: dict[Span, int] = attrs.field(factory=dict)
    """numbers that cannot be used before their owner has answered"""
    _sent: OrderedDict[int, _Sent] = attrs.field(factory=OrderedDict)
    _due_at: float | None = None

    def numbered(self, rank: int, sequence: int, now: float) -> None:
        """A batch has its numbers, from this owner."""
        self._last = max(sequence, self._last)
        self._open[sequence] = self._open.get(sequence, 0) + 1
        self._ranks[rank] = sequence
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
        renewed, half_s = self._renewed.get(rank), self.lease_s / 2
        start = max(asked_at, renewed.at) if renewed is not None and asked_at + half_s > renewed.since else asked_at
        return now < start + half_s

    def ask(self, rank: int, span: Span, now: float) -> None:
        """Ask what has become of some numbers; `leased` has the answer."""
        self._asks[span] = rank
        self._due_at = now

    def take_due(self, now: float) -> Handed | None:
        """What to say now, if anything."""
        if self._due_at is None or self._due_at > now:
            return None
        asks = dict(islice(self._asks.items(), ASKS_MAX))
        ranks = list({**self._ranks, **dict.fromkeys(asks.values())})
        self._due_at = now + SAY_S if ranks else None
        if not ranks:
            return None
        self._serial += 1
        handed = Handed(self.session, self._serial, self._at_ens, ranks, list(asks))
        self._sent[self._serial] = _Sent(now, handed)
        if len(self._sent) > SENT_MAX:
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

    def leased(self, leased: Leased) -> dict[Span, tuple[float, list[Span]]]:
        """An owner has answered: for what it was asked for, when that was, and what of it is void."""
        sent = self._sent.get(leased.serial)
        if sent is None:
            return {}
        rank = leased.rank
        before = self._renewed.get(rank)
        if before is None or sent.at >= before.at + self.lease_s / 2:
            self._renewed[rank] = _Renewed(sent.at, sent.at)
        elif sent.at > before.at:
            self._renewed[rank] = _Renewed(before.since, sent.at)
        if self._ranks.get(rank, sent.handed.sequence + 1) <= sent.handed.sequence:
            del self._ranks[rank]
        answered = [span for span in sent.handed.asks if self._asks.get(span) == rank]
        for span in answered:
            del self._asks[span]
        return {span: (sent.at, [void for void in leased.voids if _overlap(void, span)]) for span in answered}


def _overlap(one: Span, two: Span) -> bool:
    return one.topic == two.topic and one.first <= two.last and two.first <= one.last
