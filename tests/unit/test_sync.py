"""The blocking face: what the asynchronous one says, for threads."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from textwrap import dedent
from typing import Any
from uuid import uuid4

import pytest

import ordered_pubsub
from ordered_pubsub import errors, sync
from ordered_pubsub.adapter import Frame, FramesHandler, StateHandler
from ordered_pubsub.client.frames import CONTENT_TYPE
from ordered_pubsub.sync import subscription as sync_subscription
from ordered_pubsub_adapters.memory import MemoryAdapter

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell of whoever runs the tests has set does not matter."""
    for name in ("ORDERED_PUBSUB_ENS", "ORDERED_PUBSUB_SEQUENCER", "ORDERED_PUBSUB_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Whatever a test does, the loop ends with its last client."""
    yield
    until(lambda: not ours())


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ordered-pubsub")]


@pytest.fixture
def url() -> str:
    """A system of its own."""
    return f"memory://test-{uuid4().hex}"


@pytest.fixture
def client(url: str) -> Iterator[sync.Client]:
    with sync.connect(url) as client:
        yield client


def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.001)


def take(subscription: sync.Subscription, count: int) -> list[ordered_pubsub.Event]:
    """The next events."""
    events = []
    for _ in range(count):
        event = subscription.next(PATIENCE_S)
        assert event is not None
        events.append(event)
    return events


def names(events: Sequence[ordered_pubsub.Event]) -> list[tuple[str, int]]:
    return [(event.topic, event.number) for event in events]


