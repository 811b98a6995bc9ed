"""Several events of one topic in one message of the ENS, and in one chunk of its log.

Where a message costs more than an event, packing is faster; the price is that a plain consumer cannot read the topic. A pack
is one byte of version and a msgpack array of batches: the tag that its events share, the stamp of the first one, and the
events. They have consecutive numbers from the stamp's on. What a chunk of a log has is what a batch of a pack has, byte for
byte: one tag is for both.

An event that travels by itself is digested as it would be written here: with its headers in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import lru_cache, partial
from typing import TypeVar

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.checking import BATCH_EVENTS_MAX
from ordered_pubsub.core.log.shelf import NEVER_KEPT
from ordered_pubsub.core.messages import ChangeAsk, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.core.trust.authenticity import DIGEST_BYTES, digest_of, digests_of
from ordered_pubsub.errors import AccessDenied, ProtocolError, UnknownVersion, UsageError
from ordered_pubsub.wire.framing import read

VERSION = 2


class PackedEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an event has for itself."""

    id: str
    payload: bytes
    content_type: str
    texts: dict[str, str] | None = None
    """headers with text"""
    binaries: dict[str, bytes] | None = None
    """headers with bytes"""


class PackedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events that share a tag. What is tagged is the stamp and the events as they are written, so neither is read before."""

    tag: bytes
    stamp: msgspec.Raw
    events: msgspec.Raw


class Logged(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive events of one publisher, as the log of their topic keeps them."""

    publisher: str
    events: list[PackedEvent]


