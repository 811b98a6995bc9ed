"""What a subscription says: how far it is, what was handled, and that it is over; and what it acknowledges without an event."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ordered_pubsub.core.messages import VERSION_MAX, Acked, AckSaved, Change, Ended, Progress
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.subscriber.acknowledging import ACK_S
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.subscriber.subscriber import LEFT_FIRST_S, LEFT_MAX, LEFT_MOST_S, Leaving, Subscriber
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.errors import AccessDenied, SessionExpired


def make(is_named: bool = True) -> Subscriber:
    """A subscription that has begun, and wants the even numbers of topic "a"."""
    missing = Missing(lambda topic: True)
    delivery = Delivery("s", missing=missing, wants_of=lambda where: lambda arrival: arrival.number % int(where) == 0)
    subscriber = Subscriber(
        SubscriberLog(delivery, missing, lambda topic: 0, lambda topic, item: []), "session", is_named
    )
    delivery.change_asked(())
    change = Change("s", 1, (), ("a",), 2, False, {"a": 0}, where={"a": "2"})
    subscriber.begin(change, 0.0)
    delivery.change_settled(change, ())
    return subscriber


@pytest.fixture
def subscriber() -> Subscriber:
    return make()


def bring(subscriber: Subscriber, *numbers: int, now: float = 0.0) -> list[int]:
    """The ENS brings events; which of them the application gets."""
    subscriber.arrived([Arrival("a", number, {}) for number in numbers], now)
    ready = subscriber.log.take_ready()
    for notification in ready:
        subscriber.in_hand.take(notification, "task")
    return [notification.arrival.number for notification in ready]


def handle(subscriber: Subscriber, now: float) -> None:
    """The application has handled what it has in hand."""
    place = subscriber.in_hand.ask("task")
    assert place is not None
    subscriber.handled(place, now)


def acked(subscriber: Subscriber, now: float, has_unread: bool = False) -> dict[str, int] | None:
    """What is acknowledged now, if anything is."""
    said = [said for said in subscriber.take_due(now, has_unread=has_unread) if isinstance(said, Acked)]
    return said[-1].clock if said else None


def test_what_a_filter_leaves_out_is_acknowledged_when_everything_else_was_handled(subscriber: Subscriber) -> None:
    assert bring(subscriber, 1, 2, 3) == [2]
    handle(subscriber, 0.0)

    assert (acked(subscriber, 0.0), acked(subscriber, ACK_S)) == (None, {"a": 3})


def test_without_any_event_it_is_acknowledged_a_little_later(subscriber: Subscriber) -> None:
    assert bring(subscriber, 1, now=5.0) == []
    assert acked(subscriber, 5.0) is None
    assert subscriber.next_due() == 5.0 + ACK_S

    assert acked(subscriber, 5.0 + ACK_S) == {"a": 1}


def test_what_comes_behind_an_event_in_hand_is_not_acknowledged(subscriber: Subscriber) -> None:
    assert bring(subscriber, 1, 2) == [2]
    assert bring(subscriber, 3) == []

    assert [acked(subscriber, now) for now in (0.0, ACK_S, 9.0)] == [None, None, None]


def test_nor_is_what_comes_behind_an_event_that_nobody_has_taken(subscriber: Subscriber) -> None:
    assert bring(subscriber, 1) == []

    assert [acked(subscriber, now, has_unread=True) for now in (0.0, ACK_S, 9.0)] == [None, None, None]


def test_what_was_acknowledged_is_not_acknowledged_again(subscriber: Subscriber) -> None:
    bring(subscriber, 1)
    subscriber.take_due(0.0)
    assert acked(subscriber, ACK_S) == {"a": 1}
    subscriber.hear(AckSaved("s", "session", 1), ACK_S)

    assert [acked(subscriber, now) for now in (2.0, 9.0)] == [None, None]
    assert (subscriber.saved, subscriber.is_acknowledging, subscriber.next_due()) == (1, False, None)


def test_one_without_a_name_acknowledges_nothing() -> None:
    subscriber = make(is_named=False)
    bring(subscriber, 1)

    assert [acked(subscriber, now) for now in (0.0, ACK_S, 9.0)] == [None, None, None]


def test_only_what_is_news_is_said_and_all_of_it_on_a_new_connection(subscriber: Subscriber) -> None:
    assert subscriber.report(0.0) == Progress("s", {"a": 0}, True, 1)
    assert subscriber.report(1.0) is None
    bring(subscriber, 1)
    assert subscriber.report(2.0) == Progress("s", {"a": 1})
    assert subscriber.report(3.0, is_all=True) == Progress("s", {"a": 1}, True, 1)


def test_what_has_not_changed_is_said_again_after_a_while(subscriber: Subscriber) -> None:
    said_at = [now for now in range(100) if subscriber.report(float(now)) is not None]
    assert said_at == [0, 31, 62, 93]


@pytest.mark.parametrize(
    ("is_named", "code", "error"),
    [(True, "ended", SessionExpired), (False, "expired", SessionExpired), (False, "forbidden", AccessDenied)],
)
def test_the_stage_may_say_that_it_is_over(is_named: bool, code: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="the reason"):
        make(is_named).hear(Ended("s", "session", code, "the reason"), 0.0)


def test_one_without_a_name_is_not_ended_by_what_others_asked_for() -> None:
    make(is_named=False).hear(Ended("s", "session", "ended", ""), 0.0)


def test_when_it_is_over_it_says_and_hears_nothing_more_but_its_last_word(subscriber: Subscriber) -> None:
    bring(subscriber, 1, 2)
    handle(subscriber, 0.0)
    last = subscriber.end()
    assert isinstance(last, Acked)
    assert last.clock == {"a": 2}
    assert subscriber.take_due(99.0) == []
    subscriber.hear(Ended("s", "session", "forbidden", ""), 99.0)
    assert subscriber.seal("a", [(1, 9)], 99.0) == []


def test_what_is_on_disk_is_no_last_word(subscriber: Subscriber) -> None:
    bring(subscriber, 1, 2)
    handle(subscriber, 0.0)
    subscriber.hear(AckSaved("s", "session", 1), 1.0)

    assert subscriber.end() is None


# -- what is over ----------------------------------------------------------------------------------------------------


def test_that_it_is_over_is_said_again_less_and_less_often() -> None:
    leaving = Leaving()
    leaving.leave("s", 0.0)
    said_at = [now for now in range(3_000) if leaving.take_due(float(now))]

    pauses = [later - earlier for earlier, later in pairwise(said_at)]
    assert said_at[0] == 0
    assert pauses == [LEFT_FIRST_S, 60, 120, 240, 480, *[LEFT_MOST_S] * 3]


def test_that_it_is_over_is_said_on_each_new_connection() -> None:
    leaving = Leaving()
    leaving.leave("s", 0.0)
    leaving.take_due(0.0)
    leaving.connected(1.0)

    assert leaving.take_due(1.0) == [Progress("s", {}, True, VERSION_MAX)]


def test_of_one_that_has_begun_again_nobody_is_told_that_it_is_over() -> None:
    leaving = Leaving()
    leaving.leave("desk//book", 0.0)
    leaving.come_again("desk//book")
    leaving.connected(1.0)

    assert leaving.take_due(99.0) == []


def test_of_very_many_that_are_over_the_last_are_remembered() -> None:
    leaving = Leaving()
    for number in range(LEFT_MAX + 5):
        leaving.leave(f"s{number}", 0.0)

    assert len(leaving) == LEFT_MAX
    assert leaving.take_due(0.0)[0].subscription == "s5"
