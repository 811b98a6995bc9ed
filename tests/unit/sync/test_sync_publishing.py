"""The blocking face publishes: what the asynchronous one says, for threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S
from helpers.threads import Beside, GatedAdapter, take, until
from ordered_pubsub import errors, sync


def test_an_event_is_what_its_receipt_says(client: sync.Client) -> None:
    """Topic, number and id are the same on both sides, and the publisher is the client's name."""
    subscription = client.subscribe("a")
    receipt = client.publish("a", {"x": 1}, headers={"kind": "test"})

    (event,) = take(subscription, 1)

    assert (event.topic, event.number, event.id) == (receipt.topic, receipt.number, receipt.id)
    assert (event.data, event.position, event.publisher) == ({"x": 1}, 1, client.name)
    assert event.headers["kind"] == "test"


@pytest.mark.parametrize("data", [{"x": [1, None]}, 7, "text", b"\x00\xff", None])
def test_data_comes_back_as_it_went(client: sync.Client, data: Any) -> None:
    """JSON for mappings, lists, numbers and text; bytes stay bytes."""
    subscription = client.subscribe("a")
    client.publish("a", data)

    assert take(subscription, 1)[0].data == data


def test_the_verbs_take_what_the_asynchronous_ones_take() -> None:
    """The same arguments, with the same defaults."""
    for ours, theirs in (
        [(sync.connect, ordered_pubsub.connect)]
        + [
            (getattr(sync.Client, name), getattr(ordered_pubsub.Client, name))
            for name in ("publish", "publish_nowait", "publish_many", "subscribe", "require", "status", "close")
        ]
        + [
            (getattr(sync.Subscription, name), getattr(ordered_pubsub.Subscription, name))
            for name in ("add", "remove", "unsubscribe", "close", "status", "batches")
        ]
    ):
        mine, others = (inspect.signature(one).parameters.values() for one in (ours, theirs))
        assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in others], ours


def test_a_list_is_published_in_its_order(client: sync.Client) -> None:
    """With one receipt for each."""
    subscription = client.subscribe("a")
    receipts = client.publish_many("a", range(2_500))

    assert [receipt.number for receipt in receipts] == list(range(1, 2_501))
    assert [event.data for event in take(subscription, 2_500)] == list(range(2_500))


def test_a_list_with_one_bad_event_publishes_none(client: sync.Client) -> None:
    """It is refused as a whole."""
    with pytest.raises(errors.UsageError, match="cannot be written as JSON"):
        client.publish_many("a", [1, object()])
    with pytest.raises(errors.UsageError, match="not one str"):
        client.publish_many("a", "abc")

    assert client.publish("a", 1).number == 1


def test_publications_without_waiting_keep_their_order(client: sync.Client) -> None:
    """Also among those that waited."""
    subscription = client.subscribe("a")
    first = [client.publish_nowait("a", number) for number in range(100)]
    receipt = client.publish("a", 100)
    last = client.publish_nowait("a", 101)

    assert [future.result(PATIENCE_S).number for future in first] == list(range(1, 101))
    assert (receipt.number, last.result(PATIENCE_S).number) == (101, 102)
    assert [event.data for event in take(subscription, 102)] == list(range(102))


def test_data_may_change_once_it_is_published(client: sync.Client) -> None:
    """What was given at the call is what is sent."""
    subscription = client.subscribe("a")
    data = {"x": 0}
    for number in range(100):
        data["x"] = number
        client.publish_nowait("a", data)

    assert [event.data["x"] for event in take(subscription, 100)] == list(range(100))


def test_a_full_pipeline_is_said_at_once(url: str, ordered_topics: None) -> None:
    """And what waits gets room when there is some."""
    adapter = GatedAdapter(url)
    with sync.connect(adapter, delivery="ordered", pipeline_events_max=2) as client:
        held = [client.publish_nowait("a", number) for number in range(2)]
        with pytest.raises(errors.WouldBlock, match=r"2 publications .*pipeline_events_max.*use publish\(\)"):
            client.publish_nowait("a", 2)
        waiting = Beside(lambda: client.publish("a", 3))
        assert not any(future.done() for future in held)
        adapter.open_gate()

        assert waiting.outcome().number == 3
        assert [future.result().number for future in held] == [1, 2]


def test_a_pipeline_that_stays_full_is_a_timeout(url: str, ordered_topics: None) -> None:
    """That says what became of the event: nothing."""
    adapter = GatedAdapter(url)
    with sync.connect(adapter, delivery="ordered", pipeline_events_max=1, timeout_s=0.05) as client:
        held = client.publish_nowait("a", 1)
        with pytest.raises(errors.Timeout, match=r"was not published.*timeout_s"):
            client.publish("a", 2)
        adapter.open_gate()
        assert held.result(PATIENCE_S).number == 1
        assert client.publish("a", 3).number == 2


def test_what_is_kept_needs_no_ens_for_its_receipt(url: str) -> None:
    """The stage has it."""
    adapter = GatedAdapter(url)
    with sync.connect(adapter) as client:
        assert client.publish("a", 1).number == 1
        adapter.open_gate()


