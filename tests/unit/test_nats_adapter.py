"""The pieces of the NATS adapter, without a server; what a server does at the wrong moment is done by one of a few lines."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats import errors
from nats.aio.client import Client

from ordered_pubsub.adapter import Capabilities, Frame, load_adapter
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters import _nats_fast, nats, nats_jetstream
from ordered_pubsub_adapters._nats_client import NatsClient, explain, login_of
from ordered_pubsub_adapters._nats_fast import FastClient, Fitness, command, read_block
from ordered_pubsub_adapters._nats_headers import header_block, read_headers, write_headers
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.nats import NAMES, RULES, NatsAdapter, Refusals
from ordered_pubsub_adapters.nats_jetstream import StreamState, covers, time_text, uncovered
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
    assert read_block(header_block(headers).encode()) == headers


@given(st.text(max_size=20), st.binary(max_size=50) | st.text(max_size=50))
def test_a_header_is_one_line_whatever_is_in_it(name: str, value: bytes | str) -> None:
    """So it can end neither its line nor the block, nor begin a command."""
    text = header_block({name: value})
    assert text.isascii()
    block = text.encode()
    assert block.split(b"\r\n") == [b"NATS/1.0", block[10:-4], b"", b""]
    assert b"\n" not in block[10:-4].replace(b"\r\n", b"")
    assert b"\r" not in block[10:-4]


@pytest.mark.parametrize("name", ["Nats-Msg-Id", "nats-rollup", "NATS-Expected-Stream", "Nats-"])
def test_no_header_means_something_to_the_server(name: str) -> None:
    """It would drop what it takes for a duplicate."""
    block = header_block({name: "1"}).encode()
    assert b"nats-" not in block.lower()
    assert read_block(block) == {name: "1"}


def test_the_headers_of_plain_clients_are_read() -> None:
    """What is no header is left out; of equal names the last one counts."""
    block = b"NATS/1.0\r\nA: b\r\nB:c\r\nnone\r\nNats-Msg-Id:  7 \r\nX: 1\r\nX: 2\r\nC: 100%\r\nD: \xff\r\n\r\n"
    assert read_block(block) == {"A": "b", "B": "c", "Nats-Msg-Id": "7", "X": "2", "C": "100%", "D": "\ufffd"}


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=50) | st.text(max_size=50), max_size=5))
def test_headers_are_the_same_when_nats_py_writes_and_reads_them(headers: dict[str, bytes | str]) -> None:
    """Whichever way is used at either end."""
    written = write_headers(headers)
    assert read_headers(written) == headers
    block = header_block(headers)
    assert {f"{name}: {value}" for name, value in (written or {}).items()} == set(block.split("\r\n")[1:-2])


def test_what_the_server_says_is_a_header_as_nats_py_has_it() -> None:
    """Of a message of its own; an ordinary one has none."""
    assert read_block(b"NATS/1.0 503\r\n\r\n") == {"Status": "503"}
    assert read_block(b"NATS/1.0 409 Too Large\r\nN: 1\r\n\r\n") == {"Status": "409", "N": "1"}
    assert read_block(header_block({"a": "b"}).encode()) == {"a": "b"}


def test_commands_are_those_of_the_protocol() -> None:
    """With headers and without, with a reply subject and without."""
    assert command("a.b", "", Frame("a/b", b"xyz")) == b"PUB a.b 3\r\nxyz\r\n"
    assert command("a", "r", Frame("a", b"")) == b"PUB a r 0\r\n\r\n"
    block = b"NATS/1.0\r\nk: v\r\n\r\n"
    head = b"HPUB a r %d %d\r\n" % (len(block), len(block) + 3)
    assert command("a", "r", Frame("a", b"xyz", {"k": "v"})) == head + block + b"xyz\r\n"


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


# -- a server that does what it is told ------------------------------------------------------------------------------------

INFO = b'INFO {"server_id":"fake","version":"2.9.0","headers":true,"max_payload":1000%b}\r\n'
STREAM_INFO = b'{"config":{"subjects":[">"]},"created":"2026","state":{"last_seq":0}}'


@attrs.define(eq=False)
class FakeServer:
    """Greets, remembers what it reads, and answers PINGs if it may."""

    info: bytes = INFO % b""
    answers: bool = True
    received: list[bytes] = attrs.field(factory=list)
    """what came over each connection"""
    port: int = 0
    asked: int = 0
    deaf_to: int = 0
    """so many questions about the stream are not answered"""
    _ends: list[asyncio.StreamWriter] = attrs.field(factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.received)
        self.received.append(b"")
        self._ends.append(writer)
        writer.write(self.info)
        pings = 0
        while data := await reader.read(65_536):
            self.received[at] += data
            self._answer_jetstream(at, data, writer)
            now = self.received[at].count(b"PING\r\n")
            if self.answers or not pings:
                writer.write(b"PONG\r\n" * (now - pings))
                pings = now
        writer.close()

    def _answer_jetstream(self, at: int, data: bytes, writer: asyncio.StreamWriter) -> None:
        """There is a stream that stores everything; it acknowledges nothing."""
        for reply in re.findall(rb"PUB \$JS\.API\.STREAM\.INFO\.S (\S+) ", data):
            self.asked += 1
            if self.asked <= self.deaf_to:
                continue
            subscribed = re.findall(rb"SUB (\S+?)\.\*? *(\d+)\r\n", self.received[at])
            sid = next(sid for pattern, sid in subscribed if reply.startswith(pattern))
            writer.write(b"MSG %b %b %d\r\n%b\r\n" % (reply, sid, len(STREAM_INFO), STREAM_INFO))

    def write(self, data: bytes) -> None:
        for writer in self._ends:
            writer.write(data)

    @property
    def said(self) -> bytes:
        """All that came."""
        return b"".join(self.received)

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


@attrs.define(eq=False)
class User:
    """A user of an open adapter, who remembers everything."""

    adapter: NatsAdapter
    frames: list[Frame] = attrs.field(factory=list)
    states: list[tuple[bool, str]] = attrs.field(factory=list)
    may_receive: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        self.frames += frames
        await self.may_receive.wait()

    def on_state(self, is_connected: bool, reason: str) -> None:
        self.states.append((is_connected, reason))

    async def told(self, *states: bool) -> None:
        """Wait until `on_state` has said this."""
        await until(lambda: [state for state, _ in self.states] == list(states), lambda: self.states)


@asynccontextmanager
async def using(url: str) -> AsyncIterator[User]:
    user = User(NatsAdapter(url))
    user.may_receive.set()
    await user.adapter.open(user.on_frames, user.on_state)
    try:
        yield user
    finally:
        user.may_receive.set()
        await asyncio.wait_for(user.adapter.close(), PATIENCE_S)


async def test_the_ping_is_behind_what_it_is_to_confirm() -> None:
    async with fake_server() as fake, using(fake.url) as user:
        before = len(fake.received[0])
        await user.adapter.publish([Frame("t", b"1"), Frame("t", b"2")])
        assert fake.received[0][before:] == b"PUB t 1\r\n1\r\nPUB t 1\r\n2\r\nPING\r\n"


async def test_what_was_not_confirmed_raises_and_is_not_written_to_the_next_connection() -> None:
    """nats-py would."""
    async with fake_server() as fake, using(fake.url) as user:
        fake.answers = False
        calls = [asyncio.ensure_future(user.adapter.publish([Frame("t", b"lost")])) for _ in range(3)]
        await until(lambda: fake.said.count(b"lost") == 3)
        fake.answers = True
        fake.cut()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, AdapterError)
            assert "nobody knows whether the server has what was sent" in str(outcome)
        await user.told(False, True)
        await user.adapter.publish([Frame("t", b"later")])
        assert fake.said.count(b"lost") == 3
        assert b"later" in fake.said


async def test_a_publication_that_is_cancelled_does_not_harm_the_connection() -> None:
    """nats-py stops reading when an answer comes that nobody waits for any more."""
    async with fake_server() as fake, using(fake.url) as user:
        fake.answers = False
        work = asyncio.ensure_future(user.adapter.publish([Frame("t", b"given up")]))
        await until(lambda: b"given up" in fake.said)
        work.cancel()
        await asyncio.wait((work,))
        fake.answers = True
        await user.adapter.publish([Frame("t", b"later")])
        await user.adapter.publish([Frame("t", b"later")])
        assert user.states == []


async def test_a_server_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the connection does not break."""
    monkeypatch.setattr(nats, "KEEPALIVE_S", 0.05)
    async with fake_server() as fake, using(fake.url) as user:
        await until(lambda: fake.said.count(b"PING") > 8)
        assert user.states == []
        fake.answers = False
        await user.told(False)
        assert "no answer within 0.05 s" in user.states[0][1]
        fake.answers = True
        await user.told(False, True)


