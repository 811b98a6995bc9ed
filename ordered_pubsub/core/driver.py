"""The order of duties: log, journal, sync, then send.

A `Driver` feeds one stage, collects what comes of any number of inputs into one batch, and releases the batch only after the
journal has it on disk. This is the only place where that order is decided; the server, the embedded stage and the simulation
all run through it. `crash_point` is called with the name of each place at which a process may die; the simulation dies there.

`flush` does all of it at once. Whoever does not want to wait for the disk takes a `Batch` with `take`, lets another thread
do `make_safe`, feeds the next inputs meanwhile, and sends what `release` returns when that is done: one batch at a time.

Beside the stage, whose state is journalled, stand two that hold soft state only: `Hosting` for the clients that are at home here,
and `Pubends` for those who miss what the log has. What they say goes out with the next batch. `serve` reads from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.expiry import Expiry
from ordered_pubsub.core.floors import Needs
from ordered_pubsub.core.hosting import ALIVE_S, Hosting
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log import LogReader, LogWriter, Shelf
from ordered_pubsub.core.memory_shelf import MemoryShelf
from ordered_pubsub.core.messages import (
    Acked,
    AckExpected,
    Alive,
    AskFloors,
    Curious,
    Decided,
    Ended,
    Floors,
    Follows,
    FromSubscriber,
    Handed,
    Heard,
    Hello,
    Here,
    Holders,
    Hosts,
    Leased,
    Locate,
    Located,
    Noted,
    Passed,
    PeerMessage,
    Progress,
    Publication,
    Recall,
    Refusal,
    Request,
    Saved,
    Seal,
    Sealed,
    Span,
    Told,
    Undecided,
)
from ordered_pubsub.core.pubends import Pubends
from ordered_pubsub.core.retention import Policies, Policy, Retention
from ordered_pubsub.core.sealing import Rounds
from ordered_pubsub.core.stage import Effects, Stage
from ordered_pubsub.core.times import Times
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.core.voids import Voids
from ordered_pubsub.errors import JournalError, OrderedPubSubError

FLOORS_S = 5.0
"""So often a stage asks all registrars what their subscriptions may need of its log."""
VoidMessage = Handed | Seal | Sealed | Holders | Undecided | Decided
KEEP = Policies(default=Policy(keep_age_s=float("inf"), max_age_s=float("inf")))
"""Forget nothing."""
SNAPSHOT_AFTER_RECORDS = 10_000
SNAPSHOT_AFTER_BYTES = 64 << 20
"""However few records these are, so many bytes of them are not kept behind a snapshot, unless the snapshot is large itself."""
SNAPSHOT_GROWTH = 4
"""A snapshot is due when so many times the last one's bytes were journalled since: so writing them stays a fixed share."""
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

    def append(self, records: list[bytes]) -> None:
        """Write records; they need not be on disk yet."""

    def sync(self) -> None:
        """Return when everything appended is on disk."""

    def replace(self, snapshot: bytes) -> None:
        """Put a snapshot, on disk, in the place of everything before it: both or neither, whenever the power fails."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot and the records since."""


@attrs.define(eq=False)
class MemoryJournal:
    """A journal that forgets everything with its process: for tests and demonstrations."""

    snapshot: bytes | None = None
    records: list[bytes] = attrs.field(factory=list)
    shelf: MemoryShelf = attrs.field(factory=MemoryShelf)

    @property
    def read_shelf(self) -> MemoryShelf:
        """All rows."""
        return self.shelf

    def append(self, records: list[bytes]) -> None:
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
class Batch:
    """What came of some inputs: what must be on disk, and what may be sent when it is."""

    effects: Effects
    published: list[Publication]
    """complete publications on topics whose log is here"""
    pending: list[tuple[str, int, Publication]]
    """complete publications on topics of this stage whose events nobody keeps, by session and sequence"""
    snapshot: bytes | None
    """the state after these inputs, if it is time to put it in the journal's place"""

    @property
    def has_news(self) -> bool:
        """Whether there is anything to write down beside the snapshot."""
        effects = self.effects
        return bool(effects.journal or effects.forget or effects.decided or effects.published)


def _nothing(name: str) -> None:
    """No process dies here."""


def _nobody(effects: Effects) -> None:
    """Nobody watches."""


