"""What one client of a simulation does at the ENS: subscribes, publishes, and takes what it brings.

The ENS may be away, take a part only, and not say what it has taken; it may bring nothing for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from ordered_pubsub.core.client.holding import EnsOperation
from ordered_pubsub.core.messages import Publication
from ordered_pubsub.core.trust.authenticity import head_of, pieces_of
from ordered_pubsub.core.trust.inspection import ARRIVED, WAIT
from ordered_pubsub.errors import AdapterError, ProtocolError
from ordered_pubsub.testing.network import Carried
from ordered_pubsub.testing.record import EventRecord
from ordered_pubsub.wire.stamp import decode_body

if TYPE_CHECKING:
    from ordered_pubsub.testing.client_host import ClientHost
    from ordered_pubsub.testing.simulation import Simulation

ENS_ANSWERS_S = 0.01


@attrs.define(eq=False)
class EnsClient:
    """One client's connection to the ENS."""

    host: ClientHost
    simulation: Simulation
    away_until: float = 0.0
    """it cannot be reached before"""
    deaf_until: float = 0.0
    """it brings nothing before, and nobody says so"""

    def operate(self) -> None:
        """Have the ENS do what the machine wants. Where it is away, that fails, or takes until it is back."""
        simulation, holding = self.simulation, self.host.machine.holding
        if holding.is_abandoned:
            assert holding.under_way is not None
            self._at_ens(holding.under_way, self.host.lives, True)
        operation = holding.next_operation(simulation.now)
        if operation is not None:
            away_s = max(self.away_until - simulation.now, 0.0)
            is_failing = away_s > 0.0 and simulation.chance.random() < 0.5
            after_s = ENS_ANSWERS_S + (0.0 if is_failing else away_s)
            simulation.after(after_s, self._at_ens, operation, self.host.lives, is_failing)

    def _at_ens(self, operation: EnsOperation, life: int, is_failing: bool) -> None:
        """The ENS answers: it brings these topics from now on, or no more; or it could not be reached."""
        if life != self.host.lives or self.host.is_dead or operation is not self.host.machine.holding.under_way:
            return
        for topic in operation.topics:  # it may have happened all the same
            if operation.subscribes:
                self.simulation.ens.subscribe(topic, self.host.index)
            elif not is_failing:
                self.simulation.ens.unsubscribe(topic, self.host.index)
        self.host.now().operation_done(AdapterError("the ENS is away") if is_failing else None)
        self.host.do()

    def publish(self) -> None:
        """Have the ENS take what the machine gives it, and tell the application what the machine says."""
        simulation, outbox = self.simulation, self.host.machine.outbox
        for topic, batches in outbox.take_next(simulation.now):
            frames = [frame for part, items in batches for frame in self._frames(part, items)]
            is_away = self.away_until > simulation.now
            if is_away or simulation.chance.random() < simulation.weather.ens_refuse:
                some = simulation.chance.randrange(len(frames) + 1)
                self._carry(frames[:some])
                simulation.after(ENS_ANSWERS_S, self._ens_answers, topic, self.host.lives, False)
            else:
                self._carry(frames)
                if simulation.chance.random() < 0.5:
                    outbox.taken(topic, simulation.now)
                else:
                    simulation.after(ENS_ANSWERS_S, self._ens_answers, topic, self.host.lives, True)

    def _frames(self, part: Publication, items: list[EventRecord]) -> list[tuple[Carried, list[EventRecord]]]:
        """What is given to the ENS of a batch, each with its events."""
        frames, first = [], 0
        for carried, count in zip(self.simulation.packer.frames(part, items), pieces_of(part), strict=True):
            frames.append((carried, items[first : first + count]))
            first += count
        return frames

    def _carry(self, frames: Iterable[tuple[Carried, list[EventRecord]]]) -> None:
        for carried, events in frames:
            self.simulation.trace(
                "%s publishes %s %d to %d", self.host.name, carried.topic, events[0].number, events[-1].number
            )
            for event in events:
                event.handed_over_at = self.simulation.now
            self.simulation.ens.publish(carried)

    def _ens_answers(self, topic: str, life: int, is_taken: bool) -> None:
        """The ENS has taken what it was given of a topic, or perhaps not all of it."""
        if life != self.host.lives or self.host.is_dead:
            return
        outbox = self.host.now().outbox
        if is_taken:
            outbox.taken(topic, self.simulation.now)
        else:
            self.simulation.record.not_taken += 1
            outbox.not_taken(topic, "the ENS is away", self.simulation.now)
        self.host.do()

    def receive(self, carried: Carried) -> None:
        """The ENS brings something."""
        if self.judge(carried):
            self.host.do()

    def judge(self, carried: Carried) -> bool:
        """Give to subscriptions what has arrived; return whether the machine may have something to say."""
        machine = self.host.now()
        inspection, topic = machine.inspection, carried.topic
        inspection.now = self.simulation.now
        names = list(machine.holding.holders(topic))
        if not names:
            return False
        try:
            stamp = decode_body(carried.body)
        except ProtocolError:
            inspection.not_arrived(topic, "unreadable")
            return False
        head = head_of(carried.body, stamp.id)
        verdict = inspection.judge(topic, carried.tag, stamp, head, carried.content)
        if verdict == WAIT:
            inspection.wait(topic, stamp.key_epoch, 1, carried)
            machine.ask_for_keys()
        elif verdict != ARRIVED:
            self.simulation.record.not_arrived += 1
            inspection.not_arrived(topic, verdict)
        else:
            for name in names:
                machine.arrived({name: self.simulation.packer.arrivals(topic, stamp, carried.content)})
        return True
