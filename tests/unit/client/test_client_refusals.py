"""What is asked for and cannot be given is refused, and the error says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

import ordered_pubsub
from helpers.clients import LossyAdapter, names, take
from ordered_pubsub import errors
from ordered_pubsub.adapter import Capabilities
from ordered_pubsub.client.client import Client
from ordered_pubsub.core.messages import Progress
from ordered_pubsub_adapters import memory
from ordered_pubsub_adapters.memory import MemoryAdapter


async def test_what_is_kept_can_be_subscribed_to_over_an_ens_that_loses(url: str) -> None:
    """Every event comes, in its place, at either level, whatever was lost."""
    async with ordered_pubsub.connect(f"{url}?lose=0.5&seed=1") as client:
        client.require(order="total", delivery="exactly-once")
        strict = await client.subscribe("a", "b")
        lax = await client.subscribe("b", "a", delivery="ordered")
        await client.publish_many("a", range(20))
        await client.publish_many("b", range(20))

        assert names(await take(strict, 40)) == names(await take(lax, 40))


async def test_the_last_event_is_not_missed_for_ever(url: str) -> None:
    """Nothing that comes after it tells that it was there: the stage does."""
    async with ordered_pubsub.connect(LossyAdapter(url, lambda count: count > 3)) as client:
        subscription = await client.subscribe("a")
        await client.publish_many("a", range(5))

        assert [event.data for event in await take(subscription, 5)] == list(range(5))


async def test_ordered_delivery_over_an_ens_that_loses_is_refused(url: str, ordered_topics: None) -> None:
    """Where nobody keeps the events."""
    async with ordered_pubsub.connect(f"{url}?lose=0.1", delivery="ordered") as client:
        with pytest.raises(errors.NotOffered, match=r"must lose nothing.*best-effort"):
            await client.subscribe("a")
        await client.subscribe("a", delivery="best-effort")
        await client.publish("a", 1)


async def test_a_topic_that_gives_less_than_was_asked_for_is_refused(url: str, ordered_topics: None) -> None:
    """By publications and by subscriptions; who takes less gets it."""
    async with ordered_pubsub.connect(url) as client:
        with pytest.raises(errors.NotOffered, match=r"topic 'a' gives delivery='ordered'.*'exactly-once'"):
            await client.publish("a", 1)
        with pytest.raises(errors.NotOffered, match=r"topic 'a' gives delivery='ordered'.*'exactly-once'"):
            await client.subscribe("a")
        subscription = await client.subscribe("a", delivery="ordered")
        async with ordered_pubsub.connect(url, delivery="ordered") as other:
            await other.publish("a", 1)

        assert names(await take(subscription, 1)) == [("a", 1)]


async def test_best_effort_takes_any_topic(url: str, ordered_topics: None) -> None:
    """To publish on and to subscribe to."""
    async with ordered_pubsub.connect(url, delivery="best-effort") as client:
        subscription = await client.subscribe("a")
        await client.publish("a", 1)

        assert names(await take(subscription, 1)) == [("a", 1)]


@pytest.mark.parametrize("delivery", ["exactly-once", "ordered", "best-effort"])
async def test_a_subscription_says_at_which_level_it_is(url: str, delivery: str) -> None:
    """That of its client, if it says nothing else."""
    async with ordered_pubsub.connect(url, delivery=delivery) as client:
        await client.subscribe("a")

        assert client.status()["subscriptions"][0]["delivery"] == delivery


@pytest.mark.parametrize(
    "asked",
    [
        {"delivery": "best-effort", "order": "topic"},
    ],
)
async def test_what_is_not_there_yet_is_refused(client: Client, asked: dict[str, Any]) -> None:
    """Nothing is silently ignored."""
    with pytest.raises(errors.NotOffered):
        await client.subscribe("a", **asked)


@pytest.mark.parametrize(
    "asked", [{"order": "any"}, {"delivery": "any"}, {"ttl_s": 1}, {"notify": 7}, {"ack": "manual"}]
)
async def test_what_makes_no_sense_is_refused(client: Client, asked: dict[str, Any]) -> None:
    """As an error of usage."""
    with pytest.raises(errors.UsageError, match=next(iter(asked))):
        await client.subscribe("a", **asked)


@pytest.mark.parametrize("topic", ["", "a//b", "eu/*", "x" * 256, 7, ["a"]])
async def test_a_bad_topic_is_refused_everywhere(client: Client, topic: Any) -> None:
    """Before anything happens."""
    subscription = await client.subscribe("a")
    for call in (
        client.publish(topic, 1),
        client.subscribe(topic),
        subscription.add(topic),
        subscription.remove(topic),
    ):
        with pytest.raises(errors.TopicError):
            await call


async def test_no_topic_at_all_is_refused(client: Client) -> None:
    """By everything that takes topics."""
    subscription = await client.subscribe("a")
    for call in (client.subscribe(), subscription.add(), subscription.remove()):
        with pytest.raises(errors.UsageError, match="at least one topic"):
            await call


@pytest.mark.parametrize("identity", ["", "x" * 256, "a\n", 7])
async def test_a_bad_id_is_refused(client: Client, identity: Any) -> None:
    """Before the event has a number."""
    with pytest.raises(errors.UsageError, match="id="):
        await client.publish("a", 1, id=identity)


@pytest.mark.parametrize("name", ["transaction", "tx_begin", "tx_commit", "move", "advertise", "on"])
async def test_methods_that_come_later_say_so(client: Client, name: str) -> None:
    """They are there, and refuse."""
    with pytest.raises(errors.NotOffered, match=rf"{name}\(\) is not available yet"):
        getattr(client, name)("whatever")


async def test_what_has_no_name_cannot_be_acknowledged(client: Client) -> None:
    """Neither an event nor a clock: nobody would remember it."""
    subscription = await client.subscribe("a")
    await client.publish("a", 1)
    (event,) = await take(subscription, 1)

    with pytest.raises(errors.UsageError, match=r"name=.*ack='manual'"):
        await event.ack()
    with pytest.raises(errors.UsageError):
        await subscription.commit(subscription.clock)


async def test_a_stage_that_is_not_there_is_said_so(url: str) -> None:
    """With what to do about it."""
    with pytest.raises(
        errors.UnavailableError, match=r"no stage can be reached: ops://127\.0\.0\.1:1.*ordered-pubsub serve"
    ):
        await ordered_pubsub.connect(url, sequencer="ops://127.0.0.1:1", connect_timeout_s=0)


def test_what_the_environment_says_is_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_SEQUENCER", "http://x")
    with pytest.raises(errors.ConfigurationError, match=r"ORDERED_PUBSUB_SEQUENCER.*http://x"):
        ordered_pubsub.connect(url)


def test_what_the_file_says_is_used(url: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[client]\nsequencer = "http://x"\n')
    with pytest.raises(errors.ConfigurationError, match=r"x\.toml.*line 2.*http://x"):
        ordered_pubsub.connect(url, config=str(file))


def test_an_unknown_setting_is_named_and_the_known_ones_are_listed(url: str) -> None:
    """A typing error must not pass for a setting."""
    with pytest.raises(errors.ConfigurationError, match=r"'time_out'; there are .*timeout_s.*serializer"):
        ordered_pubsub.connect(url, time_out=1)


@pytest.mark.parametrize(
    "setting",
    [
        {"timeout_s": 0},
        {"timeout_s": "60"},
        {"timeout_s": float("inf")},
        {"pipeline_events_max": 0},
        {"queue_events_max": 1.5},
        {"payload_bytes_max": True},
        {"buffer_events_max": 0},
        {"buffer_bytes_max": 0},
        {"ttl_s": -1},
        {"serializer": 7},
        {"delivery": "perfect"},
        {"name": ""},
        {"name": "a\n"},
    ],
)
def test_a_setting_that_does_not_fit_is_named(url: str, setting: dict[str, Any]) -> None:
    """With its value, and what would fit."""
    with pytest.raises(errors.ConfigurationError, match=rf"{next(iter(setting))}=.*(does not fit)"):
        ordered_pubsub.connect(url, **setting)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "nats", "tls", "amqp", "amqps"])
def test_a_broker_needs_a_stage(scheme: str) -> None:
    """The message says how to start one, and shows no password."""
    with pytest.raises(errors.ConfigurationError, match=r"ordered-pubsub serve.*sequencer=") as caught:
        ordered_pubsub.connect(f"{scheme}://user:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("ens", ["kafka://host", "localhost:1883", "", "://x", 7])
def test_an_ens_that_nobody_knows_is_refused(ens: Any) -> None:
    """The installed schemes are listed, or the form of a URL is shown."""
    with pytest.raises(errors.ConfigurationError, match="memory://"):
        ordered_pubsub.connect(ens)


def test_an_ens_outside_needs_a_stage_outside(url: str) -> None:

    class Distant(MemoryAdapter):
        local_system = None  # type: ignore[assignment]

    with pytest.raises(errors.ConfigurationError, match="sequencer="):
        ordered_pubsub.connect(Distant(url))


async def test_an_ens_without_headers_does_not_do(url: str) -> None:
    """And nothing stays open."""

    class Bare(MemoryAdapter):
        @property
        def capabilities(self) -> Capabilities:
            return attrs.evolve(super().capabilities, carries_headers=False)

    with pytest.raises(errors.ConfigurationError, match="headers"):
        await ordered_pubsub.connect(Bare(url))
    assert memory._systems.get(url.removeprefix("memory://")) is None


async def test_faults_are_named_as_they_are_written(url: str) -> None:
    async with ordered_pubsub.connect(url + "?reorder=0.5"):
        with pytest.raises(
            errors.ConfigurationError, match=r"is open with \?reorder=0\.5, and was asked for with \?lose=0\.1"
        ):
            await ordered_pubsub.connect(url + "?lose=0.1")


# -- what an embedded stage is asked that it must not be --------------------------------------------------------------


async def test_a_request_that_does_not_fit_is_refused_and_nobody_else_notices(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ordered_pubsub.connect(url) as one, ordered_pubsub.connect(url) as two:
        subscription = await two.subscribe("a")
        monkeypatch.setattr("ordered_pubsub.embedded.publisher_of", lambda session, name: "somebody else")
        with pytest.raises(errors.AccessDenied, match="are signed 'anonymous-"):
            await one.publish("a", 1)
        monkeypatch.undo()
        await two.publish("a", 2)

        assert names(await take(subscription, 1)) == [("a", 1)]
        assert one.status()["error"] is two.status()["error"] is None


async def test_a_client_that_says_what_it_must_not_fails_and_no_other(url: str) -> None:
    async with ordered_pubsub.connect(url) as one, ordered_pubsub.connect(url) as two:
        subscription = await two.subscribe("a")
        one._engine.home.say(Progress("s", {"a": -1}))
        assert "what cannot be was said" in one.status()["error"]
        await two.publish("a", 2)

        assert names(await take(subscription, 1)) == [("a", 1)]
        assert two.status()["error"] is None
