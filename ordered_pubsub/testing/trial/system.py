"""A whole system as processes: stages that can be killed, publishers and subscribers.

What is drawn from the seed: who subscribes to what, who publishes on what, when stages and the broker are killed. Publishers
go on until after the last restart. In the end every subscriber is told the last number of each topic and waits until it has
got that far, or says for what it still waits. No wait is without end: who says nothing in time ends the trial.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from ordered_pubsub.testing.processes import HOST, free_port, kill, launch
from ordered_pubsub.testing.trial.judge import Verdict, judge, totals_of
from ordered_pubsub.testing.trial.process import START_S, TrialError, WorkerProcess

CALL_S = 120.0
"""How long a call of a client's may take (`timeout_s`)."""
PUBLISH_S = 1800.0
"""How long publishing may take in all; a hundred thousand events take minutes."""


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be tried."""

    ens: str
    seed: int = 0
    stages: int = 3
    publishers: int = 6
    subscribers: int = 6
    topics: int = 12
    topics_each: int = 6
    """how many a subscriber holds in the beginning"""
    events: int = 100_000
    rate: float = 1e9
    """events that each publisher publishes in a second, at most"""
    filler: int = 140
    """characters that an event's data have besides its id"""
    change_every: int = 2_000
    """a subscriber changes its topics each time that it was notified of so many events; 0: never"""
    kills: int = 0
    """how often each stage is killed and started again"""
    broker_kills: int = 0
    pause_s: float = 0.5
    """between a start and the next kill"""
    durability: str = "fsync"
    patience_s: float = 60.0
    """how long subscribers wait in the end"""
    receipts_s: float = 120.0
    """how long publishers wait for the receipts of what is under way; without one, they stop, and that is a fault"""
    settings: dict[str, Any] = attrs.field(factory=dict)
    """more settings of every client"""
    folder: Path | None = None
    """where everything is written, and left; without one, it is removed in the end"""


@attrs.define
class Outcome:
    """How a trial went."""

    verdict: Verdict
    seconds: float
    changes: int
    kills: int
    waiting: list[str]
    """what subscribers still waited for in the end"""

    @property
    def is_good(self) -> bool:
        """Whether everything was as promised, and everything came."""
        return self.verdict.is_good and not self.waiting


