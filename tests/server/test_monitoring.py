"""Health and metrics over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ordered_pubsub.adapter import Frame
from ordered_pubsub.client.incoming import reception
from ordered_pubsub.core.trust.inspection import CAUSES
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.server import monitoring
from ordered_pubsub.server.monitoring import Monitoring, metrics
from ordered_pubsub.server.server import Server
from ordered_pubsub.wire.event_frames import STAMP
from server.systems import connect, one_stage, serving
from server.waiting import soon, until

SAMPLE = re.compile(r'ordered_pubsub_(\w+)\{stage="[\w.-]+"(?:,(?:peer|cause)="[\w.-]+")?\} (\S+)')


async def http(port: int, request: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        head, _, body = (await soon(reader.read())).decode().partition("\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    first, *rest = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body


async def get(port: int, path: str) -> tuple[int, dict[str, str], str]:
    return await http(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n\r\n")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(one_stage()) as server:
        yield server


@pytest.fixture
async def port(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(monitoring, "FRESH_S", 0.0)
    monitor = Monitoring(server.status, server.health)
    yield await monitor.open("127.0.0.1", 0)
    await monitor.close()


async def test_a_stage_says_that_it_is_well(port: int) -> None:
    status, headers, body = await get(port, "/healthz")

    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(body)["ready"] is True


async def test_a_stage_that_stops_is_not_well(server: Server, port: int) -> None:
    await server.node.answer_the_last(0.0)

    status, _, body = await get(port, "/healthz")

    assert (status, json.loads(body)["ready"]) == (503, False)


async def test_what_has_not_arrived_at_clients_is_counted_by_its_cause(
    server: Server, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "REPORT_S", 0.05)
    async with connect(server) as client:
        await client.subscribe("a")
        for forged in (b"", b"\x02abc", b"\x01abc"):
            await client._engine.reception.take_frames([Frame("a", b"forged", {STAMP: forged})])
        await until(lambda: sum(server.node.driver.not_arrived.values()) == 3)
        _, _, body = await get(port, "/metrics")

    counts = dict(re.findall(r'ordered_pubsub_not_arrived_total\{stage="main",cause="(\w+)"\} (\d+)', body))
    assert set(counts) == set(CAUSES)
    assert {cause: count for cause, count in counts.items() if count != "0"} == {"unreadable": "2", "version": "1"}


async def test_metrics_are_what_prometheus_reads(server: Server, port: int) -> None:
    async with connect(server) as client:
        await client.publish_many("a", range(7))

        status, headers, body = await get(port, "/metrics")

    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = dict(SAMPLE.findall(body))
    assert samples["events_total"] == "7"
    assert samples["clients"] == "1"
    assert samples["ready"] == "1"
    assert int(headers["Content-Length"]) == len(body)


async def test_every_line_of_the_metrics_is_a_comment_or_a_sample(server: Server) -> None:
    found = metrics({**server.status(), "links": {"eu": "up", "us": "it cannot be reached: \n no"}})

    for line in found.splitlines():
        assert SAMPLE.fullmatch(line) or re.fullmatch(r"# (HELP|TYPE) ordered_pubsub_\w+ [^\n]+", line), line
    assert 'ordered_pubsub_link_up{stage="main",peer="us"} 0' in found


async def test_a_counter_does_not_stand_still_when_it_is_large(server: Server) -> None:
    server.node.counters.events = 123_456_789_012

    assert "123456789012" in metrics(server.status())


async def test_all_metrics_are_described_and_of_a_known_kind(server: Server) -> None:
    found = metrics(server.status())

    for name, _ in SAMPLE.findall(found):
        assert f"# HELP ordered_pubsub_{name} " in found
        assert re.search(rf"# TYPE ordered_pubsub_{name} (gauge|counter)\n", found)
        assert name.endswith("_total") == (f"# TYPE ordered_pubsub_{name} counter" in found)


async def test_only_the_head_of_an_answer_may_be_asked_for(port: int) -> None:
    status, headers, body = await http(port, "HEAD /metrics HTTP/1.0\r\n\r\n")

    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize("request_line", ["POST /metrics HTTP/1.1", "GET", "hello", "DELETE /healthz HTTP/1.1", ""])
async def test_nothing_can_be_done_but_look(port: int, request_line: str) -> None:
    status, _, _ = await http(port, f"{request_line}\r\n\r\n")

    assert status == 400


async def test_nothing_else_is_there(port: int) -> None:
    for path in ("/", "/metrics/../etc/passwd", "/status", "//healthz"):
        assert (await get(port, path))[0] == 404


async def test_a_head_that_comes_in_pieces_is_waited_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in (b"GET /hea", b"lthz HTTP/1.1\r", b"\nHost: x\r\n", b"\r\n"):
        writer.write(piece)
        await asyncio.sleep(0)
    assert (await soon(reader.readline())) == b"HTTP/1.1 200 OK\r\n"
    writer.close()
    await writer.wait_closed()


async def test_a_head_without_end_is_given_up(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await soon(reader.readexactly(1))
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_who_asks_nothing_is_not_waited_for_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "REQUEST_S", 0.05)
    monitor = Monitoring(server.status, server.health)
    port = await monitor.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await soon(reader.readexactly(1))
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    await monitor.close()


async def test_requests_that_are_left_half_make_room_for_a_health_check(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "CONNECTIONS_MAX", 3)
    monitor = Monitoring(server.status, server.health)
    port = await monitor.open("127.0.0.1", 0)
    half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
    for _, writer in half:
        writer.write(b"GET /healthz HT")
    await until(lambda: len(monitor._serving) == 3)

    assert (await get(port, "/healthz"))[0] == 200

    await monitor.close()
    for _, writer in half:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_of_one_address_only_so_many_requests_are_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "CONNECTIONS_PER_ADDRESS_MAX", 2)
    monitor = Monitoring(server.status, server.health)
    port = await monitor.open("127.0.0.1", 0)
    half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]

    await until(lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in half) == 3)

    assert len(monitor._serving) == 2
    await monitor.close()
    for _, writer in half:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_who_reaches_the_address_learns_whether_the_stage_is_ready_and_nothing_else(
    server: Server, port: int
) -> None:
    async with connect(server) as client:
        await client.publish("salaries", 1)

        _, _, body = await get(port, "/healthz")

    assert json.loads(body) == {"stage": "main", "ready": True, "reason": ""}


async def test_a_stage_that_is_not_ready_says_why(server: Server, port: int) -> None:
    await server.node.answer_the_last(0.0)

    assert json.loads((await get(port, "/healthz"))[2])["reason"] == "it is about to stop"


async def test_neither_topics_nor_subscriptions_are_in_the_metrics(server: Server, port: int) -> None:
    async with connect(server, name="desk") as client, await client.subscribe("salaries", name="payroll"):
        await client.publish("salaries", 1)

        _, _, body = await get(port, "/metrics")

    assert "salaries" not in body
    assert "payroll" not in body


@pytest.mark.parametrize(("token", "status", "has_details"), [("good", 200, True), ("bad", 401, False)])
async def test_details_are_for_who_may_administer(server: Server, token: str, status: int, has_details: bool) -> None:
    monitor = Monitoring(server.status, server.health, lambda shown: shown == "good")
    port = await monitor.open("127.0.0.1", 0)

    found, _, body = await http(port, f"GET /healthz HTTP/1.1\r\nauthorization: Bearer {token}\r\n\r\n")
    await monitor.close()

    assert (found, "since_start" in body) == (status, has_details)


async def test_asking_often_does_not_make_a_stage_look_often(server: Server) -> None:
    looked = 0

    def look() -> dict[str, Any]:
        nonlocal looked
        looked += 1
        return server.status()

    monitor = Monitoring(look, server.health)
    port = await monitor.open("127.0.0.1", 0)
    for _ in range(20):
        assert (await get(port, "/metrics"))[0] == 200
    await monitor.close()

    assert looked < 20


async def test_a_port_that_is_taken_is_said(server: Server) -> None:
    with pytest.raises(UnavailableError, match=r"health and metrics cannot be served at .*; change `http`"):
        await Monitoring(server.status, server.health).open("127.0.0.1", server.port)
