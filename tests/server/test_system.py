"""Several stages: links that break, stages that stop and come back, clients that go on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

import ordered_pubsub
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.errors import ConfigurationError, UnavailableError
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.testing.proxy import Proxy
from server.systems import System, configure, connect, one_stage, serving
from server.waiting import soon, until

TOPICS = ["c", "b", "a"]
"""Each belongs to a stage of its own; the order of the alphabet is that of the ranks."""


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with System(tmp_path, [["a"], ["b"], ["c"]]) as system:
        await until(lambda: system.is_linked)
        yield system


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[ordered_pubsub.Event]:
    async def read() -> list[ordered_pubsub.Event]:
        return [await subscription.__anext__() for _ in range(count)]

    return await soon(read())


def rank_of(client: Client) -> int:
    """The stage that a client is at home at; -1 if there is none now."""
    where = client.status()["stage"]
    return int(where.split()[1][1:]) if where.startswith("stage s") else -1


def numbers(events: list[ordered_pubsub.Event]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.topic, []).append(event.number)
    return found


async def publish(client: Client, rounds: int, first: int = 0) -> None:
    """Events on all topics in turn, each awaited."""
    for number in range(first, first + rounds):
        await client.publish(TOPICS[number % 3], number)


async def test_one_order_over_topics_of_three_stages(system: System) -> None:
    async with system.connect(2) as publisher, system.connect(0) as one, system.connect(1) as two:
        subscriptions = [await client.subscribe(*TOPICS) for client in (one, two)]
        await publish(publisher, 30)

        first, second = [await take(subscription, 30) for subscription in subscriptions]

    assert [event.data for event in first] == [event.data for event in second] == list(range(30))


async def test_a_client_may_be_at_home_at_any_stage(system: System) -> None:
    for rank in range(3):
        async with system.connect(rank) as client:
            assert rank_of(client) == rank
            await publish(client, 3)


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [(1, 0), (2, 1), (2, 0)])
async def test_what_a_cut_link_holds_up_goes_on_when_it_is_healed(system: System, way: tuple[int, int]) -> None:
    """No number is lost, and none given twice."""
    async with system.connect(2) as publisher, system.connect(0) as subscriber:
        subscription = await subscriber.subscribe(*TOPICS)
        await publish(publisher, 9)
        line = system.lines[way]
        line.cut()
        await until(lambda: not system.servers[way[0]].links[way[1]].is_up)
        under_way = asyncio.create_task(publish(publisher, 9, 9))
        await until(lambda: line.is_cut and publisher.status()["unfinished"])
        line.heal()
        await soon(under_way)
        await publish(publisher, 9, 18)

        events = await take(subscription, 27)

    assert [event.data for event in events] == list(range(27))
    assert numbers(events) == {topic: list(range(1, 10)) for topic in TOPICS}


async def test_a_link_that_is_frozen_is_given_up_and_made_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that it is broken: it is silent, and neither side waits for ever."""
    monkeypatch.setattr("ordered_pubsub.server.server.HEARTBEAT_S", 0.1)
    line = system.lines[2, 1]
    line.freeze()
    await until(lambda: not system.servers[2].links[1].is_up and not system.servers[1].links[2].is_up)
    assert "nothing was heard of stage s1" in system.servers[2].links[1].trouble
    line.thaw()
    await until(lambda: system.is_linked)


