"""The order of duties: log, journal, sync, then send.

A `Driver` feeds one stage, collects what comes of any number of inputs into one batch, and releases the batch only after the
journal has it on disk. This is the only place where that order is decided; the server, the embedded stage and the simulation
all run through it. `crash_point` is called with the name of each place at which a process may die; the simulation dies there.

`flush` does all of it at once. Whoever does not want to wait for the disk takes a `FlushBatch` with `take`, lets another thread
do `make_safe`, feeds the next inputs meanwhile, and sends what `release` returns when that is done: one batch at a time.

Beside the stage, whose state is journalled, stand two that hold soft state only: `Hosting` for the clients that are at home here,
and `OwnerLogs` for those who miss what the log has. What they say goes out with the next batch.

What a client causes may be much more than what it says. A few requests of each identity are handled as they come; what is more,
and whatever grows with what is named in a message, waits for its turn (`core.stage.turns`). `serve` does one small step of that,
and reads a piece of the log for somebody; `is_asked` says whether there is anything to serve.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Protocol

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.checking import check_message, check_operation
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.expiry import Expiry
from ordered_pubsub.core.liveness.sealing import Rounds
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.liveness.voids import Voids, merged
from ordered_pubsub.core.log.floors import Needs
from ordered_pubsub.core.log.log import LogReader, LogWriter, Shelf
from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.retention import LogTrimmer, Policies, Policy
from ordered_pubsub.core.messages import (
    Acked,
    AckExpected,
    AckSaved,
    Answer,
    AskFloors,
    AskKeys,
    ChangeAsk,
    Ended,
    Floors,
    FromSubscriber,
    Hello,
    Holders,
    HomeFloors,
    KeepAlive,
    KeepAliveAck,
    KeepAliveSeen,
    LeaseRenewal,
    LeaseReply,
    LinkFrame,
    Locate,
    Located,
    LogReply,
    LogRequest,
    Nack,
    NotArrivedCounts,
    Part,
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
    SeenAsk,
    SeenReply,
    SessionsAlive,
    SystemKeys,
    TopicRange,
    TopicsReleased,
    VoidAsk,
    VoidDecision,
    find_change,
)
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.core.recovery.hosting import ALIVE_S, Chosen, Hosting, size_of
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.stage._behind import Behind
from ordered_pubsub.core.stage._resting import LastNumbers, Resting
from ordered_pubsub.core.stage.effects import Effects, nobody
from ordered_pubsub.core.stage.stage import Stage, taken_at
from ordered_pubsub.core.stage.turns import Turns, Work
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.core.trust.authenticity import Tagger
from ordered_pubsub.core.trust.inspection import CAUSES
from ordered_pubsub.core.trust.keys import PLAIN, KeyKeeper, Security, rotated
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, ProtocolError

INLINE_LOAD = 256
"""So much of an identity is handled as it comes, until what came of it is on disk; what is more waits for its turn."""
OPEN_LOAD, OPEN_S = 512, 4.0
"""So much of an identity may be relayed and have no answer, and so long it is waited for."""
CELLS_MAX, CELLS_A_SECOND = 2_000_000, 250_000
"""What changes of an identity do to the groups' tables is done little by little: so many cells may be waiting for that, and so
many are given time; what is more waits to be taken. A subscription to a thousand topics concerns a million."""
TOLD_BYTES_MAX = 64 << 20
"""So much of what owners tell may wait for its turn."""
TOLD_ENOUGH = 8 << 20
"""If so much waits that is to be told to an identity, nothing is read for it alone; of twice that, it is not told."""
TOLD_BYTES, TOLD_LOAD, TOLD_INLINE = 2_048, 8, 4
"""What an owner tells holds so many bytes beside its events, costs so much, and is given to so many identities as it comes."""
CHOSEN_SHARE = 2
"""So many times as much as an owner has told is kept of what filters have left of it, until all were told."""
LOAD_BYTES = 4_096
"""So many bytes of events cost as much as a part of a request."""
WORKS_MAX = 16
"""So much of what one session has asked a stage may wait there."""
KEYS_A_STEP = 100
FLOORS_S = 5.0
"""So often a stage asks all registrars what their subscriptions may need of its log."""
_OVER = object()
STAGE, TOLD, CHORES = "stage", "told", ("chores",)
"""Who causes work, beside identities for what they say: an identity for what it is told; another stage; and this one."""
VoidOfClient = LeaseRenewal | SeenReply | VoidAsk
VoidMessage = LeaseRenewal | SeenAsk | SeenReply | Holders | VoidAsk | VoidDecision
KEEP = Policies(default=Policy(keep_age_s=float("inf"), max_age_s=float("inf")))
"""Forget nothing."""
SNAPSHOT_AFTER_RECORDS = 10_000
SNAPSHOT_AFTER_BYTES = 64 << 20
"""However few records these are, so many bytes of them are not kept behind a snapshot, unless the snapshot is large itself."""
SNAPSHOT_AFTER_PARTS = 200_000
"""However few bytes these are: at a start so many parts of requests take half a second to have their effect again."""
SNAPSHOT_GROWTH = 4
"""A snapshot is due when so many times the last one's bytes were journalled since: so writing them stays a fixed share."""
PART_BYTES = 256
"""A part weighs as much as so many bytes more, since reading it again takes so long."""
ALIVE_SHARE = 20
"""A home stage says so often within `session_ttl_s` who is there, so that a word that gets lost ends nobody's subscription."""
USUAL = Times()


