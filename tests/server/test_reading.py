"""Ranges of the logs, read side by side from real stages and put together: what an ordinary subscriber was notified of."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

import ordered_pubsub
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.core.log.cuts import divide, events_between, first_part, lower
from ordered_pubsub.core.log.range_reader import LogBatch, RangeReader, raise_lost
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.stage import _requests as requests
from ordered_pubsub.errors import (
    ConfigurationError,
    HistoryLost,
    NotOffered,
    ProtocolError,
    TopicError,
    UnavailableError,
)
from ordered_pubsub.reading import merging
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.connection import StageLine
from ordered_pubsub.reading.merging import merged
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.options import Options
from ordered_pubsub.spark.plan import ReadPlan
from ordered_pubsub.spark.progress import SUBSCRIPTION, ReaderProgress
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.pack import decode_logged
from ordered_pubsub.wire.protocol import Ask
from server.systems import System, connect, one_stage, serving
from server.waiting import soon, until

TOPICS = ("a", "b", "c", "d")
Event = tuple[str, int, bytes]


def access(*ports: int, timeout_s: float = 30.0) -> ReaderAccess:
    return ReaderAccess(ClientSection(sequencer=tuple(f"ops://{HOST}:{port}" for port in ports), timeout_s=timeout_s))


def events_of(batches: Iterator[LogBatch], start: Mapping[str, int], end: Mapping[str, int]) -> list[Event]:
    """What is in them, as far as it is in the range."""
    found: list[Event] = []
    for batch in batches:
        for first, last, data in batch.chunks:
            logged = decode_logged(data, last - first + 1)
            found += [
                (batch.topic, number, event.payload)
                for number, event in enumerate(logged.events, first)
                if start.get(batch.topic, 0) < number <= end[batch.topic]
            ]
    return found


def read(stages: StageLines, start: Mapping[str, int], end: Mapping[str, int]) -> list[Event]:
    return events_of(merged(stages, start, end, raise_lost("test")), start, end)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Three stages that own two topics, one, and one."""
    async with System(tmp_path, [["a", "b"], ["c"], ["d"]]) as system:
        await until(lambda: system.is_linked)
        yield system


async def publish_somehow(client: ordered_pubsub.Client, random: Random, count: int) -> None:
    """Alone and in batches, waiting or not."""
    futures = []
    for number in range(count):
        topic = random.choice(TOPICS)
        if random.random() < 0.3:
            await client.publish_many(topic, [number] * random.choice((1, 2, 7)))
        else:
            futures.append(client.publish_nowait(topic, number))
        if random.random() < 0.1:
            await asyncio.gather(*futures)
    await asyncio.gather(*futures)


