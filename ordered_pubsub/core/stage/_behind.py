"""Whether clients have seen more than their stage knows of: it may run on an older copy of its store, and give numbers twice.

That is only what clients say, and no proof: who may subscribe to a topic may say so, too, of whatever number. So a stage that
hears it goes on, and tells whoever runs it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ordered_pubsub.core.stage.stage import Stage

TOPICS_MAX = 1_000
"""So many topics are named; whoever lies makes a stage remember no more."""


@attrs.define(eq=False)
class Behind:
    """What one stage has heard of that."""

    stage: Stage
    topics: dict[str, int] = attrs.field(factory=dict)
    """own topic → the number up to which somebody has it, though it was not given yet"""

    def hear(self, acked: Mapping[str, int | None]) -> None:
        """Somebody says how far topics are, of this stage and of others."""
        stage, known = self.stage, self.stage.state.clocks.numbers
        for topic, count in acked.items():
            if not count or count <= known.get(topic, 0):
                continue
            has_room = topic in self.topics or len(self.topics) < TOPICS_MAX
            if has_room and stage.context.is_own(topic) and count > stage.waking.given(topic):
                self.topics[topic] = max(count, self.topics.get(topic, 0))
