"""A tag says that a stage has numbered just this event, in just this place."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ordered_pubsub.core.checking import BATCH_EVENTS_MAX
from ordered_pubsub.core.messages import Answer, ChangeMark, Chunk, Publication, PublishAsk, Request
from ordered_pubsub.core.trust.authenticity import (
    DIGEST_BYTES,
    TAG_BYTES,
    Stamp,
    Tagger,
    common_of,
    digest_of,
    digests_of,
    head_of,
    is_genuine,
    keyed,
    stamp_body,
    topic_key,
)
from ordered_pubsub.core.trust.keys import founded
from ordered_pubsub.errors import AccessDenied, ProtocolError, UsageError
from ordered_pubsub.wire import pack
from ordered_pubsub.wire.pack import (
    Logged,
    PackedEvent,
    SignedEvents,
    decode_signed,
    encode_event,
    encode_events,
    encode_logged,
    make_event,
    signed_ask,
    signed_request,
)

KEYS = founded(b"system-1", bytes(range(32)), 0.0)
KEY = keyed(topic_key(KEYS.secret, 1, "t"))
EVENTS = [PackedEvent(f"id-{n}", b"payload", "text/plain", {"a": "b"}) for n in range(5)]
CONTENTS = [encode_event(event) for event in EVENTS]


def nobody(name: str) -> bool:
    return False


def batch(full: bool = False, pieces: tuple[int, ...] = (), digests: bytes = b"") -> Publication:
    return Publication(
        "t", 5, 1.5, 7, 0, full, {"u": 3}, [ChangeMark("s", 1)],
        pieces=pieces, digests=digests or digests_of(CONTENTS), publisher="p",
    )  # fmt: skip


def tagged(part: Publication) -> Publication:
    answer = Tagger().answer(Answer("c", 1, 1, [part]), KEYS)
    (found,) = answer.parts
    assert isinstance(found, Publication)
    return found


def tags_in(part: Publication) -> list[bytes]:
    return [part.tags[at : at + TAG_BYTES] for at in range(0, len(part.tags), TAG_BYTES)]


@pytest.mark.parametrize("full", [False, True])
def test_each_event_of_a_batch_has_a_tag_of_its_own_stamp(full: bool) -> None:
    part = tagged(batch(full))

    for index, tag in enumerate(tags_in(part)):
        body = stamp_body(common_of(part, index), part.first + index, EVENTS[index].id)
        assert is_genuine(KEY, tag, head_of(body, EVENTS[index].id), CONTENTS[index])
    assert len(part.tags) == 5 * TAG_BYTES
    assert not part.digests


def test_what_shares_a_tag_is_tagged_together() -> None:
    contents = [encode_events(EVENTS[:2]), encode_events(EVENTS[2:])]
    part = tagged(batch(pieces=(2, 3), digests=digests_of(contents)))

    first, second = tags_in(part)
    assert is_genuine(KEY, first, head_of(stamp_body(common_of(part, 0), 7), ""), contents[0])
    assert is_genuine(KEY, second, head_of(stamp_body(common_of(part, 2), 9), ""), contents[1])


@pytest.mark.parametrize(
    "change",
    [
        {"number": 8},
        {"entries": {"u": 4}},
        {"entries": {}},
        {"marks": []},
        {"full": True},
        {"publisher": "q"},
        {"published_at": 2.0},
        {"system": b"system-2"},
        {"key_epoch": 2},
        {"transaction": "x"},
    ],
)
def test_a_tag_is_of_everything_that_the_stamp_says(change: dict[str, object]) -> None:
    part = tagged(batch())
    body = stamp_body(common_of(part, 0), 7, "id-0")
    other = msgspec.msgpack.encode(replace(msgspec.msgpack.decode(body, type=Stamp), **change))

    assert is_genuine(KEY, part.tags[:TAG_BYTES], head_of(body, "id-0"), CONTENTS[0])
    assert not is_genuine(KEY, part.tags[:TAG_BYTES], head_of(other, "id-0"), CONTENTS[0])


@pytest.mark.parametrize(
    "event",
    [
        make_event("id-1", b"payload", "text/plain", {"a": "b"}),
        make_event("id-0", b"other", "text/plain", {"a": "b"}),
        make_event("id-0", b"payload", "text/html", {"a": "b"}),
        make_event("id-0", b"payload", "text/plain", {"a": "c"}),
        make_event("id-0", b"payload", "text/plain", {"a": b"b"}),
        make_event("id-0", b"payload", "text/plain", {}),
    ],
    ids=["id", "payload", "content type", "header", "kind of header", "no header"],
)
def test_a_tag_is_of_all_of_the_event(event: PackedEvent) -> None:
    part = tagged(batch())
    head = head_of(stamp_body(common_of(part, 0), 7), "")

    assert not is_genuine(KEY, part.tags[:TAG_BYTES], head, encode_event(event))


@pytest.mark.parametrize(("epoch", "topic"), [(2, "t"), (1, "u")])
def test_a_tag_is_of_one_topic_and_one_epoch(epoch: int, topic: str) -> None:
    part = tagged(batch())
    key = keyed(topic_key(KEYS.secret, epoch, topic))

    assert not is_genuine(key, part.tags[:TAG_BYTES], head_of(stamp_body(common_of(part, 0), 7), ""), CONTENTS[0])


def test_headers_are_digested_in_the_order_of_their_names() -> None:
    one, other = {"a": "1", "b": b"2", "c": "3"}, {"c": "3", "b": b"2", "a": "1"}

    assert encode_event(make_event("i", b"", "", one)) == encode_event(make_event("i", b"", "", other))


def test_the_answer_that_a_stage_remembers_keeps_its_digests() -> None:
    part = batch()
    answer = Answer("c", 1, 1, [part])
    Tagger().answer(answer, KEYS)

    assert part.digests
    assert not part.tags


def test_without_tags_an_answer_still_says_which_system_this_is() -> None:
    (part,) = Tagger(is_tagging=False).answer(Answer("c", 1, 1, [batch()]), KEYS).parts
    assert isinstance(part, Publication)

    assert (part.system, part.tags, part.digests) == (KEYS.system, b"", b"")


def test_an_answer_that_asked_for_no_tags_is_left_alone() -> None:
    answer = Answer("c", 1, 1, [Publication("t", 1, 0.0, 1)])

    assert Tagger().answer(answer, KEYS) is answer


def test_the_tags_of_an_answer_follow_the_keys() -> None:
    tagger, answer = Tagger(), Answer("c", 1, 1, [batch()])
    (first,) = tagger.answer(answer, KEYS).parts
    (second,) = tagger.answer(answer, replace(KEYS, epoch=2)).parts
    assert isinstance(first, Publication)
    assert isinstance(second, Publication)

    assert (first.key_epoch, second.key_epoch) == (1, 2)
    assert first.tags != second.tags


# -- at the door ------------------------------------------------------------------------------------------------------


def kept(pieces: tuple[int, ...] | None, digests: bytes = b"", publisher: str = "p") -> PublishAsk:
    chunks = tuple(Chunk(len(some), encode_logged(Logged(publisher, some))) for some in (EVENTS[:2], EVENTS[2:]))
    return PublishAsk("t", 5, True, chunks, pieces, digests, publisher="whoever")


def test_the_digests_of_what_is_kept_are_the_stages() -> None:
    ask = signed_ask(kept((), b"x" * 16), "p", nobody)

    assert (ask.digests, ask.publisher) == (digests_of(CONTENTS), "p")


def test_the_digest_of_a_chunk_is_that_of_the_events_as_they_travel_together() -> None:
    ask = signed_ask(kept((2, 3)), "p", nobody)

    assert ask.digests == digest_of(encode_events(EVENTS[:2])) + digest_of(encode_events(EVENTS[2:]))


ALONE = encode_logged(Logged("p", EVENTS[:1]))


@pytest.mark.parametrize(
    "chunks",
    [
        (Chunk(1, ALONE),),
        (Chunk(1, ALONE), Chunk(1, ALONE)),
        (Chunk(1, encode_logged(Logged("q", EVENTS[:1]))),),
        (Chunk(2, ALONE),),
        (Chunk(1, encode_logged(Logged("p", EVENTS[:2]))),),
        (Chunk(1, encode_logged(Logged("p", []))),),
        (Chunk(1, encode_logged(SignedEvents("p", [msgspec.Raw(b"\xc0")]))),),
        *((Chunk(1, ALONE[:at]),) for at in range(len(ALONE))),
        (Chunk(1, ALONE + b"\0"),),
        (Chunk(1, b"\x01" + ALONE[1:]),),
        (Chunk(1, ALONE[:5] + b"\x91" * 5_000 + b"\0"),),
    ],
)
@pytest.mark.parametrize("publisher", ["p", "q", "x" * 40])
def test_one_event_is_signed_as_several_are(chunks: tuple[Chunk, ...], publisher: str) -> None:
    """Most requests are such ones, and are not looked at as closely: what comes of them is the same."""
    ask = PublishAsk("t", len(chunks), True, chunks, ())
    request = Request("c", 1, 1, 0, 0, (ask,))
    signed, refusal = signed_request(request, publisher, lambda name: name == "q")

    if refusal is None:
        assert signed == replace(request, parts=(signed_ask(ask, publisher, lambda name: name == "q"),))
    else:
        with pytest.raises((AccessDenied, UsageError)) as refused:
            signed_ask(ask, publisher, lambda name: name == "q")
        assert str(refused.value) in refusal.reason


def test_what_is_to_have_no_tags_is_not_digested() -> None:
    assert signed_ask(kept(None, b"x" * 16), "p", nobody).digests == b""


def test_pieces_that_are_not_the_chunks_are_refused() -> None:
    with pytest.raises(UsageError, match="one chunk"):
        signed_ask(kept((3, 2)), "p", nobody)


def test_nobody_signs_as_somebody_else() -> None:
    with pytest.raises(AccessDenied, match="signed 'q'"):
        signed_ask(kept((), publisher="q"), "p", nobody)


def test_who_may_sign_by_another_name_has_it_on_the_tag_as_well() -> None:
    assert signed_ask(kept((), publisher="q"), "p", lambda name: name == "q").publisher == "q"


@pytest.mark.parametrize(
    ("pieces", "digests"),
    [((), b""), ((), bytes(5 * DIGEST_BYTES + 1)), ((2, 2), bytes(32)), ((5, 0), bytes(32)), ((-1, 6), bytes(32))],
)
def test_digests_that_are_not_those_of_the_pieces_are_refused(pieces: tuple[int, ...], digests: bytes) -> None:
    with pytest.raises(UsageError, match="bytes of digests"):
        signed_ask(PublishAsk("t", 5, pieces=pieces, digests=digests), "p", nobody)


def test_of_what_nobody_keeps_the_digests_are_the_clients() -> None:
    ask = signed_ask(PublishAsk("t", 5, pieces=(), digests=bytes(80), publisher="whoever"), "p", nobody)

    assert (ask.digests, ask.publisher) == (bytes(80), "p")


@pytest.mark.parametrize("counts", [[10_000], [1] * 10_000, [100] * 100])
def test_however_many_events_there_are_a_few_are_digested_in_a_step(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    digested: list[int] = []

    def noting(contents: list[msgspec.Raw]) -> bytes:
        digested[-1] += len(contents)
        return digests_of(contents)

    monkeypatch.setattr(pack, "digests_of", noting)
    events = [PackedEvent("", b"%d" % number, "") for number in range(10_000)]
    chunks, at = [], 0
    for count in counts:
        chunks.append(Chunk(count, encode_logged(Logged("p", events[at : at + count]))))
        at += count
    parts = tuple(PublishAsk("t", 5_000, True, tuple(some), ()) for some in (chunks, chunks[:1]))
    steps = pack.signing_request(Request("c", 1, 1, 0, 0, parts), "p", nobody)
    digested.append(0)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            signed, refusal = end.value
            break
        digested.append(0)

    assert refusal is None
    assert sum(digested) == 10_000 + counts[0]
    assert max(digested) <= 2 * pack.SIGNED_AT_ONCE
    assert signed.parts[0].digests == digests_of(map(encode_event, events))


@pytest.mark.parametrize("announced", [0, 2, 1 << 22])
def test_events_that_were_not_counted_are_not_even_made(announced: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few megabytes may announce millions of them."""
    monkeypatch.setattr(pack, "_signed_decoder", None)
    data = b"\x02\x92\xa1p\xdd" + announced.to_bytes(4, "big") + b"\xc0" * min(announced, 100)
    with pytest.raises(UsageError, match=f"has {announced} events where its stage counts 1"):
        signed_ask(PublishAsk("t", 1, True, (Chunk(1, data),), None), "p", nobody)


@pytest.mark.parametrize("count", [0, -1, BATCH_EVENTS_MAX + 1])
def test_no_piece_has_more_events_than_a_batch(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"has {count} events in one piece; expected 1 to 100000"):
        decode_signed(b"\x02\x92\xa1p\xdd" + bytes(4), count)


@pytest.mark.parametrize(
    "data",
    [
        b"\x02",
        b"\x02\x92",
        b"\x02\x93\xa1p\x90",
        b"\x02\x92\xbfp",
        b"\x02\x92\xa1p\x80",
        b"\x02\x92\xdb\0\0\0\1p\x91\xc0",
    ],
)
def test_what_does_not_begin_with_a_publisher_and_events_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode_signed(data, 1)


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 1_000])
def test_what_was_written_is_found_however_long_it_is(length: int, count: int) -> None:
    data = encode_logged(SignedEvents("p" * length, [msgspec.Raw(b"\xc0")] * count))

    assert len(decode_signed(data, count).events) == count
