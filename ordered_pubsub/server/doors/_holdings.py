"""The topics that a client's subscriptions hold, as far as it was asked on this connection: what `[limits]` bounds at the door.

What outlives the connection is bounded by the stages (`core.stage.quotas`).
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import ChangeAsk
from ordered_pubsub.server.doors.rules import Rules

CHANGES_REMEMBERED_MAX = 4_096


@attrs.define(eq=False)
class Holdings:
    """What one connection has asked for."""

    identity: str
    rules: Rules
    subscriptions: dict[str, set[str]] = attrs.field(factory=dict)
    """subscription → its topics"""
    _counted: dict[int, ChangeAsk] = attrs.field(factory=dict)
    """changes that are counted, by their sequence: one that is asked again does not count twice"""

    def excess(self, sequence: int, ask: ChangeAsk) -> str:
        """Why a change asks for too much; empty if it does not, and then it counts."""
        if self._counted.get(sequence) == ask:
            return ""
        excess = self._count(ask)
        if not excess:
            if len(self._counted) >= CHANGES_REMEMBERED_MAX:
                del self._counted[next(iter(self._counted))]
            self._counted[sequence] = ask
        return excess

    def _count(self, ask: ChangeAsk) -> str:
        """Take note of what a subscription holds after a change, if it may."""
        limits = self.rules.limits
        if ask.ends:
            self._add(-len(self.subscriptions.pop(ask.subscription, ())))
            return ""
        held = self.subscriptions.get(ask.subscription)
        if held is None and len(self.subscriptions) >= limits.subscriptions_per_client_max:
            return (
                f"a client may have {limits.subscriptions_per_client_max} subscriptions "
                "(limits.subscriptions_per_client_max): close one, or hold more topics in one"
            )
        then = (held or set()).difference(ask.remove).union(ask.add)
        if len(then) > limits.topics_per_subscription_max:
            return (
                f"a subscription may hold {limits.topics_per_subscription_max} topics "
                f"(limits.topics_per_subscription_max), not {len(then)}"
            )
        most = limits.held_topics_per_identity_max
        if len(then) > len(held or ()) and self._add(0) + len(then) - len(held or ()) > most:
            return f"the clients of an identity may hold {most} topics (limits.held_topics_per_identity_max)"
        self._add(len(then) - len(held or ()))
        self.subscriptions[ask.subscription] = then
        return ""

    def forget(self) -> None:
        """The connection is gone."""
        self._add(-sum(map(len, self.subscriptions.values())))
        self.subscriptions.clear()

    def _add(self, change: int) -> int:
        """The clients of this identity ask for more topics, or fewer; return how many these are now."""
        held = self.rules.held
        held[self.identity] = count = held.get(self.identity, 0) + change
        return count