async def test_a_server_that_falls_silent_after_its_greeting_is_an_error_of_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nats-py has its answer; ours does not come."""
    monkeypatch.setattr(nats, "KEEPALIVE_S", 0.05)
    async with fake_server() as fake:
        fake.answers = False
        work = NatsAdapter(fake.url).open(nobody, lambda is_connected, reason: None)
        with pytest.raises(AdapterError, match=r"no answer within 0\.05 s"):
            await asyncio.wait_for(work, PATIENCE_S)


async def test_a_connection_that_is_not_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands behind what is not read."""
    monkeypatch.setattr(nats, "HELD_BYTES_MAX", 0)
    monkeypatch.setattr(nats, "KEEPALIVE_S", 0.02)
    async with fake_server() as fake, using(fake.url) as user:
        await user.adapter.subscribe(["t"])
        sid = fake.said.partition(b"SUB t ")[2].split()[0]
        user.may_receive.clear()
        fake.write(b"MSG t %b 1\r\n1\r\n" % sid * 3)
        await until(lambda: bool(user.frames))
        out, into = fake.received[0].count(b"PING"), fake.received[1].count(b"PING")
        await until(lambda: fake.received[0].count(b"PING") > out + 10)
        assert fake.received[1].count(b"PING") <= into + 1
        assert user.states == []
        user.may_receive.set()
        await until(lambda: len(user.frames) == 3)
        await until(lambda: fake.received[1].count(b"PING") > into + 3)
        assert user.states == []


