"""Over an ENS that loses events: in order if it can be, tagged if it is not, bounded always."""

from __future__ import annotations

from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.messages import EVERYBODY_ASKS, Change, Mark


def change(version: int, old: str, new: str, **entries: int) -> Change:
    return Change("s", version, tuple(old), tuple(new), 2, True, entries)


def event(name: str, marks: list[Mark] | None = None, **entries: int) -> Arrival:
    return Arrival(name[0], int(name[1:]), entries, marks or [], True)


def of(topics: str, buffer_events_max: int = 10, ttl_s: float = 1.0, **entries: int) -> BestEffort:
    delivery = BestEffort("s", buffer_events_max, ttl_s)
    delivery.change_asked()
    delivery.change_settled(change(1, "", topics, **entries))
    return delivery


def ready(delivery: BestEffort) -> list[str]:
    """Notifications in their order; a `!` behind those that are out of order."""
    return [f"{n.arrival.topic}{n.arrival.number}{'!' if n.out_of_order else ''}" for n in delivery.take_ready()]


def test_events_that_come_in_time_are_in_order_and_not_tagged() -> None:
    delivery = of("ab")
    delivery.receive(event("a2", b=1), 0.0)
    delivery.receive(event("b1", a=1), 0.1)
    delivery.receive(event("a1"), 0.2)
    assert ready(delivery) == ["a1", "b1", "a2"]


def test_a_waiting_event_is_notified_and_tagged_when_its_time_is_up() -> None:
    delivery = of("ab")
    delivery.receive(event("a2"), 0.0)
    delivery.receive(event("b1", a=2), 0.5)
    assert delivery.next_deadline() == 1.0
    delivery.tick(0.9)
    assert ready(delivery) == []
    delivery.tick(1.0)
    assert ready(delivery) == ["a2!", "b1"]
    assert delivery.next_deadline() is None


def test_an_event_whose_number_was_passed_comes_late_and_tagged_and_once() -> None:
    delivery = of("a")
    delivery.receive(event("a2"), 0.0)
    delivery.tick(1.0)
    for _ in range(2):
        delivery.receive(event("a1"), 2.0)
        delivery.receive(event("a2"), 2.0)
    assert ready(delivery) == ["a2!", "a1!"]


def test_a_full_buffer_gives_its_oldest_event() -> None:
    delivery = of("ab", buffer_events_max=2)
    for name in ("a3", "b2", "a4"):
        delivery.receive(event(name), 0.0)
    assert ready(delivery) == ["a3!", "a4"]
    assert delivery.buffered == 1


def test_what_waits_with_a_lower_number_goes_before_the_one_that_must_go() -> None:
    delivery = of("a")
    delivery.receive(event("a3"), 0.0)
    delivery.receive(event("a2"), 0.5)
    delivery.tick(1.0)
    assert ready(delivery) == ["a2!", "a3"]


def test_while_a_removal_has_no_outcome_its_topic_is_notified_only_in_order() -> None:
    delivery = of("a")
    delivery.change_asked(["a"])
    delivery.receive(event("a2"), 0.0)
    delivery.tick(5.0)
    assert ready(delivery) == []
    delivery.change_settled(change(2, "a", "", a=1))
    assert ready(delivery) == []
    assert (delivery.buffered, delivery.take_left()) == (0, ["a"])


def test_what_is_held_back_by_a_removal_cannot_grow_beyond_the_buffer() -> None:
    delivery = of("a", buffer_events_max=3)
    delivery.change_asked(["a"])
    for number in range(2, 50):
        delivery.receive(event(f"a{number}"), 0.0)
    assert delivery.buffered == 3


def test_a_removal_that_was_refused_lets_the_topic_go_on() -> None:
    delivery = of("a")
    delivery.change_asked(["a"])
    delivery.receive(event("a2"), 0.0)
    delivery.change_refused(["a"])
    delivery.tick(5.0)
    assert ready(delivery) == ["a2!"]


def test_an_event_with_a_mark_of_ours_is_not_forced_before_its_outcome() -> None:
    delivery = of("ab")
    delivery.change_asked()
    delivery.receive(event("a1", [Mark("s", 2)]), 0.0)
    delivery.tick(9.0)
    assert ready(delivery) == []
    delivery.change_settled(change(2, "ab", "abc", a=0))
    assert ready(delivery) == ["a1"]


def test_left_topics_give_what_waits_up_to_their_end_and_no_more() -> None:
    delivery = of("ab")
    for name in ("a2", "a4"):
        delivery.receive(event(name), 0.0)
    delivery.change_asked(["a"])
    delivery.change_settled(change(2, "ab", "b", a=3))
    assert ready(delivery) == ["a2!"]
    assert delivery.topics == ["b"]
    delivery.receive(event("a3"), 0.0)
    assert ready(delivery) == []
    assert delivery.buffered == 0


def test_what_a_pending_change_may_gain_again_is_kept() -> None:
    delivery = of("a")
    delivery.change_asked(["a"])
    delivery.change_asked()
    delivery.receive(event("a3"), 0.0)
    delivery.change_settled(change(2, "a", "", a=1))
    delivery.change_settled(change(3, "", "a", a=2))
    assert ready(delivery) == ["a3"]


def test_an_event_behind_one_that_must_wait_has_no_deadline() -> None:
    delivery = of("a")
    delivery.change_asked()
    delivery.receive(event("a2", [Mark("s", 2)]), 0.0)
    delivery.receive(event("a3"), 0.0)
    assert delivery.next_deadline() is None


def test_what_waited_for_a_change_that_is_refused_is_not_kept_until_its_time_is_up() -> None:
    delivery = of("ab")
    delivery.change_asked()
    delivery.receive(event("a1", [EVERYBODY_ASKS]), 0.0)
    delivery.receive(event("b1", a=1), 0.0)
    assert ready(delivery) == []
    delivery.change_refused()
    assert ready(delivery) == ["a1", "b1"]
