"""The blocking face beside event loops: it holds none of them up, and has one of its own for all clients."""

from __future__ import annotations

import asyncio
from concurrent import futures
from typing import Any

import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S
from helpers.threads import ours, take
from ordered_pubsub import errors, sync
from ordered_pubsub.sync import subscription as sync_subscription


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
