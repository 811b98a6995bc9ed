"""The client's side of a subscription's life: it stops by itself before its registrar gives it up.

A registrar ends a subscription of whose client it has heard nothing for `session_ttl_s` (`core.liveness.expiry`). From then on
the order is decided without it: what still came by the ENS could be notified in another order than to others. So a client says
now and then that it is there (`KeepAlive`), which its home stage hands on, and each registrar answers. A subscription whose
registrar has answered nothing that was said within half of that time is *cut off*: it is notified of nothing more. That is judged
before anything is notified, and by when the client has spoken, not by when the answer came, so a process that has slept knows it
as well.

Subscriptions with a name are kept for days, and are not judged here.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.liveness.lease import Renewals
from ordered_pubsub.core.messages import KeepAlive, KeepAliveAck

SESSION_TTL_S = 300.0
SAY_SHARE = 20
"""It speaks so often within `session_ttl_s`."""


@attrs.frozen
class _Watched:
    rank: int
    since: float


@attrs.define(eq=False)
class Lifeline:
    """The subscriptions of one session that end with it."""

    session: str
    session_ttl_s: float = SESSION_TTL_S
    _renewals: Renewals = attrs.field(init=False)
    _watched: dict[str, _Watched] = attrs.field(factory=dict)
    _due_at: float = float("-inf")
    _safe_until: float = float("-inf")
    """nothing is cut off before"""

    def __attrs_post_init__(self) -> None:
        self._renewals = Renewals(self.session_ttl_s / 2)

    def change_time(self, session_ttl_s: float, now: float) -> None:
        """A stage says after how long a registrar gives up."""
        self.session_ttl_s = session_ttl_s
        self._renewals.change(session_ttl_s / 2, now)
        self._due_at = self._safe_until = float("-inf")

    def watch(self, subscription: str, rank: int, since: float) -> None:
        """A subscription was asked for then; this stage is its registrar."""
        self._watched[subscription] = _Watched(rank, since)
        self._safe_until = float("-inf")

    def unwatch(self, subscription: str) -> None:
        """A subscription is over."""
        self._watched.pop(subscription, None)

    def connected(self) -> None:
        """There is a home stage, which has heard nothing yet."""
        self._due_at = float("-inf")

    def take_due(self, now: float) -> KeepAlive | None:
        """What to say now, if anything."""
        if now < self._due_at or not self._watched:
            return None
        self._due_at = now + self.session_ttl_s / SAY_SHARE
        return KeepAlive(self.session, self._renewals.said(now))

    def heard(self, heard: KeepAliveAck, now: float) -> None:
        """A registrar has heard of this session."""
        self._renewals.answered(heard.rank, heard.serial, now)
        self._safe_until = float("-inf")

    def is_cut(self, subscription: str, now: float) -> bool:
        """Whether a subscription may be notified of nothing more."""
        if now < self._safe_until:
            return False
        watched = self._watched.get(subscription)
        return watched is not None and now >= self._renewals.until(watched.rank, watched.since)

    def find_cut(self, now: float) -> list[str]:
        """All that are cut off."""
        until = {name: self._renewals.until(watched.rank, watched.since) for name, watched in self._watched.items()}
        self._safe_until = min(until.values(), default=float("-inf"))
        return [name for name, end in until.items() if now >= end]
