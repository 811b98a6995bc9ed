"""The adapter to RabbitMQ without a broker: headers, refusals, URLs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters._rabbitmq_io import LoopServices
from ordered_pubsub_adapters.rabbitmq import NAMES, PERSISTENT, check_fits, headers_of, properties_of

# -- headers ------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50) | st.binary(max_size=50)))
def test_headers_come_back_whatever_is_in_them(headers: dict[str, bytes | str]) -> None:
    """As bytes on the wire, too."""
    properties = properties_of(headers, PERSISTENT)
    read = pika.BasicProperties()
    read.decode(b"".join(properties.encode()))
    assert headers_of(read) == headers
    assert read.delivery_mode == PERSISTENT


def test_the_content_type_is_a_property() -> None:
    """So that plain consumers find it where they look."""
    properties = properties_of({"content-type": "text/plain", "other": "x"}, PERSISTENT)
    assert (properties.content_type, properties.headers) == ("text/plain", {"other": "x"})


@pytest.mark.parametrize("value", [b"bytes", "x" * 256])
def test_a_content_type_that_is_no_property_is_a_header(value: bytes | str) -> None:
    """AMQP's has up to 255 bytes of text."""
    properties = properties_of({"content-type": value}, PERSISTENT)
    assert (properties.content_type, properties.headers) == (None, {"content-type": value})
    assert headers_of(properties) == {"content-type": value}


def test_values_that_are_no_text_are_read_by_the_rule() -> None:
    """What plain publishers send: numbers, truth values and times as text; what has parts is left out."""
    plain = {
        "int": 7,
        "bool": False,
        "decimal": Decimal("1.5"),
        "aware": datetime(2024, 5, 1, tzinfo=timezone.utc),
        "naive": datetime(2024, 5, 1),  # as pika 1.3 reads it
        "table": {"a": 1},
        "array": [1],
        "none": None,
        "bytes": b"\xff",
    }
    read = {
        "int": "7",
        "bool": "false",
        "decimal": "1.5",
        "aware": "1714521600",
        "naive": "1714521600",
        "bytes": b"\xff",
    }
    assert headers_of(pika.BasicProperties(headers=plain)) == read


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame("t", bytes(1_001)), r"'t' has 1001 bytes; at most 1000 .*message_bytes_max.*max_message_size"),
        (
            Frame("t", b"", {"x": bytes(5_000)}),
            r"headers of 53\d\d bytes; this broker takes at most 5000 \(its frame_max\)",
        ),
        (Frame("t", b"", {"é" * 128: "x"}), r"has a header whose name has 256 bytes; AMQP takes at most 255"),
    ],
)
def test_what_the_broker_would_hang_up_on_is_refused(frame: Frame, reason: str) -> None:
    with pytest.raises(AdapterError, match=reason):
        check_fits(frame, 1_000, 5_000)


# -- what pika reads from and writes to ---------------------------------------------------------------------------------


class Protocol:
    """Pika's side of a connection."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.ends: list[BaseException | None] = []
        self.has_come = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.has_come.set()
        if data == b"unreadable":
            raise ValueError("what is this?")
        self.came.append(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: BaseException | None) -> None:
        self.ends.append(error)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A socket that is connected, and the other end of it."""
    ends: asyncio.Queue[Any] = asyncio.Queue()
    async with await asyncio.start_server(lambda *end: ends.put_nowait(end), "127.0.0.1", 0) as server:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.sockets[0].getsockname())
        reader, writer = await ends.get()
        yield sock, reader, writer
        writer.close()