async def take(subscription: ordered_pubsub.Subscription, count: int) -> list[Any]:
    return [await soon(subscription.__anext__()) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
async def test_a_range_is_what_a_subscriber_was_notified_of_in_its_order(
    system: System, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read whole, or in parts that are cut anywhere; by pieces of any size."""
    random = Random(seed)
    async with system.connect(0) as reader, system.connect(1) as one, system.connect(2) as other:
        subscription = await reader.subscribe(*TOPICS)
        await asyncio.gather(*(publish_somehow(client, random, 150) for client in (one, other)))

        def look() -> tuple[dict[str, int], list[Event], list[list[Event]], list[Event]]:
            with StageLines(access(*system.ports)) as stages:
                end = stages.cut(TOPICS)
                cuts = stages.search(divide({}, end, 5))
                parts = [read(stages, before, after) for before, after in zip([{}, *cuts], cuts, strict=False)]
                middle = cuts[len(cuts) // 2]
                return end, read(stages, {}, end), parts, read(stages, middle, end)

        end, whole, parts, rest = await asyncio.to_thread(look)
        notified = [(event.topic, event.number, event.raw) for event in await take(subscription, sum(end.values()))]

    assert len(notified) > 300
    assert whole == notified
    assert [event for part in parts for event in part] == notified
    assert len(parts) == 5
    assert max(map(len, parts)) < 3 * min(map(len, parts))
    assert rest == notified[-len(rest) :]


async def test_a_cut_lacks_nothing_that_comes_before_what_is_in_it(system: System) -> None:
    """While publishers go on: for each event of it, all that its timestamp names is in it as well."""
    owners = {"a": 0, "b": 0, "c": 1, "d": 2}
    is_enough = asyncio.Event()
    found: list[dict[str, int]] = []

    def published() -> int:
        return sum(system.servers[owner].node.driver.stage.state.kept.get(topic, 0) for topic, owner in owners.items())

    async def go_on(client: ordered_pubsub.Client) -> None:
        random = Random(7)
        while not is_enough.is_set():
            await publish_somehow(client, random, 10)

    def take_cuts() -> None:
        with StageLines(access(*system.ports)) as stages:
            found.append(stages.cut(TOPICS))
            lowered = stages.search(lower({}, {topic: 2 * count // 3 for topic, count in found[-1].items()}))
            assert lowered is not None
            found.append(lowered)

    async with system.connect(0) as reader, system.connect(1) as one, system.connect(2) as other:
        await reader.subscribe(*TOPICS)
        publishing = asyncio.gather(go_on(one), go_on(other))
        while len(found) < 20:
            await until(lambda: published() > 15 * len(found) + 30)
            await asyncio.to_thread(take_cuts)
        is_enough.set()
        await publishing
    for cut in found:
        for topic, last in cut.items():
            reader_of = system.servers[owners[topic]].node.driver.owner_logs.reader
            full = reader_of.full_at(topic, last) if last else {}
            assert full is not None
            assert all(count <= cut[other] for other, count in full.items() if other in cut and other != topic)
    assert sum(found[-1].values()) > 30


async def test_the_first_part_has_about_as_many_events_as_asked_and_one_batch_at_least(system: System) -> None:
    async with system.connect(0) as client:
        for _ in range(20):
            await client.publish_many("a", list(range(50)))
            await client.publish("c", 1)

        def sizes() -> list[int]:
            with StageLines(access(*system.ports)) as stages:
                end = stages.cut(TOPICS)
                return [
                    events_between({}, stages.search(first_part({}, end, most))) for most in (1, 10, 60, 300, 5_000)
                ]

        one, ten, sixty, many, everything = await asyncio.to_thread(sizes)

    assert everything == 20 * 51
    assert 1 <= one <= 51
    assert 1 <= ten <= 51
    assert 1 <= sixty <= 60
    assert 150 < many <= 300


async def test_stages_that_are_killed_are_waited_for(system: System) -> None:
    """In the middle of a range."""
    async with system.connect(0) as client:
        for number in range(300):
            await client.publish("ad"[number % 2], number)
    loop = asyncio.get_running_loop()

    def look() -> tuple[dict[str, int], list[Event]]:
        with StageLines(access(*system.ports)) as stages:
            end = stages.cut(TOPICS)
            found = iter(merged(stages, {}, end, raise_lost("test")))
            first = next(found)
            asyncio.run_coroutine_threadsafe(system.stop(2), loop).result()
            starting = asyncio.run_coroutine_threadsafe(system.start(2), loop)
            events = [*events_of(iter([first]), {}, end), *events_of(found, {}, end)]
            starting.result()
            return end, events

    end, events = await asyncio.to_thread(look)
    assert sum(end.values()) == len(events) == 300
    for topic in "ad":
        assert [number for one, number, _ in events if one == topic] == list(range(1, 151))


async def test_topics_are_found_with_their_extent_and_a_wrong_name_is_said(system: System) -> None:
    async with system.connect(0) as client:
        for topic in ("a", "a", "c", "d"):
            await client.publish(topic, 1)

    def look() -> tuple[list[tuple[str, int]], str]:
        with StageLines(access(system.ports[1])) as stages:  # it tells of the others
            found = [(topic, extent.last) for topic, extent in stages.find(["**"]).items()]
            with pytest.raises(TopicError) as caught:
                stages.existing(["a", "dd"])
            return found, str(caught.value)

    found, said = await asyncio.to_thread(look)
    assert found == [("a", 2), ("c", 1), ("d", 1)]
    assert "topic 'dd'" in said
    assert "there is 'd'" in said


async def test_what_retention_has_taken_is_said() -> None:
    async with serving(one_stage()) as server, connect(server) as client:
        for number in range(5):
            await client.publish("a", number)
        driver = server.node.driver
        driver.log.forget("a", 3)

        def look() -> tuple[str, list[tuple[str, int, int]], list[Event]]:
            left_out: list[tuple[str, int, int]] = []
            with StageLines(access(server.port)) as stages:
                end = stages.cut(["a"])
                with pytest.raises(HistoryLost) as caught:
                    read(stages, {}, end)
                found = events_of(merged(stages, {}, end, lambda *lost: left_out.append(lost)), {}, end)
            return str(caught.value), left_out, found

        said, left_out, found = await asyncio.to_thread(look)
    assert "'a'" in said
    assert left_out == [("a", 1, 4)]
    assert [number for _, number, _ in found] == [4, 5]


async def test_what_is_taken_while_it_is_read_is_left_out_and_nothing_else_changes_its_place(system: System) -> None:
    """Of two owners' topics, whose events wait for each other."""
    async with system.connect(0) as client:
        subscription = await client.subscribe("a", "c")
        for number in range(400):
            await client.publish("ac"[number % 2], number)
        notified = [(event.topic, event.number, event.raw) for event in await take(subscription, 400)]
    node, loop = system.servers[0].node, asyncio.get_running_loop()
    lost: list[tuple[str, int, int]] = []

    async def forget() -> None:
        node.driver.log.forget("a", 150)
        node.driver.journal.sync()

    def look() -> list[Event]:
        with StageLines(access(*system.ports)) as stages:
            end = stages.cut(["a", "c"])
            reader = RangeReader.of(stages.topology.owner, {}, end, lambda *gone: lost.append(gone), piece_bytes=1_000)
            batches = merging.taken(stages, reader)
            found = events_of(iter([next(batches) for _ in range(10)]), {}, end)
            asyncio.run_coroutine_threadsafe(forget(), loop).result()
            return found + events_of(batches, {}, end)

    found = await asyncio.to_thread(look)
    ((topic, first_lost, first_there),) = lost
    assert (topic, first_there) == ("a", 151)
    assert first_lost < 150
    assert found == [event for event in notified if event[0] == "c" or not first_lost <= event[1] < first_there]


async def test_what_is_held_is_bounded_though_one_topic_waits(system: System) -> None:
    """A topic whose owner is not asked for more keeps another one from being read far ahead."""
    async with system.connect(0) as client:
        for _ in range(300):
            await client.publish("a", "x" * 500)
        await client.publish("b", 1)

    def look() -> int:
        with StageLines(access(*system.ports, timeout_s=0.3)) as stages:
            end = {**stages.cut(["a", "b"]), "b": 2}  # which is not there
            reader = RangeReader.of(stages.topology.owner, {}, end, raise_lost("test"), piece_bytes=2_000)
            with pytest.raises(UnavailableError, match="number 2 of topic 'b' is not complete"):
                list(merging.taken(stages, reader))
            return reader.owners[0].topics[0].held_bytes

    assert await asyncio.to_thread(look) < 10_000


async def test_a_thousand_names_and_more_are_looked_for(system: System) -> None:
    async with system.connect(0) as client:
        await client.publish("a", 1)

    def look() -> dict[str, Any]:
        with StageLines(access(*system.ports)) as stages:
            return dict(stages.find([f"x/{number}" for number in range(2_500)] + ["a"]))

    assert list(await asyncio.to_thread(look)) == ["a"]


async def test_a_reader_has_its_name_though_an_earlier_connection_is_not_missed_yet(system: System) -> None:
    """As when its home was cut off, or killed."""
    async with system.connect(0) as client:
        await client.publish("a", 1)

    def look() -> list[dict[str, int]]:
        progress, reached = ReaderProgress("reader"), access(*system.ports)
        with StageLines(reached) as stages:
            cuts = [progress.cut(stages, ["a"], {}), progress.cut(stages, ["a"], {"a": 1})]
            left = StageLine(reached.addresses[2], reached, "reader", progress._turns.key, resumes=True)
            try:
                cuts.append(progress.cut(stages, ["a"], {"a": 1}))
            finally:
                left.close()
        with StageLines(access(*system.ports)) as stages:  # another process
            cuts.append(ReaderProgress("reader").cut(stages, ["a"], {"a": 1}))
        return cuts

    assert await asyncio.to_thread(look) == [{"a": 1}] * 4


async def test_a_cut_is_asked_for_again_if_the_stage_that_takes_it_was_away(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage in between drops what it cannot hand on, and its connection stays."""
    async with system.connect(0) as client:
        await client.publish("a", 1)
    decides = system.servers[0].node.topology.registrar
    names = map(str, range(99))
    reader = next(name for name in names if (decides(name), decides(f"{name}//{SUBSCRIPTION}")) == (0, 2))
    asked, say = threading.Event(), StageLine.say

    def say_and_note(line: StageLine, *messages: Any) -> None:
        say(line, *messages)
        if any(isinstance(message, Ask) for message in messages):
            asked.set()

    def look() -> dict[str, int]:
        with StageLines(access(*system.ports[:2])) as stages:
            return ReaderProgress(reader).cut(stages, ["a"], {})

    monkeypatch.setattr(StageLine, "say", say_and_note)
    await system.stop(2)
    cut = asyncio.create_task(asyncio.to_thread(look))
    assert await asyncio.to_thread(asked.wait, 30.0)
    await system.start(2)
    assert await cut == {"a": 1}


async def test_a_reader_may_take_more_cuts_than_a_stage_remembers_answers(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UNANSWERED_MAX", 5)
    async with system.connect(0) as client:
        await client.publish("a", 1)

    def look() -> list[dict[str, int]]:
        progress = ReaderProgress("reader")
        with StageLines(access(*system.ports, timeout_s=5.0)) as stages:
            return [progress.cut(stages, ["a"], {}) for _ in range(10)]

    assert await asyncio.to_thread(look) == [{"a": 1}] * 10


async def test_a_stream_that_polls_leaves_little_behind(system: System) -> None:
    """Nothing at all while nothing comes; and one session for all of its cuts, since stages remember sessions for long."""

    def asked() -> tuple[int, int]:
        nodes = [server.node for server in system.servers.values()]
        sessions = sum(len(node.driver.stage.state.requests.sessions) for node in nodes)
        return sum(node.counters.requests for node in nodes), sessions

    options = {"sequencer": ",".join(f"ops://{HOST}:{port}" for port in system.ports), "topics": "a,d"}
    plan = ReadPlan(Options.read(options))
    async with system.connect(0) as client:
        await client.publish("a", 1)
        await client.publish("d", 1)
        await asyncio.to_thread(plan.next, {})
        before, at = asked(), {"a": 1, "d": 1}
        for _ in range(20):
            assert await asyncio.to_thread(plan.next, at) == (at, 0)
        assert asked() == before
        for number in range(2, 22):
            await client.publish("a", number)
            at, count = await asyncio.to_thread(plan.next, at)
            assert (at, count) == ({"a": number, "d": 1}, 1)
        assert asked()[1] <= before[1] + len(system.servers)


async def test_events_that_a_stage_does_not_bring_are_not_taken_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(one_stage()) as server, connect(server) as client:
        await client.publish_many("a", [1, 2, 3])
        whole = LogReader.rows
        monkeypatch.setattr(LogReader, "rows", lambda *asked: attrs.evolve(whole(*asked), events=[]))

        def look() -> None:
            missing = "no events of topic 'a' from number 1 on, though it says that they were kept"
            with StageLines(access(server.port)) as stages, pytest.raises(ProtocolError, match=missing):
                read(stages, {}, {"a": 3})

        await asyncio.to_thread(look)


async def test_what_nobody_keeps_cannot_be_read() -> None:
    before = '[[topic]]\npattern = "**"\ndelivery = "ordered"\n'
    async with serving(one_stage(before=before)) as server:

        def look() -> None:
            with (
                StageLines(access(server.port)) as stages,
                pytest.raises(NotOffered, match="its events are kept nowhere"),
            ):
                stages.existing(["a"])

        await asyncio.to_thread(look)


def test_without_a_stage_it_says_what_it_has_tried(unused_tcp_port: int) -> None:
    with pytest.raises(
        UnavailableError, match=rf"ops://{HOST}:{unused_tcp_port} cannot be reached.*check that it runs"
    ):
        StageLines(access(unused_tcp_port, timeout_s=0.2)).__enter__()


def test_who_is_no_stage_is_noticed() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                taken.recv(1_000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnavailableError, match="does not answer like a stage"):
            StageLines(access(port, timeout_s=1e-6)).__enter__()
        thread.join()


def test_without_an_address_it_says_which_option_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="give sequencer"):
        ReaderAccess.of()
