"""A disk that forgets what was not synced, and tears what it was writing when the power failed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from ordered_pubsub.core.journal import frame_record, scan


@attrs.define(eq=False)
class Disk:
    """The journal of one simulated stage: real records, in bytes, with a synced part and a part that a crash may take."""

    name: str
    random: Random
    crash_point: Callable[[str], None]
    on_replaced: Callable[[], None]
    snapshot: bytes | None = None
    synced: bytes = b""
    unsynced: bytes = b""
    torn_records: int = 0

    def append(self, records: list[bytes]) -> None:
        """Write records, without a sync."""
        data = b"".join(frame_record(record) for record in records)
        half = self.random.randrange(len(data))
        self.unsynced += data[:half]
        self.crash_point("disk:append-torn")
        self.unsynced += data[half:]

    def sync(self) -> None:
        """Make what was written safe."""
        self.crash_point("disk:sync-torn")
        self.synced += self.unsynced
        self.unsynced = b""

    def replace(self, snapshot: bytes) -> None:
        """Write a snapshot beside the journal, sync it, and put it in the journal's place by one rename."""
        self.crash_point("disk:snapshot-torn")
        self.crash_point("disk:snapshot-written")
        self.snapshot = snapshot
        self.synced = self.unsynced = b""
        self.on_replaced()

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """What survived: the good records; a torn last one is cut off."""
        found = scan(self.synced, self.name)
        if found.torn_bytes:
            self.torn_records += 1
            self.synced = self.synced[: found.good_bytes]
        return self.snapshot, found.records

    def lose_power(self) -> None:
        """Keep what was synced, and any part of what was not."""
        kept = self.random.randrange(len(self.unsynced) + 1)
        self.synced += self.unsynced[:kept]
        self.unsynced = b""
