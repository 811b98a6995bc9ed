"""Subscriptions whose client is not heard of any more: after a while their registrar ends them.

Home stages say now and then which sessions are connected to them. What is not heard of for `session_ttl_s` (a subscription
without a name) or `named_ttl_s` (one with a name) is ended, by a change like any other. Only what was heard since this stage
started counts, so that a restart takes nobody's time away; and a client that was cut off for too long and comes back is told.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs

from ordered_pubsub.core.liveness.lifeline import SESSION_TTL_S
from ordered_pubsub.core.messages import Ended, KeepAliveSeen, SessionsAlive
from ordered_pubsub.core.order.registrar import Registrar

NAMED_TTL_S = 7 * 86_400.0
LOOK_S = 5.0
"""So often the subscriptions are looked at."""
AT_ONCE = 2_000
TOLD_MAX = 10_000
"""Sessions that are told, if they come back, what was ended without them."""


@attrs.define(eq=False)
class Expiry:
    """When the subscriptions of one registrar have been heard of."""

    registrar: Registrar
    session_ttl_s: float = SESSION_TTL_S
    named_ttl_s: float = NAMED_TTL_S
    _heard: dict[str, float] = attrs.field(factory=dict)
    """session → when"""
    _known: dict[str, float] = attrs.field(factory=dict)
    """subscription → since when: its session may have been silent before"""
    _looked_at: float = float("-inf")
    _turn: deque[str] = attrs.field(factory=deque)
    """subscriptions that are still to be looked at"""
    _ended: OrderedDict[str, list[Ended]] = attrs.field(factory=OrderedDict)

    def heard(self, alive: SessionsAlive, now: float) -> tuple[KeepAliveSeen, list[Ended]]:
        """These are connected; return the answer, and what those have to be told that had been given up."""
        told: list[Ended] = []
        noted: dict[str, int] = {}
        for session, serial in alive.sessions.items():
            if session in self.registrar.held:
                self._heard[session] = now
                noted[session] = serial
            told += self._ended.pop(session, [])
        return KeepAliveSeen(noted), told

    def find_expired(self, now: float) -> list[Ended]:
        """What is to be ended now: some subscriptions are looked at at a time."""
        if not self._turn:
            if now < self._looked_at + LOOK_S:
                return []
            self._looked_at = now
            self._turn.extend(self.registrar.subscriptions)
            self._forget_who_is_gone()
        expired: list[Ended] = []
        for _ in range(min(AT_ONCE, len(self._turn))):
            name = self._turn.popleft()
            subscription = self.registrar.subscriptions.get(name)
            if subscription is None:
                continue
            heard = max(self._heard.setdefault(subscription.client, now), self._known.setdefault(name, now))
            ttl_s = self.session_ttl_s if subscription.resume is None else self.named_ttl_s
            if now >= heard + ttl_s and not (subscription.under_way or subscription.waiting):
                reason = (
                    f"subscription {name!r} was ended, since nothing was heard of its client for {now - heard:.0f} s"
                )
                expired.append(Ended(name, subscription.client, "expired", reason))
        for ended in expired:
            self._ended.setdefault(ended.session, []).append(ended)
        while len(self._ended) > TOLD_MAX:
            self._ended.popitem(last=False)
        return expired

    def _forget_who_is_gone(self) -> None:
        for session in [session for session in self._heard if session not in self.registrar.held]:
            del self._heard[session]
        for name in [name for name in self._known if name not in self.registrar.subscriptions]:
            del self._known[name]
