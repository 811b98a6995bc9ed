"""Whether the ENS brings a subscription its events, or its home stage does so instead.

Whatever the ENS loses, the logs bring. So a broker that brings *nothing*, since it does not let the client read, or since the
publishers are on another one, is not felt: everything comes, a little later. That must not go unsaid. The owner of a topic says
how far it is when acknowledgements are missing. If that is beyond all that has come, the ENS has brought nothing of it for as
long; and if that is so again and again, for `STARVED_S`, and nothing of the topic has come by the ENS in between, the ENS does
not bring this topic.
"""

from __future__ import annotations

import attrs

STARVED_S = 3.0
"""So long the stage has to bring a topic alone before that is said."""


@attrs.define(slots=True)
class BrokerSilence:
    """A topic of which the stage has brought something, and the ENS nothing since."""

    since: float
    """when the stage has said so first"""
    said_at: float
    """and last"""
    brought: int = 0
    """numbers that the stage has brought since"""

    @property
    def is_starved(self) -> bool:
        """Whether it lasts."""
        return self.said_at - self.since >= STARVED_S


@attrs.define(eq=False)
class Starving:
    """What the ENS does not bring to one subscription."""

    brought: int = 0
    """numbers that the stage has brought while the ENS brought nothing of their topics, in all"""
    silent: dict[str, BrokerSilence] = attrs.field(factory=dict)

    def brought_by_stage(self, topic: str, now: float) -> None:
        """The stage says that a topic is beyond all that has come of it."""
        silence = self.silent.get(topic)
        if silence is None:
            self.silent[topic] = BrokerSilence(now, now)
        else:
            silence.said_at = now

    def came_by_stage(self, topic: str, count: int) -> None:
        """The stage has brought what had not come."""
        silence = self.silent.get(topic)
        if silence is not None:
            silence.brought += count
            self.brought += count

    def came_by_ens(self, topic: str) -> None:
        """The ENS has brought something of a topic."""
        self.silent.pop(topic, None)

    left = came_by_ens
    """Nothing of a topic is wanted any more."""

    @property
    def topics(self) -> dict[str, BrokerSilence]:
        """The topics that the ENS does not bring."""
        return {topic: silence for topic, silence in self.silent.items() if silence.is_starved}
