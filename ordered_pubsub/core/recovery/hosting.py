"""The home stage's side of knowledge: what its clients miss is asked for once, and given to all who miss it.

Soft state only: what is forgotten here is asked for again. For each topic the stage knows who of its clients is curious about
which numbers, what it has asked the owner for lately (`Consolidation`), and some of what it was told (a bounded cache). So what
reaches an owner does not grow with the number of subscribers behind a home stage.

Whatever a client says costs as much as it names, and what an owner says as much as there are clients that miss it, with their
filters. So both are done in small steps, by whoever runs the stage (`core.stage.turns`), and what is told is given to each
identity at its own turn: however many others miss it, and by whatever filters, who misses little does not wait for them. What one
identity may be curious about is bounded for all its sessions together; what is beyond is not taken note of, and is asked for
again. So is what they follow; who follows more is told that it ends.

Acknowledgements are consolidated as well: the owner of a topic is told up to where all subscriptions here have acknowledged it.
If it says that it expects more, those that are behind are told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import islice

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    AckExpected,
    Ended,
    HomeFloors,
    LogItem,
    LogReply,
    LogRequest,
    Nack,
    NackRange,
    Progress,
    ProgressReports,
    Recovered,
    SessionsAlive,
    TopicHeads,
    ToSubscriber,
)
from ordered_pubsub.core.ranges import ENDLESS, RangeMap, Ranges
from ordered_pubsub.core.recovery._nacks import Consolidation
from ordered_pubsub.core.recovery.missing import NRT_CEILING_S, NRT_FLOOR_S
from ordered_pubsub.core.topology import Topology

CACHE_BYTES_MAX = 24 << 20
CACHED_NUMBERS_MAX = 1_024
"""What is told of more numbers at once is somebody's replay, which nobody else will ask for."""
ANSWERED_MAX = 64
"""So many items are brought at once from what is known here; what is more is asked for."""
TOLD_AT_ONCE = 250
"""So many topics an owner is told of in one message."""
CURIOUS_FOR_S = 4 * NRT_CEILING_S
"""Who has not repeated what it asked for in so long does not miss it any more."""
ALIVE_S = 15.0
"""So often a home stage says who is connected to it."""
ITEM_BYTES, RUN_BYTES = 450, 400
"""What an item takes in memory beside its events, about, and what a run of them."""

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


@attrs.define(slots=True, eq=False)
class Chosen:
    """What filters have left of something that an owner has told, for the next ones that choose by the same: the last of it."""

    bytes_max: int
    _items: OrderedDict[tuple[str, int], tuple[LogItem, int]] = attrs.field(factory=OrderedDict)
    """filter, first number → the item and its size; the oldest first"""
    _bytes: int = 0

    def find(self, where: str, first: int) -> LogItem | None:
        """What a filter has left of an item."""
        found = self._items.get((where, first))
        return None if found is None else found[0]

    def keep(self, where: str, item: LogItem) -> None:
        """A filter has left this."""
        size = size_of(item)
        if size <= self.bytes_max and (where, item.first) not in self._items:
            self._items[where, item.first] = item, size
            self._bytes += size
            while self._bytes > self.bytes_max:
                self._bytes -= self._items.popitem(last=False)[1][1]


def size_of(item: LogItem) -> int:
    """About how many bytes an item takes in memory."""
    return ITEM_BYTES + sum([len(chunk.data) for chunk in item.chunks])


def runs(items: Sequence[LogItem]) -> Iterator[Sequence[LogItem]]:
    """Items in the order of their numbers, cut where numbers are missing between them: what is done for each run is not done
    for each item."""
    begin = 0
    for at in range(1, len(items)):
        if items[at].first != items[at - 1].last + 1:
            yield items[begin:at]
            begin = at
    if items:
        yield items[begin:] if begin else items


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
    """What is known here of one topic."""

    asked: Consolidation = attrs.field(factory=lambda: Consolidation(NRT_FLOOR_S))
    curious: dict[str, dict[Follower, _Curious]] = attrs.field(factory=dict)
    """identity → its subscriptions that miss something"""
    cache: RangeMap[Sequence[LogItem]] = attrs.field(factory=RangeMap)
    """runs of items that were told"""
    fulls_asked: dict[int, float] = attrs.field(factory=dict)
    """number → when its full timestamp was asked for"""

    @property
    def is_empty(self) -> bool:
        return not self.curious and not len(self.asked) and not len(self.cache) and not self.fulls_asked