async def test_what_is_written_in_one_turn_of_the_loop_comes_in_order_and_what_comes_is_read() -> None:
    protocol, made = Protocol(), asyncio.get_running_loop().create_future()
    async with listening() as (sock, reader, writer):
        LoopServices(print).create_streaming_connection(lambda: protocol, sock, made.set_result)
        stream, ours = await made
        assert ours is protocol
        for piece in (b"one ", b"two ", b"three"):
            stream.write(piece)
        assert stream.get_write_buffer_size() == 13
        assert await reader.readexactly(13) == b"one two three"
        writer.write(b"answer")
        await protocol.has_come.wait()
        stream.drop("enough")
        assert await reader.read() == b""
    assert protocol.came == [b"answer"]
    assert [str(end) for end in protocol.ends] == ["enough"]


async def test_what_pika_cannot_read_is_told_and_what_is_said_of_it_still_leaves() -> None:
    protocol, made, unreadable = Protocol(), asyncio.get_running_loop().create_future(), list[Exception]()
    async with listening() as (sock, reader, writer):
        LoopServices(unreadable.append).create_streaming_connection(lambda: protocol, sock, made.set_result)
        stream, _ = await made
        writer.write(b"unreadable")
        await protocol.has_come.wait()
        stream.write(b"drop it")
        stream.hang_up("unreadable")
        assert await reader.read() == b"drop it"
    assert [str(error) for error in unreadable] == ["what is this?"]
    assert [str(end) for end in protocol.ends] == ["unreadable"]


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_pika_does_not_want_any_more_is_closed(turns: int) -> None:
    """Whenever that is; and pika is told nothing of it."""
    done: list[Any] = []
    async with listening() as (sock, reader, _):
        work = LoopServices(print).create_streaming_connection(Protocol, sock, done.append)
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = bool(done)
        work.cancel()
        if was_done:
            done[0][0].abort()  # then it is pika's
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert bool(done) == was_done


# -- URLs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("amqp://h?exchange=", "exchange is a name of 1 to 255 bytes"),
        (f"amqp://h?exchange={'e' * 256}", "exchange is a name of 1 to 255 bytes"),
        ("amqp://h?durable=yes", "durable is one of true, false"),
        ("amqp://h?expires_s=0", "expires_s is a whole number from 1 to 2592000"),
        ("amqp://h?message_bytes_max=0", "message_bytes_max is a whole number from 65536 to 536870912"),
        ("amqp://h?queue=mine", "there is no parameter 'queue'; there are exchange, durable, expires_s"),
        ("amqp://h?ca=x.pem", "ca is for encrypted connections"),
    ],
)
def test_what_does_not_fit_in_a_url_is_refused_at_once(url: str, message: str) -> None:
    """With what would fit."""
    with pytest.raises(ConfigurationError, match=message):
        load_adapter(url)


@pytest.mark.parametrize(("query", "loses"), [("", False), ("?durable=true", False), ("?durable=false", True)])
def test_what_is_not_durable_may_be_lost(query: str, loses: bool) -> None:
    """A broker that restarts has confirmed what it then forgets."""
    assert load_adapter(f"amqp://h{query}").capabilities.loses is loses
    assert load_adapter(f"amqps://h{query}").capabilities.confirms


@pytest.mark.parametrize(("query", "most"), [("", 16 * 2**20), ("?message_bytes_max=100000000", 100_000_000)])
def test_the_largest_message_is_what_every_broker_takes_unless_the_url_says_more(query: str, most: int) -> None:
    """The broker does not say; RabbitMQ 4 takes 16 MiB if nothing else is configured."""
    assert load_adapter(f"amqp://h{query}").frame_bytes_max == most


def test_topics_are_routing_keys() -> None:
    """With AMQP's separator, and without its wildcards."""
    assert [NAMES.name_of(topic) for topic in ("a/b", "a.b", "*", "#")] == ["a.b", "a%2Eb", "%2A", "%23"]
    assert len(NAMES.name_of("é" * 255).encode()) <= 255


async def test_what_was_never_opened_says_so() -> None:
    """By the name of the broker, without its password."""
    adapter = load_adapter("amqp://me:secret@h")
    with pytest.raises(AdapterError, match=r"amqp://me:\*\*\*@h is not open"):
        await adapter.publish([Frame("t", b"")])
