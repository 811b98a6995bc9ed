"""What a home stage leaves out for a filter: no event that the client would have chosen, and no number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.client.incoming._selecting import wanted_by
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.log.shelf import Row
from ordered_pubsub.core.messages import ChangeMark, Chunk, LogItem
from ordered_pubsub.server.stage import choosing as module
from ordered_pubsub.server.stage.choosing import FILTERS_MAX, LETTERS_MAX, STEP_BYTES, Filters, choosing, choosing_rows
from ordered_pubsub.wire.content import BYTES, JSON
from ordered_pubsub.wire.logged import read_recalled
from ordered_pubsub.wire.pack import Logged, PackedEvent, SignedEvents, encode_event, encode_logged

MARKS = [ChangeMark("desk/1", 2)]


def chunk(*events: PackedEvent) -> Chunk:
    return Chunk(len(events), encode_logged(Logged("market", list(events))))


def event(data: Any, content_type: str = JSON, **texts: str) -> PackedEvent:
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    return PackedEvent("id", payload, content_type, texts or None)


def recalled(*chunks: Chunk, first: int = 5) -> LogItem:
    last = first + sum(part.count for part in chunks) - 1
    return LogItem(first, last, {"u": 3}, False, MARKS, first, 1, 1.5, list(chunks))


def choose(where: str, item: LogItem) -> LogItem:
    """All steps at once."""
    (left,) = [left for left in choosing(where, [item]) if left is not None]
    return left


def counts(item: LogItem) -> list[tuple[int, bool]]:
    """Of each chunk how many events it has, and whether they are there."""
    return [(part.count, bool(part.data)) for part in item.chunks]


def test_what_is_all_wanted_stays_as_it_is() -> None:
    item = recalled(chunk(event({"n": 2}), event({"n": 3})), chunk(event({"n": 4})))

    assert choose("n > 1", item) == item


def test_of_what_is_not_wanted_only_the_count_is_left() -> None:
    data = [{"n": n} for n in (0, 1, 2, 3, 0, 4)]
    item = choose("n > 1", recalled(chunk(*map(event, data)), chunk(event({"n": 0}))))

    assert counts(item) == [(2, False), (2, True), (1, False), (1, True), (1, False)]
    assert (item.first, item.last, item.entries, item.marks) == (5, 11, {"u": 3}, MARKS)


def test_silence_stays_silence() -> None:
    item = LogItem(5, 9, {"u": 3}, True, [], 5, 1, 1.5, [])

    assert choose("n > 1", item) == item


def test_headers_are_chosen_by_without_the_payload() -> None:
    item = recalled(chunk(event(b"\xff", JSON, kind="a"), event(b"\xff", "application/msgpack", kind="b")))

    assert counts(choose("headers.kind = 'a'", item)) == [(1, True), (1, False)]


def test_what_the_stage_cannot_read_is_left_to_the_client() -> None:
    """Its content type is one of a serializer of the application, or it is damaged."""
    strange, damaged = event(b"\x81", "application/msgpack"), Chunk(3, b"\x07")

    assert counts(choose("n > 1", recalled(chunk(strange, event({"n": 0}))))) == [(1, True), (1, False)]
    assert choose("n > 1", recalled(damaged)) == recalled(damaged)


@pytest.mark.parametrize(
    "unread", [event(b"bytes", BYTES), event(b"{", JSON), event(b"\xff", JSON), event([1]), event(2)]
)
def test_what_has_no_fields_matches_only_what_asks_for_none(unread: PackedEvent) -> None:
    assert counts(choose("n > 1", recalled(chunk(unread)))) == [(1, False)]
    assert counts(
        choose("headers.kind = 'a'", recalled(chunk(event(unread.payload, unread.content_type, kind="a"))))
    ) == [(1, True)]


EVENTS = st.builds(
    event,
    st.one_of(st.fixed_dictionaries({"n": st.integers(0, 4)}), st.integers(), st.sampled_from([b"{", b"\xff"])),
    st.sampled_from([JSON, JSON, BYTES, "application/msgpack"]),
)


@given(
    st.lists(st.lists(EVENTS, min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(["n > 1", "n in (0, 4)"]),
)
def test_the_client_has_the_same_events_whether_the_stage_chooses_or_not(
    batches: list[list[PackedEvent]], where: str
) -> None:
    """With their numbers; and what is between them is silence, without a gap."""
    item, wants = recalled(*(chunk(*batch) for batch in batches)), wanted_by(where, Decoder(None))
    chosen = read_recalled("t", choose(where, item))

    def wanted(arrivals: list[Any]) -> list[tuple[int, bytes]]:
        return [(one.number, one.body.payload) for one in arrivals if not one.last and wants(one)]

    assert wanted(chosen) == wanted(read_recalled("t", item))
    assert [number for one in chosen for number in range(one.number, (one.last or one.number) + 1)] == list(
        range(item.first, item.last + 1)
    )
    assert (chosen[0].entries, chosen[0].marks) == (item.entries, item.marks)


# -- in small steps -----------------------------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the payloads that were decoded."""
    sizes: list[int] = []
    fields_of = module.fields_of

    def noting(payload: bytes, content_type: str) -> Any:
        sizes.append(len(payload))
        return fields_of(payload, content_type)

    monkeypatch.setattr(module, "fields_of", noting)
    return sizes


