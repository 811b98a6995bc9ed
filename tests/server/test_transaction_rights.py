"""Who may use transactions, and whose subscriptions they may change: through a stage's door, with identities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.config.files import hash_token
from ordered_pubsub.connecting import Connecting
from server.systems import System
from server.waiting import until

RIGHTS = {
    "agents": '{ publish = ["**"], subscribe = ["**"] }',
    "dispatcher": '{ publish = ["**"], subscribe = ["**"], transact = true, manage = ["agent-*"] }',
    "publisher": '{ publish = ["jobs/**"], subscribe = ["**"], transact = true }',
    "stage": "{ stage = true }",
}
TOKENS = {name: f"{name}-".ljust(43, "x") for name in RIGHTS}


def identities() -> str:
    """Those whose subscriptions are changed, who may change them, and who may not."""
    return "".join(
        f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{hash_token(TOKENS[name])}"\nallow = {allow}\n'
        for name, allow in RIGHTS.items()
    )


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Two stages, on disks."""
    async with System(tmp_path, [["jobs/**"], ["**"]], identities(), TOKENS["stage"]) as system:
        await until(lambda: system.is_linked)
        yield system


def connect(system: System, who: str, name: str | None = None) -> Connecting:
    file = system.folder / f"{who}.token"
    file.touch(mode=0o600)
    file.write_text(TOKENS[who])
    return system.connect(token_file=str(file), name=name)


async def shifting(client: Client, agent: str = "agent-1", topic: str = "jobs/8") -> None:
    tx = client.static_transaction()
    tx.at(agent).subscribe("work", topic)
    tx.publish("jobs/8", "go")
    await tx.commit()


async def test_who_may_manage_changes_what_is_others(system: System) -> None:
    async with connect(system, "agents", "agent-1") as agent, connect(system, "dispatcher") as dispatcher:
        work = await agent.subscribe("jobs/7", name="work")
        await shifting(dispatcher)
        event = await anext(work)
        assert (event.topic, event.data) == ("jobs/8", "go")


async def test_of_whom_he_manages_only(system: System) -> None:
    async with connect(system, "agents", "boss-1") as boss, connect(system, "dispatcher") as dispatcher:
        await boss.subscribe("jobs/7", name="work")
        with pytest.raises(errors.AccessDenied, match="no right to manage it"):
            await shifting(dispatcher, "boss-1")


async def test_who_may_not_manage_does_not_and_nothing_is_published(system: System) -> None:
    async with connect(system, "agents", "agent-1") as agent, connect(system, "publisher") as publisher:
        await agent.subscribe("jobs/7", name="work")
        with pytest.raises(errors.AccessDenied, match="no right to manage it"):
            await shifting(publisher)
        assert (await publisher.publish("jobs/8", "first")).number == 1


async def test_who_may_not_use_transactions_publishes_nothing_together(system: System) -> None:
    async with connect(system, "agents", "agent-1") as agent:
        await agent.subscribe("jobs/7", name="work")
        with pytest.raises(errors.AccessDenied, match="may not use transactions"):
            await agent.publish_batch([("jobs/7", 1), ("jobs/8", 2)])
        with pytest.raises(errors.AccessDenied, match="may not use transactions"):
            await shifting(agent)


async def test_who_may_not_publish_there_does_not_in_a_transaction(system: System) -> None:
    async with connect(system, "publisher") as publisher:
        with pytest.raises(errors.AccessDenied, match="may not publish on 'other'"):
            await publisher.publish_batch([("jobs/7", 1), ("other", 2)])
        assert (await publisher.publish("jobs/7", "first")).number == 1