class Beside(threading.Thread):
    """Does something in another thread; `outcome` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def outcome(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


class GatedAdapter(MemoryAdapter):
    """A `memory://` adapter that publishes nothing before its gate is opened."""

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self._gate = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await super().open(on_frames, on_state)

    async def publish(self, frames: Sequence[Frame]) -> None:
        await self._gate.wait()
        await super().publish(frames)

    def open_gate(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)


# -- publishing -------------------------------------------------------------------------------------------------------


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
        sync.connect("memory://x", sequencer="ops://127.0.0.1:9")


# -- taking events ----------------------------------------------------------------------------------------------------


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


# -- handlers ---------------------------------------------------------------------------------------------------------


def test_a_handler_is_called_in_order_and_may_block(client: sync.Client) -> None:
    """In a thread that is not the loop's, so it may publish and wait for it."""
    seen: list[Any] = []
    echoed = client.subscribe("echo")

    def handle(event: ordered_pubsub.Event) -> None:
        seen.append((event.data, threading.current_thread().name))
        client.publish("echo", event.data)

    client.subscribe("a", notify=handle)
    client.publish_many("a", range(50))

    assert [event.data for event in take(echoed, 50)] == list(range(50))
    assert [data for data, _ in seen] == list(range(50))
    assert {name for _, name in seen} == {f"ordered-pubsub notify of {client.name}"}


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), SystemExit("no")])
def test_a_handler_that_raises_ends_its_subscription(
    client: sync.Client, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the client, and not the loop."""

    def handle(event: ordered_pubsub.Event) -> None:
        raise error

    subscription = client.subscribe("a", notify=handle)
    client.publish("a", 1)

    expected = ValueError if isinstance(error, ValueError) else RuntimeError
    with pytest.raises(expected, match="no"):
        subscription.wait(PATIENCE_S)
    assert "its notify= handler failed on 'a' number 1" in caplog.text
    assert client.publish("a", 2).number == 2


def test_wait_waits_no_longer_than_it_is_told(client: sync.Client) -> None:
    """The subscription goes on."""
    subscription = client.subscribe("a", notify=lambda event: None)
    with pytest.raises(errors.Timeout, match=r"has not ended within 0.01 s"):
        subscription.wait(0.01)
    subscription.unsubscribe()
    subscription.wait(PATIENCE_S)


def test_async_handlers_are_for_the_asynchronous_face(client: sync.Client) -> None:
    """They are refused as early as can be seen."""

    async def handle(event: ordered_pubsub.Event) -> None:
        raise AssertionError("never awaited")

    with pytest.raises(errors.UsageError, match=r"notify=.*plain functions"):
        client.subscribe("a", notify=handle)

    def disguised(event: ordered_pubsub.Event) -> object:
        future: asyncio.Future[None] = asyncio.Future(loop=asyncio.new_event_loop())
        future.get_loop().close()
        return future

    subscription = client.subscribe("a", notify=disguised)
    client.publish("a", 1)
    with pytest.raises(errors.UsageError, match="plain functions"):
        subscription.wait(PATIENCE_S)


def test_events_of_a_handler_are_not_iterated(client: sync.Client) -> None:
    """As in the asynchronous face."""
    subscription = client.subscribe("a", notify=lambda event: None)
    with pytest.raises(errors.UsageError, match="go to its notify= handler"):
        subscription.next(PATIENCE_S)


def test_a_handler_may_close_its_own_subscription(client: sync.Client) -> None:
    """It does not wait for itself."""
    handled: futures.Future[int] = futures.Future()

    def handle(event: ordered_pubsub.Event) -> None:
        subscription.close()
        handled.set_result(event.data)

    subscription = client.subscribe("a", notify=handle)
    client.publish_many("a", [1, 2])

    assert handled.result(PATIENCE_S) == 1
    subscription.wait(PATIENCE_S)


def test_a_handler_may_close_its_client(url: str) -> None:
    """And the thread of the loop ends."""
    handled: futures.Future[int] = futures.Future()

    def handle(event: ordered_pubsub.Event) -> None:
        client.close()
        handled.set_result(event.data)

    client = sync.connect(url)
    client.subscribe("a", notify=handle)
    client.publish_nowait("a", 1)

    assert handled.result(PATIENCE_S) == 1


def test_what_cannot_be_decoded_goes_to_its_handler(client: sync.Client) -> None:
    """Also long after the handler's thread had nothing to do."""
    bad: list[bytes] = []
    subscription = client.subscribe("a", on_bad_event=lambda event: bad.append(event.raw))

    def publish_raw(payload: bytes, content_type: str) -> None:
        item = client._inner.prepare("a", payload, None, None)
        item.content_type = content_type
        client._outbox.put_nowait(item).result(PATIENCE_S)

    publish_raw(b"{", "application/json")
    publish_raw(b"x", "text/unknown")
    client.publish("a", 1)
    assert take(subscription, 1)[0].data == 1
    until(lambda: not [name for name in ours() if "on_bad_event" in name])
    publish_raw(b"[", "application/json")
    client.publish("a", 2)

    assert take(subscription, 1)[0].data == 2
    assert bad == [b"{", b"x", b"["]
    assert CONTENT_TYPE == "content-type"


# -- event loops ------------------------------------------------------------------------------------------------------


async def test_it_does_not_hold_up_an_event_loop(url: str) -> None:
    """Whatever waits says so, and names what to use there."""

    def refused() -> Any:
        return pytest.raises(errors.UsageError, match=r"async with ordered_pubsub\.connect")

    with refused():
        sync.connect(url)
    client = await asyncio.to_thread(sync.connect, url)
    subscription = await asyncio.to_thread(client.subscribe, "a")
    for call in (
        lambda: client.publish("a", 1),
        lambda: client.publish_many("a", [1]),
        lambda: client.subscribe("a"),
        client.status,
        client.close,
        subscription.next,
        lambda: next(iter(subscription)),
        lambda: subscription.add("b"),
        subscription.close,
    ):
        with refused():
            call()
    receipt = await asyncio.wrap_future(client.publish_nowait("a", 1))  # which does not wait
    assert receipt.number == 1
    await asyncio.to_thread(client.close)


def test_a_callback_may_publish_but_not_wait(client: sync.Client) -> None:
    """It is called in the loop."""
    answers: futures.Future[Any] = futures.Future()

    def then(future: futures.Future[ordered_pubsub.Receipt]) -> None:
        try:
            client.publish("a", 2)
        except errors.UsageError as error:
            answers.set_result((error, client.publish_nowait("a", 3)))

    client.publish_nowait("a", 1).add_done_callback(then)
    error, later = answers.result(PATIENCE_S)

    assert "hold up" in str(error)
    assert later.result(PATIENCE_S).number == 2


def test_clients_share_a_loop(url: str) -> None:
    """So that they can share a `memory://` system."""
    with sync.connect(url) as first, sync.connect(url) as second:
        subscription = second.subscribe("a")
        first.publish("a", 1)
        assert take(subscription, 1)[0].data == 1
        assert ours() == ["ordered-pubsub"]
    with sync.connect(url) as again:
        assert again.publish("a", 1).number == 1


def test_the_representations_can_be_read(client: sync.Client) -> None:
    """In a log or a failing test."""
    subscription = client.subscribe("a")
    assert repr(client).startswith(f"<sync.Client {client.name} at memory://")
    assert repr(subscription) == f"<sync.Subscription {subscription.identity}>"


def test_more_than_one_batch_is_brought(client: sync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch after batch, with nothing between them lost or repeated."""
    monkeypatch.setattr(sync_subscription, "BATCH_EVENTS_MAX", 7)
    monkeypatch.setattr(sync_subscription, "BUDGET_EVENTS", 10)
    subscription = client.subscribe("a")
    client.publish_many("a", range(100))

    assert [event.data for event in take(subscription, 100)] == list(range(100))


# -- processes --------------------------------------------------------------------------------------------------------


def run(script: str, interrupt_when: str | None = None, again: bool = False) -> tuple[int, str, str]:
    """Run a script in a process of its own, with Ctrl-C when it says something."""
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = ""
    try:
        if interrupt_when is not None:
            assert process.stdout is not None
            while interrupt_when not in said:
                line = process.stdout.readline()
                assert line, f"it ended: {process.communicate()[1]}"
                said += line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said + out, err


BLOCKING = """
    import threading
    from ordered_pubsub import sync
    from ordered_pubsub.core.levels import Levels
    from ordered_pubsub.embedded import EmbeddedHome
    from ordered_pubsub_adapters.memory import MemoryAdapter

    class Stuck(MemoryAdapter):
        async def publish(self, frames):
            await __import__("asyncio").Event().wait()

    EmbeddedHome.levels = Levels((("**", "ordered"),))  # what is kept need not wait for the ENS
    client = sync.connect(Stuck("memory://x"), delivery="ordered", timeout_s=3600, pipeline_events_max=1)
    subscription = client.subscribe("a")
    def say(): print("waiting", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    [
        "list(subscription)",
        "subscription.next(3600)",
        "next(subscription.batches())",
        "subscription.wait()",
        "client.publish('a', 1)",
        "client.publish_many('a', [1, 2])",
        "client.publish_nowait('a', 1).result()",
    ],
)
def test_ctrl_c_ends_whatever_waits(wait: str) -> None:
    """At once: it does not wait for its outcome."""
    script = dedent(BLOCKING) + dedent(f"""
    try:
        threading.Timer(0.05, say).start()
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        __import__("os")._exit(7)
    """)
    assert run(script, "waiting") == (7, "waiting\ninterrupted\n", "")


def test_ctrl_c_in_a_block_closes_the_client() -> None:
    """And then it is raised."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        timer = threading.Timer(0.05, lambda: print("waiting", flush=True))
        try:
            with sync.connect("memory://x") as client:
                timer.start()
                for event in client.subscribe("a"):
                    pass
        except KeyboardInterrupt:
            timer.join()
            print(client.status()["connected"], threading.active_count())
        """,
        "waiting",
    )
    assert (code, out, err) == (0, "waiting\nFalse 1\n", "")


def test_events_are_not_lost_by_ctrl_c() -> None:
    """What was asked for comes to the next one who asks."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        with sync.connect("memory://x") as client:
            subscription = client.subscribe("a")
            try:
                threading.Timer(0.05, lambda: print("waiting", flush=True)).start()
                subscription.next()
            except KeyboardInterrupt:
                pass
            client.publish_many("a", [1, 2, 3])
            print([subscription.next().data for _ in range(3)])
        """,
        "waiting",
    )
    assert (code, out, err) == (0, "waiting\n[1, 2, 3]\n", "")