class Journal(Protocol):
    """Where a stage's inputs are kept, and beside them, on its `shelf`, what was published on its topics."""

    @property
    def shelf(self) -> Shelf:
        """Where the log's rows are, for who writes them."""

    @property
    def read_shelf(self) -> Shelf:
        """The log's rows that are on disk, for readers."""

    def append(self, records: list[bytes], given: int = 0) -> None:
        """Write records; they need not be on disk yet. `given` is how many numbers the stage has given with them, in all."""

    def sync(self) -> None:
        """Return when everything appended is on disk."""

    def replace(self, snapshot: bytes) -> None:
        """Put a snapshot in the place of everything that is on disk now: that or this is there, whenever the power fails.

        It may be done little by little, by the next calls of `sync`.
        """

    @property
    def has_more(self) -> bool:
        """Whether `sync` has to be called for that, though nothing was appended."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot and the records since."""


@attrs.define(eq=False)
class MemoryJournal:
    """A journal that forgets everything with its process: for tests and demonstrations."""

    snapshot: bytes | None = None
    records: list[bytes] = attrs.field(factory=list)
    shelf: MemoryShelf = attrs.field(factory=MemoryShelf)
    has_more: bool = attrs.field(default=False, init=False)

    @property
    def read_shelf(self) -> MemoryShelf:
        """All rows."""
        return self.shelf

    def append(self, records: list[bytes], given: int = 0) -> None:
        """Keep the records."""
        self.records.extend(records)

    def sync(self) -> None:
        """Nothing to do."""

    def replace(self, snapshot: bytes) -> None:
        """Keep the snapshot instead of the records."""
        self.snapshot = snapshot
        self.records.clear()

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """What was kept."""
        return self.snapshot, list(self.records)


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


def _load_of(request: Request) -> int:
    """About what a request costs, in parts."""
    load = 0
    for part in request.parts:
        if isinstance(part, PublishAsk):
            load += 1
            for chunk in part.chunks:
                load += len(chunk.data) // LOAD_BYTES
        else:
            load += 1 + len(part.add) + len(part.remove)
    return load


@attrs.define(slots=True)
class _Held:
    """What an owner has told, as long as works wait that give it to somebody."""

    size: int
    works: int = 0


