"""The blocking face takes events: one by one, in batches, by several threads, and to the end."""

from __future__ import annotations

import pytest

from helpers.clients import PATIENCE_S, names
from helpers.threads import Beside, GatedAdapter, take, until
from ordered_pubsub import errors, sync


def test_iteration_is_in_one_order_over_all_topics(url: str) -> None:
    """Over an ENS that reorders, in two clients."""
    with sync.connect(f"{url}?reorder=0.5&seed=3") as client, sync.connect(url) as other:
        subscriptions = [one.subscribe("a", "b") for one in (client, other)]
        for number in range(200):
            client.publish_nowait("ab"[number % 2], number)

        taken = [take(subscription, 200) for subscription in subscriptions]

        assert names(taken[0]) == names(taken[1])
        assert [event.position for event in taken[0]] == list(range(1, 201))


def test_iteration_ends_after_unsubscribe(client: sync.Client) -> None:
    """With all events before that place."""
    subscription = client.subscribe("a")
    client.publish_many("a", range(10))
    subscription.unsubscribe()
    client.publish("a", 10)

    assert [event.data for event in subscription] == list(range(10))
    assert list(subscription) == []
    assert subscription.next(0) is None


def test_next_waits_no_longer_than_it_is_told(client: sync.Client) -> None:
    """And what comes later is not lost, though it had been asked for."""
    subscription = client.subscribe("a")
    with pytest.raises(errors.Timeout, match=r"no event .* within 0.01 s"):
        subscription.next(0.01)
    with pytest.raises(errors.Timeout):
        subscription.next(0)
    client.publish("a", 1)

    assert take(subscription, 1)[0].data == 1
    client.publish("a", 2)
    assert next(subscription).data == 2


def test_threads_share_a_subscription(client: sync.Client) -> None:
    """Each event goes to one of them, and each of them sees the order."""
    subscription = client.subscribe("a")
    threads = [Beside(lambda: [event.position for event in subscription]) for _ in range(3)]
    client.publish_many("a", range(3_000))
    subscription.unsubscribe()
    shares = [thread.outcome() for thread in threads]

    assert sorted(position for share in shares for position in share) == list(range(1, 3_001))
    assert all(share == sorted(share) for share in shares)


def test_batches_are_what_there_is(client: sync.Client) -> None:
    """Up to a number, and to the end."""
    subscription = client.subscribe("a")
    client.publish_many("a", range(25))
    subscription.unsubscribe()

    batches = [[event.data for event in batch] for batch in subscription.batches(max_events=10, max_wait_s=PATIENCE_S)]

    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_a_batch_does_not_wait_for_more_than_is_allowed(client: sync.Client) -> None:
    """One event is a batch."""
    batches = client.subscribe("a").batches(max_wait_s=0.01)
    client.publish("a", 1)

    assert [event.data for event in next(batches)] == [1]


def test_clock_and_lag_count_what_the_application_has_taken(client: sync.Client) -> None:
    """Though more has been brought to this thread already."""
    subscription = client.subscribe("a", "b")
    client.publish_many("a", range(5))
    client.publish_many("b", range(5))
    until(lambda: subscription.lag.unread == 10)
    assert subscription.clock == {"a": 0, "b": 0}
    take(subscription, 1)

    assert subscription.clock == {"a": 1, "b": 0}
    assert subscription.lag.unread == 9
    take(subscription, 5)
    assert subscription.clock == {"a": 5, "b": 1}
    (status,) = client.status()["subscriptions"]
    assert (status["clock"], status["unread"]) == ({"a": 5, "b": 1}, 4)
    take(subscription, 4)
    assert (subscription.clock, subscription.lag.unread) == ({"a": 5, "b": 5}, 0)


def test_topics_come_and_go(client: sync.Client) -> None:
    """At one place in the order."""
    subscription = client.subscribe("a")
    subscription.add("b")
    assert sorted(subscription.topics) == ["a", "b"]
    client.publish("b", 1)
    subscription.remove("b")
    client.publish("b", 2)
    client.publish("a", 3)

    assert [event.data for event in take(subscription, 2)] == [1, 3]


def test_closing_drops_what_was_not_read(client: sync.Client) -> None:
    """Also what had been brought to this thread, and a thread that waits is told."""
    subscription = client.subscribe("a")
    client.publish_many("a", range(10))
    take(subscription, 1)
    subscription.close()
    assert list(subscription) == []

    waiting = client.subscribe("a")
    thread = Beside(lambda: list(waiting))
    until(lambda: waiting._bringing is not None)
    waiting.close()
    assert thread.outcome() == []


