"""The bad line between subscribers and their broker: it loses, repeats and delays whole events, and never hurts the stream."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest

from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.testing import broker_frames, lossy
from ordered_pubsub.testing.broker_frames import FRAME_BYTES_MAX, SPLITTERS, FrameSplitter, MqttSplitter, NatsSplitter
from ordered_pubsub.testing.lossy import OVERTAKERS_MAX, Fates, Loss, Losses, LossyLine

DEADLINE_S = 20.0
EVERYTHING = Loss(drop=0.2, repeat=0.2, delay=0.2)


def mqtt(first: int, rest: bytes) -> bytes:
    """A packet."""
    length, size = bytearray(), len(rest)
    while True:
        length.append(size & 0x7F | (0x80 if size > 0x7F else 0))
        size >>= 7
        if not size:
            return bytes((first, *length)) + rest


def mqtt_event(payload: bytes, qos: int = 0) -> bytes:
    mid = b"\x00\x07" if qos else b""
    return mqtt(0x30 | qos << 1, b"\x00\x01t" + mid + b"\x00" + payload)


def nats_event(payload: bytes, head: bytes = b"") -> bytes:
    if head:
        return b"HMSG a.b 7 %d %d\r\n%b%b\r\n" % (len(head), len(head) + len(payload), head, payload)
    return b"MSG a.b 7 _R.1 %d\r\n%b\r\n" % (len(payload), payload)


NASTY = b"MSG x 1 3\r\n\r\nHMSG \x30\x82"
"""A payload that looks like the beginning of frames."""
HEAD = b"NATS/1.0\r\na: b\r\n\r\n"

MQTT_STREAM: list[tuple[bytes, bool]] = [
    (mqtt(0x20, b"\x00\x00\x00"), False),  # CONNACK
    (mqtt_event(b"one"), True),
    (mqtt_event(b"two", qos=1), False),
    (mqtt_event(b"three", qos=2), False),
    (mqtt(0xD0, b""), False),  # PINGRESP
    (mqtt_event(NASTY * 9), True),  # two bytes of length
    (mqtt_event(b"x" * 20_000), True),  # three
    (mqtt(0x31, b"\x00\x01t\x00kept"), True),  # with RETAIN
    (mqtt(0x90, b"\x00\x01\x00\x00"), False),  # SUBACK
    (mqtt_event(b""), True),
]
NATS_STREAM: list[tuple[bytes, bool]] = [
    (b'INFO {"server_id":"MSG ","max_payload":1048576}\r\n', False),
    (b"PING\r\n", False),
    (nats_event(b"one"), True),
    (b"+OK\r\n", False),
    (nats_event(NASTY * 9), True),
    (nats_event(NASTY, HEAD), True),
    (b"-ERR 'what'\r\n", False),
    (b"msg a.b 7 5\r\nlower\r\n", True),
    (b"MSG\ta\t7\t1\r\n\n\r\n", True),
    (nats_event(b"x" * 20_000), True),
    (b"PONG\r\n", False),
    (nats_event(b""), True),
]
STREAMS = {"mqtt": MQTT_STREAM, "nats": NATS_STREAM}


def pieces_of(data: bytes, how: str) -> list[bytes]:
    """The same bytes as they may be read: all at once, each by itself, or in fragments of any size."""
    if how == "at once":
        return [data]
    if how == "byte by byte":
        return [data[at : at + 1] for at in range(len(data))]
    draw, pieces, at = Random(how), [], 0
    while at < len(data):
        size = draw.choice((1, 2, 3, 7, 40, 5_000))
        pieces.append(data[at : at + size])
        at += size
    return pieces


HOW = ["at once", "byte by byte", *(f"fragments {seed}" for seed in range(20))]


def events_of(splitter: FrameSplitter, pieces: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """All that comes out, and the events in it."""
    out = [piece for data in pieces for piece in splitter.feed(data)]
    return b"".join(data for data, _ in out), [data for data, is_event in out if is_event]


# -- the frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", STREAMS)
def test_whole_events_are_found_and_all_bytes_come_out_in_their_order(kind: str, how: str) -> None:
    stream = STREAMS[kind]
    data = b"".join(frame for frame, _ in stream)
    splitter = SPLITTERS[kind]()
    out, events = events_of(splitter, pieces_of(data, how))

    assert out == data
    assert events == [frame for frame, is_event in stream if is_event]
    assert splitter.is_between


@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_no_event_is_not_kept_waiting(kind: str) -> None:
    splitter = SPLITTERS[kind]()
    begun = {"mqtt": mqtt(0x20, b"x" * 100)[:50], "nats": b'INFO {"server'}[kind]

    assert b"".join(data for data, _ in splitter.feed(begun)) == begun
    assert not splitter.is_between


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        ("mqtt", mqtt_event(b"x" * FRAME_BYTES_MAX)),
        ("nats", nats_event(b"x" * FRAME_BYTES_MAX)),
        ("nats", nats_event(b"x" * FRAME_BYTES_MAX, HEAD)),
    ],
)
def test_a_frame_that_is_too_large_to_be_held_passes_as_it_comes(kind: str, frame: bytes) -> None:
    splitter = SPLITTERS[kind]()
    after = STREAMS[kind][2 if kind == "nats" else 1][0]
    held_max, out = 0, b""
    for data in pieces_of(frame, "fragments 1"):
        out += b"".join(piece for piece, is_event in splitter.feed(data) if not is_event)
        held_max = max(held_max, len(splitter._held))

    assert out == frame
    assert held_max < 100
    assert splitter.feed(after) == [(after, True)]


@pytest.mark.parametrize(
    ("splitter", "data"),
    [
        (MqttSplitter(), b"\x30\xff\xff\xff\xff\x01"),  # a length of five bytes
        (NatsSplitter(), b"MSG a 7 many\r\n"),
        (NatsSplitter(), b"MSG " + b"a" * broker_frames.LINE_BYTES_MAX),
    ],
)
def test_what_is_not_understood_passes_and_so_does_all_that_follows(splitter: FrameSplitter, data: bytes) -> None:
    after = mqtt_event(b"one") + nats_event(b"two")
    out, events = events_of(splitter, [data, after[:10], after[10:]])

    assert out == data + after
    assert events == []
    assert not splitter.is_between


# -- the fates ------------------------------------------------------------------------------------------------------------


def numbered(kind: str, count: int) -> list[bytes]:
    """Events, and after every tenth something that is none."""
    make = {"mqtt": mqtt_event, "nats": nats_event}[kind]
    other = {"mqtt": mqtt(0xD0, b""), "nats": b"PING\r\n"}[kind]
    frames: list[bytes] = []
    for number in range(count):
        frames.append(make(b"<%d>" % number))
        if number % 10 == 9:
            frames.append(other)
    return frames


def fates_of(kind: str, loss: Loss, seed: int = 1) -> Fates:
    return Fates(SPLITTERS[kind](), loss, Random(seed), Losses())


def arrived(data: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"<(\d+)>", data)]


@pytest.mark.parametrize("how", ["at once", "fragments 1", "fragments 2"])
@pytest.mark.parametrize("kind", STREAMS)
def test_what_comes_out_is_whole_frames_and_each_event_has_one_fate(kind: str, how: str) -> None:
    frames = numbered(kind, 2_000)
    fates = fates_of(kind, EVERYTHING)
    out = b"".join(fates.feed(data) for data in pieces_of(b"".join(frames), how)) + fates.release()
    whole, events = events_of(SPLITTERS[kind](), [out])
    count, losses = Counter(arrived(out)), fates.losses

    assert whole == out
    assert set(events) <= set(frames)
    assert len(out) - sum(map(len, events)) == sum(len(frame) for frame in frames if b"<" not in frame)
    assert losses.events == 2_000
    assert (losses.dropped, losses.repeated) == (2_000 - len(count), sum(1 for n in count.values() if n == 2))
    assert all(300 < n < 500 for n in (losses.dropped, losses.repeated, losses.delayed))
    assert max(count.values()) == 2


def test_the_same_seed_has_the_same_fates_however_it_is_read() -> None:
    data = b"".join(numbered("nats", 500))
    one, same, other = (fates_of("nats", EVERYTHING, seed).feed(data) for seed in (1, 1, 2))
    fates = fates_of("nats", EVERYTHING)

    assert one == same != other
    assert arrived(b"".join(fates.feed(piece) for piece in pieces_of(data, "byte by byte"))) == arrived(one)


def test_what_is_delayed_is_overtaken_by_some_events_and_not_by_more() -> None:
    fates = fates_of("mqtt", Loss(delay=0.2))
    came = arrived(fates.feed(b"".join(numbered("mqtt", 2_000))) + fates.release())
    overtaken = [sum(1 for other in came[:at] if other > number) for at, number in enumerate(came)]

    assert sorted(came) == list(range(2_000))
    assert sum(1 for by in overtaken if by) > 300
    assert max(overtaken) <= OVERTAKERS_MAX


def test_no_more_is_held_than_may_be_overtaken() -> None:
    fates = fates_of("nats", Loss(delay=1.0))
    for frame in numbered("nats", 1_000):
        fates.feed(frame)
        assert len(fates._held) <= OVERTAKERS_MAX


def test_nothing_is_put_into_the_middle_of_a_frame() -> None:
    fates = fates_of("mqtt", Loss(delay=1.0))
    event, other = mqtt_event(b"<1>"), mqtt(0x20, b"x" * 100)

    assert fates.feed(event) == b""
    assert fates.feed(other[:50]) == other[:50]
    assert fates.release() == b""
    assert fates.feed(other[50:]) == other[50:]
    assert fates.release() == event


def test_with_qos_1_and_2_nothing_is_lost() -> None:
    data = b"".join(mqtt_event(b"<%d>" % number, qos=1 + number % 2) for number in range(100))

    assert fates_of("mqtt", Loss(drop=1.0)).feed(data) == data


@pytest.mark.parametrize(
    "shares", [{"drop": -0.1}, {"repeat": 1.1}, {"drop": 0.5, "repeat": 0.4, "delay": 0.2}, {"drop": float("nan")}]
)
def test_shares_that_do_not_fit_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="does not fit"):
        Loss(**shares)


# -- the line -------------------------------------------------------------------------------------------------------------


class Broker(asyncio.Protocol):
    """Says something, then what it is told, and hangs up when it is told to."""

    says = b""
    last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.says)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.last = (self.last + data)[-6:]
        if self.last == b"QUIT\r\n":
            self.transport.close()


@asynccontextmanager
async def line_to(says: bytes, loss: Loss, kind: str = "nats") -> AsyncIterator[LossyLine]:
    """A line to a broker that says something at once."""
    make = type("Saying", (Broker,), {"says": says})
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        async with LossyLine(server.sockets[0].getsockname()[:2], kind, loss) as line:
            yield line
    finally:
        server.close()


async def heard(line: LossyLine, tell: bytes) -> bytes:
    """All that comes when this is told, until the connection ends."""
    reader, writer = await asyncio.open_connection(line.host, line.port)
    writer.write(tell)
    data = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    await writer.wait_closed()
    return data


async def test_a_line_without_loss_changes_nothing() -> None:
    told = b"".join(numbered("nats", 30_000)) + b"QUIT\r\n"
    async with line_to(b"INFO {}\r\n", Loss()) as line:
        assert await heard(line, told) == b"INFO {}\r\n" + told
        assert line.losses == Losses(events=30_000)


async def test_a_line_loses_repeats_and_delays_what_the_broker_says() -> None:
    told = b"".join(numbered("nats", 2_000)) + b"QUIT\r\n"
    async with line_to(b"INFO {}\r\n", EVERYTHING) as line:
        said = await heard(line, told)
        losses = line.losses

    assert said.startswith(b"INFO {}\r\n")
    assert said.count(b"PING\r\n") == 200
    assert len(set(arrived(said))) == 2_000 - losses.dropped
    assert len(arrived(said)) == 2_000 - losses.dropped + losses.repeated
    assert arrived(said) != sorted(arrived(said))


async def test_what_the_subscriber_says_is_left_alone() -> None:
    """The broker says back all that it has heard, as something that is no event."""
    told = b"".join(mqtt(0x20, b"<%d>" % number) for number in range(100)) + mqtt(0x20, b"QUIT\r\n")
    async with line_to(b"", Loss(drop=1.0), "mqtt") as line:
        assert await heard(line, told) == told


async def test_what_is_delayed_comes_also_when_nothing_follows() -> None:
    event = nats_event(b"<1>")
    async with line_to(event, Loss(delay=1.0)) as line:
        reader, writer = await asyncio.open_connection(line.host, line.port)
        assert await asyncio.wait_for(reader.readexactly(len(event)), DEADLINE_S) == event
        writer.close()
        await writer.wait_closed()


async def test_who_reads_nothing_makes_the_broker_wait() -> None:
    """Otherwise the line would have to keep all that the broker says."""
    says = b"x" * (1 << 26)
    async with line_to(says, Loss()) as line:
        reader, writer = await asyncio.open_connection(line.host, line.port)
        give_up_at = line.loop.time() + DEADLINE_S
        while not any(_is_told_to_wait(side) for side in line._sides):
            assert line.loop.time() < give_up_at
            await asyncio.sleep(0)
        assert sum(side.transport.get_write_buffer_size() for side in line._sides) < len(says) // 8
        assert await asyncio.wait_for(reader.readexactly(len(says)), DEADLINE_S) == says
        writer.close()
        await writer.wait_closed()


def _is_told_to_wait(side: lossy._Side) -> bool:
    return side.other is not None and not side.transport.is_closing() and not side.transport.is_reading()


async def test_where_nobody_listens_a_connection_is_broken(unused_tcp_port: int) -> None:
    async with LossyLine(("127.0.0.1", unused_tcp_port), "nats", Loss()) as line:
        reader, writer = await asyncio.open_connection(line.host, line.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
        writer.close()


async def test_only_what_is_understood_is_taken() -> None:
    with pytest.raises(ConfigurationError, match="kind='amqp' does not fit"):
        LossyLine(("127.0.0.1", 1), "amqp", Loss())