def _is_free(peer: int) -> bool:
    """Nothing waits for it."""
    return False


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
    hosting: Hosting
    owner_logs: OwnerLogs
    retention: LogTrimmer
    expiry: Expiry
    needs: Needs
    voids: Voids
    keeper: KeyKeeper
    tagger: Tagger
    numbers: LastNumbers
    resting: Resting
    behind: Behind
    rounds: Rounds = attrs.field(factory=Rounds)
    turns: Turns = attrs.field(factory=Turns)
    """what was caused and waits to be done"""
    inline_load: int = INLINE_LOAD
    unfinished: dict[str, Ranges] = attrs.field(factory=dict)
    """topic → what may be in the log without a stamp, as far as it is on disk or is being written"""
    crash_point: Callable[[str], None] = _nothing
    snapshot_after_records: int = SNAPSHOT_AFTER_RECORDS
    snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES
    snapshot_after_parts: int = SNAPSHOT_AFTER_PARTS
    snapshot_growth: float = SNAPSHOT_GROWTH
    on_synced: Callable[[Effects], None] = nobody
    """called with every batch as soon as it is on disk"""
    begun: dict[str, int] = attrs.field(factory=dict)
    """topics whose logs begin anew behind these numbers, since what they give was changed"""
    not_arrived: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(CAUSES, 0))
    """cause → how much of what the broker brought has not arrived, as clients at home here say"""
    unfit: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    """how often each peer has said what cannot be, and what was wrong with the last of it"""
    check_events: Callable[[Publication | PublishAsk], None] = _unread
    """raises a `ProtocolError` if the events that a peer brings are not such as its client may have brought"""
    failure: Exception | None = None
    """why the journal cannot be used any more"""
    floors_s: float = FLOORS_S
    _now: float = 0.0
    _wall_s: float = 0.0
    _floors_at: float = float("-inf")
    is_clogged: Callable[[int], bool] = _is_free
    """whether so much waits to be sent to a stage that nothing is read for it from the log"""
    _open: dict[str, int] = attrs.field(factory=dict)
    """identity → how much of it was relayed and has no answer yet"""
    _open_requests: OrderedDict[tuple[Hashable, ...], tuple[str, int, float]] = attrs.field(factory=OrderedDict)
    """that: client, epoch, sequence of a request, or whose question it was → identity, load, when"""
    _told_bytes: int = 0
    """what owners have told, and waits for its turn"""
    _loads: dict[Hashable, int] = attrs.field(factory=dict)
    """who → how much of it was handled as it came since the last batch was taken"""
    _floors_asked: dict[int, AskFloors] = attrs.field(factory=dict)
    """owners that have asked up to where their topics are needed, and have no answer yet"""
    _records_since_snapshot: int = 0
    _bytes_since_snapshot: int = 0
    _snapshot_bytes: int = 0

    @classmethod
    def open(
        cls,
        rank: int,
        topology: Topology,
        journal: Journal,
        crash_point: Callable[[str], None] = _nothing,
        snapshot_after_records: int = SNAPSHOT_AFTER_RECORDS,
        snapshot_growth: float = SNAPSHOT_GROWTH,
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
        snapshot_after_parts: int = SNAPSHOT_AFTER_PARTS,
        policies: Policies = KEEP,
        times: Times = USUAL,
        levels: Levels | None = None,
        founding: SystemKeys | None = None,
        security: Security = PLAIN,
        on_replayed: Callable[[Effects], None] = nobody,
    ) -> Driver:
        """Start a stage from what its journal holds; `founding` and `on_replayed` as in `Stage.restore`."""
        snapshot, records = journal.load()
        crash_point("restore:journal-read")
        numbers = LastNumbers(journal.read_shelf)
        stage = Stage.restore(rank, topology, snapshot, records, levels, founding, numbers, on_replayed)
        crash_point("restore:replayed")
        log = LogWriter(journal.shelf, stage.state.clocks.base)
        try:
            log.cut(stage.state.clocks.numbers, stage.state.kept)
            log.check_resting(stage.state.clocks.numbers, stage.state.resting, stage.state.resting_events)
            begun = {topic: number for topic, number in stage.unlogged.items() if log.begin_after(topic, number)}
            journal.sync()
        except OrderedPubSubError:
            raise
        except Exception as error:
            raise JournalError(f"the log cannot be made to fit the journal: {error}") from error
        crash_point("restore:log-cut")
        voids = Voids(rank, len(topology.stages), LogReader(journal.read_shelf), times.lease_s)
        voids.restore()
        unfinished = {topic: Ranges(batches.items()) for topic, batches in stage.state.unfinished.items()}
        owner_logs = OwnerLogs(LogReader(journal.read_shelf, unfinished))
        owner_logs.given = stage.waking.given
        for topic, number in stage.state.kept.items():
            owner_logs.published(topic, number)
        retention = LogTrimmer(journal.read_shelf, policies, len(topology.stages), lambda: stage.state.kept)
        return cls(
            stage,
            journal,
            log,
            Hosting(topology, alive_s=min(ALIVE_S, times.session_ttl_s / ALIVE_SHARE)),
            owner_logs,
            retention,
            Expiry(stage.state.registrar, times.session_ttl_s, times.named_ttl_s),
            Needs(stage.state.registrar),
            voids,
            KeyKeeper(rank, security),
            Tagger(security.tags),
            numbers,
            Resting(stage, retention, voids, journal.read_shelf),
            Behind(stage),
            unfinished=unfinished,
            crash_point=crash_point,
            begun=begun,
            snapshot_after_records=snapshot_after_records,
            snapshot_growth=snapshot_growth,
            snapshot_after_bytes=snapshot_after_bytes,
            snapshot_after_parts=snapshot_after_parts,
            records_since_snapshot=len(records),
            bytes_since_snapshot=sum(map(len, records)),
            snapshot_bytes=len(snapshot or b""),
        )

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something; with a refusal, if it may not."""
        load = _load_of(request)
        if not self._has_to_wait(request) and self._may_go_on(request.identity, request.client, load):
            self._ask(request, now, refusal, load)
        else:
            work = self._asking_later(request, now, refusal, load)
            self.turns.put(request.identity, request.client, work, load * LOAD_BYTES)

    def _ask(self, request: Request, now: float, refusal: Refusal | None, load: int) -> None:
        sends = self.stage.effects.sends
        before = len(sends)
        self.stage.handle_request(request, now, refusal)
        if request.identity and len(sends) > before and isinstance(sends[-1][1], Relay):
            self._opened((request.client, request.epoch, request.sequence), request.identity, load)

    def _asking_later(self, request: Request, now: float, refusal: Refusal | None, load: int) -> Work:
        while self._has_to_wait(request):
            yield False
        self._ask(request, now, refusal, load)

    def _has_to_wait(self, request: Request) -> bool:
        """Whether too much of its identity is under way."""
        return self._has_much_open(request) or self._has_much_changed(request)

    def _has_much_changed(self, request: Request) -> bool:
        """Whether a change has to wait until the pairs of earlier ones have had their time."""
        is_much = self.stage.admission.cells.get(request.identity, 0) > CELLS_MAX
        return is_much and find_change(request.parts) is not None

    def _forget_cells(self, now: float) -> None:
        forgotten = int(CELLS_A_SECOND * (now - self._now))
        if self.stage.admission.cells and forgotten > 0:
            left = self.stage.admission.cells
            self.stage.admission.cells = {who: count - forgotten for who, count in left.items() if count > forgotten}

    def _settling_pairs(self) -> Work:
        while self.stage.settle_pairs():
            yield True

    # -- what was relayed, and has no answer yet: so much of an identity that nothing queues up on the way --------------

    def _has_much_open(self, request: Request) -> bool:
        """Whether a request has to wait until some of its identity's, which were relayed, have their answers."""
        is_much = self._open.get(request.identity, 0) >= OPEN_LOAD
        return is_much and taken_at(self.stage.topology, request) != self.stage.rank

    def _opened(self, key: tuple[Hashable, ...], identity: str, load: int) -> None:
        if key not in self._open_requests:
            self._open_requests[key] = (identity, load, self._now)
            self._open[identity] = self._open.get(identity, 0) + load

    def _passing_on(
        self, rank: int, identity: str, key: tuple[Hashable, ...], load: int, message: Acked | Locate | VoidOfClient
    ) -> Work:
        """Ask another stage for a client, when the same was answered before, and its identity has not too much open."""
        while identity and (key in self._open_requests or self._open.get(identity, 0) >= OPEN_LOAD):
            yield False
        if identity:
            self._opened(key, identity, load)
        self.stage.effects.sends.append((rank, message))

    def _told_by(self, peer: int, message: AckSaved | Ended | Located | LeaseReply | VoidDecision) -> None:
        """What a client had asked another stage for is answered."""
        if isinstance(message, (AckSaved, Ended)):
            self._close((Acked, message.session, message.subscription))
        elif isinstance(message, Located):
            self._close((Locate, message.session, peer))
        elif isinstance(message, LeaseReply):
            self._close((LeaseRenewal, message.session, message.serial, peer))
        else:
            self._close((VoidAsk, message.session, peer))

    def _answered(self, answer: Answer | Refusal) -> None:
        self._close((answer.client, answer.epoch, answer.sequence))

    def _close(self, key: tuple[Hashable, ...]) -> None:
        identity, load, _ = self._open_requests.pop(key, ("", 0, 0.0))
        if identity:
            self._open[identity] -= load
            if not self._open[identity]:
                del self._open[identity]

    def _give_up_old(self) -> None:
        """What has no answer for so long was lost, or waits for something: it is asked again."""
        while self._open_requests:
            key, (_, _, at) = next(iter(self._open_requests.items()))
            if at + OPEN_S > self._now:
                return
            self._close(key)

    # -- who is served when -------------------------------------------------------------------------------------------

    def _may_go_on(self, owner: Hashable, session: str, load: int) -> bool:
        """Whether something is handled as it comes: its session waits for nothing, its owner has not asked for much lately."""
        if owner == "":
            return True  # somebody in this process, who could do worse
        used = self._loads.get(owner, 0)
        if used >= self.inline_load or self.turns.has(owner, session):
            return False
        self._loads[owner] = used + load
        return True

    def _begin(self, owner: Hashable, session: str, work: Work, load: int = 1) -> bool:
        """Do the first step of some work now, if its turn is now; what is left waits. Return whether there is room for it."""
        if self._may_go_on(owner, session, load) and next(work, _OVER) is _OVER:
            return True
        if self.turns.count(owner, session) >= WORKS_MAX:
            self.turns.dropped += 1  # it is asked for again
            return False
        return self.turns.put(owner, session, work)

    def _begin_chore(self, name: str, work: Work) -> None:
        """Begin something that this stage does for itself, unless it is still at it."""
        if not self.turns.has(CHORES, name) and next(work, _OVER) is not _OVER:
            self.turns.put(CHORES, name, work)

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for something that `serve` does."""
        return self.turns.has_work or self.owner_logs.has_work

    def serve(self) -> bool:
        """A little work: a step of what waits for its turn, and a piece of the log for somebody who misses it.

        Return whether anything was done: if not, all that is left waits for something else.
        """
        has_done = self.turns.step()
        home = self.owner_logs.next_home(self._has_enough)
        if home is None:
            return has_done
        if home != self.stage.rank:
            self.stage.effects.sends.append((home, self.owner_logs.serve_home(home)))
        elif self.owner_logs.turn_over(home, self._is_told_enough):
            self._tell(self.owner_logs.serve_home(home))
        else:
            return has_done
        return True

    def _has_enough(self, home: int) -> bool:
        """Whether a home stage has so much to do with what it was told that more of it may wait."""
        return self._told_bytes > TOLD_BYTES_MAX // 2 if home == self.stage.rank else self.is_clogged(home)

    def _is_told_enough(self, topic: str) -> bool:
        """Whether all who miss something of a topic have enough waiting that is to be told to them."""
        if self._told_bytes < TOLD_ENOUGH:
            return False
        identities = self.hosting.curious_about(topic)
        return bool(identities) and all(self.turns.size((TOLD, one)) >= TOLD_ENOUGH for one in identities)

    def is_busy_with(self, identity: str, session: str) -> bool:
        """Whether something that a client said still waits for its turn."""
        return self.turns.has(identity, session)

    # -- what comes ---------------------------------------------------------------------------------------------------

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something.

        Raises a `ProtocolError`, and changes nothing, if it must not say it; but what may get lost anyway is only dropped then,
        and counted in `unfit`: it is no reason to lose the link.
        """
        stage = self.stage
        if peer not in stage.state.links:
            raise ProtocolError(f"stage {stage.rank} has no peer of rank {peer}")
        if isinstance(message, LinkFrame):
            operation = message.message.operation
            check_operation(operation, len(stage.topology.stages))
            self._check_events(operation.parts)
            stage.handle_peer(peer, message, now)
        elif isinstance(message, Hello):
            stage.handle_peer(peer, message, now)
            stage.effects.sends.append((peer, self.hosting.all_hosts(peer)))
            self._ask_for_keys()
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
        if isinstance(message, LogRequest):
            self.owner_logs.handle_request(peer, message.wants)
        elif isinstance(message, LogReply):
            self._tell(message)
        elif isinstance(message, Relay):
            self._relayed(peer, message, now)
        elif isinstance(message, HomeFloors):
            self.owner_logs.hosts(peer, message)
            self.behind.hear(message.acked)
        elif isinstance(message, Acked):
            self.stage.handle_acked(peer, message)
        elif isinstance(message, ProgressReports):
            self._note(message)
        elif isinstance(message, AskFloors):
            self._look_for_floors(peer, message)
        elif isinstance(message, Floors):
            self.retention.floors(peer, message)
        elif isinstance(message, SessionsAlive):
            noted, told = self.expiry.heard(message, self._now)
            self.stage.effects.sends += [(peer, noted), *((peer, ended) for ended in told)]
        elif isinstance(message, KeepAliveSeen):
            self._tell_heard(peer, message)
        elif isinstance(message, Locate):
            self._begin((STAGE, peer), message.session, self._locating(peer, message))
        elif isinstance(message, (AckSaved, Ended, Located, LeaseReply)):
            self._told_by(peer, message)
            self.stage.effects.tells.append((message.session, message))
        elif isinstance(message, VoidMessage):
            self._handle_void(peer, message)
        elif isinstance(message, AckExpected):
            self.hosting.expected(message)
            self._send_for_home()
        elif isinstance(message, Rotate):
            self._rotate_for(peer, message)
        else:
            if isinstance(message, Reply):
                self._answered(message.answer)
            self.stage.handle_peer(peer, message, now)
            if isinstance(message, Secrets):
                self.keeper.heard_at = self._now

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.stage.disconnected(peer)
        self.owner_logs.home_is_gone(peer)

    def _relayed(self, peer: int, relay: Relay, now: float) -> None:
        """A home stage relays a request: its identity has its turn here as it has at home."""
        request = relay.request
        self._check_events(request.parts)
        load = _load_of(request)
        if not self._has_much_changed(request) and self._may_go_on(request.identity, request.client, load):
            self.stage.handle_peer(peer, relay, now)
        else:
            self.turns.put(request.identity, request.client, self._relayed_later(peer, relay, now), load * LOAD_BYTES)

    def _relayed_later(self, peer: int, relay: Relay, now: float) -> Work:
        while self._has_much_changed(relay.request):
            yield False
        try:
            self.stage.handle_peer(peer, relay, now)
        except ProtocolError as error:
            self.drop(peer, error)

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
            self._begin(identity, session, self._hearing(session, message, now, identity))

    def _hearing(
        self,
        session: str,
        message: Nack | Progress | Acked | Locate | AskKeys | VoidOfClient,
        now: float,
        identity: str,
    ) -> Work:
        """A client says something: what grows with what it names is done in small steps."""
        if isinstance(message, Nack):
            for _ in self.hosting.wanting(session, message, now):
                self._send_for_home()
                yield True
                if session not in self.hosting.sessions:
                    return  # it is gone
            self._send_for_home()
        elif isinstance(message, Progress):
            self.hosting.note_progress(session, message)
            self.behind.hear(message.acked)
            self._send_for_home()
        elif isinstance(message, Locate):
            yield from self._locating_everywhere(message, identity)
        elif isinstance(message, Acked):
            yield from self._acknowledging(replace(message, identity=identity))
        elif isinstance(message, AskKeys):
            yield from self._giving_keys(message)
        else:
            yield from self._spreading_void(message, identity)

    def _tell(self, told: LogReply) -> None:
        """An owner says what its log has: each identity that misses it here is told at its own turn, or now if nobody waits."""
        size = TOLD_BYTES + sum(map(size_of, told.items))
        if self._told_bytes + size > TOLD_BYTES_MAX and self._told_bytes:
            self.turns.dropped += 1  # it is asked for again
            return
        held, chosen = _Held(size), Chosen(CHOSEN_SHARE * size)
        key = (TOLD, told.topic)
        used = self._loads.get(key, 0)
        for at, identity in enumerate(self.hosting.hear(told)):
            work, owner = self._telling(told, identity, chosen), (TOLD, identity)
            if at < TOLD_INLINE and used < self.inline_load and not self.turns.has(owner, told.topic):
                used = self._loads[key] = used + TOLD_LOAD
                if next(work, _OVER) is _OVER:
                    continue
            if self.turns.size(owner) >= 2 * TOLD_ENOUGH:
                self.turns.dropped += 1
            elif self.turns.put(owner, told.topic, work, size, partial(self._let_go, held)):
                self._told_bytes += 0 if held.works else size
                held.works += 1

    def _let_go(self, held: _Held) -> None:
        """One of the works that hold something is over, or forgotten."""
        held.works -= 1
        self._told_bytes -= 0 if held.works else held.size

    def _telling(self, told: LogReply, identity: str, chosen: Chosen) -> Work:
        for _ in self.hosting.telling(told, identity, chosen):
            self._send_for_home()
            yield True
        self._send_for_home()

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
                yield from self._passing_on(rank, identity, key, len(topics), asked)

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

    # -- keys ---------------------------------------------------------------------------------------------------------

    def rotate_keys(self, revokes: bool = False) -> None:
        """Let another epoch of keys begin; with `revokes`, one whose keys nobody has yet. The highest stage decides."""
        self.keeper.want(self.stage.state.keys, revokes)

    def _rotate_for(self, peer: int, wanted: Rotate) -> None:
        """A stage wants another epoch than the one that it knows."""
        if peer in self.stage.peers.greeted and self.stage.rank == 0 and wanted.epoch >= self.stage.state.keys.epoch:
            self.rotate_keys(wanted.revokes)

    def _giving_keys(self, ask: AskKeys) -> Work:
        """A client asks for the keys of topics: some of them at each step."""
        for first in range(0, len(ask.topics), KEYS_A_STEP):
            keys, topics = self.stage.state.keys, ask.topics[first : first + KEYS_A_STEP]
            if first:
                yield True
            if keys.epoch:
                given = self.keeper.give(replace(ask, topics=topics), keys, self._now)
                self.stage.effects.tells.append((ask.session, given))

    def _tick_keys(self) -> None:
        stage, keys, keeper = self.stage, self.stage.state.keys, self.keeper
        keeper.note(keys, self._now, self._wall_s if stage.rank == 0 else None)
        if stage.rank == 0 and (due := keeper.take_due(keys, self._wall_s)) is not None:
            keys = replace(keys, old=keeper.left(keys, self._now))
            stage.peers.rotate(rotated(keys, self._wall_s, keeper.security.old_keys_valid_s, due.revokes))
            keeper.note(stage.state.keys, self._now)
        else:
            self._ask_for_keys()
        if stage.rank == 0 and (lasting := self.keeper.without_old(stage.state.keys, self._now)) is not None:
            stage.peers.rotate(lasting)
        stage.effects.tells += self.keeper.take_news(stage.state.keys, self.hosting.sessions)

    def _ask_for_keys(self) -> None:
        stage = self.stage
        if stage.rank and stage.peers.needs_system and 0 in stage.peers.greeted:
            stage.effects.sends += [(0, ask) for ask in self.keeper.take_asks(stage.state.keys, self._now)]

    def _as_clients_get_it(self, answer: Answer | Refusal) -> Answer | Refusal:
        """An answer with tags, if it has events that are to be published on the broker."""
        keys = self.stage.state.keys
        return self.tagger.answer(answer, keys) if isinstance(answer, Answer) and keys.epoch else answer

    # -- numbers whose events nobody keeps ----------------------------------------------------------------------------

    def _say(self, rank: int, message: VoidMessage | LeaseReply) -> None:
        """Say something to a stage, which may be this one."""
        if rank != self.stage.rank:
            self.stage.effects.sends.append((rank, message))
        elif isinstance(message, LeaseReply):
            self.stage.effects.tells.append((message.session, message))
        else:
            self._handle_void(rank, message)

    def _spreading_void(self, message: VoidOfClient, identity: str) -> Work:
        """A client here says something about numbers whose events nobody keeps: what concerns this stage is done at its turn."""
        if isinstance(message, LeaseRenewal):
            handed = replace(message, asks=merged(message.asks))
            for rank in dict.fromkeys(message.ranks):
                if rank == self.stage.rank:
                    self.stage.effects.published += self.voids.hear(handed, self._now)
                    yield from self._leasing(rank, handed)
                else:
                    key, load = (LeaseRenewal, handed.session, handed.serial, rank), 1 + len(handed.asks)
                    yield from self._passing_on(rank, identity, key, load, handed)
        elif isinstance(message, SeenReply):
            self.rounds.answered(message)
        else:
            by_owner: dict[int, list[TopicRange]] = {}
            for span in merged(message.spans):
                by_owner.setdefault(self.stage.topology.owner(span.topic), []).append(span)
            for rank, spans in by_owner.items():
                asked = replace(message, spans=spans)
                if rank == self.stage.rank:
                    yield from self._deciding(rank, asked)
                else:
                    yield from self._passing_on(rank, identity, (VoidAsk, asked.session, rank), len(spans), asked)

    def _handle_void(self, peer: int, message: VoidMessage) -> None:
        effects = self.stage.effects
        if isinstance(message, LeaseRenewal):
            effects.published += self.voids.hear(message, self._now)
            self._begin((STAGE, peer), message.session, self._leasing(peer, message))
        elif isinstance(message, SeenAsk):
            asks = self.rounds.ask(message, self.hosting.sessions, self._now)
            effects.tells += [(ask.session, ask) for ask in asks]
            self._begin((STAGE, peer), f"seal {message.serial}", self._finding_holders(peer, message))
        elif isinstance(message, Holders):
            effects.decided += self.voids.holders(peer, message)
        elif isinstance(message, SeenReply):
            effects.decided += self.voids.sealed(message)
        elif isinstance(message, VoidAsk):
            self._begin((STAGE, peer), message.session, self._deciding(peer, message))
        else:
            self._told_by(peer, message)
            sessions = [message.session] if message.session else self.hosting.sessions
            effects.tells += [(session, message) for session in sessions]

    def _leasing(self, peer: int, handed: LeaseRenewal) -> Work:
        answers: list[LeaseReply] = []
        yield from self.voids.leasing(handed, answers)
        for leased in answers:
            self._say(peer, leased)

    def _deciding(self, peer: int, asked: VoidAsk) -> Work:
        decided: list[VoidDecision] = []
        for _ in self.voids.telling(asked, decided):
            while decided:
                self._say(peer, decided.pop(0))
            yield True

    def _finding_holders(self, peer: int, seal: SeenAsk) -> Work:
        found: dict[str, bool] = {}
        yield from self.stage.state.registrar.finding_holders(seal.topic, found)
        self._say(peer, Holders(seal.serial, list(found)))

    def _acknowledging(self, acked: Acked) -> Work:
        """An acknowledgement goes to the registrar of its subscription."""
        rank = self.stage.topology.registrar(acked.subscription)
        if rank == self.stage.rank:
            self.stage.handle_acked(rank, acked)
        elif rank in self.stage.peers.greeted:
            key = (Acked, acked.session, acked.subscription)
            yield from self._passing_on(rank, acked.identity, key, 1 + len(acked.clock), acked)

    def client_is_here(self, session: str, identity: str = "") -> None:
        """A client is at home here now."""
        self.hosting.client_came(session, identity)

    def client_is_gone(self, session: str) -> None:
        """A client is not at home here any more."""
        self.hosting.forget(session)

    def _send_for_home(self) -> None:
        """Send on what the home's side of this stage says."""
        for rank, recall in self.hosting.take_log_requests():
            if rank == self.stage.rank:
                self.owner_logs.handle_request(rank, recall.wants)
            else:
                self.stage.effects.sends.append((rank, recall))
        self.stage.effects.tells += self.hosting.tells
        self.hosting.tells.clear()

    def tick(self, now: float, wall_s: float) -> None:
        """Time passes: by the clock that never jumps, and by the one on the wall."""
        self._forget_cells(now)
        self._now, self._wall_s = now, wall_s
        self._give_up_old()
        self.stage.tick(now)
        self._tick_keys()
        self._begin_chore("tidy", self.hosting.tidying(now))
        self._tick_registrar(now, wall_s)
        self._begin_chore("forget", self._forgetting(now, wall_s))
        self._begin_chore("hosts", self._telling_owners())
        for home, expected in self.owner_logs.tick(now):
            if home == self.stage.rank:
                self.hosting.expected(expected)
            else:
                self.stage.effects.sends.append((home, expected))
        if self.stage.is_open:
            self._put_to_rest(self.resting.find(now))
        for sealed in self.rounds.tick(now):
            self._say(sealed.rank, sealed)
        for rank, seal in self.voids.tick(now, wall_s):
            self._say(rank, seal)
        self._send_for_home()

    def _put_to_rest(self, topics: list[str]) -> None:
        """Nothing is to be remembered of some topics but their last numbers."""
        if topics:
            self.stage.waking.rest(topics)
            self.numbers.note(self.stage.effects.rested or {})
            self.owner_logs.rest(topics)
            self.retention.rest(topics)

    def _tick_registrar(self, now: float, wall_s: float) -> None:
        stage = self.stage
        alive = self.hosting.take_alive(now)
        if alive is not None:
            for session in self.rounds.silent(now - self.expiry.session_ttl_s):
                alive.sessions.pop(session, None)
            self._hear(alive, now)
            stage.effects.sends += [(peer, alive) for peer in stage.peers.greeted]
        for ended in self.expiry.find_expired(now) if stage.is_open else ():
            subscription = stage.state.registrar.subscriptions[ended.subscription]
            if subscription.ended:
                stage.handle_passed(TopicsReleased(ended.subscription, tuple(subscription.leaving)))
            else:
                stage.expire(ended.subscription, wall_s)
                stage.effects.tells.append((ended.session, ended))
        self._begin_chore("progress", self._telling_registrars())
        if now >= self._floors_at + self.floors_s:
            self._floors_at = now
            self._ask_floors()

    def _telling_registrars(self) -> Work:
        """Tell the registrars what subscriptions have said: some of it at each step."""
        while news := self.hosting.take_progress():
            for rank, progress in news:
                if rank == self.stage.rank:
                    self._note(progress)
                elif rank in self.stage.peers.greeted:
                    self.stage.effects.sends.append((rank, progress))
            yield True

    def _telling_owners(self) -> Work:
        """Tell the owners how far their topics are here: some topics at each step."""
        while news := self.hosting.take_hosts():
            for rank, hosts in news:
                if rank == self.stage.rank:
                    self.owner_logs.hosts(rank, hosts)
                else:
                    self.stage.effects.sends.append((rank, hosts))
            yield True

    def _forgetting(self, now: float, wall_s: float) -> Work:
        """What the log may forget: some topics at each step."""
        while True:
            self.stage.effects.forget += self.retention.find_old(now, wall_s)
            if not self.retention.is_looking:
                return
            yield True

    def _note(self, progress: ProgressReports) -> None:
        for said in progress.news:
            passed = self.needs.note_progress(said)
            if passed is not None:
                self.stage.handle_passed(passed)

    def _hear(self, alive: SessionsAlive, now: float) -> None:
        noted, told = self.expiry.heard(alive, now)
        self.stage.effects.tells += [(ended.session, ended) for ended in told]
        self._tell_heard(self.stage.rank, noted)

    def _tell_heard(self, registrar: int, noted: KeepAliveSeen) -> None:
        """A registrar has heard of clients here."""
        self.stage.effects.tells += [
            (session, KeepAliveAck(session, serial, registrar))
            for session, serial in noted.sessions.items()
            if serial and session in self.hosting.sessions
        ]

    def _ask_floors(self) -> None:
        """Ask all registrars up to where their subscriptions need nothing of the topics here."""
        stage = self.stage
        asking = self.retention.ask(stage.state.kept, self.resting.about)
        self._look_for_floors(stage.rank, asking)
        stage.effects.sends += [(peer, asking) for peer in stage.peers.greeted]

    def _look_for_floors(self, owner: int, asking: AskFloors) -> None:
        """An owner asks up to where the subscriptions here need nothing of its topics."""
        self._floors_asked[owner] = asking
        self._begin_chore("floors", self._finding_floors())

    def _finding_floors(self) -> Work:
        """Look at all subscriptions once, for all owners that have asked before that."""
        owner_of = self.stage.topology.owner
        while self._floors_asked:
            asked, self._floors_asked = self._floors_asked, {}
            found: dict[int, dict[str, int]] = {}
            yield from self.needs.finding(owner_of, found)
            for owner, asking in asked.items():
                needed = found.get(owner, {})
                about = {
                    topic: low
                    for topic in asking.about
                    if (low := found.get(owner_of(topic), {}).get(topic)) is not None
                }
                floors = Floors(asking.round, {**needed, **about})
                if owner == self.stage.rank:
                    self.retention.floors(owner, floors)
                else:
                    self.stage.effects.sends.append((owner, floors))

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
        effects = self.stage.take_effects()
        self._loads.clear()
        if self.stage.state.groups.due:
            self._begin_chore("pairs", self._settling_pairs())
        for operation in effects.handled:
            if operation.top != self.stage.rank:
                for part in self.stage.kept_here(operation):
                    self.unfinished.setdefault(part.topic, Ranges()).add(part.first, part.last)
        awake = self.stage.state.clocks.numbers
        if effects.cleared:
            effects.cleared = [topic for topic in effects.cleared if topic not in awake]
        if effects.awake:
            effects.awake = [topic for topic in effects.awake if topic in awake]
        self.resting.taken += 1
        if self._open_requests:
            for answer in effects.replies:
                self._answered(answer)
        self._records_since_snapshot += len(effects.journal)
        self._bytes_since_snapshot += sum(map(len, effects.journal))
        published, pending = self._published(effects)
        given = self.stage.state.clocks.given
        if not self._is_snapshot_due:
            return FlushBatch(effects, published, pending, given, None)
        snapshot = self.stage.snapshot()
        self._records_since_snapshot = self._bytes_since_snapshot = self.stage.parts_handled = 0
        self._snapshot_bytes = len(snapshot)
        return FlushBatch(effects, published, pending, given, snapshot)

    def release(self, batch: FlushBatch) -> Effects:
        """A batch is on disk: what may be sent now."""
        effects = batch.effects
        effects.replies = [self._as_clients_get_it(answer) for answer in effects.replies]
        self.resting.safe += 1
        if batch.effects.rested:
            self.numbers.written(batch.effects.rested)
            self.stage.effects.cleared = [*batch.effects.rested]
        if batch.effects.woken:
            self.stage.effects.awake = [*batch.effects.woken]
        lasts: dict[str, int] = {}
        for part in batch.published:
            if (last := part.last) > lasts.get(part.topic, 0):
                lasts[part.topic] = last
            if self.unfinished:
                self._finished(part)
        for topic, last in lasts.items():
            self.owner_logs.published(topic, last)
        for kept in batch.effects.kept if self.retention.is_weighing else ():
            size = sum(len(chunk.data) for chunk in kept.chunks)
            self.retention.written(kept.topic, kept.first + sum(chunk.count for chunk in kept.chunks) - 1, size)
        for topic, up_to in batch.effects.forget:
            self.retention.forgotten(topic, up_to)
        for session, sequence, part in batch.pending:
            known = self.voids.numbered(session, sequence, part.topic, part.first, part.last, self._now)
            if known is not None:
                self.stage.effects.published.append(known)
        for decided in self.voids.written(batch.effects.decided):
            for rank in range(len(self.stage.topology.stages)):
                self._say(rank, decided)
        return batch.effects

    def _finished(self, part: Publication) -> None:
        """A batch has its stamp on disk."""
        known = self.unfinished.get(part.topic)
        if known is not None:
            known.remove(part.first, part.last)
            if not known:
                del self.unfinished[part.topic]

    def _published(self, effects: Effects) -> tuple[list[Publication], list[tuple[str, int, Publication]]]:
        """Complete publications on the topics of this stage: those that are kept, and the others."""
        owner, rank = self.stage.topology.owner, self.stage.rank
        published: list[Publication] = []
        pending: list[tuple[str, int, Publication]] = []
        for operation in effects.completed:
            for part in operation.parts:
                if isinstance(part, Publication) and owner(part.topic) == rank:
                    if part.is_kept:
                        published.append(part)
                    else:
                        pending.append((operation.client, operation.sequence, part))
        return published, pending

    @property
    def _is_snapshot_due(self) -> bool:
        is_long = (
            self._records_since_snapshot >= self.snapshot_after_records
            or self._bytes_since_snapshot >= self.snapshot_after_bytes
            or self.stage.parts_handled >= self.snapshot_after_parts
        )
        weight = self._bytes_since_snapshot + PART_BYTES * self.stage.parts_handled
        return is_long and not self.journal.has_more and weight >= self.snapshot_growth * self._snapshot_bytes

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

    def _failed(self, error: Exception) -> JournalError:
        """The journal cannot be used any more; damage stays damage."""
        self.failure = error
        kind = JournalDamaged if isinstance(error, JournalDamaged) else JournalError
        return kind(
            f"the journal failed: {error}. Nothing of the last batch was answered, and nothing more is taken until this is mended"
        )
