"""Each control that a stage has against those whom it does not trust. A test's name says which; it fails without it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import ordered_pubsub
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.files import hash_token, make_token, write_token
from ordered_pubsub.config.schema import DEFAULT_LISTEN
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.core.messages import Answer, ChangeAsk, PublishAsk, Refusal, Request
from ordered_pubsub.errors import AccessDenied, ConfigurationError, TopicError, UnavailableError, UsageError
from ordered_pubsub.server.doors.access import Access, Proof
from ordered_pubsub.server.doors.admission import neighbourhood
from ordered_pubsub.server.doors.tls import StageTlsContexts
from ordered_pubsub.server.links.agreement import Common
from ordered_pubsub.server.links.peers import PeerLink
from ordered_pubsub.server.monitoring import metrics
from ordered_pubsub.server.server import Server
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.framing import HEAD_BYTES, frame
from ordered_pubsub.wire.protocol import (
    VERSION,
    Ask,
    Inquire,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Report,
    Tell,
    Welcome,
    encode,
    from_peer,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session
from ordered_pubsub.wire.tls import TlsLayer
from server.certificates import Authority, Certificate
from server.messages import greeting, with_events
from server.systems import Raw, configure, one_stage, raw, serving
from server.waiting import soon, until

TOKEN, ADMIN, STAGE, STRANGER = (make_token() for _ in range(4))
IDENTITIES = f"""
[[identity]]
name = "trader"
token_sha256 = "{hash_token(TOKEN)}"
allow = {{ publish = ["orders/**"], subscribe = ["orders/**", "news"] }}
deny = {{ publish = ["orders/secret/**"], subscribe = ["orders/secret/*"] }}

[[identity]]
name = "admin"
token_sha256 = "{hash_token(ADMIN)}"
allow = {{ publish = ["**"], subscribe = ["**"], administer = true }}

[[identity]]
name = "peer"
token_sha256 = "{hash_token(STAGE)}"
allow = {{ stage = true }}
"""


def guarded(more: str = "", before: str = "") -> Any:
    """A stage that knows three identities."""
    return one_stage(more, f"{before}\n{IDENTITIES}")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(guarded()) as server:
        yield server


@pytest.fixture
async def open_server() -> AsyncIterator[Server]:
    """A stage that lets everybody in."""
    async with serving(one_stage()) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.sign("stage")


def tls_lines(certificate: Certificate, client_ca: str = "") -> str:
    authorities = f', client_ca = "{client_ca}"' if client_ca else ""
    return f'tls = {{ cert = "{certificate.cert}", key = "{certificate.key}"{authorities} }}'


def as_somebody(server: Server, token: str = "", **settings: Any) -> Connecting:
    """A client that shows a token."""
    os.environ["ORDERED_PUBSUB_TOKEN"] = token
    try:
        return ordered_pubsub.connect("memory://security", sequencer=f"ops://{HOST}:{server.port}", **settings)
    finally:
        del os.environ["ORDERED_PUBSUB_TOKEN"]


async def enter(line: Raw, key: SessionKey | None = None, name: str | None = None, **fields: Any) -> Any:
    """Greet; what the stage says to it."""
    line.send(greeting(key or make_session(name), name, **fields))
    return await line.receive()


def asking(key: SessionKey, *parts: PublishAsk | ChangeAsk, sequence: int = 1, after: int | None = None) -> Request:
    return Request(key.session, 1, sequence, sequence - 1 if after is None else after, sequence - 1, parts)


async def ask(
    line: Raw, key: SessionKey, *parts: PublishAsk | ChangeAsk, sequence: int = 1, after: int | None = None
) -> Answer | Refusal:
    """Ask for something; what becomes of it."""
    parts = tuple(with_events(part, key.session) for part in parts)
    line.send(Ask([asking(key, *parts, sequence=sequence, after=after)]))
    (answer,) = (await line.expect(Tell)).answers
    return answer


async def is_closed(line: Raw) -> bool:
    """Whether the stage has nothing more to say."""
    while await line.receive() is not None:
        pass
    return True


# -- TLS --------------------------------------------------------------------------------------------------------------


def test_tls_older_than_1_2_is_not_spoken(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Python's own default would allow it."""
    monkeypatch.setattr(ssl.SSLContext, "__init__", _allow_old, raising=False)
    section = guarded(tls_lines(certificate)).stages[0].tls

    contexts = StageTlsContexts.of(section)

    for context in (contexts.server, contexts.client):
        assert context is not None
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def _allow_old(self: ssl.SSLContext, *_: object) -> None:
    ssl._ssl._SSLContext.__init__(self)  # type: ignore[attr-defined]  # what the real one does
    self.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")  # that is what this is about
async def test_a_client_that_speaks_tls_1_1_does_not_get_in(authority: Authority, certificate: Certificate) -> None:
    context = authority.client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with serving(guarded(tls_lines(certificate))) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with raw(server.port, context):
                pass


