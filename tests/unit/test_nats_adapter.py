"""The pieces of the NATS adapter, without a server; what a server does at the wrong moment is done by one of a few lines."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats import errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from ordered_pubsub.adapter import Capabilities, Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters import nats_connection, nats_publisher, nats_refusals
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats import NAMES, RULES, NatsAdapter, _Core
from ordered_pubsub_adapters.nats_client import NatsClient, explain, login_of
from ordered_pubsub_adapters.nats_connection import Connection
from ordered_pubsub_adapters.nats_consumer import Consumer, time_text
from ordered_pubsub_adapters.nats_inbox import FRAME_BYTES, HELD_BYTES_MAX, Inbox
from ordered_pubsub_adapters.nats_publisher import IN_FLIGHT_MAX, Window
from ordered_pubsub_adapters.nats_refusals import Refusals
from ordered_pubsub_adapters.nats_replies import Replies
from ordered_pubsub_adapters.nats_stream import Stream, StreamState, covers, uncovered
from ordered_pubsub_adapters.nats_waiting import bounded, end
from ordered_pubsub_adapters.nats_wire import (
    PIECE_BYTES,
    command,
    header_block,
    pieces,
    plain,
    read_headers,
    status_of,
    subscription,
    unsubscription,
)
from ordered_pubsub_adapters.urls import read_url

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""


async def until(is_so: Callable[[], bool], otherwise: Callable[[], object] = lambda: "") -> None:
    """Wait for a condition, with a deadline."""
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while not is_so():
        assert asyncio.get_running_loop().time() < give_up_at, otherwise()
        await asyncio.sleep(0.001)


async def nobody(frames: Sequence[Frame]) -> None:
    """Take nothing."""


# -- messages as bytes ----------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=50) | st.text(max_size=50), max_size=5))
def test_headers_come_back_whatever_is_in_them(headers: dict[str, bytes | str]) -> None:
    assert read_headers(header_block(headers)) == headers


@given(st.text(max_size=20), st.binary(max_size=50) | st.text(max_size=50))
def test_a_header_is_one_line_whatever_is_in_it(name: str, value: bytes | str) -> None:
    """So it can end neither its line nor the block, nor begin a command."""
    block = header_block({name: value})
    assert block.isascii()
    assert block.split(b"\r\n") == [b"NATS/1.0", block[10:-4], b"", b""]
    assert b"\n" not in block[10:-4].replace(b"\r\n", b"")
    assert b"\r" not in block[10:-4]


@pytest.mark.parametrize("name", ["Nats-Msg-Id", "nats-rollup", "NATS-Expected-Stream", "Nats-"])
def test_no_header_means_something_to_the_server(name: str) -> None:
    """It would drop what it takes for a duplicate."""
    block = header_block({name: "1"})
    assert b"nats-" not in block.lower()
    assert read_headers(block) == {name: "1"}


def test_the_headers_of_plain_clients_are_read() -> None:
    """What is no header is left out; of equal names the last one counts."""
    block = b"NATS/1.0\r\nA: b\r\nB:c\r\nnone\r\nNats-Msg-Id:  7 \r\nX: 1\r\nX: 2\r\nC: 100%\r\nD: \xff\r\n\r\n"
    assert read_headers(block) == {"A": "b", "B": "c", "Nats-Msg-Id": "7", "X": "2", "C": "100%", "D": "\ufffd"}


def test_what_the_server_says_is_in_the_first_line() -> None:
    """Of a message of its own; an ordinary one has nothing there."""
    assert status_of(b"NATS/1.0 503\r\n\r\n") == b"503"
    assert status_of(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n") == b"100 Idle Heartbeat"
    assert status_of(header_block({"a": "b"})) == b""
    assert status_of(None) == b""


def test_commands_are_those_of_the_protocol() -> None:
    """With headers and without, with a reply subject and without."""
    assert command(b"a.b", b"", Frame("a/b", b"xyz")) == b"PUB a.b 3\r\nxyz\r\n"
    assert command(b"a", b"r ", Frame("a", b"")) == b"PUB a r 0\r\n\r\n"
    block = b"NATS/1.0\r\nk: v\r\n\r\n"
    assert (
        command(b"a", b"r ", Frame("a", b"xyz", {"k": "v"}))
        == b"HPUB a r %d %d\r\n"
        % (
            len(block),
            len(block) + 3,
        )
        + block
        + b"xyz\r\n"
    )
    assert plain("a.b") == b"PUB a.b 0\r\n\r\n"
    assert subscription("a.b", 7) == b"SUB a.b 7\r\n"
    assert unsubscription(7) == b"UNSUB 7\r\n"


@given(st.lists(st.integers(0, 3 * PIECE_BYTES // 2), max_size=30), st.integers(1, 10))
def test_pieces_are_all_there_is_in_its_order(sizes: list[int], frames_max: int) -> None:
    """And none is large, but for single messages."""
    frames = [Frame(str(number), bytes(size)) for number, size in enumerate(sizes)]
    cut = list(pieces(frames, frames_max))
    assert [frame for piece in cut for frame in piece] == frames
    for piece in cut:
        assert 0 < len(piece) <= frames_max
        assert sum(len(frame.payload) for frame in piece[:-1]) <= PIECE_BYTES


def test_topics_are_subjects() -> None:
    """With dots for slashes; what means something to NATS is written otherwise."""
    names = NameTable(NAMES)
    assert names.name_of("eu/trades") == "eu.trades"
    subjects = [
        names.name_of(topic) for topic in ("a.b", "a/b", "a b", "*", ">", "a/>", "$JS/API", "_INBOX/x", "é", "x" * 2000)
    ]
    assert len(set(subjects)) == len(subjects)
    for subject in subjects:
        assert not subject.startswith(("$", "_INBOX"))
        assert not set(subject) & set("*> \t\r\n")
        assert len(subject.encode()) <= 1_024


# -- the URL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://h?create=true", "create is for a stream"),
        ("nats://h?jetstream=", "the name of a stream"),
        ("nats://h?jetstream=a.b", "the name of a stream"),
        ("nats://h?jetstream=a%20b", "the name of a stream"),
        ("nats://h?jetstream=S&create=yes", "one of true, false"),
        ("nats://h?stream=S", "there is no parameter 'stream'"),
        ("nats://h/path", "there is a path"),
        ("nats://h?ca=f.pem", "ca is for encrypted connections"),
        ("nats://h:0", "a port is a whole number"),
        ("nats://", "expected host"),
    ],
)
def test_a_url_that_does_not_fit_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("?", r"\?")):
        NatsAdapter(url)


def test_both_schemes_find_the_adapter() -> None:
    assert isinstance(load_adapter("nats://h"), NatsAdapter)
    assert isinstance(load_adapter("tls://h"), NatsAdapter)


def test_who_we_are_is_a_user_a_token_or_nobody(tmp_path: Path) -> None:
    """As in nats-py's URLs, and from a file."""
    (tmp_path / "secret").write_text("s3cret\n")
    file = f"password_file={tmp_path / 'secret'}"

    def login(url: str) -> dict[str, object]:
        return {key: value for key, value in login_of(read_url(url, RULES)).items() if value is not None}

    assert login("nats://h") == {}
    assert login("nats://u:p%40w@h") == {"user": "u", "password": "p@w"}
    assert login("nats://t0ken@h") == {"token": "t0ken"}
    assert login(f"nats://u@h?{file}") == {"user": "u", "password": "s3cret"}
    assert login(f"nats://h?{file}") == {"token": "s3cret"}
    assert login("nats://h?creds=a.creds") == {"user_credentials": "a.creds"}
    assert login("nats://h?nkey=a.nk") == {"nkeys_seed": "a.nk"}


