"""What is done to a system while it works: its parts are killed and started again, in an order that the seed decides.

A stage and the broker are back before the next one is killed. A subscriber with a name has some time to go on, and may still be
about to when the next one is killed. When everything is killed, all go at once, and all come back at once and in no order: who
finds nobody there yet tries again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from ordered_pubsub.testing.stages import StageProcess, StageProcesses
from ordered_pubsub.testing.trial.process import TrialError, TrialWorkerProcess

Deed = Callable[[], None]


@attrs.define(eq=False)
class Breaking:
    """Kills what takes part in a trial."""

    stages: StageProcesses
    publishers: Sequence[TrialWorkerProcess]
    subscribers: Sequence[TrialWorkerProcess]
    restart_broker: Deed | None
    kill_broker: Deed | None

    def run(
        self,
        draw: random.Random,
        pause_s: float,
        *,
        stages: int,
        broker: int,
        named: tuple[Sequence[TrialWorkerProcess], int],
        everything: int,
    ) -> int:
        """Kill each of the stages and of the named subscribers so often, the broker, and all at once; return how often."""
        deeds: list[Deed] = [_again(stage) for stage in self.stages.processes for _ in range(stages)]
        deeds += [self._broker_again] * broker
        deeds += [_another_life(worker) for worker in named[0] for _ in range(named[1])]
        deeds += [lambda: self._everything_again(draw)] * everything
        draw.shuffle(deeds)
        for deed in deeds:
            time.sleep(pause_s)
            deed()
        if deeds:
            time.sleep(pause_s)
        return len(deeds)

    def _broker_again(self) -> None:
        if self.restart_broker is None:
            raise TrialError("broker_kills needs Trial(restart_broker=...), which kills the broker and starts it again")
        self.restart_broker()

    def _everything_again(self, draw: random.Random) -> None:
        if self.restart_broker is None or self.kill_broker is None:
            raise TrialError("everything_kills needs Trial(restart_broker=..., kill_broker=...)")
        stages, workers = self.stages.processes, [*self.publishers, *self.subscribers]
        _at_once(draw, [self.kill_broker, *(one.kill for one in stages), *(one.kill for one in workers)])
        _at_once(draw, [self.restart_broker, *(one.start for one in stages), *(one.start_again for one in workers)])
        for publisher in self.publishers:
            publisher.tell(do="go")
        for worker in workers:
            worker.await_ready()


def _again(stage: StageProcess) -> Deed:
    def deed() -> None:
        stage.kill()
        stage.start()

    return deed


def _another_life(subscriber: TrialWorkerProcess) -> Deed:
    def deed() -> None:
        subscriber.await_ready()
        subscriber.kill()
        subscriber.start_again()

    return deed


def _at_once(draw: random.Random, deeds: list[Deed]) -> None:
    """Do all of it side by side; raises what one of them raised."""
    draw.shuffle(deeds)
    with ThreadPoolExecutor(len(deeds)) as pool:
        for done in [pool.submit(deed) for deed in deeds]:
            done.result()
