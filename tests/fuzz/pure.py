"""What is fuzzed without a stage: readers, which take bytes or text, and raise nothing but what they say."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import trustme

from fuzz.mutation import TEXTS, mutate_bytes, mutate_text, mutate_value, mutated, split
from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.client.frames import CONTENT_TYPE, PACK, STAMP, read_arrivals
from ordered_pubsub.client.logged import read_recalled
from ordered_pubsub.config.dumping import common, differences, dump
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.core.best_effort import BestEffort
from ordered_pubsub.core.delivery import Delivery
from ordered_pubsub.core.messages import Change, Chunk, Mark, Recalled
from ordered_pubsub.core.topics import check_pattern, check_topic, matches
from ordered_pubsub.errors import BufferOverflow, ConfigurationError, NotOffered, ProtocolError, TopicError
from ordered_pubsub.wire.framing import Deframer, frame
from ordered_pubsub.wire.pack import Logged, Pack, PackedBatch, PackedEvent, decode_pack, encode_logged, encode_pack
from ordered_pubsub.wire.stamp import Stamp, decode_stamp, encode_stamp
from ordered_pubsub.wire.tls import TlsLayer

SUBSCRIPTION = "session#0/1"


def _entries(random: Random) -> dict[str, int]:
    return {
        topic: random.choice((0, 1, 2, 5, -1, 2**62)) for topic in random.sample(("a", "b", "c"), random.randrange(4))
    }


def _marks(random: Random) -> list[Mark]:
    return [
        Mark(random.choice((SUBSCRIPTION, "", "x")), random.choice((0, 1, 2, -1)))
        for _ in range(random.choice((0, 0, 1, 3)))
    ]


def draw_stamp(random: Random) -> bytes:
    """A stamp that is good, or was."""
    number = random.choice((0, 1, 2, 3, 7, -1, 2**62))
    stamp = Stamp(number, _entries(random), random.random() < 0.2, _marks(random), "p", f"id-{number}", 1.7e9)
    return _versioned(random, encode_stamp(stamp))


def draw_pack(random: Random) -> bytes:
    """A pack that is good, or was."""
    batches = [
        PackedBatch(
            random.choice((0, 1, 2, 3, -5, 2**62)),
            _entries(random),
            random.random() < 0.2,
            _marks(random),
            1.7e9,
            [
                PackedEvent(f"id-{n}", b"1", "application/json", {"k": "v"}, {"b": b"v"})
                for n in range(random.randrange(4))
            ],
        )
        for _ in range(random.randrange(4))
    ]
    return _versioned(random, encode_pack(Pack("p", batches)))


def _versioned(random: Random, data: bytes) -> bytes:
    """The byte of the version is mostly right."""
    return (data[:1] if random.random() < 0.95 else random.randbytes(random.randrange(3))) + mutated(random, data[1:])


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
    item = Recalled(
        first, first + count - 1, _entries(random), random.random() < 0.3, _marks(random), first, 1, 1.7e9, [chunk]
    )
    with suppress(ProtocolError):
        found = read_recalled("a", item)
        assert [arrival.number for arrival in found] == list(range(first, first + count))


def arrivals(random: Random) -> None:
    """`client.frames.read_arrivals`, and the buffers that take what it reads"""
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


CONFIGURATION = """
topics = "open"
insecure_allow_plaintext = true
[client]
ens = "nats://user:password@broker:4222"
sequencer = ["ops://127.0.0.1:7411", "opss://[::1]:7412"]
name = "desk-1"
delivery = "ordered"
timeout_s = 60
batch_events_max = 10
linger_s = 0.01
tls = { ca = "ca.pem", cert = "desk.pem", key = "desk.key" }
[[stage]]
name = "eu"
listen = "127.0.0.1:7411"
advertise = "ops://stage-1:7411"
topics = ["eu/**", "*/x"]
store = "sqlite:///var/lib/eu.db"
durability = "fsync"
http = ":7412"
tls = { cert = "eu.pem", key = "eu.key", client_ca = "ca.pem" }
[[stage]]
name = "us"
listen = "127.0.0.1:7421"
[[topic]]
pattern = "ticks/**"
delivery = "ordered"
[[topic]]
pattern = "**"
delivery = "exactly-once"
retention = { keep_age = "1d", max_bytes = "10GB" }
[[group]]
topics = ["trades", "quotes"]
[[identity]]
name = "desk-1"
token_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
allow = { publish = ["orders/**"], subscribe = ["**"], administer = true }
deny = { subscribe = ["private/**"] }
[limits]
payload_bytes_max = 1048576
connections_max = 10_000
authentication_s = 5.0
"""
_TOML = ["[", "]", "[[", "]]", "{", "}", '"', "'", '"""', "=", ",", ".", "\n", "#", "true", "1e999", "0x", "inf", "nan"]
CONFIGURATION_WORDS = [
    *re.findall(r"[\w.:/*\[\]-]+", CONFIGURATION),
    *_TOML,
    "1979-05-27",
    "9" * 5_000,
    "[" * 500,
    "\\u0000",
]


