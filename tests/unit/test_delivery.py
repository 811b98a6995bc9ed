"""The delivery buffer: who is next, who wakes whom, and what a change of the subscription does."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.buffer import Arrival
from ordered_pubsub.core.delivery import Delivery
from ordered_pubsub.core.messages import EVERYBODY_ASKS, Change, Mark
from ordered_pubsub.errors import BufferOverflow


def change(version: int, old: str, new: str, **entries: int) -> Change:
    return Change("s", version, tuple(old), tuple(new), 2, False, entries)


def event(name: str, marks: list[Mark] | None = None, full: bool = False, **entries: int) -> Arrival:
    """`event("a3", b=2)`: number 3 of topic a, after number 2 of topic b."""
    return Arrival(name[0], int(name[1:]), entries, marks or [], full)


def delivery_of(topics: str, **entries: int) -> Delivery:
    delivery = Delivery("s")
    delivery.change_asked()
    delivery.change_settled(change(1, "", topics, **entries))
    return delivery


def ready(delivery: Delivery) -> list[str]:
    return [f"{n.arrival.topic}{n.arrival.number}" for n in delivery.take_ready()]


def test_events_of_a_topic_come_in_their_numbers_order_and_once() -> None:
    delivery = delivery_of("a")
    for name in ("a2", "a1", "a1", "a2", "a3", "a1"):
        delivery.receive(event(name))
    assert ready(delivery) == ["a1", "a2", "a3"]
    assert delivery.buffered == 0


def test_an_event_waits_for_what_its_timestamp_mentions() -> None:
    delivery = delivery_of("ab")
    delivery.receive(event("a1", b=2))
    delivery.receive(event("b2"))
    assert ready(delivery) == []
    delivery.receive(event("b1"))
    assert ready(delivery) == ["b1", "b2", "a1"]


def test_topics_that_are_not_held_are_not_waited_for() -> None:
    delivery = delivery_of("a")
    delivery.receive(event("a1", b=7))
    assert ready(delivery) == ["a1"]


def test_what_came_before_the_start_is_dropped() -> None:
    delivery = delivery_of("a", a=5)
    for name in ("a4", "a5", "a6"):
        delivery.receive(event(name))
    assert ready(delivery) == ["a6"]


def test_a_gained_topics_first_event_waits_for_the_baseline() -> None:
    delivery = delivery_of("a")
    delivery.change_settled(change(2, "a", "ab", a=2, b=4))
    delivery.receive(event("b5"))
    assert ready(delivery) == []
    delivery.receive(event("a1"))
    delivery.receive(event("a2"))
    assert ready(delivery) == ["a1", "a2", "b5"]


def test_a_left_topic_is_notified_up_to_its_end_and_not_waited_for_beyond() -> None:
    delivery = delivery_of("ab")
    delivery.change_settled(change(2, "ab", "a", a=0, b=2))
    delivery.receive(event("a1", b=3))
    assert ready(delivery) == []
    for name in ("b1", "b2", "b3"):
        delivery.receive(event(name))
    assert ready(delivery) == ["b1", "b2", "a1"]
    assert delivery.take_left() == ["b"]
    assert delivery.clock == {"a": 1}


def test_a_topic_left_and_gained_again_goes_on_at_its_new_start() -> None:
    delivery = delivery_of("ab")
    delivery.change_settled(change(2, "ab", "a", b=1))
    delivery.change_settled(change(3, "a", "ab", b=4))
    for name in ("b5", "b3", "b2", "b1"):
        delivery.receive(event(name))
    assert ready(delivery) == ["b1", "b5"]
    assert delivery.buffered == 0


def test_a_topic_that_was_gained_again_was_not_left() -> None:
    """Who unsubscribed at the ENS then would never see the last events before the second end."""
    delivery = delivery_of("a")
    delivery.change_settled(change(2, "a", "", a=0))
    delivery.change_settled(change(3, "", "a", a=1))
    delivery.change_settled(change(4, "a", "", a=2))
    assert delivery.take_left() == []
    delivery.receive(event("a2"))
    assert (ready(delivery), delivery.take_left()) == (["a2"], ["a"])


def test_what_is_gained_comes_after_what_is_still_being_left() -> None:
    delivery = delivery_of("a")
    delivery.change_settled(change(2, "a", "", a=1))
    delivery.change_settled(change(3, "", "b", b=0))
    delivery.receive(event("b1"))
    assert ready(delivery) == []
    delivery.receive(event("a1"))
    assert ready(delivery) == ["a1", "b1"]


def test_an_event_with_a_mark_of_ours_waits_for_the_changes_outcome() -> None:
    delivery = delivery_of("ab")
    delivery.change_asked(["b"])
    delivery.receive(event("b1", [Mark("s", 2)]))
    delivery.receive(event("a1", [Mark("other", 9)]))
    assert ready(delivery) == ["a1"]
    delivery.change_settled(change(2, "ab", "a", a=1, b=0))
    assert ready(delivery) == []
    assert delivery.buffered == 0


def test_a_mark_that_asks_everybody_holds_those_who_have_a_change_under_way() -> None:
    delivery = delivery_of("a")
    delivery.receive(event("a1", [EVERYBODY_ASKS]))
    assert ready(delivery) == ["a1"]
    delivery.change_asked()
    delivery.receive(event("a2", [EVERYBODY_ASKS]))
    assert ready(delivery) == []
    delivery.change_refused()
    assert ready(delivery) == ["a2"]


def test_what_waited_for_a_change_that_is_refused_wakes_what_waits_for_it() -> None:
    delivery = delivery_of("ab")
    delivery.change_asked()
    delivery.receive(event("b1", a=1))
    delivery.receive(event("a1", [EVERYBODY_ASKS]))
    delivery.receive(event("a2", b=1))
    assert ready(delivery) == []
    delivery.change_refused()
    assert ready(delivery) == ["a1", "b1", "a2"]
    assert delivery.buffered == 0


def test_events_that_come_before_the_answer_are_kept_for_it() -> None:
    delivery = Delivery("s")
    delivery.receive(event("a1"))
    delivery.change_asked()
    delivery.receive(event("a2"))
    delivery.receive(event("a3"))
    delivery.change_settled(change(1, "", "a", a=2))
    assert ready(delivery) == ["a3"]
    assert delivery.buffered == 0


def test_outcomes_take_effect_in_the_order_of_their_versions_one_at_a_time() -> None:
    delivery = delivery_of("ab")
    for _ in range(2):
        delivery.change_asked()
    delivery.receive(event("a1"))
    delivery.receive(event("a2", [Mark("s", 2), Mark("s", 3)]))
    delivery.change_settled(change(3, "ab", "b", a=1, b=0))
    assert ready(delivery) == ["a1"]
    delivery.change_settled(change(2, "ab", "ab", a=1, b=0))
    assert ready(delivery) == []
    assert delivery.topics == ["b"]


def test_who_begins_at_a_given_clock_waits_for_full_timestamps_first() -> None:
    delivery = Delivery("s")
    delivery.begin_at({"a": 3, "b": 0})
    delivery.receive(event("a4"))
    assert ready(delivery) == []
    assert "its full timestamp" in delivery.waiting_for()
    delivery.receive(event("a4", full=True, b=1))
    delivery.receive(event("a5"))
    delivery.receive(event("b1", full=True))
    assert ready(delivery) == ["b1", "a4", "a5"]


def test_positions_count_and_vectors_are_the_clock_at_each_notification() -> None:
    delivery = delivery_of("ab", b=5)
    for name in ("a1", "b6", "a2"):
        delivery.receive(event(name))
    notifications = delivery.take_ready()
    assert [n.position for n in notifications] == [1, 2, 3]
    assert [dict(n.vector) for n in notifications] == [{"a": 1, "b": 5}, {"a": 1, "b": 6}, {"a": 2, "b": 6}]


def test_a_topic_subscription_orders_each_topic_by_itself_and_has_no_positions() -> None:
    delivery = Delivery("s", order="topic")
    delivery.change_settled(change(1, "", "ab"))
    delivery.receive(event("a1", b=3))
    (notification,) = delivery.take_ready()
    assert notification.position is None


def test_a_full_buffer_stops_with_what_it_waits_for() -> None:
    delivery = Delivery("s", buffer_events_max=2)
    delivery.change_settled(change(1, "", "a"))
    delivery.receive(event("a2"))
    delivery.receive(event("a3"))
    with pytest.raises(BufferOverflow, match=r"limit is 2. It waits for: 'a' for its number 1"):
        delivery.receive(event("a4"))


def test_the_event_that_frees_a_full_buffer_is_taken() -> None:
    delivery = Delivery("s", buffer_events_max=2)
    delivery.change_settled(change(1, "", "a"))
    for name in ("a2", "a3", "a1"):
        delivery.receive(event(name))
    assert ready(delivery) == ["a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("received", "says"),
    [
        ([], "nothing"),
        ([event("a2")], "'a' for its number 1"),
        ([event("a1", b=2)], r"'a' number 1 for number 2 of 'b' \(now 0\)"),
        ([event("a1", [Mark("s", 9)])], "'a' number 1 for the outcome of a change"),
    ],
)
def test_it_says_in_words_what_it_waits_for(received: list[Arrival], says: str) -> None:
    delivery = delivery_of("ab")
    for arrival in received:
        delivery.receive(arrival)
    assert re.search(says, delivery.waiting_for())


@given(st.integers(0, 10_000))
def test_any_arrival_order_gives_the_same_notifications(seed: int) -> None:
    """One history of a single stage, as its deltas would tell it, arrives shuffled and partly twice."""
    random = Random(seed)
    counts = dict.fromkeys("abcd", 0)
    told: dict[str, dict[str, int]] = {topic: {} for topic in counts}
    history = []
    for _ in range(random.randint(1, 40)):
        topic = random.choice("abcd")
        entries = {other: n for other, n in counts.items() if n and other != topic and told[topic].get(other) != n}
        told[topic].update(entries)
        counts[topic] += 1
        history.append(event(f"{topic}{counts[topic]}", **entries))
    delivery = delivery_of("abcd")
    for arrival in random.sample(history + history[::3], len(history + history[::3])):
        delivery.receive(arrival)
    assert ready(delivery) == [f"{arrival.topic}{arrival.number}" for arrival in history]
    assert delivery.waiting_for() == "nothing"
