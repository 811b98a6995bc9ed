"""The pieces of the adapter to RabbitMQ, without a broker: bytes, the window, batches, the seam to pika."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from struct import pack
from typing import Any

import attrs
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.connection import Connection
from pika.data import encode_table
from pika.exceptions import ChannelClosedByBroker, ChannelWrongStateError
from pika.frame import Body, Header, Heartbeat, Method

from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters import rabbitmq_connection, rabbitmq_link, rabbitmq_queue, rabbitmq_wire
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.rabbitmq import NAMES, RabbitMqAdapter
from ordered_pubsub_adapters.rabbitmq_connection import Line, WireConnection, explain
from ordered_pubsub_adapters.rabbitmq_consuming import Assembly, Batch, Delivering
from ordered_pubsub_adapters.rabbitmq_link import RETRY_MOST_S, Link
from ordered_pubsub_adapters.rabbitmq_publishing import (
    METHODS_MAX,
    TURN_MESSAGES,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    Sink,
    Window,
)
from ordered_pubsub_adapters.rabbitmq_queue import Queue

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""
FRAME_MAX = 131_072
CHANNEL = 7
STAMP = bytes(range(100))

names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
headers = st.dictionaries(
    names.filter(lambda name: name != "content-type"), st.binary(max_size=50) | st.text(max_size=50)
)


# -- bytes: out ---------------------------------------------------------------------------------------------------------


def written_by_pika(frame: Frame, exchange: str, routing_key: str) -> bytes:
    """A persistent message as pika writes it."""
    table = {name: value for name, value in frame.headers.items() if name != "content-type"}
    properties = spec.BasicProperties(
        content_type=frame.headers.get("content-type"), headers=table or None, delivery_mode=2
    )
    wires = [
        Method(CHANNEL, spec.Basic.Publish(exchange=exchange, routing_key=routing_key)),
        Header(CHANNEL, len(frame.payload), properties),
        *([Body(CHANNEL, frame.payload)] if frame.payload else []),
    ]
    return b"".join(wire.marshal() for wire in wires)


def written(frame: Frame, exchange: str, routing_key: str) -> bytes:
    """The same by us."""
    method = rabbitmq_wire.publish_method(CHANNEL, exchange, routing_key)
    header = rabbitmq_wire.header_frame(CHANNEL, frame, rabbitmq_wire.PERSISTENT, FRAME_MAX)
    return b"".join([method, header, *rabbitmq_wire.body_frames(CHANNEL, frame.payload, FRAME_MAX)])


@given(
    payload=st.binary(max_size=300),
    table=headers,
    content_type=st.none() | st.text(max_size=20),
    exchange=names,
    routing_key=names,
)
def test_a_message_is_written_as_pika_writes_it(
    payload: bytes, table: dict[str, bytes | str], content_type: str | None, exchange: str, routing_key: str
) -> None:
    """Byte for byte."""
    both = {**table, **({} if content_type is None else {"content-type": content_type})}
    frame = Frame("topic", payload, both)
    assert written(frame, exchange, routing_key) == written_by_pika(frame, exchange, routing_key)


@pytest.mark.parametrize("size", [0, 1, 91, 92, 93, 184, 185, 1_000])
def test_a_payload_is_cut_into_frames_that_the_broker_takes(size: int) -> None:
    """None is longer than agreed, none is empty, and together they are the payload."""
    payload = bytes(number % 251 for number in range(size))
    data = b"".join(rabbitmq_wire.body_frames(CHANNEL, payload, 100))
    parts = []
    while data:
        consumed, frame = pika.frame.decode_frame(data)
        assert consumed <= 100
        assert frame.fragment
        parts.append(frame.fragment)
        data = data[consumed:]
    assert b"".join(parts) == payload


def test_headers_that_do_not_fit_into_a_frame_are_refused() -> None:
    """AMQP cannot cut a header; the broker would drop the connection."""
    with pytest.raises(AdapterError, match=r"'t' has headers of 131\d\d\d bytes; this broker takes at most 131064"):
        rabbitmq_wire.header_frame(CHANNEL, Frame("t", b"", {"x": b"." * 131_050}), 2, FRAME_MAX)


def test_a_header_name_that_is_too_long_is_refused() -> None:
    """AMQP has one byte for its length."""
    with pytest.raises(AdapterError, match=r"a header whose name has 256 bytes; AMQP takes at most 255"):
        rabbitmq_wire.header_frame(CHANNEL, Frame("t", b"", {"n" * 256: b""}), 2, FRAME_MAX)


@pytest.mark.parametrize("value", ["t" * 256, b"bytes"])
def test_a_content_type_that_is_no_property_is_a_header(value: bytes | str) -> None:
    """It comes back as it was."""
    header = rabbitmq_wire.header_frame(CHANNEL, Frame("t", b"", {"content-type": value}), 2, FRAME_MAX)
    assert rabbitmq_wire.read_header(header, 7) == (0, {"content-type": value})


# -- bytes: in ----------------------------------------------------------------------------------------------------------


def table(fields: dict[Any, Any]) -> bytes:
    """A table as pika writes it."""
    pieces: list[bytes] = []
    encode_table(pieces, fields)
    return b"".join(pieces)


def field(kind: bytes, data: bytes) -> bytes:
    """A table with the field `odd`, which pika would not write, before the field `after`."""
    fields = b"\x03odd" + kind + data + b"\x05afterS\x00\x00\x00\x03yes"
    return pack(">I", len(fields)) + fields


@given(table=headers, content_type=st.none() | st.text(max_size=20), encoding=st.none() | st.text(max_size=5))
def test_what_pika_writes_is_read(
    table: dict[str, bytes | str], content_type: str | None, encoding: str | None
) -> None:
    """Properties that nobody asked for are passed over."""
    properties = spec.BasicProperties(
        content_type, encoding, headers=table, delivery_mode=2, priority=3, correlation_id="c", timestamp=1, app_id="a"
    )
    data = Header(CHANNEL, 12, properties).marshal()
    expected = {**table, **({} if content_type is None else {"content-type": content_type})}
    assert rabbitmq_wire.read_header(data, 7) == (12, expected)


def test_values_that_are_no_text_are_read_by_the_rule() -> None:
    """Numbers, truth values and times arrive as text; tables, arrays and empty fields are left out."""
    at = datetime(2024, 5, 1, tzinfo=timezone.utc)
    texts: dict[str, bytes | str] = {"text": "ü", "bytes": b"\xff"}
    numbers = {"int": -7, "long": 2**40, "yes": True, "no": False, "decimal": Decimal("-12.50"), "time": at}
    others = {"table": {"deep": {"deeper": 1}}, "array": [1, "two", [3]], "nothing": None}
    found = rabbitmq_wire.read_table(table({**numbers, **others, **texts}), 0)
    assert {name: found.pop(name) for name in texts} == texts
    assert list(found) == list(numbers)
    assert list(found.values()) == ["-7", str(2**40), "true", "false", "-12.5", "1714521600"]


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (b"b", b"\xff", "-1"),
        (b"B", b"\xff", "255"),
        (b"s", b"\xff\xfe", "-2"),
        (b"u", b"\xff\xfe", "65534"),
        (b"i", b"\xff\xff\xff\xff", "4294967295"),
        (b"L", b"\xff" * 8, "-1"),
        (b"f", pack(">f", 0.5), "0.5"),
        (b"d", pack(">d", 1.25), "1.25"),
        (b"T", pack(">Q", 1_772_000_000_000), "1772000000000"),
        (b"T", b"\xff" * 8, "18446744073709551615"),
        (b"S", b"\x00\x00\x00\x01\xff", b"\xff"),
    ],
)
def test_fields_that_pika_does_not_write_or_cannot_read(kind: bytes, data: bytes, value: bytes | str) -> None:
    """Among them the times in milliseconds that make pika drop the connection."""
    assert rabbitmq_wire.read_table(field(kind, data), 0) == {"odd": value, "after": "yes"}


def test_a_field_of_an_unknown_type_ends_the_headers() -> None:
    """Nobody knows how long it is; the message still arrives."""
    data = table({"before": "yes"})
    size = len(data) - 4
    unknown = field(b"?", b"\x00")[4:]
    assert rabbitmq_wire.read_table(pack(">I", size + len(unknown)) + data[4:] + unknown, 0) == {"before": "yes"}


def test_a_name_that_is_not_utf8_is_left_out() -> None:
    """A header's name is text."""
    fields = b"\x01\xffS\x00\x00\x00\x01x\x01yS\x00\x00\x00\x01z"
    assert rabbitmq_wire.read_table(pack(">I", len(fields)) + fields, 0) == {"y": "z"}


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_headers_fail(data: bytes) -> None:
    """Whatever a publisher has sent."""
    found = rabbitmq_wire.read_table(data, 0)
    assert all(isinstance(name, str) and isinstance(value, (str, bytes)) for name, value in found.items())


