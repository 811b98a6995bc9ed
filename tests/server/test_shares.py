"""What one identity may make a stage hold before anything is looked at: half frames, what it does not read, files."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from ordered_pubsub.core.messages import PublishAsk, Request
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.server._files import RESERVED_FOR_STAGE, room_for_connections
from ordered_pubsub.server.doors.admission import SAID_FOR_S, SAID_MAX, TURNED_AWAY_MAX, NewConnection
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.server.monitoring import Monitoring
from ordered_pubsub.spark.options import SinkOptions
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.framing import Deframer
from ordered_pubsub.wire.protocol import Rejected, Welcome
from ordered_pubsub.wire.sessions import make_session
from server.messages import greeting
from server.systems import Raw, one_stage, raw, serving
from server.waiting import until

HALF = (1 << 20).to_bytes(4, "big") + b"x" * 60_000
LIMITS = "[limits]\n"


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nobody looks for cycles: what is not freed by itself stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def there_are(*kinds: type) -> dict[type, int]:
    """How many objects of some classes are in memory."""
    found = [type(one) for one in gc.get_objects()]
    return {kind: found.count(kind) for kind in kinds}


async def enter(line: Raw) -> object:
    line.send(greeting(make_session(None), None))
    return await line.receive()


async def test_half_frames_of_one_identity_are_bounded_together() -> None:
    limits = f"{LIMITS}received_bytes_per_identity_max = 150000"
    async with serving(one_stage(before=limits)) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(raw(server.port)) for _ in range(3)]
        for line in lines[:2]:
            assert isinstance(await enter(line), Welcome)
            line.writer.write(HALF)
        await until(lambda: server.doors._shares["anyone"].received_bytes > 2 * 50_000)
        assert isinstance(await enter(lines[2]), Welcome)
        lines[2].writer.write(HALF)

        rejected = await lines[2].expect(Rejected)

        assert server.doors.total == 3
    assert (rejected.code, "received_bytes_per_identity_max" in rejected.reason) == ("limit", True)


async def test_what_is_complete_is_not_counted_any_more() -> None:
    async with serving(one_stage()) as server, raw(server.port) as line:
        assert isinstance(await enter(line), Welcome)
        line.writer.write(HALF)
        await until(lambda: server.doors._shares["anyone"].received_bytes > 50_000)

        line.writer.transport.abort()

        await until(lambda: not server.doors._shares)


@pytest.mark.parametrize("how", ["says half", "says what it must not", "leaves", "never greets"])
@pytest.mark.usefixtures("uncollected")
async def test_what_a_connection_had_is_free_when_it_is_gone(how: str) -> None:
    """And not when Python looks for cycles: half frames of megabytes waited for that, and the looking took 50 ms in the end."""
    parts = (ClientConnection, Channel, NewConnection, Deframer)
    async with serving(one_stage()) as server:
        before = there_are(*parts)
        for _ in range(3):
            async with raw(server.port) as line:
                if how != "never greets":
                    assert isinstance(await enter(line), Welcome)
                if how == "says half":
                    line.writer.write(HALF)
                    await until(lambda: server.doors._shares["anyone"].received_bytes > 50_000)
                elif how == "says what it must not":
                    line.writer.write(b"\0\0\0\x01\xc1")
                    assert isinstance(await line.find(Rejected), Rejected)
            await until(lambda: not server.doors.total)

        # The test's own end of a connection has a Deframer, too.
        del line
        assert there_are(*parts) == before


@pytest.mark.usefixtures("uncollected")
async def test_a_question_that_is_left_half_keeps_nothing() -> None:
    monitor = Monitoring(dict, dict)
    port = await monitor.open("127.0.0.1", 0)
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HT")
        await until(lambda: monitor._serving)
        writer.transport.abort()
        await until(lambda: not monitor._serving)
    left = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and "_read_head" in repr(one)]
    await monitor.close()

    assert left == []


async def test_a_frame_that_does_not_come_to_its_end_is_given_up() -> None:
    async with serving(one_stage(before=f"{LIMITS}frame_s = 0.1")) as server, raw(server.port) as line:
        assert isinstance(await enter(line), Welcome)
        line.writer.write(HALF)

        rejected = await line.expect(Rejected)

    assert (rejected.code, "limits.frame_s" in rejected.reason) == ("limit", True)


async def test_what_one_identity_does_not_read_is_bounded_together() -> None:
    """Who has the most of it goes, though it is far below the bound of a connection; the others stay."""
    limits = f"{LIMITS}buffered_bytes_max = 100000000\nbuffered_bytes_per_identity_max = 10000000"
    async with serving(one_stage(before=limits)) as server, AsyncExitStack() as stack:
        for _ in range(4):
            line = await stack.enter_async_context(raw(server.port))
            assert isinstance(await enter(line), Welcome)
        connections = list(server._clients)
        for _ in range(150):
            connections[0]._write(b"\0" * 200_000)
        for connection in connections:
            connection._write(b"\0" * 200_000)

        assert sum(connection.channel.unsent_bytes for connection in connections) <= 10_000_000
        assert [connection.channel.is_open for connection in connections] == [False, True, True, True]


def test_as_many_connections_are_taken_as_there_may_be_files(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        room = room_for_connections(10_000, 2, lambda: 4_096)

    assert room == 2_048 - RESERVED_FOR_STAGE
    assert "limits.connections_max = 10000: allow 21024 (ulimit -n" in caplog.text


@pytest.mark.parametrize("files", [None, 100_000])
def test_nothing_is_said_where_there_are_files_enough(files: int | None, caplog: pytest.LogCaptureFixture) -> None:
    assert room_for_connections(10_000, 2, lambda: files) == 10_000
    assert not caplog.records


def test_a_process_with_far_too_few_files_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="may have 256 files open, which is too few"):
        room_for_connections(10_000, 1, lambda: 256)


async def test_who_comes_far_beyond_the_limit_is_not_even_told() -> None:
    async with serving(one_stage(before=f"{LIMITS}connections_max = 2")) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(raw(server.port)) for _ in range(100)]

        await until(lambda: server.doors.rejected == 98)

        assert all(line.writer.transport is not None for line in lines)
        assert server.doors.total <= 2 + TURNED_AWAY_MAX


def test_a_snapshot_is_due_after_many_bytes_however_few_the_records() -> None:
    journal = MemoryJournal()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal, snapshots=SnapshotPolicy(after_bytes=10_000))
    driver.flush()
    for sequence in range(1, 30):
        parts = tuple(PublishAsk("t" * 200) for _ in range(10))
        driver.handle_request(Request("c", 1, sequence, sequence - 1, sequence - 1, parts), 0.0)
        driver.flush()

    assert journal.snapshot is not None


def test_a_sink_does_not_show_the_password_of_its_broker() -> None:
    options = SinkOptions.read({"topic": "t", "ens": "mqtt://u:hunter2@h:1", "sequencer": "ops://127.0.0.1:1"})

    assert "hunter2" not in repr(options)


async def test_those_who_are_sent_away_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ordered_pubsub.server.doors.admission")
    now = 0.0
    async with serving(one_stage(before=f"{LIMITS}connections_max = 1")) as server, raw(server.port) as first:
        server.doors.clock = lambda: now
        assert isinstance(await enter(first), Welcome)

        async def come() -> None:
            async with raw(server.port) as line:
                await line.expect(Rejected)

        for _ in range(SAID_MAX + 3):
            await come()
        assert len(caplog.messages) == SAID_MAX
        now += SAID_FOR_S
        await come()

    assert [line for line in caplog.messages if "is not let in (limit)" not in line] == [
        "3 more were not let in meanwhile"
    ]
    assert len(caplog.messages) == SAID_MAX + 2
