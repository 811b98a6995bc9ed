"""The order of duties: log, journal, sync, then send.

A `Driver` feeds one stage, collects what comes of any number of inputs into one batch, and releases the batch only after the
journal has it on disk. This is the only place where that order is decided; the server, the embedded stage and the simulation
all run through it. `crash_point` is called with the name of each place at which a process may die; the simulation dies there.

`flush` does all of it at once. Whoever does not want to wait for the disk takes a `FlushBatch` with `take`, lets another thread
do `make_safe`, feeds the next inputs meanwhile, and sends what `release` returns when that is done: one batch at a time.

Beside the stage, whose state is journalled, stand those that hold soft state only, and what they say goes out with the next
batch: `_telling`, for clients that are at home here and miss something; `_relayed`, for what these ask of other stages;
`_voiding`, for numbers whose events nobody keeps; `_keys`; and `_upkeep`, so that nothing stays that nobody needs. Here is what
comes, and which of them it is for.

What a client causes may be much more than what it says. So it is done at the turn of its identity (`_pacing`): `serve` does one
small step of that, and reads a piece of the log for somebody; `is_asked` says whether there is anything to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.checking import check_durable, check_message
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.expiry import Expiry
from ordered_pubsub.core.liveness.sealing import Rounds
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.liveness.voids import Voids
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.retention import LogTrimmer, Policies, Policy
from ordered_pubsub.core.log.writer import LogWriter
from ordered_pubsub.core.messages import (
    MARKS_MAX,
    Acked,
    AckExpected,
    AckSaved,
    Answer,
    AskFloors,
    AskKeys,
    AskNews,
    AskVersion,
    ChangeAsk,
    Done,
    Ended,
    Floors,
    FromSubscriber,
    Hello,
    HomeFloors,
    KeepAlive,
    KeepAliveSeen,
    Launch,
    LeaseReply,
    LinkFrame,
    Locate,
    Located,
    LogReply,
    LogRequest,
    Nack,
    News,
    NotArrivedCounts,
    Part,
    Pass,
    PeerMessage,
    Progress,
    ProgressReports,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Reply,
    Request,
    Rotate,
    Secrets,
    SessionsAlive,
    SystemKeys,
    VersionThere,
)
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.core.recovery.hosting import ALIVE_S, Hosting
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.stage._behind import Behind
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage._keys import StageKeys
from ordered_pubsub.core.stage._news import NewsTelling
from ordered_pubsub.core.stage._pacing import LOAD_BYTES, STAGE, Pacing, load_of
from ordered_pubsub.core.stage._relayed import Relayed, key_of
from ordered_pubsub.core.stage._resting import LastNumbers, Resting
from ordered_pubsub.core.stage._telling import Telling
from ordered_pubsub.core.stage._upkeep import Upkeep
from ordered_pubsub.core.stage._voiding import Voiding, VoidMessage, VoidOfClient
from ordered_pubsub.core.stage.effects import Effects, nobody
from ordered_pubsub.core.stage.snapshots import SinceSnapshot, SnapshotPolicy
from ordered_pubsub.core.stage.stage import Stage, transaction_of
from ordered_pubsub.core.stage.storage import Journal
from ordered_pubsub.core.stage.turns import Turns, Work
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.core.trust.authenticity import Tagger
from ordered_pubsub.core.trust.inspection import CAUSES
from ordered_pubsub.core.trust.keys import PLAIN, KeyKeeper, Security
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, ProtocolError

KEEP = Policies(default=Policy(keep_age_s=float("inf"), max_age_s=float("inf")))
"""Forget nothing."""
ALIVE_SHARE = 20
"""A home stage says so often within `session_ttl_s` who is there, so that a word that gets lost ends nobody's subscription."""
USUAL = Times()
USUAL_SNAPSHOTS = SnapshotPolicy()


