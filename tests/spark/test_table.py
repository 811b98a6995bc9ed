"""Rows from batches of the log: their positions and vectors, whatever is silent between them."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.log.range_reader import LogBatch
from ordered_pubsub.spark.table import Table, wanted_by
from ordered_pubsub.wire.content import JSON
from ordered_pubsub.wire.pack import Logged, PackedEvent, encode_logged


def batch(topic: str, first: int, *values: int, last: int | None = None) -> LogBatch:
    """Events with these values, then silence up to the last number."""
    events = [PackedEvent(f"{topic}-{first + at}", b'{"n":%d}' % value, JSON) for at, value in enumerate(values)]
    end = first + len(events) - 1
    chunks = [(first, end, encode_logged(Logged("desk", events)))] if events else []
    return LogBatch(topic, first, end if last is None else last, 1, 1.5, {}, chunks, 1)


def rows(table: Table, *batches: LogBatch) -> list[tuple[int, str, int, dict[str, int]]]:
    return [
        (row["position"], row["topic"], row["number"], dict(row["vector"]))
        for made in table.record_batches(batches)
        for row in made.to_pylist()
    ]


def test_a_position_is_the_sum_of_its_vector() -> None:
    table = Table(["a", "b"], {"a": 2}, {"a": 9, "b": 9})
    found = rows(table, batch("a", 3, 0, 0), batch("b", 1, last=4), batch("a", 5, 0, last=7), batch("b", 5, 0))

    assert found == [
        (3, "a", 3, {"a": 3, "b": 0}),
        (4, "a", 4, {"a": 4, "b": 0}),
        (9, "a", 5, {"a": 5, "b": 4}),
        (12, "b", 5, {"a": 7, "b": 5}),
    ]


def test_only_what_is_in_the_range_is_a_row() -> None:
    table = Table(["a"], {"a": 2}, {"a": 4})
    assert [row[:3] for row in rows(table, batch("a", 1, 0, 0, 0, 0, 0))] == [(3, "a", 3), (4, "a", 4)]


def test_what_is_filtered_has_its_place_and_is_not_kept() -> None:
    table = Table(["a", "b"], {}, {"a": 10_000, "b": 1}, wanted_by("n = 7"))
    silent = [batch("a", number, 0) for number in range(1, 10_000)]
    found = rows(table, *silent, batch("b", 1, 7), batch("a", 10_000, 7))

    assert found == [(10_000, "b", 1, {"a": 9_999, "b": 1}), (10_001, "a", 10_000, {"a": 10_000, "b": 1})]
    assert not list(Table(["a"], {}, {"a": 9_999}, wanted_by("n = 7")).record_batches(silent))


@pytest.mark.parametrize("where", ["n = 7", "headers.kind = 'x'"])
def test_no_filter_leaves_out_what_nobody_can_read(where: str) -> None:
    """Nobody knows what it says: also not whether it is wanted."""
    table = Table(["a"], {}, {"a": 3}, wanted_by(where))
    unreadable = LogBatch("a", 2, 3, 2, 1.5, {}, [(2, 3, b"lost")], 2)
    (made,) = table.record_batches([batch("a", 1, 0), unreadable])

    assert [(row["number"], row["error"] is None, row["data"]) for row in made.to_pylist()] == [
        (2, False, b"lost"),
        (3, False, b""),
    ]


def test_silence_between_rows_is_held_once_for_each_topic() -> None:
    table = Table(["a", "b"], {}, {"a": 10_000, "b": 10_000}, wanted_by("n = 7"))
    table._take(batch("a", 1, 7))
    for number in range(1, 1_000):
        table._take(batch("b", number, 0))
    assert len(table._rows.silence) == 1


def test_a_record_batch_is_no_larger_than_a_batch_makes_it() -> None:
    table = Table(["a"], {}, {"a": 100_000})
    sizes = [made.num_rows for made in table.record_batches(batch("a", 1 + 1_000 * k, *[0] * 1_000) for k in range(20))]
    assert sizes == [9_000, 9_000, 2_000]


def test_what_cannot_be_read_is_a_row_that_says_why() -> None:
    """And what comes behind it is there."""
    table = Table(["a"], {}, {"a": 3})
    strange = LogBatch("a", 2, 2, 1, 1.5, {}, [(2, 2, b"\x03new")], 1)
    found = [
        row for made in table.record_batches([batch("a", 1, 7), strange, batch("a", 3, 9)]) for row in made.to_pylist()
    ]

    assert [(row["number"], row["error"] is None) for row in found] == [(1, True), (2, False), (3, True)]
    assert found[1]["data"] == b"\x03new"
    assert "version 3, and this release reads version 2" in found[1]["error"]
