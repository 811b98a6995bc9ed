"""Measures one set-up: all variants, round by round.

First each variant runs once without being counted: that warms it up, and says how many events fit into its time. Then the rounds:
in each, every variant rushes and paces once, in one order in odd rounds and in the other in even ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from ordered_pubsub.bench.plan import SUBSCRIBERS, BenchPlan, Variant
from ordered_pubsub.bench.processes import BenchError, BenchWorkerProcess, CpuMeter, bench_stage
from ordered_pubsub.bench.results import BenchOutcome, Pace, Rush, Series
from ordered_pubsub.bench.sides import SidePlan
from ordered_pubsub.testing.stages import StageProcess

WARM_EVENTS = 1_000
EVENTS_MAX = 100_000
"""Of one measurement. NATS cuts off a subscriber for whom 64 MiB wait."""

Say = Callable[[str], None]


@attrs.define(eq=False)
class Team:
    """The processes of one variant."""

    variant: Variant
    publisher: BenchWorkerProcess
    subscribers: list[BenchWorkerProcess]
    meter: CpuMeter
    _phase: int = 0

    @property
    def workers(self) -> list[BenchWorkerProcess]:
        """Both sides."""
        return [*self.subscribers, self.publisher]

    def rush(self, events: int) -> Rush:
        """As fast as it goes."""
        self._count(events, is_timed=False)
        self.meter.begin()
        sent = self.publisher.ask(do="rush", phase=self._phase, events=events)
        came = [self._complete(subscriber) for subscriber in self.subscribers]
        used = self.meter.read_ns()
        others = self.meter.read_others(used)
        last_ns = max(one["last_ns"] for one in came)
        return Rush(events=events, seconds=(last_ns - sent["first_ns"]) / 1e9, cpu_ns=used, others=others)

    def pace(self, events: int, rate: float) -> Pace:
        """At a steady rate."""
        self._count(events, is_timed=True)
        self.publisher.ask(do="pace", phase=self._phase, events=events, rate=rate)
        came = [self._complete(subscriber) for subscriber in self.subscribers]
        return Pace.of(events, [latency for one in came for latency in one["latencies_ns"]])

    def _count(self, events: int, is_timed: bool) -> None:
        """A phase begins. What came too much in the one before is an error: then no count can be trusted."""
        self._phase += 1
        for subscriber in self.subscribers:
            surplus = subscriber.ask(do="count", phase=self._phase, events=events, is_timed=is_timed)["surplus"]
            if surplus:
                raise BenchError(f"{subscriber.name} was given {surplus} events more than were published")

    def _complete(self, subscriber: BenchWorkerProcess) -> dict[str, Any]:
        said = subscriber.hear()
        if said["phase"] != self._phase:
            raise BenchError(
                f"the last event that {subscriber.name} was given is of phase {said['phase']}, and phase {self._phase} was "
                "measured: events of an earlier one came late or twice"
            )
        return said

    def check_clocks(self) -> None:
        """All clocks must be one."""
        for worker in self.workers:
            worker.check_clock()

    def finish(self) -> None:
        """Look for what came too much in the last phase, and let everybody disconnect."""
        self._count(0, is_timed=False)
        for worker in self.workers:
            worker.tell(do="end")
        for worker in self.workers:
            worker.hear()


@attrs.define(eq=False)
class Rig:
    """What is started for one set-up."""

    plan: BenchPlan
    folder: Path
    broker_pid: int | None
    _stack: ExitStack
    _stages: dict[tuple[str, str], StageProcess] = attrs.field(factory=dict)
    profiled: StageProcess | None = None
    """the stage that was started last to be profiled"""

    def team(self, variant: Variant, profile: Path | None = None) -> Team:
        """Start a variant's processes; `profile` is where a stage of its own writes its profile."""
        address, stage_pid = self._stage_of(variant, profile)
        suffix = "-profiled" if profile else ""
        started: list[BenchWorkerProcess] = []
        for number in range(SUBSCRIBERS + 1):
            role = "publisher" if number == SUBSCRIBERS else "subscriber"
            plan = self._side_plan(variant, role, address)
            name = f"{role} {number + 1}" if role == "subscriber" else role
            worker = BenchWorkerProcess.of(f"{variant.slug}{suffix} {name}".replace(" ", "-"), plan, self.folder)
            self._stack.callback(worker.end)
            worker.begin()
            started.append(worker)
        for worker in started:
            worker.hear()
        *subscribers, publisher = started
        pids = {"publisher": publisher.pid, "stage": stage_pid, "broker": self.broker_pid}
        pids |= {f"subscriber {n}": subscriber.pid for n, subscriber in enumerate(subscribers, 1)}
        sees_all = self.broker_pid is not None and (variant.is_plain or stage_pid is not None)
        return Team(variant, publisher, subscribers, CpuMeter(pids, sees_all))

    def _side_plan(self, variant: Variant, role: str, address: str | None) -> SidePlan:
        plan = self.plan
        return SidePlan(
            role=role,
            kind=plan.kind.name,
            is_plain=variant.is_plain,
            ens=plan.ens_of(variant),
            topics=list(plan.topics_of(variant)),
            run=plan.amounts.run,
            sequencer=address,
            config=None if plan.sequencer else str(self._empty_config()),
            delivery=variant.level or None,
            settings=dict(variant.settings),
        )

    def _empty_config(self) -> Path:
        """What a configuration in the current folder says is not meant for a stage of our own."""
        path = self.folder / "empty.toml"
        path.touch()
        return path

    def _stage_of(self, variant: Variant, profile: Path | None) -> tuple[str | None, int | None]:
        """The address of a variant's stage, and its process if it is ours."""
        if variant.is_plain or self.plan.sequencer:
            return self.plan.sequencer, None
        kind = (variant.durability, variant.level)
        if profile is None and kind in self._stages:
            return self._stages[kind].address, self._stages[kind].pid
        name = f"stage-{variant.slug}{'-profiled' if profile else ''}"
        stage = bench_stage(self.folder / name, variant.durability, variant.level, profile)
        self._stack.callback(stage.stop)
        stage.start()
        if profile is None:
            self._stages[kind] = stage
        else:
            self.profiled = stage
        return stage.address, stage.pid