# -- the seam to pika ---------------------------------------------------------------------------------------------------


class Offline(WireConnection):
    """A connection that never connects by itself: the test is its event loop's side."""

    def _adapter_connect_stream(self) -> None:
        self.wire = Wire()
        self._proto_connection_made(self.wire)


@attrs.define
class Wire:
    """What pika writes to."""

    writes: list[bytes] = attrs.field(factory=list)

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def abort(self) -> None:
        """Nothing to abort."""


async def offline() -> Offline:
    """A connection that has sent its greeting."""
    connection = Offline(pika.ConnectionParameters())
    await asyncio.sleep(0)
    assert connection.wire.writes == [b"AMQP\x00\x00\x09\x01"]
    connection.wire.writes.clear()
    return connection


async def test_what_is_sent_in_one_turn_of_the_loop_is_written_at_once() -> None:
    """pika's own frames too, and in their order."""
    connection = await offline()
    connection.send(b"one")
    connection._send_frame(Heartbeat())
    connection.send(b"two")
    assert connection.wire.writes == []
    await asyncio.sleep(0)
    assert connection.wire.writes == [b"one" + Heartbeat().marshal() + b"two"]


async def test_what_is_sent_on_a_connection_that_broke_meanwhile_is_dropped() -> None:
    """As pika does it."""
    connection = await offline()
    connection.send(b"one")
    connection._proto_connection_lost(OSError("cut"))
    await asyncio.sleep(0)
    assert connection.wire.writes == []
    assert "cut" in explain(connection.ended.result())