def test_tls_is_neither_compressed_nor_negotiated_again(certificate: Certificate) -> None:
    contexts = StageTlsContexts.of(guarded(tls_lines(certificate)).stages[0].tls)

    assert contexts.server is not None
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION):
        assert contexts.server.options & option
        assert contexts.client.options & option


async def test_a_listener_with_tls_speaks_nothing_else(certificate: Certificate) -> None:
    async with serving(guarded(tls_lines(certificate))) as server, raw(server.port) as line:
        line.send(greeting(token=TOKEN))
        assert await line.reader.read(1 << 16) in (b"", b"\x15\x03\x01\x00\x02\x02\x46")  # nothing, or an alert


async def test_a_client_does_not_speak_to_a_stage_whose_certificate_it_does_not_trust(
    certificate: Certificate, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    async with serving(guarded(tls_lines(certificate))) as server:
        with pytest.raises(UnavailableError, match="its certificate is not accepted"):
            await ordered_pubsub.connect(
                "memory://security", sequencer=f"opss://localhost:{server.port}", tls={"ca": other.file}
            )


def test_a_token_is_not_sent_over_a_line_that_others_can_read() -> None:
    with pytest.raises(ConfigurationError, match="unencrypted"):
        NetworkHome([Address("stage.example")], TOKEN)


@attrs.define(eq=False)
class Opened:
    """A connection that was just made."""

    sent: list[bytes] = attrs.field(factory=list)
    aborted: list[str] = attrs.field(factory=list)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)


@pytest.mark.parametrize(
    ("address", "token", "before", "may"),
    [
        (Address("stage.example"), TOKEN, "", False),
        (Address("stage.example"), "", "", True),
        (Address("stage.example", tls=True), TOKEN, "", True),
        (Address("127.0.0.1"), TOKEN, "", True),
        (Address("stage.example"), TOKEN, "insecure_allow_plaintext = true", True),
    ],
    ids=["plain", "plain without a token", "tls", "this machine", "told to"],
)
def test_a_stage_shows_its_token_to_no_stage_over_a_line_that_others_can_read(
    address: Address, token: str, before: str, may: bool
) -> None:
    configuration, channel = one_stage(before=before), Opened()
    server = Server(configuration, 0, token)
    common = server._common = Common.of(configuration)
    tls = StageTlsContexts.of(None)
    link = PeerLink(0, "other", address, server, server._greeting, common, lambda: tls.client)

    link.opened(channel)  # type: ignore[arg-type]  # as much of a channel as is needed

    assert (len(channel.sent), len(channel.aborted)) == (int(may), int(not may))
    assert may or "would go to ops://stage.example:7411 unencrypted" in channel.aborted[0]


# -- who somebody is --------------------------------------------------------------------------------------------------

MUTUAL = """
[[identity]]
name = "desk"
certificate = "desk-1"
allow = {{ publish = ["**"] }}
[[identity]]
name = "other"
certificate = "desk-2"
token_sha256 = "{hash}"
allow = {{ publish = ["**"] }}
"""


@pytest.fixture
async def mutual(authority: Authority, certificate: Certificate) -> AsyncIterator[Server]:
    """A stage that knows two certificates and a token."""
    text = MUTUAL.format(hash=hash_token(TOKEN))
    async with serving(one_stage(tls_lines(certificate, authority.file), text)) as server:
        yield server


async def shown(server: Server, authority: Authority, certificate: Certificate | None, token: str = "") -> Any:
    """What a stage says to somebody with this certificate."""
    async with raw(server.port, authority.client_context(certificate)) as line:
        return await enter(line, token=token)


async def test_a_certificate_is_the_identity_that_names_it(mutual: Server, authority: Authority) -> None:
    assert isinstance(await shown(mutual, authority, authority.sign("desk-1")), Welcome)
    assert isinstance(await shown(mutual, authority, authority.sign("x", "desk-2", file="alternative")), Welcome)


@pytest.mark.parametrize("name", ["desk", "desk-10", "Desk-1", "desk-1 ", "desk-1.example", "*", "xdesk-1"])
async def test_a_certificate_is_no_identity_unless_it_names_it_exactly(
    mutual: Server, authority: Authority, name: str
) -> None:
    answer = await shown(mutual, authority, authority.sign(name, file="inexact"))

    assert isinstance(answer, Rejected)
    assert (answer.code, "names no identity of this stage" in answer.reason) == ("denied", True)


async def test_a_certificate_that_names_two_identities_is_neither(mutual: Server, authority: Authority) -> None:
    both = authority.sign("desk-1", "desk-2", file="both")

    assert isinstance(await shown(mutual, authority, both), Rejected)


async def test_a_certificate_of_another_authority_does_not_get_through_the_handshake(
    mutual: Server, authority: Authority, tmp_path: Path
) -> None:
    forged = Authority(tmp_path, "forger").sign("desk-1")

    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        assert await shown(mutual, authority, forged) is not None