@contextmanager
def rigged(plan: BenchPlan, broker_pid: int | None) -> Iterator[Rig]:
    """What a set-up needs; all of it is gone afterwards."""
    with TemporaryDirectory(prefix="ordered-pubsub-bench-") as folder, ExitStack() as stack:
        if plan.kind.name == "jetstream":
            stack.callback(_forget_streams, plan)
        yield Rig(plan, Path(folder), broker_pid, stack)


def _forget_streams(plan: BenchPlan) -> None:
    """Streams that were made for this are removed; one that was there before is left."""
    from ordered_pubsub.bench.plain_nats import remove_streams

    made = [url for variant in plan.variants if (url := plan.ens_of(variant)) != plan.ens]
    asyncio.run(remove_streams(made))


def measure(rig: Rig, say: Say) -> BenchOutcome:
    """All rounds of a set-up."""
    plan, amounts = rig.plan, rig.plan.amounts
    teams = []
    for variant in plan.variants:
        say(f"{plan.kind.name}: starting {variant.label}")
        teams.append(rig.team(variant))
        teams[-1].check_clocks()
    events = {team.variant.slug: _warm_up(team, plan, say) for team in teams}
    series = {team.variant.slug: Series(team.variant) for team in teams}
    for number in range(amounts.rounds):
        for team in teams if number % 2 == 0 else reversed(teams):
            say(f"{plan.kind.name}: round {number + 1} of {amounts.rounds}, {team.variant.label}")
            slug = team.variant.slug
            series[slug].rushes.append(team.rush(events[slug]))
            series[slug].paces.append(team.pace(_paced_events(plan), amounts.rate))
    for team in teams:
        team.finish()
    return BenchOutcome(plan.kind.name, plan.kind.title, list(series.values()))


def _warm_up(team: Team, plan: BenchPlan, say: Say) -> int:
    """Run it once or twice; return how many events are to be measured."""
    say(f"{plan.kind.name}: warming up {team.variant.label}")
    amounts = plan.amounts
    rush = team.rush(min(WARM_EVENTS, amounts.events or WARM_EVENTS))
    team.pace(min(_paced_events(plan), 100), amounts.rate)
    if amounts.events is not None:
        return amounts.events
    longer = team.rush(_fitting(rush.rate, amounts.seconds / 4))
    return _fitting(longer.rate, amounts.seconds)


def _fitting(rate: float, seconds: float) -> int:
    return max(WARM_EVENTS, min(EVENTS_MAX, int(rate * seconds)))


def _paced_events(plan: BenchPlan) -> int:
    amounts = plan.amounts
    fitting = max(1, int(amounts.rate * amounts.seconds))
    return fitting if amounts.events is None else min(fitting, amounts.events)
