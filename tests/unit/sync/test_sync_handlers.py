"""Handlers of the blocking face run in a thread of their own, may block, and end with their subscription."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent import futures
from typing import Any

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S
from helpers.threads import ours, take, until
from ordered_pubsub import errors, sync
from ordered_pubsub.sync.loops import LoopThread
from ordered_pubsub.wire.event_frames import CONTENT_TYPE


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


class NeverWaited(threading.Condition):
    """On which nobody has to wait."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError(f"somebody waits for {timeout} s for what has happened already")


def test_who_reads_does_not_wait_for_an_end_that_has_come_at_once(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = client.subscribe("a", notify=lambda event: None)
    submit = LoopThread.submit

    def submit_and_wait(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> futures.Future[Any]:
        future = submit(thread, work)
        futures.wait([future], PATIENCE_S)
        return future

    monkeypatch.setattr(LoopThread, "submit", submit_and_wait)
    subscription._news = NeverWaited()
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