def delivery(tag: int, name: str, payload: bytes, table: dict[str, Any] | None = None) -> bytes:
    """A message for a consumer as the broker sends it, by pika's means."""
    wires = [
        Method(CHANNEL, spec.Basic.Deliver("consumer", tag, False, "exchange", name)),
        Header(CHANNEL, len(payload), spec.BasicProperties(headers=table)),
        *(Body(CHANNEL, payload[at : at + 50]) for at in range(0, len(payload), 50)),
    ]
    return b"".join(wire.marshal() for wire in wires)


def topic_of(name: str) -> str | None:
    """Of all but one."""
    return None if name == "unknown" else name.replace(".", "/")


@given(st.lists(st.integers(1, 120), max_size=30))
def test_messages_are_put_together_however_the_bytes_come(cuts: list[int]) -> None:
    """In pieces of any size, with other frames between them."""

    async def run() -> None:
        connection = await offline()
        batch = Batch(lambda tag: None)
        connection.tap(CHANNEL, Assembly(topic_of, batch, lambda: None).take)
        data = b"".join(
            [
                delivery(1, "a.b", b"", {"x": STAMP}),
                Heartbeat().marshal(),
                delivery(2, "unknown", b"x" * 60),
                delivery(3, "c", bytes(range(130))),
            ]
        )
        before = connection.bytes_received
        for cut in [*cuts, len(data)]:
            piece, data = data[:cut], data[cut:]
            if piece:
                connection._proto_data_received(piece)
        assert batch.take() == ([Frame("a/b", b"", {"x": STAMP}), Frame("c", bytes(range(130)))], 3)
        assert connection.bytes_received > before + 200  # the heartbeat's watch

    asyncio.run(run())


async def test_a_method_that_announces_no_message_is_for_pika(caplog: pytest.LogCaptureFixture) -> None:
    """Answers and refusals come on the consumer's channel, too."""
    connection = await offline()
    connection.tap(CHANNEL, Assembly(topic_of, Batch(lambda tag: None), lambda: None).take)
    connection._proto_data_received(Method(CHANNEL, spec.Channel.CloseOk()).marshal())
    assert "frame for unregistered channel 7" in caplog.text


async def test_a_broker_of_another_protocol_is_told_apart() -> None:
    """It answers with the protocol that it speaks, which is no frame."""
    connection = await offline()
    connection._proto_data_received(b"AMQP\x00\x01\x00\x00")
    assert connection._unread == b""


