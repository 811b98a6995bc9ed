"""The order of duties: journal, sync, then send.

A `Driver` feeds one stage, collects what comes of any number of inputs into one batch, and releases the batch only after the
journal has it on disk. This is the only place where that order is decided; the server, the embedded stage and the simulation
all run through it. `crash_point` is called with the name of each place at which a process may die; the simulation dies there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from ordered_pubsub.core.messages import PeerMessage, Request
from ordered_pubsub.core.stage import Effects, Stage
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import JournalError

SNAPSHOT_AFTER_RECORDS = 10_000


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
    on_synced: Callable[[Effects], None] = _nobody
    """called with every batch as soon as it is on disk"""
    failure: Exception | None = None
    """why the journal cannot be used any more"""
    _records_since_snapshot: int = 0

    @classmethod
    def open(
        cls,
        rank: int,
        topology: Topology,
        journal: Journal,
        crash_point: Callable[[str], None] = _nothing,
        snapshot_after_records: int = SNAPSHOT_AFTER_RECORDS,
    ) -> Driver:
        """Start a stage from what its journal holds."""
        snapshot, records = journal.load()
        crash_point("restore:journal-read")
        stage = Stage.restore(rank, topology, snapshot, records)
        crash_point("restore:replayed")
        return cls(stage, journal, crash_point, snapshot_after_records, records_since_snapshot=len(records))

    def handle_request(self, request: Request, now: float) -> None:
        """A client at home here asks for something."""
        self.stage.handle_request(request, now)

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something."""
        self.stage.handle_peer(peer, message, now)

    def _make_safe(self, records: list[bytes]) -> None:
        """Put records on disk. After a failure nobody knows what is there, so this stage does nothing any more."""
        self.crash_point("flush:before-append")
        try:
            self.journal.append(records)
            self.crash_point("flush:before-sync")
            self.journal.sync()
        except Exception as error:
            self.failure = error
            raise JournalError(
                f"the journal failed: {error}. Nothing of the last batch was answered; this stage has stopped. Mend that and "
                "start it again"
            ) from error

    @property
    def has_work(self) -> bool:
        """Whether `flush` has something to do."""
        return self.stage.has_effects

    def flush(self) -> Effects:
        """Journal and sync what the inputs since the last call did; return what may be sent now."""
        if self.failure is not None:
            raise JournalError(
                f"this stage stopped because its journal failed ({self.failure}); mend that and start it again"
            )
        effects = self.stage.take_effects()
        if effects.journal:
            self._make_safe(effects.journal)
            self.on_synced(effects)
            self.crash_point("flush:after-sync")
            self._records_since_snapshot += len(effects.journal)
        if self._records_since_snapshot >= self.snapshot_after_records:
            self.crash_point("snapshot:before-write")
            self.journal.replace(self.stage.snapshot())
            self.crash_point("snapshot:after-write")
            self._records_since_snapshot = 0
        return effects