async def test_who_shows_a_wrong_token_is_not_let_in_by_a_certificate(mutual: Server, authority: Authority) -> None:
    assert isinstance(await shown(mutual, authority, authority.sign("desk-1"), STRANGER), Rejected)


async def test_where_certificates_are_known_a_token_is_enough(mutual: Server, authority: Authority) -> None:
    assert isinstance(await shown(mutual, authority, None, TOKEN), Welcome)
    assert isinstance(await shown(mutual, authority, None), Rejected)


async def test_anonymous_clients_are_refused_once_there_are_identities(server: Server) -> None:
    with pytest.raises(AccessDenied, match="this stage wants to know who you are: set token_file"):
        await as_somebody(server)


async def test_an_unknown_token_is_refused(server: Server) -> None:
    with pytest.raises(AccessDenied, match="the token that was shown is not one of this stage's"):
        await as_somebody(server, STRANGER)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "stage.example"])
def test_a_listener_that_others_reach_does_not_start_without_identities(host: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"can be reached from other machines, and no \[\[identity\]\] says who"
    ):
        configure(f'[[stage]]\nname = "main"\nlisten = "{host}:7411"\n')


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_a_listener_that_others_reach_does_not_start_without_tls(host: str) -> None:
    with pytest.raises(ConfigurationError, match="tokens would travel there without TLS"):
        configure(f'{IDENTITIES}\n[[stage]]\nname = "main"\nlisten = "{host}:7411"\n')


def test_leaving_things_out_opens_nothing_to_others() -> None:
    (stage,) = configure("").stages

    assert (stage.listen, stage.address.is_loopback, stage.http) == (DEFAULT_LISTEN, True, None)
    http = configure('[[stage]]\nname = "main"\nhttp = ":7412"\n').stages[0].http_address
    assert http is not None
    assert http.is_loopback


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_a_stage_holds_the_hash_of_a_token_only() -> None:
    configuration = guarded()
    access = Access.of(configuration.identity)

    assert TOKEN not in repr(configuration) + repr(access) + repr(vars)
    assert access.identify(Proof.of(TOKEN, None)) is not None
    assert TOKEN not in repr(Proof.of(TOKEN, None))
    assert hash_token(TOKEN) not in repr(Proof.of(TOKEN, None))


