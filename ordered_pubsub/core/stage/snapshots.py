"""When a snapshot takes the journal's place: early enough for a quick start, and so seldom that it costs a fixed share.

A start reads the last snapshot and lets what was journalled since have its effect again. So the next one is due after so many
records, or bytes, or parts of requests; but not before a multiple of its own bytes was journalled.
"""

from __future__ import annotations

import attrs

AFTER_RECORDS = 10_000
AFTER_BYTES = 64 << 20
"""However few records these are, so many bytes of them are not kept behind a snapshot, unless the snapshot is large itself."""
AFTER_PARTS = 200_000
"""However few bytes these are: at a start so many parts of requests take half a second to have their effect again."""
GROWTH = 4
"""A snapshot is due when so many times the last one's bytes were journalled since: so writing them stays a fixed share."""
PART_BYTES = 256
"""A part weighs as much as so many bytes more, since reading it again takes so long."""
NEVER = 1 << 62


@attrs.frozen
class SnapshotPolicy:
    """How much is journalled before a snapshot takes its place."""

    after_records: int = AFTER_RECORDS
    after_bytes: int = AFTER_BYTES
    after_parts: int = AFTER_PARTS
    growth: float = GROWTH


NO_SNAPSHOTS = SnapshotPolicy(NEVER, NEVER, NEVER)
"""For a journal that does not keep them: one that is not written need not be made."""


@attrs.define(eq=False)
class SinceSnapshot:
    """What was journalled since the last snapshot."""

    policy: SnapshotPolicy
    snapshot_bytes: int
    """how large that is"""
    records: int
    size: int
    """… of them, in bytes"""

    def journalled(self, records: list[bytes]) -> None:
        """Some more records."""
        self.records += len(records)
        self.size += sum(map(len, records))

    def is_due(self, parts: int) -> bool:
        """Whether it is time for another one, if so many parts of requests were handled since."""
        policy = self.policy
        is_long = self.records >= policy.after_records or self.size >= policy.after_bytes or parts >= policy.after_parts
        return is_long and self.size + PART_BYTES * parts >= policy.growth * self.snapshot_bytes

    def taken(self, snapshot: bytes) -> None:
        """This is the last one now."""
        self.snapshot_bytes, self.records, self.size = len(snapshot), 0, 0
