"""The machine of one stage in a simulation, with its disk.

It holds no protocol decision: it feeds a `Driver`, and sends what that says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import PublishAsk, Refusal, Request, SubscribeRights, find_change
from ordered_pubsub.core.order.registered import ABSENT, REGISTERED
from ordered_pubsub.core.recovery.hosting import ALIVE_S
from ordered_pubsub.core.stage.driver import KEEP, Driver
from ordered_pubsub.core.stage.effects import Effects
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.trust.authenticity import digests_of
from ordered_pubsub.errors import ProtocolError, TopologyMismatch
from ordered_pubsub.testing.disk import Disk
from ordered_pubsub.testing.packer import indices_of
from ordered_pubsub.testing.tasks import number_rows
from ordered_pubsub.testing.watching import Watch
from ordered_pubsub.testing.world import Crash, Edit

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

FORBIDDEN = "forbidden"
"""The code of a refusal of what a stage's clients may not have for a while."""
STEPS_SERVED = 4
"""So many small steps of what clients have caused a stage does between two flushes."""
INLINE_LOAD = 3
"""So little is handled as it comes, so that much of it waits for its turn."""
GIVE_UP_S = 2.0
"""So long a transaction waits for its turns."""
RESTING_FLOORS_S = 1.5
"""So often the registrars are asked what they need where topics rest at once."""


class Died(BaseException):
    """A simulated process ends here."""


