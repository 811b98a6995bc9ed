"""The keys of the system at one stage: when others begin, who gives them to clients, and who asks for them.

The highest stage decides when another epoch of keys begins, and when earlier keys end. The others tell it that they want one, and
ask it for what they do not know. Clients ask their home stage for the keys of topics, and are told when there are others.
"""

from __future__ import annotations

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import AskKeys, Rotate
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.turns import Work
from ordered_pubsub.core.trust.keys import KeyKeeper, rotated

KEYS_A_STEP = 100


@attrs.define(eq=False)
class StageKeys:
    """What one stage does about the keys of the system."""

    stage: Stage
    keeper: KeyKeeper
    hosting: Hosting
    clock: Clock

    def rotate(self, revokes: bool) -> None:
        """Let another epoch of keys begin; with `revokes`, one whose keys nobody has yet. The highest stage decides."""
        self.keeper.want(self.stage.state.keys, revokes)

    def rotate_for(self, peer: int, wanted: Rotate) -> None:
        """A stage wants another epoch than the one that it knows."""
        stage = self.stage
        if peer in stage.peers.greeted and stage.rank == 0 and wanted.epoch >= stage.state.keys.epoch:
            self.rotate(wanted.revokes)

    def giving(self, ask: AskKeys) -> Work:
        """A client asks for the keys of topics: some of them at each step."""
        for first in range(0, len(ask.topics), KEYS_A_STEP):
            keys, topics = self.stage.state.keys, ask.topics[first : first + KEYS_A_STEP]
            if first:
                yield True
            if keys.epoch:
                given = self.keeper.give(replace(ask, topics=topics), keys, self.clock.now)
                self.stage.effects.tells.append((ask.session, given))

    def heard(self) -> None:
        """The highest stage has said what the keys are made of."""
        self.keeper.heard_at = self.clock.now

    def tick(self) -> None:
        """Time passes."""
        stage, keeper, clock = self.stage, self.keeper, self.clock
        keys = stage.state.keys
        if stage.rank:
            keeper.note(keys, clock.now, None)
            self.ask()
        else:
            keeper.note(keys, clock.now, clock.wall_s)
            if (due := keeper.take_due(keys, clock.wall_s)) is not None:
                keys = replace(keys, old=keeper.left(keys, clock.now))
                stage.peers.rotate(rotated(keys, clock.wall_s, keeper.security.old_keys_valid_s, due.revokes))
                keeper.note(stage.state.keys, clock.now)
            if (lasting := keeper.without_old(stage.state.keys, clock.now)) is not None:
                stage.peers.rotate(lasting)
        stage.effects.tells += keeper.take_news(stage.state.keys, self.hosting.sessions)

    def ask(self) -> None:
        """Ask the highest stage for what is not known of the keys here, and for what is wanted of them."""
        stage = self.stage
        if stage.rank and stage.peers.needs_system and 0 in stage.peers.greeted:
            stage.effects.sends += [(0, ask) for ask in self.keeper.take_asks(stage.state.keys, self.clock.now)]