@attrs.define(eq=False)
class StageProcess:
    """A stage that can be killed and started again on its store."""

    name: str
    config: Path
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        at = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "ordered_pubsub", "serve", "--config", str(self.config), "--stage", self.name]
        self.process = launch([*command, "--log-level", "warning"], self.log)
        give_up_at = time.monotonic() + START_S
        while b" is ready at " not in self._said(at):
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise TrialError(f"stage {self.name} did not start: {self._said(at).decode()[-2000:]}")
            time.sleep(0.01)

    def _said(self, at: int) -> bytes:
        with self.log.open("rb") as file:
            file.seek(at)
            return file.read()

    def kill(self) -> None:
        """As `kill -9`."""
        if self.process is not None:
            kill(self.process)

    def stop(self) -> int:
        """As SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(START_S)


@attrs.define(eq=False)
class Stages:
    """The stages of one system, each a process with its store."""

    folder: Path
    patterns: Sequence[Sequence[str]]
    """for each stage, in the order of their ranks, the topics that it owns"""
    durability: str = "fsync"
    more: str = ""
    """more of the configuration"""
    processes: list[StageProcess] = attrs.field(factory=list)

    def start(self) -> None:
        """Write the configuration, and start them all."""
        config = self.folder / "ordered_pubsub.toml"
        ports = [free_port() for _ in self.patterns]
        parts = [self.more]
        for rank, topics in enumerate(self.patterns):
            parts.append(
                f'[[stage]]\nname = "s{rank}"\nlisten = "{HOST}:{ports[rank]}"\ntopics = {json.dumps(list(topics))}\n'
                f'store = "sqlite:s{rank}.db"\ndurability = "{self.durability}"\n'
            )
        config.write_text("\n".join(parts))
        self.processes = [
            StageProcess(f"s{rank}", config, self.folder / f"s{rank}.log", port) for rank, port in enumerate(ports)
        ]
        for stage in self.processes:
            stage.start()

    @property
    def addresses(self) -> list[str]:
        """Where clients reach them."""
        return [f"ops://{HOST}:{stage.port}" for stage in self.processes]

    def kill(self) -> None:
        """All of them, at once."""
        for stage in self.processes:
            stage.kill()


@attrs.define(eq=False)
class Trial:
    """One trial, from its start to its verdict."""

    plan: Plan
    restart_broker: Callable[[], None] | None = None
    """kills the broker and starts it again"""
    say: Callable[[str], None] = lambda _: None
    _workers: list[WorkerProcess] = attrs.field(factory=list)
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.plan.seed)

    def run(self) -> Outcome:
        """Hold it."""
        with ExitStack() as stack:
            folder = self.plan.folder
            if folder is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ordered-pubsub-trial-")))
            folder.mkdir(parents=True, exist_ok=True)
            stages = Stages(folder, self._patterns(), self.plan.durability)
            try:
                stages.start()
                return self._run(folder, stages)
            except TrialError as error:
                raise TrialError(f"{error}\n{_tails(folder)}") from error
            finally:
                for worker in self._workers:
                    worker.end()
                stages.kill()

    def _patterns(self) -> list[list[str]]:
        patterns: list[list[str]] = [[] for _ in range(self.plan.stages)]
        for number in range(self.plan.topics):
            patterns[number % self.plan.stages].append(f"t{number}")
        return patterns

    def _run(self, folder: Path, stages: Stages) -> Outcome:
        plan = self.plan
        subscribers = [self._start("subscriber", n, folder, stages) for n in range(plan.subscribers)]
        publishers = [self._start("publisher", n, folder, stages) for n in range(plan.publishers)]
        for worker in (*subscribers, *publishers):
            worker.hear(START_S + 2 * CALL_S)
        self.say("everybody is ready")
        began = time.monotonic()
        for worker in publishers:
            worker.tell("go")
        kills = self._break(stages)
        for worker in publishers:
            worker.tell("stop")
        give_up_at = time.monotonic() + PUBLISH_S
        for worker in publishers:
            worker.hear(max(give_up_at - time.monotonic(), 0.0) + plan.receipts_s)
        self.say("everything is published")
        receipts = [Path(worker.plan["log"]) for worker in publishers]
        totals = json.dumps(totals_of(receipts))
        for worker in subscribers:
            worker.tell(f"finish {totals}")
        said = [worker.hear(plan.patience_s + 3 * CALL_S) for worker in subscribers]  # ... change, take, close
        seconds = time.monotonic() - began
        verdict = judge(
            receipts,
            [Path(worker.plan["log"]) for worker in subscribers],
            [Path(worker.plan["raw"]) for worker in subscribers],
        )
        waiting = [
            f"{w.plan['name']}: {s['waiting_for']}" for w, s in zip(subscribers, said, strict=True) if s["missing"]
        ]
        return Outcome(verdict, seconds, sum(one["changes"] for one in said), kills, waiting)

    def _start(self, role: str, number: int, folder: Path, stages: Stages) -> WorkerProcess:
        plan = self.plan
        every = [f"t{n}" for n in range(plan.topics)]
        held = self._random.sample(every, min(plan.topics_each, plan.topics))
        addresses = stages.addresses
        at = number % len(addresses)
        worker = WorkerProcess.start(
            {
                "role": role,
                "name": f"{role[0]}{number}",
                "seed": self._random.randrange(1 << 30),
                "ens": plan.ens,
                "sequencer": addresses[at:] + addresses[:at],
                "topics": sorted(held),
                "every_topic": every,
                "events": -(-plan.events // plan.publishers),
                "rate": plan.rate,
                "filler": plan.filler,
                "change_every": plan.change_every,
                "patience_s": plan.patience_s,
                "receipts_s": plan.receipts_s,
                "call_s": CALL_S,
                "settings": plan.settings,
                "raw": str(folder / f"{role[0]}{number}.raw"),
                "log": str(folder / f"{role[0]}{number}.log.txt"),
            },
            folder / f"{role[0]}{number}.errors",
        )
        self._workers.append(worker)
        return worker

    def _break(self, stages: Stages) -> int:
        """Kill and start again, in an order that the seed decides, while everybody goes on."""
        plan = self.plan
        victims: list[StageProcess | None] = [stage for stage in stages.processes for _ in range(plan.kills)]
        victims += [None] * plan.broker_kills
        self._random.shuffle(victims)
        for victim in victims:
            time.sleep(plan.pause_s)
            if victim is not None:
                victim.kill()
                victim.start()
            elif self.restart_broker is not None:
                self.restart_broker()
        if victims:
            time.sleep(plan.pause_s)
            self.say(f"killed and started again: {len(victims)} times")
        return len(victims)


def _tails(folder: Path) -> str:
    """The ends of what processes have said on standard error."""
    tails = [
        f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("*.errors")) if path.stat().st_size
    ]
    return "\n".join(tails)