def test_a_message_that_pika_read_itself_is_not_dropped_in_silence() -> None:
    """A version of pika that does not go through the seam any more would be noticed."""
    assembly = Assembly(topic_of, Batch(lambda tag: None), lambda: None)
    with pytest.raises(AdapterError, match="this version of pika does not fit"):
        assembly.passed_by(None, None, None, b"")


@pytest.mark.parametrize("name", ["_adapter_emit_data", "_on_data_available", "_terminate_stream"])
def test_a_pika_without_the_seam_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the adapter is made, and with what to install."""
    owner = next(kind for kind in AsyncioConnection.__mro__ if name in vars(kind))
    monkeypatch.setattr(owner, name, lambda self, something_else: None)
    with pytest.raises(ConfigurationError, match=rf"pika .* does not have {name}\(.*install 'pika>=1.3.2,<2'"):
        RabbitMqAdapter("amqp://h")


def test_a_pika_that_keeps_its_state_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of it would be missing in the middle of a connection."""
    begin = Connection._init_connection_state

    def begin_otherwise(connection: Connection) -> None:
        begin(connection)
        del connection.bytes_received

    monkeypatch.setattr(Connection, "_init_connection_state", begin_otherwise)
    with pytest.raises(ConfigurationError, match=r"does not have bytes_received"):
        RabbitMqAdapter("amqp://h")


# -- the window ---------------------------------------------------------------------------------------------------------


@attrs.define
class Broker:
    """The other end of a window: reads what was sent."""

    sent: list[bytes] = attrs.field(factory=list)

    def send(self, data: bytes) -> None:
        while data:
            consumed, frame = pika.frame.decode_frame(data)
            if isinstance(frame, Body):
                self.sent.append(frame.fragment)
            data = data[consumed:]


def window_to(broker: Broker) -> Window:
    """A window with a channel."""
    window = Window("exchange", NAMES.name_of, rabbitmq_wire.PERSISTENT)
    window.attach(Sink(broker.send, CHANNEL, FRAME_MAX))
    return window


def frames(topic: str, count: int, size: int = 0) -> list[Frame]:
    """Frames that can be told apart."""
    return [Frame(topic, f"{topic}{number}".encode() + bytes(size)) for number in range(count)]


async def test_no_more_than_the_window_is_sent_unconfirmed() -> None:
    """Each confirmation makes room."""
    broker = Broker()
    window = window_to(broker)
    done = window.publish(frames("t", WINDOW_MESSAGES + 3))
    assert len(broker.sent) == WINDOW_MESSAGES
    window.settle(2, True, True)
    assert len(broker.sent) == WINDOW_MESSAGES + 2
    window.settle(WINDOW_MESSAGES + 2, True, True)
    assert not done.done()
    window.settle(WINDOW_MESSAGES + 3, False, True)
    await done
    assert broker.sent == [frame.payload for frame in frames("t", WINDOW_MESSAGES + 3)]


async def test_the_window_is_bounded_in_bytes_too_and_lets_one_large_message_through() -> None:
    """A message beyond the bound waits until it is alone."""
    broker = Broker()
    window = window_to(broker)
    window.publish([Frame("t", b"small"), Frame("t", bytes(WINDOW_BYTES)), Frame("t", b"next")])
    assert sum(map(len, broker.sent)) == 5 + WINDOW_BYTES
    window.settle(1, False, True)
    assert broker.sent[-1] != b"next"
    window.settle(2, False, True)
    assert broker.sent[-1] == b"next"


async def test_calls_take_turns() -> None:
    """A short one does not wait until a long one is through."""
    broker = Broker()
    window = window_to(broker)
    window.publish(frames("long", WINDOW_MESSAGES * 4))
    short = window.publish(frames("short", 3))
    window.settle(TURN_MESSAGES, True, True)
    window.settle(TURN_MESSAGES * 2, True, True)
    assert {b"short0", b"short1", b"short2"} <= set(broker.sent)
    window.settle(len(broker.sent), True, True)
    await short


async def test_what_the_broker_refuses_fails_its_call_only() -> None:
    """A refusal may stand for many, as a confirmation does."""
    window = window_to(Broker())
    first, second, third = (window.publish(frames(topic, 2)) for topic in "abc")
    window.settle(4, True, False)
    window.settle(6, True, True)
    for refused in (first, second):
        with pytest.raises(AdapterError, match=r"refused a message \(basic.nack\)"):
            await refused
    await third