NOTHING_CHOSEN = Chosen(0)


def within(items: Sequence[LogItem], numbers: Ranges) -> Sequence[LogItem]:
    """Those of some items, in the order of their numbers, that have any of these numbers."""
    if not items or numbers.covers(items[0].first, items[-1].last):
        return items
    found: list[LogItem] = []
    at = 0
    for first, last in numbers.within(items[0].first, items[-1].last):
        at = max(at, bisect_left(items, first, key=_last_of))
        while at < len(items) and items[at].first <= last:
            found.append(items[at])
            at += 1
    return found


def _endless(identity: str) -> int:
    """Nobody is counted."""
    return ENDLESS


@attrs.define(eq=False)
class Hosting:
    """The clients that are at home at one stage, and what they miss."""

    topology: Topology
    choose: Choose | None = None
    """leaves out what a filter does not let through; None: this stage cannot read events"""
    tells: list[tuple[str, ToSubscriber]] = attrs.field(factory=list)
    """session, and what it is told; the caller empties it"""
    recalls: dict[int, list[NackRange]] = attrs.field(factory=dict)
    """rank of an owner → what it is asked for; the caller empties it"""
    _acked: dict[str, dict[Follower, int]] = attrs.field(factory=dict)
    """topic → the subscriptions that hold it, and up to where they have acknowledged it"""
    _held: dict[Follower, dict[str, bool]] = attrs.field(factory=dict)
    """subscription → its topics"""
    _news: OrderedDict[Follower, Progress] = attrs.field(factory=OrderedDict)
    """what subscriptions have said and the registrars do not know yet"""
    _spoken_of: dict[str, dict[str, dict[str, bool]]] = attrs.field(factory=dict)
    """session → its subscriptions that have said something → topics of which they have missed something"""
    _stirred: dict[str, bool] = attrs.field(factory=OrderedDict)
    """topics of which the owners are to be told"""
    sessions: dict[str, int] = attrs.field(factory=dict)
    """who is connected → the serial of what it has said last"""
    identities: dict[str, str] = attrs.field(factory=dict)
    """session → who it is, of those that are connected"""
    curious_max: int = CURIOUS_MAX
    followed_max: Callable[[str], int] = _endless
    """how many topics the sessions of an identity may follow at once, each counted for each subscription"""
    too_much: int = 0
    """how often something was not taken note of, since its identity had too much"""
    _curious: dict[str, int] = attrs.field(factory=dict)
    """identity → how much its sessions miss"""
    _followed: dict[str, int] = attrs.field(factory=dict)
    """identity → how many topics its subscriptions follow"""
    alive_s: float = ALIVE_S
    _said_alive_at: float = float("-inf")
    _streams: dict[str, _Stream] = attrs.field(factory=dict)
    _cached: OrderedDict[tuple[str, int], tuple[int, int]] = attrs.field(factory=OrderedDict)
    """run of items: (topic, first) → last, bytes; the oldest first"""
    _cached_bytes: int = 0

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def note_progress(self, session: str, follows: Progress) -> None:
        """A subscription says how far it is."""
        follower = (session, follows.subscription)
        held = self._held.setdefault(follower, {})
        self._spoken_of.setdefault(session, {}).setdefault(follows.subscription, {})
        if follows.is_all:
            for topic in [topic for topic in held if topic not in follows.acked]:
                self._leave(follower, topic)
        self._note_news(follower, follows)
        identity = self.identities.get(session, "")
        room = self.followed_max(identity) - self._followed.get(identity, 0)
        for topic, acked in follows.acked.items():
            if topic not in held:
                if room <= 0:
                    self._end_following(follower, identity)
                    return
                room -= 1
                _add(self._followed, identity, 1)
            held[topic] = self._stirred[topic] = True
            self._acked.setdefault(topic, {})[follower] = acked
        if not held:
            del self._held[follower]
            self._stop_missing(follower)

    def _end_following(self, follower: Follower, identity: str) -> None:
        """A subscription follows more than its identity may: it ends, and is told why."""
        for topic in list(self._held[follower]):
            self._leave(follower, topic)
        del self._held[follower]
        self._news.pop(follower, None)
        self._stop_missing(follower)
        session, subscription = follower
        reason = (
            f"the subscriptions of identity {identity!r} at this stage follow {self.followed_max(identity)} topics, as many as "
            "they may (limits.held_topics_per_identity_max, for each stage): end some of them"
        )
        self.tells.append((session, Ended(subscription, session, "limit", reason)))

    def client_came(self, session: str, identity: str = "") -> None:
        """A client is at home here now."""
        self.sessions[session] = 0
        self.identities[session] = identity

    def _note_news(self, follower: Follower, follows: Progress) -> None:
        """The registrar is told what is said, several words as one."""
        before = self._news.get(follower)
        if before is not None and not follows.is_all:
            follows = replace(
                follows, acked={**before.acked, **follows.acked}, is_all=before.is_all, version=before.version
            )
        self._news[follower] = follows

    def followed_by(self, session: str) -> dict[str, list[str]]:
        """The subscriptions of a session that have said how far they are, and of which topics."""
        names = self._spoken_of.get(session, ())
        return {name: list(self._held[session, name]) for name in names if (session, name) in self._held}

    def take_progress(self) -> list[tuple[int, ProgressReports]]:
        """What the registrars are to be told, some of it at a time."""
        by_rank: dict[int, list[Progress]] = {}
        count = 0
        while self._news and count < TOLD_AT_ONCE:
            _, follows = self._news.popitem(last=False)
            count += 1 + len(follows.acked)
            by_rank.setdefault(self.topology.registrar(follows.subscription), []).append(follows)
        return [(rank, ProgressReports(news)) for rank, news in by_rank.items()]

    def _leave(self, follower: Follower, topic: str) -> None:
        del self._held[follower][topic]
        _add(self._followed, self.identities.get(follower[0], ""), -1)
        followers = self._acked[topic]
        del followers[follower]
        if not followers:
            del self._acked[topic]
        self._stirred[topic] = True

    def expected(self, expected: AckExpected) -> None:
        """An owner misses acknowledgements: who is behind?"""
        behind: dict[Follower, dict[str, int]] = {}
        for topic, count in expected.counts.items():
            for follower, acked in self._acked.get(topic, {}).items():
                if acked < count:
                    behind.setdefault(follower, {})[topic] = count
        for (session, subscription), counts in behind.items():
            self.tells.append((session, TopicHeads(subscription, counts)))

    def take_alive(self, now: float) -> SessionsAlive | None:
        """Who is connected here, now and then."""
        if now < self._said_alive_at + self.alive_s or not self.sessions:
            return None
        self._said_alive_at = now
        return SessionsAlive(dict(self.sessions))

    def take_hosts(self) -> list[tuple[int, HomeFloors]]:
        """What the owners are to be told of acknowledgements since the last call, of some topics at a time."""
        news: dict[int, dict[str, int | None]] = {}
        stirred = list(islice(self._stirred, TOLD_AT_ONCE))
        for topic in stirred:
            del self._stirred[topic]
            acked = min(self._acked.get(topic, {}).values(), default=None)
            news.setdefault(self.topology.owner(topic), {})[topic] = acked
        return [(rank, HomeFloors(acked)) for rank, acked in news.items()]

    def all_hosts(self, owner: int) -> HomeFloors:
        """All that an owner is to be told when the link to it is there again."""
        mine = {topic: acked for topic, acked in self._acked.items() if self.topology.owner(topic) == owner}
        return HomeFloors({topic: min(acked.values()) for topic, acked in mine.items()}, is_all=True)

    # -- curiosity ----------------------------------------------------------------------------------------------------

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
        if self._curious.get(identity, 0) >= self.curious_max:
            self.too_much += 1
            return False
        stream = self._streams.setdefault(want.topic, _Stream())
        self._spoken_of.setdefault(session, {}).setdefault(subscription, {})[want.topic] = True
        followers = stream.curious.setdefault(identity, {})
        known = followers.get(follower)
        before = 0 if known is None else known.weight
        if known is None:
            known = followers[follower] = _Curious(now)
        known.heard = now
        known.missed(want.where).add(want.first, want.last)
        _add(self._curious, identity, known.weight - before)
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
            _add(self._curious, identity, -known.weight)
            if not followers:
                del stream.curious[identity]
                self._maybe_end(topic, stream)

    def _answering(self, want: NackRange, follower: Follower) -> Iterator[None]:
        """Tell what is known here."""
        items = self._known(self._streams[want.topic], want.first, min(want.last, want.first + CACHED_NUMBERS_MAX))
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

    @staticmethod
    def _known(stream: _Stream, first: int, last: int) -> list[LogItem]:
        """What is known here of these numbers, but not more than is brought at once."""
        items: list[LogItem] = []
        for _, _, run in stream.cache.parts(first, last):
            start = bisect_left(run, first, key=_last_of)
            items += (item for item in run[start : start + ANSWERED_MAX - len(items)] if item.first <= last)
            if len(items) >= ANSWERED_MAX:
                break
        return items

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
        wants = self.recalls.setdefault(self.topology.owner(want.topic), [])
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
        if stream is None:
            return []
        for run in runs(told.items):
            stream.asked.satisfied(run[0].first, run[-1].last)
            if run[0].full:
                stream.fulls_asked.pop(run[0].first, None)
        if told.floor:
            stream.asked.satisfied(1, told.floor)
        if told.given >= 0:
            stream.asked.satisfied(told.given + 1, ENDLESS)
        if told.read_to - told.first < CACHED_NUMBERS_MAX:
            self._remember(told.topic, stream, told.items)
        return list(stream.curious)

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
            _add(self._curious, self.identities.get(session, ""), known.weight - before)
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

    def _remember(self, topic: str, stream: _Stream, items: Sequence[LogItem]) -> None:
        for run in runs(items):
            for first, last in stream.cache.missing(run[0].first, run[-1].last):
                if (first, last) == (run[0].first, run[-1].last):
                    self._keep(topic, stream, run)
                elif part := [item for item in run if first <= item.first and item.last <= last]:
                    self._keep(topic, stream, part)
        while self._cached_bytes > CACHE_BYTES_MAX:
            (oldest, first), (last, size) = self._cached.popitem(last=False)
            self._cached_bytes -= size
            self._streams[oldest].cache.remove(first, last)

    def _keep(self, topic: str, stream: _Stream, run: Sequence[LogItem]) -> None:
        first, last, size = run[0].first, run[-1].last, RUN_BYTES + sum(map(size_of, run))
        stream.cache.put(first, last, run)
        self._cached[topic, first] = (last, size)
        self._cached_bytes += size

    def forget(self, session: str) -> None:
        """A client is gone."""
        self.sessions.pop(session, None)
        self._forget_session(session)
        self.identities.pop(session, None)

    def _forget_session(self, session: str) -> None:
        for subscription in list(self._spoken_of.get(session, ())):
            follower = (session, subscription)
            for topic in list(self._held.get(follower, ())):
                self._leave(follower, topic)
            self._held.pop(follower, None)
            self._stop_missing(follower)

    def _stop_missing(self, follower: Follower) -> None:
        """A subscription has nothing to say here any more."""
        session, subscription = follower
        identity, subscriptions = self.identities.get(session, ""), self._spoken_of[session]
        for topic in subscriptions.pop(subscription):
            stream = self._streams.get(topic)
            if stream is not None:
                self._forget_curious(topic, stream, identity, follower)
        if not subscriptions:
            del self._spoken_of[session]

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
        topics = self._spoken_of.get(session, {}).get(subscription)
        if topics is not None:
            topics.pop(topic, None)
            if not topics and follower not in self._held:
                del self._spoken_of[session][subscription]
                if not self._spoken_of[session]:
                    del self._spoken_of[session]

    def take_log_requests(self) -> list[tuple[int, LogRequest]]:
        """What to ask the owners for."""
        recalls = [(rank, LogRequest(wants)) for rank, wants in self.recalls.items() if wants]
        self.recalls.clear()
        return recalls


def _last_of(item: LogItem) -> int:
    return item.last


def _add(counts: dict[str, int], key: str, change: int) -> None:
    if change:
        counts[key] = counts.get(key, 0) + change
        if not counts[key]:
            del counts[key]
