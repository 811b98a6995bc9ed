"""Where a stage keeps what it must not forget, as its driver asks for it: its inputs, and beside them the rows of its logs."""

from __future__ import annotations

from typing import Protocol

import attrs

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.shelf import Shelf


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
