"""The asyncio shell of one client: feeds the session, and does what it says.

It holds no protocol decision. Requests that the session wants sent go to the home stage; the answers that come back at once
are all taken before anything is done about them, so that a batch stays a batch; numbered events go to the publisher, settled
changes to their subscription. Time comes from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import attrs

from ordered_pubsub.adapter import Adapter, Frame, redacted
from ordered_pubsub.client.home import Home, Listener
from ordered_pubsub.client.leasing import Leasing
from ordered_pubsub.client.logged import LogPacker
from ordered_pubsub.client.publisher import Outgoing, Publisher, error_of
from ordered_pubsub.client.reception import Reception
from ordered_pubsub.client.settings import Settings
from ordered_pubsub.client.waiting import forget_outcome
from ordered_pubsub.core.batches import Batches
from ordered_pubsub.core.inspection import Inspection
from ordered_pubsub.core.lease import Lease
from ordered_pubsub.core.lifeline import Lifeline
from ordered_pubsub.core.messages import (
    Answer,
    Change,
    ChangeAsk,
    Decided,
    FromSubscriber,
    Heard,
    Keys,
    Leased,
    Locate,
    Located,
    NewEpoch,
    Range,
    Refusal,
    Seal,
    Sealed,
    ToSession,
    ToSubscriber,
)
from ordered_pubsub.core.pubends import AET_S
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.core.registrar import WRONG_EPOCH
from ordered_pubsub.core.session import Outcome, Session
from ordered_pubsub.core.starving import Silence, Starving
from ordered_pubsub.core.subscriber import Leaving
from ordered_pubsub.errors import Closed, OrderedPubSubError, Timeout
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.sessions import make_session, publisher_of

_log = logging.getLogger(__name__)

TICK_S = 0.5
LOCATE_AGAIN_S = 1.0
LIVE_S = 1.0
"""So often it is looked at what is cut off."""
STARVED_SAID_S = 60.0
"""So often the log says what the ENS does not bring, while that lasts."""
FOLLOW_S = 1.0
"""So often a subscription says how far it is, if there is news."""


class Changing(Protocol):
    """What asks for changes: a subscription's intake."""

    def settled(self, change: Change, ask: ChangeAsk) -> None:
        """A change has its place."""

    def refused(self, ask: ChangeAsk) -> None:
        """A change will not happen."""


class Member(Protocol):
    """What ends with its client: a subscription's intake."""

    @property
    def starving(self) -> Starving | None:
        """What the ENS does not bring to it."""

    def fail(self, error: Exception, what: str) -> None:
        """Stop by an error. Never raises."""


class WrongEpoch(OrderedPubSubError):
    """A named subscription was opened by others already."""

    def __init__(self, reason: str, opened: int) -> None:
        super().__init__(reason)
        self.opened = opened
        """in which epoch"""


class HasEnded(Closed):
    """A subscription has ended, and the stage remembers it for as long as its client may still need something of it."""


class Following(Protocol):
    """What follows its topics at the stage: the intake of a subscription that misses nothing."""

    @property
    def identity(self) -> str:
        """What the subscription is called."""

    def report(self, is_all: bool = False) -> None:
        """Say how far it is, as far as that is news, or all of it."""

    def told(self, message: ToSubscriber | Decided) -> None:
        """The stage brings what it misses, or says how far its topics are, or what is void. Never raises."""

    def seal(self, topic: str, numbers: list[Range]) -> list[Range]:
        """An owner asks which of these numbers were seen; the others are not used until it is decided what they are."""


