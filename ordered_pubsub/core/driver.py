"""The order of duties: journal, sync, then send.

A `Driver` feeds one stage, collects what comes of any number of inputs into one batch, and releases the batch only after the
journal has it on disk. This is the only place where that order is decided; the server, the embedded stage and the simulation
all run through it. `crash_point` is called with the name of each place at which a process may die; the simulation dies there.

`flush` does all of it at once. Whoever does not want to wait for the disk takes a `Batch` with `take`, lets another thread
do `make_safe`, feeds the next inputs meanwhile, and sends the effects when that has returned: one batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from ordered_pubsub.core.messages import PeerMessage, Refusal, Request
from ordered_pubsub.core.stage import Effects, Stage
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import JournalError

SNAPSHOT_AFTER_RECORDS = 10_000
SNAPSHOT_GROWTH = 4
"""A snapshot is due when so many times the last one's bytes were journalled since: so writing them stays a fixed share."""


class Journal(Protocol):
    """Where a stage's inputs are kept."""

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
    snapshot: bytes | None
    """the state after these inputs, if it is time to put it in the journal's place"""


def _nothing(name: str) -> None:
    """No process dies here."""


def _nobody(effects: Effects) -> None:
    """Nobody watches."""


@attrs.define(eq=False)
class Driver:
    """Runs one stage on one journal."""

    stage: Stage
    journal: Journal
    crash_point: Callable[[str], None] = _nothing
    snapshot_after_records: int = SNAPSHOT_AFTER_RECORDS
    snapshot_growth: float = SNAPSHOT_GROWTH
    on_synced: Callable[[Effects], None] = _nobody
    """called with every batch as soon as it is on disk"""
    failure: Exception | None = None
    """why the journal cannot be used any more"""
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
    ) -> Driver:
        """Start a stage from what its journal holds."""
        snapshot, records = journal.load()
        crash_point("restore:journal-read")
        stage = Stage.restore(rank, topology, snapshot, records)
        crash_point("restore:replayed")
        return cls(
            stage,
            journal,
            crash_point,
            snapshot_after_records,
            snapshot_growth,
            records_since_snapshot=len(records),
            bytes_since_snapshot=sum(map(len, records)),
            snapshot_bytes=len(snapshot or b""),
        )

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something; with a refusal, if it may not."""
        self.stage.handle_request(request, now, refusal)

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something."""
        self.stage.handle_peer(peer, message, now)

    @property
    def has_work(self) -> bool:
        """Whether `flush` has something to do."""
        return self.stage.has_effects

    def flush(self) -> Effects:
        """Journal and sync what the inputs since the last call did; return what may be sent now."""
        batch = self.take()
        self.make_safe(batch)
        return batch.effects

    def take(self) -> Batch:
        """What the inputs since the last call did. Nothing of it may be sent before `make_safe` has returned."""
        if self.failure is not None:
            raise JournalError(
                f"this stage stopped because its journal failed ({self.failure}); mend that and start it again"
            )
        effects = self.stage.take_effects()
        self._records_since_snapshot += len(effects.journal)
        self._bytes_since_snapshot += sum(map(len, effects.journal))
        if not self._is_snapshot_due:
            return Batch(effects, None)
        snapshot = self.stage.snapshot()
        self._records_since_snapshot = self._bytes_since_snapshot = 0
        self._snapshot_bytes = len(snapshot)
        return Batch(effects, snapshot)

    @property
    def _is_snapshot_due(self) -> bool:
        return (
            self._records_since_snapshot >= self.snapshot_after_records
            and self._bytes_since_snapshot >= self.snapshot_growth * self._snapshot_bytes
        )

    def make_safe(self, batch: Batch) -> None:
        """Put a batch on disk. After a failure nobody knows what is there, so this stage does nothing any more."""
        try:
            if batch.effects.journal:
                self.crash_point("flush:before-append")
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
                f"the journal failed: {error}. Nothing of the last batch was answered; this stage has stopped. Mend that and "
                "start it again"
            ) from error
