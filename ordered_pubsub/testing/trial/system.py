"""A whole system as processes: stages that can be killed, publishers and subscribers.

What is drawn from the seed: who subscribes to what, who publishes on what, when who is killed (`breaking`). Publishers
go on until after the last restart. In the end every subscriber is told the last number of each topic and waits until it has
got that far, or says for what it still waits. No wait is without end: who says nothing in time ends the trial.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from ordered_pubsub.testing.lossy import Loss, Losses
from ordered_pubsub.testing.processes import ProcessError
from ordered_pubsub.testing.stages import StageProcesses
from ordered_pubsub.testing.trial.breaking import Breaking
from ordered_pubsub.testing.trial.judge import Verdict, judge, totals_of
from ordered_pubsub.testing.trial.process import CALL_S, LineProcess, TrialError, TrialWorkerProcess

PUBLISH_S = 1800.0
"""How long publishing may take in all; a hundred thousand events take minutes."""


@attrs.frozen(kw_only=True)
class TrialPlan:
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
    durable: int = 0
    """how many of the subscribers have a name, and results of their own; these do not change their topics"""
    subscriber_kills: int = 0
    """how often each of those is killed, and goes on by its name"""
    everything_kills: int = 0
    """how often all are killed at once: stages, broker, publishers and subscribers"""
    loss: Loss | None = None
    """what becomes of events on the subscribers' lines to the broker: mqtt:// with QoS 0, nats:// without JetStream"""
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
class TrialOutcome:
    """How a trial went."""

    verdict: Verdict
    seconds: float
    changes: int
    kills: int
    waiting: list[str]
    """what subscribers still waited for in the end"""
    losses: Losses | None = None
    """what the line to the broker has done, if it was a bad one"""

    @property
    def is_good(self) -> bool:
        """Whether everything was as promised, and everything came."""
        return self.verdict.is_good and not self.waiting