@attrs.define(eq=False)
class StageHost:
    """The machine of one stage."""

    simulation: Simulation
    rank: int
    disk: Disk
    clock_offset: float
    driver: Driver | None = None
    edited: Edit | None = None
    crash: Crash | None = None
    flush_planned: bool = False
    handled: list[tuple[str, int, int]] = attrs.field(factory=list)
    handled_at_snapshot: int = 0
    incarnation: int = 0
    registered: Watch = attrs.field(factory=lambda: Watch(REGISTERED, ABSENT))
    """what becomes of the subscriptions that are registered here"""
    forbidden_until: dict[str, float] = attrs.field(factory=dict)
    """topics that its clients may not publish on or gain now"""

    # -- life and death -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process from what is on the disk."""
        simulation = self.simulation
        if self.driver is not None:
            return
        replayed: list[Effects] = []
        try:
            self.driver = Driver.open(
                self.rank,
                simulation.world.topology(self.edited),
                self.disk,
                self.crash_point,
                SnapshotPolicy(simulation.world.snapshot_after_records, growth=0),
                levels=simulation.world.levels,
                policies=Policies(default=Policy(keep_age_s=0.0, max_age_s=float("inf")))
                if simulation.world.forgets
                else KEEP,
                founding=simulation.founding,
                security=simulation.world.security,
                on_replayed=replayed.append,
                marks_max=simulation.world.marks_max,
            )
            self.driver.hosting.curiosity.choose = simulation.packer.choose
            ttl_s = simulation.world.session_ttl_s
            self.driver.expiry.session_ttl_s, self.driver.hosting.alive_s = ttl_s, min(ALIVE_S, ttl_s / 10)
            self.driver.voids.lease_s = simulation.world.lease_s
            self.driver.stage.committing.give_up_s = GIVE_UP_S
            if simulation.world.rests:
                self.driver.upkeep.floors_s = RESTING_FLOORS_S
                self.driver.resting.after_s = self.driver.resting.look_s = 0.0
        except Died:
            self.die()
            return
        except TopologyMismatch as error:
            simulation.trace("stage %d refuses to start: %s", self.rank, error)
            simulation.record.refused_starts += 1
            return
        self.driver.on_synced = self.note_synced
        self.driver.pacing.inline_load = INLINE_LOAD
        if simulation.world.defers:
            self.driver.stage.pairs_at_once = 0
        del self.handled[self.handled_at_snapshot :]
        for effects in replayed:
            self.note_synced(effects)
        self.incarnation += 1
        simulation.trace("stage %d starts", self.rank)
        self.plan_flush()
        simulation.network.stage_is_up(self.rank)

    def die(self) -> None:
        """The power fails."""
        simulation = self.simulation
        down_s = self.crash.down_s if self.crash is not None else 0.5
        self.crash = None
        self.driver = None
        self.flush_planned = False
        self.incarnation += 1
        self.disk.lose_power()
        self.registered.begin_anew()
        simulation.record.crashes += 1
        simulation.trace("stage %d dies", self.rank)
        simulation.network.stage_is_down(self.rank)
        simulation.after(down_s, self.start)

    def crash_point(self, name: str) -> None:
        """A place at which this process may die."""
        hits = self.simulation.record.points_passed
        hits[name] = hits.get(name, 0) + 1
        crash = self.crash
        if crash is not None and crash.point == name and self.simulation.now >= crash.at:
            if crash.skip > 0:
                self.crash = attrs.evolve(crash, skip=crash.skip - 1)
                return
            deaths = self.simulation.record.deaths_at
            deaths[name] = deaths.get(name, 0) + 1
            raise Died(name)

    def note_synced(self, effects: Effects) -> None:
        """A batch is on the disk: from now on it has happened."""
        self.handled.extend(operation.identity for operation in effects.handled)
        for operation in effects.completed:
            number_rows(self.simulation, self, operation)
            self.simulation.record.note_completed(self.rank, operation)
        for decision in effects.decided:
            self.simulation.record.note_decided(decision, self.simulation.now)

    def number_of(self, topic: str) -> int:
        """How many numbers of a topic this stage has given; also of one that rests."""
        assert self.driver is not None
        return self.driver.stage.waking.given(topic)

    def remembered(self) -> dict[str, list[str]]:
        """What this stage remembers of topics that nobody holds, and that have no log, beside their last numbers."""
        if self.driver is None:
            return {}
        state = self.driver.stage.state
        clocks, groups, logged = state.clocks, state.groups, self.simulation.logged
        own: dict[str, Iterable[str]] = {
            "numbers": clocks.numbers,
            "kept": state.kept,
            "marks": state.marks,
            "owed further up": groups.owed_up,
        }
        found = {what: [topic for topic in table if topic not in logged] for what, table in own.items()}
        if not logged:
            found.update({"seen": list(clocks.seen), "owed": list(groups.owed), "owed to": list(groups.owed_to)})
        return {what: topics for what, topics in found.items() if topics}

    def note_snapshot(self) -> Callable[[], None]:
        """A snapshot was taken; what is returned is to be called when it has replaced the journal."""
        handled = len(self.handled)

        def replaced() -> None:
            self.handled_at_snapshot = handled

        return replaced

    # -- inputs -------------------------------------------------------------------------------------------------------

    @property
    def wall_clock(self) -> float:
        """What this machine believes the time to be."""
        return 1_000_000.0 + self.simulation.now + self.clock_offset

    def handle(self, kind: str, step: Callable[[Driver], None]) -> None:
        """Give the stage an input, and plan to flush what it did."""
        driver = self.driver
        if driver is None:
            return
        try:
            self._step(driver, step)
            driver.stage.check_invariants()
            registered = driver.stage.state.registrar.subscriptions
            self.registered.look({name: one.phase for name, one in registered.items()})
            self.crash_point("handled:" + kind)
        except Died:
            self.die()
            return
        self.plan_flush()

    def tick(self) -> None:
        """Time passes."""
        self.handle("tick", lambda driver: driver.tick(self.simulation.now, self.wall_clock))

    def known(self, request: Request, identity: str) -> Request:
        """What somebody at home here asks, with who that is, and what he may subscribe to where that matters."""
        change, now = find_change(request.parts), self.simulation.now
        forbidden = tuple(topic for topic, until in self.forbidden_until.items() if until > now)
        opens = change is not None and change.opens
        return replace(request, identity=identity, reading=SubscribeRights(("**",), forbidden) if opens else None)

    def taken_in(self, request: Request) -> Request:
        """What a client at home here asks, with the digests that the stage makes of what is kept."""
        parts = tuple(self._digested(part) if isinstance(part, PublishAsk) else part for part in request.parts)
        return replace(request, parts=parts)

    def _digested(self, ask: PublishAsk) -> PublishAsk:
        if not ask.is_kept:
            return ask
        contents = [
            content
            for chunk in ask.chunks
            for content in ([chunk.data] if ask.pieces else map(msgspec.msgpack.encode, indices_of(chunk)))
        ]
        return replace(ask, digests=digests_of(contents))

    def refusal_of(self, request: Request) -> Refusal | None:
        """Why a client at home here may not ask this now, if so."""
        for part in request.parts:
            for topic in (part.topic,) if isinstance(part, PublishAsk) else part.add:
                if self.forbidden_until.get(topic, 0.0) > self.simulation.now:
                    return request.refused(FORBIDDEN, f"{topic} is forbidden")
        return None

    def _step(self, driver: Driver, step: Callable[[Driver], None]) -> None:
        try:
            step(driver)
        except ProtocolError as error:
            self.simulation.record.refused_inputs += 1
            self.simulation.trace("stage %d refuses: %s", self.rank, error)

    def plan_flush(self) -> None:
        """Flush soon; what comes until then goes to the disk together."""
        if not self.flush_planned and self.driver is not None and self.has_work(self.driver):
            self.flush_planned = True
            self.simulation.after(self.simulation.world.weather.sync_s, self.flush, self.incarnation)

    @staticmethod
    def has_work(driver: Driver) -> bool:
        """Whether there is something to write, to send, or to read for somebody."""
        return driver.has_work or driver.is_asked

    def flush(self, incarnation: int) -> None:
        """Journal, sync, send."""
        if self.driver is None or incarnation != self.incarnation:
            return
        self.flush_planned = False
        try:
            self._send(self.driver.flush())
            if self.driver.is_asked:
                for _ in range(STEPS_SERVED):
                    self.driver.serve()
                self.crash_point("served")
        except Died:
            self.die()
        else:
            self.plan_flush()

    def _send(self, effects: Effects) -> None:
        network = self.simulation.network
        self.crash_point("send:before-first")
        for peer, message in effects.sends:
            network.stage_to_stage(self.rank, peer, message)
            self.crash_point("send:between")
        for answer in effects.replies:
            network.stage_to_client(self.rank, answer)
            self.crash_point("send:between")
        for session, told in effects.tells:
            network.stage_to_subscriber(self.rank, session, told)
            self.crash_point("send:between")
        self.crash_point("send:after-last")
