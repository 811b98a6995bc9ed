"""Connections: plain and with TLS, how they end, and what they keep."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.framing import frame
from ordered_pubsub.wire.tls import HANDSHAKE_BYTES_MAX, TlsLayer, describe
from server.certificates import Authority, server_context
from server.waiting import soon, until

LARGE = 1 << 20


@attrs.define(eq=False)
class Keeper:
    """An owner that keeps what it is told."""

    channel: Channel | None = None
    payloads: list[bytes] = attrs.field(factory=list)
    errors: list[ProtocolError] = attrs.field(factory=list)
    lost_by: list[str] = attrs.field(factory=list)

    def opened(self, channel: Channel) -> None:
        self.channel = channel

    def received(self, payloads: list[bytes]) -> None:
        self.payloads += payloads

    def broken(self, error: ProtocolError) -> None:
        self.errors.append(error)

    def lost(self, reason: str) -> None:
        self.lost_by.append(reason)


@attrs.define(eq=False)
class Two:
    """Two channels that are connected, and what their owners know."""

    near: Keeper
    far: Keeper

    @property
    def here(self) -> Channel:
        assert self.near.channel is not None
        return self.near.channel

    @property
    def there(self) -> Channel:
        assert self.far.channel is not None
        return self.far.channel


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", "tls"])
async def two(request: pytest.FixtureRequest, authority: Authority) -> AsyncIterator[Two]:
    near, far = Keeper(), Keeper()
    server = client = None
    if request.param == "tls":
        server = TlsLayer(server_context(authority.sign("stage")), is_server=True)
        client = TlsLayer(authority.client_context(), is_server=False, host="localhost")
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Channel(far, LARGE, LARGE, server), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    await loop.create_connection(lambda: Channel(near, LARGE, LARGE, client), "127.0.0.1", port)
    await until(lambda: near.channel and far.channel)
    yield Two(near, far)
    for keeper in (near, far):
        assert keeper.channel is not None
        keeper.channel.abort("the test is over")
        await soon(keeper.channel.wait_until_gone())
    listener.close()


async def test_what_is_sent_arrives_in_its_order(two: Two) -> None:
    sent = [bytes([number]) * (1 + number * 997) for number in range(200)]
    for payload in sent:
        two.here.send(frame(payload))

    await until(lambda: len(two.far.payloads) == 200)

    assert two.far.payloads == sent


async def test_both_sides_may_send_at_once(two: Two) -> None:
    for _ in range(50):
        two.here.send(frame(b"x" * 20_000))
        two.there.send(frame(b"y" * 20_000))

    await until(lambda: len(two.far.payloads) == len(two.near.payloads) == 50)


async def test_the_last_frame_arrives_although_the_other_side_is_still_sending(two: Two) -> None:
    """A connection that is closed over unread bytes is reset, and the reason with it."""
    for _ in range(40):
        two.here.send(frame(b"x" * 50_000))
    two.there.close("enough", frame(b"goodbye"))

    await until(lambda: two.near.lost_by and two.far.lost_by)

    assert two.near.payloads == [b"goodbye"]
    assert two.far.lost_by == ["enough"]


async def test_nothing_is_received_after_closing(two: Two) -> None:
    two.there.close("enough")
    two.here.send(frame(b"too late"))

    await until(lambda: two.far.lost_by)

    assert two.far.payloads == []


async def test_aborting_is_at_once(two: Two) -> None:
    two.here.abort("broken")

    await until(lambda: two.near.lost_by and two.far.lost_by)

    assert two.near.lost_by == ["broken"]
    assert not two.here.is_open


async def test_an_owner_is_told_of_the_end_once(two: Two) -> None:
    two.here.close("one")
    two.here.close("two", frame(b"again"))
    two.here.abort("three")
    two.here.send(frame(b"more"))

    await soon(two.here.wait_until_gone())
    await soon(two.there.wait_until_gone())

    assert (two.near.lost_by, two.far.payloads) == (["one"], [])


async def test_what_must_not_be_sent_goes_to_the_owner(two: Two) -> None:
    two.here.send(b"\xff\xff\xff\xff")

    await until(lambda: two.far.errors)

    assert "a frame of 4294967295 bytes was announced" in str(two.far.errors[0])


async def test_a_channel_whose_other_side_does_not_read_is_clogged(two: Two) -> None:
    transport = two.there._transport
    transport.pause_reading()
    assert not two.here.is_clogged

    for _ in range(400):
        two.here.send(frame(b"x" * 100_000))
        if two.here.is_clogged:
            break

    assert two.here.is_clogged


async def test_the_side_that_closes_does_not_wait_for_long(two: Two) -> None:
    two.there._transport.pause_reading()
    for _ in range(100):
        two.here.send(frame(b"x" * 100_000))
    two.here.close("enough", frame(b"goodbye"))

    await until(lambda: two.near.lost_by)


# -- TLS in memory ----------------------------------------------------------------------------------------------------


def layers(authority: Authority, host: str = "localhost") -> tuple[TlsLayer, TlsLayer]:
    server = TlsLayer(server_context(authority.sign("stage")), is_server=True)
    return TlsLayer(authority.client_context(), is_server=False, host=host), server


def shake_hands(client: TlsLayer, server: TlsLayer, piece: int = 1 << 20) -> None:
    """Bring everything over, in pieces, until nothing more is said."""
    client.start()
    server.start()
    while True:
        moved = False
        for source, target in ((client, server), (server, client)):
            data = source.to_write()
            for at in range(0, len(data), piece):
                moved = True
                assert target.receive(data[at : at + piece]) == b""
        if not moved:
            return


def test_hands_are_shaken_byte_by_byte(authority: Authority) -> None:
    client, server = layers(authority)

    shake_hands(client, server, piece=1)
    client.send(b"hello" * 10_000)
    said = b"".join(server.receive(bytes([byte])) for byte in client.to_write())

    assert said == b"hello" * 10_000


def test_the_last_of_the_handshake_may_come_with_the_first_words(authority: Authority) -> None:
    client, server = layers(authority)
    client.start()
    server.receive(client.to_write())
    client.receive(server.to_write())
    client.send(b"hello")

    assert server.receive(client.to_write()) == b"hello"


def test_a_certificate_for_another_host_is_refused_and_the_other_side_told(authority: Authority) -> None:
    client, server = layers(authority, host="elsewhere.example")
    client.start()
    server.receive(client.to_write())

    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        client.receive(server.to_write())

    assert describe(refused.value).startswith("its certificate is not accepted: Hostname mismatch")
    with pytest.raises(ssl.SSLError):
        server.receive(client.to_write())


def test_a_certificate_of_somebody_elses_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    server = TlsLayer(server_context(Authority(tmp_path, "other").sign("stage")), is_server=True)
    client = TlsLayer(authority.client_context(), is_server=False, host="localhost")
    client.start()
    server.receive(client.to_write())

    with pytest.raises(ssl.SSLCertVerificationError):
        client.receive(server.to_write())


def test_a_handshake_without_end_is_given_up(authority: Authority) -> None:
    _, server = layers(authority)
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + b"x" * (0x4000 - 4)

    with pytest.raises(ssl.SSLError):
        server.receive(record * (1 + HANDSHAKE_BYTES_MAX // len(record)))


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", frame(b"plain"), b"\x00" * 400, b"\x16\x03\x01\x00\x05hello"]
)
def test_what_is_no_tls_is_an_ssl_error(authority: Authority, noise: bytes) -> None:
    _, server = layers(authority)

    with pytest.raises(ssl.SSLError):
        server.receive(noise * 20)


def test_bytes_that_were_changed_on_the_way_are_an_ssl_error(authority: Authority) -> None:
    client, server = layers(authority)
    shake_hands(client, server)
    client.send(b"pay 1")
    sent = bytearray(client.to_write())
    sent[-1] ^= 1

    with pytest.raises(ssl.SSLError):
        server.receive(bytes(sent))


def test_the_end_is_told_from_a_cut(authority: Authority) -> None:
    client, server = layers(authority)
    shake_hands(client, server)
    client.send(b"last")
    client.end()

    assert server.receive(client.to_write()) == b"last"
    assert server.is_ended


async def test_tls_to_a_plain_listener_says_what_is_wrong(authority: Authority) -> None:
    """It answers the hello of a handshake as a frame that is far too long."""
    near, far = Keeper(), Keeper()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Channel(far, LARGE, LARGE), "127.0.0.1", 0)
    tls = TlsLayer(authority.client_context(), is_server=False, host="localhost")
    _, channel = await loop.create_connection(
        lambda: Channel(near, LARGE, LARGE, tls), "127.0.0.1", listener.sockets[0].getsockname()[1]
    )
    await until(lambda: far.errors and far.channel)
    assert far.channel is not None
    far.channel.close("no frame", frame(b"this is no TLS"))

    await soon(channel.wait_until_gone())

    assert "TLS is spoken exactly where the stage has tls" in near.lost_by[0]
    assert near.channel is None
    listener.close()


async def test_a_plain_word_to_a_listener_with_tls_is_no_greeting(authority: Authority) -> None:
    far = Keeper()
    loop = asyncio.get_running_loop()
    server = TlsLayer(server_context(authority.sign("stage")), is_server=True)
    listener = await loop.create_server(lambda: Channel(far, LARGE, LARGE, server), "127.0.0.1", 0)

    with socket.create_connection(("127.0.0.1", listener.sockets[0].getsockname()[1])) as plain:
        plain.sendall(frame(b"plain"))
        await until(lambda: far.lost_by)

    assert "TLS failed" in far.lost_by[0]
    assert (far.channel, far.payloads) == (None, [])
    listener.close()
