"""What a call leaves behind that failed or was cancelled: nothing at the broker, no socket, nobody at a terminal, no hurry."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

import ordered_pubsub
from helpers.clients import PATIENCE_S, HeldAdapter, until
from ordered_pubsub import errors
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config import tls
from ordered_pubsub.config.addresses import Address, parse_address
from ordered_pubsub.config.schema import ClientSection, ClientTls
from ordered_pubsub.reading import connection as reading
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.testing.processes import HOST, free_port
from server.certificates import Authority

ROOTS = (Path(ordered_pubsub.__file__).parent, Path(tls.__file__).parents[2] / "adapters")


# -- what was subscribed to at the broker -------------------------------------------------------------------------------


class Late(HeldAdapter):
    """The broker has the subscription before the call returns."""

    async def subscribe(self, topics: object) -> None:
        self.subscribed.extend(topics)  # type: ignore[arg-type]
        await self.may_subscribe.wait()


async def test_a_cancelled_subscription_leaves_nothing_at_the_broker(url: str) -> None:
    adapter = Late(url)
    async with ordered_pubsub.connect(adapter) as client:
        adapter.may_subscribe.clear()
        opening = asyncio.ensure_future(client.subscribe("a"))
        await until(lambda: adapter.subscribed)
        opening.cancel()
        await asyncio.wait((opening,))
        adapter.may_subscribe.set()
        await until(lambda: adapter.unsubscribed)

        assert adapter.unsubscribed == ["a"]


async def test_what_may_be_subscribed_to_is_subscribed_to_again_when_it_is_wanted(url: str) -> None:
    """Nobody knows whether it was."""
    adapter = HeldAdapter(url)
    async with ordered_pubsub.connect(adapter) as client:
        adapter.failures.append(errors.AdapterError("planted"))
        with pytest.raises(errors.AdapterError):
            await client.subscribe("a")
        await client.subscribe("a")

        assert adapter.subscribed == ["a"]


# -- keys ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path: Path) -> ClientTls:
    """A key with a passphrase."""
    authority = Authority(tmp_path)
    certificate = authority.sign("desk")
    key = serialization.load_pem_private_key(Path(certificate.key).read_bytes(), None)
    Path(certificate.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a passphrase"),
        )
    )
    return ClientTls(ca=authority.file, cert=certificate.cert, key=certificate.key)


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for_on_the_terminal(locked: ClientTls) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"key=.*cannot be used: .*without passphrase"):
        tls.client_context(locked)


async def test_a_client_says_so_and_does_not_wait_for_stages(locked: ClientTls) -> None:
    home = NetworkHome([parse_address(f"opss://{HOST}:{free_port()}")], "", lambda: tls.client_context(locked), 60.0)
    with pytest.raises(errors.ConfigurationError, match="without passphrase"):
        await asyncio.wait_for(home._connect_to_any(), PATIENCE_S)


def test_no_key_is_loaded_without_saying_what_its_passphrase_is() -> None:
    """Else OpenSSL asks somebody who is not there, in the middle of the event loop."""
    for path in (path for root in ROOTS for path in root.rglob("*.py") if "testing" not in path.parts):
        for call in path.read_text().split("load_cert_chain(")[1:]:
            assert "password=" in call[:100], path


# -- sockets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errors.ConfigurationError("planted"), ssl.SSLError("planted"), KeyError("planted")])
def test_a_reader_that_cannot_speak_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Context:
        def wrap_socket(self, *_: object, **__: object) -> None:
            raise error

    monkeypatch.setattr(ReaderAccess, "tls", lambda access: Context())
    with socket.create_server((HOST, 0)) as listener:
        address = Address(HOST, listener.getsockname()[1], tls=True)
        with pytest.raises((errors.OrderedPubSubError, KeyError)):
            reading._connect(address, ReaderAccess(ClientSection(sequencer=(str(address),))))
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_S)

        assert connection.recv(1) == b""
        connection.close()


def test_a_reader_whose_certificates_do_not_fit_does_not_even_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(access: ReaderAccess) -> ssl.SSLContext:
        raise errors.ConfigurationError("planted")

    monkeypatch.setattr(ReaderAccess, "tls", refuse)
    monkeypatch.setattr(socket, "create_connection", None)
    address = Address(HOST, free_port(), tls=True)
    with pytest.raises(errors.ConfigurationError, match="planted"):
        reading._connect(address, ReaderAccess(ClientSection(sequencer=(str(address),))))


# -- stages that are just starting --------------------------------------------------------------------------------------


async def test_connecting_waits_for_stages_that_are_just_starting(caplog: pytest.LogCaptureFixture) -> None:
    home = NetworkHome([Address(HOST, free_port())], connect_timeout_s=PATIENCE_S)
    attempts: list[int] = []

    async def connect_to_any() -> str:
        attempts.append(1)
        return "nobody listens there" if len(attempts) < 3 else ""

    home._connect_to_any = connect_to_any  # type: ignore[method-assign]
    home._topology = object()  # type: ignore[assignment]
    home._stay_connected = home._watch = asyncio.Event().wait  # type: ignore[assignment,method-assign]
    await home.open(*_who())
    await home.close()

    assert len(attempts) == 3
    assert "no stage can be reached yet, trying again for" in caplog.text


async def test_when_it_gives_up_it_says_for_how_long_it_has_tried() -> None:
    home = NetworkHome([Address(HOST, free_port())], connect_timeout_s=0.05)
    with pytest.raises(errors.UnavailableError, match=r"nobody listens there; tried for 0.05 s \(connect_timeout_s\)"):
        await home.open(*_who())


def _who() -> tuple[object, None, object]:
    from ordered_pubsub.client.home.home import NOBODY
    from ordered_pubsub.wire.sessions import make_session

    return make_session(None), None, NOBODY
