"""How long the log keeps events.

An event is kept until all that hold its topic have acknowledged it, and on top of that for `keep_age_s`, and among the last
`keep_bytes`, for those who come late. `max_age_s` and `max_bytes` bound it whatever happens: who needs what they take away is
told so (`HistoryLost`).

Who needs a topic is known by the registrars, connected or not: each says now and then up to where its subscriptions need nothing
any more (`Floors`). As long as one of them has not said so since this stage started, everything is needed. And it is asked:
of a topic that it does not name, nobody needs what there was when it was asked, but a subscription may just be gaining it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.shelf import Shelf
from ordered_pubsub.core.messages import AskFloors, Floors
from ordered_pubsub.core.topics import matches

LOOK_S = 5.0
"""So often each topic is looked at."""
TOPICS_AT_ONCE = 2
"""… so many in one step."""
BUCKETS = 64
"""In so many parts the bytes of a topic are counted: what is dropped for its size is a multiple of one."""
BUCKET_BYTES_MAX = 1 << 20


@attrs.frozen
class Policy:
    """How long events of some topics are kept."""

    keep_age_s: float = 86_400.0
    keep_bytes: int | None = None
    max_age_s: float = 7 * 86_400.0
    max_bytes: int | None = None


@attrs.frozen
class Policies:
    """The rules of one system: patterns of topics with their policies, of which the first that matches holds."""

    rules: tuple[tuple[str, Policy], ...] = ()
    default: Policy = Policy()

    def of(self, topic: str) -> Policy:
        """The policy of a topic."""
        return next((policy for pattern, policy in self.rules if matches(pattern, topic)), self.default)


@attrs.define(slots=True)
class _Sizes:
    """How many bytes of events a topic has, the oldest first: buckets of (last number, bytes)."""

    bucket_bytes: int
    buckets: deque[tuple[int, int]] = attrs.field(factory=deque)
    total: int = 0

    def add(self, last: int, size: int) -> None:
        self.total += size
        if self.buckets and self.buckets[-1][1] + size <= self.bucket_bytes:
            _, before = self.buckets.pop()
            size += before
        self.buckets.append((last, size))

    def forget(self, up_to: int) -> None:
        while self.buckets and self.buckets[0][0] <= up_to:
            self.total -= self.buckets.popleft()[1]

    def beyond(self, most: int) -> int:
        """Up to which number everything is beyond the last so many bytes; 0 if nothing is."""
        total, last = self.total, 0
        for number, size in self.buckets:
            if total <= most:
                break
            total -= size
            last = number
        return last


def _nothing(round: int) -> tuple[str, ...]:
    return ()


@attrs.define(eq=False)
class LogTrimmer:
    """What the log of one stage may forget."""

    shelf: Shelf
    """what is on disk"""
    policies: Policies
    registrars: int
    """how many stages there are, each of which is a registrar"""
    topics: Callable[[], Iterable[str]] = attrs.field(
        default=attrs.Factory(lambda self: self.shelf.topics, takes_self=True)
    )
    """the topics that have a log"""
    _floors: dict[int, tuple[dict[str, int], dict[str, int]]] = attrs.field(factory=dict)
    """rank → what its registrar has said, and the last numbers when it was asked"""
    _answered: dict[int, int] = attrs.field(factory=dict)
    """rank → the round in which it has said so"""
    round: int = 0
    """how often all were asked"""
    _asked_with: dict[str, int] = attrs.field(factory=dict)
    """the last numbers when this round began"""
    _sizes: dict[str, _Sizes] = attrs.field(factory=dict)
    _turn: deque[str] = attrs.field(factory=deque)
    _looked_at: float = float("-inf")

    def ask(self, numbers: Mapping[str, int], about: Callable[[int], tuple[str, ...]] = _nothing) -> AskFloors:
        """Begin another round of asking the registrars; these are the last numbers now. `about` says what else to ask for."""
        self.round += 1
        self._asked_with = dict(numbers)
        return AskFloors(self.round, about(self.round))

    def floors(self, registrar: int, floors: Floors) -> None:
        """A registrar says up to where its subscriptions need nothing any more."""
        if floors.round == self.round:
            self._floors[registrar] = (floors.acked, self._asked_with)
            self._answered[registrar] = floors.round

    def has_answers(self, after: int) -> bool:
        """Whether all registrars have answered in a round after this one."""
        return len(self._answered) == self.registrars and min(self._answered.values()) > after

    def is_named(self, topic: str) -> bool:
        """Whether a subscription may need something of a topic, or is gaining it, by what the registrars have said last."""
        return any(topic in acked for acked, _ in self._floors.values())

    def rest(self, topics: Iterable[str]) -> None:
        """Nothing is left of these."""
        for topic in topics:
            self._sizes.pop(topic, None)

    @property
    def is_weighing(self) -> bool:
        """Whether it matters for any topic how much is written."""
        return bool(self._sizes)

    def written(self, topic: str, last: int, size: int) -> None:
        """Events were written."""
        sizes = self._sizes.get(topic)
        if sizes is not None:
            sizes.add(last, size)

    def find_old(self, now: float, wall_s: float) -> list[tuple[str, int]]:
        """Topics, and up to which number they may be forgotten: some topics at a time."""
        if not self._turn:
            if now < self._looked_at + LOOK_S:
                return []
            self._looked_at = now
            self._turn.extend(self.topics())
        old: list[tuple[str, int]] = []
        for _ in range(min(TOPICS_AT_ONCE, len(self._turn))):
            topic = self._turn.popleft()
            floor, up_to = self.shelf.floor(topic), self._old_up_to(topic, wall_s)
            if up_to > floor:
                old.append((topic, up_to))
        return old

    @property
    def is_looking(self) -> bool:
        """Whether there are topics that it has not looked at yet since it began to."""
        return bool(self._turn)

    def forgotten(self, topic: str, up_to: int) -> None:
        """The log has forgotten a topic's events up to here."""
        if topic in self._sizes:
            self._sizes[topic].forget(up_to)

    def _old_up_to(self, topic: str, wall_s: float) -> int:
        policy, last, reader = self.policies.of(topic), self.shelf.last(topic), LogReader(self.shelf)
        up_to = min(self._acked(topic), reader.last_before(topic, wall_s - policy.keep_age_s))
        if policy.keep_bytes is not None:
            up_to = min(up_to, self._sizes_of(topic, policy.keep_bytes).beyond(policy.keep_bytes))
        up_to = max(up_to, reader.last_before(topic, wall_s - policy.max_age_s))
        if policy.max_bytes is not None:
            up_to = max(up_to, self._sizes_of(topic, policy.max_bytes).beyond(policy.max_bytes))
        return min(up_to, last)

    def _acked(self, topic: str) -> int:
        """Up to where nobody needs a topic."""
        if len(self._floors) < self.registrars:
            return 0
        return min(acked.get(topic, numbers.get(topic, 0)) for acked, numbers in self._floors.values())

    def _sizes_of(self, topic: str, most: int) -> _Sizes:
        sizes = self._sizes.get(topic)
        if sizes is None:
            sizes = self._sizes[topic] = _Sizes(min(BUCKET_BYTES_MAX, most // BUCKETS))
            for last, size in _lengths(self.shelf, topic):
                sizes.add(last, size)
        return sizes


def _lengths(shelf: Shelf, topic: str) -> Iterator[tuple[int, int]]:
    for row in shelf.get("events", topic, shelf.floor(topic) + 1, shelf.last(topic)):
        yield row.last, len(row.data)