async def test_tokens_and_secrets_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Not in logs, not in errors, metrics or health, and not where somebody prints an object."""
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    key = make_session("desk")
    async with serving(guarded(), token=STAGE) as server:
        for token in (TOKEN, STRANGER):
            for version in (VERSION, VERSION + 1):
                async with raw(server.port) as line:
                    hello = greeting(key, "desk", token=token, version=version)
                    seen += [repr(await enter(line, key, "desk", token=token, version=version)), repr(hello)]
        async with raw(server.port, decoder=from_peer) as line:
            peer = PeerGreeting(VERSION, 1, STAGE, "")
            line.send(peer)
            seen += [repr(await line.receive()), repr(peer)]
        with pytest.raises(AccessDenied) as denied:
            await as_somebody(server, STRANGER)
        client = await as_somebody(server, ADMIN, name="boss")
        seen += [str(denied.value), repr(denied.value), repr(client), str(client.status()), repr(client._engine.home)]
        seen += [repr(server), repr(server.doors), metrics(server.status()), str(server.status()), repr(server.claims)]
        seen += [repr(connection) for connection in server._clients]
        secrets = [TOKEN, ADMIN, STAGE, STRANGER, repr(key.secret), repr(client._engine.key.secret)]
        await client.close()

    everything = "\n".join([*seen, caplog.text, *(repr(record.args) for record in caplog.records)])
    assert [secret for secret in secrets if secret in everything] == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_token_file_that_others_may_read_is_not_used(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    write_token(str(file), TOKEN)
    file.chmod(mode)

    with pytest.raises(ConfigurationError, match=r"others than its owner may use it; expected 0600"):
        ordered_pubsub.connect("memory://x", sequencer="ops://127.0.0.1:1", token_file=str(file))


async def test_a_session_cannot_be_gone_on_with_by_somebody_else(server: Server) -> None:
    """Its id is seen by others; its secret is not."""
    key = make_session(None)
    async with raw(server.port) as owner, raw(server.port) as thief:
        assert isinstance(await enter(owner, key, token=TOKEN), Welcome)
        forged = SessionKey(key.session, make_session(None).secret)
        rejected = await enter(thief, forged, token=TOKEN)

        assert (rejected.code, rejected.reason) == ("denied", "the secret that was shown is not that of the session")
        assert isinstance(await ask(owner, key, PublishAsk("orders/a")), Answer)


async def test_nobody_asks_in_the_name_of_another_session(open_server: Server) -> None:
    mine, other = make_session(None), make_session(None)
    async with raw(open_server.port) as line:
        await enter(line, mine)
        line.send(Ask([asking(other, PublishAsk("a"))]))

        assert (await line.expect(Rejected)).code == "bad-frame"

    assert open_server.node.status()["events"] == 0


async def test_nobody_takes_the_id_of_another_ones_next_subscription(open_server: Server) -> None:
    """Everybody who reads the broker sees sessions in the marks of events."""
    mine, other = make_session(None), make_session(None)
    async with raw(open_server.port) as line:
        await enter(line, mine)
        for number, identity in enumerate(
            (f"{other.session}/2", "x", f"{mine.session}/", f"{mine.session}/1/2", ""), 1
        ):
            refusal = await ask(line, mine, ChangeAsk(identity, ("a",)), sequence=number, after=0)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "bad-request"
        assert isinstance(await ask(line, mine, ChangeAsk(f"{mine.session}/1", ("a",)), sequence=6, after=0), Answer)


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "may"),
    [
        ("orders/new", True),
        ("orders/a/b/c", True),
        ("orders", True),
        ("orders/secret/a/b", False),
        ("orders/secret", False),
        ("orders2", False),
        ("news", False),
        ("anything", False),
    ],
)
async def test_what_is_not_allowed_to_be_published_is_denied_and_deny_wins(
    server: Server, topic: str, may: bool
) -> None:
    key = make_session(None)
    async with raw(server.port) as line:
        await enter(line, key, token=TOKEN)
        answer = await ask(line, key, PublishAsk(topic))

    assert isinstance(answer, Answer) is may
    if isinstance(answer, Refusal):
        assert (answer.code, answer.reason) == ("forbidden", f"identity 'trader' may not publish on {topic!r}")


@pytest.mark.parametrize(
    ("topic", "may"), [("news", True), ("orders/secret/a", False), ("orders/secret/a/b", True), ("other", False)]
)
async def test_subscribing_has_rights_of_its_own(server: Server, topic: str, may: bool) -> None:
    key = make_session(None)
    async with raw(server.port) as line:
        await enter(line, key, token=TOKEN)
        answer = await ask(line, key, ChangeAsk(f"{key.session}/1", (topic,)))

    assert isinstance(answer, Answer) is may


async def test_one_topic_that_is_denied_denies_all_that_is_asked_for_together(server: Server) -> None:
    key = make_session(None)
    async with raw(server.port) as line:
        await enter(line, key, token=TOKEN)
        assert isinstance(await ask(line, key, PublishAsk("orders/a"), PublishAsk("denied")), Refusal)
        change = ChangeAsk(f"{key.session}/1", ("news", "denied"))
        assert isinstance(await ask(line, key, PublishAsk("orders/a"), change), Refusal)

    assert server.node.status()["events"] == 0


async def test_a_client_is_told_that_it_may_not(server: Server) -> None:
    async with as_somebody(server, TOKEN) as client:
        with pytest.raises(AccessDenied, match=r"identity 'trader' may not publish on 'secret'"):
            await client.publish("secret", 1)
        with pytest.raises(AccessDenied, match=r"identity 'trader' may not subscribe to 'secret'"):
            await client.subscribe("news", "secret")
        assert (await client.publish("orders/a", 1)).number == 1


async def test_a_topic_that_is_forbidden_and_one_that_does_not_exist_look_alike() -> None:
    """Who may not read a topic does not learn whether it exists."""
    before = 'topics = "listed"\n'
    listed = '[[topic]]\npattern = "orders/**"\n[[topic]]\npattern = "hidden"\n'
    async with serving(one_stage("", before + IDENTITIES + listed)) as server:
        key = make_session(None)
        async with raw(server.port) as line:
            await enter(line, key, token=TOKEN)
            hidden, missing, allowed = [
                await ask(line, key, PublishAsk(topic), sequence=number, after=0)
                for number, topic in enumerate(("hidden", "missing", "orders/a"), 1)
            ]
    assert isinstance(hidden, Refusal)
    assert isinstance(missing, Refusal)
    assert isinstance(allowed, Answer)
    assert hidden.reason.replace("hidden", "…") == missing.reason.replace("missing", "…")


async def test_only_who_may_administer_sees_how_the_stage_is(server: Server) -> None:
    for token, may in ((TOKEN, False), (ADMIN, True)):
        async with raw(server.port) as line:
            await enter(line, token=token)
            line.send(Inquire(1))
            report = await line.expect(Report)
            assert (bool(report.data), "needs the right 'administer'" in report.refusal) == (may, not may)


async def test_only_who_has_the_right_links_as_a_stage(tmp_path: Path) -> None:
    text = '[[stage]]\nname = "a"\nlisten = "127.0.0.1:0"\nadvertise = "ops://127.0.0.1:1"\nstore = "memory"\n'
    text += '[[stage]]\nname = "b"\nlisten = "127.0.0.1:0"\nadvertise = "ops://127.0.0.1:2"\nstore = "memory"\n'
    async with serving(configure(IDENTITIES + text)) as server:
        for token, may in ((TOKEN, False), (ADMIN, False), (STAGE, True)):
            async with raw(server.port, decoder=from_peer) as line:
                line.send(PeerGreeting(VERSION, 1, token, server._common.digest))
                assert isinstance(await line.receive(), Welcome) is may


async def test_a_stage_is_told_nothing_of_the_configuration_before_its_right_is_known(tmp_path: Path) -> None:
    async with serving(guarded()) as server, raw(server.port, decoder=from_peer) as line:
        line.send(PeerGreeting(VERSION, 1, TOKEN, "another digest"))
        rejected = await line.expect(Rejected)

    assert (rejected.code, "needs the right 'stage'" in rejected.reason) == ("denied", True)


async def test_an_empty_list_of_identities_lets_nobody_in() -> None:
    async with serving(one_stage("", "identity = []")) as server:
        for token in ("", TOKEN):
            with pytest.raises(AccessDenied):
                await as_somebody(server, token)


@pytest.mark.parametrize(
    "rules",
    [
        '[[identity]]\nname = "x"\ntoken_sha256 = "abc"\n',
        '[[identity]]\nname = "x"\n',
        f'[[identity]]\nname = "x"\ntoken_sha256 = "{"0" * 64}"\nallow = {{ publsh = ["**"] }}\n',
        f'[[identity]]\nname = "x"\ntoken_sha256 = "{"0" * 64}"\nallow = {{ publish = ["a*b"] }}\n',
        f'[[identity]]\nname = "x"\ntoken_sha256 = "{"0" * 64}"\nallow = {{ publish = "**" }}\n',
        f'[[identity]]\nname = "x"\ntoken_sha256 = "{"0" * 64}"\nallow = []\n',
        '[[identity]\nname = "x"\n',
        "identity = true\n",
    ],
)
def test_rules_that_cannot_be_read_are_not_taken_for_no_rules(rules: str) -> None:
    with pytest.raises(ConfigurationError):
        configure(rules)


async def test_a_request_before_the_welcome_is_not_taken() -> None:
    """While the keeper of its name is asked, a client is nobody yet."""
    async with serving(one_stage()) as server:
        server.claims.give = lambda claim, in_use: ("", "")  # it has no answer yet
        key = make_session("desk")
        async with raw(server.port) as line:
            line.send(greeting(key, "desk"))
            await until(lambda: server._clients)
            line.send(Ask([asking(key, PublishAsk("a"))]))
            assert (await line.expect(Rejected)).code == "bad-frame"
        assert server.node.status()["events"] == 0


# -- before somebody is known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [8_193, 1 << 20, (1 << 32) - 1])
async def test_a_stranger_may_not_announce_more_than_8_kib(open_server: Server, announced: int) -> None:
    async with raw(open_server.port) as line:
        line.send(announced.to_bytes(HEAD_BYTES, "big"))
        rejected = await line.expect(Rejected)

        assert (
            rejected.code,
            f"a frame of {announced} bytes was announced; expected 1 to 8192" in rejected.reason,
        ) == (
            "bad-greeting",
            True,
        )
        assert await is_closed(line)


async def test_a_stranger_may_say_8_kib(open_server: Server) -> None:
    async with raw(open_server.port) as line:
        line.send(frame(b"x" * 8_192))
        assert "that is not a message known here" in (await line.expect(Rejected)).reason


async def test_a_stranger_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(one_stage("", "[limits]\nauthentication_s = 0.1")) as server:
        async with raw(server.port) as silent, raw(server.port) as slow:
            slow.send(b"\x00")
            for line in (silent, slow):
                rejected = await line.expect(Rejected)
                assert (rejected.code, rejected.reason) == ("bad-greeting", "no greeting came within 0.1 s")
        await until(lambda: not server.doors.total)


async def test_a_stranger_has_little_time_for_the_handshake_of_tls(certificate: Certificate) -> None:
    async with serving(one_stage(tls_lines(certificate), "[limits]\nauthentication_s = 0.1")) as server:
        with socket.create_connection((HOST, server.port)):
            await until(lambda: server.doors.total == 1)
            await until(lambda: not server.doors.total)


def test_how_much_and_how_long_are_8_kib_and_5_seconds_unless_it_is_said_otherwise() -> None:
    limits = one_stage().limits

    assert (limits.unauthenticated_bytes_max, limits.authentication_s) == (8_192, 5.0)


async def test_a_greeting_is_followed_by_nothing_before_it_has_an_answer(server: Server) -> None:
    async with raw(server.port) as line:
        line.send(greeting(make_session(None), None, token=TOKEN), Ping())
        assert (await line.expect(Rejected)).code == "bad-greeting"


async def test_another_version_is_told_from_a_mistake(server: Server) -> None:
    async with raw(server.port) as line:
        rejected = await enter(line, token=TOKEN, version=VERSION + 1)

    assert (rejected.code, "install the same release" in rejected.reason) == ("version", True)


CROWD = """
import asyncio, sys
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.server.server import Server

