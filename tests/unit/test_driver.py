"""Duties in their order, and what a failing journal does."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.driver import Driver, MemoryJournal
from ordered_pubsub.core.messages import PublishAsk, Request
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalError


class FullDisk(MemoryJournal):
    """Takes nothing any more from the moment it is full."""

    is_full = False

    def sync(self) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")


def test_a_stage_whose_journal_failed_answers_nothing_and_does_nothing_any_more() -> None:
    journal = FullDisk()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal)
    driver.flush()
    journal.is_full = True
    driver.handle_request(Request("c", 1, 1, 0, 0, (PublishAsk("t"),)), 0.0)
    with pytest.raises(JournalError, match=r"No space left on device.*Nothing of the last batch was answered"):
        driver.flush()
    journal.is_full = False
    with pytest.raises(JournalError, match="this stage stopped because its journal failed"):
        driver.flush()


def test_a_snapshot_takes_the_place_of_the_records() -> None:
    journal = MemoryJournal()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal, snapshot_after_records=3, snapshot_growth=0)
    for number in range(1, 6):
        driver.handle_request(Request("c", 1, number, number - 1, 0, (PublishAsk("t"),)), 0.0)
        driver.flush()
    assert journal.snapshot is not None
    assert len(journal.records) < 3
