"""A transaction of which the first event is next, and not all is here: a total subscription is notified of it in one go.

How much of it lacks is counted when its first event would be next, and counted down by whatever comes of it. When nothing seems
to lack, it is counted again: a number may have come twice, by the broker and by its log, or have been let go of.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import Transaction


@attrs.define(slots=True, eq=False)
class Incomplete:
    """A transaction that is waited for."""

    transaction: Transaction
    lacking: int
    """so many of its events are not here, at least as long as none was let go of"""

    def has(self, topic: str, number: int) -> bool:
        """Whether an event is a part of it."""
        first, last = self.transaction.ranges.get(topic, (1, 0))
        return first <= number <= last

    def came(self, topic: str, first: int, last: int) -> bool:
        """These numbers of a topic have come; whether nothing of it seems to lack any more."""
        begins, ends = self.transaction.ranges.get(topic, (1, 0))
        come = min(last, ends) - max(first, begins) + 1
        if come > 0:
            self.lacking -= come
        return self.lacking <= 0
