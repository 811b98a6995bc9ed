"""Over an ENS that loses events: in order if it can be, tagged if it is not, bounded always."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import EVERYBODY_ASKS, Change, ChangeMark
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.buffer import Arrival


def change(version: int, old: str, new: str, **entries: int) -> Change:
    return Change("s", version, tuple(old), tuple(new), 2, True, entries)


def event(name: str, marks: list[ChangeMark] | None = None, **entries: int) -> Arrival:
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


def test_a_buffer_full_of_bytes_gives_its_oldest_event() -> None:
    delivery = BestEffort("s", 10, 1.0, buffer_bytes_max=250)
    delivery.change_asked()
    delivery.change_settled(change(1, "", "ab"))
    for name in ("a3", "b2", "a4"):
        arrival = event(name)
        arrival.size = 100
        delivery.receive(arrival, 0.0)
    assert ready(delivery) == ["a3!", "a4"]
    assert (delivery.buffered, delivery.buffered_bytes) == (1, 100)
    huge = event("b3")
    huge.size = 1_000
    delivery.receive(huge, 0.0)
    assert ready(delivery) == ["b2!", "b3"]
    assert (delivery.buffered, delivery.buffered_bytes) == (0, 0)


def test_what_is_dropped_or_forgotten_counts_no_more() -> None:
    delivery = BestEffort("s", 3, 1.0, buffer_bytes_max=1_000)
    delivery.change_asked()
    delivery.change_settled(change(1, "", "a"))
    delivery.change_asked(["a"])
    for number in range(2, 50):
        arrival = event(f"a{number}")
        arrival.size = number
        delivery.receive(arrival, 0.0)
    assert (delivery.buffered, delivery.buffered_bytes) == (3, 47 + 48 + 49)
    delivery.change_settled(change(2, "a", "", a=1), ["a"])
    assert (delivery.buffered, delivery.buffered_bytes) == (0, 0)


@given(st.integers(0, 10_000))
def test_a_vector_is_the_clock_at_its_notification(seed: int) -> None:
    """Whatever is lost, late or left; and it does not change afterwards."""
    random = Random(seed)
    delivery = of("abc", buffer_events_max=random.randint(1, 5))
    held, version, notified = "abc", 1, []
    for now in range(random.choice((40, 1_500))):
        if random.random() < 0.05:
            new = "".join(topic for topic in "abcd" if random.random() < 0.7)
            version += 1
            delivery.change_asked(sorted(set(held) - set(new)))
            starts = {topic: delivery.clock.get(topic, 0) + random.randint(0, 9) for topic in "abcd"}
            delivery.change_settled(change(version, held, new, **starts), sorted(set(held) - set(new)))
            delivery.take_ready()
            held = new
        arrival = event(f"{random.choice('abcd')}1")
        arrival.number = max(
            1, delivery.clock.get(arrival.topic, 0) + random.randint(-3, 700 if random.random() < 0.1 else 4)
        )
        clock = dict(delivery.clock)
        delivery.receive(arrival, float(now))
        for notification in delivery.take_ready():
            topic, number = notification.arrival.topic, notification.arrival.number
            clock[topic] = max(clock[topic], number)
            notified.append((notification, dict(clock)))
    assert [dict(notification.vector) for notification, _ in notified] == [clock for _, clock in notified]


def test_vectors_share_what_they_have_in_common() -> None:
    """Else each event would cost a copy of the whole clock."""
    delivery = of("ab")
    for name in ("a1", "b1", "a5", "a2"):
        delivery.receive(event(name), 0.0)
        delivery.tick(5.0)
    notifications = delivery.take_ready()
    assert len({id(notification.vector._base) for notification in notifications}) == 1
    assert [dict(n.vector) for n in notifications] == [
        {"a": 1, "b": 0}, {"a": 1, "b": 1}, {"a": 5, "b": 1}, {"a": 5, "b": 1},
    ]  # fmt: skip


def test_a_vector_does_not_have_the_topics_that_were_left_before() -> None:
    delivery = of("abc")
    for name in ("a2", "b2"):
        delivery.receive(event(name), 0.0)
    delivery.change_asked(["a", "b"])
    delivery.change_settled(change(2, "abc", "cd", a=2, b=2, d=7), ["a", "b"])
    delivery.receive(event("c1"), 0.0)
    assert [dict(n.vector) for n in delivery.take_ready()] == [
        {"a": 2, "b": 0, "c": 0}, {"b": 2, "c": 0}, {"c": 1, "d": 7},
    ]  # fmt: skip


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
    delivery.change_settled(change(2, "a", "", a=1), ["a"])
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
    delivery.receive(event("a1", [ChangeMark("s", 2)]), 0.0)
    delivery.tick(9.0)
    assert ready(delivery) == []
    delivery.change_settled(change(2, "ab", "abc", a=0))
    assert ready(delivery) == ["a1"]


def test_left_topics_give_what_waits_up_to_their_end_and_no_more() -> None:
    delivery = of("ab")
    for name in ("a2", "a4"):
        delivery.receive(event(name), 0.0)
    delivery.change_asked(["a"])
    delivery.change_settled(change(2, "ab", "b", a=3), ["a"])
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
    delivery.change_settled(change(2, "a", "", a=1), ["a"])
    delivery.change_settled(change(3, "", "a", a=2))
    assert ready(delivery) == ["a3"]


def test_an_event_behind_one_that_must_wait_has_no_deadline() -> None:
    delivery = of("a")
    delivery.change_asked()
    delivery.receive(event("a2", [ChangeMark("s", 2)]), 0.0)
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