def configuration(random: Random) -> None:
    """`config.reading.read_text`, and what shows and compares what was read"""
    text = mutate_text(random, CONFIGURATION, CONFIGURATION_WORDS)
    try:
        found = read_text(text)
    except ConfigurationError:
        return
    dump(found)
    plain = common(found)
    differences(plain, plain | {"topics": "x"})
    differences(plain, mutate_value(random, {**plain, "lines": {}}))


_LEVELS = ("a", "b", "*", "**", "a", "**", "x*", "", "é")


def topic_matching(random: Random) -> None:
    """`core.topics`: what matches is what a regular expression of the same meaning matches"""
    pattern, topic = ("/".join(random.choices(_LEVELS, k=random.randrange(1, 9))) for _ in range(2))
    if random.random() < 0.2:
        pattern, topic = (mutate_text(random, text, TEXTS) for text in (pattern, topic))
    try:
        check_pattern(pattern)
        check_topic(topic)
    except TopicError:
        return
    assert matches(pattern, topic) == _matches(pattern, topic), (pattern, topic)


def _matches(pattern: str, topic: str) -> bool:
    """By definition: the first level is taken by the first level, or `**` takes none, or one more."""
    wanted, given = pattern.split("/"), topic.split("/")
    reached = {0}
    for level in wanted:
        if level == "**":
            reached = set(range(min(reached), len(given) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(given) and level in ("*", given[at])}
    return len(given) in reached


PASSWORD = "pa55w0rd-which-nobody-may-see"
URLS = (
    f"mqtt://user:{PASSWORD}@127.0.0.1:1883?qos=1",
    f"mqtts://user:{PASSWORD}@broker.example?ca=ca.pem",
    f"nats://user:{PASSWORD}@127.0.0.1:4222,127.0.0.1:4223?jetstream=EVENTS",
    f"tls://{PASSWORD}@broker.example:4222",
    f"amqp://user:{PASSWORD}@127.0.0.1:5672/%2F?connect_timeout_s=5",
    f"amqps://user:{PASSWORD}@[::1]:5671/vhost",
    "memory://name?reorder=0.3&duplicate=0.1&lose=0.1&delay_s=0.02&seed=7",
)
_URL_WORDS = [
    "://",
    "/",
    "?",
    "#",
    "@",
    ":",
    ",",
    "&",
    "=",
    "%",
    "%00",
    "%2F",
    "[",
    "]",
    "::1",
    "99999",
    "\n",
    "\x00",
    "mqtt",
    "é",
]


def ens_urls(random: Random) -> None:
    """URLs of adapters: what is wrong with them is said, and a password in them is not"""
    url = mutate_text(random, random.choice(URLS), _URL_WORDS)
    said = ""
    try:
        load_adapter(url)
    except (ConfigurationError, NotOffered) as error:
        said = str(error)
    is_elsewhere = url.count(PASSWORD) > 1 or f"{PASSWORD}@" not in url  # where it is no password
    assert PASSWORD not in said or is_elsewhere, (url, said)


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
    "configuration": configuration,
    "topic-matching": topic_matching,
    "ens-urls": ens_urls,
    "frames": frames,
    "tls": tls,
}