def refusal(subject: str, what: str = "Publish") -> bytes:
    """What the server says of it."""
    return b"-ERR 'Permissions Violation for %b to \"%b\"'\r\n" % (what.encode(), subject.encode())


async def test_a_refusal_is_told_to_all_who_asked_for_the_same_and_to_nobody_who_asks_later() -> None:
    """The right may have been granted meanwhile; and what others asked for is not concerned."""
    async with fake_server() as fake, using(fake.url) as user:
        fake.answers = False
        calls = [asyncio.ensure_future(user.adapter.publish([Frame("Some/Topic", b"x")])) for _ in range(2)]
        other = asyncio.ensure_future(user.adapter.publish([Frame("other", b"x")]))
        await until(lambda: fake.said.count(b"PUB ") == 3)
        fake.write(refusal("Some.Topic") * 2 + b"PONG\r\n" * 3)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert re.search(r"does not permit .*some\.topic", str(outcome))
        await other
        fake.answers = True
        await user.adapter.publish([Frame("Some/Topic", b"y")])


def test_a_refusal_that_cannot_be_read_or_kept_is_everybody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who asked by then takes it for granted."""
    monkeypatch.setattr(nats, "REFUSALS_MAX", 2)
    refusals = Refusals()
    for text in ("permissions violation", r'permissions violation for publish to "a\"b"'):
        since = refusals.count
        assert refusals.add(text) is None
        with pytest.raises(AdapterError, match="does not permit"):
            refusals.check("nats://h", ["t"], since)
        refusals.check("nats://h", ["t"], refusals.count)
    since = refusals.count
    assert [refusals.add(f'to "{subject}"') for subject in "abc"] == ["a", "b", None]
    with pytest.raises(AdapterError, match="does not permit"):
        refusals.check("nats://h", ["other"], since)


async def test_a_message_that_is_too_large_is_not_sent_but_named() -> None:
    """The server would end the connection."""
    async with fake_server() as fake, using(fake.url) as user:
        await user.adapter.publish([Frame("t", bytes(1_000))])
        with pytest.raises(
            AdapterError, match=r"'t' has 1,0\d\d bytes with its headers, and the server takes 1,000.*max_payload"
        ):
            await user.adapter.publish([Frame("t", b"fine"), Frame("t", bytes(1_000), {"k": "v"})])
        assert b"fine" not in fake.said


async def test_no_password_is_sent_where_encryption_was_asked_for_and_is_not_offered() -> None:
    async with fake_server() as fake:
        adapter = NatsAdapter(f"tls://user:secret@127.0.0.1:{fake.port}")
        with pytest.raises(AdapterError, match="does not offer encryption"):
            await adapter.open(nobody, lambda is_connected, reason: None)
        assert set(fake.received) == {b""}


async def test_a_server_without_headers_is_refused() -> None:
    async with fake_server(b'INFO {"server_id":"fake","version":"2.1.0","max_payload":1000}\r\n') as fake:
        with pytest.raises(AdapterError, match=r"carries no headers; take one from version 2.2 on"):
            await NatsAdapter(fake.url).open(nobody, lambda is_connected, reason: None)


async def test_a_server_that_does_not_greet_is_given_up() -> None:
    async with fake_server(b"") as fake:
        with pytest.raises(AdapterError, match=r"did not answer within 0\.2 s \(connect_timeout_s\)"):
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
    monkeypatch.setattr(nats_jetstream, "ACKNOWLEDGE_S", 0.05)
    async with fake_server() as fake, using(f"{fake.url}?jetstream=S") as user:
        with pytest.raises(
            AdapterError, match=r"1 events on 't' were not confirmed: .*'S' acknowledged nothing for 0.05 s"
        ):
            await user.adapter.publish([Frame("t", b"x")])
        with pytest.raises(AdapterError, match="'S' acknowledged nothing"):
            await user.adapter.publish([Frame("t", b"x")] * (2 * nats_jetstream.IN_FLIGHT_MAX))
        assert user.states == []


async def test_a_break_ends_the_wait_for_acknowledgements() -> None:
    async with fake_server() as fake, using(f"{fake.url}?jetstream=S") as user:
        work = asyncio.ensure_future(user.adapter.publish([Frame("t", b"x")]))
        await until(lambda: b"PUB t" in fake.said)
        fake.cut()
        with pytest.raises(AdapterError, match=r"were not confirmed: .*the server closed the connection"):
            await work


async def test_a_question_whose_answer_was_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And given up in the end."""
    monkeypatch.setattr(nats_jetstream, "ASK_AGAIN_S", 0.1)
    async with fake_server() as fake:
        fake.deaf_to = 1
        async with using(f"{fake.url}?jetstream=S"):
            assert fake.asked >= 2
        fake.deaf_to = 1_000
        with pytest.raises(AdapterError, match=r"JetStream did not answer \$JS\.API\.STREAM\.INFO\.S in 0\.6 s"):
            await NatsAdapter(f"{fake.url}?jetstream=S").open(nobody, lambda is_connected, reason: None)