@attrs.define(eq=False)
class Driver:
    """Runs one stage on one journal."""

    stage: Stage
    journal: Journal
    log: LogWriter
    hosting: Hosting
    pubends: Pubends
    retention: Retention
    expiry: Expiry
    needs: Needs
    voids: Voids
    rounds: Rounds = attrs.field(factory=Rounds)
    crash_point: Callable[[str], None] = _nothing
    snapshot_after_records: int = SNAPSHOT_AFTER_RECORDS
    snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES
    snapshot_growth: float = SNAPSHOT_GROWTH
    on_synced: Callable[[Effects], None] = _nobody
    """called with every batch as soon as it is on disk"""
    begun: dict[str, int] = attrs.field(factory=dict)
    """topics whose logs begin anew behind these numbers, since what they give was changed"""
    failure: Exception | None = None
    """why the journal cannot be used any more"""
    _now: float = 0.0
    _floors_at: float = float("-inf")
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
        policies: Policies = KEEP,
        times: Times = USUAL,
        levels: Levels | None = None,
    ) -> Driver:
        """Start a stage from what its journal holds."""
        snapshot, records = journal.load()
        crash_point("restore:journal-read")
        stage = Stage.restore(rank, topology, snapshot, records, levels)
        crash_point("restore:replayed")
        log = LogWriter(journal.shelf)
        try:
            log.cut(stage.state.clocks.numbers, stage.state.kept)
            begun = {topic: number for topic, number in stage.unlogged.items() if log.begin_after(topic, number)}
            journal.sync()
        except OrderedPubSubError:
            raise
        except Exception as error:
            raise JournalError(f"the log cannot be made to fit the journal: {error}") from error
        crash_point("restore:log-cut")
        voids = Voids(rank, len(topology.stages), LogReader(journal.read_shelf), times.lease_s)
        voids.restore()
        pubends = Pubends(LogReader(journal.read_shelf))
        for topic, number in stage.state.kept.items():
            pubends.published(topic, number)
        return cls(
            stage,
            journal,
            log,
            Hosting(topology, alive_s=min(ALIVE_S, times.session_ttl_s / ALIVE_SHARE)),
            pubends,
            Retention(journal.read_shelf, policies, len(topology.stages)),
            Expiry(stage.state.registrar, times.session_ttl_s, times.named_ttl_s),
            Needs(stage.state.registrar),
            voids,
            crash_point=crash_point,
            begun=begun,
            snapshot_after_records=snapshot_after_records,
            snapshot_growth=snapshot_growth,
            snapshot_after_bytes=snapshot_after_bytes,
            records_since_snapshot=len(records),
            bytes_since_snapshot=sum(map(len, records)),
            snapshot_bytes=len(snapshot or b""),
        )

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something; with a refusal, if it may not."""
        self.stage.handle_request(request, now, refusal)

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something."""
        if isinstance(message, Recall):
            self.pubends.recall(peer, message.wants)
        elif isinstance(message, Told):
            self.hosting.told(message)
            self._spread()
        elif isinstance(message, Hosts):
            self.pubends.hosts(peer, message)
        elif isinstance(message, Acked):
            self.stage.handle_acked(peer, message)
        elif isinstance(message, Progress):
            self._note(message)
        elif isinstance(message, AskFloors):
            self.stage.effects.sends.append((peer, self._floors_for(peer, message)))
        elif isinstance(message, Floors):
            self.retention.floors(peer, message)
        elif isinstance(message, Alive):
            noted, told = self.expiry.heard(message, self._now)
            self.stage.effects.sends += [(peer, noted), *((peer, ended) for ended in told)]
        elif isinstance(message, Noted):
            self._tell_heard(peer, message)
        elif isinstance(message, Locate):
            self.stage.effects.sends.append((peer, self._located(message)))
        elif isinstance(message, (Saved, Ended, Located, Leased)):
            self.stage.effects.tells.append((message.session, message))
        elif isinstance(message, VoidMessage):
            self._handle_void(peer, message)
        elif isinstance(message, AckExpected):
            self.hosting.expected(message)
            self._spread()
        else:
            self.stage.handle_peer(peer, message, now)
            if isinstance(message, Hello):
                self.stage.effects.sends.append((peer, self.hosting.all_hosts(peer)))

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.stage.disconnected(peer)
        self.pubends.home_is_gone(peer)

    def handle_subscriber(self, session: str, message: FromSubscriber, now: float) -> None:
        """A client at home here says how far one of its subscriptions is, or what it misses."""
        if isinstance(message, Curious):
            self.hosting.want(session, message, now)
            self._spread()
        elif isinstance(message, Follows):
            self.hosting.follows(session, message)
        elif isinstance(message, Locate):
            self._locate(message)
        elif isinstance(message, Acked):
            self._pass_on(message)
        elif isinstance(message, Here):
            self.hosting.sessions[session] = message.serial
        else:
            self._spread_void(message)

    def _locate(self, locate: Locate) -> None:
        """Ask the owners of some topics where these were at a time."""
        by_owner: dict[int, list[str]] = {}
        for topic in locate.topics:
            by_owner.setdefault(self.stage.topology.owner(topic), []).append(topic)
        for rank, topics in by_owner.items():
            asked = replace(locate, topics=topics)
            if rank == self.stage.rank:
                self.stage.effects.tells.append((locate.session, self._located(asked)))
            elif rank in self.stage.greeted:
                self.stage.effects.sends.append((rank, asked))

    def _located(self, locate: Locate) -> Located:
        before = self.pubends.reader.last_before
        return Located(locate.session, locate.serial, {topic: before(topic, locate.at) for topic in locate.topics})

    # -- numbers whose events nobody keeps ----------------------------------------------------------------------------

    def _say(self, rank: int, message: VoidMessage | Leased) -> None:
        """Say something to a stage, which may be this one."""
        if rank != self.stage.rank:
            self.stage.effects.sends.append((rank, message))
        elif isinstance(message, Leased):
            self.stage.effects.tells.append((message.session, message))
        else:
            self._handle_void(rank, message)

    def _spread_void(self, message: Handed | Sealed | Undecided) -> None:
        """A client here says something about numbers whose events nobody keeps."""
        if isinstance(message, Handed):
            for rank in message.ranks:
                self._say(rank, message)
        elif isinstance(message, Sealed):
            self.rounds.answered(message)
        else:
            by_owner: dict[int, list[Span]] = {}
            for span in message.spans:
                by_owner.setdefault(self.stage.topology.owner(span.topic), []).append(span)
            for rank, spans in by_owner.items():
                self._say(rank, replace(message, spans=spans))

    def _handle_void(self, peer: int, message: VoidMessage) -> None:
        effects = self.stage.effects
        if isinstance(message, Handed):
            leased, published = self.voids.handed(message, self._now)
            effects.published += published
            if leased is not None:
                self._say(peer, leased)
        elif isinstance(message, Seal):
            asks = self.rounds.ask(message, self.hosting.sessions, self._now)
            effects.tells += [(ask.session, ask) for ask in asks]
            self._say(peer, Holders(message.serial, self.stage.state.registrar.holders(message.topic)))
        elif isinstance(message, Holders):
            effects.decided += self.voids.holders(peer, message)
        elif isinstance(message, Sealed):
            effects.decided += self.voids.sealed(message)
        elif isinstance(message, Undecided):
            for decided in self.voids.undecided(message):
                self._say(peer, decided)
        else:
            sessions = [message.session] if message.session else self.hosting.sessions
            effects.tells += [(session, message) for session in sessions]

    def _pass_on(self, acked: Acked) -> None:
        """An acknowledgement goes to the registrar of its subscription."""
        rank = self.stage.topology.registrar(acked.subscription)
        if rank == self.stage.rank:
            self.stage.handle_acked(rank, acked)
        elif rank in self.stage.greeted:
            self.stage.effects.sends.append((rank, acked))

    def client_is_here(self, session: str) -> None:
        """A client is at home here now."""
        self.hosting.sessions[session] = 0

    def client_is_gone(self, session: str) -> None:
        """A client is not at home here any more."""
        self.hosting.forget(session)

    def serve(self) -> None:
        """Read a piece of the log for somebody who misses it, if there is anybody: a little work at a time."""
        if self.pubends.has_work:
            home, told = self.pubends.serve()
            if home == self.stage.rank:
                self.hosting.told(told)
                self._spread()
            else:
                self.stage.effects.sends.append((home, told))

    def _spread(self) -> None:
        """Send on what the home's side of this stage says."""
        for rank, recall in self.hosting.take_recalls():
            if rank == self.stage.rank:
                self.pubends.recall(rank, recall.wants)
            else:
                self.stage.effects.sends.append((rank, recall))
        self.stage.effects.tells += self.hosting.tells
        self.hosting.tells.clear()

    def tick(self, now: float, wall_s: float) -> None:
        """Time passes: by the clock that never jumps, and by the one on the wall."""
        self._now = now
        self.stage.tick(now)
        self.hosting.tick(now)
        self._tick_registrar(now, wall_s)
        self.stage.effects.forget += self.retention.find_old(now, wall_s)
        for rank, hosts in self.hosting.take_hosts():
            if rank == self.stage.rank:
                self.pubends.hosts(rank, hosts)
            else:
                self.stage.effects.sends.append((rank, hosts))
        for home, expected in self.pubends.tick(now):
            if home == self.stage.rank:
                self.hosting.expected(expected)
            else:
                self.stage.effects.sends.append((home, expected))
        for sealed in self.rounds.tick(now):
            self._say(sealed.rank, sealed)
        for rank, seal in self.voids.tick(now, wall_s):
            self._say(rank, seal)
        self._spread()

    def _tick_registrar(self, now: float, wall_s: float) -> None:
        stage = self.stage
        alive = self.hosting.take_alive(now)
        if alive is not None:
            self._hear(alive, now)
            stage.effects.sends += [(peer, alive) for peer in stage.greeted]
        for ended in self.expiry.find_expired(now) if stage.is_open else ():
            subscription = stage.state.registrar.subscriptions[ended.subscription]
            if subscription.ended:
                stage.handle_passed(Passed(ended.subscription, tuple(subscription.leaving)))
            else:
                stage.expire(ended.subscription, wall_s)
                stage.effects.tells.append((ended.session, ended))
        for rank, progress in self.hosting.take_progress():
            if rank == stage.rank:
                self._note(progress)
            elif rank in stage.greeted:
                stage.effects.sends.append((rank, progress))
        if now >= self._floors_at + FLOORS_S:
            self._floors_at = now
            self._ask_floors()

    def _note(self, progress: Progress) -> None:
        for said in progress.news:
            passed = self.needs.follows(said)
            if passed is not None:
                self.stage.handle_passed(passed)

    def _hear(self, alive: Alive, now: float) -> None:
        noted, told = self.expiry.heard(alive, now)
        self.stage.effects.tells += [(ended.session, ended) for ended in told]
        self._tell_heard(self.stage.rank, noted)

    def _tell_heard(self, registrar: int, noted: Noted) -> None:
        """A registrar has heard of clients here."""
        self.stage.effects.tells += [
            (session, Heard(session, serial, registrar))
            for session, serial in noted.sessions.items()
            if serial and session in self.hosting.sessions
        ]

    def _ask_floors(self) -> None:
        """Ask all registrars up to where their subscriptions need nothing of the topics here."""
        stage = self.stage
        asking = self.retention.ask(stage.state.kept)
        self.retention.floors(stage.rank, self._floors_for(stage.rank, asking))
        stage.effects.sends += [(peer, asking) for peer in stage.greeted]

    def _floors_for(self, owner: int, asking: AskFloors) -> Floors:
        owner_of = self.stage.topology.owner
        return Floors(asking.round, {t: acked for t, acked in self.needs.floors().items() if owner_of(t) == owner})

    @property
    def has_work(self) -> bool:
        """Whether `flush` has something to do."""
        return self.stage.has_effects

    def flush(self) -> Effects:
        """Journal and sync what the inputs since the last call did; return what may be sent now."""
        batch = self.take()
        self.make_safe(batch)
        return self.release(batch)

    def take(self) -> Batch:
        """What the inputs since the last call did. Nothing of it may be sent before `make_safe` has returned."""
        if self.failure is not None:
            raise JournalError(
                f"this stage stopped because its journal failed ({self.failure}); mend that and start it again"
            )
        effects = self.stage.take_effects()
        self._records_since_snapshot += len(effects.journal)
        self._bytes_since_snapshot += sum(map(len, effects.journal))
        published, pending = self._published(effects)
        if not self._is_snapshot_due:
            return Batch(effects, published, pending, None)
        snapshot = self.stage.snapshot()
        self._records_since_snapshot = self._bytes_since_snapshot = 0
        self._snapshot_bytes = len(snapshot)
        return Batch(effects, published, pending, snapshot)

    def release(self, batch: Batch) -> Effects:
        """A batch is on disk: what may be sent now."""
        for part in batch.published:
            self.pubends.published(part.topic, part.last)
        for kept in batch.effects.kept:
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
        )
        return is_long and self._bytes_since_snapshot >= self.snapshot_growth * self._snapshot_bytes

    def make_safe(self, batch: Batch) -> None:
        """Put a batch on disk. After a failure nobody knows what is there, so this stage does nothing any more."""
        try:
            if batch.has_news:
                self.crash_point("flush:before-log")
                self.log.write(batch.effects.kept, batch.published)
                for session, sequence, part in batch.pending:
                    self.log.hold(session, sequence, part)
                for decision in (*batch.effects.published, *batch.effects.decided):
                    self.log.decide(decision)
                for topic, up_to in batch.effects.forget:
                    self.log.forget(topic, up_to)
                self.crash_point("flush:before-append")
                if batch.effects.journal:
                    self.journal.append(batch.effects.journal)
                self.crash_point("flush:before-sync")
                self.journal.sync()
                self.on_synced(batch.effects)
                self.crash_point("flush:after-sync")
            if batch.snapshot is not None:
                self.crash_point("snapshot:before-write")
                self.journal.replace(batch.snapshot)
                self.crash_point("snapshot:after-write")
        except Exception as error:
            self.failure = error
            raise JournalError(
                f"the journal failed: {error}. Nothing of the last batch was answered, and nothing more is taken until this is "
                "mended"
            ) from error