async def test_a_channel_that_is_gone_fails_what_was_not_confirmed() -> None:
    """What waited for room as well; and a new one starts with tag 1."""
    broker = Broker()
    window = window_to(broker)
    confirmed, half, waiting = (
        window.publish(frames(topic, count)) for topic, count in (("a", 1), ("b", 400), ("c", 1))
    )
    window.settle(3, True, True)
    window.detach("somebody pulled the plug")
    await confirmed
    with pytest.raises(AdapterError, match="did not confirm 398 messages: somebody pulled the plug"):
        await half
    with pytest.raises(AdapterError, match="did not confirm 1 messages"):
        await waiting
    with pytest.raises(AdapterError, match="no connection to publish on: somebody pulled the plug"):
        window.publish(frames("d", 1))
    window.attach(Sink(broker.send, CHANNEL, FRAME_MAX))
    again = window.publish(frames("e", 1))
    window.settle(1, False, True)
    await again


async def test_a_call_that_was_cancelled_gives_its_place_to_others() -> None:
    """What it has sent is still counted until it is confirmed."""
    broker = Broker()
    window = window_to(broker)
    given_up, other = window.publish(frames("a", 1_000)), window.publish(frames("b", 1))
    sent = len(broker.sent)
    given_up.cancel()
    window.settle(sent, True, True)
    assert broker.sent[sent:] == [b"b0"]
    window.settle(sent + 1, False, True)
    await other


async def test_a_message_that_the_broker_would_not_take_is_refused_before_any_of_its_call_is() -> None:
    """It would close the channel, again and again."""
    broker = Broker()
    window = Window("exchange", NAMES.name_of, rabbitmq_wire.PERSISTENT, 1_000)
    window.attach(Sink(broker.send, CHANNEL, FRAME_MAX))
    with pytest.raises(AdapterError, match=r"'t' has 1001 bytes; at most 1000 .*message_bytes_max.*max_message_size"):
        window.publish([Frame("t", b"fine"), Frame("t", bytes(1_001))])
    assert broker.sent == []
    window.publish([Frame("t", bytes(1_000))])
    assert broker.sent == [bytes(1_000)]


async def test_a_message_that_cannot_be_sent_is_refused_before_any_of_its_call_is() -> None:
    """Or those before it would be sent at each attempt."""
    broker = Broker()
    window = window_to(broker)
    with pytest.raises(AdapterError, match="131064"):
        window.publish([Frame("t", b"fine"), Frame("t", b"", {"x": bytes(FRAME_MAX)})])
    assert broker.sent == []


async def test_the_first_frames_of_many_topics_are_kept_for_some() -> None:
    """Memory does not grow with the number of topics."""
    window = window_to(Broker())
    for number in range(METHODS_MAX + 10):
        window.publish(frames(f"t{number}", 1))
        window.settle(number + 1, False, True)
    assert 0 < len(window._methods) <= METHODS_MAX


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_call_is_done_exactly_when_all_its_messages_are_confirmed(counts: list[int], random: Any) -> None:
    """However the confirmations come: one by one, in another order, many at once."""

    async def run() -> None:
        broker = Broker()
        window = window_to(broker)
        calls = [window.publish(frames(f"{index}.", count)) for index, count in enumerate(counts)]
        confirmed: set[int] = set()
        while len(confirmed) < sum(counts):
            tag = random.choice([tag for tag in range(1, len(broker.sent) + 1) if tag not in confirmed])
            is_multiple = random.random() < 0.3
            confirmed.update(range(1, tag + 1) if is_multiple else (tag,))
            window.settle(tag, is_multiple, True)
            taken = [broker.sent[tag - 1].split(b".")[0] for tag in confirmed]
            for index, (call, count) in enumerate(zip(calls, counts, strict=True)):
                assert call.done() == (taken.count(b"%d" % index) == count)
        assert window._unconfirmed_bytes == 0

    asyncio.run(run())


# -- delivering ---------------------------------------------------------------------------------------------------------


class Acknowledged:
    """The tags that the broker was told of."""

    def __init__(self) -> None:
        self.tags: list[int] = []
        self._news = asyncio.Event()

    def __call__(self, tag: int) -> None:
        self.tags.append(tag)
        self._news.set()

    async def until(self, tags: list[int]) -> None:
        while self.tags != tags:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), PATIENCE_S)


