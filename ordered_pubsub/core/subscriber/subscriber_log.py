"""The subscriber's end of its topics' logs: where a subscription begins, what it reads of the past, and what it misses.

It is `Delivery` for the present and, before that, `Past` for what came before the subscription's place. While the past is read
the present is held; both are asked for by `Missing`. A subscription that has a name and is there already goes on where it had
acknowledged (`Resume`), which may be in the past as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    Change,
    LogItem,
    LogReply,
    Nack,
    NackRange,
    Range,
    TopicRange,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber._past import Part, Past
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.delivery import Delivery, Wants
from ordered_pubsub.core.subscriber.starving import Starving
from ordered_pubsub.core.subscriber.vector import History
from ordered_pubsub.errors import HistoryLost

ASIDE_S = 5.0
"""So often it is asked what has become of what must not be used."""
STALLED_S = 2.5
"""So often it is looked for what is next and has to wait; what still has to then is asked for at its log."""
WANTS_MAX = 1_000
"""Ranges that are asked for in one message."""
_Item = TypeVar("_Item")


@attrs.define(eq=False)
class SubscriberLog:
    """One subscription and the logs of its topics."""

    delivery: Delivery
    missing: Missing
    """the one of `delivery`"""
    owner: Callable[[str], int]
    unpack: Callable[[str, LogItem], list[Arrival]]
    """makes of a part of a topic's log its events, or its silence"""
    start: Mapping[str, int] | None = None
    """where it begins in the past; a topic that is not named begins where its log does. None: at its place in the order"""
    session: str = ""
    is_filtered: bool = True
    """whether the home stage may leave out what a filter does not let through"""
    redelivered_to: dict[str, int] = attrs.field(factory=dict)
    """up to where an earlier session may have been notified"""
    starving: Starving = attrs.field(factory=Starving)
    """what the ENS does not bring"""
    _past: Past | None = None
    _begun_at: Mapping[str, int] = attrs.field(factory=dict)
    """the topics that are to have all of their past, from there on"""
    _where: Mapping[str, str] = attrs.field(factory=dict)
    """the filters that hold in the past, as they are written"""
    _wanted: dict[str, Wants] = attrs.field(factory=dict)
    _read: int = 0
    """how many numbers of the past it has passed"""
    _history: History = attrs.field(factory=History)
    _ready: list[Notification] = attrs.field(factory=list)
    _aside_due_at: float | None = None
    """when to ask what has become of what must not be used yet"""
    _stalled_due_at: float | None = None
    """when to look for what has to wait for long"""

    def __attrs_post_init__(self) -> None:
        if self.start is not None:
            self.delivery.hold()

    # -- where it begins ----------------------------------------------------------------------------------------------

    def begin(self, change: Change) -> None:
        """The outcome of a change came: it may be the one by which it begins, or goes on."""
        resume = change.resume
        if resume is None:
            if change.version == 1 and self.start is not None:
                self._begin_past(self.start, change, 0)
            return
        self.redelivered_to = dict(change.entries)
        if resume.start is not None:
            self.delivery.hold()
        self.delivery.resume(resume)
        for topic, count in change.entries.items():
            self.delivery.hear(topic, count, is_lost=True)
        first = next((earlier for earlier in resume.changes if earlier.version == 1), None)
        if resume.start is not None and not resume.version and first is not None:
            self._begin_past(resume.clock or resume.start, first, resume.position)
        elif resume.start is not None:
            self.delivery.go_on(0)

    def _begin_past(self, start: Mapping[str, int], first: Change, position: int) -> None:
        cut = {topic: first.entries.get(topic, 0) for topic in first.new}
        clock = {topic: min(start.get(topic, 0), cut[topic]) for topic in cut}
        self._begun_at, self._read = start, position
        self._where, self._wanted = first.where, self.delivery.wanted(first.where)
        self._past = Past(clock, cut, self.owner, Missing(self.missing.is_kept, now=self.missing.now))
        self._history.restart(dict(clock))
        self._read_on(self._past)

    def _read_on(self, past: Past) -> None:
        """Take what is known of the past by now, and go on to the present if that was all."""
        for part, first, last in past.read():
            passed = first - 1
            for arrival in part.arrivals:
                if arrival.last > passed:
                    self._history.jumped(part.topic, min(arrival.last, last))
                    self._read += min(arrival.last, last) - passed
                    passed = arrival.last
                elif passed < arrival.number <= last and not arrival.last:
                    self._pass(arrival)
                    passed = arrival.number
        if past.is_over:
            self._past = None
            self.delivery.go_on(self._read)

    def _pass(self, arrival: Arrival) -> None:
        self._read += 1
        moment, wants = self._history.passed(arrival.topic), self._wanted.get(arrival.topic)
        if wants is None or wants(arrival):
            position = None if self.delivery.order == "topic" else self._read
            self._ready.append(Notification(arrival, position, moment, 0, count=self._read))

    # -- what the ENS brings ------------------------------------------------------------------------------------------

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """The ENS has brought events."""
        starving, receive = self.starving, self.delivery.receive
        if starving.silent:
            for arrival in arrivals:
                starving.came_by_ens(arrival.topic)
        for arrival in arrivals:
            receive(arrival)

    # -- what the stage says ------------------------------------------------------------------------------------------

    def set_time(self, now: float) -> None:
        """Tell the time, before any other input."""
        self.missing.now = now
        if self._past is not None:
            self._past.missing.now = now

    def handle_log_reply(self, told: LogReply) -> None:
        """A log has told something. Raises `HistoryLost` if it does not have what the subscription is entitled to."""
        past, topic = self._past, told.topic
        if past is not None and told.floor > past.clock.get(topic, told.floor):
            if topic in self._begun_at:
                raise HistoryLost(
                    f"subscription {self.delivery.subscription!r}", topic, past.clock[topic] + 1, told.floor + 1
                )
            past.skip(topic, told.floor)
            self._history.restart(dict(past.clock))
        self.delivery.told_of_floor(topic, told.floor)
        for item in told.items:
            arrivals = self.unpack(topic, item)
            if past is not None:
                past.take(Part.of(topic, item, arrivals))
            if topic in self.starving.silent:
                self.starving.came_by_stage(topic, sum(map(self.delivery.lacks, arrivals)))
            for arrival in arrivals:
                self.delivery.receive(arrival)
        if told.given >= 0:
            self.delivery.told_of_given(topic, told.given)
        if past is not None:
            self._read_on(past)

    def expected(self, counts: Mapping[str, int], is_ens_read: bool = True) -> None:
        """Some topics have come so far; what is not here of that is lost.

        `is_ens_read`: whether all that the ENS has brought was taken, so that what is not here was not brought.
        """
        for topic, count in counts.items():
            is_news = count > self.redelivered_to.get(topic, 0) and self.delivery.is_news(topic, count)
            if is_ens_read and is_news and self._past is None:
                self.starving.brought_by_stage(topic, self.missing.now)
            self.delivery.hear(topic, count, is_lost=True)

    def look_for_more(self, topics: Iterable[str]) -> None:
        """Ask whether there is more of some topics than what is known of."""
        for topic in topics:
            self.delivery.look_for_more(topic)

    def seal(self, topic: str, numbers: list[Range]) -> list[Range]:
        """An owner asks which of these were seen; the others are not used until it is decided what they are."""
        seen = self.delivery.seal(topic, numbers)
        if self._aside_due_at is None and self.delivery.withheld:
            self._aside_due_at = self.missing.now + ASIDE_S
        return seen

    def decided(self, decided: VoidDecision) -> None:
        """An owner says what some numbers are."""
        silence = [arrival for item in decided.voids for arrival in self.unpack(decided.topic, item)]
        self.delivery.decided(decided.topic, silence, decided.published)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def take_ready(self) -> list[Notification]:
        """The events to be notified since the last call, in their order."""
        past, self._ready = self._ready, []
        ready = self.delivery.take_ready()
        return [*past, *ready] if past else ready

    def take_due(self, now: float) -> list[Nack | VoidAsk]:
        """What to ask for now."""
        self._look_for_stalled(now)
        wants = self._take_wants(now)
        kept = [want for want in wants if self.missing.is_kept(want.topic)]
        spans = [
            TopicRange(want.topic, want.first, want.last) for want in wants if not self.missing.is_kept(want.topic)
        ]
        if self._aside_due_at is not None and now >= self._aside_due_at:
            withheld = self.delivery.withheld
            self._aside_due_at = now + ASIDE_S if withheld else None
            spans += withheld
        says: list[Nack | VoidAsk] = [Nack(self.delivery.subscription, piece) for piece in _pieces(kept)]
        says += [VoidAsk(self.session, piece) for piece in _pieces(spans)]
        return says

    def _look_for_stalled(self, now: float) -> None:
        if self._stalled_due_at is None:
            self._stalled_due_at = now + STALLED_S if self.delivery.buffered else None
        elif now >= self._stalled_due_at:
            self._stalled_due_at = now + STALLED_S if self.delivery.buffered else None
            self.delivery.doubt_stalled()

    def _take_wants(self, now: float) -> list[NackRange]:
        """What is missing, and which of it the home stage may leave out."""
        wants: list[NackRange] = []
        for missing in self._curious():
            is_past = missing is not self.missing
            for want in missing.take_due(now):
                topic = want.topic
                where = self._where.get(topic, "") if is_past else self.delivery.filter_of(topic)
                wants.append(replace(want, where=where) if where and self.is_filtered else want)
        return wants

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called next, if nothing comes until then; None if nothing is missing."""
        dues = [self._aside_due_at, self._stalled_due_at, *(missing.next_due for missing in self._curious())]
        return min((due for due in dues if due is not None), default=None)

    def _curious(self) -> list[Missing]:
        all_missing = [self.missing] if self._past is None else [self._past.missing, self.missing]
        return [missing for missing in all_missing if missing.is_curious]

    @property
    def reads_past(self) -> bool:
        """Whether it has not come to the present yet."""
        return self._past is not None

    @property
    def needed_after(self) -> dict[str, int]:
        """Up to where it needs nothing of the logs: what came is here, whether the application has taken it or not.

        A topic without a log is named while it is being left: the registrar must know that there is something to wait for.
        """
        if self._past is not None:
            return dict(self._past.clock)
        held, is_kept = dict.fromkeys(self.delivery.topics), self.missing.is_kept
        return {t: count for t, count in self.delivery.clock.items() if is_kept(t) or t not in held}

    @property
    def position(self) -> int:
        """How many numbers it has passed."""
        return self.delivery.position if self._past is None else self._read

    @property
    def passed(self) -> tuple[int, dict[str, int], int]:
        """What is acknowledged when all that was ready is handled: version, clock, and how many numbers."""
        if self._past is not None:
            return 0, dict(self._past.clock), self.position
        return self.delivery.left_up_to, self.delivery.handled, self.position


def _pieces(items: list[_Item]) -> list[list[_Item]]:
    return [items[first : first + WANTS_MAX] for first in range(0, len(items), WANTS_MAX)]
