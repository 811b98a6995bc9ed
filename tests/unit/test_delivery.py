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


def sized(name: str, size: int) -> Arrival:
    arrival = event(name)
    arrival.size = size
    return arrival


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


def test_topics_that_are_gained_together_share_one_baseline() -> None:
    """A thousand of them would have a million entries otherwise; without an order between topics there is none."""
    delivery = delivery_of("abc", a=1, b=2)
    assert len({id(lane.segment.baseline) for lane in delivery._lanes.values()}) == 1
    for name in ("b3", "a2", "c1"):
        delivery.receive(event(name))
    assert ready(delivery) == ["b3", "a2", "c1"]
    unordered = Delivery("s", order="topic")
    unordered.change_settled(change(1, "", "abc", a=1))
    assert all(lane.segment.is_plain for lane in unordered._lanes.values())


def test_several_gained_topics_all_come_after_what_is_still_being_left() -> None:
    delivery = delivery_of("a")
    delivery.change_settled(change(2, "a", "", a=1))
    delivery.change_settled(change(3, "", "abc", a=3))
    for name in ("b1", "c1", "a4"):
        delivery.receive(event(name))
    assert ready(delivery) == []
    delivery.receive(event("a1"))
    assert sorted(ready(delivery)) == ["a1", "a4", "b1", "c1"]


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
    delivery.change_settled(change(2, "ab", "a", a=1, b=0), ["b"])
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
    with pytest.raises(
        BufferOverflow, match=r"limit is 2 events \(buffer_events_max\).*It waits for: 'a' for its number 1"
    ):
        delivery.receive(event("a4"))


def test_a_buffer_is_bounded_in_bytes_too() -> None:
    delivery = Delivery("s", buffer_bytes_max=250)
    delivery.change_settled(change(1, "", "a"))
    for name in ("a2", "a3"):
        delivery.receive(sized(name, 100))
    delivery.receive(sized("a2", 100))
    with pytest.raises(BufferOverflow, match=r"with 300 bytes.*250 bytes \(buffer_bytes_max\).*'a' for its number 1"):
        delivery.receive(sized("a4", 100))


def test_the_event_that_frees_a_buffer_full_of_bytes_is_taken() -> None:
    delivery = Delivery("s", buffer_bytes_max=250)
    delivery.change_settled(change(1, "", "a"))
    for name in ("a2", "a3", "a1"):
        delivery.receive(sized(name, 120))
    assert (ready(delivery), delivery.buffered_bytes) == (["a1", "a2", "a3"], 0)


def test_what_a_change_may_gain_counts_in_bytes_until_it_is_refused() -> None:
    delivery = Delivery("s", buffer_bytes_max=250)
    delivery.change_asked()
    delivery.receive(sized("a1", 200))
    with pytest.raises(BufferOverflow, match="buffer_bytes_max"):
        delivery.receive(sized("a2", 200))
    delivery.change_refused()
    assert (delivery.buffered, delivery.buffered_bytes) == (0, 0)


@given(st.integers(0, 10_000))
def test_what_waits_is_counted_exactly_whatever_happens(seed: int) -> None:
    """Events and bytes, while topics come and go, events come twice, and with a full timestamp the second time."""
    random = Random(seed)
    delivery = Delivery("s", order=random.choice(("total", "topic")))
    held, version, counts = "", 0, dict.fromkeys("abc", 0)
    for _ in range(60):
        if random.random() < 0.2:
            new = "".join(topic for topic in "abc" if random.random() < 0.6)
            delivery.change_asked(sorted(set(held) - set(new)))
            if random.random() < 0.3:
                delivery.change_refused(sorted(set(held) - set(new)))
            else:
                version += 1
                counts = {topic: count + random.randint(0, 4) for topic, count in counts.items()}
                delivery.change_settled(change(version, held, new, **counts))
                held = new
        elif random.random() < 0.2:
            delivery.change_asked()
        topic = random.choice("abc")
        full, number = random.random() < 0.5, counts[topic] + random.randint(-5, 5)
        arrival = Arrival(topic, max(number, 1), {random.choice("abc"): random.randint(0, 5)}, [], full)
        arrival.size = random.randint(0, 9)
        delivery.receive(arrival)
        kept = [lane.waiting for lane in delivery._lanes.values()] + list(delivery._stash.values())
        waiting = [arrival for arrivals in kept for arrival in arrivals.values()]
        assert (delivery.buffered, delivery.buffered_bytes) == (len(waiting), sum(a.size for a in waiting))


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
