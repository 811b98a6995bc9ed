"""The asyncio shell of one client: feeds its machine (`core.client.machine`), and does what that says.

It holds no protocol decision. What the machine wants sent and said goes to the home stage; the answers that come back at once
are all taken before anything is done about them, so that a batch stays a batch; numbered events go to the publisher, what is
ready to the intake of its subscription, operations and batches to the ENS. Time comes from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from ordered_pubsub.adapter import Adapter, Frame, redacted
from ordered_pubsub.client.home.home import Home, Listener
from ordered_pubsub.client.incoming.reception import Receiver, Reception
from ordered_pubsub.client.outgoing.publisher import Outgoing, Publisher
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.client.waiting import forget_outcome
from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.locating import Search
from ordered_pubsub.core.client.machine import ClientMachine
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Queued, Session, error_of
from ordered_pubsub.core.client.subscription import SETTLED, ClientSubscription, TopicChange
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.messages import Answer, ChangeAsk, Keys, Refusal, ToSession
from ordered_pubsub.core.order.registrar import WRONG_EPOCH
from ordered_pubsub.core.recovery.owner_log import AET_S
from ordered_pubsub.core.subscriber.starving import BrokerSilence, Starving
from ordered_pubsub.core.trust.inspection import Inspection
from ordered_pubsub.errors import AdapterError, Closed, OrderedPubSubError, Timeout
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.logged import LogPacker
from ordered_pubsub.wire.sessions import make_session, publisher_of

_log = logging.getLogger(__name__)

TICK_S, DUE_S_MIN = 0.5, 0.005
STARVED_SAID_S = 60.0
"""So often the log says what the ENS does not bring, while that lasts."""


class Member(Receiver, Protocol):
    """What ends with its client: a subscription's intake."""

    subscription: ClientSubscription

    def collect(self) -> None:
        """Something came in: take what is ready."""


