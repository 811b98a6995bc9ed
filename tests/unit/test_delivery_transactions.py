"""The delivery buffer: a total subscription is notified of a transaction in one go."""

from __future__ import annotations

from random import Random

import pytest

from ordered_pubsub.core.messages import EVERYBODY_ASKS, Change, ChangeMark, Transaction
from ordered_pubsub.core.recovery.missing import GCT_S, Missing
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery, Order


def delivery_of(
    topics: str, order: Order = "total", missing: Missing | None = None, events_max: int = 1_000
) -> Delivery:
    delivery = Delivery("s", events_max, order=order, missing=missing)
    delivery.change_asked()
    delivery.change_settled(Change("s", 1, (), tuple(topics), 2, False))
    return delivery


def event(name: str, transaction: Transaction | str = "", **entries: int) -> Arrival:
    """`event("a3", b=2)`: number 3 of topic a, after number 2 of topic b."""
    return Arrival(name[0], int(name[1:]), entries, transaction=transaction)


def ready(delivery: Delivery) -> list[str]:
    delivery.check_invariants()
    return [f"{n.arrival.topic}{n.arrival.number}" for n in delivery.take_ready()]


THREE = Transaction("2.7", {"a": (2, 3), "b": (1, 1)})
"""Written in the order a2, b1, a3."""