@attrs.define(eq=False)
class Trial:
    """One trial, from its start to its verdict."""

    plan: TrialPlan
    restart_broker: Callable[[], None] | None = None
    """kills the broker if it runs, and starts it again"""
    kill_broker: Callable[[], None] | None = None
    say: Callable[[str], None] = lambda _: None
    _subscribers: list[TrialWorkerProcess] = attrs.field(factory=list)
    _publishers: list[TrialWorkerProcess] = attrs.field(factory=list)
    _line: LineProcess | None = None
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.plan.seed)

    def run(self) -> TrialOutcome:
        """Hold it."""
        with ExitStack() as stack:
            folder = self.plan.folder
            if folder is None:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ordered-pubsub-trial-")))
            folder.mkdir(parents=True, exist_ok=True)
            stages = StageProcesses(folder, self._patterns(), self.plan.durability)
            try:
                stages.start()
                if self.plan.loss is not None:
                    self._line = LineProcess.start(
                        self.plan.ens, self.plan.loss, self.plan.seed, folder / "line.errors"
                    )
                return self._run(folder, stages)
            except (ProcessError, TrialError) as error:
                raise TrialError(f"{error}\n{_tails(folder)}") from error
            finally:
                self._end(stages)

    def _end(self, stages: StageProcesses) -> None:
        for worker in (*self._subscribers, *self._publishers):
            worker.end()
        stages.kill()
        if self._line is not None:
            self._line.end()

    def _patterns(self) -> list[list[str]]:
        patterns: list[list[str]] = [[] for _ in range(self.plan.stages)]
        for number in range(self.plan.topics):
            patterns[number % self.plan.stages].append(f"t{number}")
        return patterns

    def _run(self, folder: Path, stages: StageProcesses) -> TrialOutcome:
        plan = self.plan
        self._subscribers = [self._make("subscriber", n, folder, stages) for n in range(plan.subscribers)]
        self._publishers = [self._make("publisher", n, folder, stages) for n in range(plan.publishers)]
        for worker in (*self._subscribers, *self._publishers):
            worker.begin()
        for worker in (*self._subscribers, *self._publishers):
            worker.await_ready()
        self.say("everybody is ready")
        began = time.monotonic()
        for worker in self._publishers:
            worker.tell(do="go")
        named = self._subscribers[: plan.durable]
        breaking = Breaking(stages, self._publishers, self._subscribers, self.restart_broker, self.kill_broker)
        kills = breaking.run(
            self._random,
            plan.pause_s,
            stages=plan.kills,
            broker=plan.broker_kills,
            named=(named, plan.subscriber_kills),
            everything=plan.everything_kills,
        )
        self.say(f"killed and started again: {kills} times")
        self._stop_publishing()
        said = self._finish_subscribing()
        return self._outcome(time.monotonic() - began, kills, said)

    def _stop_publishing(self) -> None:
        for worker in self._publishers:
            worker.await_ready()
            worker.tell(do="stop")
        give_up_at = time.monotonic() + PUBLISH_S
        for worker in self._publishers:
            worker.hear(max(give_up_at - time.monotonic(), 0.0) + self.plan.receipts_s)
        self.say("everything is published")

    def _finish_subscribing(self) -> list[dict[str, Any]]:
        totals = totals_of(self._receipts)
        for worker in self._subscribers:
            worker.await_ready()
            worker.tell(do="finish", totals=totals)
        limit_s = self.plan.patience_s + 3 * CALL_S  # ... change, take, close
        return [worker.hear(limit_s) for worker in self._subscribers]

    @property
    def _receipts(self) -> list[Path]:
        return [Path(worker.plan["log"]) for worker in self._publishers]

    def _outcome(self, seconds: float, kills: int, said: list[dict[str, Any]]) -> TrialOutcome:
        losses = None
        if self._line is not None:
            line, self._line = self._line, None
            losses = Losses(**line.finish())
        logs = [Path(worker.plan[_writes_down(worker)]) for worker in self._subscribers]
        verdict = judge(self._receipts, logs, [Path(worker.plan["raw"]) for worker in self._subscribers])
        waiting = [
            f"{w.plan['name']}: {s['waiting_for']}"
            for w, s in zip(self._subscribers, said, strict=True)
            if s["missing"]
        ]
        return TrialOutcome(verdict, seconds, sum(one["changes"] for one in said), kills, waiting, losses)

    def _role(self, role: str, number: int) -> str:
        if role == "subscriber" and number < self.plan.durable:
            return "subscriber with a name"
        if role == "publisher" and self.plan.everything_kills:
            return "surviving publisher"
        return role

    def _make(self, role: str, number: int, folder: Path, stages: StageProcesses) -> TrialWorkerProcess:
        plan = self.plan
        every = [f"t{n}" for n in range(plan.topics)]
        held = self._random.sample(every, min(plan.topics_each, plan.topics))
        addresses = stages.addresses
        at = number % len(addresses)
        name = f"{role[0]}{number}"
        ens = plan.ens if self._line is None or role == "publisher" else self._line.url(plan.ens)
        return TrialWorkerProcess.of(
            {
                "role": self._role(role, number),
                "name": name,
                "life": 1,
                "seed": self._random.randrange(1 << 30),
                "ens": ens,
                "sequencer": addresses[at:] + addresses[:at],
                "topics": sorted(held),
                "every_topic": every,
                # One that is killed has so many lives.
                "events": -(-plan.events // plan.publishers // (1 + plan.everything_kills)),
                "rate": plan.rate,
                "filler": plan.filler,
                "change_every": plan.change_every,
                "is_brief": number % 2 == 1,
                "patience_s": plan.patience_s,
                "receipts_s": plan.receipts_s,
                "call_s": CALL_S,
                "settings": plan.settings,
                "raw": str(folder / f"{name}.raw"),
                "log": str(folder / f"{name}.log.txt"),
                "results": str(folder / f"{name}.results.db"),
            },
            folder / f"{name}.errors",
        )


def _writes_down(worker: TrialWorkerProcess) -> str:
    """Which of its files says what a subscriber was notified of."""
    return "results" if worker.plan["role"] == "subscriber with a name" else "log"


def _tails(folder: Path) -> str:
    """The ends of what processes have said on standard error."""
    tails = [
        f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("*.errors")) if path.stat().st_size
    ]
    return "\n".join(tails)