async def test_links_that_flap_under_load_lose_nothing(system: System) -> None:
    async with system.connect(2) as publisher, system.connect(1) as subscriber:
        subscription = await subscriber.subscribe(*TOPICS)
        futures = []
        for number in range(600):
            futures.append(publisher.publish_nowait(TOPICS[number % 3], number))
            if number % 100 == 50:
                line = system.lines[[(2, 1), (1, 0), (2, 0)][number // 100 % 3]]
                line.cut()
                await until(lambda: not system.is_linked)
                line.heal()
        await soon(asyncio.gather(*futures))

        events = await take(subscription, 600)

    assert [event.data for event in events] == list(range(600))


async def test_a_slow_line_slows_and_nothing_else(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"], ["c"]]) as system:
        for line in system.lines.values():
            line.delay_s = 0.01
        await until(lambda: system.is_linked)
        async with system.connect(2) as publisher, system.connect(0) as subscriber:
            subscription = await subscriber.subscribe(*TOPICS)
            await asyncio.gather(*(publisher.publish_nowait(TOPICS[n % 3], n) for n in range(30)))

            assert [event.data for event in await take(subscription, 30)] == list(range(30))


async def test_two_configurations_that_differ_say_in_which_line(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"]]) as system:
        await system.stop(1)
        system.topics = [["a"], ["b", "new"]]
        await system.start(1)
        await until(lambda: all("differ" in server.links[1 - rank].trouble for rank, server in system.servers.items()))

        dialler, dialled = (system.servers[rank].links[1 - rank].trouble for rank in (1, 0))

    assert "stage[1].topics is ['b', 'new'] (line 13) here and ['b'] (line 13) there" in dialler
    assert "stage[1].topics is ['b'] (line 13) here and ['b', 'new'] (line 13) there" in dialled


async def test_a_long_configuration_does_not_keep_stages_from_linking(tmp_path: Path) -> None:
    """It would not fit into what a stranger may send."""
    before = "".join(f'[[topic]]\npattern = "some/rather/long/topic/{number}"\n' for number in range(300))
    async with System(tmp_path, [["a"], ["b"]], before=before) as system:
        await until(lambda: system.is_linked)


async def test_somebody_else_at_the_address_of_a_stage_is_not_taken_for_it(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"], ["c"]]) as system:
        await until(lambda: system.is_linked)
        line = system.lines[2, 0]
        line.target = (line.target[0], system.ports[1])
        line.cut()
        line.heal()
        await until(lambda: "stage s2 is linked to stage s1 already" in system.servers[2].links[0].trouble)
        system.lines[2, 1].cut()

        await until(lambda: "is stage 's1', and 's0' was expected there" in system.servers[2].links[0].trouble)


# -- stages that stop and come back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_each_stage_may_be_restarted_in_the_middle_of_traffic(system: System, rank: int) -> None:
    """No event is lost, and no number is given twice."""
    async with system.connect() as publisher, system.connect(2, 1, 0) as subscriber:
        subscription = await subscriber.subscribe(*TOPICS)
        futures = []
        for number in range(450):
            futures.append(publisher.publish_nowait(TOPICS[number % 3], number))
            if number % 150 == 100:
                await futures[-20]
                await system.restart(rank)
        receipts = await soon(asyncio.gather(*futures))

        events = await take(subscription, 450)

    assert [event.data for event in events] == list(range(450))
    assert numbers(events) == {topic: list(range(1, 151)) for topic in TOPICS}
    assert [receipt.id for receipt in receipts] == [event.id for event in events]


async def test_a_client_goes_on_at_another_stage(system: System) -> None:
    async with system.connect(2, 1) as client:
        subscription = await client.subscribe(*TOPICS)
        assert rank_of(client) == 2
        await system.stop(2)
        await until(lambda: rank_of(client) in (0, 1))
        receipt = await client.publish("a", "after")
        await system.start(2)
        await publish(client, 3)

        events = await take(subscription, 4)

    assert (receipt.number, events[0].data) == (1, "after")


async def test_a_client_whose_home_has_fallen_silent_goes_on_elsewhere(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that the connection is broken, as when a machine is switched off."""
    monkeypatch.setattr("ordered_pubsub.server.server.HEARTBEAT_S", 0.1)
    async with Proxy((HOST, system.ports[2])) as line:
        sequencer = [f"ops://{HOST}:{line.port}", system.address(1)]
        async with ordered_pubsub.connect(system.ens, sequencer=sequencer, name="desk") as client:
            await client.publish("a", 1)
            assert rank_of(client) == 2
            line.freeze()
            receipt = await client.publish("a", 2)
            assert (receipt.number, rank_of(client) in (0, 1)) == (2, True)


async def test_a_client_learns_where_the_other_stages_are(system: System) -> None:
    async with system.connect(2) as client:
        await system.stop(2)
        await until(lambda: rank_of(client) in (0, 1))
        await client.publish("a", 1)


async def test_what_was_asked_before_a_home_was_lost_is_answered_at_the_next_one_once(system: System) -> None:
    async with system.connect(2, 1) as client:
        futures = [client.publish_nowait("a", number) for number in range(500)]
        await asyncio.sleep(0)
        await system.stop(2)
        receipts = await soon(asyncio.gather(*futures))

    assert [receipt.number for receipt in receipts] == list(range(1, 501))


async def test_a_stage_that_stops_says_so_to_its_clients(system: System) -> None:
    async with system.connect(0) as client:
        reasons: list[str] = []
        client._engine.home._listener = attrs.evolve(
            NOBODY, on_state=lambda is_connected, reason: reasons.append(reason)
        )
        await system.stop(0)
        await until(lambda: reasons)
        assert "stage 's0' stops; another one may go on" in reasons[0]


async def test_a_stage_that_stops_answers_what_it_has_taken_first(tmp_path: Path) -> None:
    async with serving(one_stage('store = "sqlite:main.db"', folder=tmp_path)) as server:
        client = await connect(server)
        futures = [client.publish_nowait("a", number) for number in range(200)]
        await until(lambda: server.node.counters.requests)
        await server.close()

        assert [future.result().number for future in futures] == list(range(1, 201))
        await client.close()


async def test_a_stage_starts_where_it_stopped(system: System) -> None:
    async with system.connect() as client:
        await publish(client, 9)
    for rank in range(3):
        await system.restart(rank)
    await until(lambda: system.is_linked)

    async with system.connect() as client:
        assert (await client.publish("a", 1)).number == 4


# -- names ------------------------------------------------------------------------------------------------------------


async def test_a_name_is_refused_to_a_second_client_of_the_same_stage(system: System) -> None:
    async with system.connect(0, name="desk") as first:
        with pytest.raises(ConfigurationError, match=r"the name 'desk' is in use by another client.*take another name"):
            await system.connect(0, name="desk")
        await first.publish("a", 1)


async def test_a_name_is_refused_to_a_second_client_of_another_stage(system: System) -> None:
    """Whichever of them keeps the name."""
    for name in ("one", "two", "three", "four"):
        async with system.connect(0, name=name) as first:
            with pytest.raises(ConfigurationError, match="in use"):
                await system.connect(1, name=name)
            with pytest.raises(ConfigurationError, match="in use"):
                await system.connect(2, name=name)
            await first.publish("a", 1)


async def test_a_name_is_free_when_its_client_is_gone(system: System) -> None:
    async with system.connect(0, name="desk"):
        pass
    await until(lambda: not any(server.claims.names.holders for server in system.servers.values()))

    async with system.connect(2, name="desk") as client:
        await client.publish("a", 1)


async def test_a_client_with_a_name_keeps_it_when_its_home_is_lost(system: System) -> None:
    async with system.connect(2, 1, name="desk") as client:
        await system.stop(2)
        await until(lambda: rank_of(client) in (0, 1))
        await client.publish("a", 1)
        with pytest.raises(ConfigurationError, match="in use"):
            await system.connect(0, name="desk")
        await system.start(2)
        await until(lambda: system.is_linked)
        with pytest.raises(ConfigurationError, match="in use"):
            await system.connect(2, name="desk")
        await client.publish("a", 2)


async def test_names_are_kept_when_their_keeper_starts_again(system: System) -> None:
    """It hears from the others who has them, and gives them to nobody before."""
    names = ("one", "two", "three", "four", "five")
    clients = [await system.connect(0, 1, name=name) for name in names]
    try:
        await system.restart(2)
        for name in names:
            with pytest.raises(ConfigurationError, match="in use"):
                await system.connect(2, name=name)
        for client in clients:
            await client.publish("a", 1)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_who_had_a_name_has_it_also_after_the_only_stage_was_restarted(tmp_path: Path) -> None:
    """A newcomer that is quicker does not get it."""
    async with System(tmp_path, [["**"]]) as system, system.connect(name="desk") as first:
        await first.publish("a", 1)
        await system.restart(0)
        with pytest.raises(ConfigurationError, match="in use"):
            await system.connect(name="desk")
        await first.publish("a", 2)


async def test_a_newcomer_waits_for_a_keeper_that_is_out_of_reach_but_not_for_ever(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.server.doors.claims.CLAIM_S", 0.2)
    name = next(n for n in map(str, range(100)) if system.servers[0].topology.registrar(n) == 1)
    system.lines[1, 0].cut()
    system.lines[2, 1].cut()
    await until(lambda: not any(link.is_up for link in system.servers[1].links.values()))

    with pytest.raises(UnavailableError, match=rf"stage 's1', which keeps the name '{name}', cannot be reached now"):
        await system.connect(0, name=name)


async def test_a_client_goes_on_although_the_keeper_of_its_name_is_out_of_reach(tmp_path: Path) -> None:
    async with System(tmp_path, [["a"], ["b"], ["c"]]) as system:
        await until(lambda: system.is_linked)
        name = next(n for n in map(str, range(100)) if system.servers[0].topology.registrar(n) == 1)
        async with system.connect(2, 0, name=name) as client:
            system.lines[1, 0].cut()
            system.lines[2, 1].cut()
            await until(lambda: not any(link.is_up for link in system.servers[1].links.values()))
            await system.stop(2)
            await until(lambda: rank_of(client) == 0)
            await client.publish("a", 1)
            await system.start(2)
            system.lines[1, 0].heal()
            system.lines[2, 1].heal()
            await until(lambda: system.is_linked)
            await until(lambda: system.servers[1].claims.names.holders.get(name))
            with pytest.raises(ConfigurationError, match="in use"):
                await system.connect(2, name=name)


async def test_a_client_without_a_name_needs_no_keeper(system: System) -> None:
    async with system.connect(0), system.connect(0), system.connect(1):
        assert not any(server.claims.names.holders for server in system.servers.values())


# -- leaving nothing behind -------------------------------------------------------------------------------------------


async def test_a_stage_that_was_closed_has_no_tasks_and_no_connections(system: System) -> None:
    before = asyncio.all_tasks()
    async with System(system.folder / "another", [["x"], ["y"]]) as another:
        await until(lambda: another.is_linked)
        async with another.connect() as client:
            await client.publish("x", 1)

    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async with serving(one_stage()) as server:
        text = f'[[stage]]\nname = "other"\nlisten = "127.0.0.1:{server.port}"\nstore = "sqlite:other.db"\n'
        with pytest.raises(UnavailableError, match=r"'other' cannot listen at .*; is another one running there\?"):
            async with serving(configure(text, tmp_path)):
                pass


async def test_a_stage_that_cannot_listen_leaves_its_store_to_the_next_attempt(tmp_path: Path) -> None:
    async with serving(one_stage()) as server:
        text = f'[[stage]]\nname = "main"\nlisten = "127.0.0.1:{server.port}"\nstore = "sqlite:main.db"\n'
        for _ in range(2):
            with pytest.raises(UnavailableError, match="cannot listen"):
                async with serving(configure(text, tmp_path)):
                    pass
    async with serving(configure(text, tmp_path)) as server, connect(server) as client:
        assert (await client.publish("a", 1)).number == 1
