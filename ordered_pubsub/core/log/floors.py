"""Up to where the subscriptions of one registrar need nothing any more: what the owners of topics may forget.

What is journalled is where each subscription has gained and lost its topics, and what those with a name have acknowledged. How
far the others are is said by their clients again and again (`Progress`), and is only remembered here: without a word of a
client, it is taken to need everything since it has gained the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ordered_pubsub.core.messages import Progress, TopicsReleased
from ordered_pubsub.core.order.registered import SubscriptionState
from ordered_pubsub.core.order.registrar import Registrar

AT_ONCE = 200
"""So many topics of subscriptions are looked at in one step."""


LONG = 16
"""So many changes of a subscription are looked through anew each time."""


@attrs.define(eq=False)
class Needs:
    """What the subscriptions of one registrar need of the logs."""

    registrar: Registrar
    _said: dict[str, dict[str, int]] = attrs.field(factory=dict)
    """subscription without a name → up to where it needs nothing, as its client says"""
    _long: dict[str, tuple[tuple[int, ...], dict[str, int], dict[str, int]]] = attrs.field(factory=dict)
    """subscription with a name and many changes that it has not acknowledged → what it was like, and its floors then"""

    def note_progress(self, said: Progress) -> TopicsReleased | None:
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
        return TopicsReleased(said.subscription, topics) if topics else None

    def finding(self, owner_of: Callable[[str], int], found: dict[int, dict[str, int]]) -> Iterator[None]:
        """Find up to where no subscription needs anything, in small steps: `found` gets that of the topics of each owner.

        What changes meanwhile does no harm. A subscription that is begun, or gains a topic, when this is under way needs nothing
        of what there was before, unless it begins in the past: then it comes too late, as if it began after the answer.
        """
        done = 0
        for name in list(self.registrar.subscriptions):
            subscription = self.registrar.subscriptions.get(name)
            if subscription is None:
                continue
            said = self._said.get(name, {})
            floors = self._floors_of(name, subscription)
            for topic, low in floors.items():
                need, of_owner = max(low, said.get(topic, 0)), found.setdefault(owner_of(topic), {})
                of_owner[topic] = min(need, of_owner.get(topic, need))
            done += 5 + len(floors)
            if done >= AT_ONCE:
                done = 0
                yield
        for known in (self._said, self._long):
            for name in [name for name in known if name not in self.registrar.subscriptions]:
                del known[name]

    def _floors_of(self, name: str, subscription: SubscriptionState) -> dict[str, int]:
        """Up to where a subscription needs nothing; remembered where that is long to find, as long as nothing has changed."""
        resume = subscription.resume
        if resume is None or len(resume.changes) < LONG:
            return subscription.floors()
        state = (subscription.version, resume.version, resume.position, len(resume.changes), len(subscription.gaining))
        known = self._long.get(name)
        if known is None or known[0] != state or known[1] is not resume.clock:
            known = self._long[name] = (state, resume.clock, subscription.floors())
        return known[2]
