"""What is fuzzed without a stage: readers, which take bytes (or text, see `texts`), and raise nothing but what they say."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import msgspec
import trustme

from fuzz import texts
from fuzz.mutation import mutate_bytes, mutated, split
from ordered_pubsub.adapter import Frame
from ordered_pubsub.core.messages import Change, ChangeMark, Chunk, LogItem
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.trust.authenticity import Stamp
from ordered_pubsub.errors import BufferOverflow, ProtocolError
from ordered_pubsub.wire.event_frames import CONTENT_TYPE, PACK, STAMP, read_arrivals
from ordered_pubsub.wire.framing import Deframer, frame
from ordered_pubsub.wire.logged import read_recalled
from ordered_pubsub.wire.pack import (
    Logged,
    PackedBatch,
    PackedEvent,
    decode_pack,
    encode_events,
    encode_logged,
    encode_pack,
)
from ordered_pubsub.wire.stamp import decode_stamp
from ordered_pubsub.wire.tls import TlsLayer

SUBSCRIPTION = "session#0/1"


def _entries(random: Random) -> dict[str, int]:
    return {
        topic: random.choice((0, 1, 2, 5, -1, 2**62)) for topic in random.sample(("a", "b", "c"), random.randrange(4))
    }


def _marks(random: Random) -> list[ChangeMark]:
    return [
        ChangeMark(random.choice((SUBSCRIPTION, "", "x")), random.choice((0, 1, 2, -1)))
        for _ in range(random.choice((0, 0, 1, 3)))
    ]


def _draw_body(random: Random, with_id: bool) -> bytes:
    number = random.choice((0, 1, 2, 3, 7, -1, 2**62))
    identity = f"id-{number}" if with_id else ""
    stamp = Stamp(b"s", 1, "p", 1.7e9, "", random.random() < 0.2, _entries(random), _marks(random), number, identity)
    return msgspec.msgpack.encode(stamp)


def draw_stamp(random: Random) -> bytes:
    """A stamp that is good, or was."""
    tag = random.randbytes(random.choice((16, 16, 16, 15, 0)))
    return _versioned(random, b"\x02" + _draw_body(random, with_id=True), tag)


def draw_pack(random: Random) -> bytes:
    """A pack that is good, or was."""
    batches = [
        PackedBatch(
            random.randbytes(16),
            msgspec.Raw(_draw_body(random, random.random() < 0.2)),
            msgspec.Raw(
                encode_events(
                    [
                        PackedEvent(f"id-{n}", b"1", "application/json", {"k": "v"}, {"b": b"v"})
                        for n in range(random.randrange(4))
                    ]
                )
            ),
        )
        for _ in range(random.randrange(4))
    ]
    return _versioned(random, encode_pack(batches))


def _versioned(random: Random, data: bytes, tag: bytes = b"") -> bytes:
    """The byte of the version is mostly right."""
    version = data[:1] if random.random() < 0.95 else random.randbytes(random.randrange(3))
    return version + tag + mutated(random, data[1:])


def stamps(random: Random) -> None:
    """`wire.stamp`"""
    data = draw_stamp(random)
    with suppress(ProtocolError):
        decode_stamp(data)


def packs(random: Random) -> None:
    """`wire.pack`"""
    data = draw_pack(random)
    with suppress(ProtocolError):
        decode_pack(data)


def logged(random: Random) -> None:
    """`wire.pack`: events as a log keeps them, as a subscriber reads what it missed"""
    count = random.choice((1, 1, 2, 3, 0, -1))
    events = [PackedEvent(f"id-{n}", b"1", "text/plain", {"k": "v"}, {"b": b"v"}) for n in range(random.randrange(4))]
    chunk = Chunk(count, _versioned(random, encode_logged(Logged("p", events))))
    first = random.choice((1, 2, 7, 2**39))
    item = LogItem(
        first, first + count - 1, _entries(random), random.random() < 0.3, _marks(random), first, 1, 1.7e9, [chunk]
    )
    with suppress(ProtocolError):
        found = read_recalled("a", item)
        assert [arrival.number for arrival in found] == list(range(first, first + count))


def arrivals(random: Random) -> None:
    """`wire.event_frames.read_arrivals`, and the buffers that take what it reads"""
    delivery, best_effort = Delivery(SUBSCRIPTION, 50), BestEffort(SUBSCRIPTION, 50, 1.0)
    for buffer in (delivery, best_effort):
        buffer.change_asked([])
        buffer.change_settled(Change(SUBSCRIPTION, 1, (), ("a", "b", "c"), 2, False, {}))
    for now in range(random.choice((1, 5, 20))):
        found = _read(_draw_frame(random))
        for arrival in found:
            if arrival.number:
                with suppress(BufferOverflow):
                    delivery.receive(arrival)
                best_effort.receive(arrival, float(now))
        delivery.take_ready()
        best_effort.take_ready()
    best_effort.tick(100.0)
    best_effort.take_ready()


def _draw_frame(random: Random) -> Frame:
    headers: dict[str, bytes | str] = {CONTENT_TYPE: random.choice(("application/json", "", b"\xff"))}
    payload = b"{}"
    if random.random() < 0.5:
        headers[STAMP] = draw_stamp(random) if random.random() < 0.97 else "text"
    else:
        headers[PACK] = random.choice(("1", b"1", ""))
        payload = draw_pack(random)
    return Frame(random.choice(("a", "b", "c", "d")), payload, headers)


def _read(arrived: Frame) -> list[object]:
    try:
        return list(read_arrivals(arrived))
    except ProtocolError:
        return []


def frames(random: Random) -> None:
    """`wire.framing`: however it comes, it is the same"""
    payloads = [random.randbytes(random.choice((1, 3, 100))) for _ in range(random.randrange(5))]
    stream = (
        mutate_bytes(random, b"".join(map(frame, payloads)))
        if random.random() < 0.7
        else b"".join(map(frame, payloads))
    )
    whole, piecewise = _deframed([stream]), _deframed(split(random, stream))
    assert whole[1] == piecewise[1]
    assert whole[1] or whole[0] == piecewise[0]


def _deframed(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """What was found, and whether it ended in an error."""
    deframer, found = Deframer(1_000), []
    try:
        for piece in pieces:
            found += deframer.feed(piece)
            assert deframer.waiting_bytes <= 1_004
    except ProtocolError:
        return found, True
    return found, False


class _Certificates:
    """Made when they are needed first."""

    made: tuple[ssl.SSLContext, ssl.SSLContext] | None = None

    @classmethod
    def contexts(cls) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        if cls.made is None:
            authority = trustme.CA()
            folder = Path(mkdtemp(prefix="ordered-pubsub-fuzz-"))
            issued = authority.issue_cert("localhost")
            issued.private_key_and_cert_chain_pem.write_to_path(folder / "stage.pem")
            server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
            server.load_cert_chain(folder / "stage.pem")
            authority.configure_trust(client)
            cls.made = (server, client)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        return cls.made


def tls(random: Random) -> None:
    """`wire.tls`: what is no TLS, or was changed on its way, is an `SSLError`"""
    server_context, client_context = _Certificates.contexts()
    server = TlsLayer(server_context, is_server=True)
    client = TlsLayer(client_context, is_server=False, host="localhost")
    client.start()
    changed_in = random.randrange(4)
    for turn in range(4):
        source, target = ((client, server), (server, client))[turn % 2]
        if source.is_established:
            source.send(b"hello")
        data = source.to_write()
        if turn == changed_in:
            data = mutate_bytes(random, data)
        try:
            for piece in split(random, data):
                target.receive(piece)
        except ssl.SSLError:
            return


TARGETS: Mapping[str, Callable[[Random], None]] = {
    "stamps": stamps,
    "packs": packs,
    "logged": logged,
    "arrivals": arrivals,
    "frames": frames,
    "tls": tls,
    **texts.TARGETS,
}
