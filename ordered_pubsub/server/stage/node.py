"""One stage on one event loop: feeds the state machine, waits for the disk, and sends what may be sent.

    clients ─┐                                                          ┌─> clients
             ├─> driver.handle_… ──> take ──> make_safe (disk) ──> release
    peers ───┘        (many inputs)        (one commit)                 └─> peers

Whatever comes while a batch is being written is the next batch. On a disk that commits fast a batch is written at once, for
handing it to another thread would take longer; on a slow one a thread writes it, so the loop goes on reading, answering pings
and saying that it is alive. When the journal fails, the stage stops: nobody knows what is on such a disk. It stops as well if
the state machine itself fails, before anything of that is written: what the journal holds is still good.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import attrs

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.log.questions import LogQuestion
from ordered_pubsub.core.log.retention import Policies
from ordered_pubsub.core.messages import Answer, Change, FromSubscriber, Named, PeerMessage, Refusal, Request, ToSession
from ordered_pubsub.core.stage.driver import (
    KEEP,
    USUAL,
    USUAL_SNAPSHOTS,
    Driver,
    FlushBatch,
)
from ordered_pubsub.core.stage.effects import Effects
from ordered_pubsub.core.stage.snapshots import NO_SNAPSHOTS
from ordered_pubsub.core.stage.turns import Turns, Work
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.core.trust.keys import PLAIN, Security
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, ProtocolError
from ordered_pubsub.server.stage._bulk import Bulk, BulkReader
from ordered_pubsub.server.stage.choosing import choosing
from ordered_pubsub.server.store.shelf import IN_USE_MAX
from ordered_pubsub.server.store.store import Store
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.pack import check_signed
from ordered_pubsub.wire.sessions import draw_system

_log = logging.getLogger(__name__)

TICK_S = 0.5
INLINE_S = 0.001
"""So much of each turn of the loop one identity has before what it says waits for its turn."""
SERVE_S = 0.001
"""So long, and one step more, is worked at what may wait before it is looked again for what may not."""
ALONE_S = 0.004
"""So long, instead of both, if nobody else waits: what is done together is written together."""
IDLE_S = 0.001
INLINE_COMMIT_S = 0.0005
"""Commits that wait for the disk longer than this, on average, are left to a thread."""
AVERAGE_OVER = 16
_OVER = object()
FROM_PEER_MAX = 256
"""When so many messages of a peer wait to be handled, no more is read from it."""
COMPLAIN_S = 10.0
"""So often at most it is logged that a stage says what cannot be."""
NAMED = "//"
"""Between the name of a client and that of its subscription."""
NAMED_SHOWN_MAX, TOPICS_SHOWN_MAX = 1_000, 10_000
"""So much of the subscriptions that have names is in a report."""


class Asker(Protocol):
    """A client that is at home here."""

    def send_answers(self, answers: list[Answer | Refusal]) -> None:
        """Bring answers."""

    def send_messages(self, messages: list[ToSession]) -> None:
        """Bring what its subscriptions miss."""


class Neighbour(Protocol):
    """A link to another stage."""

    def say(self, messages: Sequence[PeerMessage]) -> None:
        """Bring messages; they may be lost if the link is down."""

    def go_on(self) -> None:
        """What it has said was handled: read on, if that had waited."""

    def break_off(self, reason: str) -> None:
        """Its stage has said what it must not: connect anew."""


@attrs.define
class Counters:
    """What has happened since the start."""

    requests: int = 0
    events: int = 0
    changes: int = 0
    commits: int = 0
    commit_s: float = 0.0
    refusals: int = 0


@attrs.define(eq=False)
class Node:
    """A stage that runs."""

    rank: int
    topology: Topology
    store: Store
    policies: Policies = KEEP
    """how long the log keeps events"""
    times: Times = USUAL
    """how long it waits for those it does not hear of"""
    levels: Levels = attrs.field(factory=Levels)
    """what topics give"""
    security: Security = PLAIN
    """how events are made authentic"""
    timer: Callable[[], float] = time.perf_counter
    """what tells how long a write took"""
    counters: Counters = attrs.field(factory=Counters)
    askers: dict[str, Asker] = attrs.field(factory=dict)
    """session → the client's connection"""
    neighbours: dict[int, Neighbour] = attrs.field(factory=dict)
    on_named: Callable[[str, str], None] = lambda name, session: None
    """called with a name and a session: the name is the session's now, on disk"""
    failed: asyncio.Future[None] = attrs.field(init=False)
    """fails when the stage can do nothing any more"""
    driver: Driver = attrs.field(init=False)
    turns: Turns = attrs.field(factory=Turns)
    """what clients have said, as far as nobody has looked at it yet"""
    _spent: dict[str, float] = attrs.field(factory=dict)
    """identity → how long this turn of the loop has worked for it"""
    _servers: deque[Callable[[], bool]] = attrs.field(init=False)
    """who does a little step, whose turn it is first; each says whether it has done something"""
    _from_peers: dict[int, deque[PeerMessage]] = attrs.field(factory=dict)
    """what peers have said and was not handled yet, in its order"""
    bulk: Bulk = attrs.field(init=False)
    """who reads much of the logs"""
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _pool: ThreadPoolExecutor = attrs.field(factory=lambda: ThreadPoolExecutor(1, "journal"))
    is_draining: bool = False
    """whether clients are to ask elsewhere"""
    _is_flushing: bool = False
    """a flush is planned or under way"""
    _is_flush_next: bool = False
    """a flush is planned, and not under way yet"""
    _has_given_way: bool = False
    """what may wait has let a flush go first"""
    _is_serving: bool = False
    """a piece of the log is about to be read"""
    _closing: asyncio.Future[None] | None = None
    """the store is let go"""
    _commit_s: float = 0.0
    """how long a commit takes on average"""
    _tick_handle: asyncio.TimerHandle | None = None
    _supervisor: Supervisor = attrs.field(init=False)
    _complained: dict[int, tuple[int, float]] = attrs.field(factory=dict)
    """how much of what each peer has said that cannot be was in the log by when"""
    _warned: tuple[int, float] = (0, float("-inf"))
    """of how many topics it was in the log when that clients have seen more of them"""
    _rested: asyncio.Event = attrs.field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self.failed = self._loop.create_future()
        advice = "Its store is as it was before that: start it again, and report this with its log"
        self._supervisor = Supervisor(f"stage {self.name}", self._fail, advice)
        try:
            self.driver = Driver.open(
                self.rank,
                self.topology,
                self.store.journal,
                snapshots=NO_SNAPSHOTS if self.store.durability == "none" else USUAL_SNAPSHOTS,
                policies=self.policies,
                times=self.times,
                levels=self.levels,
                founding=draw_system(time.time()),
                security=self.security,
            )
        except JournalDamaged as error:
            raise self.store.explained(error) from error
        self.store.share_names(self.driver.stage.state.clocks.numbers)
        for topic, number in self.driver.begun.items():
            _log.warning(
                "the events of topic %r are kept from number %d on, as the configuration says now; up to %d they were not, so "
                "its log begins there",
                topic,
                number + 1,
                number,
            )
        self.driver.hosting.curiosity.choose = choosing
        self.driver.check_events = check_signed
        self.driver.stage.gatekeeper.topics_max = IN_USE_MAX
        self.bulk = Bulk(self.driver.owner_logs.reader, lambda: self.driver.stage.state.kept)
        self._servers = deque((self.turns.step, lambda: self.driver.serve(), self.bulk.serve))
        self._plan_flush()
        self._tick()

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.topology.stages[self.rank].name

    # -- whose turn it is -----------------------------------------------------------------------------------------------

    def begin(self, identity: str, session: Hashable, work: Work) -> None:
        """Look at what a client says, now if its identity has not had its share of this moment yet; the rest by turns."""
        if self.turns.has_any(identity):
            self.turns.put(identity, session, work)  # others of its own wait already
            return
        if not self._spent:
            self._supervisor.soon(self._spent.clear, "beginning a moment")
        began = time.perf_counter()
        share_s = INLINE_S if self.turns.has_work else ALONE_S
        until = began + share_s - self._spent.get(identity, 0.0)
        now = began
        try:
            while now < until:
                outcome = next(work, _OVER)
                now = time.perf_counter()
                if outcome is _OVER:
                    self._spent[identity] = self._spent.get(identity, 0.0) + now - began
                    return
                if outcome is False:
                    break  # it waits for something else
        except Exception as error:
            self._meet(error)
            return
        self._spent[identity] = self._spent.get(identity, 0.0) + now - began
        self.turns.put(identity, session, work)
        self._plan_flush()

    def is_busy_with(self, identity: str, session: str) -> bool:
        """Whether something that a client said before still waits for its turn."""
        return self.driver.is_busy_with(identity, session)

    def forget(self, identity: str, connection: BulkReader) -> None:
        """A connection is gone: nobody waits for what was said on it."""
        self.turns.forget(identity, connection)
        self.bulk.forget(connection)

    # -- in -----------------------------------------------------------------------------------------------------------

    def handle_requests(self, requests: Sequence[Request], refusals: Mapping[int, Refusal] | None = None) -> None:
        """A client at home here asks. `refusals` says which sequences it may not ask, and why."""
        if self.is_draining or self._is_over:
            return  # asked again elsewhere
        now = time.time()
        refusal_of = (refusals or {}).get
        try:
            for request in requests:
                self.driver.handle_request(request, now, refusal_of(request.sequence))
        except Exception as error:
            self._meet(error)
        self.counters.requests += len(requests)
        self._plan_flush()

    def handle_subscriber(self, session: str, message: FromSubscriber, identity: str = "") -> None:
        """A subscription of a client at home here says how far it is, or what it misses."""
        if not self._is_over:
            try:
                self.driver.handle_subscriber(session, message, self._loop.time(), identity)
            except ProtocolError:
                raise  # it must not say this, and nothing was done
            except Exception as error:
                self._meet(error)
            self._plan_flush()

    def give_name(
        self, name: str, identity: str, session: str, most: int, in_use: Container[str] | None, is_given: bool
    ) -> tuple[str, str]:
        """Give a name that is kept here to a session; return why not, if not (`Gatekeeper.give_name`).

        It has it when `on_named` is called.
        """
        stage = self.driver.stage
        if self._is_over or not stage.is_open:
            return "", ""  # it is asked again
        named = Named(name, identity, session, time.time())
        try:
            return stage.gatekeeper.give_name(named, most, self.times.named_ttl_s, in_use, is_given)
        except Exception as error:
            self._meet(error)
            return "", ""
        finally:
            self._plan_flush()

    def traced(self, session: str) -> tuple[int, list[int]]:
        """The epoch of a session, and which of its requests this stage has taken, as far as it remembers them."""
        return self.driver.stage.state.requests.traced(session)

    def handle_reader(self, reader: BulkReader, message: LogQuestion) -> None:
        """A client that may asks for much of a log. Who asks while the stage stops asks again elsewhere."""
        if not self._is_over:
            try:
                self.bulk.ask(reader, message)
            except ProtocolError:
                raise
            except Exception as error:
                self._meet(error)
            self._plan_flush()

    def rotate_keys(self, revokes: bool = False) -> int:
        """Let another epoch of keys begin; return the one that is used until then."""
        if not self._is_over:
            self.driver.rotate_keys(revokes)
        return self.driver.stage.state.keys.epoch

    def client_is_here(self, session: str, identity: str = "") -> None:
        """A client is at home here now."""
        self._supervisor.guarded(self.driver.client_is_here, "its state machine", session, identity)

    def client_is_gone(self, session: str) -> None:
        """A client is not at home here any more."""
        self._supervisor.guarded(self.driver.client_is_gone, "its state machine", session)

    def handle_peer(self, peer: int, messages: Sequence[PeerMessage]) -> None:
        """A peer says something; what takes long of it waits. Raises what the state machine says about what must not come."""
        if self._is_over:
            return
        waiting = self._from_peers.setdefault(peer, deque())
        waiting.extend(messages)
        if len(waiting) == len(messages):  # nothing of it waited before
            self._hear_peer(peer, time.perf_counter() + INLINE_S)
        self._plan_flush()

    def _hear_peer(self, peer: int, until: float) -> None:
        """Handle what a peer has said, in its order, but not for long."""
        waiting, now = self._from_peers[peer], time.time()
        try:
            while waiting and not self._is_over:
                self.driver.handle_peer(peer, waiting.popleft(), now)
                if time.perf_counter() >= until:
                    break
        except Exception as error:
            if isinstance(error, OrderedPubSubError) and not isinstance(error, JournalError):
                waiting.clear()  # what follows is not to be taken before it comes again
                raise
            self._meet(error)
        finally:
            self._maybe_complain(peer)
            if not waiting:
                self._from_peers.pop(peer, None)
                if peer in self.neighbours:
                    self.neighbours[peer].go_on()

    def is_behind(self, peer: int) -> bool:
        """Whether so much of what a peer has said waits that no more is to be read."""
        return len(self._from_peers.get(peer, ())) > FROM_PEER_MAX

    def _hear_peers(self, until: float) -> None:
        """Go on with what peers have said."""
        for peer in list(self._from_peers):
            try:
                self._hear_peer(peer, until)
            except OrderedPubSubError as error:
                self.neighbours[peer].break_off(str(error))

    def drop(self, peer: int, error: ProtocolError) -> None:
        """A peer has said what cannot be read, and what may get lost."""
        self.driver.drop(peer, error)
        self._maybe_complain(peer)

    def _maybe_warn(self) -> None:
        """Say in the log that clients have seen more than this stage knows of."""
        behind = self.driver.behind.topics
        now = self._loop.time()
        if len(behind) > self._warned[0] and now >= self._warned[1] + COMPLAIN_S:
            self._warned = (len(behind), now)
            topic, count = next(reversed(behind.items()))
            _log.error(
                "stage %s: a client says that it has topic %r up to number %d, and %d is the last that was given here (%d topics "
                "so far): if that is true, this is an older copy of the store, and numbers are given twice. Stop the stage, and "
                "look with 'ordered-pubsub store check %s'",
                self.name,
                topic,
                count,
                self.driver.stage.waking.given(topic),
                len(behind),
                self.store.name,
            )

    def _maybe_complain(self, peer: int) -> None:
        """Say in the log that a peer says what cannot be: now and then, however often it does."""
        count, reason = self.driver.unfit.get(peer, (0, ""))
        said, at = self._complained.get(peer, (0, float("-inf")))
        now = self._loop.time()
        if count > said and now >= at + COMPLAIN_S:
            self._complained[peer] = (count, now)
            _log.error(
                "stage %s says what cannot be, %d times since this one started; that is dropped, and the link stays. Run the "
                "same release on both, and report this; the last of it: %s",
                self.topology.stages[peer].name,
                count,
                reason,
            )

    def connected(self, peer: int) -> None:
        """The link to a peer is there."""
        self._from_peers.pop(peer, None)
        self.driver.stage.connected(peer)
        self._plan_flush()

    def disconnected(self, peer: int) -> None:
        """The link to a peer is gone, and what was said on it: all that matters is said again."""
        self._from_peers.pop(peer, None)
        self.driver.disconnected(peer)

    def _tick(self) -> None:
        try:
            self.driver.tick(self._loop.time(), time.time())
        except Exception as error:
            self._meet(error)
            return
        self._maybe_warn()
        self._plan_flush()
        self._tick_handle = self._supervisor.later(TICK_S, self._tick, "the tick")

    # -- to the disk --------------------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._closing is not None or self.failed.done()

    def _plan_flush(self) -> None:
        if self._is_over:
            return
        if not self._is_flushing and self.driver.has_work:
            self._is_flushing = self._is_flush_next = True
            self._supervisor.soon(self._flush, "writing a batch")
        if not self._is_serving and self._is_asked:
            self._is_serving = True
            self._supervisor.soon(self._serve, "reading the log")

    @property
    def _is_asked(self) -> bool:
        """Whether somebody waits for something that is done a little at a time."""
        return bool(self._from_peers) or self.turns.has_work or self.driver.is_asked or self.bulk.has_work

    def _serve(self) -> None:
        """For a few milliseconds do a little at a time of what was caused and waits for its turn, and read pieces of the log.
        Whatever else there is to do comes before the next ones, also in other processes: who shares the processor and is
        waiting for one event comes before who is reading a million."""
        if self._is_flush_next and not self._has_given_way:
            self._has_given_way = True  # but only once: somebody always has something to say
            self._supervisor.soon(self._serve, "reading the log")
            return
        self._is_serving = self._has_given_way = False
        if self._is_over:
            return
        is_idle = True
        try:
            if not self.turns.has_work and not self.driver.is_asked:
                os.sched_yield()
            is_shared = self.turns.is_shared or self.driver.is_asked or self.bulk.has_work or self._from_peers
            until = time.perf_counter() + (SERVE_S if is_shared else ALONE_S)
            if self._from_peers:
                self._hear_peers(until)
            idle_steps = 0
            while idle_steps < len(self._servers):
                has_done = self._servers[0]()
                self._servers.rotate(-1)
                idle_steps = 0 if has_done else idle_steps + 1
                is_idle = is_idle and not has_done
                if time.perf_counter() >= until:
                    break
        except Exception as error:
            self._meet(error)
        if is_idle and self._is_asked and not self._is_serving:  # all of it waits for something else
            self._is_serving = True
            self._supervisor.later(IDLE_S, self._serve, "reading the log")
        self._plan_flush()

    def _flush(self) -> None:
        self._is_flush_next = False
        if self._is_over:
            return
        batch = self.driver.take()
        try:
            self.driver.write_down(batch)
        except JournalError as error:
            self._finish(batch, error)
            return
        if self.store.durability == "fsync" and self._commit_s > INLINE_COMMIT_S and batch.has_news:
            writing = self._loop.run_in_executor(self._pool, self._make_sure, batch)
            writing.add_done_callback(
                lambda written: self._supervisor.guarded(self._written, "writing", batch, written)
            )
        else:
            self._finish(batch, self._make_sure(batch))

    def _written(self, batch: FlushBatch, written: asyncio.Future[JournalError | float]) -> None:
        """A thread has written a batch."""
        self._finish(batch, written.result())

    def _make_sure(self, batch: FlushBatch) -> JournalError | float:
        """See to it that a batch is on disk; return how long it took, or why it failed. May run in a thread.

        Only this does: whoever writes row by row in a thread waits for the loop's thread at each of them, if that is busy.
        """
        if not batch.has_news and batch.snapshot is None and not self.store.journal.has_more:
            return 0.0
        started = self.timer()
        try:
            self.driver.make_sure(batch)
        except JournalError as error:
            return error
        return self.timer() - started

    def _finish(self, batch: FlushBatch, outcome: JournalError | float) -> None:
        if isinstance(outcome, JournalError):
            self._fail(outcome)
            return
        if batch.effects.journal:
            self.counters.commits += 1
            self.counters.commit_s += outcome
            self._commit_s += (outcome - self._commit_s) / AVERAGE_OVER
        try:
            self._release(self.driver.release(batch))
        except Exception as error:
            self._meet(error)
        self._is_flushing = False
        self._rested.set()
        self._plan_flush()

    def _meet(self, error: Exception) -> None:
        """The stage has met what it must not, whoever has called it: it stops.

        If it is not the store, the state machine has a bug: its memory may be anything, so nothing of it is written, or said, any
        more.
        """
        if isinstance(error, JournalError):
            self._fail(error)
        else:
            self._supervisor.give_up("its state machine", error)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, JournalDamaged):
            error = self.store.explained(error)
        if not self.failed.done():
            _log.critical("%s", error)
            self.failed.set_exception(error)
            self.failed.exception()  # whoever relies on the stage looks at it
        self._rested.set()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _release(self, effects: Effects) -> None:
        to_peers: dict[int, list[PeerMessage]] = {}
        for peer, message in effects.sends:
            to_peers.setdefault(peer, []).append(message)
        for peer, messages in to_peers.items():
            neighbour = self.neighbours.get(peer)
            if neighbour is not None:
                neighbour.say(messages)
        to_clients: dict[str, list[Answer | Refusal]] = {}
        for answer in effects.replies:
            to_clients.setdefault(answer.client, []).append(answer)
            if isinstance(answer, Refusal):
                self.counters.refusals += 1
        for client, answers in to_clients.items():
            asker = self.askers.get(client)
            if asker is not None:
                asker.send_answers(answers)
        self._inform(effects.tells)
        for name, session in effects.named:
            self.on_named(name, session)
        self._count(effects)

    def _inform(self, tells: Sequence[tuple[str, ToSession]]) -> None:
        to_clients: dict[str, list[ToSession]] = {}
        for session, message in tells:
            to_clients.setdefault(session, []).append(message)
        for session, messages in to_clients.items():
            asker = self.askers.get(session)
            if asker is not None:
                asker.send_messages(messages)

    def _count(self, effects: Effects) -> None:
        for operation in effects.completed:
            for part in operation.parts:
                if isinstance(part, Change):
                    self.counters.changes += 1
                elif self.topology.owner(part.topic) == self.rank:
                    self.counters.events += part.count

    # -- to look at ---------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why the stage does nothing any more; empty if it is well."""
        if not self.failed.done() or self.failed.cancelled():
            return ""
        return str(self.failed.exception())

    @property
    def why_not_ready(self) -> str:
        """Why requests are not taken now; empty if they are."""
        if self.trouble:
            return "it has stopped, since its store failed, or it met what it cannot handle: its log says which"
        if self._is_over:
            return "it has stopped"
        if self.is_draining:
            return "it is about to stop"
        waiting = self._waiting_for
        return f"it waits for {', '.join(waiting) or 'itself'}" if not self.driver.stage.is_open else ""

    @property
    def _waiting_for(self) -> list[str]:
        return [self.topology.stages[peer].name for peer in self.driver.stage.peers.unconfirmed if peer != self.rank]

    def status(self) -> dict[str, Any]:
        """What this stage is doing, as plain data."""
        stage = self.driver.stage
        return {
            "stage": self.name,
            "ready": not self.why_not_ready,
            "failed": self.trouble,
            "waiting_for_stages": self._waiting_for,
            "store": self.store.name,
            "durability": self.store.durability,
            "clients": len(self.askers),
            "system": stage.state.keys.system.hex(),
            "key_epoch": stage.state.keys.epoch,
            "tags": self.security.tags,
            "behind": len(self.driver.behind.topics),
            **stage.statistics(),
            **self._named(),
            "since_start": {
                **attrs.asdict(self.counters),
                "dropped": self.driver.turns.dropped + self.driver.hosting.curiosity.too_much,
                "reminders": self.driver.owner_logs.reminders,
                "recalls": self.driver.owner_logs.recalls,
                "recalled_numbers": self.driver.owner_logs.recalled_numbers,
                "pieces_read": self.bulk.pieces,
                "not_arrived": dict(self.driver.not_arrived),
                "unfit_messages": sum(count for count, _ in self.driver.unfit.values()),
            },
        }

    def _named(self) -> dict[str, Any]:
        """The subscriptions with a name that are kept here, and how far the topics here are that somebody holds under a name."""
        state = self.driver.stage.state
        named = {
            name: {"reached": reached, "has_acknowledged": subscription.has_acknowledged}
            for name, subscription in state.registrar.subscriptions.items()
            if (reached := subscription.reached) is not None
        }
        held = (holding.topics for name, holding in state.groups.holdings.items() if NAMED in name)
        topics = dict.fromkeys(itertools.islice(itertools.chain.from_iterable(held), TOPICS_SHOWN_MAX))
        numbers = {
            topic: state.clocks.numbers.get(topic, 0) for topic in topics if self.topology.owner(topic) == self.rank
        }
        return {"named": dict(itertools.islice(named.items(), NAMED_SHOWN_MAX)), "numbers": numbers}

    # -- the end ------------------------------------------------------------------------------------------------------

    async def answer_the_last(self, timeout_s: float) -> None:
        """Take nothing more from clients, and wait until those who have asked have their answers; not for ever."""
        self.is_draining = True
        give_up_at = self._loop.time() + timeout_s
        while not self._is_over and (left_s := give_up_at - self._loop.time()) > 0:
            if not self._is_flushing and not self.driver.stage.statistics()["pending"]:
                return
            self._rested.clear()
            timer = self._loop.call_later(left_s, self._rested.set)
            await self._rested.wait()
            timer.cancel()

    async def close(self) -> None:
        """Stop, and let the store go; after a failure, as it is. It is let go also if whoever waits for that is cancelled."""
        if self._closing is None:
            has_failed = self.failed.done() and self.failed.exception() is not None
            if self._tick_handle is not None:
                self._tick_handle.cancel()
            last = partial(self.store.close, None) if has_failed else self._last_words
            self._closing = self._loop.run_in_executor(self._pool, last)
        try:
            await asyncio.shield(self._closing)
        finally:
            self.failed.cancel()
            self._pool.shutdown(wait=True)

    def _last_words(self) -> None:
        """What came last goes to the journal, so that the snapshot is what a crash would have left."""
        try:
            self.driver.flush()
        except JournalError:
            self.store.close(None)
            raise
        self.store.close(self.driver.stage.snapshot())