def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

async def main():
    server = Server(read_text(sys.stdin.readline().replace("|", "\\n")), 0, "")
    await server.open()
    before = resident_kib()
    print(server.port, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(server.doors.total, resident_kib() - before, flush=True)

asyncio.run(main())
"""
CROWD_SIZE = 1_000
CROWD_BYTES_MAX = 64 << 20


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["plain", "tls, before the handshake", "tls, in it", "tls, after it"])
def test_a_thousand_idle_sockets_that_announce_the_largest_frame_cost_less_than_64_mb(
    kind: str, authority: Authority, certificate: Certificate, record_property: Any
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    tls = tls_lines(certificate) if kind != "plain" else ""
    text = f'[limits]|authentication_s = 600|[[stage]]|name = "main"|listen = "{HOST}:0"|store = "memory"|{tls}\n'
    command = [sys.executable, "-c", CROWD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(text)
        process.stdin.flush()
        port = int(process.stdout.readline())
        crowd = [_idle(port, kind, authority.client_context()) for _ in range(CROWD_SIZE)]
        inside, kib = 0, 0
        for _ in range(1_000):
            process.stdin.write("how many?\n")
            process.stdin.flush()
            inside, kib = map(int, process.stdout.readline().split())
            if inside == CROWD_SIZE:
                break
        for one in crowd:
            one.close()
        process.kill()

    record_property("KiB each", kib / CROWD_SIZE)
    assert inside == CROWD_SIZE
    assert kib << 10 < CROWD_BYTES_MAX


def _idle(port: int, kind: str, context: ssl.SSLContext) -> socket.socket:
    one = socket.create_connection((HOST, port))
    if kind == "tls, before the handshake":
        one.sendall(b"\x16\x03\x01\x20\x00" + b"\x01\x00\x1f\xfc" + b"x" * 8_000)
        return one
    if kind == "tls, in it":
        layer = TlsLayer(context, is_server=False, host="localhost")
        layer.start()
        one.sendall(layer.to_write() + b"\x16\x03\x03\x20\x00" + b"x" * 8_000)
        return one
    if kind == "tls, after it":
        one = context.wrap_socket(one, server_hostname="localhost")
    one.sendall((8_192).to_bytes(HEAD_BYTES, "big") + b"x" * 8_191)
    return one


# -- sizes ------------------------------------------------------------------------------------------------------------


async def test_a_frame_that_is_too_long_is_refused_when_it_is_announced(server: Server) -> None:
    async with raw(server.port) as line:
        assert isinstance(await enter(line, token=TOKEN), Welcome)
        most = server.configuration.limits.frame_bytes_max
        line.send((most + 1).to_bytes(HEAD_BYTES, "big"))
        rejected = await line.expect(Rejected)

    assert (rejected.code, f"expected 1 to {most}" in rejected.reason) == ("bad-frame", True)


async def test_a_stage_says_how_large_a_payload_may_be() -> None:
    async with serving(one_stage("", "[limits]\npayload_bytes_max = 1000")) as server, raw(server.port) as line:
        assert (await enter(line)).payload_bytes_max == 1000
    assert one_stage().limits.payload_bytes_max == 1 << 20


async def test_what_is_too_long_to_be_a_topic_is_not_remembered(open_server: Server) -> None:
    key = make_session(None)
    async with raw(open_server.port) as line:
        await enter(line, key)
        for number in range(1, 20):
            refusal = await ask(line, key, PublishAsk(f"{number}" + "x" * 100_000), sequence=1)
            assert isinstance(refusal, Refusal)
            assert (refusal.code, len(refusal.reason) < 1_000) == ("bad-request", True)
        (connection,) = open_server._clients
        assert connection._verdicts._judged == {}


async def test_more_parts_than_a_request_may_have_are_refused(open_server: Server) -> None:
    key = make_session(None)
    async with raw(open_server.port) as line:
        await enter(line, key)
        answer = await ask(line, key, *[PublishAsk("a")] * 1_001)

    assert isinstance(answer, Refusal)
    assert answer.code == "bad-request"


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
async def test_there_are_not_more_connections_than_allowed(limit: str) -> None:
    async with serving(one_stage("", f"[limits]\n{limit} = 2")) as server:
        async with raw(server.port) as one, raw(server.port) as two:
            assert isinstance(await enter(one), Welcome)
            assert isinstance(await enter(two), Welcome)
            async with raw(server.port) as three:
                rejected = await three.expect(Rejected)
                assert (rejected.code, f"limits.{limit}" in rejected.reason) == ("limit", True)
        await until(lambda: not server.doors.total)
        async with raw(server.port) as again:
            assert isinstance(await enter(again), Welcome)


async def test_connections_count_before_the_handshake_of_tls(authority: Authority, certificate: Certificate) -> None:
    async with serving(one_stage(tls_lines(certificate), "[limits]\nconnections_max = 2")) as server:
        idle = [socket.create_connection((HOST, server.port)) for _ in range(2)]
        await until(lambda: server.doors.total == 2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with raw(server.port, authority.client_context()):
                pass
        for one in idle:
            one.close()
        await until(lambda: not server.doors.total)
        async with raw(server.port, authority.client_context()) as line:
            assert isinstance(await enter(line), Welcome)


async def test_an_identity_has_not_more_connections_than_allowed() -> None:
    limited = serving(guarded("", "[limits]\nconnections_per_identity_max = 1"))
    async with limited as server, raw(server.port) as one, raw(server.port) as two, raw(server.port) as other:
        assert isinstance(await enter(one, token=TOKEN), Welcome)
        rejected = await enter(two, token=TOKEN)
        assert (rejected.code, "limits.connections_per_identity_max" in rejected.reason) == ("limit", True)
        assert isinstance(await enter(other, token=ADMIN), Welcome)


def test_in_ipv6_a_network_counts_as_one_address() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:1:2") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("fe80::1%eth0") == "fe80::"
    assert neighbourhood("192.0.2.1") != neighbourhood("192.0.2.2")


async def test_a_subscription_holds_not_more_topics_than_allowed() -> None:
    async with serving(one_stage("", "[limits]\ntopics_per_subscription_max = 3")) as server:
        key = make_session(None)
        mine = f"{key.session}/1"
        async with raw(server.port) as line:
            await enter(line, key)
            assert isinstance(await ask(line, key, ChangeAsk(mine, ("a", "b", "c"))), Answer)
            refusal = await ask(line, key, ChangeAsk(mine, ("d",)), sequence=2)
            exchange = await ask(line, key, ChangeAsk(mine, ("d",), ("a",)), sequence=3)

    assert isinstance(refusal, Refusal)
    assert (refusal.code, "limits.topics_per_subscription_max" in refusal.reason) == ("limit", True)
    assert isinstance(exchange, Answer)


async def test_a_client_has_not_more_subscriptions_than_allowed() -> None:
    async with serving(one_stage("", "[limits]\nsubscriptions_per_client_max = 1")) as server:
        key = make_session(None)
        async with raw(server.port) as line:
            await enter(line, key)
            assert isinstance(await ask(line, key, ChangeAsk(f"{key.session}/1", ("a",))), Answer)
            refusal = await ask(line, key, ChangeAsk(f"{key.session}/2", ("a",)), sequence=2)
            end = ChangeAsk(f"{key.session}/1", (), ("a",), ends=True)
            assert isinstance(await ask(line, key, end, sequence=3), Answer)
            assert isinstance(await ask(line, key, ChangeAsk(f"{key.session}/2", ("a",)), sequence=4), Answer)

    assert isinstance(refusal, Refusal)
    assert "limits.subscriptions_per_client_max" in refusal.reason


async def test_a_change_that_is_asked_again_does_not_count_twice() -> None:
    """Otherwise a client that lost an answer would be refused what it has."""
    async with serving(one_stage("", "[limits]\ntopics_per_subscription_max = 3")) as server:
        key = make_session(None)
        mine = f"{key.session}/1"
        first = asking(key, ChangeAsk(mine, ("a", "b", "c")))
        second = asking(key, ChangeAsk(mine, ("d", "e", "f"), ("a", "b", "c")), sequence=2)
        async with raw(server.port) as line:
            await enter(line, key)
            answers: list[Answer | Refusal] = []
            line.send(Ask([first, second]))
            while len(answers) < 2:
                answers += (await line.expect(Tell)).answers
            line.send(Ask([first, second]))
            while len(answers) < 3:  # the first one was said to be done with, and is not answered any more
                answers += (await line.expect(Tell)).answers

    assert [type(answer) for answer in answers] == [Answer] * 3


@pytest.mark.heavy
async def test_many_pings_or_questions_that_are_not_read_do_not_fill_the_memory() -> None:
    limits = "[limits]\npayload_bytes_max = 1\nframe_bytes_max = 65536\nbuffered_bytes_max = 65536"
    for question in (Ping(), Inquire(1)):
        async with serving(one_stage("", limits)) as server, raw(server.port) as line:
            assert isinstance(await enter(line), Welcome)
            line.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport can
            many = encode(question) * 10_000
            while server._clients:
                line.send(many)
                await asyncio.sleep(0)
            assert server.node.askers == {}


async def test_a_client_that_does_not_read_is_closed_with_the_reason_and_goes_on_without_loss() -> None:
    limits = "[limits]\npayload_bytes_max = 1\nframe_bytes_max = 65536\nbuffered_bytes_max = 65536"
    async with serving(one_stage("", limits)) as server:
        client = await ordered_pubsub.connect("memory://slow", sequencer=f"ops://{HOST}:{server.port}")
        reasons: list[str] = []
        home = client._engine.home
        listener = home._listener  # type: ignore[attr-defined]  # it is a NetworkHome

        def on_state(up: bool, reason: str) -> None:
            reasons.append(reason)
            listener.on_state(up, reason)

        home._listener = attrs.evolve(listener, on_state=on_state)  # type: ignore[attr-defined]
        topics = [f"{number}/" + "x" * 200 for number in range(500)]
        await soon(asyncio.gather(*(client.publish_nowait(topic, 1) for topic in topics)))  # merged from now on
        transport = home._talk.channel._transport  # type: ignore[attr-defined]
        transport.pause_reading()
        (connection,) = server._clients
        for end, option in ((transport, socket.SO_RCVBUF), (connection.channel._transport, socket.SO_SNDBUF)):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 65_536)
        futures = [client.publish_nowait(topic, 1) for _ in range(8) for topic in topics]
        await until(lambda: not connection.channel.is_open)
        transport.resume_reading()
        await until(lambda: reasons)
        receipts = await soon(asyncio.gather(*futures))
        await client.close()

    assert [receipt.number for receipt in receipts] == [number for number in range(2, 10) for _ in topics]
    assert "waited for this client to read them; nothing is lost, it asks again" in reasons[0]


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", " a", "x" * 129, "\u202e", "a\x1b[2J"])
async def test_a_name_that_could_be_something_else_is_refused(open_server: Server, name: str) -> None:
    async with raw(open_server.port) as line:
        rejected = await enter(line, make_session(name or None), name)

    assert isinstance(rejected, Rejected)
    assert rejected.code == "bad-greeting"
    assert rejected.reason.isprintable()


@pytest.mark.parametrize("topic", ["", "/a", "a//b", "a/", "a\nb", "a\x00b", "a*", "*", "**", "a/\x7f", "x" * 256])
async def test_a_topic_that_could_be_something_else_is_refused(open_server: Server, topic: str) -> None:
    key = make_session(None)
    async with raw(open_server.port) as line:
        await enter(line, key)
        for part in (
            PublishAsk(topic),
            ChangeAsk(f"{key.session}/1", (topic,)),
            ChangeAsk(f"{key.session}/1", (), (topic,)),
        ):
            answer = await ask(line, key, part)
            assert isinstance(answer, Refusal)
            assert answer.code == "bad-request"
    assert open_server.node.status()["sessions"] == 0


async def test_the_client_refuses_such_topics_itself(open_server: Server) -> None:
    async with ordered_pubsub.connect("memory://x", sequencer=f"ops://{HOST}:{open_server.port}") as client:
        for topic in ("a\nb", "a/*", "//"):
            with pytest.raises(TopicError):
                await client.publish(topic, 1)
    with pytest.raises(UsageError):
        ordered_pubsub.connect("memory://x", name="a\nb")


async def test_a_name_in_use_is_refused_and_its_session_left_alone(server: Server) -> None:
    key, other = make_session("desk"), make_session("desk")
    async with raw(server.port) as line, raw(server.port) as second:
        assert isinstance(await enter(line, key, "desk", token=TOKEN), Welcome)
        rejected = await enter(second, other, "desk", token=ADMIN)
        assert rejected.code == "name-in-use"
        assert "trader" not in rejected.reason
        assert isinstance(await ask(line, key, PublishAsk("orders/a")), Answer)


async def test_who_says_to_resume_gets_no_name_by_that(server: Server) -> None:
    key, other = make_session("desk"), make_session("desk")
    async with raw(server.port) as line, raw(server.port) as second:
        assert isinstance(await enter(line, key, "desk", token=TOKEN), Welcome)
        assert isinstance(await enter(second, other, "desk", token=ADMIN, resumes=True), Welcome)
        assert (await second.expect(Rejected)).code == "name-in-use"
        assert isinstance(await ask(line, key, PublishAsk("orders/a")), Answer)


# -- what strangers get to see ----------------------------------------------------------------------------------------


async def test_a_rejection_does_not_say_more_than_is_needed(server: Server) -> None:
    """No names of identities, topics or files to somebody who has shown nothing."""
    async with raw(server.port) as line:
        rejected = await enter(line, token=STRANGER)

    assert not re.search(r"trader|admin|peer|orders|\.db|/tmp", rejected.reason)


async def test_noise_from_a_stranger_is_logged_in_a_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with raw(server.port) as line:
        line.send(frame(b"\x96\xa6client\x01\xa9\nforged: x\xc4\x00\xc0\xa0"))
        assert isinstance(await line.receive(), Rejected)

    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_connection_is_alive_as_long_as_it_says_so(open_server: Server) -> None:
    async with raw(open_server.port) as line:
        await enter(line)
        line.send(Ping())
        assert isinstance(await line.expect(Pong), Pong)
