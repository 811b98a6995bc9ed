"""The way of numbered events to the ENS: what it is given when, and who has a receipt."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.outbox import REFUSED_MAX, Outbox
from ordered_pubsub.core.client.session import Outcome, Queued
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.messages import LeaseRenewal, LeaseReply, Publication, TopicRange

LEASE_S = 30.0


@attrs.define
class Sender:
    """An outbox, and the numbers that its batches get."""

    outbox: Outbox = attrs.field(factory=lambda: Outbox(UnkeptBatches(Lease("s", LEASE_S), lambda topic: 0), len))
    now: float = 100.0
    sequence: int = 0
    given: dict[str, int] = attrs.field(factory=dict)

    def publish(self, topic: str, *items: Any, is_kept: bool = False) -> list[Any]:
        """A batch gets its numbers; they were asked for just before."""
        first = self.given.get(topic, 0) + 1
        self.given[topic] = first + len(items) - 1
        self.sequence += 1
        batch = list(items)
        part = Publication(topic, len(batch), 0.0, first, 0, False, {}, [], is_kept)
        self.outbox.numbered(Outcome(self.sequence, Queued([topic], [batch]), [part], None, None, self.now), self.now)
        self.outbox.check_invariants()
        return batch

    def gives(self) -> dict[str, list[list[Any]]]:
        """What the ENS is to take now."""
        found = {topic: [items for _, items in group] for topic, group in self.outbox.take_next(self.now)}
        self.outbox.check_invariants()
        return found

    def taken(self, topic: str) -> None:
        self.outbox.taken(topic, self.now)
        self.outbox.check_invariants()

    def not_taken(self, topic: str, trouble: str = "broken") -> float | None:
        again_at = self.outbox.not_taken(topic, trouble, self.now)
        self.outbox.check_invariants()
        return again_at

    def receipts(self) -> list[list[Any]]:
        found, self.outbox.receipts = [items for _, items in self.outbox.receipts], []
        return found

    def voids(self) -> list[list[tuple[int, int]]]:
        found, self.outbox.voids = [void.ranges for void in self.outbox.voids], []
        return found

    def says(self) -> LeaseRenewal:
        handed = self.outbox.take_due(self.now)
        assert handed is not None
        return handed

    def answered(self, handed: LeaseRenewal, *voids: TopicRange) -> None:
        self.outbox.leased(LeaseReply("s", handed.serial, 0, list(voids)), self.now)
        self.outbox.check_invariants()


def early(events_max: int, bytes_max: int = 100) -> Sender:
    """Some of what a log keeps may have its receipt before the ENS has taken it."""
    batches = UnkeptBatches(Lease("s", LEASE_S), lambda topic: 0)
    return Sender(Outbox(batches, len, early_events_max=events_max, early_bytes_max=bytes_max))


def test_what_waits_on_a_topic_goes_together_and_holds_up_no_other_topic() -> None:
    sender = Sender()
    sender.publish("a", 1)
    assert sender.gives() == {"a": [[1]]}
    sender.publish("a", 2, 3)
    sender.publish("a", 4)
    sender.publish("b", 5)
    assert sender.gives() == {"b": [[5]]}
    assert sender.receipts() == []

    sender.taken("a")
    assert sender.receipts() == [[1]]
    assert sender.gives() == {"a": [[2, 3], [4]]}
    sender.taken("a")
    sender.taken("b")
    assert sender.receipts() == [[2, 3], [4], [5]]
    assert (sender.gives(), sender.outbox.is_empty) == ({}, True)


def test_what_was_not_taken_is_given_again_with_what_has_come_since() -> None:
    sender = Sender()
    sender.publish("a", 1)
    sender.gives()
    again_at = sender.not_taken("a", "it is away")
    sender.publish("a", 2)
    assert (sender.gives(), sender.outbox.trouble, sender.receipts()) == ({}, "it is away", [])

    assert again_at == sender.outbox.next_try
    assert again_at is not None
    sender.now = again_at
    assert sender.gives() == {"a": [[1], [2]]}
    sender.taken("a")
    assert (sender.receipts(), sender.outbox.trouble) == ([[1], [2]], "")


def test_the_pauses_become_longer_up_to_a_limit_and_short_again() -> None:
    sender = Sender()
    sender.publish("a", 1)
    pauses = []
    for _ in range(8):
        sender.gives()
        again_at = sender.not_taken("a")
        assert again_at is not None
        pauses.append(again_at - sender.now)
        sender.now = again_at
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(5.0)
    sender.now += LEASE_S  # not taken for so long: it is in doubt
    assert sender.gives() == {}
    sender.answered(sender.says())
    sender.gives()
    sender.taken("a")
    sender.publish("a", 2)
    sender.gives()
    again_at = sender.not_taken("a")
    assert again_at is not None
    assert again_at - sender.now == pytest.approx(pauses[0])


def test_what_a_log_keeps_is_left_to_it_after_a_while_and_then_asked_for_once() -> None:
    sender = Sender()
    sender.publish("a", 1, is_kept=True)
    tries = 0
    while sender.gives():
        tries += 1
        again_at = sender.not_taken("a")
        sender.now = again_at or sender.now
    assert tries > 5
    assert (sender.receipts(), sender.outbox.is_empty, sender.outbox.trouble) == ([[1]], True, "")

    sender.publish("a", 2, is_kept=True)
    assert sender.gives() == {"a": [[2]]}
    assert sender.not_taken("a") is None
    assert sender.receipts() == [[2]]
    sender.publish("a", 3, is_kept=True)
    sender.gives()
    sender.taken("a")
    sender.publish("a", 4, is_kept=True)
    sender.gives()
    assert sender.not_taken("a") is not None  # it is patient again


def test_what_nobody_keeps_is_not_left_even_beside_what_is_kept() -> None:
    sender = Sender()
    sender.outbox.patience_s = 0.0
    sender.publish("a", 1, is_kept=True)
    sender.publish("a", 2)
    sender.gives()
    assert sender.not_taken("a") is not None
    assert sender.receipts() == [[1]]
    sender.now += 10.0
    assert sender.gives() == {"a": [[2]]}


def test_of_many_topics_it_is_forgotten_that_they_were_left() -> None:
    sender = Sender()
    sender.outbox.is_closing = True
    for number in range(REFUSED_MAX + 2):
        sender.publish(f"t{number}", 1, is_kept=True)
        sender.gives()
        assert sender.not_taken(f"t{number}") is None
    assert len(sender.outbox._refused) == REFUSED_MAX


def test_what_a_log_keeps_has_its_receipt_at_once_unless_very_much_of_it_waits() -> None:
    sender = early(events_max=3)
    first, second = sender.publish("a", 1, 2, is_kept=True), sender.publish("b", 3, 4, is_kept=True)
    third = sender.publish("a", 5, is_kept=True)
    assert sender.receipts() == [first, third]
    assert sender.outbox.early_events == 3

    sender.gives()
    sender.taken("b")
    assert sender.receipts() == [second]
    sender.taken("a")
    sender.gives()
    sender.taken("a")
    assert (sender.receipts(), sender.outbox.early_events) == ([], 0)


def test_very_many_bytes_are_very_much_too() -> None:
    sender = early(events_max=100, bytes_max=2)
    batches = [sender.publish("a", 1, 2, is_kept=True) for _ in range(3)]
    assert sender.receipts() == batches[:2]  # the second was begun while there was room


def test_what_nobody_keeps_has_its_receipt_when_the_ens_has_taken_it() -> None:
    sender = early(events_max=100)
    batch = sender.publish("a", 1)
    sender.gives()
    assert sender.receipts() == []
    sender.taken("a")
    assert sender.receipts() == [batch]


def test_what_may_be_void_is_asked_for_first_and_what_is_void_is_not_given() -> None:
    sender = Sender()
    sender.publish("a", 1, 2, 3)
    sender.now += LEASE_S
    assert sender.gives() == {}
    assert "void" in sender.outbox.trouble
    assert sender.outbox.is_troubled

    handed = sender.says()
    assert handed.asks == [TopicRange("a", 1, 3)]
    sender.answered(handed, TopicRange("a", 2, 2))
    assert sender.voids() == [[(2, 2)]]
    assert sender.gives() == {"a": [[1], [3]]}
    sender.taken("a")
    assert (sender.receipts(), sender.outbox.trouble) == ([[1], [3]], "")


def test_what_is_in_doubt_does_not_hold_up_what_is_not() -> None:
    sender = Sender()
    sender.publish("a", 1)
    sender.now += LEASE_S
    sender.publish("a", 2)
    assert sender.gives() == {"a": [[2]]}
    handed = sender.says()
    sender.answered(handed)
    assert sender.gives() == {}
    sender.taken("a")
    assert sender.gives() == {"a": [[1]]}


def test_an_answer_that_comes_too_late_is_asked_for_again() -> None:
    sender = Sender()
    sender.publish("a", 1)
    sender.now += LEASE_S
    sender.gives()
    handed = sender.says()
    sender.now += LEASE_S
    sender.answered(handed)
    assert sender.gives() == {}
    assert sender.says().asks == [TopicRange("a", 1, 1)]


def test_what_may_have_become_void_while_the_ens_took_it_has_no_receipt_before_its_owner_has_answered() -> None:
    sender = Sender()
    sender.publish("a", 1, 2)
    sender.gives()
    sender.now += LEASE_S
    sender.taken("a")
    assert sender.receipts() == []
    handed = sender.says()
    assert handed.sequence == 0  # nothing of it is said to be at the ENS
    sender.now += LEASE_S  # a slow answer is one, since the ENS had it before it was asked for
    sender.answered(handed, TopicRange("a", 1, 1))
    assert (sender.voids(), sender.receipts(), sender.gives()) == ([[(1, 1)]], [[2]], {})
    assert sender.outbox.is_empty


def test_who_closes_has_what_pauses_given_once_more_at_once() -> None:
    sender = Sender()
    sender.publish("a", 1, is_kept=True)
    sender.publish("b", 2)
    sender.gives()
    for topic in "ab":
        sender.not_taken(topic)
    assert sender.gives() == {}
    sender.outbox.close()
    assert sender.gives() == {"a": [[1]], "b": [[2]]}
    assert sender.not_taken("a") is None
    assert sender.receipts() == [[1]]
    sender.taken("b")
    assert sender.outbox.is_empty


def test_what_is_given_up_is_gone_whatever_the_ens_or_an_owner_still_says() -> None:
    sender = early(events_max=1)
    sender.publish("a", 1, is_kept=True)
    sender.publish("b", 2)
    sender.gives()
    sender.publish("c", 3)
    sender.now += LEASE_S
    sender.gives()
    handed = sender.says()
    sender.receipts()

    sender.outbox.abandon()
    sender.taken("a")
    assert sender.not_taken("b") is None
    sender.answered(handed)
    sender.publish("d", 4)
    assert (sender.gives(), sender.receipts(), sender.voids(), sender.outbox.early_events) == ({}, [], [], 0)
    assert sender.outbox.is_empty
