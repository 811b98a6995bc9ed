"""Acknowledgements of a named subscription: the last one counts, and it is said until it is known to be on disk."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.messages import Acked, AckSaved
from ordered_pubsub.core.subscriber.acknowledging import ACK_S, REPEAT_S, Acknowledging


@pytest.fixture
def acking() -> Acknowledging:
    return Acknowledging("s", "session")


def saved(serial: int) -> AckSaved:
    return AckSaved("s", "session", serial)


def test_before_the_first_there_is_nothing_to_say(acking: Acknowledging) -> None:
    assert (acking.last, acking.take_due(100.0), acking.next_due) == (None, None, None)


def test_an_acknowledgement_that_nobody_waits_for_waits_for_later_ones(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    assert acking.take_due(ACK_S / 2) is None
    acking.acknowledge(1, {"a": 2}, 2, now=ACK_S / 2)
    assert acking.take_due(ACK_S) == Acked("s", "session", 2, 1, {"a": 2}, 2)


def test_one_that_somebody_waits_for_is_said_at_once(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    acking.acknowledge(1, {"a": 2}, 2, now=0.1, at_once=True)
    assert acking.take_due(0.1) == Acked("s", "session", 2, 1, {"a": 2}, 2)


def test_a_later_one_does_not_put_off_an_earlier_one(acking: Acknowledging) -> None:
    for number in range(1, 100):
        acking.acknowledge(1, {"a": number}, number, now=number * ACK_S / 50)
    assert acking.next_due == pytest.approx(ACK_S / 50 + ACK_S)


def test_it_is_said_again_until_it_is_on_disk(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0, at_once=True)
    said_at = [now for now in (n * REPEAT_S / 4 for n in range(13)) if acking.take_due(now) is not None]
    assert said_at == [0.0, REPEAT_S, 2 * REPEAT_S, 3 * REPEAT_S]


def test_nothing_is_due_when_the_last_one_is_on_disk(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0, at_once=True)
    acking.take_due(0.0)
    acking.handle_saved(saved(1))
    assert acking.next_due is None


def test_an_earlier_one_on_disk_is_not_enough(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    acking.acknowledge(1, {"a": 2}, 2, now=0.0)
    acking.handle_saved(saved(1))
    assert acking.take_due(ACK_S) == Acked("s", "session", 2, 1, {"a": 2}, 2)


def test_what_was_said_late_takes_nothing_back(acking: Acknowledging) -> None:
    acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    acking.acknowledge(1, {"a": 2}, 2, now=0.0)
    acking.handle_saved(saved(2))
    acking.handle_saved(saved(1))
    assert (acking.saved, acking.next_due) == (2, None)


def test_the_same_again_is_not_another_acknowledgement(acking: Acknowledging) -> None:
    first = acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    acking.handle_saved(saved(first))
    assert acking.acknowledge(1, {"a": 1}, 1, now=9.0) == first
    assert acking.next_due is None


def test_a_change_that_has_taken_effect_is_news_though_no_event_was_passed(acking: Acknowledging) -> None:
    first = acking.acknowledge(1, {"a": 1}, 1, now=0.0)
    assert acking.acknowledge(2, {"a": 1, "b": 0}, 1, now=0.0) == first + 1


def test_what_is_said_stays_what_it_was_while_the_clock_goes_on(acking: Acknowledging) -> None:
    clock = {"a": 1}
    acking.acknowledge(1, clock, 1, now=0.0, at_once=True)
    said = acking.take_due(0.0)
    clock["a"] = 2
    assert said == Acked("s", "session", 1, 1, {"a": 1}, 1)
