"""Acknowledged is what was handled, before which everything was handled; never what somebody still has in hand."""

from __future__ import annotations

from random import Random

import pytest

from ordered_pubsub.core.subscriber.acknowledging import Acknowledging, InHand
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.vector import Moment


def event(count: int) -> Notification:
    moment = Moment({"a": count})
    return Notification(Arrival("a", count, {}), count, moment, 1, left_up_to=1, count=count)


@pytest.fixture
def in_hand() -> InHand:
    return InHand()


def taken(in_hand: InHand, **hands: int) -> None:
    for holder, count in hands.items():
        in_hand.take(event(count), holder)


def count_of(place: object) -> int:
    return getattr(place, "count", 0)


def test_who_asks_for_more_has_handled_what_was_in_that_hand(in_hand: InHand) -> None:
    taken(in_hand, one=1)

    assert count_of(in_hand.ask("one")) == 1
    assert len(in_hand) == 0


def test_what_another_one_still_has_in_hand_is_not_acknowledged(in_hand: InHand) -> None:
    taken(in_hand, one=1, two=2)

    assert in_hand.ask("two") is None
    assert count_of(in_hand.ask("one")) == 2


def test_nobody_handles_for_another_one(in_hand: InHand) -> None:
    taken(in_hand, one=1)
    assert in_hand.ask("two") is None
    taken(in_hand, two=2)
    assert in_hand.ask("two") is None

    assert len(in_hand) == 2


def test_what_was_given_back_is_taken_again_in_its_old_place(in_hand: InHand) -> None:
    """Though a later one was handled meanwhile."""
    taken(in_hand, one=1, two=2)
    in_hand.give_back([event(1)], "one")
    assert (in_hand.ask("two"), in_hand.ask("one"), len(in_hand)) == (None, None, 1)
    taken(in_hand, three=1)

    assert count_of(in_hand.ask("three")) == 2


def test_a_part_of_what_is_in_a_hand_may_be_given_back(in_hand: InHand) -> None:
    for count in (1, 2, 3):
        in_hand.take(event(count), "one")
    in_hand.give_back([event(3)], "one")

    assert count_of(in_hand.ask("one")) == 2


def test_what_has_no_place_in_the_order_is_acknowledged_by_nothing(in_hand: InHand) -> None:
    in_hand.take(event(0), "one")

    assert (in_hand.ask("one"), len(in_hand)) == (None, 0)


def test_the_application_may_say_it_for_all_up_to_an_event(in_hand: InHand) -> None:
    for count in (1, 2, 3):
        in_hand.take(event(count))
    in_hand.handled_to(2)

    assert len(in_hand) == 1


def test_or_for_all_up_to_a_clock(in_hand: InHand) -> None:
    for count in (1, 2, 3):
        in_hand.take(event(count))

    assert count_of(in_hand.handled_to_clock({"a": 2})) == 2
    assert in_hand.handled_to_clock({"a": 2}) is None


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_nothing_in_a_hand_is_acknowledged_and_in_the_end_everything_is(seed: int) -> None:
    random, in_hand = Random(seed), InHand()
    queue = [event(count) for count in range(1, 60)]
    hands: dict[str, list[Notification]] = {}
    handled: dict[int, bool] = {}
    acknowledged = 0
    while queue or hands:
        holder = random.choice("abc")
        if holder in hands and random.random() < 0.3:
            back = hands.pop(holder)
            in_hand.give_back(back, holder)
            queue = sorted([*back, *queue], key=lambda one: one.count)
            continue
        handled.update(dict.fromkeys((one.count for one in hands.pop(holder, ())), True))
        place = in_hand.ask(holder)
        assert place is None or place.count > acknowledged
        acknowledged = max(acknowledged, count_of(place))
        assert all(count in handled for count in range(1, acknowledged + 1))
        for _ in range(min(len(queue), random.randint(0, 3))):
            hands.setdefault(holder, []).append(queue.pop(0))
            in_hand.take(hands[holder][-1], holder)

    assert acknowledged == 59
    assert not any((in_hand._taken, in_hand._handled, in_hand._back, in_hand._hands))


def test_an_earlier_acknowledgement_takes_no_later_one_back() -> None:
    acking = Acknowledging("s", "session")
    acking.acknowledge(1, {"a": 5}, 5, now=0.0)
    acking.acknowledge(1, {"a": 3}, 3, now=0.1)

    assert acking.last is not None
    assert acking.last.position == 5