class SignedEvents(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same, for who does not look into the events: each is its bytes."""

    publisher: str
    events: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[PackedBatch])
_event_decoder = msgspec.msgpack.Decoder(PackedEvent)
_events_decoder = msgspec.msgpack.Decoder(list[PackedEvent])
_logged_decoder = msgspec.msgpack.Decoder(Logged)
_one_decoder = msgspec.msgpack.Decoder(msgspec.Raw)
_signed_decoder = msgspec.msgpack.Decoder(SignedEvents)
_prefix = bytes([VERSION])
_PUBLISHER_AT = len(_prefix) + 1
"""In a chunk; the events come behind it."""
_Events = TypeVar("_Events", Logged, SignedEvents)
SIGNED_AT_ONCE = 2_000
"""So many events are digested in one step."""
FOUND_AS_ONE, HASHED_AS_ONE = 8, 1_024
"""So many that are only found, and so many bytes that are hashed together, cost as much as one."""
_ONE_EVENT, _PAIR = 0x91, 0x92
_TEXTS = {0xD9: 1, 0xDA: 2}
_ARRAYS = {0xDC: 2, 0xDD: 4}
"""The first byte of what is long, and how many bytes its length has; what is short has its length in its first byte."""
_Found = TypeVar("_Found")
NO_HEADERS: Mapping[str, bytes | str] = {}


def make_event(id: str, payload: bytes, content_type: str, headers: Mapping[str, bytes | str]) -> PackedEvent:
    """An event as it is written: the same one always in the same way."""
    if not headers:
        return PackedEvent(id, payload, content_type)
    names = sorted(headers)
    texts = {name: value for name in names if isinstance(value := headers[name], str)}
    binaries = {name: value for name in names if isinstance(value := headers[name], bytes)}
    return PackedEvent(id, payload, content_type, texts or None, binaries or None)


def encode_plain(id: str, payload: bytes, content_type: str) -> bytes:
    """An event without headers as it is written."""
    return _encoder.encode((id, payload, content_type, None, None))


def encode_event(event: PackedEvent) -> bytes:
    """One event as it is written, which is what its digest is of."""
    return _encoder.encode(event)


def encode_events(events: list[PackedEvent]) -> bytes:
    """Several events as they are written, which is what their digest is of."""
    return _encoder.encode(events)


def encode_pack(batches: list[PackedBatch]) -> bytes:
    """The pack as bytes."""
    return _prefix + _encoder.encode(batches)


def decode_pack(data: bytes) -> list[PackedBatch]:
    """The batches that were written; raises a `ProtocolError` that says what is wrong with them."""
    if not data:
        raise ProtocolError("a pack of events is empty: expected a byte of version and a msgpack array")
    if data[0] != VERSION:
        raise UnknownVersion(
            f"a pack of events has version {data[0]}, and this release reads version {VERSION}: its publisher runs another "
            "release of ordered_pubsub; install the same one on both sides"
        )
    return read(_decoder, f"a pack of events of version {VERSION}", memoryview(data)[1:])


decode_events = partial(read, _events_decoder, f"the events of a pack of version {VERSION}")
"""The events of a batch; raises a `ProtocolError` that says what is wrong with them."""
decode_event = partial(read, _event_decoder, f"an event of version {VERSION}")
"""One event; raises a `ProtocolError` that says what is wrong with it."""


def head_of_chunk(publisher: str) -> bytes:
    """What comes before the events in a chunk of a log, which are written as `encode_events` writes them."""
    return _prefix + _encoder.encode(SignedEvents(publisher, []))[:-1]


def encode_logged(logged: Logged | SignedEvents) -> bytes:
    """The events as bytes."""
    return _prefix + _encoder.encode(logged)


def decode_logged(data: bytes, count: int) -> Logged:
    """The events that were written, so many; raises a `ProtocolError` that says what is wrong with them."""
    return _decode_chunk(_logged_decoder, data, count)


def decode_signed(data: bytes, count: int) -> SignedEvents:
    """Who has written so many events, and the bytes of each; raises a `ProtocolError` that says what is wrong with them.

    It costs a third of `decode_logged`, and does not find out whether each is an event.
    """
    return _decode_chunk(_signed_decoder, data, count)


def _decode_chunk(decoder: msgspec.msgpack.Decoder[_Events], data: bytes, count: int) -> _Events:
    if data[:1] != _prefix:
        if data == NEVER_KEPT:
            raise ProtocolError(
                "what was published here is at the broker only, if anywhere: when it was asked for, the stage did not keep the "
                "events of this topic, and when it was numbered, it did"
            )
        raise UnknownVersion(
            f"events in a log have version {data[0] if data else 'none'}, and this release reads version {VERSION}: their "
            "publisher runs another release of ordered_pubsub; install the newer one here"
        )
    if not 0 < count <= BATCH_EVENTS_MAX:
        raise ProtocolError(f"a log has {count} events in one piece; expected 1 to {BATCH_EVENTS_MAX}")
    if (announced := _announced(data)) != count:  # before anything is made of them
        raise ProtocolError(f"a log has {announced} events where its stage counts {count}")
    events = read(decoder, f"events in a log, of version {VERSION},", memoryview(data)[1:])
    if len(events.events) != count:
        raise ProtocolError(f"a log has {len(events.events)} events where its stage counts {count}")
    return events


def _announced(data: bytes) -> int:
    """How many events are announced at the head of a chunk, behind its publisher."""
    if len(data) > _PUBLISHER_AT and data[len(_prefix)] == _PAIR:
        at = _PUBLISHER_AT
        length, size = _length(data, at, _TEXTS, 0xA0, 0x1F)
        at += size + max(length, 0)
        if length >= 0 and at < len(data):
            count, _ = _length(data, at, _ARRAYS, 0x90, 0x0F)
            if count >= 0:
                return count
    raise ProtocolError(f"events in a log, of version {VERSION}, cannot be read: expected a publisher and events")


def _length(data: bytes, at: int, long: Mapping[int, int], short: int, mask: int) -> tuple[int, int]:
    """How long the text or array is that begins here, and how many bytes say so; -1 if there is none."""
    first = data[at]
    if first & ~mask == short:
        return first & mask, 1
    size = long.get(first, 0)
    return (int.from_bytes(data[at + 1 : at + 1 + size], "big"), 1 + size) if size else (-1, 0)


class Unreadable(str):
    """The content type of events that are numbered, and that nobody can read; it says why."""

    __slots__ = ()


def unreadable(data: bytes, count: int, error: ProtocolError) -> Logged:
    """So many events, of which nothing is known but that they are there. The first has what is written there as its payload."""
    reason = Unreadable(error)
    return Logged("", [PackedEvent("", b"" if index else data, reason) for index in range(count)])


def packed_headers(event: PackedEvent) -> Mapping[str, bytes | str]:
    """The headers of an event that was written together with others."""
    if not event.texts and not event.binaries:
        return NO_HEADERS
    headers: dict[str, bytes | str] = dict(event.texts or {})
    headers.update(event.binaries or {})
    return headers


# -- at the stage that takes them -------------------------------------------------------------------------------------


@attrs.define(slots=True)
class _Step:
    """How many events may still be digested until the others have their turn."""

    left: int = SIGNED_AT_ONCE


def signed_ask(ask: PublishAsk, publisher: str, may_sign: Callable[[str], bool]) -> PublishAsk:
    """What `signing_ask` returns, at once."""
    return _at_once(signing_ask(ask, publisher, may_sign))


def signing_ask(
    ask: PublishAsk, publisher: str, may_sign: Callable[[str], bool], step: _Step | None = None
) -> Generator[None, None, PublishAsk]:
    """What a client asks, as its home stage passes it on: signed, and with digests of what is kept that the stage has made.

    Only of what nobody keeps are they the client's own. Raises a `UsageError` if the ask does not fit together, and
    `AccessDenied` if the events are signed by another name than the client's, and it `may_sign` by no such name. It is made in
    small steps, however many events there are.
    """
    pieces = ask.pieces
    digests: list[bytes] = []
    if ask.is_kept:
        step = step or _Step()
        if pieces and len(pieces) != len(ask.chunks):
            raise _not_chunks(ask)
        for index, chunk in enumerate(ask.chunks):
            if pieces and pieces[index] != chunk.count:
                raise _not_chunks(ask)
            if step.left <= 0:
                step.left = SIGNED_AT_ONCE
                yield
            try:
                events = decode_signed(chunk.data, chunk.count)
            except ProtocolError as error:
                raise UsageError(f"events for {ask.topic!r} cannot be kept: {error}") from error
            if events.publisher != publisher:
                if index:
                    raise UsageError(
                        f"events for {ask.topic!r} cannot be kept: a batch is signed by one, not by several"
                    )
                if not may_sign(events.publisher):
                    raise AccessDenied(f"events for {ask.topic!r} are signed {events.publisher!r:.80}")
                publisher = events.publisher
            step.left -= 1 + chunk.count // FOUND_AS_ONE
            if pieces:
                digests.append(digest_of(memoryview(chunk.data)[_events_at(events.publisher) :]))
                step.left -= len(chunk.data) // HASHED_AS_ONE
            elif pieces is not None:
                yield from _digesting(events.events, digests, step)
    elif pieces is not None:
        counts = pieces or (1,) * ask.count
        if min(counts, default=0) < 1 or sum(counts) != ask.count or len(ask.digests) != DIGEST_BYTES * len(counts):
            raise UsageError(
                f"a batch of {ask.count} events on {ask.topic!r} has {len(ask.digests)} bytes of digests for {len(counts)} "
                f"pieces; expected {DIGEST_BYTES} for each, and {ask.count} events in all of them"
            )
        digests.append(ask.digests)
    return replace(ask, publisher=publisher, digests=b"".join(digests))


def _signed_alone(ask: PublishAsk, publisher: str, step: _Step) -> PublishAsk | None:
    """The same of what is asked for most: one event that is kept, with a tag of its own, signed by its client. None if this is
    not such a one, or there is something wrong with it: then it is to be looked at closely.
    """
    if ask.pieces != () or len(ask.chunks) != 1 or step.left <= 0 or not ask.is_kept:
        return None
    chunk, head = ask.chunks[0], _head_of_one(publisher)
    if chunk.count != 1 or not chunk.data.startswith(head):
        return None
    event = chunk.data[len(head) :]
    try:
        _one_decoder.decode(event)
    except (msgspec.MsgspecError, RecursionError):
        return None
    step.left -= 1 + len(event) // HASHED_AS_ONE
    return replace(ask, publisher=publisher, digests=digest_of(event))


@lru_cache(maxsize=1_024)
def _head_of_one(publisher: str) -> bytes:
    """What comes before the event in a chunk that has one."""
    return head_of_chunk(publisher) + bytes([_ONE_EVENT])


def _digesting(events: list[msgspec.Raw], digests: list[bytes], step: _Step) -> Iterator[None]:
    """Digest each of some events."""
    for at in range(0, len(events), SIGNED_AT_ONCE):
        if step.left <= 0:
            step.left = SIGNED_AT_ONCE
            yield
        some = events[at : at + SIGNED_AT_ONCE]
        digests.append(digests_of(some))
        step.left -= len(some) + sum(map(len, some)) // HASHED_AS_ONE


def check_signed(part: PublishAsk | Publication) -> None:
    """Raise a `ProtocolError` if another stage brings events that none of its clients could: of another version, or signature."""
    for chunk in part.chunks:
        publisher = decode_signed(chunk.data, chunk.count).publisher
        if publisher != part.publisher:
            raise ProtocolError(
                f"events for {part.topic!r} are signed {publisher!r:.80}, and come as {part.publisher!r}'s"
            )


def _not_chunks(ask: PublishAsk) -> UsageError:
    return UsageError(f"events for {ask.topic!r} cannot be kept: what shares a tag is one chunk, and these are others")


@lru_cache(maxsize=1_024)
def _events_at(publisher: str) -> int:
    """Where the events begin in a chunk, as they are written there."""
    return _PUBLISHER_AT + len(_encoder.encode(publisher))


def signed_request(request: Request, publisher: str, may_sign: Callable[[str], bool]) -> tuple[Request, Refusal | None]:
    """What `signing_request` returns, at once."""
    return _at_once(signing_request(request, publisher, may_sign))


def signing_request(
    request: Request, publisher: str, may_sign: Callable[[str], bool]
) -> Generator[None, None, tuple[Request, Refusal | None]]:
    """The same of a whole request; or the request as it is, and why its events are not taken."""
    parts: list[PublishAsk | ChangeAsk] = []
    step = _Step()
    try:
        for part in request.parts:
            if not isinstance(part, PublishAsk):
                parts.append(part)
            elif (signed := _signed_alone(part, publisher, step)) is not None:
                parts.append(signed)
            else:
                parts.append((yield from signing_ask(part, publisher, may_sign, step)))
    except AccessDenied as error:
        reason = f"{error}, and this client may sign as {publisher!r}, or with a name that was given to its identity (`names`)"
        return request, request.refused("forbidden", reason)
    except UsageError as error:
        return request, request.refused("bad-request", str(error))
    return replace(request, parts=tuple(parts)), None


def _at_once(steps: Generator[None, None, _Found]) -> _Found:
    """What comes of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: _Found = end.value
            return found