def test_an_interpreter_ends_though_a_client_is_open() -> None:
    """Also with threads that wait; what was published gets its receipt before."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        from ordered_pubsub.sync import loops
        loops.EXIT_S = 30.0
        client = sync.connect("memory://x")
        subscription = client.subscribe("a")
        threading.Thread(target=list, args=(client.subscribe("b"),), daemon=True).start()
        is_handling = threading.Event()
        client.subscribe("a", notify=lambda event: is_handling.set() or threading.Event().wait())
        client.publish("a", 0)
        is_handling.wait()
        for number in range(1000):
            future = client.publish_nowait("a", number)
        future.add_done_callback(lambda future: print("receipt", future.result().number, flush=True))
        """
    )
    assert (code, out, err) == (0, "receipt 1001\n", "")


def test_an_interpreter_does_not_wait_for_an_ens_that_is_stuck() -> None:
    """It says what it left."""
    script = dedent(BLOCKING) + dedent("""
    from ordered_pubsub.sync import loops
    loops.EXIT_S = 0.1
    client.publish_nowait("a", 1)
    """)
    code, out, err = run(script)
    assert (code, out) == (0, "")
    assert "no receipt after 0.1 s was left" in err


def test_a_forked_process_is_told_to_connect_anew() -> None:
    """Instead of waiting for a thread that it does not have; the parent goes on."""
    code, out, err = run(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from ordered_pubsub import errors, sync
        with sync.connect("memory://x") as client:
            subscription = client.subscribe("a")
            client.publish_many("a", [1, 2])
            subscription.next()
            child = os.fork()
            if not child:
                for call in (
                    lambda: client.publish("a", 1), lambda: client.publish_nowait("a", 1), subscription.next,
                    lambda: next(iter(subscription)), subscription.close, client.close, client.status,
                    lambda: subscription.clock, lambda: client.subscribe("b"),
                ):
                    try:
                        call()
                    except errors.UsageError as error:
                        assert "fork" in str(error) and "connect another one" in str(error), error
                    else:
                        os._exit(1)
                with sync.connect("memory://y") as own:
                    assert own.publish("a", 1).number == 1
                sys.exit(42)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(client.publish("a", 3).number, subscription.next().data)
        """
    )
    assert (code, out, err) == (0, "42\n3 2\n", "")