def three() -> list[Arrival]:
    return [event("a2", THREE), event("b1", THREE, a=2), event("a3", "2.7", b=1)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_of_it_comes_before_all_of_it_is_here(seed: int) -> None:
    delivery = delivery_of("abc")
    arrivals = [event("a1"), *three(), event("c1", a=3, b=1), event("a4", c=1)]
    Random(seed).shuffle(arrivals)
    told: list[str] = []
    for arrival in arrivals:
        delivery.receive(arrival)
        found = ready(delivery)
        assert len({"a2", "b1", "a3"} & set(found)) in (0, 3), "it is torn"
        told += found
    assert told == ["a1", "a2", "b1", "a3", "c1", "a4"]
    assert delivery.buffered == 0


def test_what_the_subscription_does_not_hold_is_not_waited_for() -> None:
    delivery = delivery_of("a")
    a2, _, a3 = three()
    for arrival in (event("a1"), a2):
        delivery.receive(arrival)
    assert ready(delivery) == ["a1"]
    delivery.receive(a3)
    assert ready(delivery) == ["a2", "a3"]


@pytest.mark.parametrize("order", ["pairwise", "topic"])
def test_other_orders_are_told_its_name_and_wait_for_nothing(order: Order) -> None:
    delivery = delivery_of("ab", order)
    for arrival in (event("a1"), three()[0]):
        delivery.receive(arrival)
    assert [n.arrival.transaction_id for n in delivery.take_ready()] == ["", "2.7"]


def test_silence_counts_as_here() -> None:
    """What a filter leaves out is told of as silence."""
    delivery = delivery_of("ab")
    a2, _, a3 = three()
    for arrival in (event("a1"), a2, a3):
        delivery.receive(arrival)
    assert ready(delivery) == ["a1"]
    delivery.receive(Arrival("b", 1, {"a": 2}, last=1, is_logged=True, transaction=THREE))
    assert ready(delivery) == ["a2", "a3"]


def test_what_lacks_of_it_is_asked_for() -> None:
    """Its first event says that the others exist."""
    missing = Missing()
    delivery = delivery_of("ab", missing=missing)
    for arrival in (event("a1"), three()[0]):
        delivery.receive(arrival)
    delivery.take_ready()
    wants = missing.take_due(GCT_S)
    assert [(want.topic, want.first, want.last) for want in wants] == [("a", 3, 3), ("b", 1, 1)]


def test_an_event_of_it_that_waits_for_a_change_holds_all_of_it() -> None:
    delivery = delivery_of("ab")
    delivery.change_asked()
    a2, b1, a3 = three()
    b1.marks = [EVERYBODY_ASKS]
    for arrival in (event("a1"), a2, b1, a3):
        delivery.receive(arrival)
    assert ready(delivery) == ["a1"]
    delivery.change_refused()
    assert ready(delivery) == ["a2", "b1", "a3"]


@pytest.mark.parametrize("forged", [{"marks": [ChangeMark("s", 9)]}, {"entries": {"a": 3}}, {"entries": {"c": 99}}])
def test_one_of_it_that_could_never_be_next_is_asked_for_at_its_log(forged: dict[str, object]) -> None:
    """Somebody who has the keys has made it wait; the log's takes its place."""
    missing = Missing()
    delivery = delivery_of("abc", missing=missing)
    a2, b1, a3 = three()
    for arrival in (
        event("a1"),
        a2,
        Arrival(**{"topic": "b", "number": 1, "entries": {}, "transaction": THREE, **forged}),
        a3,
    ):
        delivery.receive(arrival)
    assert ready(delivery) == ["a1"]
    assert ("b", 1, 1) in [(want.topic, want.first, want.last) for want in missing.take_due(0.0)]
    b1.is_logged = True
    delivery.receive(b1)
    assert ready(delivery) == ["a2", "b1", "a3"]


def test_one_that_is_larger_than_half_the_buffer_comes_event_by_event() -> None:
    """It is nobody's choice to stop a subscription of somebody else: each event has its name."""
    large = Transaction("1.1", {"a": (1, 600)})
    delivery = delivery_of("a")
    delivery.receive(event("a1", large))
    assert [n.arrival.transaction_id for n in delivery.take_ready()] == ["1.1"]


def test_when_the_buffer_is_full_of_it_it_comes_event_by_event() -> None:
    """In bytes it may be larger than the buffer, however few events it has."""
    delivery = delivery_of("ab", missing=Missing())
    delivery.buffer_bytes_max = 100
    both = Transaction("1.1", {"a": (1, 4), "b": (1, 1)})
    told: list[str] = []
    for number in range(1, 5):
        arrival = event(f"a{number}", both if number == 1 else "1.1")
        arrival.size = 40
        delivery.receive(arrival)
        told += ready(delivery)
    assert told == ["a1", "a2", "a3", "a4"]


def test_when_the_buffer_is_full_what_comes_later_goes_and_it_stays() -> None:
    missing = Missing()
    delivery = delivery_of("ab", missing=missing, events_max=10)
    both = Transaction("1.1", {"a": (1, 2), "b": (1, 1)})
    for arrival in (event("a1", both), event("a2", "1.1")):
        delivery.receive(arrival)
    for number in range(3, 40):
        delivery.receive(event(f"a{number}", b=1) if number == 3 else event(f"a{number}"))
    assert ready(delivery) == []
    delivery.receive(event("b1", both, a=2))
    assert ready(delivery)[:3] == ["a1", "a2", "b1"]


def test_what_comes_again_and_again_is_looked_at_once() -> None:
    delivery = delivery_of("ab")
    a2, _, a3 = three()
    for arrival in (event("a1"), a2, *[event("a3", "2.7", b=1) for _ in range(50)], a3):
        delivery.receive(arrival)
    assert ready(delivery) == ["a1"]
    assert "1 more events of transaction 2.7" in delivery.waiting_for()


def test_numbers_that_lie_between_two_stretches_of_a_topic_are_nobodys() -> None:
    """It was left and gained again within the transaction's numbers: no stage writes that, somebody who has the keys may."""
    delivery = delivery_of("ab")
    delivery.change_asked(("b",))
    delivery.change_settled(Change("s", 2, ("a", "b"), ("a",), 2, False, {"b": 1}), ("b",))
    delivery.change_asked()
    delivery.change_settled(Change("s", 3, ("a",), ("a", "b"), 2, False, {"b": 3}))
    odd = Transaction("1.1", {"a": (1, 1), "b": (1, 4)})
    for arrival in (event("b1", odd), event("b4", "1.1"), event("a1", odd)):
        delivery.receive(arrival)
    assert sorted(ready(delivery)) == ["a1", "b1", "b4"]


def test_who_goes_on_in_the_middle_has_the_rest_in_one_go() -> None:
    """A log says of each event what takes its place together with it, since any may be the first that is needed."""
    delivery = Delivery("s", 1_000)
    delivery.begin_at({"a": 2, "b": 0})
    delivery.receive(Arrival("a", 3, {"b": 1}, full=True, is_logged=True, transaction=THREE))
    assert ready(delivery) == []
    delivery.receive(Arrival("b", 1, {"a": 2}, full=True, is_logged=True, transaction=THREE))
    assert ready(delivery) == ["b1", "a3"]


def test_what_was_asked_for_in_vain_is_asked_for_again() -> None:
    """The broker brings it once more, whatever it is, and nothing seems to lack: it is looked at again now and then."""
    missing = Missing()
    delivery = delivery_of("ab", missing=missing)
    a2, _, a3 = three()
    forged = Arrival("b", 1, {}, [ChangeMark("s", 9)], transaction=THREE)
    for arrival in (event("a1"), a2, forged, a3):
        delivery.receive(arrival)
    delivery.take_ready()
    missing.take_due(0.0)
    missing.came("b", 1, 1)
    assert missing.take_due(1.0) == []
    delivery.doubt_stalled()
    assert ("b", 1, 1) in [(want.topic, want.first, want.last) for want in missing.take_due(1.0)]
