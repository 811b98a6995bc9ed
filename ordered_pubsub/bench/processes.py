"""The processes of a measurement: the sides of a variant, a stage, and how much processor time all of them have used."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import attrs

from ordered_pubsub.bench.sides import SidePlan, now_ns
from ordered_pubsub.bench.worker import take_side
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.processes import WorkerProcess, command_of, cpu_ns, plain_environment
from ordered_pubsub.testing.stages import OURS, StageProcess, StageProcesses

NS_PER_S = 10**9
BEGIN_PROFILE, END_PROFILE = signal.SIGUSR1, signal.SIGUSR2
"""Signals to a stage that can be profiled."""


class BenchError(OrderedPubSubError):
    """A measurement could not be made, or means nothing: events were lost or repeated, clocks differ."""


def busy_ns() -> int | None:
    """The time that all processors of the machine have worked, for whomever; None where the system does not tell."""
    try:
        user, nice, system, _, _, *others = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except (OSError, ValueError):
        return None
    return sum(map(int, (user, nice, system, *others))) * NS_PER_S // os.sysconf("SC_CLK_TCK")


@attrs.define(eq=False)
class BenchWorkerProcess(WorkerProcess):
    """One side of a variant."""

    @classmethod
    def of(cls, name: str, plan: SidePlan, folder: Path) -> BenchWorkerProcess:
        """The side of this plan; it says when it is ready."""
        environment = None if plan.config is None else plain_environment()
        return cls(name, command_of(take_side), folder / f"{name}.log", environment, plan=attrs.asdict(plan))

    def check_clock(self) -> None:
        """Its clock must be this process's: latencies are differences between processes."""
        before_ns = now_ns()
        there_ns = self.ask(do="clock")["now_ns"]
        after_ns = now_ns()
        if not before_ns <= there_ns <= after_ns:
            raise BenchError(
                f"the clock of {self.name} says {there_ns} ns, and it was asked between {before_ns} and {after_ns}: on this "
                "system, time.perf_counter_ns() is not shared by processes, so latencies cannot be measured"
            )


def bench_stage(folder: Path, durability: str, delivery: str, profile: Path | None = None) -> StageProcess:
    """A stage of our own, whose topics give this, with its store in this folder; its profile is written when it stops."""
    topics = f'[[topic]]\npattern = "**"\ndelivery = "{delivery}"\n'
    program = OURS if profile is None else ("-m", "ordered_pubsub.bench.profiled", str(profile))
    stages = StageProcesses(folder, [["**"]], durability, topics, [{"name": "bench"}], program)
    stages.write()
    return stages.processes[0]


@attrs.define
class CpuMeter:
    """Processor time of several processes, between two moments."""

    pids: Mapping[str, int | None]
    sees_all: bool = False
    """whether these are all the processes that work for what is measured"""
    _began: dict[str, int | None] = attrs.field(factory=dict)
    _busy_ns: int | None = None
    _began_ns: int = 0

    def begin(self) -> None:
        """Count from now on."""
        self._began = {name: cpu_ns(pid) for name, pid in self.pids.items()}
        self._busy_ns, self._began_ns = busy_ns(), now_ns()

    def read_ns(self) -> dict[str, int | None]:
        """What each has used since; None for those that cannot be seen."""
        used: dict[str, int | None] = {}
        for name, pid in self.pids.items():
            began, now = self._began[name], cpu_ns(pid)
            used[name] = None if began is None or now is None else now - began
        return used

    def read_others(self, used: Mapping[str, int | None]) -> float | None:
        """How many processors were busy with something else, where that can be told from what the processes used."""
        now = busy_ns()
        if not self.sees_all or now is None or self._busy_ns is None:
            return None
        own_ns = sum(value or 0 for value in used.values())
        return max(0.0, (now - self._busy_ns - own_ns) / (now_ns() - self._began_ns))
