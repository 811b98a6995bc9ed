"""The way of an event in: from the client's one connection to the ENS to those of its subscriptions that hold the topic.

The subscriptions of a client share its connection. Frames are read once, and given to each subscription as one batch. Then
the adapter is kept waiting until every subscription that they went to has room again: so a slow application is felt by the
ENS, and with it by the publishers of these topics, and nothing is dropped. It also means that a subscription that is never
read holds up the client's other subscriptions; it is named in the log when it does.

Nothing that the broker brings is believed before `core.trust.inspection` has judged it. So a topic's keys are asked for before
the topic is held at the ENS. What has not arrived is counted by its cause, and logged now and then; a frame that was not
published through the order is counted, and logged once per topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import attrs
from msgspec.structs import replace

from ordered_pubsub.adapter import Adapter, Frame
from ordered_pubsub.client.remembering import Remembered
from ordered_pubsub.core.client.holding import EnsOperation, Holding
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.messages import Keys, NotArrivedCounts
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.trust.inspection import ARRIVED, WAIT, Inspection
from ordered_pubsub.errors import Closed, ProtocolError, SystemMismatch, UnknownVersion
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.event_frames import UntrustedStamp, arrivals_of, read_claims, read_unordered

_log = logging.getLogger(__name__)

STALLED_AFTER_S = 5.0
"""A subscription that has kept the ENS waiting for so long is named in the log."""
REPORT_S = 5.0
"""So long after something has not arrived the stage is told, and of all that has not arrived until then."""


class Receiver(Protocol):
    """What takes arrivals: a subscription's intake."""

    identity: str

    @property
    def is_full(self) -> bool:
        """Whether it wants no more for now."""

    def receive_unordered(self, arrivals: list[Arrival]) -> None:
        """Take what has no place in the order; never raises."""

    async def wait_for_room(self) -> None:
        """Return when it is not full any more, or when it is told to `stop_waiting`."""

    def stop_waiting(self) -> None:
        """Let `wait_for_room` return now."""

    def fail(self, error: Exception, what: str) -> None:
        """Nothing more can come."""


