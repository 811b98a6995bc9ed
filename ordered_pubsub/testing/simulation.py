"""A whole system in one process on virtual time: stages, journals, links, clients, ENS, and what breaks.

Everything that happens is an entry of one calendar, drawn from the world's seed, so the same seed gives the same trace.
The simulated hosts hold no protocol decision: they feed the state machines of `ordered_pubsub.core` and carry what those
say. What they observe goes into a `Record`, which the checkers judge afterwards.

A run has three phases: until `FAULTS_END_S` things happen and break; then everything is healed and must come to rest; then
each topic is published on once more (nothing may be left that only the next event would clear), and at last every
subscription is closed (memory must go back to nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random
from traceback import format_tb
from typing import Any

import attrs

from ordered_pubsub.core.messages import SystemKeys
from ordered_pubsub.core.stage.state import StageState
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.trust.authenticity import SECRET_BYTES, SYSTEM_BYTES
from ordered_pubsub.core.trust.keys import founded
from ordered_pubsub.testing.checkers import check
from ordered_pubsub.testing.client_host import ClientHost
from ordered_pubsub.testing.disk import Disk
from ordered_pubsub.testing.followers import FollowerHost
from ordered_pubsub.testing.forger import Forger
from ordered_pubsub.testing.network import Network, SimulatedEns
from ordered_pubsub.testing.packer import RecordPacker
from ordered_pubsub.testing.ranges import RangeHost
from ordered_pubsub.testing.record import Record
from ordered_pubsub.testing.stage_host import StageHost
from ordered_pubsub.testing.stranger import Stranger, check_stages
from ordered_pubsub.testing.tasks import TaskHost, TaskLine
from ordered_pubsub.testing.world import (
    FAULTS_END_S,
    SELDOM_PASSED,
    Action,
    Alter,
    Away,
    Babble,
    ClockJump,
    Crash,
    Cut,
    Deaf,
    Die,
    Edit,
    Fault,
    Follow,
    Forbid,
    Publish,
    ReadRange,
    RotateKeys,
    Subscribe,
    Transact,
    World,
    Write,
)

TICK_S = 0.5
STUCK_AFTER_S = 120.0
"""Without any progress for so long after everything was healed, something waits for ever."""
STEPS_MAX = 400_000


def _keys(text: str) -> SystemKeys:
    """The keys of a system, as this text has them."""
    drawn = Random(text)
    return founded(drawn.randbytes(SYSTEM_BYTES), drawn.randbytes(SECRET_BYTES), 0.0)


def _make_forger(world: World, keys: SystemKeys) -> Forger | None:
    if not world.forging:
        return None
    others, chance = _keys(f"another system {world.seed}"), Random(f"forger {world.seed} {world.chance}")
    return Forger(chance, world.topics, world.forging, keys, others, world.forger_has_keys, world.tags)


class Simulation:
    """Runs one world."""

    def __init__(self, world: World, keep_trace: bool = False) -> None:
        self.world = world
        self.weather = world.weather
        self.chance = Random(f"chance {world.seed} {world.chance}")
        self.now = 0.0
        self.steps = 0
        self.reactions = 0
        self.is_probed = False
        """whether only each topic's next event is to come: nobody changes what they hold"""
        self.is_closing = False
        self.lines: list[str] | None = [] if keep_trace else None
        self._calendar: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0
        self.record = Record(world)
        self.founding = _keys(f"system {world.seed}")
        self.forger = _make_forger(world, self.founding)
        self.ens = SimulatedEns(self)
        self.network = Network(self)
        self.stages: list[StageHost] = []
        for rank in range(world.stages):
            disk = Disk(
                f"journal of stage-{rank}",
                self.chance,
                Random(f"snapshots of stage-{rank} {world.seed} {world.chance}"),
                self._crash_point_of(rank),
                self._snapshot_of(rank),
            )
            self.stages.append(StageHost(self, rank, disk, self.chance.uniform(-100, 100)))
        self.topology = world.topology()
        self.packer = RecordPacker(self)
        self.clients = [ClientHost(self, i) for i in range(world.clients)]
        self.clients_by_name = {client.name: client for client in self.clients}
        self.strangers: dict[str, Stranger] = {}
        self.ranges: list[RangeHost] = []
        self.tasks: list[TaskHost] = []
        self.task_lines: dict[str, TaskLine] = {}
        """by their sessions"""
        self.task_sessions: dict[str, bool] = {}
        self.followers: dict[str, FollowerHost] = {}
        """by their sessions"""

    def _crash_point_of(self, rank: int) -> Callable[[str], None]:
        return lambda name: self.stages[rank].crash_point(name)

    def _snapshot_of(self, rank: int) -> Callable[[], Callable[[], None]]:
        return lambda: self.stages[rank].note_snapshot()

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, time: float, step: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a time."""
        self._entries += 1
        heappush(self._calendar, (max(time, self.now), self._entries, step, arguments))

    def after(self, delay_s: float, step: Callable[..., None], *arguments: Any) -> None:
        """Let something happen after a while."""
        self.at(self.now + delay_s, step, *arguments)

    def trace(self, text: str, *values: object) -> None:
        """Say what happens, if somebody listens."""
        if self.lines is not None:
            self.lines.append(f"{self.now:9.4f}  {text % values}")

    def _run_until(self, time: float) -> None:
        while self._calendar and self._calendar[0][0] <= time:
            self.now, _, step, arguments = heappop(self._calendar)
            step(*arguments)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise RuntimeError(f"seed {self.world.seed}: more than {STEPS_MAX} steps")
        self.now = time

    # -- the three phases ---------------------------------------------------------------------------------------------

    def run(self) -> Record:
        """Run the world to its end, judge it, and return what was observed."""
        try:
            self._run()
        except Exception as error:
            where = "".join(format_tb(error.__traceback__)[-1:]).strip().replace("\n", " ")
            kind = "invariant" if isinstance(error, AssertionError) else "error"
            self.record.violation(kind, f"{type(error).__name__}: {error} ({where})")
        return self.record

    def _run(self) -> None:
        for host in self.stages:
            host.start()
        for client in self.clients:
            client.connect()
        for action in self.world.actions:
            self.at(action.at, self._act, action)
        for fault in self.world.faults:
            self.at(fault.at, self._break, fault)
        self.after(TICK_S, self._tick)
        self._run_until(FAULTS_END_S)
        self._heal()
        if self._come_to_rest("after the faults") and self._come_to_rest_probed():
            self.record.note_probed(self)
            self._close_all()
            if self._come_to_rest("after closing"):
                self.record.note_closed(self)
                self._probe()  # what rests goes on where it was
                if self._come_to_rest("after the very last publications"):
                    self.record.note_counts(self)
                self._come_to_rest("while ranges are read", self._reading)
        check_stages(self)
        self.record.torn_records = sum(host.disk.torn_records for host in self.stages)
        check(self.record)

    def _act(self, action: Action) -> None:
        if isinstance(action, Publish):
            self.clients[action.client].application.publish(action.parts, action.is_transaction)
        elif isinstance(action, Subscribe):
            self.clients[action.client].application.subscribe(action)
        elif isinstance(action, Transact):
            self.clients[action.client].application.transact(action)
        elif isinstance(action, ReadRange):
            self.ranges.append(RangeHost(self, action))
            self.ranges[-1].begin()
        elif isinstance(action, Write):
            self.tasks.append(TaskHost(self, action))
            self.tasks[-1].begin_batch()
        elif isinstance(action, Follow):
            FollowerHost(self, action).begin()
        else:
            for client in self.clients:
                if client.application.may_alter(action.subscription):
                    client.application.alter(action)

    def _tick(self) -> None:
        for host in self.stages:
            host.tick()
        for client in self.clients:
            if client.paused_until <= self.now:
                client.tick()
        self.after(TICK_S, self._tick)

    def _break(self, fault: Fault) -> None:
        self.trace("FAULT %s", fault)
        if isinstance(fault, Crash):
            host = self.stages[fault.stage]
            host.crash = fault
            if host.driver is None:
                return
            if fault.point == "idle":
                self.record.deaths_at["idle"] = self.record.deaths_at.get("idle", 0) + 1
                host.die()
            elif fault.point.startswith("restore:"):  # it dies now, and again while it starts
                host.die()
                host.crash = attrs.evolve(fault, skip=0)
        elif isinstance(fault, Cut):
            self.network.cut((min(fault.one, fault.two), max(fault.one, fault.two)), self.now + fault.for_s)
        elif isinstance(fault, Away):
            self._send_away(fault)
        elif isinstance(fault, Edit):
            self._edit(fault)
        elif isinstance(fault, Deaf):
            client = self.clients[fault.client]
            client.ens.deaf_until = max(client.ens.deaf_until, self.now + fault.for_s)
        elif isinstance(fault, Die):
            self.clients[fault.client].die(fault.for_s)
        elif isinstance(fault, Forbid):
            self.stages[fault.stage].forbidden_until[fault.topic] = self.now + fault.for_s
        elif isinstance(fault, RotateKeys):
            self.stages[fault.stage].handle("rotated", lambda driver: driver.rotate_keys(fault.revokes))
        elif isinstance(fault, Babble):
            stranger = Stranger(self, fault, f"stranger-{len(self.strangers)}")
            self.strangers[stranger.session] = stranger
            stranger.come()
        elif isinstance(fault, ClockJump):
            self.stages[fault.stage].clock_offset += fault.by_s

    def _send_away(self, fault: Away) -> None:
        client = self.clients[fault.client]
        until = self.now + fault.for_s
        if fault.kind == "pause":
            client.paused_until = max(client.paused_until, until)
        elif fault.kind == "ens":
            client.ens.away_until = max(client.ens.away_until, until)
        else:
            client.home_away_until = max(client.home_away_until, until)
            client.disconnect()

    def _edit(self, fault: Edit) -> None:
        host = self.stages[fault.stage]
        self._restart(host, fault)
        self.after(fault.for_s, self._restart, host, None)

    def _restart(self, host: StageHost, edited: Edit | None) -> None:
        """An operator restarts a stage, perhaps with a configuration that he has edited."""
        host.edited = edited
        if host.driver is not None:
            host.crash = None
            host.die()
        self.after(0.05, host.start)

    def _heal(self) -> None:
        self.trace("HEALED")
        self.weather = attrs.evolve(
            self.weather,
            ens_refuse=0.0,
            ens_duplicate=0.0,
            link_lose=0.0,
            link_duplicate=0.0,
            link_reorder=0.0,
            client_lose=0.0,
        )
        for host in self.stages:
            host.crash = None
            host.forbidden_until.clear()
            if host.edited is not None:
                self._restart(host, None)
            host.start()
        for client in self.clients:
            client.paused_until = client.home_away_until = client.ens.away_until = client.ens.deaf_until = 0.0
        for pair in list(self.network.cuts):
            self.network.cuts[pair] = 0.0
            self.network.connect(*pair)

    def _come_to_rest_probed(self) -> bool:
        """Publish until nothing is left for the next event: a subscription that stops by itself meanwhile leaves something."""
        self.is_probed = True
        stopped = -1
        while stopped != (count := sum(one.is_orphan for one in self.record.subscriptions.values())):
            stopped = count
            self._probe()
            if not self._come_to_rest("after the last publications"):
                return False
        # An owner that has let a topic rest sends its next event no further up than it must, whatever is owed in it there.
        return not self.world.rests or self._come_to_rest("when registrars were asked", self._owing)

    def _reading(self) -> list[str]:
        """Who has not come to the end of a range."""
        return ["somebody still reads a range of the logs" for reader in self.ranges if not reader.is_over]

    def _owing(self) -> list[str]:
        """What stages still owe of topics of lower stages."""
        return [
            f"stage {host.rank} still owes {topic} an entry"
            for host in self.stages
            for topic in (host.driver.stage.state.groups.owed if host.driver is not None else ())
            if self.world.owners[topic] > host.rank
        ]

    def _come_to_rest(self, when: str, unrest: Callable[[], list[str]] | None = None) -> bool:
        reasons: list[str] = []
        progress, limit = -1, self.now
        while self.now <= limit:
            self._run_until(self.now + TICK_S)
            reasons = (unrest or self._unrest)()
            if not reasons:
                return True
            if self.record.progress != progress:
                progress, limit = self.record.progress, self.now + STUCK_AFTER_S
        self.record.violation("I4", f"no rest {when}: " + "; ".join(reasons[:6]))
        return False

    def _unrest(self) -> list[str]:
        reasons = []
        if self.ens.under_way:
            reasons.append(f"{self.ens.under_way} events at the ENS")
        for client in (client for client in self.clients if not client.is_gone):
            if not client.session.is_idle:
                reasons.append(f"{client.name} has no answer: {client.session.waiting_for()}")
            if client.is_dead and not client.is_gone:
                reasons.append(f"{client.name} has not been started again")
            if not client.machine.outbox.is_empty:
                reasons.append(f"{client.name} has events for the ENS; {client.machine.outbox.trouble}")
            if client.machine.holding.is_changing:
                reasons.append(f"{client.name} waits for the ENS, or for keys")
            for name, subscription in client.subscriptions.items():
                delivery, subscriber = subscription.buffer, subscription.subscriber
                if subscription.unasked:
                    reasons.append(f"{name} has changes that are not asked for")
                if subscriber is not None and subscriber.next_due(may_ask=False) is not None:
                    reasons.append(f"{name} has acknowledgements that are not on disk")
                if subscriber is not None and len(subscriber.in_hand):
                    reasons.append(f"{name} has events in hand")
                if subscriber is not None and subscriber.log.reads_past:
                    reasons.append(f"{name} still reads the past")
                if isinstance(delivery, Delivery) and delivery.withheld:
                    reasons.append(f"{name} must not use {delivery.withheld}")
                if delivery.buffered or delivery.changes.asked:
                    reasons.append(f"{name} waits for: {delivery.waiting_for()}")
                elif isinstance(delivery, Delivery) and (behind := self._behind(delivery)):
                    reasons.append(f"{name} has not all of {behind}")
        reasons += [f"{task.action.writer} has not written all" for task in self.tasks if task.runs or not task.is_over]
        for follower in self.followers.values():
            reasons += follower.unrest
        gone = {client.name for client in self.clients if client.is_gone}
        for host in self.stages:
            if self.is_closing and self.world.rests and (left := host.remembered()):
                reasons.append(f"stage {host.rank} still remembers more than numbers: {left}")
            if host.driver is not None and gone.intersection(host.driver.stage.state.registrar.held):
                reasons.append(f"stage {host.rank} still has subscriptions of who is gone")
            if host.driver is not None and any(
                subscription.ended for subscription in host.driver.stage.state.registrar.subscriptions.values()
            ):
                reasons.append(f"stage {host.rank} still has subscriptions that have ended")
            if host.driver is not None:
                reasons += _unrest_of_transactions(host.rank, host.driver.stage.state, gone)
            stopped = {name for name, record in self.record.subscriptions.items() if record.is_orphan}
            if host.driver is not None and stopped.intersection(host.driver.stage.state.registrar.subscriptions):
                reasons.append(f"stage {host.rank} still has subscriptions that have stopped")
            if host.driver is None:
                reasons.append(f"stage {host.rank} is down")
            elif host.driver.stage.state.groups.due:
                reasons.append(f"stage {host.rank} has not done all that changes do to its groups' tables")
            elif host.driver.stage.statistics()["outbox"] or host.driver.stage.effects.journal:
                reasons.append(f"stage {host.rank} has unacknowledged frames")
        return reasons

    def every_of(self, subscription: str) -> int:
        """The filter with which a subscription begins."""
        begun = [one for one in self.world.actions if isinstance(one, Subscribe) and one.subscription == subscription]
        return begun[0].every if begun else 1

    @property
    def logged(self) -> list[str]:
        """The topics whose logs have something."""
        owners = ((topic, self.stages[owner].disk.read_shelf) for topic, owner in self.world.owners.items())
        return [topic for topic, shelf in owners if shelf.last(topic) > shelf.floor(topic)]

    def _behind(self, delivery: Delivery) -> list[str]:
        """The topics with a log of which a subscription has not come to the end."""
        return [topic for topic, count in delivery.clock.items() if count < self._published(topic)]

    def _published(self, topic: str) -> int:
        """How many events the log of a topic has."""
        driver = self.stages[self.world.owners[topic]].driver
        return 0 if driver is None else driver.stage.state.kept.get(topic, 0)

    def _probe(self) -> None:
        prober = next(client for client in self.clients if not client.is_gone)
        for topic in self.world.topics:
            prober.application.publish(((topic, 1),))

    def _close_all(self) -> None:
        self.is_closing = True
        for fault in self.world.faults:
            if isinstance(fault, Crash) and fault.point in SELDOM_PASSED:
                self.stages[fault.stage].crash = attrs.evolve(fault, at=self.now, skip=0)
        for client in self.clients:
            for name in list(client.subscriptions):
                client.application.alter(Alter(self.now, name, ends=True))


def _unrest_of_transactions(rank: int, state: StageState, gone: set[str]) -> Iterator[str]:
    """What is under way of transactions at one stage, and what clients that are there have not been told."""
    registrar = state.registrar
    if state.commits:
        yield f"stage {rank} carries out transactions: {list(state.commits)}"
    if registrar.reservations:
        yield f"stage {rank} has given turns to transactions: {list(registrar.reservations)}"
    untold = [name for name in registrar.untold if registrar.subscriptions[name].client not in gone]
    if untold:
        yield f"stage {rank} does not know that clients know of the changes of {untold}"
