"""What stages tell each other so that what nobody needs, or nothing is heard of, does not stay for ever.

Theory of operation
===================
Home stages tell registrars which of their sessions live (`SessionsAlive`), and how far subscriptions are (`ProgressReports`). A
registrar ends the subscriptions of a session of which no stage has said anything for long. Owners ask registrars up to where
nothing is needed of their topics (`AskFloors`, `Floors`), let their logs forget that, and let topics rest of which nothing is
needed at all.

Only what comes of it is journalled: a subscription that ends, topics that rest. What gets lost is said, or asked, again. All
that grows with how much there is is done in small steps, as a chore of this stage.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.core.liveness.expiry import Expiry
from ordered_pubsub.core.liveness.sealing import Rounds
from ordered_pubsub.core.log.floors import Needs
from ordered_pubsub.core.log.retention import LogTrimmer
from ordered_pubsub.core.messages import (
    AskFloors,
    Floors,
    KeepAliveAck,
    KeepAliveSeen,
    ProgressReports,
    SessionsAlive,
    TopicsReleased,
)
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage._pacing import Pacing
from ordered_pubsub.core.stage._resting import LastNumbers, Resting
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.turns import Work

FLOORS_S = 5.0
"""So often a stage asks all registrars what their subscriptions may need of its log."""


@attrs.define(eq=False)
class Upkeep:
    """One stage's part of that: as a home stage, as a registrar, and as an owner."""

    stage: Stage
    hosting: Hosting
    owner_logs: OwnerLogs
    retention: LogTrimmer
    expiry: Expiry
    numbers: LastNumbers
    resting: Resting
    rounds: Rounds
    pacing: Pacing
    clock: Clock
    needs: Needs = attrs.field(init=False)
    floors_s: float = FLOORS_S
    _floors_at: float = float("-inf")
    _floors_asked: dict[int, AskFloors] = attrs.field(factory=dict)
    """owners that have asked up to where their topics are needed, and have no answer yet"""

    def __attrs_post_init__(self) -> None:
        self.needs = Needs(self.stage.state.registrar)

    # -- who lives ----------------------------------------------------------------------------------------------------

    def tick_registrar(self, now: float, wall_s: float) -> None:
        """Time passes: say who is here, end what nothing is heard of, and say how far subscriptions are."""
        stage = self.stage
        alive = self.hosting.take_alive(now)
        if alive is not None:
            for session in self.rounds.silent(now - self.expiry.session_ttl_s):
                alive.sessions.pop(session, None)
            noted, told = self.expiry.heard(alive, now)
            stage.effects.tells += [(ended.session, ended) for ended in told]
            self.tell_heard(stage.rank, noted)
            stage.effects.sends += [(peer, alive) for peer in stage.peers.greeted]
        for ended in self.expiry.find_expired(now) if stage.is_open else ():
            subscription = stage.state.registrar.subscriptions[ended.subscription]
            if subscription.ended:
                stage.handle_passed(TopicsReleased(ended.subscription, tuple(subscription.leaving)))
            else:
                stage.expire(ended.subscription, wall_s)
                stage.effects.tells.append((ended.session, ended))
        self.pacing.begin_chore("progress", self._telling_registrars())
        if now >= self._floors_at + self.floors_s:
            self._floors_at = now
            asking = self.retention.ask(stage.state.kept, self.resting.about)
            self.look_for_floors(stage.rank, asking)
            stage.effects.sends += [(peer, asking) for peer in stage.peers.greeted]

    def hear_alive(self, peer: int, alive: SessionsAlive) -> None:
        """A home stage says which sessions live there."""
        noted, told = self.expiry.heard(alive, self.clock.now)
        self.stage.effects.sends += [(peer, noted), *((peer, ended) for ended in told)]

    def tell_heard(self, registrar: int, noted: KeepAliveSeen) -> None:
        """A registrar has heard of clients here."""
        self.stage.effects.tells += [
            (session, KeepAliveAck(session, serial, registrar))
            for session, serial in noted.sessions.items()
            if serial and session in self.hosting.sessions
        ]

    # -- what is needed -----------------------------------------------------------------------------------------------

    def _telling_registrars(self) -> Work:
        """Tell the registrars what subscriptions have said: some of it at each step."""
        while news := self.hosting.take_progress():
            for rank, progress in news:
                if rank == self.stage.rank:
                    self.note_progress(progress)
                elif rank in self.stage.peers.greeted:
                    self.stage.effects.sends.append((rank, progress))
            yield True

    def note_progress(self, progress: ProgressReports) -> None:
        """A home stage says how far subscriptions are that are registered here."""
        for said in progress.news:
            passed = self.needs.note_progress(said)
            if passed is not None:
                self.stage.handle_passed(passed)

    def look_for_floors(self, owner: int, asking: AskFloors) -> None:
        """An owner asks up to where the subscriptions here need nothing of its topics."""
        self._floors_asked[owner] = asking
        self.pacing.begin_chore("floors", self._finding_floors())

    def _finding_floors(self) -> Work:
        """Look at all subscriptions once, for all owners that have asked before that."""
        owner_of = self.stage.topology.owner
        while self._floors_asked:
            asked, self._floors_asked = self._floors_asked, {}
            found: dict[int, dict[str, int]] = {}
            yield from self.needs.finding(owner_of, found)
            for owner, asking in asked.items():
                needed = found.get(owner, {})
                about = {
                    topic: low
                    for topic in asking.about
                    if (low := found.get(owner_of(topic), {}).get(topic)) is not None
                }
                floors = Floors(asking.round, {**needed, **about})
                if owner == self.stage.rank:
                    self.retention.floors(owner, floors)
                else:
                    self.stage.effects.sends.append((owner, floors))

    # -- what may be forgotten ----------------------------------------------------------------------------------------

    def tick_owner(self, now: float, wall_s: float) -> None:
        """Time passes: let the log forget what nobody needs, and say how far topics are here and there."""
        self.pacing.begin_chore("forget", self._forgetting(now, wall_s))
        self.pacing.begin_chore("hosts", self._telling_owners())
        for home, expected in self.owner_logs.tick(now):
            if home == self.stage.rank:
                self.hosting.expected(expected)
            else:
                self.stage.effects.sends.append((home, expected))
        topics = self.resting.find(now) if self.stage.is_open else []
        if topics:
            self.stage.waking.rest(topics)
            self.numbers.note(self.stage.effects.rested or {})
            self.owner_logs.rest(topics)
            self.retention.rest(topics)

    def _forgetting(self, now: float, wall_s: float) -> Work:
        """What the log may forget: some topics at each step."""
        while True:
            self.stage.effects.forget += self.retention.find_old(now, wall_s)
            if not self.retention.is_looking:
                return
            yield True

    def _telling_owners(self) -> Work:
        """Tell the owners how far their topics are here: some topics at each step."""
        while news := self.hosting.take_hosts():
            for rank, hosts in news:
                if rank == self.stage.rank:
                    self.owner_logs.hosts(rank, hosts)
                else:
                    self.stage.effects.sends.append((rank, hosts))
            yield True