def test_closing_the_client_ends_everything(url: str) -> None:
    """Threads that iterate end; what is used afterwards says so."""
    client = sync.connect(url)
    subscription = client.subscribe("a")
    client.publish_many("a", range(10))
    take(subscription, 1)
    waiting = client.subscribe("b")
    thread = Beside(lambda: list(waiting))
    until(lambda: waiting._bringing is not None)
    client.close()

    assert thread.outcome() == list(subscription) == []
    client.close()
    subscription.close()
    subscription.wait(0)
    assert (subscription.topics, client.status()["connected"]) == ([], False)
    for call in (
        lambda: client.publish("a", 1),
        lambda: client.publish_nowait("a", 1),
        lambda: client.subscribe("a"),
        lambda: subscription.add("b"),
    ):
        with pytest.raises(errors.Closed):
            call()


def test_closing_waits_for_receipts(url: str) -> None:
    """Nothing that was published is left."""
    with sync.connect(url) as reader:
        subscription = reader.subscribe("a")
        with sync.connect(url) as client:
            futures_ = [client.publish_nowait("a", number) for number in range(1_000)]
        assert all(future.done() for future in futures_)
        assert [event.data for event in take(subscription, 1_000)] == list(range(1_000))


def test_a_thread_that_waits_for_room_is_told_of_the_end(url: str, ordered_topics: None) -> None:
    """Its event was not published."""
    adapter = GatedAdapter(url)
    client = sync.connect(adapter, delivery="ordered", pipeline_events_max=1)
    held = client.publish_nowait("a", 1)
    waiting = Beside(lambda: client.publish("a", 2))
    until(lambda: client._outbox._queue)
    closing = Beside(client.close)
    with pytest.raises(errors.Closed):
        waiting.outcome()
    adapter.open_gate()
    closing.outcome()
    assert held.result(PATIENCE_S).number == 1


def test_closing_says_what_it_had_to_leave(url: str, ordered_topics: None) -> None:
    """The error of the block, if there is one, comes first."""
    client = sync.connect(GatedAdapter(url), delivery="ordered", timeout_s=0.05)
    left = client.publish_nowait("a", 1)
    with pytest.raises(errors.Timeout, match="had to leave"):
        client.close()
    with pytest.raises(errors.Timeout):
        left.result(PATIENCE_S)

    stuck = GatedAdapter(f"{url}2")
    with pytest.raises(ZeroDivisionError), sync.connect(stuck, delivery="ordered", timeout_s=0.05) as client:
        fail(client.publish_nowait("a", 1))


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_a_subscription_is_closed_with_its_block(url: str) -> None:
    """And what stopped it is raised there, unless the block failed."""
    client = sync.connect(url)
    with client.subscribe("a") as subscription:
        client.publish("a", 1)
    assert list(subscription) == []

    with pytest.raises(errors.BufferOverflow), client.subscribe("a") as subscription:
        overflow(subscription)
    with pytest.raises(ZeroDivisionError), client.subscribe("a") as subscription:
        fail(overflow(subscription))
    with pytest.raises(errors.BufferOverflow):
        client.close()  # nobody was told of the second one


def overflow(subscription: sync.Subscription) -> None:
    """Stop a subscription."""

    async def fail() -> None:
        subscription._inner._intake.fail(errors.BufferOverflow("it is full"), "it stops")

    subscription._thread.call(fail())


def test_what_stopped_a_subscription_is_raised_after_what_came_before(client: sync.Client) -> None:
    """By each use, in each thread."""
    subscription = client.subscribe("a")
    client.publish_many("a", range(3))
    until(lambda: subscription.lag.unread == 3)
    overflow(subscription)

    assert [event.data for event in take(subscription, 3)] == [0, 1, 2]
    for call in (subscription.next, lambda: next(subscription), lambda: subscription.next(0), subscription.wait):
        with pytest.raises(errors.BufferOverflow):
            call()
    assert isinstance(subscription.error, errors.BufferOverflow)


def test_a_batch_comes_before_what_stopped_the_subscription(client: sync.Client) -> None:
    """Nothing that was brought is lost by the error."""
    subscription = client.subscribe("a")
    client.publish_many("a", range(3))
    until(lambda: subscription.lag.unread == 3)
    overflow(subscription)
    batches = subscription.batches(max_wait_s=PATIENCE_S)

    assert [event.data for event in next(batches)] == [0, 1, 2]
    with pytest.raises(errors.BufferOverflow):
        next(batches)
