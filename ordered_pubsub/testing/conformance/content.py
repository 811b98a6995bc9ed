"""Checks of what arrives: the same bytes, the same headers, under the same topic and no other."""

from __future__ import annotations

from ordered_pubsub.adapter import Frame
from ordered_pubsub.testing.conformance.peers import first_arrival, fresh_topic, opened
from ordered_pubsub.testing.conformance.subject import Subject, check, expect

EVERY_BYTE = bytes(range(256))
Headers = dict[str, bytes | str]

HEADERS_BYTES_MAX = 32_768
"""What a client takes of its user, as the broker that needs most would spell it: what is not plain ASCII in Base64."""
AROUND_HEADER_BYTES = 14
LONGEST_NAME = "n" * 255


def _longest(piece: bytes | str, name: str = "x") -> Headers:
    """One header of so many pieces as fit."""
    room = (HEADERS_BYTES_MAX - AROUND_HEADER_BYTES - len(name)) // 4 * 3
    size = len(piece.encode() if isinstance(piece, str) else piece)
    return {name: piece * (room // size)}


LARGEST_HEADERS: tuple[Headers, ...] = (
    {"x": "x" * (HEADERS_BYTES_MAX - AROUND_HEADER_BYTES)},
    *(_longest(piece) for piece in ("é", "漢", "𝄞", "\r", "é\n漢", b"\xff", b"a")),
    _longest("é", LONGEST_NAME),
    {f"x{number:03}": "é" * 10 for number in range(HEADERS_BYTES_MAX // (AROUND_HEADER_BYTES + 4 + 28))},
)
"""The largest that a client lets through (`ordered_pubsub.wire.event_frames.check_headers`)."""
LONGEST_STAMP = EVERY_BYTE * 32
"""8 KiB: a client writes what is longer into the payload."""
ROOM_BYTES = 4_096
"""Of `frame_bytes_max`, a client keeps so much free for the topic, and for its own headers."""
FRAME_BYTES_MOST = 2**26
"""Whoever names more is asked for so much, which is what a client may have under way (`pipeline_bytes_max`)."""

PAYLOADS = (b"", b"\x00", EVERY_BYTE, EVERY_BYTE[::-1] * 16, b"plain", b"\r\nMSG x 1 5\r\nhello", "é漢𝄞".encode())

TEXTS = (
    "", " ", "plain", "é", "漢字", "𝄞", "\x00", "\r\n", "a\tb", " around ", "b64:AAAA", "u64:w6k=", "b64:", "%2E", "a: b, c", "=",
    "\ufeff", "\uffff", "e\u0301", "x" * 4_000,
)  # fmt: skip

BYTES = (b"", b"\x00", EVERY_BYTE, b"plain", b"b64:AAAA", "é".encode(), b"\xff" * 32_768)

HEADER_NAMES = ("x", "X", "x:y", "a=b", '"quoted"', "%2E", "nats-msg-id", "x-match", "content-type", "n" * 200)
"""A user's header has a name of printable ASCII without spaces (`ordered_pubsub.wire.event_frames.check_headers`)."""

CLIENTS: dict[str, bytes | str] = {
    "ordered-pubsub-stamp": EVERY_BYTE * 8,
    "content-type": "application/json",
    "trace-id": "é",
    "blob": EVERY_BYTE,
}
"""What a client publishes."""

_LEVELS = (
    "+", "#", "*", ">", ".", "..", "a.b", "a/b", "a/+", "a/#", "a/>", "a/*", "%", "%2E", "%2e", "%252E", "%~", "a b", " a", "a ",
    "$SYS/x", "$JS/API/x", "$share/g/a", "_INBOX/x", "amq/x", "é", "e\u0301", "漢字", "𝄞", "A", "a", "a/b/c/d/e/f", "-", "_",
    "\u00a0", "\u3000", "\ufeff", "\ufffe", "x:y", "\"'\\`", "{a}", "[a]", "(a)", "~", "^", "&", "a|b", "a,b", "a;b", "?", "=",
)  # fmt: skip

LONG = ("l" * 255, "l" * 254 + "m", "é" * 255, "漢" * 254 + "字", "𝄞" * 255, "𝄞" * 254 + "x", "/".join("d" * 128))

TOPICS = (*_LEVELS, *LONG)
"""Valid topics that mean something to one broker or another, or look alike, or are long."""


async def _come_unchanged(subject: Subject, frames: list[Frame]) -> None:
    """Each on a topic of its own, by which it is recognized even if it has changed."""
    async with opened(subject, 2) as (publisher, receiver):
        await receiver.subscribe(*(frame.topic for frame in frames))
        for frame in frames:
            came = await first_arrival(frame, publisher, receiver)
            expect(came.payload == frame.payload, _changed("payload", frame.payload, came.payload))
            for name, value in frame.headers.items():
                there = came.headers.get(name)
                same = there == value and type(there) is type(value)
                expect(same, _changed(f"header {name!r}", value, there))


def _changed(what: str, published: bytes | str, came: bytes | str | None) -> str:
    return f"the {what} was published as {_short(published)} and came as {_short(came)}"


def _short(value: bytes | str | None) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}... (of {len(value or '')})"


@check(
    "payloads arrive as they were published, whatever their bytes",
    promise="The payload of a frame is the application's own bytes",
)
async def payloads_arrive_unchanged(subject: Subject) -> None:
    """Empty, all bytes, and what looks like a broker's protocol."""
    await _come_unchanged(subject, [Frame(fresh_topic(), payload) for payload in PAYLOADS])


@check(
    "a large payload arrives as it was published",
    promise="The payload of a frame is the application's own bytes",
)
async def large_payloads_arrive_unchanged(subject: Subject) -> None:
    """More than any buffer on the way holds at once."""
    size = subject.payload_bytes_max
    payloads = [(EVERY_BYTE * (size // 256 + 1))[:length] for length in (65_535, 65_536, size) if length <= size]
    await _come_unchanged(subject, [Frame(fresh_topic(), payload) for payload in payloads])


@check(
    "text headers arrive as the same text",
    promise="headers travel beside the payload",
    when=lambda subject: subject.capabilities.carries_headers,
)
async def text_headers_arrive_unchanged(subject: Subject) -> None:
    """Also text that is empty, not ASCII, or has control characters."""
    await _come_unchanged(subject, [Frame(fresh_topic(), b"", {"x": text}) for text in TEXTS])


@check(
    "headers of bytes arrive as the same bytes",
    promise="headers travel beside the payload",
    when=lambda subject: subject.capabilities.carries_headers,
)
async def bytes_headers_arrive_unchanged(subject: Subject) -> None:
    """The stamp of every event is one, and may be some kilobytes long."""
    await _come_unchanged(subject, [Frame(fresh_topic(), b"", {"x": value}) for value in BYTES])


@check(
    "headers as large as a client allows arrive as the same text and bytes",
    promise="headers travel beside the payload",
    when=lambda subject: subject.capabilities.carries_headers,
)
async def the_largest_headers_arrive_unchanged(subject: Subject) -> None:
    """What is not ASCII takes several bytes a character, and more where it must become ASCII; the stamp comes on top."""
    stamp = {"ordered-pubsub-stamp": LONGEST_STAMP}
    await _come_unchanged(subject, [Frame(fresh_topic(), b"", {**stamp, **headers}) for headers in LARGEST_HEADERS])


@check(
    "a frame of as many bytes as frame_bytes_max names is taken, and arrives",
    promise="How many bytes a frame may have, headers included, once the ENS is open",
)
async def the_largest_frame_is_taken(subject: Subject) -> None:
    """As a client makes it: what the topic and two short headers may take on the ENS is kept free."""
    async with opened(subject) as (peer,):
        most = peer.adapter.frame_bytes_max
    if most is None:
        return  # what has no limit to speak of is asked for no more than large_payloads_arrive_unchanged does
    size = min(most, FRAME_BYTES_MOST) - ROOM_BYTES
    expect(size > 0, f"frame_bytes_max is {most}; expected more than {ROOM_BYTES}, which a client keeps free")
    payload = (EVERY_BYTE * (size // 256 + 1))[:size]
    frame = Frame(f"{fresh_topic()[:40]}/{'𝄞' * 200}", payload, {"ordered-pubsub-pack": "1", "content-type": "x" * 64})
    await _come_unchanged(subject, [frame])


@check(
    "headers of any allowed name arrive, each under its own, and none when there were none",
    promise="headers travel beside the payload",
    when=lambda subject: subject.capabilities.carries_headers,
)
async def header_names_arrive_unchanged(subject: Subject) -> None:
    """Also names that differ in case only, or mean something to a broker."""
    together: dict[str, bytes | str] = {name: f"of {name}" for name in HEADER_NAMES}
    single = [Frame(fresh_topic(), b"", {name: b"alone"}) for name in HEADER_NAMES]
    await _come_unchanged(subject, [Frame(fresh_topic(), b"", CLIENTS), Frame(fresh_topic(), b"", together), *single])
    async with opened(subject, 2) as (publisher, receiver):
        bare = Frame(fresh_topic(), b"bare")
        await receiver.subscribe(bare.topic)
        came = await first_arrival(bare, publisher, receiver)
        expect(not came.headers, f"a frame without headers came with {dict(came.headers)}")


@check(
    "frames come under the topic that they were published on, and topics never meet, however they are spelled",
    promise="Let the frames of these topics come, too.",
)
async def topics_never_meet(subject: Subject) -> None:
    """First with every other topic subscribed to, then with all of them."""
    async with opened(subject, 2) as (publisher, receiver):
        held: list[str] = []
        for half in (TOPICS[::2], TOPICS[1::2]):
            held.extend(half)
            await receiver.subscribe(*half)
            token = fresh_topic().encode()
            frames = {topic: Frame(topic, token + topic.encode()) for topic in TOPICS}
            await publisher.publish([*frames.values()])
            await receiver.receive([frames[topic] for topic in held], publisher)
            for came in receiver.frames:
                own = came.payload[len(token) :].decode(errors="replace")
                expect(own == came.topic, f"what was published on {own!r} came under {came.topic!r}")
                expect(own in held, f"{own!r} came and was not subscribed to")