def test_a_stream_keeps_what_core_does_not() -> None:
    core, stream = NatsAdapter("nats://h").capabilities, NatsAdapter("nats://h?jetstream=S").capabilities
    assert stream.keeps_while_away
    assert core == attrs.evolve(stream, keeps_while_away=False)
    assert core == Capabilities(
        loses=False, reorders=False, duplicates=False, keeps_while_away=False, carries_headers=True, confirms=True
    )


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConnectionRefusedError("Connect call failed"), AdapterError, "is it running, and are host and port right?"),
        (errors.Error("nats: 'Authorization Violation'"), AdapterError, "check user and password"),
        (ssl.SSLCertVerificationError("self-signed"), AdapterError, "ca=FILE"),
        (errors.SecureConnWantedError(), AdapterError, "does not offer encryption"),
        (asyncio.TimeoutError(), AdapterError, "no answer within 10 s"),
        (ModuleNotFoundError("No module named 'nkeys'"), ConfigurationError, "pip install nkeys"),
        (FileNotFoundError(2, "No such file", "a.creds"), ConfigurationError, "creds"),
        (TypeError("'NoneType' object is not subscriptable"), ConfigurationError, "creds"),
    ],
)
def test_an_error_of_connecting_says_where_and_what_to_do(error: Exception, kind: type[Exception], words: str) -> None:
    explained = explain(error, read_url("nats://u:hidden@h:4223?creds=a.creds", RULES), "h:4223")
    assert isinstance(explained, kind)
    assert words in str(explained)
    assert "h:4223" in str(explained)
    assert "hidden" not in str(explained)