# -- releases of nats-py ---------------------------------------------------------------------------------------------------


@pytest.fixture
def _unknown() -> Iterator[None]:
    """Nothing was found out yet."""
    found, _nats_fast._found[:] = list(_nats_fast._found), []
    yield
    _nats_fast._found[:] = found


@pytest.mark.usefixtures("_unknown")
async def test_the_nats_py_that_is_installed_is_fast_and_safe() -> None:
    assert await _nats_fast.fitness() == Fitness(is_fast=True, is_safe=True)


@pytest.mark.usefixtures("_unknown")
async def test_what_does_not_fit_is_not_used_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release that reads messages in another place. Then messages may be dropped, and the adapter says so."""
    monkeypatch.setattr(FastClient, "_process_msg", Client._process_msg)
    monkeypatch.setattr(nats, "HELD_BYTES_MAX", 1_500)
    async with fake_server() as fake, using(fake.url) as user:
        assert user.adapter.capabilities.loses
        await user.adapter.subscribe(["t"])
        sid = fake.said.partition(b"SUB t ")[2].split()[0]
        user.may_receive.clear()
        fake.write(b"MSG t %b 1\r\n1\r\n" % sid)
        await until(lambda: len(user.frames) == 1)
        fake.write(b"MSG t %b 1\r\n1\r\n" % sid * 5)
        await user.adapter.publish([Frame("u", b"x")])
        user.may_receive.set()
        await until(lambda: "messages were dropped, since the application did not take them" in caplog.text)
    assert caplog.text.count("is used without what is fast") == 1


@pytest.mark.usefixtures("_unknown")
async def test_a_release_that_would_send_a_password_in_the_clear_is_not_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NatsClient, "_process_info", Client._process_info)
    async with fake_server() as fake:
        with pytest.raises(AdapterError, match="would send a password to a server that does not encrypt"):
            await NatsAdapter(f"tls://u:secret@127.0.0.1:{fake.port}").open(nobody, lambda is_connected, reason: None)
        assert fake.said == b""