@attrs.frozen
class FlushBatch:
    """What came of some inputs: what must be on disk, and what may be sent when it is."""

    effects: Effects
    published: list[Publication]
    """complete publications on topics whose log is here"""
    pending: list[tuple[str, int, Publication]]
    """complete publications on topics of this stage whose events nobody keeps, by session and sequence"""
    given: int
    """how many numbers this stage has given after them, in all"""
    snapshot: bytes | None
    """the state after these inputs, if it is time to put it in the journal's place"""

    @property
    def has_news(self) -> bool:
        """Whether there is anything to write down beside the snapshot."""
        effects = self.effects
        return bool(
            effects.journal
            or effects.forget
            or effects.cleared
            or effects.awake
            or effects.decided
            or effects.published
        )


def _nothing(name: str) -> None:
    """No process dies here."""


def _unread(part: Publication | PublishAsk) -> None:
    """Nobody here can read events."""


@attrs.define(eq=False)
class Driver:
    """Runs one stage on one journal."""

    stage: Stage
    journal: Journal
    log: LogWriter
    since_snapshot: SinceSnapshot
    hosting: Hosting
    """the clients that are at home here"""
    owner_logs: OwnerLogs
    """those who miss what the log has"""
    retention: LogTrimmer
    expiry: Expiry
    voids: Voids
    keeper: KeyKeeper
    tagger: Tagger
    numbers: LastNumbers
    resting: Resting
    behind: Behind
    unfinished: dict[str, Ranges]
    """topic → what may be in the log without a stamp, as far as it is on disk or is being written"""
    begun: dict[str, int]
    """topics whose logs begin anew behind these numbers, since what they give was changed"""
    crash_point: Callable[[str], None] = _nothing
    on_synced: Callable[[Effects], None] = nobody
    """called with every batch as soon as it is on disk"""
    check_events: Callable[[Publication | PublishAsk], None] = _unread
    """raises a `ProtocolError` if the events that a peer brings are not such as its client may have brought"""
    not_arrived: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CAUSES, 0))
    """cause → how much of what the broker brought has not arrived, as clients at home here say"""
    unfit: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    """how often each peer has said what cannot be, and what was wrong with the last of it"""
    failure: Exception | None = None
    """why the journal cannot be used any more"""
    clock: Clock = attrs.field(factory=Clock)
    turns: Turns = attrs.field(factory=Turns)
    """what was caused and waits to be done"""
    rounds: Rounds = attrs.field(factory=Rounds)
    pacing: Pacing = attrs.field(init=False)
    relayed: Relayed = attrs.field(init=False)
    telling: Telling = attrs.field(init=False)
    keys: StageKeys = attrs.field(init=False)
    voiding: Voiding = attrs.field(init=False)
    news: NewsTelling = attrs.field(init=False)
    upkeep: Upkeep = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        stage, hosting, clock = self.stage, self.hosting, self.clock
        self.pacing = pacing = Pacing(stage, self.turns)
        self.relayed = Relayed(stage, clock)
        self.telling = Telling(stage, hosting, self.owner_logs, pacing)
        self.keys = StageKeys(stage, self.keeper, hosting, clock)
        self.voiding = Voiding(stage, self.voids, self.rounds, hosting, pacing, self.relayed, clock)
        self.news = NewsTelling(stage, clock)
        self.upkeep = Upkeep(
            stage,
            hosting,
            self.owner_logs,
            self.retention,
            self.expiry,
            self.numbers,
            self.resting,
            self.rounds,
            pacing,
            clock,
        )

    @classmethod
    def open(
        cls,
        rank: int,
        topology: Topology,
        journal: Journal,
        crash_point: Callable[[str], None] = _nothing,
        snapshots: SnapshotPolicy = USUAL_SNAPSHOTS,
        policies: Policies = KEEP,
        times: Times = USUAL,
        levels: Levels | None = None,
        founding: SystemKeys | None = None,
        security: Security = PLAIN,
        on_replayed: Callable[[Effects], None] = nobody,
        marks_max: int = MARKS_MAX,
    ) -> Driver:
        """Start a stage from what its journal holds; `founding` and `on_replayed` as in `Stage.restore`."""
        snapshot, records = journal.load()
        crash_point("restore:journal-read")
        numbers = LastNumbers(journal.read_shelf)
        stage = Stage.restore(rank, topology, snapshot, records, levels, founding, numbers, on_replayed, marks_max)
        crash_point("restore:replayed")
        state, stages = stage.state, len(topology.stages)
        log = LogWriter(journal.shelf, state.clocks.base)
        try:
            log.cut(state.clocks.numbers, state.kept)
            log.check_resting(state.clocks.numbers, state.resting, state.resting_events)
            begun = {topic: number for topic, number in stage.unlogged.items() if log.begin_after(topic, number)}
            journal.sync()
        except OrderedPubSubError:
            raise
        except Exception as error:
            raise JournalError(f"the log cannot be made to fit the journal: {error}") from error
        crash_point("restore:log-cut")
        voids = Voids(rank, stages, LogReader(journal.read_shelf), times.lease_s)
        voids.restore()
        unfinished = {topic: Ranges(batches.items()) for topic, batches in state.unfinished.items()}
        owner_logs = OwnerLogs(LogReader(journal.read_shelf, unfinished))
        owner_logs.given = stage.waking.given
        for topic, number in state.kept.items():
            owner_logs.published(topic, number)
        retention = LogTrimmer(journal.read_shelf, policies, stages, lambda: state.kept)
        return cls(
            stage=stage,
            journal=journal,
            log=log,
            since_snapshot=SinceSnapshot(snapshots, len(snapshot or b""), len(records), sum(map(len, records))),
            hosting=Hosting(topology, alive_s=min(ALIVE_S, times.session_ttl_s / ALIVE_SHARE)),
            owner_logs=owner_logs,
            retention=retention,
            expiry=Expiry(state.registrar, times.session_ttl_s, times.named_ttl_s),
            voids=voids,
            keeper=KeyKeeper(rank, security),
            tagger=Tagger(security.tags),
            numbers=numbers,
            resting=Resting(stage, retention, voids, journal.read_shelf),
            behind=Behind(stage),
            unfinished=unfinished,
            begun=begun,
            crash_point=crash_point,
        )

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something; with a refusal, if it may not."""
        load = load_of(request)
        if not self._has_to_wait(request) and self.pacing.may_go_on(request.identity, request.client, load):
            self._ask(request, now, refusal, load)
        else:
            work = self._asking_later(request, now, refusal, load)
            self.turns.put(request.identity, request.client, work, load * LOAD_BYTES)

    def _has_to_wait(self, request: Request) -> bool:
        """Whether too much of its identity is under way."""
        return self.relayed.has_much(request) or self.pacing.has_much_changed(request)

    def _ask(self, request: Request, now: float, refusal: Refusal | None, load: int) -> None:
        sends = self.stage.effects.sends
        before = len(sends)
        self.stage.handle_request(request, now, refusal)
        if len(sends) > before and isinstance(sends[-1][1], Relay):
            self.relayed.relayed(request, load)

    def _asking_later(self, request: Request, now: float, refusal: Refusal | None, load: int) -> Work:
        while self._has_to_wait(request):
            yield False
        self._ask(request, now, refusal, load)

    def client_is_here(self, session: str, identity: str = "") -> None:
        """A client is at home here now."""
        self.hosting.client_came(session, identity)

    def client_is_gone(self, session: str) -> None:
        """A client is not at home here any more."""
        self.hosting.forget(session)

    # -- what clients say of their subscriptions ----------------------------------------------------------------------

    def handle_subscriber(self, session: str, message: FromSubscriber, now: float, identity: str = "") -> None:
        """A client at home here says how far one of its subscriptions is, or what it misses.

        Raises a `ProtocolError`, and changes nothing, if that cannot be.
        """
        check_message(message, len(self.stage.topology.stages))
        if isinstance(message, KeepAlive):
            self.hosting.sessions[session] = message.serial
        elif isinstance(message, NotArrivedCounts):
            for cause in self.not_arrived:
                self.not_arrived[cause] += message.counts.get(cause, 0)
        else:
            self.pacing.begin(identity, session, self._hearing(session, message, now, identity))

    def _hearing(
        self,
        session: str,
        message: Nack | Progress | Acked | AskNews | AskVersion | Locate | AskKeys | VoidOfClient,
        now: float,
        identity: str,
    ) -> Work:
        """A client says something: what grows with what it names is done in small steps."""
        if isinstance(message, Nack):
            for _ in self.hosting.curiosity.wanting(session, message, now):
                self.telling.send_on()
                yield True
                if session not in self.hosting.sessions:
                    return  # it is gone
            self.telling.send_on()
        elif isinstance(message, Progress):
            self.hosting.note_progress(session, message)
            self.behind.hear(message.acked)
            self.telling.send_on()
        elif isinstance(message, Locate):
            yield from self._locating_everywhere(message, identity)
        elif isinstance(message, Acked):
            yield from self._acknowledging(replace(message, identity=identity))
        elif isinstance(message, (AskNews, AskVersion)):
            yield from self._asking_of_changes(replace(message, identity=identity))
        elif isinstance(message, AskKeys):
            yield from self.keys.giving(message)
        else:
            yield from self.voiding.spreading(message, identity)

    def _acknowledging(self, acked: Acked) -> Work:
        """An acknowledgement goes to the registrar of its subscription."""
        rank = self.stage.topology.registrar(acked.subscription)
        if rank == self.stage.rank:
            self.stage.handle_acked(rank, acked)
        elif rank in self.stage.peers.greeted:
            key = (Acked, acked.session, acked.subscription)
            yield from self.relayed.asking(rank, acked.identity, key, 1 + len(acked.clock), acked)

    def _asking_of_changes(self, ask: AskNews | AskVersion) -> Work:
        """A client wants to know what others have changed of its subscription."""
        rank = self.news.stage_for(ask)
        if rank == self.stage.rank:
            self.news.answer(rank, ask)
        elif rank in self.stage.peers.greeted:
            yield from self.relayed.asking(rank, ask.identity, key_of(ask), 1, ask)

    def _locating_everywhere(self, locate: Locate, identity: str) -> Work:
        """Ask the owners of some topics where these were at a time."""
        by_owner: dict[int, list[str]] = {}
        for topic in dict.fromkeys(locate.topics):
            by_owner.setdefault(self.stage.topology.owner(topic), []).append(topic)
        for rank, topics in by_owner.items():
            asked = replace(locate, topics=topics)
            if rank == self.stage.rank:
                yield from self._locating(rank, asked)
            elif rank in self.stage.peers.greeted:
                key = (Locate, locate.session, rank)
                yield from self.relayed.asking(rank, identity, key, len(topics), asked)

    def _locating(self, home: int, locate: Locate) -> Work:
        """Find where some topics of this stage were at a time: one at each step."""
        numbers: dict[str, int] = {}
        for topic in dict.fromkeys(locate.topics):
            numbers[topic] = self.owner_logs.reader.last_before(topic, locate.at)
            if len(numbers) < len(locate.topics):
                yield True
        located = Located(locate.session, locate.serial, numbers)
        if home == self.stage.rank:
            self.stage.effects.tells.append((locate.session, located))
        else:
            self.stage.effects.sends.append((home, located))

    # -- what peers say -----------------------------------------------------------------------------------------------

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something.

        Raises a `ProtocolError`, and changes nothing, if it must not say it; but what may get lost anyway is only dropped then,
        and counted in `unfit`: it is no reason to lose the link.
        """
        stage = self.stage
        if peer not in stage.state.links:
            raise ProtocolError(f"stage {stage.rank} has no peer of rank {peer}")
        if isinstance(message, LinkFrame):
            check_durable(message.message, len(stage.topology.stages))
            if isinstance(message.message, (Launch, Pass, Done)):
                self._check_events(message.message.operation.parts)
            stage.handle_peer(peer, message, now)
        elif isinstance(message, Hello):
            stage.handle_peer(peer, message, now)
            stage.effects.sends.append((peer, self.hosting.all_hosts(peer)))
            self.keys.ask()
        else:
            try:
                check_message(message, len(stage.topology.stages))
                self._handle_soft(peer, message, now)
            except ProtocolError as error:
                self.drop(peer, error)

    def _check_events(self, parts: Iterable[Part | PublishAsk | ChangeAsk]) -> None:
        for part in parts:
            if isinstance(part, (Publication, PublishAsk)) and part.chunks:
                self.check_events(part)

    def drop(self, peer: int, error: ProtocolError) -> None:
        """A peer has said what cannot be."""
        self.unfit[peer] = (self.unfit.get(peer, (0, ""))[0] + 1, str(error))

    def _handle_soft(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says what may get lost, since it is said or asked again."""
        effects = self.stage.effects
        if isinstance(message, LogRequest):
            self.owner_logs.handle_request(peer, message.wants)
        elif isinstance(message, LogReply):
            self.telling.tell(message)
        elif isinstance(message, Relay):
            self._handle_relay(peer, message, now)
        elif isinstance(message, HomeFloors):
            self.owner_logs.hosts(peer, message)
            self.behind.hear(message.acked)
        elif isinstance(message, Acked):
            self.stage.handle_acked(peer, message)
        elif isinstance(message, ProgressReports):
            self.upkeep.note_progress(message)
        elif isinstance(message, AskFloors):
            self.upkeep.look_for_floors(peer, message)
        elif isinstance(message, Floors):
            self.retention.floors(peer, message)
        elif isinstance(message, SessionsAlive):
            self.upkeep.hear_alive(peer, message)
        elif isinstance(message, KeepAliveSeen):
            self.upkeep.tell_heard(peer, message)
        elif isinstance(message, Locate):
            self.pacing.begin((STAGE, peer), message.session, self._locating(peer, message))
        elif isinstance(message, (AskNews, AskVersion)):
            self.news.answer(peer, message)
        elif isinstance(message, (AckSaved, Ended, Located, LeaseReply, News, VersionThere)):
            self.relayed.told_by(peer, message)
            effects.tells.append((message.session, message))
        elif isinstance(message, VoidMessage):
            self.voiding.hear(peer, message)
        elif isinstance(message, AckExpected):
            self.hosting.expected(message)
            self.telling.send_on()
        elif isinstance(message, Rotate):
            self.keys.rotate_for(peer, message)
        else:
            if isinstance(message, Reply):
                self.relayed.answered(message.answer)
            self.stage.handle_peer(peer, message, now)
            if isinstance(message, Secrets):
                self.keys.heard()

    def _handle_relay(self, peer: int, relay: Relay, now: float) -> None:
        """A home stage relays a request: its identity has its turn here as it has at home."""
        request = relay.request
        self._check_events(request.parts)
        load = load_of(request)
        if not self.pacing.has_much_changed(request) and self.pacing.may_go_on(request.identity, request.client, load):
            self.stage.handle_peer(peer, relay, now)
        else:
            self.turns.put(request.identity, request.client, self._relayed_later(peer, relay, now), load * LOAD_BYTES)

    def _relayed_later(self, peer: int, relay: Relay, now: float) -> Work:
        while self.pacing.has_much_changed(relay.request):
            yield False
        try:
            self.stage.handle_peer(peer, relay, now)
        except ProtocolError as error:
            self.drop(peer, error)

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.stage.disconnected(peer)
        self.owner_logs.home_is_gone(peer)

    def rotate_keys(self, revokes: bool = False) -> None:
        """Let another epoch of keys begin; with `revokes`, one whose keys nobody has yet. The highest stage decides."""
        self.keys.rotate(revokes)

    # -- time, and turns ----------------------------------------------------------------------------------------------

    def tick(self, now: float, wall_s: float) -> None:
        """Time passes: by the clock that never jumps, and by the one on the wall."""
        self.pacing.forget_cells(now - self.clock.now)
        self.clock.now, self.clock.wall_s = now, wall_s
        self.relayed.give_up_old()
        self.stage.tick(now)
        self.keys.tick()
        self.pacing.begin_chore("tidy", self.hosting.curiosity.tidying(now))
        self.upkeep.tick_registrar(now, wall_s)
        self.upkeep.tick_owner(now, wall_s)
        self.voiding.tick(now, wall_s)
        self.news.tick()
        self.telling.send_on()

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for something that `serve` does."""
        return self.turns.has_work or self.owner_logs.has_work

    def serve(self) -> bool:
        """A little work: a step of what waits for its turn, and a piece of the log for somebody who misses it.

        Return whether anything was done: if not, all that is left waits for something else.
        """
        has_done = self.turns.step()
        return self.telling.serve() or has_done

    def is_busy_with(self, identity: str, session: str) -> bool:
        """Whether something that a client said still waits for its turn."""
        return self.turns.has(identity, session)

    # -- batches ------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `flush` has something to do."""
        return self.stage.has_effects or self.journal.has_more

    def flush(self) -> Effects:
        """Journal and sync what the inputs since the last call did; return what may be sent now."""
        # DEVIATION (Baldoni 4: state survives by replication, not worked out): a journal of inputs, on disk before anything is
        # said. Mutants `answer-early`, `forgetful-snapshot`.
        batch = self.take()
        self.make_safe(batch)
        return self.release(batch)

    def take(self) -> FlushBatch:
        """What the inputs since the last call did. Nothing of it may be sent before `make_safe` has returned."""
        if self.failure is not None:
            raise JournalError(
                f"this stage stopped because its journal failed ({self.failure}); mend that and start it again"
            )
        stage = self.stage
        self.news.tell_changed()
        effects = stage.take_effects()
        self.pacing.loads.clear()
        self.pacing.settle_pairs()
        for operation in effects.handled:
            if operation.top != stage.rank:
                for part in stage.kept_here(operation):
                    self.unfinished.setdefault(part.topic, Ranges()).add(part.first, part.last)
        awake = stage.state.clocks.numbers
        if effects.cleared:
            effects.cleared = [topic for topic in effects.cleared if topic not in awake]
        if effects.awake:
            effects.awake = [topic for topic in effects.awake if topic in awake]
        self.resting.taken += 1
        for answer in effects.replies:
            self.relayed.answered(answer)
        self.since_snapshot.journalled(effects.journal)
        published, pending = self._published(effects)
        given = stage.state.clocks.given
        snapshot = None
        if not self.journal.has_more and self.since_snapshot.is_due(stage.parts_handled):
            snapshot = stage.snapshot()
            self.since_snapshot.taken(snapshot)
            stage.parts_handled = 0
        return FlushBatch(effects, published, pending, given, snapshot)

    def _published(self, effects: Effects) -> tuple[list[Publication], list[tuple[str, int, Publication]]]:
        """Complete publications on the topics of this stage: those that are kept, and the others."""
        owner, rank = self.stage.topology.owner, self.stage.rank
        published: list[Publication] = []
        pending: list[tuple[str, int, Publication]] = []
        for operation in effects.completed:
            transaction = transaction_of(operation)
            for part in operation.parts:
                if isinstance(part, Publication) and owner(part.topic) == rank:
                    if transaction is not None:
                        part = replace(part, transaction=transaction)
                    if part.is_kept:
                        published.append(part)
                    else:
                        pending.append((operation.client, operation.sequence, part))
        return published, pending

    def make_safe(self, batch: FlushBatch) -> None:
        """Put a batch on disk. After a failure nobody knows what is there, so this stage does nothing any more."""
        self.write_down(batch)
        self.make_sure(batch)

    def write_down(self, batch: FlushBatch) -> None:
        """The first half of that: write all of it, which is quick, for it need not be on the disk yet."""
        if not batch.has_news:
            return
        effects, log = batch.effects, self.log
        try:
            self.crash_point("flush:before-log")
            if effects.rested:
                log.rest(effects.rested)
            if effects.cleared:
                log.clear(effects.cleared)
            if effects.begun:
                log.begin(effects.begun)
            if effects.awake:
                log.wake(effects.awake)
            log.write(effects.kept, batch.published)
            for session, sequence, part in batch.pending:
                log.hold(session, sequence, part)
            for decision in (*effects.published, *effects.decided):
                log.decide(decision)
            for topic, up_to in effects.forget:
                log.forget(topic, up_to)
            self.crash_point("flush:before-append")
            if effects.journal:
                self.journal.append(effects.journal, batch.given)
        except Exception as error:
            raise self._failed(error) from error

    def make_sure(self, batch: FlushBatch) -> None:
        """The second half: return when it is on the disk. May run in a thread."""
        try:
            if batch.has_news:
                self.crash_point("flush:before-sync")
                self.journal.sync()
                self.on_synced(batch.effects)
                self.crash_point("flush:after-sync")
            elif self.journal.has_more:
                self.journal.sync()
            if batch.snapshot is not None:
                self.crash_point("snapshot:before-write")
                self.journal.replace(batch.snapshot)
        except Exception as error:
            raise self._failed(error) from error

    def release(self, batch: FlushBatch) -> Effects:
        """A batch is on disk: what may be sent now."""
        effects, stage = batch.effects, self.stage
        keys = stage.state.keys
        if keys.epoch:
            effects.replies = [
                self.tagger.answer(answer, keys) if isinstance(answer, Answer) else answer for answer in effects.replies
            ]
        self.resting.safe += 1
        if effects.rested:
            self.numbers.written(effects.rested)
            stage.effects.cleared = [*effects.rested]
        if effects.woken:
            stage.effects.awake = [*effects.woken]
        lasts: dict[str, int] = {}
        for part in batch.published:
            if (last := part.last) > lasts.get(part.topic, 0):
                lasts[part.topic] = last
            if self.unfinished and (known := self.unfinished.get(part.topic)) is not None:
                known.remove(part.first, last)
                if not known:
                    del self.unfinished[part.topic]
        for topic, last in lasts.items():
            self.owner_logs.published(topic, last)
        for kept in effects.kept if self.retention.is_weighing else ():
            size = sum(len(chunk.data) for chunk in kept.chunks)
            self.retention.written(kept.topic, kept.first + sum(chunk.count for chunk in kept.chunks) - 1, size)
        for topic, up_to in effects.forget:
            self.retention.forgotten(topic, up_to)
        for session, sequence, part in batch.pending:
            decided = self.voids.numbered(session, sequence, part.topic, part.first, part.last, self.clock.now)
            if decided is not None:
                stage.effects.published.append(decided)
        for announced in self.voids.written(effects.decided):
            for rank in range(len(stage.topology.stages)):
                self.voiding.say(rank, announced)
        return effects

    def _failed(self, error: Exception) -> JournalError:
        """The journal cannot be used any more; damage stays damage."""
        self.failure = error
        kind = JournalDamaged if isinstance(error, JournalDamaged) else JournalError
        return kind(
            f"the journal failed: {error}. Nothing of the last batch was answered, and nothing more is taken until this is mended"
        )
