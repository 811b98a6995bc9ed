"""Who has seen numbers that may be void: home stages ask their clients, and these do not use them until it is decided.

This is the home stage's part: an owner's question goes to every client that is connected, and the answers go back as one. It
is soft state: an owner that has no answer asks again. A client that is there and does not answer must not hold all others up for
ever: after `session_ttl_s` its home does not say any more that it is there, so its subscriptions end as those of one that is not.
What the owner decides is in `core.liveness.voids`, what a subscription does until then in `core.subscriber._withheld`.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import SeenAsk, SeenReply
from ordered_pubsub.core.ranges import Ranges

FORGET_S = 60.0
"""An owner that has not repeated its question for so long has its answer."""


@attrs.define(slots=True)
class _Round:
    """The clients of one home stage are being asked."""

    seal: SeenAsk
    heard: float
    asked: dict[str, float] = attrs.field(factory=dict)
    """who was asked → since when"""
    answered: dict[str, bool] = attrs.field(factory=dict)
    news: list[str] = attrs.field(factory=list)
    """who has answered since the owner was told last"""
    seen: Ranges = attrs.field(factory=Ranges)


@attrs.define(eq=False)
class Rounds:
    """What the clients of one home stage are being asked."""

    _rounds: dict[tuple[int, int], _Round] = attrs.field(factory=dict)
    """(rank, serial) of the question"""

    def ask(self, seal: SeenAsk, sessions: Iterable[str], now: float) -> list[SeenAsk]:
        """An owner asks, perhaps again: which clients to ask. Who has answered is named once more."""
        key = (seal.rank, seal.serial)
        one = self._rounds.get(key)
        if one is None or (one.seal.topic, one.seal.numbers) != (seal.topic, seal.numbers):
            one = self._rounds[key] = _Round(seal, now)
        one.heard = now
        one.news = list(one.answered)
        asked = [session for session in sessions if session not in one.answered]
        for session in asked:
            one.asked.setdefault(session, now)
        return [replace(seal, session=session) for session in asked]

    def silent(self, since: float) -> list[str]:
        """Who was asked by then, and has not answered."""
        return [
            session
            for one in self._rounds.values()
            for session, at in one.asked.items()
            if at <= since and session not in one.answered
        ]

    def topic(self, sealed: SeenReply) -> str | None:
        """Which topic somebody was asked about; None if nobody asks that."""
        one = self._rounds.get((sealed.rank, sealed.serial))
        return None if one is None else one.seal.topic

    def answered(self, sealed: SeenReply) -> None:
        """Clients answer, each once."""
        one = self._rounds.get((sealed.rank, sealed.serial))
        news = [] if one is None else [session for session in sealed.sessions if session not in one.answered]
        if one is not None and news:
            one.answered.update(dict.fromkeys(news, True))
            one.news += news
            seen = Ranges(sealed.seen)
            for first, last in (part for asked in one.seal.numbers for part in seen.within(*asked)):
                one.seen.add(first, last)

    def tick(self, now: float) -> list[SeenReply]:
        """Time passes: what the owners are to be told. What nobody asks for any more is forgotten."""
        told: list[SeenReply] = []
        for (rank, serial), one in list(self._rounds.items()):
            if one.news:
                told.append(SeenReply(serial, rank, one.news, list(one.seen)))
                one.news = []
            if one.heard + FORGET_S <= now:
                del self._rounds[rank, serial]
        return told
