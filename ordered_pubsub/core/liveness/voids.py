"""The owner's side of numbers whose events nobody keeps: which of them will never have an event.

On a topic whose events stay with their publishers, a publisher that vanishes between its number and its publication leaves a
hole on which subscribers would wait for ever. So each batch there is *pending* until its publisher says that it is at the ENS
(`LeaseRenewal`); that also renews the publisher's lease. When nothing was heard of it for `lease_s`, the owner asks all home
stages, and these all their clients, for what is pending (`SeenAsk`). Who has seen a number says so: it was published, and the
ENS, which must lose nothing here, brings it to everybody. Who has not will not use it until it is decided. What nobody has
seen is void: it is written down, and announced to all (`VoidDecision`), who pass it as silence, in its place in the order. Who
must have answered is known by the registrars (`Holders`): a client that is gone is waited for until its subscriptions have
expired there.

A publisher does not use numbers beyond its lease: it asks first what has become of them (`core.liveness.lease`). A decision is
never taken back, whoever comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import groupby, islice

import attrs

from ordered_pubsub.core.liveness.lease import LEASE_S
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.writer import Decision
from ordered_pubsub.core.messages import (
    Holders,
    LeaseRenewal,
    LeaseReply,
    LogItem,
    SeenAsk,
    SeenReply,
    TopicRange,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.ranges import Range, Ranges

SEAL_AGAIN_S, SEAL_AGAIN_MOST_S = 1.0, 10.0
"""After so long who has not answered is asked again; the second time after twice as long, and so on."""
LOOK_S = 0.5
"""So often it is looked at who was not heard of."""
ROUNDS_MAX = 16
"""So many topics of vanished publishers are asked about at a time; the others come when these are decided."""
RANGES_MAX = 1_000
"""So many stretches of numbers are asked for at once."""
ASKS_AT_ONCE = 8
"""So many stretches of which little is void are looked up in one step."""


@attrs.define(slots=True)
class _Batch:
    """A batch that may turn out to be void."""

    session: str
    sequence: int
    last: int
    round: int = 0
    """the serial of the round in which it is asked for; 0: none"""


@attrs.define(slots=True)
class _Publisher:
    """A session that has something pending here, or had lately."""

    heard: float
    voided: int = 0
    """how often something of it has become void"""
    handed: int = 0
    """everything up to this sequence is at the ENS"""
    batches: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """(topic, first) → sequence"""
    by_sequence: list[tuple[int, str, int]] = attrs.field(factory=list)
    """a heap of the same: sequence, topic, first; some of it may be pending no more"""
    asked_about: list[tuple[str, int]] = attrs.field(factory=list)
    """those that are, or were, asked for in a round"""


@attrs.define(slots=True)
class _Round:
    """All clients are being asked for some batches of one session and topic."""

    topic: str
    numbers: list[Range]
    due_at: float = float("-inf")
    interval_s: float = SEAL_AGAIN_S
    holders: dict[int, list[str]] = attrs.field(factory=dict)
    """rank → who must answer, as its registrar says"""
    answered: dict[str, bool] = attrs.field(factory=dict)
    seen: Ranges = attrs.field(factory=Ranges)

    def is_over(self, stages: int) -> bool:
        """Whether everybody has answered who must."""
        return len(self.holders) == stages and all(
            session in self.answered for holders in self.holders.values() for session in holders
        )


@attrs.define(eq=False)
class Voids:
    """What is pending on the topics of one stage."""

    rank: int
    stages: int
    reader: LogReader
    lease_s: float = LEASE_S
    _batches: dict[str, dict[int, _Batch]] = attrs.field(factory=dict)
    """topic → first number → a batch"""
    _publishers: dict[str, _Publisher] = attrs.field(factory=dict)
    _rounds: dict[int, _Round] = attrs.field(factory=dict)
    _serial: int = 0
    _looked_at: float = float("-inf")
    _deciding: dict[tuple[str, int], Decision] = attrs.field(factory=dict)
    """what is decided, and perhaps not on disk yet"""
    _has_begun: bool = False

    def restore(self) -> None:
        """Go on with what the log has."""
        for topic, row, pending in self.reader.pending():
            self.numbered(pending.session, pending.sequence, topic, row.first, row.last, float("-inf"))

    def _begin(self, now: float, wall_s: float) -> None:
        """All leases begin now. Answers to what was asked before this start are not for us."""
        self._has_begun = True
        self._serial = max(int(wall_s * 1000), 0)
        for publisher in self._publishers.values():
            publisher.heard = max(now, publisher.heard)

    def has_pending(self, topic: str) -> bool:
        """Whether some numbers of a topic may turn out to be void."""
        return topic in self._batches or any(decided == topic for decided, _ in self._deciding)

    # -- publishers ---------------------------------------------------------------------------------------------------

    def numbered(self, session: str, sequence: int, topic: str, first: int, last: int, now: float) -> Decision | None:
        """A batch is complete, and nobody keeps it; return a decision if its publisher has already said that it is published."""
        publisher = self._publishers.setdefault(session, _Publisher(now))
        publisher.heard = max(now, publisher.heard)
        if sequence <= publisher.handed:
            return Decision(topic, first, last, [])
        self._batches.setdefault(topic, {})[first] = _Batch(session, sequence, last)
        publisher.batches[topic, first] = sequence
        heappush(publisher.by_sequence, (sequence, topic, first))
        return None

    def hear(self, handed: LeaseRenewal, now: float) -> list[Decision]:
        """A publisher is there, and says what it has published; return what is decided by that. `leasing` is to follow."""
        publisher = self._publishers.setdefault(handed.session, _Publisher(now))
        publisher.heard = now
        publisher.handed = max(handed.sequence, publisher.handed)
        for topic, first in publisher.asked_about:
            if (topic, first) in publisher.batches:
                self._rounds.pop(self._batches[topic][first].round, None)
                self._batches[topic][first].round = 0
        publisher.asked_about.clear()
        published: dict[tuple[str, int], bool] = {}
        while publisher.by_sequence and publisher.by_sequence[0][0] <= handed.sequence:
            sequence, topic, first = heappop(publisher.by_sequence)
            if publisher.batches.get((topic, first)) == sequence:
                published[topic, first] = True
        return [Decision(topic, first, self._drop(topic, first), []) for topic, first in published]

    def leasing(self, handed: LeaseRenewal, answers: list[LeaseReply]) -> Iterator[None]:
        """Find what is void of what a publisher asks for, in small steps; `answers` gets the answer, if there is one.

        There is none if something is just being written down, or was decided since this began: what was read may be older.
        """
        publisher = self._publishers.get(handed.session)
        before = -1 if publisher is None else publisher.voided
        if any(_overlap(ask, decision) for ask in handed.asks for decision in self._deciding.values()):
            return
        voids: list[TopicRange] = []
        for count, ask in enumerate(merged(handed.asks), 1):
            silence: list[LogItem] = []
            for _ in self.reader.finding_silence(ask.topic, ask.first, ask.last, silence):
                yield
            voids += [TopicRange(ask.topic, max(item.first, ask.first), min(item.last, ask.last)) for item in silence]
            if not count % ASKS_AT_ONCE:
                yield
        if publisher is not None and publisher is self._publishers.get(handed.session) and publisher.voided == before:
            answers.append(LeaseReply(handed.session, handed.serial, self.rank, voids))

    def _drop(self, topic: str, first: int) -> int:
        """A batch is pending no more; return its last number."""
        batches = self._batches[topic]
        batch = batches.pop(first)
        if not batches:
            del self._batches[topic]
        del self._publishers[batch.session].batches[topic, first]
        return batch.last

    # -- sealing ------------------------------------------------------------------------------------------------------

    def tick(self, now: float, wall_s: float) -> list[tuple[int, SeenAsk]]:
        """Time passes: which home stages to ask."""
        if now < self._looked_at + LOOK_S:
            return []
        self._looked_at = now
        if not self._has_begun:
            self._begin(now, wall_s)
        for session, publisher in list(self._publishers.items()):
            if publisher.batches and now >= publisher.heard + self.lease_s:
                self._begin_rounds(publisher)
            elif not publisher.batches and now >= publisher.heard + 4 * self.lease_s:
                del self._publishers[session]
        asks: list[tuple[int, SeenAsk]] = []
        for serial, one in self._rounds.items():
            if now >= one.due_at:
                one.due_at = now + one.interval_s
                one.interval_s = min(2 * one.interval_s, SEAL_AGAIN_MOST_S)
                seal = SeenAsk("", serial, self.rank, one.topic, one.numbers)
                asks += [(rank, seal) for rank in range(self.stages)]
        return asks

    def _begin_rounds(self, publisher: _Publisher) -> None:
        if len(self._rounds) >= ROUNDS_MAX:
            return  # each of them is a message to every client
        unasked = sorted(key for key in publisher.batches if not self._batches[key[0]][key[1]].round)
        for topic, keys in islice(groupby(unasked, key=lambda key: key[0]), ROUNDS_MAX - len(self._rounds)):
            self._serial += 1
            batches = [(first, self._batches[topic][first]) for _, first in keys]
            numbers = Ranges()
            for first, batch in batches:
                if len(numbers) < RANGES_MAX:  # the others come with the next look
                    numbers.add(first, batch.last)
                    batch.round = self._serial
                    publisher.asked_about.append((topic, first))
            self._rounds[self._serial] = _Round(topic, list(numbers))

    def holders(self, registrar: int, holders: Holders) -> list[Decision]:
        """A registrar says who must answer; return what is decided by that."""
        one = self._rounds.get(holders.serial)
        if one is None:
            return []
        one.holders[registrar] = holders.sessions
        return self._maybe_decide(one, holders.serial)

    def sealed(self, sealed: SeenReply) -> list[Decision]:
        """Some clients have answered; return what is decided by that."""
        one = self._rounds.get(sealed.serial)
        if one is None:
            return []
        one.answered.update(dict.fromkeys(sealed.sessions, True))
        for first, last in sealed.seen:
            one.seen.add(first, last)
        return self._maybe_decide(one, sealed.serial)

    def _maybe_decide(self, one: _Round, serial: int) -> list[Decision]:
        if not one.is_over(self.stages):
            return []
        del self._rounds[serial]
        return list(self._decide(one, serial))

    def _decide(self, one: _Round, serial: int) -> Iterable[Decision]:
        asked = [first for first, batch in self._batches.get(one.topic, {}).items() if batch.round == serial]
        for first in asked:
            publisher = self._publishers[self._batches[one.topic][first].session]
            last = self._drop(one.topic, first)
            decision = Decision(one.topic, first, last, one.seen.missing(first, last))
            if decision.voids:
                publisher.voided += 1
                self._deciding[one.topic, first] = decision
            yield decision

    # -- decisions ----------------------------------------------------------------------------------------------------

    def written(self, decisions: Iterable[Decision]) -> list[VoidDecision]:
        """Decisions are on disk: what is to be announced, for each topic at once."""
        decided: dict[str, VoidDecision] = {}
        for topic, first, last, voids in decisions:
            self._deciding.pop((topic, first), None)
            news = decided.setdefault(topic, VoidDecision("", topic, [], []))
            news.voids.extend(self.reader.silence(topic, first, last) if voids else [])
            news.published.extend(Ranges(voids).missing(first, last))
        return list(decided.values())

    def telling(self, asked: VoidAsk, found: list[VoidDecision]) -> Iterator[None]:
        """A client asks what has become of some numbers, in small steps; `found` gets what is decided of them."""
        topic, not_published = "", Ranges()
        for count, span in enumerate(merged(asked.spans), 1):
            if span.topic != topic:
                topic, not_published = span.topic, self._not_published(span.topic)
            voids: list[LogItem] = []
            for _ in self.reader.finding_silence(topic, span.first, span.last, voids):
                yield
                for first, last in self._not_published(
                    topic
                ):  # what is written down meanwhile may not be read any more
                    not_published.add(first, last)
            for item in voids:
                not_published.add(item.first, item.last)
            found.append(VoidDecision(asked.session, topic, voids, not_published.missing(span.first, span.last)))
            if not count % ASKS_AT_ONCE:
                topic = ""
                yield

    def _not_published(self, topic: str) -> Ranges:
        """What is pending of a topic, or being written down as void."""
        not_published = Ranges()
        for first, batch in self._batches.get(topic, {}).items():
            not_published.add(first, batch.last)
        for decision in self._deciding.values():
            if decision.topic == topic:
                not_published.add(decision.first, decision.last)
        return not_published


def merged(spans: Iterable[TopicRange]) -> list[TopicRange]:
    """The same numbers, each once."""
    numbers: dict[str, Ranges] = {}
    for span in spans:
        numbers.setdefault(span.topic, Ranges()).add(span.first, span.last)
    return [TopicRange(topic, first, last) for topic, ranges in numbers.items() for first, last in ranges]


def _overlap(span: TopicRange, decision: Decision) -> bool:
    return span.topic == decision.topic and span.first <= decision.last and decision.first <= span.last