@attrs.define(eq=False)
class _Asked:
    """A change without an outcome."""

    ask: ChangeAsk
    by: Changing
    future: asyncio.Future[None]


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
        self._members: dict[Member, bool] = {}
        self.reception = Reception(
            adapter, settings.unordered == "deliver", Inspection(self.key.session), self.say, self.supervisor
        )
        owner_of = lambda topic: self.session.topology.owner(topic)  # noqa: E731
        leasing = Leasing(Batches(Lease(self.key.session), owner_of), self.say, self.supervisor)
        self.publisher = Publisher(self.name, adapter, settings, self._queue, leasing, self.supervisor)
        self.session: Session
        self.state = {"ens": False, "stage": False}
        self._lost: dict[str, bool] = {}
        """what was disconnected once, so that its coming back is said as well"""
        self._asked: dict[int, _Asked] = {}
        self._tick_handle: asyncio.TimerHandle | None = None
        self._followers: dict[str, Following] = {}
        """what hears of its subscriptions' topics from the stage"""
        self._leaving = Leaving()
        """subscriptions that are over, which the stages may not have heard"""
        self._locating = 0
        self._located: dict[int, tuple[dict[str, int], asyncio.Event]] = {}
        """what the stages say where topics were at a time, by the serial of who asks"""
        self._follow_handle: asyncio.TimerHandle | None = None
        self._starved_said_at = float("-inf")
        self.lifeline = Lifeline(self.key.session)
        self._living: dict[str, Callable[[], None]] = {}
        """subscriptions that end with the session → what stops them when they are cut off"""
        self._life_handle: asyncio.TimerHandle | None = None
        self.is_closed = False

    async def open(self) -> None:
        """Connect to the stage and to the ENS. Failed or cancelled, nothing stays open."""
        guarded = self.supervisor.guarded
        listener = Listener(
            lambda answers: guarded(self._take_answers, "taking answers", answers),
            lambda told: guarded(self._take_told, "taking what the stage tells", told),
            lambda is_connected, why: guarded(self._stage_changed, "a change of the connection", is_connected, why),
            self.fail,
        )
        topology = await self.home.open(self.key, self.given_name, listener)
        try:
            self.session = Session(
                self.key.session,
                topology,
                pipeline_events_max=self.settings.pipeline_events_max,
                packer=LogPacker(self.name, self.home, self.publisher.sharing),
            )
            self._stage_changed(True, "connected")
            self.adapter.on_failure = self.fail
            await self.adapter.open(self._take_frames, self._ens_changed)
            self._ens_changed(True, "connected")
        except BaseException:
            await self.home.close()
            raise

    async def _take_frames(self, frames: Sequence[Frame]) -> None:
        """The ENS brings frames. Never raises."""
        try:
            await self.reception.take_frames(frames)
        except Exception as error:
            self.supervisor.give_up("taking what the ENS brings", error)

    # -- out ----------------------------------------------------------------------------------------------------------

    def _queue(self, runs: list[tuple[str, list[Outgoing]]]) -> None:
        self.session.publish_runs(runs, self.loop.time())
        self._pump()

    def ask(self, ask: ChangeAsk, by: Changing) -> asyncio.Future[None]:
        """Ask for a change of a subscription; the future is done when `by` knows the outcome."""
        self.check_open()
        future: asyncio.Future[None] = self.loop.create_future()
        future.add_done_callback(forget_outcome)  # whoever asked may have given up
        self._asked[id(ask)] = _Asked(ask, by, future)
        self.session.change(ask, self.loop.time())
        self._pump()
        return future

    def _pump(self) -> None:
        if self.is_over:
            return
        sends = self.session.sends
        if sends:
            self.home.send(list(sends))
            sends.clear()
        if self._tick_handle is None and not self.session.is_idle:
            self._tick_handle = self.supervisor.later(TICK_S, self._tick, "the tick")

    def _tick(self) -> None:
        self._tick_handle = None
        self.session.tick(self.loop.time())
        self._pump()

    # -- what is missing ----------------------------------------------------------------------------------------------

    def follow(self, follower: Following) -> None:
        """Let a subscription say to the stage how far it is, and hear what it misses."""
        self._followers[follower.identity] = follower
        self._leaving.come_again(follower.identity)
        if self._follow_handle is None:
            self._follow_handle = self.supervisor.later(FOLLOW_S, self._report, "reporting")

    def unfollow(self, follower: Following) -> None:
        """A subscription needs nothing more."""
        if self._followers.pop(follower.identity, None) is not None:
            self._leaving.leave(follower.identity, self.loop.time())
            self._say_what_is_over()

    def _say_what_is_over(self) -> None:
        if self.state["stage"]:
            for follows in self._leaving.take_due(self.loop.time()):
                self.say(follows)

    def watch(self, subscription: str, stop: Callable[[], None]) -> None:
        """A subscription is asked for now that ends with the session."""
        self._living[subscription] = stop
        self.lifeline.watch(subscription, self.session.topology.registrar(subscription), self.loop.time())
        if self._life_handle is None:
            self._life_handle = self.supervisor.later(0.0, self._live, "the lifeline")

    def unwatch(self, subscription: str) -> None:
        """A subscription is over."""
        self.lifeline.unwatch(subscription)
        self._living.pop(subscription, None)

    def _live(self) -> None:
        """Say that it is there; stop what is cut off."""
        self._life_handle = None
        now = self.loop.time()
        for subscription in self.lifeline.find_cut(now):
            self._living[subscription]()
        here = self.lifeline.take_due(now)
        if here is not None:
            self.say(here)
        if self._living and not self.is_over:
            self._life_handle = self.supervisor.later(LIVE_S, self._live, "the lifeline")

    def say(self, message: FromSubscriber) -> None:
        """Tell the stage what a subscription says."""
        if not self.is_over and self.state["stage"]:
            self.home.say(message)

    def _report(self) -> None:
        self._follow_handle = None
        for follower in list(self._followers.values()):
            follower.report()
        self._say_what_is_over()
        self._say_what_starves()
        if (self._followers or len(self._leaving)) and not self.is_over:
            self._follow_handle = self.supervisor.later(FOLLOW_S, self._report, "reporting")

    # -- what the ENS does not bring ----------------------------------------------------------------------------------

    @property
    def is_ens_read(self) -> bool:
        """Whether all that the ENS brings is taken at once, so that what is not here was not brought."""
        return self.state["ens"] and not self.reception.is_waiting

    @property
    def starved(self) -> dict[str, Silence]:
        """The topics of which the ENS brings nothing to some subscription, while the stage does."""
        found: dict[str, Silence] = {}
        for member in self._members:
            for topic, silence in member.starving.topics.items() if member.starving is not None else ():
                if topic not in found or silence.since < found[topic].since:
                    found[topic] = silence
        return found

    @property
    def brought_by_stage(self) -> int:
        """How many numbers the stage has brought to the subscriptions that there are, while the ENS brought nothing."""
        return sum(member.starving.brought for member in self._members if member.starving is not None)

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
        for message in messages:
            if isinstance(message, Located):
                self._take_located(message)
            elif isinstance(message, Leased):
                self.publisher.leasing.leased(message)
            elif isinstance(message, Heard):
                self.lifeline.heard(message, self.loop.time())
            elif isinstance(message, Seal):
                self._seal(message)
            elif isinstance(message, Keys):
                self.reception.take_keys(message)
            elif isinstance(message, NewEpoch):
                self.reception.new_epoch()
            elif isinstance(message, Decided):
                for follower in list(self._followers.values()):
                    follower.told(message)
            elif (found := self._followers.get(message.subscription)) is not None:
                found.told(message)

    def _seal(self, seal: Seal) -> None:
        """An owner asks for numbers whose publisher has vanished."""
        followers = self._followers.values()
        seen = [part for follower in followers for part in follower.seal(seal.topic, seal.numbers)]
        self.say(Sealed(seal.serial, seal.rank, [self.key.session], list(Ranges(seen))))

    async def locate(self, topics: Sequence[str], at: float, timeout_s: float) -> dict[str, int]:
        """Where topics were at a time: for each the last number before it. Cancelled, nothing changes."""
        self._locating += 1
        serial, numbers = self._locating, dict[str, int]()
        self._located[serial] = (numbers, asyncio.Event())
        give_up_at = self.loop.time() + timeout_s
        try:
            while missing := [topic for topic in topics if topic not in numbers]:
                if self.loop.time() >= give_up_at:
                    raise Timeout(
                        f"the stages did not say within {timeout_s:g} s (timeout_s) where {missing[0]!r} was at start="
                    )
                self.say(Locate(self.key.session, serial, missing, at))
                news = self._located[serial][1]
                news.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), min(LOCATE_AGAIN_S, timeout_s))
        finally:
            del self._located[serial]
        return numbers

    def _take_located(self, located: Located) -> None:
        numbers, news = self._located.get(located.serial, ({}, None))
        numbers.update(located.numbers)
        if news is not None:
            news.set()

    # -- in -----------------------------------------------------------------------------------------------------------

    def _take_answers(self, answers: Sequence[Answer | Refusal]) -> None:
        now = self.loop.time()
        for answer in answers:
            for outcome in self.session.handle_answer(answer, now):
                self._take_outcome(outcome)
        self._pump()
        self.publisher.hand_over()

    def _take_outcome(self, outcome: Outcome) -> None:
        self.publisher.take_outcome(outcome)
        ask = outcome.asked.change
        asked = self._asked.pop(id(ask), None) if ask is not None else None
        if asked is None:
            return
        if outcome.change is not None:
            asked.by.settled(outcome.change, asked.ask)
            if not asked.future.done():
                asked.future.set_result(None)
        else:
            refusal = outcome.refusal
            asked.by.refused(asked.ask)
            if not asked.future.done() and refusal is not None:
                asked.future.set_exception(_error_of(refusal))

    def _stage_changed(self, is_connected: bool, reason: str) -> None:
        self._note("stage", is_connected, reason)
        if is_connected:
            self._take_times()
            self.session.connected(self.loop.time())
            self.lifeline.connected()
            self.reception.connected(self.home.has_tags)
            for follower in list(self._followers.values()):
                follower.report(is_all=True)
            self._leaving.connected(self.loop.time())
            self._say_what_is_over()
        else:
            self.session.disconnected()
        self._pump()

    def _take_times(self) -> None:
        """The stages decide who has been silent for too long, so theirs hold, whatever others have said."""
        times, now = self.home.times, self.loop.time()
        self.lifeline.change_time(times.session_ttl_s, now)
        self.publisher.leasing.batches.lease.change_time(times.lease_s, now)

    def _ens_changed(self, is_connected: bool, reason: str) -> None:
        self._note("ens", is_connected, reason)

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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do something beside the caller; what goes wrong is logged."""
        return self.supervisor.beside(work, name)

    def enter(self, member: Member) -> None:
        """A subscription ends by an error when this client does."""
        self._members[member] = True

    def leave(self, member: Member) -> None:
        """A subscription is over."""
        self._members.pop(member, None)

    def fail(self, error: Exception) -> None:
        """Something that it cannot do without has met what it cannot mend: end everything by that error, now."""
        if self.is_over:
            return
        self.failure = error
        for handle in (self._tick_handle, self._follow_handle, self._life_handle):
            if handle is not None:
                handle.cancel()
        for member in list(self._members):
            member.fail(error, "it stops with its client")
        for asked in list(self._asked.values()):
            if not asked.future.done():
                asked.future.set_exception(error)
        self._asked.clear()
        self.publisher.fail(error)

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
        self.publisher.leasing.close()
        self.reception.close()
        self.is_closed = True
        for handle in (self._tick_handle, self._follow_handle, self._life_handle):
            if handle is not None:
                handle.cancel()
        self.supervisor.cancel()
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_exception(Closed(f"client {self.name!r} was closed before the change had an outcome"))
        try:
            await self.adapter.close()
        finally:
            self.state = {"ens": False, "stage": False}
            await self.home.close()


def _error_of(refusal: Refusal) -> OrderedPubSubError:
    if refusal.code == WRONG_EPOCH:
        return WrongEpoch(refusal.reason, refusal.opened)
    if refusal.code == "ended":
        return HasEnded(f"the change was refused by the stage: {refusal.reason}")
    return error_of(refusal.code)(f"the change was refused by the stage: {refusal.reason}")