@attrs.define(eq=False)
class Reception:
    """Who holds what at the ENS."""

    adapter: Adapter
    delivers_unordered: bool
    """whether messages that have no place in the order are notified all the same"""
    machine: ClientMachine
    settle: Callable[[], None]
    """does what the machine says"""
    supervisor: Supervisor
    is_waiting: bool = False
    """whether what the ENS has brought is not taken now, since somebody is full"""
    is_closed: bool = False
    unstamped_frames: int = 0
    _receivers: dict[str, Receiver] = attrs.field(factory=dict)
    _operation: asyncio.Task[None] | None = None
    """has the ENS bring topics, or end it"""
    _complained: dict[str, bool] = attrs.field(factory=Remembered)
    """topics of which it was logged that they have messages without a place in the order"""
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _report_timer: asyncio.TimerHandle | None = None
    """tells the stage how much has not arrived"""
    inspection: Inspection = attrs.field(init=False)
    """the machine's: judges what the ENS brings"""
    holding: Holding = attrs.field(init=False)
    """the machine's: says what the ENS is to bring"""

    def __attrs_post_init__(self) -> None:
        self.inspection, self.holding = self.machine.inspection, self.machine.holding

    def enter(self, receiver: Receiver) -> None:
        """There is another subscription."""
        self._receivers[receiver.identity] = receiver

    def leave(self, receiver: Receiver) -> None:
        """A subscription is over."""
        if self._receivers.get(receiver.identity) is receiver:
            del self._receivers[receiver.identity]

    # -- at the ENS ---------------------------------------------------------------------------------------------------

    def operate(self) -> None:
        """Have the ENS do what is to be done there; and stop waiting for what nobody needs any more."""
        if self._operation is not None:
            if self.holding.is_abandoned:
                self._operation.cancel()
            return
        operation = self.holding.next_operation(self._loop.time())
        if operation is not None:
            # The ENS's answer comes behind frames on the same connection. Were these not taken because a subscription is full,
            # then a task that reads that subscription, and waits for the change, would wait for itself.
            for receiver in list(self._receivers.values()):
                receiver.stop_waiting()
            verb = "subscribing to" if operation.subscribes else "unsubscribing from"
            name = f"{verb} {', '.join(operation.topics[:3])} at the ENS"
            done = partial(self._operated, operation, name)
            self._operation = self.supervisor.reported(self._operate(operation), name, done)

    async def _operate(self, operation: EnsOperation) -> None:
        if operation.subscribes:
            await self.adapter.subscribe(operation.topics)
        else:
            await self.adapter.unsubscribe(operation.topics)

    def _operated(self, operation: EnsOperation, name: str, error: BaseException | None) -> None:
        """The ENS has answered, or cannot be asked."""
        self._operation = None
        if self.is_closed:
            return
        is_tried_again = operation.hold is None or operation.hold.is_lasting
        if error is not None and is_tried_again and not self.holding.is_abandoned:
            self.supervisor.note(name, error)
        self.machine.now = self._loop.time()
        self.machine.operation_done(
            error if error is None or isinstance(error, Exception) else Closed(f"cut off: {name}")
        )
        self.settle()

    # -- keys ---------------------------------------------------------------------------------------------------------

    def take_keys(self, keys: Keys) -> None:
        """The stage has given keys: what waited for them may have arrived."""
        arrived: dict[str, list[Arrival]] = {}
        for topic, claim in self.machine.take_keys(keys):
            _give_to_each(arrived, self.holding.holders(topic), self._judge(topic, [claim]))
        self.machine.arrived(arrived)
        self._say_what_has_not_arrived()

    def close(self) -> None:
        """Ask for nothing any more, and report nothing."""
        self.is_closed = True
        if self._report_timer is not None:
            self._report_timer.cancel()

    # -- frames -------------------------------------------------------------------------------------------------------

    async def take_frames(self, frames: Sequence[Frame]) -> None:
        """The ENS brings frames: read them, spread them, and wait for those who are full. Never raises."""
        ordered: dict[str, list[Arrival]] = {}
        unordered: dict[str, list[Arrival]] = {}
        self.machine.now = self.inspection.now = self._loop.time()
        for frame in frames:
            names = self.holding.holders(frame.topic)
            if names:
                arrivals = self._read(frame)
                if arrivals is None:
                    _give_to_each(unordered, names, self._read_unordered(frame))
                else:
                    _give_to_each(ordered, names, arrivals)
        self.machine.arrived(ordered)
        for name, taken in unordered.items():
            if name in self._receivers:
                self._receivers[name].receive_unordered(taken)
        self._say_what_has_not_arrived()
        self.settle()
        for name in {**ordered, **unordered}:
            receiver = self._receivers.get(name)
            if receiver is not None and receiver.is_full and self._operation is None:
                await self._wait_for_room(receiver)

    async def _wait_for_room(self, receiver: Receiver) -> None:
        words = (
            "subscription %s is full and has not been read for %g s: its client takes nothing more from the ENS until it is. "
            "Read it, close it, give it a client of its own, or raise queue_events_max and queue_bytes_max"
        )
        warn = partial(_log.warning, words, receiver.identity, STALLED_AFTER_S)
        timer = asyncio.get_running_loop().call_later(STALLED_AFTER_S, warn)
        self.is_waiting = True
        try:
            await receiver.wait_for_room()
        finally:
            self.is_waiting = False
            timer.cancel()

    def _report(self) -> None:
        """Tell the stage, whose metrics are looked at, how much has not arrived."""
        self._report_timer = None
        counts, self.inspection.unreported = self.inspection.unreported, {}
        self.machine.say(NotArrivedCounts(self.inspection.session, counts))
        self.settle()

    def _read(self, frame: Frame) -> list[Arrival] | None:
        """What has arrived with a frame; None if it was not published through the order."""
        topic = frame.topic
        try:
            claims = read_claims(frame, self.inspection.has_tags)
        except ProtocolError as error:
            self._refuse(topic, error)
            return []
        return self._judge(topic, claims) if claims else None

    def _judge(self, topic: str, claims: Iterable[UntrustedStamp]) -> list[Arrival]:
        """The events of those claims that have arrived."""
        judge = self.inspection.judge
        arrivals: list[Arrival] = []
        for claim in claims:
            verdict = judge(topic, claim.tag, claim.stamp, claim.head, claim.content)
            if verdict == ARRIVED:
                try:
                    arrivals += arrivals_of(topic, claim)
                except ProtocolError as error:
                    self._refuse(topic, error)
            elif verdict == WAIT:
                content = bytes(claim.content)  # a copy, since the rest of the frame is not to be kept
                waiting = replace(claim, content=content)
                self.inspection.wait(topic, claim.stamp.key_epoch, len(content) + len(claim.head), (topic, waiting))
                self.machine.ask_for_keys()
            else:
                self.inspection.not_arrived(topic, verdict)
        return arrivals

    def _refuse(self, topic: str, error: ProtocolError) -> None:
        cause = "version" if isinstance(error, UnknownVersion) else "unreadable"
        self.inspection.not_arrived(topic, cause, why=str(error))

    def _read_unordered(self, frame: Frame) -> list[Arrival]:
        """A message that has no place in the order."""
        self.unstamped_frames += 1
        if self.delivers_unordered:
            return [read_unordered(frame)]
        if frame.topic not in self._complained:
            self._complained[frame.topic] = True
            _log.warning(
                "a message on %r is not delivered: it was not published through ordered_pubsub, so it has no place in the order "
                '(unordered="deliver" would notify it all the same); no more of these are logged for this topic',
                frame.topic,
            )
        return []

    def _say_what_has_not_arrived(self) -> None:
        for note in self.inspection.take_notes():
            _log.warning(
                "%d of what the broker brought on %r has not arrived: %s. Nobody is notified of it; of this topic and cause, "
                "no more is logged for a minute (client.status() counts)",
                note.events,
                note.topic,
                note.why,
            )
        if self.inspection.unreported and self._report_timer is None:
            self._report_timer = self.supervisor.later(REPORT_S, self._report, "reporting what has not arrived")
        mixed, self.inspection.mixed = self.inspection.mixed, ""
        for name in list(self.holding.holders(mixed)) if mixed else ():
            error = SystemMismatch(
                f"another system publishes on topic {mixed!r} of this broker, and without tags neither can tell the events of "
                "both for sure: several systems share a broker with tags = true ([security], at all stages), or with topics "
                "that begin differently"
            )
            self._receivers[name].fail(error, "it stops")


def _give_to_each(taken: dict[str, list[Arrival]], names: Iterable[str], arrivals: list[Arrival]) -> None:
    """What has come on a topic is for all these, who hold it."""
    for name in names if arrivals else ():
        those = taken.get(name)
        if those is None:
            taken[name] = list(arrivals)
        else:
            those += arrivals