class Consumer:
    """Takes batches when it is told to."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.called = asyncio.Event()
        self.may_return = asyncio.Event()

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        self.frames.extend(frames)
        self.called.set()
        await self.may_return.wait()


async def test_a_batch_is_acknowledged_once_and_only_when_it_was_taken() -> None:
    """What comes meanwhile is the next batch."""
    consumer, acknowledged = Consumer(), Acknowledged()
    delivering = Delivering(consumer.on_frames)
    batch = Batch(acknowledged)
    on_news = delivering.attach(batch)
    task = asyncio.create_task(delivering.run())
    batch.frames, batch.last_tag = frames("a", 3), 3
    on_news()
    await consumer.called.wait()
    batch.frames, batch.last_tag = frames("b", 2), 5
    on_news()
    assert (consumer.frames, acknowledged.tags) == (frames("a", 3), [])
    consumer.may_return.set()
    await acknowledged.until([3, 5])
    assert consumer.frames == [*frames("a", 3), *frames("b", 2)]
    task.cancel()
    await asyncio.wait((task,))


async def test_what_came_on_a_channel_that_is_gone_is_not_acknowledged_and_not_given_on() -> None:
    """The broker sends it again; tags mean nothing on another channel."""
    consumer, old, new = Consumer(), Acknowledged(), Acknowledged()
    delivering = Delivering(consumer.on_frames)
    first = Batch(old, frames("a", 1), 1)
    delivering.attach(first)()
    task = asyncio.create_task(delivering.run())
    await consumer.called.wait()
    first.frames, first.last_tag = frames("lost", 1), 2
    delivering.detach()
    delivering.attach(Batch(new, frames("a", 1), 1))()
    consumer.may_return.set()
    await new.until([1])
    assert old.tags == []
    assert consumer.frames == frames("a", 1) * 2
    task.cancel()
    await asyncio.wait((task,))


async def test_nothing_is_acknowledged_on_a_new_channel_before_something_came_on_it() -> None:
    """Tag 0 stands for all that is outstanding, read or not."""
    consumer, old, new = Consumer(), Acknowledged(), Acknowledged()
    delivering = Delivering(consumer.on_frames)
    first, second = Batch(old, frames("a", 1), 1), Batch(new)
    on_news = delivering.attach(first)
    on_news()
    task = asyncio.create_task(delivering.run())
    await consumer.called.wait()
    on_news()  # more came, and then the connection broke
    delivering.detach()
    on_more = delivering.attach(second)
    consumer.may_return.set()
    await asyncio.sleep(0)
    second.frames, second.last_tag = frames("a", 2), 2
    on_more()
    await new.until([2])
    assert old.tags == []
    task.cancel()
    await asyncio.wait((task,))


async def test_a_wake_up_that_was_meant_for_a_channel_that_is_gone_acknowledges_nothing() -> None:
    """It may be on its way already when the next channel is attached."""
    consumer, new = Consumer(), Acknowledged()
    delivering = Delivering(consumer.on_frames)
    task = asyncio.create_task(delivering.run())
    await asyncio.sleep(0)
    delivering.attach(Batch(Acknowledged()))()
    second = Batch(new)
    on_more = delivering.attach(second)
    await asyncio.sleep(0)
    second.last_tag = 1
    on_more()
    await new.until([1])
    task.cancel()
    await asyncio.wait((task,))


# -- coming back --------------------------------------------------------------------------------------------------------


async def test_pauses_between_attempts_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each is chosen by chance, so that not all clients come at once."""
    pauses: list[tuple[float, float]] = []

    async def refuse(*_: object) -> WireConnection:
        if len(pauses) >= 10:
            raise asyncio.CancelledError  # the end of the test
        raise AdapterError("not now")

    def draw(least: float, most: float) -> float:
        pauses.append((least, most))
        return 0.0

    monkeypatch.setattr(rabbitmq_link, "connect", refuse)
    monkeypatch.setattr("ordered_pubsub.supervision.random.uniform", draw)
    link = Link(RabbitMqAdapter("amqp://h")._url, "testing", lambda _: asyncio.sleep(0), print, print, print)
    with pytest.raises(asyncio.CancelledError):
        await link._come_back()
    assert pauses[:3] == [(0.05, 0.1), (0.1, 0.2), (0.2, 0.4)]
    assert pauses[-1] == (RETRY_MOST_S / 2, RETRY_MOST_S)
    assert link.reason == "not now"