# -- streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "subject", "is_covered"),
    [
        ("a", "a", True),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
        ("*.b", "a.c", False),
    ],
)
def test_a_subject_is_covered_as_nats_says(pattern: str, subject: str, is_covered: bool) -> None:
    assert covers(pattern, subject) == is_covered
    state = StreamState({"subjects": ["x", pattern]}, "", 0)
    assert uncovered(state, ["x", subject]) == ([] if is_covered else [subject])
    assert uncovered(None, [subject]) == [subject]


def test_times_are_written_to_the_nanosecond() -> None:
    assert time_text(1795001688307440611) == "2026-11-18T11:34:48.307440611Z"


async def test_only_so_many_publications_are_unacknowledged_and_first_come_is_first_served() -> None:
    window, taken = Window(), list[int]()

    async def take(who: int, count: int) -> None:
        await window.take(count)
        taken.append(who)

    await take(0, IN_FLIGHT_MAX - 1)
    tasks = [asyncio.ensure_future(take(who, count)) for who, count in ((1, 64), (2, 1), (3, 1))]
    await asyncio.sleep(0)
    assert taken == [0]
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    window.give(1)
    await asyncio.gather(*tasks[1:])
    assert taken == [0, 2, 3]
    window.give(IN_FLIGHT_MAX)
    assert window.free == IN_FLIGHT_MAX


async def test_a_cancelled_wait_takes_nothing_away() -> None:
    """Also when it was cancelled in the moment in which its turn came."""
    window = Window()
    await window.take(IN_FLIGHT_MAX)
    task = asyncio.ensure_future(window.take(10))
    await asyncio.sleep(0)
    window.give(IN_FLIGHT_MAX)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert window.free == IN_FLIGHT_MAX


@attrs.define(eq=False)
class FakeConnection:
    """What a consumer uses of a connection."""

    sent: list[bytes] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)
    left: list[int] = attrs.field(factory=list)

    def send(self, *commands: bytes) -> None:
        self.sent += commands

    def unsubscribe(self, sid: int) -> None:
        self.left.append(sid)

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


def consumer_of(topics: dict[bytes, tuple[str, int]]) -> tuple[Consumer, FakeConnection, Inbox]:
    """A consumer in the middle of its work."""
    connection, inbox = FakeConnection(), Inbox(nobody)
    made = Consumer(connection, inbox, NameTable(NAMES), Stream("S", False), topics, 5)  # type: ignore[arg-type]  # a fake
    return made, connection, inbox


SHORT, LONG = b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.0", b"$JS.ACK.D.hash.S.C.1.%d.%d.1700000000000000000.0.x"


@pytest.mark.parametrize("reply", [SHORT, LONG])
async def test_the_place_of_a_message_is_read_from_both_kinds_of_reply_subjects(reply: bytes) -> None:
    consumer, connection, inbox = consumer_of({b"a.b": ("a/b", 11)})
    for number, sequence in enumerate((10, 11, 12, 15), 1):
        consumer.take(5, b"a.b", reply % (sequence, number), None, b"%d" % sequence)
    consumer.take(5, b"other", reply % (16, 5), None, b"not subscribed to")
    consumer.take(4, b"a.b", reply % (99, 99), None, b"of an old consumer")
    assert [frame.payload for frame in inbox._frames] == [b"12", b"15"]
    assert connection.failures == []
    assert consumer._last == 16


async def test_a_gap_ends_the_connection_and_what_follows_does_not_count() -> None:
    consumer, connection, inbox = consumer_of({b"a": ("a", 0)})
    consumer.take(5, b"a", SHORT % (10, 1), None, b"")
    consumer.take(5, b"a", SHORT % (13, 3), None, b"")
    consumer.take(5, b"a", SHORT % (14, 4), None, b"")
    assert len(inbox._frames) == 1
    assert connection.failures == [
        "stream 'S': message 2 was to come, and 3 came; reading on behind message 10 of the stream"
    ]
    assert connection.left == [5]  # or it would be subscribed to again and again


HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: 9\r\n%b\r\n"


async def test_a_heartbeat_that_names_another_message_ends_the_connection() -> None:
    consumer, connection, _ = consumer_of({b"a": ("a", 0)})
    consumer.take(5, b"a", SHORT % (10, 1), None, b"")
    consumer.take(5, b"i", b"", HEARTBEAT % (1, b""), b"")
    assert connection.failures == []
    consumer.take(5, b"i", b"", HEARTBEAT % (3, b""), b"")
    assert len(connection.failures) == 1


