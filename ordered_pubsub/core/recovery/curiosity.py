"""What the clients at home at one stage miss: it is asked for once, and given to all who miss it.

For each topic the stage knows who of its clients is curious about which numbers, what it has asked the owner for lately
(`Consolidation`), and some of what it was told (`Told`). So what reaches an owner does not grow with the number of subscribers
behind a home stage.

Whatever a client says costs as much as it names, and what an owner says as much as there are clients that miss it, with their
filters. So both are done in small steps, by whoever runs the stage (`core.stage.turns`), and what is told is given to each
identity at its own turn: however many others miss it, and by whatever filters, who misses little does not wait for them. What one
identity may be curious about is bounded for all its sessions together; what is beyond is not taken note of, and is asked for
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator

import attrs

from ordered_pubsub.core.messages import LogItem, LogReply, LogRequest, Nack, NackRange, Recovered, ToSubscriber
from ordered_pubsub.core.ranges import ENDLESS, Ranges
from ordered_pubsub.core.recovery._nacks import Consolidation
from ordered_pubsub.core.recovery.missing import NRT_CEILING_S, NRT_FLOOR_S
from ordered_pubsub.core.recovery.told import NOTHING_CHOSEN, Chosen, Told, runs, within
from ordered_pubsub.core.topology import Topology

CACHED_NUMBERS_MAX = 1_024
"""What is told of more numbers at once is somebody's replay, which nobody else will ask for."""
CURIOUS_FOR_S = 4 * NRT_CEILING_S
"""Who has not repeated what it asked for in so long does not miss it any more."""
FILTERS_MAX = 4
"""So many filters of one subscription are known at once for a topic; what is missed by the oldest is asked for again."""

CURIOUS_MAX = 100_000
"""So much may be missed at once by the sessions of one identity: stretches of numbers, and `CURIOUS_WEIGHT` for each topic."""
CURIOUS_WEIGHT = 8
STREAMS_AT_ONCE = 100
"""Topics that are tidied in one step, and subscriptions that are forgotten in one."""

Follower = tuple[str, str]
"""A session, and one of its subscriptions."""
Left = dict[int, LogItem]
"""An item's first number → what a filter has left of it."""
Choose = Callable[[str, Iterable[LogItem]], Iterator[LogItem | None]]
"""A filter and items → what is left of each of them, in their order, and None at the end of each small step between."""


@attrs.define(slots=True)
class _Curious:
    """What one subscription misses of a topic."""

    heard: float
    numbers: dict[str, Ranges] = attrs.field(factory=dict)
    """the filter by which events may be left out → what is missed; in the past there may have been another one"""

    @property
    def weight(self) -> int:
        """About how much memory that takes."""
        return CURIOUS_WEIGHT + sum(map(len, self.numbers.values()))

    def missed(self, where: str) -> Ranges:
        """What is missed of what this filter lets through."""
        if where not in self.numbers and len(self.numbers) >= FILTERS_MAX:
            del self.numbers[next(iter(self.numbers))]
        return self.numbers.setdefault(where, Ranges())


