"""Several threads read one subscription: what one of them has not handled is not acknowledged, however far the others are."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from helpers.clients import PATIENCE_S
from helpers.threads import Beside, take, until
from ordered_pubsub import sync
from ordered_pubsub.errors import UsageError


@pytest.fixture
def market(url: str) -> Iterator[sync.Client]:
    with sync.connect(url) as client:
        yield client


def next_of(url: str) -> int:
    """Where a subscription goes on when its client comes again."""
    with sync.connect(url, name="desk") as client:
        event = client.subscribe(name="book").next(PATIENCE_S)
        assert event is not None
        return int(event.number)


def unacknowledged(book: sync.Subscription) -> int:
    return int(book.status()["unacknowledged"])


def test_what_another_thread_works_on_is_not_acknowledged(url: str, market: sync.Client) -> None:
    with sync.connect(url, name="desk") as client:
        book = client.subscribe("a", name="book")
        market.publish_many("a", range(5))
        has_one, may_end = threading.Event(), threading.Event()

        def work_long() -> None:
            take(book, 1)
            has_one.set()
            may_end.wait(PATIENCE_S)

        slow = Beside(work_long)
        has_one.wait(PATIENCE_S)
        take(book, 4)

    assert next_of(url) == 1
    may_end.set()
    slow.outcome()


def test_when_it_has_handled_that_all_that_was_handled_is_acknowledged(url: str, market: sync.Client) -> None:
    with sync.connect(url, name="desk") as client:
        book = client.subscribe("a", name="book")
        market.publish_many("a", range(5))
        has_one, may_go_on = threading.Event(), threading.Event()

        def work_long() -> None:
            take(book, 1)
            has_one.set()
            may_go_on.wait(PATIENCE_S)
            take(book, 1)

        slow = Beside(work_long)
        has_one.wait(PATIENCE_S)
        take(book, 3)
        may_go_on.set()
        slow.outcome()
        until(lambda: unacknowledged(book) == 2)  # 4, which this thread has in hand, and 5, which that one has had

    assert next_of(url) == 4


def test_a_thread_that_ends_has_not_handled_what_it_had_taken(url: str, market: sync.Client) -> None:
    """Another thread may get its number."""
    with sync.connect(url, name="desk") as client:
        book = client.subscribe("a", name="book")
        market.publish_many("a", range(5))
        Beside(lambda: take(book, 1)).outcome()
        Beside(lambda: take(book, 2)).outcome()
        take(book, 2)

    assert next_of(url) == 1


def test_of_batches_the_whole_is_in_hand(url: str, market: sync.Client) -> None:
    with sync.connect(url, name="desk") as client:
        book = client.subscribe("a", name="book")
        market.publish_many("a", range(6))
        batches = book.batches(2, max_wait_s=PATIENCE_S)
        next(batches)
        Beside(lambda: next(book.batches(2, max_wait_s=PATIENCE_S))).outcome()
        next(batches)

    assert next_of(url) == 3


def test_what_is_not_acknowledged_is_bounded(url: str, market: sync.Client) -> None:
    with sync.connect(url, name="desk", unacknowledged_events_max=3) as client:
        book = client.subscribe("a", name="book", ack="manual")
        market.publish_many("a", range(5))
        events = take(book, 3)
        until(lambda: "acknowledgements" in book.status()["waiting_for"])
        book.commit(events[-1].vector)

        assert [event.data for event in take(book, 2)] == [3, 4]


# -- one name ---------------------------------------------------------------------------------------------------------


def test_of_two_threads_that_open_a_name_at_once_one_has_it_and_the_other_one_an_error(
    url: str, market: sync.Client
) -> None:
    with sync.connect(url, name="desk") as client:
        both = threading.Barrier(2)

        def subscribe() -> sync.Subscription | Exception:
            both.wait(PATIENCE_S)
            try:
                return client.subscribe("a", name="book")
            except UsageError as error:
                return error

        outcomes = [thread.outcome() for thread in [Beside(subscribe), Beside(subscribe)]]
        (book,) = [one for one in outcomes if isinstance(one, sync.Subscription)]
        (error,) = [one for one in outcomes if isinstance(one, UsageError)]
        market.publish("a", 1)

        assert "subscription 'book'" in str(error)
        assert [event.data for event in take(book, 1)] == [1]
