"""Up to where the subscriptions of one registrar need nothing any more: what the owners of topics may forget.

What is journalled is where each subscription has gained and lost its topics, and what those with a name have acknowledged. How
far the others are is said by their clients again and again (`Follows`), and is only remembered here: without a word of a
client, it is taken to need everything since it has gained the topic.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import Follows, Passed
from ordered_pubsub.core.registrar import Registrar


@attrs.define(eq=False)
class Needs:
    """What the subscriptions of one registrar need of the logs."""

    registrar: Registrar
    _said: dict[str, dict[str, int]] = attrs.field(factory=dict)
    """subscription without a name → up to where it needs nothing, as its client says"""

    def follows(self, said: Follows) -> Passed | None:
        """A client says how far a subscription is; return what is to be journalled of that."""
        subscription = self.registrar.subscriptions.get(said.subscription)
        if subscription is None:
            self._said.pop(said.subscription, None)
            return None
        if subscription.resume is None:
            known = self._said.setdefault(said.subscription, {})
            for topic, count in said.acked.items():
                known[topic] = max(count, known.get(topic, 0))
        topics = subscription.passed(said) if subscription.resume is None else ()
        return Passed(said.subscription, topics) if topics else None

    def floors(self) -> dict[str, int]:
        """For each topic, up to where no subscription needs anything."""
        floors: dict[str, int] = {}
        for name, subscription in self.registrar.subscriptions.items():
            said = self._said.get(name, {})
            for topic, low in subscription.floors().items():
                need = max(low, said.get(topic, 0))
                floors[topic] = min(need, floors.get(topic, need))
        for name in [name for name in self._said if name not in self.registrar.subscriptions]:
            del self._said[name]
        return floors