async def test_the_server_is_asked_to_go_on_when_there_is_room() -> None:
    """Not before; and also when it says with a heartbeat that it waits."""
    consumer, connection, inbox = consumer_of({b"a": ("a", 0)})
    request = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    consumer.take(5, b"i", b"$JS.FC.1", request, b"")
    assert connection.sent == [b"PUB $JS.FC.1 0\r\n\r\n"]
    inbox.is_full = True
    consumer.take(5, b"i", b"$JS.FC.2", request, b"")
    consumer.take(5, b"i", b"", HEARTBEAT % (0, b"Nats-Consumer-Stalled: $JS.FC.2\r\n"), b"")
    assert len(connection.sent) == 1
    consumer.go_on()
    consumer.go_on()
    assert connection.sent[1:] == [b"PUB $JS.FC.2 0\r\n\r\n"]


async def test_answers_are_counted_and_the_trouble_is_kept() -> None:
    replies = Replies()
    answers = replies.expect(3, lambda headers, data: data.decode())
    subject = answers.reply.strip()
    assert subject.decode().startswith(replies.pattern[:-1])
    for data in (b"", b"trouble", b""):
        assert not answers.done.done()
        replies.take(subject, None, data)
    assert answers.done.result() == "trouble"
    replies.forget(answers)
    replies.take(subject, None, b"too many")
    assert answers.missing == 0


# -- the inbox ------------------------------------------------------------------------------------------------------------


async def test_the_inbox_is_full_until_its_frames_are_taken() -> None:
    """Then whoever wants to know is told."""
    batches, rooms, may_return = list[int](), list[bool](), asyncio.Event()

    async def on_frames(frames: Sequence[Frame]) -> None:
        batches.append(len(frames))
        await may_return.wait()

    inbox = Inbox(on_frames, lambda: rooms.append(True))
    task = asyncio.ensure_future(inbox.run())
    size = HELD_BYTES_MAX // 4 - FRAME_BYTES
    for _ in range(4):
        inbox.put(Frame("t", b""), size)
    assert not inbox.is_full
    inbox.put(Frame("t", b""), 1)
    assert inbox.is_full
    await asyncio.wait_for(inbox.wait_for_room(), PATIENCE_S)
    assert (batches, rooms, inbox.is_full) == ([5], [True], False)
    inbox.put(Frame("t", b""), HELD_BYTES_MAX)
    await asyncio.sleep(0)
    assert inbox.is_full
    may_return.set()
    await asyncio.wait_for(inbox.wait_for_room(), PATIENCE_S)
    assert batches == [5, 1]
    await end(task)


async def test_more_is_held_while_something_is_waited_for_behind_the_frames() -> None:
    inbox = Inbox(nobody)
    inbox.put(Frame("t", b""), HELD_BYTES_MAX + 1)
    with inbox.more_room():
        with inbox.more_room():
            assert not inbox.is_full
        assert not inbox.is_full
        await asyncio.wait_for(inbox.wait_for_room(), PATIENCE_S)
    assert inbox.is_full


# -- waiting --------------------------------------------------------------------------------------------------------------


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()


async def test_work_that_is_not_done_in_time_is_ended() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(asyncio.TimeoutError):
        await bounded(work(), 0.0)
    assert ended.is_set()


# -- nats-py --------------------------------------------------------------------------------------------------------------


def test_our_own_attributes_hide_none_of_nats_py() -> None:
    """`NatsClient` has some beside those that it replaces."""
    client = NatsClient(lambda *args: None, Inbox(nobody), print, False)
    ours = {"_take", "_inbox", "_on_refusal", "_is_encrypted", "_held_up_s", "_read_on_at"}
    assert {name for name in vars(client) if name not in vars(Client())} == {*ours, "pongs", "heard", "trouble"}
    assert not {"write", "abort", "finish", "report", "reading", "reason", "server"} & set(dir(Client))


def _without_argument(self: Client) -> None:
    """A method that has become another one."""


