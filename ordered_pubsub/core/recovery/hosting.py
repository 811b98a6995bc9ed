"""The clients that are at home at one stage, and what that tells others about them. It is soft state only: it is said again.

The owner of a topic is told up to where all subscriptions here have acknowledged it. If it says that it expects more, those that
are behind are told. The registrars are told what their subscriptions have said, several words as one, and which sessions live.
What one identity may follow is bounded for all its sessions together; who follows more is told that it ends.

What the clients miss is in `curiosity`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    AckExpected,
    Ended,
    HomeFloors,
    Progress,
    ProgressReports,
    SessionsAlive,
    TopicHeads,
    ToSubscriber,
)
from ordered_pubsub.core.ranges import ENDLESS
from ordered_pubsub.core.recovery.curiosity import Curiosity, Follower
from ordered_pubsub.core.topology import Topology

TOLD_AT_ONCE = 250
"""So many topics an owner is told of in one message."""
ALIVE_S = 15.0
"""So often a home stage says who is connected to it."""


def _endless(identity: str) -> int:
    """Nobody is counted."""
    return ENDLESS


@attrs.define(eq=False)
class Hosting:
    """The clients that are at home at one stage, and how far their subscriptions are."""

    topology: Topology
    tells: list[tuple[str, ToSubscriber]] = attrs.field(factory=list)
    """session, and what it is told; the caller empties it"""
    sessions: dict[str, int] = attrs.field(factory=dict)
    """who is connected → the serial of what it has said last"""
    identities: dict[str, str] = attrs.field(factory=dict)
    """session → who it is, of those that are connected"""
    followed_max: Callable[[str], int] = _endless
    """how many topics the sessions of an identity may follow at once, each counted for each subscription"""
    alive_s: float = ALIVE_S
    curiosity: Curiosity = attrs.field(init=False)
    """what they miss"""
    _acked: dict[str, dict[Follower, int]] = attrs.field(factory=dict)
    """topic → the subscriptions that hold it, and up to where they have acknowledged it"""
    _held: dict[str, dict[str, dict[str, bool]]] = attrs.field(factory=dict)
    """session → its subscriptions that follow something → their topics"""
    _followed: dict[str, int] = attrs.field(factory=dict)
    """identity → how many topics its subscriptions follow"""
    _news: OrderedDict[Follower, Progress] = attrs.field(factory=OrderedDict)
    """what subscriptions have said and the registrars do not know yet"""
    _stirred: dict[str, bool] = attrs.field(factory=OrderedDict)
    """topics of which the owners are to be told"""
    _said_alive_at: float = float("-inf")

    def __attrs_post_init__(self) -> None:
        self.curiosity = Curiosity(self.topology, self.identities, self.tells)

    # -- who is here --------------------------------------------------------------------------------------------------

    def client_came(self, session: str, identity: str = "") -> None:
        """A client is at home here now."""
        self.sessions[session] = 0
        self.identities[session] = identity

    def forget(self, session: str) -> None:
        """A client is gone."""
        self.sessions.pop(session, None)
        for subscription in list(self._held.get(session, ())):
            self._leave_all((session, subscription))
        self.curiosity.forget(session)
        self.identities.pop(session, None)

    def take_alive(self, now: float) -> SessionsAlive | None:
        """Who is connected here, now and then."""
        if now < self._said_alive_at + self.alive_s or not self.sessions:
            return None
        self._said_alive_at = now
        return SessionsAlive(dict(self.sessions))

    # -- how far they are ---------------------------------------------------------------------------------------------

    def note_progress(self, session: str, follows: Progress) -> None:
        """A subscription says how far it is."""
        follower = (session, follows.subscription)
        held = self._held.setdefault(session, {}).setdefault(follows.subscription, {})
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
            self._leave_all(follower)

    def _end_following(self, follower: Follower, identity: str) -> None:
        """A subscription follows more than its identity may: it ends, and is told why."""
        self._leave_all(follower)
        self._news.pop(follower, None)
        session, subscription = follower
        reason = (
            f"the subscriptions of identity {identity!r} at this stage follow {self.followed_max(identity)} topics, as many as "
            "they may (limits.held_topics_per_identity_max, for each stage): end some of them"
        )
        self.tells.append((session, Ended(subscription, session, "limit", reason)))

    def _leave_all(self, follower: Follower) -> None:
        """A subscription follows nothing any more, and misses nothing."""
        session, subscription = follower
        for topic in list(self._held[session][subscription]):
            self._leave(follower, topic)
        del self._held[session][subscription]
        if not self._held[session]:
            del self._held[session]
        self.curiosity.stop(session, subscription)

    def _leave(self, follower: Follower, topic: str) -> None:
        session, subscription = follower
        del self._held[session][subscription][topic]
        _add(self._followed, self.identities.get(session, ""), -1)
        followers = self._acked[topic]
        del followers[follower]
        if not followers:
            del self._acked[topic]
        self._stirred[topic] = True

    def followed_by(self, session: str) -> dict[str, list[str]]:
        """The subscriptions of a session that have said how far they are, and of which topics."""
        return {name: list(topics) for name, topics in self._held.get(session, {}).items()}

    # -- what others are told of that ---------------------------------------------------------------------------------

    def _note_news(self, follower: Follower, follows: Progress) -> None:
        """The registrar is told what is said, several words as one."""
        before = self._news.get(follower)
        if before is not None and not follows.is_all:
            follows = replace(
                follows, acked={**before.acked, **follows.acked}, is_all=before.is_all, version=before.version
            )
        self._news[follower] = follows

    def take_progress(self) -> list[tuple[int, ProgressReports]]:
        """What the registrars are to be told, some of it at a time."""
        by_rank: dict[int, list[Progress]] = {}
        count = 0
        while self._news and count < TOLD_AT_ONCE:
            _, follows = self._news.popitem(last=False)
            count += 1 + len(follows.acked)
            by_rank.setdefault(self.topology.registrar(follows.subscription), []).append(follows)
        return [(rank, ProgressReports(news)) for rank, news in by_rank.items()]

    def expected(self, expected: AckExpected) -> None:
        """An owner misses acknowledgements: who is behind?"""
        behind: dict[Follower, dict[str, int]] = {}
        for topic, count in expected.counts.items():
            for follower, acked in self._acked.get(topic, {}).items():
                if acked < count:
                    behind.setdefault(follower, {})[topic] = count
        for (session, subscription), counts in behind.items():
            self.tells.append((session, TopicHeads(subscription, counts)))

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


def _add(counts: dict[str, int], key: str, change: int) -> None:
    if change:
        counts[key] = counts.get(key, 0) + change
        if not counts[key]:
            del counts[key]
