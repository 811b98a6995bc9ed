"""The processes of a measurement: how they are started, spoken to, and how much processor time they have used.

Workers are spoken to by lines of JSON, and every wait for an answer has an end. Whatever was started is gone when the
measurement is over, and dies with this process where the system can see to that (`setpriv`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from ordered_pubsub.bench.sides import SidePlan, now_ns
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.processes import HOST, SpokenLines, free_port, kill, launch

START_S = 30.0
ANSWER_S = 120.0
END_S = 5.0
POLL_S = 0.005
TAIL_LINES = 15
NS_PER_S = 10**9
BEGIN_PROFILE, END_PROFILE = signal.SIGUSR1, signal.SIGUSR2
"""Signals to a stage that can be profiled."""


class BenchError(OrderedPubSubError):
    """A measurement could not be made: something did not start, did not answer, or lost or repeated events."""


def cpu_ns(pid: int | None) -> int | None:
    """The processor time that a process has used, all threads together; None where the system does not tell.

    On Linux each process has a clock of it (`clock_getcpuclockid(3)`), which is exact where /proc counts hundredths of seconds.
    """
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return None


def busy_ns() -> int | None:
    """The time that all processors of the machine have worked, for whomever; None where the system does not tell."""
    try:
        user, nice, system, _, _, *others = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except (OSError, ValueError):
        return None
    return sum(map(int, (user, nice, system, *others))) * NS_PER_S // os.sysconf("SC_CLK_TCK")


def own_environment(is_isolated: bool) -> dict[str, str]:
    """This process's environment; isolated, without what would configure the library."""
    return {key: value for key, value in os.environ.items() if not (is_isolated and key.startswith("ORDERED_PUBSUB_"))}


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []
    return "\n".join(lines) or "(it said nothing)"


@attrs.define(eq=False)
class BenchWorkerProcess:
    """One side of a variant."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    lines: SpokenLines

    @classmethod
    def start(cls, name: str, plan: SidePlan, folder: Path) -> BenchWorkerProcess:
        """Start one; it says when it is ready."""
        setpriv = shutil.which("setpriv")
        guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        log = folder / f"{name}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [*guard, sys.executable, "-m", "ordered_pubsub.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=own_environment(plan.config is not None),
            )
        assert process.stdout is not None
        worker = cls(name, process, log, SpokenLines(process.stdout))
        worker.tell(**attrs.asdict(plan))
        return worker

    def tell(self, **what: Any) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """What it says next."""
        try:
            said: dict[str, Any] = json.loads(self.lines.next(timeout_s))
        except EOFError:
            raise self._gone() from None
        except TimeoutError:
            raise BenchError(
                f"{self.name} said nothing within {timeout_s:g} s. The end of its log:\n{_tail(self.log)}"
            ) from None
        return said

    def ask(self, **what: Any) -> dict[str, Any]:
        """Tell it something that it answers."""
        self.tell(**what)
        return self.hear()

    def _gone(self) -> BenchError:
        code = self.process.wait(END_S)
        return BenchError(f"{self.name} ended with exit code {code}. The end of its log:\n{_tail(self.log)}")

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

    def end(self) -> None:
        """Let it go, and see that it is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it is gone already
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@attrs.define(eq=False)
class BenchStageProcess:
    """A stage of our own, on a free port, with its store in a folder of its own."""

    folder: Path
    durability: str
    profile: Path | None = None
    """where its profile is written when it stops; see `profiled`"""
    delivery: str = "exactly-once"
    """what its topics give"""
    port: int = attrs.field(factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"ops://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Of its process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it, and return when it is ready."""
        self.folder.mkdir()
        config = self.folder / "ordered_pubsub.toml"
        config.write_text(
            f'[[stage]]\nname = "bench"\nlisten = "{HOST}:{self.port}"\nstore = "sqlite:bench.db"\n'
            f'durability = "{self.durability}"\n\n'
            f'[[topic]]\npattern = "**"\ndelivery = "{self.delivery}"\n'
        )
        log = self.folder / "log"
        self._process = launch(self._command(config), log, own_environment(True))
        give_up_at = time.monotonic() + START_S
        while b" is ready at " not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise BenchError(f"the stage did not start within {START_S:g} s. The end of its log:\n{_tail(log)}")
            time.sleep(POLL_S)

    def _command(self, config: Path) -> Sequence[str]:
        serve = ["serve", "--config", str(config), "--log-level", "warning"]
        if self.profile is None:
            return [sys.executable, "-m", "ordered_pubsub", *serve]
        return [sys.executable, "-m", "ordered_pubsub.bench.profiled", str(self.profile), *serve]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop it as its operator would."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(START_S)
        kill(process)


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