@pytest.mark.parametrize("name", ["_process_msg", "_process_pong", "_process_info"])
def test_a_nats_py_whose_methods_are_others_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the adapter is made, and with what to install."""
    monkeypatch.setattr(Client, name, _without_argument)
    with pytest.raises(ConfigurationError, match=rf"nats-py .* does not have .*{name}\(.*install 'nats-py>=2.10,<3'"):
        NatsAdapter("nats://h")


@pytest.mark.parametrize(
    "name", ["_reading_task", "_ping_interval_task", "_flusher_task", "_transport", "_server_info"]
)
def test_a_nats_py_that_keeps_its_state_elsewhere_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Client.__init__

    def begin_otherwise(client: Client) -> None:
        begin(client)
        delattr(client, name)

    monkeypatch.setattr(Client, "__init__", begin_otherwise)
    with pytest.raises(ConfigurationError, match=rf"does not have {name},"):
        NatsAdapter("nats://h")


def test_a_nats_py_whose_transport_hides_its_writer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be dropped with what is in it."""
    monkeypatch.setattr(TcpTransport, "__init__", lambda transport: None)
    with pytest.raises(ConfigurationError, match=r"does not have TcpTransport\._io_writer,"):
        NatsAdapter("nats://h")


# -- a server that does what it is told ------------------------------------------------------------------------------------

INFO = b'INFO {"server_id":"fake","version":"2.9.0","headers":true,"max_payload":1000%b}\r\n'


@attrs.define(eq=False)
class FakeServer:
    """Greets, remembers what it reads, and answers PINGs if it may."""

    info: bytes = INFO % b""
    answers: bool = True
    received: list[bytes] = attrs.field(factory=list)
    """what came over each connection"""
    port: int = 0
    _ends: list[asyncio.StreamWriter] = attrs.field(factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.received)
        self.received.append(b"")
        self._ends.append(writer)
        writer.write(self.info)
        pings = 0
        while data := await reader.read(65_536):
            self.received[at] += data
            now = self.received[at].count(b"PING\r\n")
            if self.answers or not pings:
                writer.write(b"PONG\r\n" * (now - pings))
                pings = now
        writer.close()

    def write(self, data: bytes) -> None:
        for writer in self._ends:
            writer.write(data)

    def cut(self) -> None:
        """Drop all connections."""
        for writer in self._ends:
            writer.transport.abort()
        self._ends.clear()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


@asynccontextmanager
async def fake_server(info: bytes = INFO % b"") -> AsyncIterator[FakeServer]:
    """A server, for as long as the block lasts."""
    fake = FakeServer(info)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        fake.cut()
        await server.wait_closed()


@asynccontextmanager
async def connected(fake: FakeServer, states: list[str] | None = None) -> AsyncIterator[Connection]:
    """A connection to it."""
    on_change: Callable[[str], None] = (lambda reason: None) if states is None else states.append
    connection = Connection(read_url(fake.url, RULES), Inbox(nobody), on_change, pytest.fail, has_replies=False)
    await connection.open()
    try:
        yield connection
    finally:
        await asyncio.wait_for(connection.close(), PATIENCE_S)


def publisher_to(connection: Connection) -> Callable[[bytes], Awaitable[None]]:
    """What publishes and waits."""

    async def publish(payload: bytes) -> None:
        connection.publish([Frame("t", payload)], NameTable(NAMES))
        await connection.flush()

    return publish


async def test_the_ping_is_behind_what_it_is_to_confirm_and_shared_by_all_who_wait() -> None:
    async with fake_server() as fake, connected(fake) as connection:
        before = len(fake.received[0])
        publish = publisher_to(connection)
        await asyncio.gather(*(publish(b"%d" % number) for number in range(5)))
        said = fake.received[0][before:]
        assert said == b"".join(b"PUB t 1\r\n%d\r\n" % number for number in range(5)) + b"PING\r\n"


async def test_what_was_not_confirmed_raises_and_is_not_written_to_the_next_connection() -> None:
    """nats-py would."""
    async with fake_server() as fake, connected(fake) as connection:
        fake.answers = False
        publish = publisher_to(connection)
        tasks = [asyncio.ensure_future(publish(b"lost")) for _ in range(3)]
        await until(lambda: b"lost" in fake.received[0])
        fake.answers = True
        connection.send(b"PUB t 8\r\nunsent..\r\n")
        connection.fail("for a test")
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, AdapterError)
            assert "the connection broke before the server answered" in str(outcome)
        await connection.wait_until_up()
        await publish(b"later")
        assert len(fake.received) == 2
        assert b"lost" not in fake.received[1]
        assert b"unsent" not in fake.received[0] + fake.received[1]
        assert b"later" in fake.received[1]


async def test_publishing_without_a_connection_raises_at_once() -> None:
    """And says why there is none."""
    async with fake_server() as fake, connected(fake) as connection:
        fake.cut()
        await until(lambda: not connection.is_up)
        with pytest.raises(AdapterError, match=r"not connected: .*It connects again by itself"):
            connection.check_up()


