"""A disk that forgets what was not synced, and tears what it was writing when the power failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

import attrs

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.shelf import Kind, Row
from ordered_pubsub.core.stage.journal import frame_record, scan

SYNCS_MAX = 4
"""A snapshot is written with up to so many syncs."""


@attrs.define(eq=False)
class DiskShelf(MemoryShelf):
    """The log's rows, as on a disk of their own: as to the journal, it is only sure that they are safe before its records.

    Who writes sees at once what was written. `safe` is what is on the disk: it follows when it is synced, and if the power
    fails before, any part of it may.
    """

    random: Random = attrs.field(kw_only=True)
    crash_point: Callable[[str], None] = attrs.field(kw_only=True)
    safe: MemoryShelf = attrs.field(factory=MemoryShelf, kw_only=True)
    _unsynced: list[Callable[[MemoryShelf], None]] = attrs.field(factory=list, kw_only=True)

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows, without a sync."""
        super().put(kind, topic, rows)
        self._unsynced += [partial(MemoryShelf.put, kind=kind, topic=topic, rows=[row]) for row in rows]
        self.crash_point("log:put")

    def drop(self, topic: str, up_to: int, full: bytes) -> None:
        """Raise the floor, without a sync."""
        super().drop(topic, up_to, full)
        self._unsynced.append(partial(MemoryShelf.drop, topic=topic, up_to=up_to, full=full))
        self.crash_point("log:drop")

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number, without a sync."""
        super().cut(topic, after)
        self._unsynced.append(partial(MemoryShelf.cut, topic=topic, after=after))

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """A batch is pending no more, without a sync."""
        super().settle(topic, first, stamps)
        self._unsynced.append(partial(MemoryShelf.settle, topic=topic, first=first, stamps=stamps))
        self.crash_point("log:settle")

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Remember the last numbers of topics that rest, without a sync."""
        super().rest(numbers)
        self._unsynced += [partial(MemoryShelf.rest, numbers={topic: number}) for topic, number in numbers.items()]
        self.crash_point("log:rest")

    def wake(self, topics: Iterable[str]) -> None:
        """Topics that rested are in use again, without a sync."""
        topics = list(topics)
        super().wake(topics)
        self._unsynced += [partial(MemoryShelf.wake, topics=[topic]) for topic in topics]

    def clear(self, topics: Iterable[str]) -> None:
        """Remove what is left of topics whose rows are all gone, without a sync."""
        topics = list(topics)
        super().clear(topics)
        self._unsynced += [partial(MemoryShelf.clear, topics=[topic]) for topic in topics]

    def sync(self) -> None:
        """Make what was written safe."""
        if self._unsynced:
            self.crash_point("log:sync")
        for step in self._unsynced:
            step(self.safe)
        self._unsynced.clear()

    def lose_power(self) -> None:
        """Go on with what was synced, and any part of what was not."""
        for step in self._unsynced:
            if self.random.random() < 0.5:
                step(self.safe)
        self._unsynced.clear()
        self.copy(self.safe)


@attrs.define
class Coming:
    """A snapshot that is being written."""

    snapshot: bytes
    replaces_bytes: int
    """so much of the journal it takes the place of"""
    syncs_left: int
    on_replaced: Callable[[], None]


@attrs.define(eq=False)
class Disk:
    """The journal of one simulated stage: real records, in bytes, with a synced part and a part that a crash may take."""

    name: str
    random: Random
    snapshots_random: Random
    """decides how long it takes to write a snapshot"""
    crash_point: Callable[[str], None]
    on_taken: Callable[[], Callable[[], None]]
    """called when a snapshot was taken; what it returns is called when that is in the journal's place"""
    shelf: DiskShelf = attrs.field(init=False)
    snapshot: bytes | None = None
    synced: bytes = b""
    unsynced: bytes = b""
    torn_records: int = 0
    _coming: Coming | None = None

    def __attrs_post_init__(self) -> None:
        self.shelf = DiskShelf(random=self.random, crash_point=self.crash_point)

    @property
    def read_shelf(self) -> MemoryShelf:
        """The log's rows that are on the disk."""
        return self.shelf.safe

    def append(self, records: list[bytes], given: int = 0) -> None:
        """Write records, without a sync. What is on the shelf is safe before them."""
        self.shelf.sync()
        data = b"".join(frame_record(record) for record in records)
        half = self.random.randrange(len(data))
        self.unsynced += data[:half]
        self.crash_point("disk:append-torn")
        self.unsynced += data[half:]

    def sync(self) -> None:
        """Make what was written safe."""
        self.shelf.sync()
        self.crash_point("disk:sync-torn")
        self.synced += self.unsynced
        self.unsynced = b""
        if self._coming is not None:
            self._go_on(self._coming)

    def replace(self, snapshot: bytes) -> None:
        """Begin to write a snapshot beside the journal; with some later sync it is in the journal's place."""
        self._coming = Coming(snapshot, len(self.synced), self.snapshots_random.randrange(SYNCS_MAX), self.on_taken())

    def _go_on(self, coming: Coming) -> None:
        self.crash_point("disk:snapshot-torn")
        if coming.syncs_left:
            coming.syncs_left -= 1
            return
        self.crash_point("disk:snapshot-written")
        self.snapshot = coming.snapshot
        self.synced = self.synced[coming.replaces_bytes :]
        self._coming = None
        coming.on_replaced()
        self.crash_point("disk:snapshot-in-place")

    @property
    def has_more(self) -> bool:
        """Whether a snapshot is being written."""
        return self._coming is not None

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """What survived: the good records; a torn last one is cut off."""
        found = scan(self.synced, self.name)
        if found.torn_bytes:
            self.torn_records += 1
            self.synced = self.synced[: found.good_bytes]
        return self.snapshot, found.records

    def lose_power(self) -> None:
        """Keep what was synced, and any part of what was not."""
        self.shelf.lose_power()
        kept = self.random.randrange(len(self.unsynced) + 1)
        self.synced += self.unsynced[:kept]
        self.unsynced = b""
        self._coming = None