class Engine:
    """What drives one client."""

    def __init__(self, name: str | None, adapter: Adapter, home: Home, settings: Settings) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.key = make_session(name)
        self.given_name = name
        self.name = publisher_of(self.key.session, name)
        self.adapter = adapter
        self.home = home
        self.failure: Exception | None = None
        """what it has met that cannot be mended: nothing comes or goes any more"""
        self.supervisor = Supervisor(
            f"client {self.name!r}", self.fail, "Close it, connect another one, and report this with the log"
        )
        self._members: dict[ClientSubscription, Member] = {}
        outbox = Outbox(UnkeptBatches(Lease(self.key.session), lambda topic: self.session.topology.owner(topic)))
        self.publisher = Publisher(
            self.name, adapter, settings, self._queue, self._commit, outbox, self.settle, self.supervisor
        )
        self.machine: ClientMachine
        self.reception: Reception
        self.state = {"ens": False, "stage": False}
        self._lost: dict[str, bool] = {}
        """what was disconnected once, so that its coming back is said as well"""
        self._outcomes: dict[TopicChange, asyncio.Future[None]] = {}
        """who waits for the outcome of a change"""
        self._is_settling = False
        self._tick_handle: asyncio.TimerHandle | None = None
        self._due_handle: asyncio.TimerHandle | None = None
        """the same, when time matters more"""
        self._searching: dict[Search, asyncio.Future[None]] = {}
        """who waits for where topics were at a time"""
        self._starved_said_at = float("-inf")
        self.is_closed = False

    async def open(self) -> None:
        """Connect to the stage and to the ENS. Failed or cancelled, nothing stays open."""
        early: list[Callable[[], None]] = []
        """what the stage does before there is a machine to be told of it: it may be quicker than who waits for it"""

        is_open = False

        def guarded(step: Callable[..., None], name: str, *arguments: Any) -> None:
            if is_open:
                self.supervisor.guarded(step, name, *arguments)
            else:
                early.append(partial(self.supervisor.guarded, step, name, *arguments))

        listener = Listener(
            lambda answers: guarded(self._take_answers, "taking answers", answers),
            lambda told: guarded(self._take_told, "taking what the stage tells", told),
            lambda is_connected, why: guarded(self._stage_changed, "a change of the connection", is_connected, why),
            self.fail,
        )
        topology = await self.home.open(self.key, self.given_name, listener)
        try:
            session = Session(
                self.key.session,
                topology,
                pipeline_events_max=self.settings.pipeline_events_max,
                packer=LogPacker(self.name, self.home, self.publisher.sharing),
            )
            name = self.key.session
            outbox = self.publisher.outbox
            self.machine = ClientMachine(session, Inspection(name), Lifeline(name), outbox, now=self.loop.time())
            self.reception = Reception(
                self.adapter, self.settings.unordered == "deliver", self.machine, self.settle, self.supervisor
            )
            self._stage_changed(True, "connected")
            is_open = True
            for step in early:
                step()
            self.adapter.on_failure = self.fail
            ens_changed = partial(self._note, "ens")
            await self.adapter.open(self._take_frames, ens_changed)
            ens_changed(True, "connected")
        except BaseException:
            await self.home.close()
            raise

    async def _take_frames(self, frames: Sequence[Frame]) -> None:
        """The ENS brings frames. Never raises."""
        try:
            await self.reception.take_frames(frames)
        except Exception as error:
            self.supervisor.give_up("taking what the ENS brings", error)

    @property
    def session(self) -> Session:
        """Its requests."""
        return self.machine.session

    # -- the machine --------------------------------------------------------------------------------------------------

    def now(self) -> ClientMachine:
        """The machine, which is told the time: an input follows, and `settle`."""
        self.machine.now = self.loop.time()
        return self.machine

    def settle(self) -> None:
        """Do what the machine says."""
        if self._is_settling or self.is_closed:
            return  # whoever settles does this as well
        machine, self._is_settling = self.machine, True
        try:
            while machine.touched or machine.failed or machine.finished:
                touched, machine.touched = machine.touched, {}
                for subscription in touched:
                    if (member := self._members.get(subscription)) is not None:
                        member.collect()
                failed, machine.failed = machine.failed, []
                for subscription in failed:
                    if (member := self._members.get(subscription)) is not None:
                        member.collect()
                finished, machine.finished = machine.finished, []
                for change in finished:
                    self._report_outcome(change)
        finally:
            self._is_settling = False
        found, machine.found = machine.found, []
        for search in found:
            future = self._searching.get(search)
            if future is not None and not future.done():
                future.set_result(None)
        if not self.is_over:
            self.reception.operate()
            self.publisher.go_on()
        self.send()
        self._plan()

    def send(self) -> None:
        """Give to the home stage what is to be sent and said."""
        sends, says = self.session.sends, self.machine.says
        if sends:
            if not self.is_over:
                self.home.send(list(sends))
            sends.clear()
        for message in says:
            self.home.say(message)
        says.clear()

    def outcome_of(self, change: TopicChange) -> asyncio.Future[None]:
        """What is done when a change has its outcome."""
        future = self._outcomes.get(change)
        if future is None:
            future = self._outcomes[change] = self.loop.create_future()
            future.add_done_callback(forget_outcome)  # whoever asked may have given up
        return future

    def forget(self, change: TopicChange) -> None:
        """Nobody waits for a change any more that will have no outcome."""
        self._outcomes.pop(change, None)

    def _report_outcome(self, change: TopicChange) -> None:
        future = self._outcomes.pop(change, None)
        if future is None or future.done():
            return
        if change.state == SETTLED:
            future.set_result(None)
        elif isinstance(change.error, AdapterError) and self.failure is not None:
            future.set_exception(self.failure)
        elif change.error is not None:
            future.set_exception(change.error)
        elif change.refusal is not None:
            future.set_exception(error_of_change(change.refusal))

    def _plan(self) -> None:
        """See to it that the machine is told the time when that matters."""
        if self.is_over:
            return
        if self._tick_handle is None and not self.machine.is_idle:
            self._tick_handle = self.supervisor.later(TICK_S, self._tick, "the tick")
        due = self.machine.next_due
        if due is not None and (self._due_handle is None or self._due_handle.when() > due):
            if self._due_handle is not None:
                self._due_handle.cancel()
            due_at = max(due, self.loop.time() + DUE_S_MIN)
            self._due_handle = self.supervisor.at(due_at, self._time_has_come, "what is due")

    def _tick(self) -> None:
        self._tick_handle = None
        self.now().tick()
        self._say_what_starves()
        self.settle()

    def _time_has_come(self) -> None:
        self._due_handle = None
        self.now().tick()
        self.settle()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _queue(self, runs: list[tuple[str, list[Outgoing]]]) -> None:
        self.session.publish_runs(runs, self.loop.time())
        self._send_on()

    def _commit(self, parts: list[tuple[str, list[Outgoing]] | ChangeAsk]) -> Queued:
        runs = [part for part in parts if not isinstance(part, ChangeAsk)]
        if len(runs) == len(parts):
            queued = self.session.publish_together(runs, self.loop.time(), is_transaction=True)
        else:
            queued = self.session.commit(parts, self.loop.time())
        self._send_on()
        return queued

    def _send_on(self) -> None:
        if not self.is_over:
            self.send()
            if self._tick_handle is None:
                self._plan()

    # -- what the ENS does not bring ----------------------------------------------------------------------------------

    @property
    def is_ens_read(self) -> bool:
        """Whether all that the ENS brings is taken at once, so that what is not here was not brought."""
        return self.state["ens"] and not self.reception.is_waiting

    @property
    def starved(self) -> dict[str, BrokerSilence]:
        """The topics of which the ENS brings nothing to some subscription, while the stage does."""
        found: dict[str, BrokerSilence] = {}
        for starving in self._starving():
            for topic, silence in starving.topics.items():
                if topic not in found or silence.since < found[topic].since:
                    found[topic] = silence
        return found

    @property
    def brought_by_stage(self) -> int:
        """How many numbers the stage has brought to the subscriptions that there are, while the ENS brought nothing."""
        return sum(starving.brought for starving in self._starving())

    def _starving(self) -> Iterator[Starving]:
        for subscription in self.machine.subscriptions.values():
            if subscription.subscriber is not None:
                yield subscription.subscriber.log.starving

    def describe_starved(self) -> str:
        """Say in words what the ENS does not bring; empty if there is nothing."""
        starved = self.starved
        if not starved:
            return ""
        few = ", ".join(map(repr, list(starved)[:3])) + (f" and {len(starved) - 3} more" if len(starved) > 3 else "")
        for_s = self.loop.time() - min(silence.since for silence in starved.values()) + AET_S
        count = sum(silence.brought for silence in starved.values())
        return (
            f"{redacted(self.adapter.url)} has brought nothing on {few} for {for_s:.0f} s; the stage has brought {count} events "
            "of that instead, each a few seconds late. May this client read there (the broker's access rules), and do the "
            "publishers use the same broker?"
        )

    def _say_what_starves(self) -> None:
        """In the log: when it begins, now and then while it lasts, and when it is over."""
        trouble, now = self.describe_starved(), self.loop.time()
        if trouble and now >= self._starved_said_at + STARVED_SAID_S:
            self._starved_said_at = now
            _log.warning("%s: %s", self.name, trouble)
        elif not trouble and self._starved_said_at > float("-inf"):
            self._starved_said_at = float("-inf")
            _log.warning("%s: %s brings everything again", self.name, redacted(self.adapter.url))

    def _take_told(self, messages: Sequence[ToSession]) -> None:
        machine = self.now()
        for message in messages:
            if isinstance(message, Keys):
                self.reception.take_keys(message)
            else:
                machine.hear(message, self.is_ens_read)
        self.settle()

    async def locate(self, topics: Sequence[str], at: float, timeout_s: float) -> dict[str, int]:
        """Where topics were at a time: for each the last number before it. Cancelled, nothing changes."""
        search = self.now().locate(topics, at)
        future = self._searching[search] = self.loop.create_future()
        try:
            if search.missing:
                self.settle()
                await asyncio.wait((future,), timeout=timeout_s)
            for topic in search.missing:
                raise Timeout(
                    f"the stages did not say within {timeout_s:g} s (timeout_s) where {topic!r} was at start="
                )
        finally:
            self.machine.locating.give_up(search)
            del self._searching[search]
        return search.numbers

    # -- in -----------------------------------------------------------------------------------------------------------

    def _take_answers(self, answers: Sequence[Answer | Refusal]) -> None:
        for outcome in self.now().answers(answers):
            self.publisher.take_outcome(outcome)
        self.settle()

    def _stage_changed(self, is_connected: bool, reason: str) -> None:
        self._note("stage", is_connected, reason)
        machine = self.now()
        if is_connected:
            # The stages decide who has been silent for too long, so their times hold, whatever others have said.
            times, now = self.home.times, self.loop.time()
            machine.lifeline.change_time(times.session_ttl_s, now)
            self.publisher.outbox.batches.lease.change_time(times.lease_s, now)
            machine.inspection.has_tags = self.home.has_tags
            machine.connected()
        else:
            machine.disconnected()
        self.settle()

    def _note(self, what: str, is_connected: bool, reason: str) -> None:
        if self.state[what] != is_connected:
            self.state[what] = is_connected
            if is_connected and what not in self._lost:
                _log.debug("%s: %s connected: %s", self.name, what, reason)
            else:
                self._lost[what] = True
                said = "connected again" if is_connected else "disconnected"
                _log.warning("%s: %s %s: %s", self.name, what, said, reason)

    # -- the end ------------------------------------------------------------------------------------------------------

    def enter(self, member: Member) -> None:
        """There is another subscription."""
        self._members[member.subscription] = member
        self.reception.enter(member)
        self.machine.begin(member.subscription)

    def leave(self, member: Member) -> None:
        """A subscription is over."""
        self._members.pop(member.subscription, None)
        self.reception.leave(member)

    def fail(self, error: Exception) -> None:
        """Something that it cannot do without has met what it cannot mend: end everything by that error, now."""
        if self.is_over:
            return
        self.failure = error
        self._stop_timers()
        self._end_changes(error)
        for member in list(self._members.values()):
            member.fail(error, "it stops with its client")
        self.publisher.fail(error)

    def _stop_timers(self) -> None:
        for handle in (self._tick_handle, self._due_handle):
            if handle is not None:
                handle.cancel()

    def _end_changes(self, error: Exception) -> None:
        """No change has an outcome any more."""
        if self._members or self._outcomes:
            self.machine.close()
        for future in self._outcomes.values():
            if not future.done():
                future.set_exception(error)
        self._outcomes.clear()

    @property
    def is_over(self) -> bool:
        """Whether nothing comes or goes any more."""
        return self.is_closed or self.failure is not None

    def check_open(self) -> None:
        """Raise if nothing comes or goes any more."""
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise Closed(f"client {self.name!r} is closed; connect another one")

    def waiting_for(self) -> str:
        """Say in words what has no outcome yet."""
        if self.is_closed:
            return "nothing: it is closed"
        if self.failure is not None:
            return f"nothing: {self.failure}"
        reasons = [] if self.session.is_idle else [self.session.waiting_for()]
        if not self.state["stage"]:
            reasons.append(f"the stage is not connected ({self.home.where.removeprefix('none: ')})")
        if not self.state["ens"]:
            reasons.append("the ens is not connected")
        unfinished = self.publisher.waiting_for()
        return "; ".join(reasons if reasons and unfinished == "nothing" else [*reasons, unfinished])

    async def close(self) -> None:
        """Disconnect. Whatever is still under way is given up."""
        if self.failure is None:
            self.machine.take_leave()
            self.send()
        self.machine.close()
        self.reception.close()
        self.is_closed = True
        self._stop_timers()
        self.supervisor.cancel()
        self._end_changes(Closed(f"client {self.name!r} was closed before the change had an outcome"))
        try:
            await self.adapter.close()
        finally:
            self.state = {"ens": False, "stage": False}
            await self.home.close()


def error_of_change(refusal: Refusal) -> OrderedPubSubError:
    """Why a change is refused, as an error."""
    if refusal.code == WRONG_EPOCH:
        return Closed(f"the subscription was opened by others again and again meanwhile: {refusal.reason}")
    return error_of(refusal.code)(f"the change was refused by the stage: {refusal.reason}")