async def test_subscriptions_are_made_again_before_the_connection_is_up() -> None:
    """But for those that have ended."""
    async with fake_server() as fake, connected(fake) as connection:
        kept, left = connection.subscribe("kept"), connection.subscribe("left")
        await connection.settle(["kept", "left"])
        connection.unsubscribe(left)
        await connection.flush()
        assert b"UNSUB %d\r\n" % left in fake.received[0]
        for count in (2, 3):
            fake.cut()
            await until(lambda: not connection.is_up)
            await connection.wait_until_up()
            assert len(fake.received) == count
            greeting, _, rest = fake.received[-1].partition(b"PING\r\n")
            assert greeting.startswith(b"CONNECT ")
            assert rest == b"SUB kept %d\r\nPING\r\n" % kept


async def test_a_subscription_waits_for_a_connection_that_is_away() -> None:
    async with fake_server() as fake, connected(fake) as connection:
        fake.cut()
        await until(lambda: not connection.is_up)
        connection.subscribe("t")
        await connection.settle(["t"])
        assert b"SUB t 2\r\n" in fake.received[-1]


async def test_a_server_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the connection does not break."""
    monkeypatch.setattr(nats_connection, "KEEPALIVE_S", 0.05)
    states: list[str] = []
    async with fake_server() as fake, connected(fake, states) as connection:
        await until(lambda: fake.received[0].count(b"PING") > 3)
        assert states == ["connected"]
        fake.answers = False
        await until(lambda: len(states) == 2)
        assert states[1] == "no answer within 0.05 s"
        fake.answers = True
        await connection.wait_until_up()


async def test_a_server_that_falls_silent_after_its_greeting_is_an_error_of_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nats-py has its answer; ours does not come."""
    monkeypatch.setattr(nats_connection, "KEEPALIVE_S", 0.05)
    async with fake_server() as fake:
        fake.answers = False
        work = NatsAdapter(fake.url).open(nobody, lambda is_connected, reason: None)
        with pytest.raises(AdapterError, match=r"no answer within 0\.05 s"):
            await asyncio.wait_for(work, PATIENCE_S)


async def test_a_server_that_falls_silent_after_each_greeting_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is well."""
    monkeypatch.setattr(nats_connection, "KEEPALIVE_S", 0.05)
    async with fake_server() as fake, connected(fake) as connection:
        fake.answers = False
        fake.cut()
        await until(lambda: len(fake.received) == 4, lambda: fake.received)
        fake.answers = True
        await connection.wait_until_up()


async def test_a_connection_that_breaks_at_the_last_moment_was_never_up() -> None:
    """Or it would be taken for one for ever."""
    states: list[str] = []
    async with fake_server() as fake:
        connection = Connection(read_url(fake.url, RULES), Inbox(nobody), states.append, pytest.fail, has_replies=False)

        async def on_up() -> None:
            asyncio.get_running_loop().call_soon(connection.fail, "for a test")

        connection.on_up = on_up
        with pytest.raises(AdapterError, match="for a test"):
            await connection.open()
        assert (connection.is_up, states) == (False, [])


async def test_a_connection_that_is_not_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers stand behind what is not read. But it goes on saying that it lives."""
    monkeypatch.setattr(nats_connection, "KEEPALIVE_S", 0.02)
    states: list[str] = []
    async with fake_server() as fake:
        inbox = Inbox(nobody)
        connection = Connection(read_url(fake.url, RULES), inbox, states.append, pytest.fail, has_replies=False)
        await connection.open()
        inbox.is_full = True
        fake.answers = False
        pings = fake.received[0].count(b"PING")
        await until(lambda: fake.received[0].count(b"PING") > pings + 5)
        assert states == ["connected"]
        await connection.close()


def refusal(subject: str, what: str = "Publish") -> bytes:
    """What the server says of it."""
    return b"-ERR 'Permissions Violation for %b to \"%b\"'\r\n" % (what.encode(), subject.encode())


async def test_a_refusal_is_told_to_whoever_asked_for_it() -> None:
    """The server says it in the stream, and goes on."""
    async with fake_server() as fake, connected(fake) as connection:
        since = connection.turn
        fake.write(refusal("Some.Subject"))
        await connection.flush()
        connection.check_refusals(["some"], since)
        with pytest.raises(AdapterError, match=r"does not permit .*\"some\.subject\""):
            connection.check_refusals(["other", "Some.Subject"], since)
        assert connection.is_up