def in_steps(steps: Iterator[object], read: list[int]) -> list[list[int]]:
    """What was decoded in each step."""
    found: list[list[int]] = []
    for _ in steps:
        found.append(read[:])
        read.clear()
    found.append(read[:])
    read.clear()
    return found


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([10_000], id="a large batch"),
        pytest.param([1] * 10_000, id="many small ones"),
        pytest.param([100] * 100, id="some of each"),
    ],
)
def test_however_many_events_there_are_a_few_are_judged_in_a_step(chunks: list[int], read: list[int]) -> None:
    number = iter(range(10_000))
    item = recalled(*(chunk(*(event({"n": next(number)}) for _ in range(count))) for count in chunks))
    steps = in_steps(choosing("n > 0", [item]), read)
    rows = [
        Row(at, at + part.count - 1, part.data) for at, part in zip(count_from(5, chunks), item.chunks, strict=True)
    ]
    module._opened.clear()
    steps_of_rows = in_steps(choosing_rows("n > 0", rows, []), read)

    for judged in (steps, steps_of_rows):
        assert sum(map(len, judged)) == 10_000
        assert max(map(len, judged)) <= 256


def count_from(first: int, counts: list[int]) -> Iterator[int]:
    for count in counts:
        yield first
        first += count


def test_many_items_are_chosen_in_small_steps(read: list[int]) -> None:
    items = [recalled(chunk(event({"n": number})), first=number) for number in range(1, 1_001)]
    steps = list(choosing("n > 500", items))
    found = [item for item in steps if item is not None]

    assert [item.first for item in found] == list(range(1, 1_001))
    assert [counts(item) for item in found] == [[(1, item.first > 500)] for item in found]
    assert len(steps) - len(found) >= 1_000 // 256


def test_large_events_are_judged_one_in_a_step(read: list[int]) -> None:
    item = recalled(chunk(*(event({"n": number, "text": "x" * STEP_BYTES}) for number in range(9))))
    steps = in_steps(choosing("n > 0", [item]), read)

    assert [len(judged) for judged in steps[:9]] == [1] * 9


def test_many_pieces_are_cut_out_in_small_steps(read: list[int]) -> None:
    item = recalled(chunk(*(event({"n": number % 2}) for number in range(10_000))))
    choose("n > 0", item)
    left: list[LogItem] = []
    lengths: list[int] = []
    for step in choosing("n > 0", [item]):
        lengths += [0] if step is None else []
        left += [step] if step is not None else []

    assert counts(left[0]) == [(1, False), (1, True)] * 5_000
    assert len(lengths) >= 2 * (5_000 // 256)


def test_what_is_no_event_is_left_to_the_client_wherever_it_is(read: list[int]) -> None:
    data = encode_logged(
        SignedEvents("market", [msgspec.Raw(encode_event(event({"n": 0})))] * 999 + [msgspec.Raw(b"\x07")])
    )
    item = recalled(Chunk(1_000, data))

    assert choose("n > 1", item) == item


def test_pieces_are_written_as_the_events_were(read: list[int]) -> None:
    """What was cut out is what its publisher would have written of these events alone."""
    events = [event({"n": number}) for number in range(100)]
    item = choose("n > 49", recalled(chunk(*events)))

    assert item.chunks == [Chunk(50, b""), chunk(*events[50:])]


def test_filters_are_kept_compiled_within_bounds_of_number_and_length() -> None:
    filters = Filters()
    first = filters.read("a = 0")
    for number in range(1, FILTERS_MAX):
        filters.read(f"a = {number}")
    assert filters.read("a = 0") is first

    for number in range(200):
        filters.read(f"x in ({', '.join(str(1_000 * number + value) for value in range(400))})")
        assert filters.letters <= LETTERS_MAX
    assert filters.read("a = 0") is not first
