"""Numbers whose events nobody keeps: what publishers, subscribers and stages say of them, and what this stage does about it.

An owner has to find out which numbers of a publisher that has vanished will never have an event (`core.liveness.voids`). It asks
the clients of all home stages what they have seen (`core.liveness.sealing`), and all registrars who must answer (`Holders`). A
publisher tells owners what it has published, and asks whether its numbers are still good; a subscriber asks owners what has
become of those that it must not use. What grows with what is named is done in small steps, at the turn of who asks.
"""

from __future__ import annotations

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.liveness.sealing import Rounds
from ordered_pubsub.core.liveness.voids import Voids, merged
from ordered_pubsub.core.messages import (
    Holders,
    LeaseRenewal,
    LeaseReply,
    SeenAsk,
    SeenReply,
    TopicRange,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage._pacing import STAGE, Pacing
from ordered_pubsub.core.stage._relayed import Relayed
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.turns import Work

VoidOfClient = LeaseRenewal | SeenReply | VoidAsk
VoidMessage = LeaseRenewal | SeenAsk | SeenReply | Holders | VoidAsk | VoidDecision


@attrs.define(eq=False)
class Voiding:
    """What is said about such numbers at one stage: as their owner, as a home stage, and as a registrar."""

    stage: Stage
    voids: Voids
    rounds: Rounds
    hosting: Hosting
    pacing: Pacing
    relayed: Relayed
    clock: Clock

    def say(self, rank: int, message: VoidMessage | LeaseReply) -> None:
        """Say something to a stage, which may be this one."""
        if rank != self.stage.rank:
            self.stage.effects.sends.append((rank, message))
        elif isinstance(message, LeaseReply):
            self.stage.effects.tells.append((message.session, message))
        else:
            self.hear(rank, message)

    def spreading(self, message: VoidOfClient, identity: str) -> Work:
        """A client here says something: each stage that it concerns is told, and what concerns this one is done here."""
        if isinstance(message, LeaseRenewal):
            handed = replace(message, asks=merged(message.asks))
            for rank in dict.fromkeys(message.ranks):
                if rank == self.stage.rank:
                    self.stage.effects.published += self.voids.hear(handed, self.clock.now)
                    yield from self._leasing(rank, handed)
                else:
                    key, load = (LeaseRenewal, handed.session, handed.serial, rank), 1 + len(handed.asks)
                    yield from self.relayed.asking(rank, identity, key, load, handed)
        elif isinstance(message, SeenReply):
            self.rounds.answered(message)
        else:
            by_owner: dict[int, list[TopicRange]] = {}
            for span in merged(message.spans):
                by_owner.setdefault(self.stage.topology.owner(span.topic), []).append(span)
            for rank, spans in by_owner.items():
                asked = replace(message, spans=spans)
                if rank == self.stage.rank:
                    yield from self._deciding(rank, asked)
                else:
                    yield from self.relayed.asking(rank, identity, (VoidAsk, asked.session, rank), len(spans), asked)

    def hear(self, peer: int, message: VoidMessage) -> None:
        """A stage says something; it may be this one."""
        effects = self.stage.effects
        if isinstance(message, LeaseRenewal):
            effects.published += self.voids.hear(message, self.clock.now)
            owner, session = (STAGE, peer), f"lease {message.session}"
            if not self.pacing.turns.has(owner, session):  # else the answer would be to what it has asked long ago
                self.pacing.begin(owner, session, self._leasing(peer, message))
        elif isinstance(message, SeenAsk):
            asks = self.rounds.ask(message, self.hosting.sessions, self.clock.now)
            effects.tells += [(ask.session, ask) for ask in asks]
            self.pacing.begin((STAGE, peer), f"seal {message.serial}", self._finding_holders(peer, message))
        elif isinstance(message, Holders):
            effects.decided += self.voids.holders(peer, message)
        elif isinstance(message, SeenReply):
            effects.decided += self.voids.sealed(message)
        elif isinstance(message, VoidAsk):
            self.pacing.begin((STAGE, peer), message.session, self._deciding(peer, message))
        else:
            self.relayed.told_by(peer, message)
            sessions = [message.session] if message.session else self.hosting.sessions
            effects.tells += [(session, message) for session in sessions]

    def _leasing(self, peer: int, handed: LeaseRenewal) -> Work:
        answers: list[LeaseReply] = []
        yield from self.voids.leasing(handed, answers)
        for leased in answers:
            self.say(peer, leased)

    def _deciding(self, peer: int, asked: VoidAsk) -> Work:
        decided: list[VoidDecision] = []
        for _ in self.voids.telling(asked, decided):
            self._say_all(peer, decided)
            yield True
        self._say_all(peer, decided)

    def _say_all(self, peer: int, decided: list[VoidDecision]) -> None:
        for decision in decided:
            self.say(peer, decision)
        decided.clear()

    def _finding_holders(self, peer: int, seal: SeenAsk) -> Work:
        found: dict[str, bool] = {}
        yield from self.stage.state.registrar.finding_holders(seal.topic, found)
        self.say(peer, Holders(seal.serial, list(found)))

    def tick(self, now: float, wall_s: float) -> None:
        """Time passes."""
        for sealed in self.rounds.tick(now):
            self.say(sealed.rank, sealed)
        for rank, seal in self.voids.tick(now, wall_s):
            self.say(rank, seal)
