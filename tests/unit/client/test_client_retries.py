"""Handlers that fail: called again as a policy says; then their event goes elsewhere, or their subscription stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import tenacity

import ordered_pubsub
from helpers.clients import PATIENCE_S, take, until
from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.incoming import handling


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "RETRY_FIRST_S", 0.001)


class Failing:
    """A handler that fails for some events, so many times."""

    def __init__(self, fails: Callable[[Any], int]) -> None:
        self.fails = fails
        self.calls: list[Any] = []

    async def __call__(self, event: ordered_pubsub.Event) -> None:
        self.calls.append(event.data)
        if self.calls.count(event.data) <= self.fails(event.data):
            raise ValueError(f"no such thing as {event.data}")


POLICIES = {
    "how many times": 3,
    "a policy": tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none()),
    "a blocking policy": tenacity.Retrying(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none()),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
async def test_an_event_is_handled_again_and_nothing_else_meanwhile(client: Client, policy: Any) -> None:
    handler = Failing(lambda data: 2 if data == 1 else 0)
    await client.subscribe("a", notify=handler, retry=policy)
    await client.publish_many("a", range(3))
    await until(lambda: len(handler.calls) == 5)

    assert handler.calls == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
async def test_when_the_policy_gives_up_the_subscription_stops_with_what_was_raised_last(
    client: Client, policy: Any
) -> None:
    handler = Failing(lambda data: 9 if data == 1 else 0)
    subscription = await client.subscribe("a", notify=handler, retry=policy)
    await client.publish_many("a", range(3))

    with pytest.raises(ValueError, match="no such thing as 1"):
        await asyncio.wait_for(subscription.wait(), PATIENCE_S)
    assert handler.calls == [0, 1, 1, 1]


async def test_a_policy_may_give_up_by_a_way_of_its_own(client: Client) -> None:
    policy = tenacity.AsyncRetrying(retry=tenacity.retry_if_not_exception_type(ValueError), wait=tenacity.wait_none())
    handler = Failing(lambda data: 9)
    subscription = await client.subscribe("a", notify=handler, retry=policy)
    await client.publish("a", 1)

    with pytest.raises(ValueError, match="no such thing as 1"):
        await asyncio.wait_for(subscription.wait(), PATIENCE_S)
    assert handler.calls == [1]


async def test_what_cannot_be_handled_goes_to_the_dead_letter_topic_with_the_reason(client: Client) -> None:
    dead = await client.subscribe("dead")
    handler = Failing(lambda data: 9 if data == 1 else 0)
    subscription = await client.subscribe("a", notify=handler, retry=2, dead_letter="dead")
    await client.publish_many("a", [0])
    receipt = await client.publish("a", 1, headers={"trace": b"7"}, id="one")
    await client.publish("a", 2)
    (letter,) = await take(dead, 1)
    await until(lambda: handler.calls == [0, 1, 1, 2])

    assert letter.data == 1
    assert letter.headers["trace"] == b"7"
    reason, *where = (letter.headers[f"dead-letter-{what}"] for what in ("reason", "topic", "number", "id"))
    assert "no such thing as 1" in str(reason)
    assert where == ["a", str(receipt.number), "one"]
    assert subscription.error is None


async def test_without_a_policy_it_goes_there_at_once(client: Client) -> None:
    dead = await client.subscribe("dead")
    handler = Failing(lambda data: 9)
    await client.subscribe("a", notify=handler, dead_letter="dead")
    await client.publish_many("a", range(3))

    assert [event.data for event in await take(dead, 3)] == [0, 1, 2]
    assert handler.calls == [0, 1, 2]


@pytest.mark.parametrize("retry", [0, -1, True, 2.5, "often"])
async def test_a_policy_that_is_none_is_refused(client: Client, retry: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"retry=.* does not fit; .*tenacity"):
        await client.subscribe("a", notify=lambda event: None, retry=retry)