@attrs.define(slots=True, eq=False)
class _Stream:
    """Who misses something of one topic, and what of it was asked for."""

    asked: Consolidation = attrs.field(factory=lambda: Consolidation(NRT_FLOOR_S))
    curious: dict[str, dict[Follower, _Curious]] = attrs.field(factory=dict)
    """identity → its subscriptions that miss something"""
    fulls_asked: dict[int, float] = attrs.field(factory=dict)
    """number → when its full timestamp was asked for"""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be known."""
        return not self.curious and not len(self.asked) and not self.fulls_asked


@attrs.define(eq=False)
class Curiosity:
    """Who of the clients at one stage misses what."""

    topology: Topology
    identities: dict[str, str]
    """session → who it is, of those that are connected"""
    tells: list[tuple[str, ToSubscriber]]
    """session, and what it is told; the caller empties it"""
    choose: Choose | None = None
    """leaves out what a filter does not let through; None: this stage cannot read events"""
    curious_max: int = CURIOUS_MAX
    too_much: int = 0
    """how often something was not taken note of, since its identity had too much"""
    _recalls: dict[int, list[NackRange]] = attrs.field(factory=dict)
    """rank of an owner → what it is to be asked for"""
    _streams: dict[str, _Stream] = attrs.field(factory=dict)
    _told: Told = attrs.field(factory=Told)
    _weights: dict[str, int] = attrs.field(factory=dict)
    """identity → how much its sessions miss"""
    _missed: dict[str, dict[str, dict[str, bool]]] = attrs.field(factory=dict)
    """session → its subscriptions → topics of which they have missed something"""

    # -- what is missed -----------------------------------------------------------------------------------------------

    def wanting(self, session: str, curious: Nack, now: float) -> Iterator[None]:
        """A subscription misses something: a step for each stretch, and more if much of that is known and has to be chosen."""
        follower = (session, curious.subscription)
        is_first = True
        for want in dict.fromkeys(curious.wants):
            if not is_first:
                yield
            is_first = False
            if self._note_want(follower, want, now):
                yield from self._answering(want, follower)
                self._ask_for_rest(want, follower, now)

    def _note_want(self, follower: Follower, want: NackRange, now: float) -> bool:
        """Take note of what a subscription misses, unless its identity misses too much."""
        session, subscription = follower
        identity = self.identities.get(session, "")
        if self._weights.get(identity, 0) >= self.curious_max:
            self.too_much += 1
            return False
        stream = self._streams.setdefault(want.topic, _Stream())
        self._missed.setdefault(session, {}).setdefault(subscription, {})[want.topic] = True
        followers = stream.curious.setdefault(identity, {})
        known = followers.get(follower)
        before = 0 if known is None else known.weight
        if known is None:
            known = followers[follower] = _Curious(now)
        known.heard = now
        known.missed(want.where).add(want.first, want.last)
        _add(self._weights, identity, known.weight - before)
        return True

    def _missing(self, topic: str, follower: Follower) -> _Curious | None:
        """What a subscription misses of a topic."""
        stream = self._streams.get(topic)
        followers = None if stream is None else stream.curious.get(self.identities.get(follower[0], ""))
        return None if followers is None else followers.get(follower)

    def _forget_curious(self, topic: str, stream: _Stream, identity: str, follower: Follower) -> None:
        """A subscription misses nothing of a topic any more."""
        followers = stream.curious.get(identity)
        known = None if followers is None else followers.pop(follower, None)
        if followers is not None and known is not None:
            _add(self._weights, identity, -known.weight)
            if not followers:
                del stream.curious[identity]
                self._maybe_end(topic, stream)

    def _answering(self, want: NackRange, follower: Follower) -> Iterator[None]:
        """Tell what is known here."""
        items = self._told.known(want.topic, want.first, min(want.last, want.first + CACHED_NUMBERS_MAX))
        if want.full:
            items = [item for item in items if item.first > want.first]
        if items:
            told = LogReply(want.topic, want.first, want.last, 0, items)
            left = None
            if want.where and self.choose is not None:
                left = yield from self._choosing(told, follower, want.where, NOTHING_CHOSEN)
            known = self._missing(want.topic, follower)
            if known is not None:
                self._tell(told, follower, known, want.where, left)

    def _ask_for_rest(self, want: NackRange, follower: Follower, now: float) -> None:
        """Ask the owner for what was not known here."""
        known, stream = self._missing(want.topic, follower), self._streams.get(want.topic)
        numbers = None if known is None else known.numbers.get(want.where)
        if known is not None and stream is not None and numbers is not None:
            for first, last in numbers.within(want.first, want.last):
                self._ask(stream, NackRange(want.topic, first, last, want.full and first == want.first), now)
            self._tidy(want.topic, follower, known)

    def _ask(self, stream: _Stream, want: NackRange, now: float) -> None:
        """Ask the owner for what it was not asked for lately."""
        wants = self._recalls.setdefault(self.topology.owner(want.topic), [])
        if want.full and stream.fulls_asked.get(want.first, now - NRT_FLOOR_S) <= now - NRT_FLOOR_S:
            stream.fulls_asked[want.first] = now
            stream.asked.satisfied(want.first, want.first)
        for first, last in stream.asked.fresh(want.first, want.last, now):
            wants.append(NackRange(want.topic, first, last, want.full and first == want.first))

    def curious_about(self, topic: str) -> Collection[str]:
        """The identities that miss something of a topic."""
        stream = self._streams.get(topic)
        return () if stream is None else stream.curious.keys()

    def hear(self, told: LogReply) -> list[str]:
        """An owner says what its log has. Return the identities that may miss it: `telling` gives it to each of them."""
        stream = self._streams.get(told.topic)
        if stream is not None:
            for run in runs(told.items):
                stream.asked.satisfied(run[0].first, run[-1].last)
                if run[0].full:
                    stream.fulls_asked.pop(run[0].first, None)
            if told.floor:
                stream.asked.satisfied(1, told.floor)
            if told.given >= 0:
                stream.asked.satisfied(told.given + 1, ENDLESS)
        elif not self._told.has(told.topic):
            return []  # nobody has missed it lately, and nobody will
        if told.read_to - told.first < CACHED_NUMBERS_MAX:
            self._told.remember(told.topic, told.items)
        return [] if stream is None else list(stream.curious)

    def telling(self, told: LogReply, identity: str, chosen: Chosen) -> Iterator[None]:
        """Give what an owner says to one identity: a step for each of its subscriptions that may miss it, and each filter.

        What is chosen of it by the same filter is `chosen` once for several, whoever they are.
        """
        stream = self._streams.get(told.topic)
        followers = None if stream is None else stream.curious.get(identity)
        is_first = True
        for follower in list(followers or ()):
            if not is_first:
                yield
            is_first = False
            known = self._missing(told.topic, follower)
            for at, where in enumerate(list(known.numbers) if known is not None else ()):
                if at:
                    yield
                left = None
                if where and self.choose is not None:
                    left = yield from self._choosing(told, follower, where, chosen)
                if at or left is not None:
                    known = self._missing(told.topic, follower)
                if known is not None:
                    self._tell(told, follower, known, where, left)

    def _choosing(self, told: LogReply, follower: Follower, where: str, chosen: Chosen) -> Generator[None, None, Left]:
        """Leave out what a filter does not let through, of what a subscription misses. What was chosen already is not again."""
        left: Left = {}
        known = self._missing(told.topic, follower)
        numbers = None if known is None else known.numbers.get(where)
        if numbers is None or self.choose is None:
            return left
        missed = within(told.items, numbers)

        def not_chosen() -> Iterator[LogItem]:
            for item in missed:
                found = chosen.find(where, item.first)
                if found is None:
                    yield item
                else:
                    left[item.first] = found

        for item in self.choose(where, not_chosen()):
            if item is None:
                yield
            else:
                left[item.first] = item
                chosen.keep(where, item)
        return left

    def _tell(self, told: LogReply, follower: Follower, known: _Curious, where: str, left: Left | None) -> None:
        """Give a subscription what it misses of this, and nothing else; with a filter, what that has left of it."""
        numbers = known.numbers.get(where)
        if numbers is None:
            return  # it was told while this was chosen
        items = within(told.items, numbers)
        if left is not None:
            items = [left[item.first] for item in items if item.first in left]
        beyond = told.given >= 0 and (numbers.last or 0) > told.given
        if items or beyond or numbers.within(1, told.floor):
            before = known.weight
            if beyond:
                numbers.remove(told.given + 1, ENDLESS)
            for run in runs(items):
                numbers.remove(run[0].first, run[-1].last)
            numbers.forget_up_to(told.floor)
            session, subscription = follower
            _add(self._weights, self.identities.get(session, ""), known.weight - before)
            given = LogReply(told.topic, told.first, told.read_to, told.floor, list(items), where, told.given)
            self.tells.append((session, Recovered(subscription, given)))
        self._tidy(told.topic, follower, known)

    def _tidy(self, topic: str, follower: Follower, known: _Curious) -> None:
        """Forget the filters by which a subscription misses nothing any more, and the subscription with the last one."""
        missed = known.numbers
        for where in [where for where, numbers in missed.items() if not numbers]:
            del missed[where]
        if not missed:
            self._forget_curious(topic, self._streams[topic], self.identities.get(follower[0], ""), follower)

    def _maybe_end(self, topic: str, stream: _Stream) -> None:
        if stream.is_empty and self._streams.get(topic) is stream:
            del self._streams[topic]

    # -- what is missed no more ---------------------------------------------------------------------------------------

    def forget(self, session: str) -> None:
        """A client is gone."""
        for subscription in list(self._missed.get(session, ())):
            self.stop(session, subscription)

    def stop(self, session: str, subscription: str) -> None:
        """A subscription misses nothing any more."""
        subscriptions, identity = self._missed.get(session, {}), self.identities.get(session, "")
        for topic in subscriptions.pop(subscription, ()):
            stream = self._streams.get(topic)
            if stream is not None:
                self._forget_curious(topic, stream, identity, (session, subscription))
        if not subscriptions:
            self._missed.pop(session, None)

    def tidying(self, now: float) -> Iterator[None]:
        """Forget what nobody asks for any more: some topics at each step."""
        done = 0
        for topic in list(self._streams):
            stream = self._streams.get(topic)
            if stream is None:
                continue
            stream.asked.forget_expired(now)
            stream.fulls_asked = {n: at for n, at in stream.fulls_asked.items() if at > now - NRT_FLOOR_S}
            done += 1
            for identity in list(stream.curious):
                followers = stream.curious.get(identity, {})
                done += len(followers) // 8
                for follower in [who for who, known in followers.items() if known.heard + CURIOUS_FOR_S <= now]:
                    late = followers.get(follower)
                    if late is not None and late.heard + CURIOUS_FOR_S <= now:
                        self._forget_curious(topic, stream, identity, follower)
                        self._forget_word(follower, topic)
                        done += 1
                    if done >= STREAMS_AT_ONCE:
                        done = 0
                        yield
            self._maybe_end(topic, stream)
            if done >= STREAMS_AT_ONCE:
                done = 0
                yield

    def _forget_word(self, follower: Follower, topic: str) -> None:
        """A subscription has not spoken of a topic for long."""
        session, subscription = follower
        topics = self._missed.get(session, {}).get(subscription)
        if topics is not None:
            topics.pop(topic, None)
            if not topics:
                self.stop(session, subscription)

    def take_log_requests(self) -> list[tuple[int, LogRequest]]:
        """What to ask the owners for."""
        recalls = [(rank, LogRequest(wants)) for rank, wants in self._recalls.items() if wants]
        self._recalls.clear()
        return recalls


def _add(counts: dict[str, int], key: str, change: int) -> None:
    if change:
        counts[key] = counts.get(key, 0) + change
        if not counts[key]:
            del counts[key]
