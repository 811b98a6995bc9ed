"""What others have changed of subscriptions: their clients are told, and told again until they say that they know.

A transaction may change the subscription of a client that has not asked for it, and that may be away. As soon as it has passed
its last stage, the registrar tells all home stages; where the client is at home, it is told. What gets lost on the way is said
again, at longer and longer intervals; and a client asks by itself whenever it connects, or meets a mark of a change of which it
knows nothing.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.messages import AskNews, AskVersion, News, VersionThere
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage.stage import Stage

FIRST_S, MOST_S = 2.0, 120.0
"""So often it is told again, at first and in the end."""
TOLD_AT_ONCE = 100
"""So many subscriptions are told again at once."""


@attrs.define(slots=True)
class _Told:
    due_at: float
    pause_s: float = FIRST_S


@attrs.define(eq=False)
class NewsTelling:
    """What one registrar tells, and what one home stage passes on."""

    stage: Stage
    clock: Clock
    _told: dict[str, _Told] = attrs.field(factory=dict)

    def tell_changed(self) -> None:
        """Tell the clients of the subscriptions that were changed just now."""
        effects = self.stage.effects
        changed, effects.changed = effects.changed, []
        for name in changed:
            self._tell(name)

    def _tell(self, name: str) -> None:
        news = self.stage.news_of(name)
        if news is None:
            self._told.pop(name, None)
            return
        told = self._told.setdefault(name, _Told(self.clock.now))
        told.due_at, told.pause_s = self.clock.now + told.pause_s, min(2 * told.pause_s, MOST_S)
        effects = self.stage.effects
        effects.tells.append((news.session, news))
        effects.sends += [(peer, news) for peer in self.stage.peers.greeted]

    def tick(self) -> None:
        """Tell once more who has not said that it knows; the clients of one that was started again as well."""
        subscriptions, now = self.stage.state.registrar.subscriptions, self.clock.now
        for name in self.stage.state.registrar.untold:
            self._told.setdefault(name, _Told(now))
        due = [name for name, told in self._told.items() if told.due_at <= now]
        for name in due[:TOLD_AT_ONCE]:
            if name in subscriptions:
                self._tell(name)
            else:
                del self._told[name]

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def stage_for(self, ask: AskNews | AskVersion) -> int:
        """The stage that knows what a client asks."""
        topology = self.stage.topology
        return topology.registrar(ask.subscription) if isinstance(ask, AskNews) else topology.owner(ask.topic)

    def answer(self, home: int, ask: AskNews | AskVersion) -> None:
        """A client, at home at some stage, asks what others have changed."""
        answer: News | VersionThere
        if isinstance(ask, AskNews):
            answer = self.stage.handle_ask_news(ask) or News(ask.subscription, ask.session, [])
        else:
            answer = VersionThere(ask.subscription, ask.session, ask.topic, self.stage.version_there(ask.subscription))
        if home == self.stage.rank:
            self.stage.effects.tells.append((ask.session, answer))
        else:
            self.stage.effects.sends.append((home, answer))