async def test_whatever_goes_wrong_the_next_attempt_may_succeed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected is told with where it happened."""
    connection, attempts = await offline(), 0

    async def connect(*_: object) -> WireConnection:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ChannelWrongStateError("Channel is closed.")
        return connection

    monkeypatch.setattr(rabbitmq_link, "connect", connect)
    monkeypatch.setattr(rabbitmq_link, "RETRY_FIRST_S", 0.0)
    link = Link(RabbitMqAdapter("amqp://h")._url, "testing", lambda _: asyncio.sleep(0), print, print, print)
    assert await asyncio.wait_for(link._come_back(), PATIENCE_S) is connection
    assert "Channel is closed.; trying again" in caplog.text
    assert "Traceback" in caplog.text


async def test_binding_on_a_channel_that_has_just_ended_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the broker's reason, as soon as that is known."""
    connection = await offline()
    ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def open_line(connection: WireConnection) -> Line:
        return Line(connection, Channel(connection, 1, lambda _: None), ended)

    monkeypatch.setattr(rabbitmq_queue, "open_line", open_line)
    monkeypatch.setattr(rabbitmq_connection, "CLOSE_S", 0.0)
    queue = Queue("queue", "exchange", True, 60, NameTable(NAMES))
    with pytest.raises(AdapterError, match="Channel is closed"):
        await queue.bind(connection, ["a", "b"])
    ended.set_result(ChannelClosedByBroker(404, "NOT_FOUND - no queue"))
    with pytest.raises(AdapterError, match="NOT_FOUND - no queue"):
        await queue.bind(connection, ["a", "b"])


async def test_closing_ends_a_connection_that_is_being_made_for_the_first_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it is left, and whoever subscribes is told."""
    made, was_ended = asyncio.Event(), asyncio.Event()

    async def open_link(link: Link) -> None:
        if link.purpose == "consuming":
            try:
                made.set()
                await asyncio.Event().wait()
            finally:
                was_ended.set()

    monkeypatch.setattr(Link, "open", open_link)
    adapter = load_adapter("amqp://h")
    await adapter.open(Consumer().on_frames, lambda is_connected, reason: None)
    work = asyncio.create_task(adapter.subscribe(["t"]))
    await made.wait()
    await asyncio.wait_for(adapter.close(), PATIENCE_S)
    assert was_ended.is_set()
    with pytest.raises(AdapterError, match="was closed while it connected to subscribe"):
        await work


async def test_a_first_subscription_that_is_cancelled_makes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins anew."""
    made, was_ended = asyncio.Event(), asyncio.Event()

    async def open_link(link: Link) -> None:
        if link.purpose == "consuming":
            try:
                made.set()
                await asyncio.Event().wait()
            finally:
                was_ended.set()

    monkeypatch.setattr(Link, "open", open_link)
    adapter = load_adapter("amqp://h")
    await adapter.open(Consumer().on_frames, lambda is_connected, reason: None)
    work = asyncio.create_task(adapter.subscribe(["t"]))
    await made.wait()
    work.cancel()
    await asyncio.wait((work,))
    assert (work.cancelled(), was_ended.is_set()) == (True, True)
    await adapter.close()


async def test_all_hosts_are_tried_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster is reached by any of its nodes."""

    async def refuse(url: object, host: str, port: int, purpose: str) -> WireConnection:
        raise AdapterError(f"{host}:{port} is away")

    monkeypatch.setattr(rabbitmq_link, "connect", refuse)
    adapter = load_adapter("amqp://one,two:5")
    with pytest.raises(AdapterError, match="one:5672 is away; two:5 is away"):
        await adapter.open(Consumer().on_frames, lambda is_connected, reason: None)
    await adapter.close()


async def test_a_connection_that_breaks_while_it_is_set_up_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has begun to publish on it is told."""
    connection = await offline()

    async def take(*_: object) -> WireConnection:
        return connection

    async def set_up(connection: WireConnection) -> None:
        connection._proto_connection_lost(OSError("cut"))

    broken: list[str] = []
    monkeypatch.setattr(rabbitmq_link, "connect", take)
    link = Link(RabbitMqAdapter("amqp://h")._url, "testing", set_up, broken.append, print, print)
    with pytest.raises(AdapterError, match=r"the connection broke at once: .*cut"):
        await link.open()
    assert len(broken) == 1
    with pytest.raises(AdapterError, match="is not connected"):
        _ = link.connection


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