async def test_a_refusal_is_told_to_all_who_asked_for_the_same_and_to_nobody_who_asks_later() -> None:
    """The right may have been granted meanwhile."""
    names = NameTable(NAMES)
    async with fake_server() as fake, connected(fake) as out, connected(fake) as into:
        core = _Core(out, into, Inbox(nobody), names)
        fake.answers = False
        calls = [asyncio.ensure_future(core.publish([Frame("t", b"x")] * count)) for count in (1, 2)]
        await until(lambda: fake.received[0].count(b"PUB t") == 3)
        fake.write(refusal("t") * 3 + b"PONG\r\n")
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert "does not permit" in str(outcome)
        fake.answers = True
        await core.publish([Frame("t", b"y")])


async def test_publishing_fails_if_more_was_refused_than_can_be_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been among it. What is published later is not concerned."""
    monkeypatch.setattr(nats_refusals, "REFUSALS_MAX", 3)
    async with fake_server() as fake, connected(fake) as out, connected(fake) as into:
        core = _Core(out, into, Inbox(nobody), NameTable(NAMES))
        fake.answers = False
        work = asyncio.ensure_future(core.publish([Frame("t", b"x")]))
        await until(lambda: b"PUB t" in fake.received[0])
        fake.write(b"".join(map(refusal, ("t", "1", "2", "3"))) + b"PONG\r\n")
        with pytest.raises(AdapterError, match="more was refused at once than can be told apart, 3 subjects"):
            await asyncio.wait_for(work, PATIENCE_S)
        fake.answers = True
        await core.publish([Frame("t", b"y")])


async def test_subscribing_fails_if_it_was_refused_on_the_connection_that_came_back() -> None:
    """It was asked for on the one that broke."""
    async with fake_server() as fake, connected(fake) as connection:
        fake.answers = False
        connection.subscribe("t")
        work = asyncio.ensure_future(connection.settle(["t"]))
        await until(lambda: b"SUB t" in fake.received[0])
        fake.cut()
        await until(lambda: len(fake.received) == 2 and b"SUB t" in fake.received[1])
        fake.write(refusal("t", "Subscription"))
        fake.answers = True
        fake.write(b"PONG\r\n")
        with pytest.raises(AdapterError, match="permissions violation for subscription"):
            await asyncio.wait_for(work, PATIENCE_S)


def quoted_by_go(subject: str) -> str:
    """As a server writes it, and nats-py hands it over."""

    def escaped(character: str) -> str:
        code = ord(character)
        if character in '"\\':
            return f"\\{character}"
        if character.isprintable():
            return character
        short = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r"}.get(code)
        is_low = code < 32 or code == 127
        return (
            f"\\{short}"
            if short
            else f"\\x{code:02x}"
            if is_low
            else f"\\u{code:04x}"
            if code < 65_536
            else f"\\U{code:08x}"
        )

    return ('"' + "".join(map(escaped, subject)) + '"').lower()


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_refusal_is_found_whatever_is_in_the_subject(subject: str, other: str) -> None:
    """The server writes it as Go does, and nats-py makes all letters small."""
    refusals = Refusals()
    refusals.add(f"nats: permissions violation for publish to {quoted_by_go(subject)}", 7)
    if other.casefold() != subject.casefold():
        assert refusals.on([other], 7) == ""
    assert "permissions violation" in refusals.on([other, subject], 7)
    assert refusals.on([subject], 8) == ""


def test_a_refusal_that_names_nothing_is_everybody_s() -> None:
    """Nobody who asked by then takes it for granted."""
    refusals = Refusals()
    refusals.add("permissions violation", 7)
    assert "may be among it" in refusals.on(["t"], 7)
    assert refusals.on(["t"], 8) == ""


def test_refusals_are_forgotten_one_by_one_and_old_ones_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is bounded; one that comes again is new."""
    monkeypatch.setattr(nats_refusals, "REFUSALS_MAX", 3)
    refusals = Refusals()
    for turn, subject in enumerate("abcad"):
        refusals.add(f'permissions violation for publish to "{subject}"', turn)
    assert ["this may" in refusals.on(["other"], since) for since in range(5)] == [True, True, False, False, False]
    assert '"a"' in refusals.on(["a"], 3)
    assert refusals.on(["a"], 4) == ""
    assert '"d"' in refusals.on(["d"], 4)


async def test_a_message_that_is_too_large_is_not_sent_but_named() -> None:
    """The server would end the connection."""
    async with fake_server() as fake, connected(fake) as connection:
        connection.publish([Frame("t", bytes(1_000))], NameTable(NAMES))
        with pytest.raises(
            AdapterError, match=r"'t' has 1,0\d\d bytes with its headers, and the server takes 1,000.*max_payload"
        ):
            connection.publish([Frame("t", bytes(1_000), {"k": "v"})], NameTable(NAMES))