def test_no_receipt_in_time_is_a_timeout(url: str, ordered_topics: None) -> None:
    """That says what was waited for, and that the outcome is unknown."""
    adapter = GatedAdapter(url)
    with sync.connect(adapter, delivery="ordered", timeout_s=0.05) as client:
        with pytest.raises(errors.Timeout, match=r"waited for .*1 on 'a'.*outcome is unknown"):
            client.publish("a", 1)
        adapter.open_gate()


def test_threads_publish_at_once(client: sync.Client) -> None:
    """Each number is used once, and each thread's events keep their order."""
    subscription = client.subscribe("a")

    def publish(name: str) -> list[int]:
        return [client.publish("a", [name, place]).number for place in range(50)]

    threads = [Beside(lambda name=name: publish(name)) for name in "xyz"]  # type: ignore[misc]  # a bound default
    numbers = [number for thread in threads for number in thread.outcome()]
    events = take(subscription, 150)

    assert sorted(numbers) == list(range(1, 151))
    for name in "xyz":
        assert [event.data[1] for event in events if event.data[0] == name] == list(range(50))


def test_waiting_threads_get_room_in_their_order(url: str, ordered_topics: None) -> None:
    """Nobody is overtaken."""
    adapter = GatedAdapter(url)
    with sync.connect(adapter, delivery="ordered", pipeline_events_max=1) as client:
        subscription = client.subscribe("a")
        first = client.publish_nowait("a", 0)
        threads = []
        for number in range(1, 6):
            threads.append(Beside(lambda number=number: client.publish("a", number)))  # type: ignore[misc]  # as above
            until(lambda number=number: len(client._outbox._queue) == number)  # type: ignore[misc]  # as above
        adapter.open_gate()

        assert first.result(PATIENCE_S).number == 1
        assert [thread.outcome().number for thread in threads] == [2, 3, 4, 5, 6]
        assert [event.data for event in take(subscription, 6)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (errors.TopicError, lambda client: client.publish("", 1)),
        (errors.TopicError, lambda client: client.publish_nowait("a//b", 1)),
        (errors.TopicError, lambda client: client.subscribe("a/*")),
        (errors.UsageError, lambda client: client.subscribe()),
        (errors.UsageError, lambda client: client.publish("a", object())),
        (errors.UsageError, lambda client: client.publish_nowait("a", "x" * (1 << 20))),
        (errors.UsageError, lambda client: client.publish("a", 1, headers={"content-type": "x"})),
        (errors.UsageError, lambda client: client.publish("a", 1, id="")),
        (errors.NotOffered, lambda client: client.subscribe("a", order="topic", delivery="best-effort")),
        (errors.ConfigurationError, lambda client: client.subscribe("a", order="partial")),
        (errors.ConfigurationError, lambda client: client.require(delivery="perhaps")),
        (errors.UsageError, lambda client: client.subscribe("a", notify=1)),
        (errors.UsageError, lambda client: client.subscribe("a").batches(max_events=0)),
        (errors.UsageError, lambda client: client.subscribe("a").remove("b")),
    ],
)
def test_errors_are_those_of_the_asynchronous_face(
    client: sync.Client, kind: type[Exception], call: Callable[[sync.Client], Any]
) -> None:
    """They are raised where the call is, and change nothing."""
    with pytest.raises(kind):
        call(client)

    assert client.publish("a", 1).number == 1


def test_what_cannot_be_connected_leaves_nothing_behind() -> None:
    """No thread either (see the fixture)."""
    with pytest.raises(errors.ConfigurationError, match="no adapter for gopher"):
        sync.connect("gopher://x")
    with pytest.raises(errors.ConfigurationError, match="delivery='at-most-once' does not fit"):
        sync.connect("memory://x", delivery="at-most-once")
    with pytest.raises(errors.UnavailableError, match="no stage can be reached"):
        sync.connect("memory://x", sequencer="ops://127.0.0.1:9", connect_timeout_s=0)


def test_a_batch_is_one_transaction_in_its_order(client: sync.Client) -> None:
    """With the receipts in the order of the events, whatever their topics; and behind what was put before it."""
    subscription = client.subscribe("a", "b")
    before = [client.publish_nowait("ab"[number % 2], number) for number in range(10)]
    receipts = client.publish_batch([("b", 10), ("a", 11), ("b", 12)])

    events = take(subscription, 13)
    assert [event.data for event in events] == list(range(13))
    assert [(receipt.topic, receipt.id) for receipt in receipts] == [(event.topic, event.id) for event in events[10:]]
    assert len({event.tx for event in events[10:]}) == 1
    assert all(future.result(PATIENCE_S) for future in before)
    assert client.publish_batch([]) == []


def test_a_batch_waits_for_room_for_all_of_it(url: str) -> None:
    adapter = GatedAdapter(url)
    with sync.connect(adapter, pipeline_events_max=3) as client:
        first = [client.publish_nowait("a", number) for number in range(2)]
        together = Beside(lambda: client.publish_batch([("a", 2), ("b", 3)]))
        until(lambda: client._outbox._queue)
        assert client.status()["unfinished"] == 2
        adapter.open_gate()
        assert [receipt.topic for receipt in together.outcome()] == ["a", "b"]
        assert all(future.result(PATIENCE_S) for future in first)


def test_a_batch_is_refused_as_one(client: sync.Client) -> None:
    client.close()
    with pytest.raises(errors.Closed):
        client.publish_batch([("a", 1), ("b", 2)])