async def test_no_password_is_sent_where_encryption_was_asked_for_and_is_not_offered() -> None:
    async with fake_server() as fake:
        adapter = NatsAdapter(f"tls://user:secret@127.0.0.1:{fake.port}")
        with pytest.raises(AdapterError, match="does not offer encryption"):
            await adapter.open(nobody, lambda is_connected, reason: None)
        assert set(fake.received) == {b""}


async def test_a_server_without_headers_is_refused() -> None:
    async with fake_server(b'INFO {"server_id":"fake","version":"2.1.0","max_payload":1000}\r\n') as fake:
        with pytest.raises(AdapterError, match=r"version 2\.1\.0\) carries no headers"):
            await NatsAdapter(fake.url).open(nobody, lambda is_connected, reason: None)


async def test_a_server_that_does_not_greet_is_given_up() -> None:
    async with fake_server(b"") as fake:
        with pytest.raises(AdapterError, match=r"no answer within 0\.2 s \(connect_timeout_s\)"):
            await NatsAdapter(f"{fake.url}?connect_timeout_s=0.2").open(nobody, lambda is_connected, reason: None)


async def test_something_else_than_nats_is_told_apart() -> None:
    async with fake_server(b"SSH-2.0-OpenSSH_9.2\r\n") as fake:
        with pytest.raises(AdapterError, match="INFO"):
            await NatsAdapter(fake.url).open(nobody, lambda is_connected, reason: None)


async def test_any_of_several_hosts_will_do() -> None:
    async with fake_server() as fake:
        adapter = NatsAdapter(f"nats://127.0.0.1:1,127.0.0.1:{fake.port}")
        for _ in range(5):
            await adapter.open(nobody, lambda is_connected, reason: None)
            await adapter.close()


async def test_a_cluster_without_a_stream_promises_less() -> None:
    """What it does is not known before it was reached."""
    async with fake_server(INFO % b',"cluster":"c"') as fake:
        adapter = NatsAdapter(fake.url)
        assert not adapter.capabilities.loses
        await adapter.open(nobody, lambda is_connected, reason: None)
        assert adapter.capabilities.loses
        assert adapter.capabilities.reorders
        await adapter.close()


async def test_a_stream_that_does_not_acknowledge_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_publisher, "ACKNOWLEDGE_S", 0.05)
    async with fake_server() as fake, connected(fake) as connection:
        stream = Stream("S", False)
        stream._remember(["t"])
        publisher = nats_publisher.StreamPublisher(connection, NameTable(NAMES), stream)
        with pytest.raises(AdapterError, match="'S' acknowledged nothing"):
            await publisher.publish([Frame("t", b"x")])
        assert publisher._window.free == IN_FLIGHT_MAX
        stream._remember(["t"])  # it would be looked at again
        with pytest.raises(AdapterError, match="were not sent: stream 'S' acknowledged nothing"):
            await publisher.publish([Frame("t", b"x")] * (2 * IN_FLIGHT_MAX))
        assert publisher._window.free == IN_FLIGHT_MAX


async def test_a_break_ends_the_wait_for_acknowledgements() -> None:
    async with fake_server() as fake, connected(fake) as connection:
        stream = Stream("S", False)
        stream._remember(["t"])
        publisher = nats_publisher.StreamPublisher(connection, NameTable(NAMES), stream)
        work = asyncio.ensure_future(publisher.publish([Frame("t", b"x")]))
        await until(lambda: bool(connection.replies._expected) and b"PUB t" in fake.received[0])
        await connection.flush()
        fake.cut()
        with pytest.raises(AdapterError, match="was not stored: the server closed the connection"):
            await work


async def test_a_question_whose_answer_was_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And given up in the end."""
    monkeypatch.setattr(nats_connection, "ASK_AGAIN_S", 0.05)
    async with fake_server() as fake, connected(fake) as connection:
        work = asyncio.ensure_future(connection.request("$JS.API.INFO"))
        await until(lambda: fake.received[0].count(b"PUB $JS.API.INFO") == 2)
        reply = fake.received[0].rpartition(b"PUB $JS.API.INFO ")[2].split(b" ")[0]
        fake.write(b"MSG %b 1 4\r\nwell\r\n" % reply)
        assert await work == (None, b"well")
        with pytest.raises(AdapterError, match=r"no answer to \$JS\.API\.INFO within 0\.3 s"):
            await connection.request("$JS.API.INFO")
