"""The log: what is read is what was written, whatever was completed first, forgotten, cut off, or begun again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.reader import LogReader, LogReading
from ordered_pubsub.core.log.shelf import ENDLESS, Kind, Row
from ordered_pubsub.core.log.writer import FULL_AFTER, Kept, LogWriter
from ordered_pubsub.core.messages import ChangeMark, Chunk, Publication, Transaction
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.errors import JournalDamaged
from ordered_pubsub.server.store.shelf import SqliteShelf
from ordered_pubsub.server.store.store import SqliteJournal, Store, open_store

TOPICS = ("a", "b/c")
MUCH = 1 << 30
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
ENTRIES = st.dictionaries(st.sampled_from(["a", "b/c", "d", "e"]), st.integers(1, 99), max_size=3)


def data_of(topic: str, number: int) -> bytes:
    """One event, which nobody else has."""
    return f"{topic}:{number};".encode()


@attrs.define(eq=False)
class Batch:
    """What was published at once: naively, all that there is to know of it."""

    topic: str
    first: int
    sizes: list[int]
    """of its chunks; none: a number without events"""
    count: int
    entries: dict[str, int] = attrs.field(factory=dict)
    full: bool = False
    marks: list[ChangeMark] = attrs.field(factory=list)
    is_complete: bool = False
    together: dict[str, int] | None = None
    """if it is a transaction: up to where it goes on other topics"""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        chunks, number = [], self.first
        for size in self.sizes:
            chunks.append(Chunk(size, b"".join(data_of(self.topic, number + place) for place in range(size))))
            number += size
        return tuple(chunks)

    @property
    def publication(self) -> Publication:
        place = 3 * self.first
        transaction = None
        if self.together is not None:
            ranges = {
                self.topic: (self.first, self.last),
                **{topic: (1, last) for topic, last in self.together.items()},
            }
            transaction = Transaction(f"{self.topic}.{self.first}", ranges)
        return Publication(
            topic=self.topic,
            count=self.count,
            published_at=float(self.first),
            first=self.first,
            place=place,
            full=self.full,
            entries=self.entries,
            marks=self.marks,
            is_kept=bool(self.sizes),
            transaction=transaction,
        )


@attrs.define
class Model:
    """Everything that was published, in lists."""

    batches: dict[str, list[Batch]] = attrs.field(factory=lambda: {topic: [] for topic in TOPICS})
    floors: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(TOPICS, 0))

    @property
    def unfinished(self) -> dict[str, Ranges]:
        """What has no stamp yet."""
        return {
            topic: Ranges((batch.first, batch.last) for batch in batches if not batch.is_complete)
            for topic, batches in self.batches.items()
        }

    def last(self, topic: str) -> int:
        """The last number that was given."""
        return self.batches[topic][-1].last if self.batches[topic] else self.floors[topic]

    def ends(self, topic: str) -> list[int]:
        """Where something ends: up to there it may be cut."""
        return [self.floors[topic], *(batch.last for batch in self.batches[topic])]

    def is_complete_up_to(self, topic: str, number: int) -> bool:
        return all(batch.is_complete for batch in self.batches[topic] if batch.first <= number)

    def full_at(self, topic: str, number: int) -> dict[str, int]:
        """All the entries since the beginning, the forgotten ones as well; what follows a transaction follows all of it."""
        full: dict[str, int] = {}
        before: dict[str, int] = {}
        for batch in self.batches[topic]:
            if batch.first <= number:
                full.update({other: max(last, full.get(other, 0)) for other, last in before.items()})
                full.update(batch.entries)
                before = batch.together or {}
        return full

    def complete_in(self, topic: str, first: int, last: int) -> set[int]:
        """The numbers that are to be given."""
        first = max(first, self.floors[topic] + 1)
        return {
            number
            for batch in self.batches[topic]
            if batch.is_complete
            for number in range(max(batch.first, first), min(batch.last, last) + 1)
        }


def check(reading: LogReading, model: Model, topic: str, first: int, last: int, full: bool) -> None:
    """What was read is what was published, and all of it as far as was read."""
    assert reading.floor == model.floors[topic]
    if full and reading.items:
        assert model.is_complete_up_to(topic, reading.items[0].first)
        assert (reading.items[0].entries, reading.items[0].full) == (model.full_at(topic, reading.items[0].first), True)
    read: list[int] = []
    for index, item in enumerate(reading.items):
        (batch,) = [one for one in model.batches[topic] if one.first <= item.first <= item.last <= one.last]
        assert batch.is_complete, f"{item} is not complete"
        assert (item.batch, item.place, item.published_at) == (batch.first, 3 * batch.first, float(batch.first))
        if index or not full:
            assert item.full == batch.full
            assert item.entries == (batch.entries if batch.full or item.first == batch.first else {})
        assert item.marks == (batch.marks if item.first == batch.first else [])
        assert all(chunk in batch.chunks for chunk in item.chunks)
        if batch.sizes:
            numbers = range(item.first, item.last + 1)
            assert b"".join(chunk.data for chunk in item.chunks) == b"".join(data_of(topic, n) for n in numbers)
        else:
            assert item.chunks == []
        read += range(item.first, item.last + 1)
    assert read == sorted(set(read))
    expected = model.complete_in(topic, first, reading.read_to)
    begins = min(expected, default=1)
    if not full or model.is_complete_up_to(topic, begins):
        assert set(read) >= expected
    assert reading.read_to == last or full or reading.items[-1].last == reading.read_to


class Log(RuleBasedStateMachine):
    """A log on some shelf, and what was written to it in lists beside it."""

    incomplete: Bundle[Batch] = Bundle("incomplete")

    def make_shelf(self) -> tuple[Any, Any]:
        """A shelf to write to, and one to read from."""
        shelf = MemoryShelf()
        return shelf, shelf

    def sync(self) -> None:
        """What was written is to be there."""

    def begin_anew(self) -> None:
        """The process ends, and another one begins."""

    @initialize()
    def begin(self) -> None:
        self.shelf, self.read_shelf = self.make_shelf()
        self.model = Model()
        self.writer = LogWriter(self.shelf)

    def reader(self) -> LogReader:
        """Somebody who knows what is under way."""
        return LogReader(self.read_shelf, self.model.unfinished)

    @rule(target=incomplete, topic=st.sampled_from(TOPICS), sizes=CHUNKS)
    def publish(self, topic: str, sizes: list[int]) -> Batch:
        batch = Batch(topic, self.model.last(topic) + 1, sizes, sum(sizes))
        self.writer.write([Kept(topic, batch.first, batch.chunks)], [])
        self.sync()
        self.model.batches[topic].append(batch)
        return batch

    @rule(target=incomplete, topic=st.sampled_from(TOPICS), count=st.integers(1, 3))
    def leave_numbers_void(self, topic: str, count: int) -> Batch:
        batch = Batch(topic, self.model.last(topic) + 1, [], count)
        self.model.batches[topic].append(batch)
        return batch

    @rule(
        batch=consumes(incomplete),
        entries=ENTRIES,
        full=st.booleans(),
        marked=st.booleans(),
        together=st.none() | st.dictionaries(st.sampled_from(["d", "e"]), st.integers(1, 99)),
    )
    def complete(
        self, batch: Batch, entries: dict[str, int], full: bool, marked: bool, together: dict[str, int] | None
    ) -> None:
        if batch not in self.model.batches[batch.topic]:
            return  # it was cut off
        batch.together = together if batch.sizes else None
        full = full and not entries.keys() ^ self.model.full_at(batch.topic, batch.first).keys()
        batch.entries, batch.full, batch.is_complete = entries, full, True
        batch.marks = [ChangeMark("s/1", batch.first)] if marked else []
        self.writer.write([], [batch.publication])
        self.sync()

    @rule(
        topic=st.sampled_from(TOPICS),
        first=st.integers(1, 60),
        count=st.integers(1, 60),
        full=st.booleans(),
        bytes_max=st.sampled_from([1, 20, MUCH]),
    )
    def read(self, topic: str, first: int, count: int, full: bool, bytes_max: int) -> None:
        last = first + count - 1
        reading = self.reader().read(topic, first, last, bytes_max, full)
        check(reading, self.model, topic, first, last, full)

    @rule(topic=st.sampled_from(TOPICS), up_to=st.integers(0, 60))
    def forget(self, topic: str, up_to: int) -> None:
        model = self.model
        floor = self.writer.forget(topic, up_to)
        self.sync()
        assert model.floors[topic] <= floor <= max(up_to, model.floors[topic])
        assert floor in model.ends(topic)
        assert model.is_complete_up_to(topic, floor)
        if model.is_complete_up_to(topic, up_to):
            assert floor == max(end for end in model.ends(topic) if end <= max(up_to, model.floors[topic]))
        model.floors[topic] = floor

    @rule(topic=st.sampled_from(TOPICS), choice=st.integers(0, 10))
    def go_on_from_an_earlier_journal(self, topic: str, choice: int) -> None:
        """A crash: the journal has not heard of the last batches."""
        model = self.model
        ends = [end for end in model.ends(topic) if end >= model.floors[topic]]
        end = ends[-1 - min(choice, 2, len(ends) - 1)]
        model.batches[topic] = [batch for batch in model.batches[topic] if batch.last <= end]
        self.begin_anew()
        self.writer.cut({one: model.last(one) for one in TOPICS}, {})
        self.sync()

    @rule()
    def start_again(self) -> None:
        self.begin_anew()
        with_events = {
            topic: max((batch.last for batch in batches if batch.sizes), default=0)
            for topic, batches in self.model.batches.items()
        }
        self.writer.cut({topic: self.model.last(topic) for topic in TOPICS}, with_events)
        self.sync()

    @invariant()
    def everything_can_be_read(self) -> None:
        if hasattr(self, "model"):
            for topic in TOPICS:
                check(self.reader().read(topic, 1, ENDLESS, MUCH), self.model, topic, 1, ENDLESS, full=False)


class MemoryLog(Log):
    """In memory, where the shelf is all that outlives a process."""

    def begin_anew(self) -> None:
        self.writer = LogWriter(self.shelf)


class SqliteLog(Log):
    """In a file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store: Store | None = None

    def make_shelf(self) -> tuple[Any, Any]:
        self.store = open_store(str(Path(self.folder.name) / "stage.db"), "os", "main")
        return self.journal.shelf, self.journal.read_shelf

    @property
    def journal(self) -> SqliteJournal:
        assert self.store is not None
        assert isinstance(self.store.journal, SqliteJournal)
        return self.store.journal

    def sync(self) -> None:
        self.journal.sync()

    def begin_anew(self) -> None:
        assert self.store is not None
        self.store.close(None)
        self.shelf, self.read_shelf = self.make_shelf()
        self.writer = LogWriter(self.shelf)

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close(None)
        self.folder.cleanup()


TestMemoryLog = pytest.mark.heavy(MemoryLog.TestCase)
TestMemoryLog.settings = settings(max_examples=150, stateful_step_count=40)
TestSqliteLog = pytest.mark.heavy(SqliteLog.TestCase)
TestSqliteLog.settings = settings(max_examples=30, stateful_step_count=30)


# -- one by one -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def shelves(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """A shelf to write to, one to read from, and what is to be done after writing."""
    if request.param == "memory":
        shelf = MemoryShelf()
        yield shelf, shelf, lambda: None
        return
    store = open_store(str(tmp_path / "stage.db"), "os", "main")
    assert isinstance(store.journal, SqliteJournal)
    yield store.journal.shelf, store.journal.read_shelf, store.journal.sync
    store.close(None)


def published(first: int, count: int = 1, **entries: int) -> tuple[Kept, Publication]:
    """A batch of one chunk on the topic "a", and its timestamp."""
    batch = Batch("a", first, [count], count, dict(entries))
    return Kept("a", first, batch.chunks), batch.publication


def test_what_is_not_complete_is_not_given(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    writer = LogWriter(shelf)
    (one, one_complete), (two, _), (three, three_complete) = published(1), published(2), published(3)
    writer.write([one, two, three], [one_complete, three_complete])
    sync()

    assert [(item.first, item.last) for item in LogReader(read_shelf).read("a", 1, 9, MUCH).items] == [(1, 1), (3, 3)]


def test_what_is_not_on_disk_is_not_given(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "stage.db"), "fsync", "main")
    journal = store.journal
    kept, complete = published(1)
    LogWriter(journal.shelf).write([kept], [complete])
    reader = LogReader(journal.read_shelf)
    assert reader.read("a", 1, 1, MUCH).items == []
    journal.sync()
    assert [item.first for item in reader.read("a", 1, 1, MUCH).items] == [1]
    store.close(None)


def test_a_full_timestamp_is_not_given_before_all_before_it_is_complete(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    (one, one_complete), (two, two_complete) = published(1, b=1), published(2, c=2)
    writer.write([one, two], [two_complete])
    sync()
    assert reader.read("a", 2, 2, MUCH, full=True).items == []
    writer.write([], [one_complete])
    sync()

    (item,) = reader.read("a", 2, 2, MUCH, full=True).items
    assert (item.entries, item.full) == ({"b": 1, "c": 2}, True)


def test_full_timestamps_are_found_however_long_the_log_is(shelves: tuple[Any, Any, Any]) -> None:
    """And only a few stamps are read for one."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    for number in range(1, 4 * FULL_AFTER):
        kept, complete = published(number, **{f"t{number % 7}": number})
        writer.write([kept], [complete])
    sync()

    for number in (1, 2, FULL_AFTER, 2 * FULL_AFTER + 1, 4 * FULL_AFTER - 1):
        expected = {f"t{n % 7}": n for n in range(1, number + 1)}
        assert reader.full_at("a", number) == expected
    newest = read_shelf.before("fulls", "a", ENDLESS)
    assert newest is not None
    assert 4 * FULL_AFTER - newest.last <= FULL_AFTER


def in_transaction(first: int, name: str, **ranges: tuple[int, int]) -> tuple[Kept, Publication]:
    """One event on the topic "a", which is a part of a transaction."""
    kept, complete = published(first)
    complete.transaction = Transaction(name, ranges)
    return kept, complete


def test_what_follows_a_transaction_follows_all_of_it(shelves: tuple[Any, Any, Any]) -> None:
    """What comes together with an event is no reason for it to wait; of its own topic, nothing is said."""
    shelf, read_shelf, sync = shelves
    reader = LogReader(read_shelf)
    parts = [
        published(1),
        in_transaction(2, "one", a=(2, 3), b=(5, 7)),
        in_transaction(3, "one", a=(2, 3), b=(5, 7)),
        in_transaction(4, "two", a=(4, 4), c=(1, 1)),
        published(5, b=9),
    ]
    for kept, complete in parts:
        LogWriter(shelf).write([kept], [complete])  # each finds what was written before
    sync()
    one, two = {"b": 7}, {"b": 7, "c": 1}

    assert [reader.full_at("a", number) for number in range(1, 6)] == [{}, {}, {}, one, {"b": 9, "c": 1}]
    assert [reader.full_behind("a", number) for number in range(1, 5)] == [{}, {}, one, two]


def test_a_transaction_is_within_a_clock_as_a_whole(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    parts = [in_transaction(2, "one", a=(2, 3), b=(5, 7)), in_transaction(3, "one", a=(2, 3), b=(5, 7))]
    for kept, complete in [published(1), *parts, published(4)]:
        writer.write([kept], [complete])
    sync()

    def within(**clock: int) -> list[bool]:
        return [reader.is_within("a", number, clock) for number in range(1, 5)]

    assert within(a=4, b=7) == within(a=4) == [True, True, True, True]
    assert within(a=4, b=6) == [True, False, False, False]
    assert within(a=2, b=7) == [True, False, False, True]  # how far its own topic may go, who asks knows


def test_full_timestamps_go_on_from_a_transaction(shelves: tuple[Any, Any, Any]) -> None:
    """Also from one that was written to the log; and if what was before is forgotten."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    end = 2 * FULL_AFTER
    for number in range(1, end):
        kept, complete = in_transaction(number, f"t{number}", a=(number, number), b=(number, number))
        writer.write([kept], [complete])
        writer = LogWriter(shelf) if number % 50 == 0 else writer
    sync()
    full = read_shelf.before("fulls", "a", ENDLESS)

    assert full is not None
    for number in (full.last - 1, full.last, full.last + 1, end - 1):
        assert reader.full_at("a", number) == {"b": number - 1}
        assert reader.is_within("a", number, {"b": number})
        assert not reader.is_within("a", number, {"b": number - 1})
    assert writer.forget("a", full.last) == full.last
    sync()
    assert reader.full_at("a", full.last + 1) == {"b": full.last}


def test_a_log_that_begins_anew_has_nothing_of_what_was_before(shelves: tuple[Any, Any, Any]) -> None:
    """Between the two, events were not kept: nobody may take the hole for silence."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    (one, one_complete), (nine, nine_complete) = published(1, b=1), published(9, c=3)
    writer.write([one], [one_complete])
    assert [writer.begin_after("a", 8) for _ in range(2)] == [True, False]
    nine_complete.full = True
    writer.write([nine], [nine_complete])
    sync()

    reading = reader.read("a", 1, 9, MUCH, full=True)
    assert reading.floor == 8
    assert [(item.first, item.entries) for item in reading.items] == [(9, {"c": 3})]


def test_nothing_that_is_published_removes_what_was_published_before(shelves: tuple[Any, Any, Any]) -> None:
    """Not even what cannot be: a hole before it, as a stage would make that lets a number go by without its event."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    (one, one_complete), (nine, nine_complete) = published(1), published(9)
    writer.write([one, nine], [one_complete, nine_complete])
    sync()
    assert reader.read("a", 1, 1, MUCH).items[0].chunks


def test_reading_much_goes_on_where_it_stopped(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    batches = [published(first, 10) for first in range(1, 1_000, 10)]
    LogWriter(shelf).write([kept for kept, _ in batches], [complete for _, complete in batches])
    sync()
    reader, first, pieces, read = LogReader(read_shelf), 1, 0, b""
    while first <= 1_000:
        reading = reader.read("a", first, 1_000, 200)
        read += b"".join(chunk.data for item in reading.items for chunk in item.chunks)
        first, pieces = reading.read_to + 1, pieces + 1

    assert read == b"".join(data_of("a", number) for number in range(1, 1_001))
    assert pieces > 10


def test_there_is_no_timestamp_of_what_is_forgotten(shelves: tuple[Any, Any, Any]) -> None:
    """Who reads while it happens, in another thread, would take one for it that lacks what came before."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    for number in range(1, 4):
        kept, complete = published(number)
        complete.entries["b/c"] = number
        writer.write([kept], [complete])
    sync()
    assert writer.forget("a", 2) == 2
    sync()
    assert [reader.full_at("a", number) for number in (1, 2, 3)] == [None, {"b/c": 2}, {"b/c": 3}]


def test_a_log_that_begins_anew_has_nothing_of_an_earlier_timestamp(shelves: tuple[Any, Any, Any]) -> None:
    """What is not kept in between is not known here; the first that is has its timestamp in full."""
    shelf, read_shelf, sync = shelves
    writer, reader = LogWriter(shelf), LogReader(read_shelf)
    for number in range(1, 3):
        kept, complete = published(number)
        complete.entries["b/c"] = number
        writer.write([kept], [complete])
    writer.forget("a", 1)
    kept, complete = published(9)
    complete.entries["d"], complete.full = 5, True
    writer.begin_after("a", 8)
    writer.write([kept], [complete])
    sync()
    assert reader.full_at("a", 9) == {"d": 5}


def test_a_log_that_lacks_what_the_journal_promised_is_refused(shelves: tuple[Any, Any, Any]) -> None:
    shelf, _, sync = shelves
    writer = LogWriter(shelf)
    kept, complete = published(1, 5)
    writer.write([kept], [complete])
    sync()
    writer.cut({"a": 5}, {"a": 5})
    with pytest.raises(JournalDamaged, match=r"ends at number 5 of topic 'a'.*number 6 was kept: .*lost"):
        writer.cut({"a": 6}, {"a": 6})


def test_the_last_row_of_each_topic_is_found_at_once(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    rows = {
        topic: [Row(n, n + 1, b"x") for n in range(1, 2 * count, 2)] for topic, count in (("a", 1), ("b", 3), ("c", 0))
    }
    shelf.put_all("events", rows)
    shelf.put("pending", "c", [Row(7, 9, b"y")])
    sync()
    for found in (shelf, read_shelf):
        assert dict(found.ends("events")) == {"a": Row(1, 2, b"x"), "b": Row(5, 6, b"x")}
        assert dict(found.ends("pending")) == {"c": Row(7, 9, b"y")}
        assert list(found.ends("fulls")) == []
        assert (found.topics("pending"), sorted(found.topics())) == (["c"], ["a", "b", "c"])


def test_what_the_journal_knows_nothing_of_is_cut_from_its_topic_only(shelves: tuple[Any, Any, Any]) -> None:
    shelf, _, sync = shelves
    for topic in ("a", "b", "gone"):
        shelf.put("events", topic, [Row(1, 1, b"x"), Row(2, 2, b"x")])
    shelf.put("stamps", "b", [Row(1, 1, b"x"), Row(2, 2, b"x"), Row(3, 3, b"x")])
    LogWriter(shelf).cut({"a": 1, "b": 2}, {})
    sync()

    assert dict(shelf.ends("events")) == {"a": Row(1, 1, b"x"), "b": Row(2, 2, b"x")}
    assert dict(shelf.ends("stamps")) == {"b": Row(2, 2, b"x")}


def test_a_stamp_that_cannot_be_read_is_said_with_its_place(shelves: tuple[Any, Any, Any]) -> None:
    shelf, read_shelf, sync = shelves
    writer = LogWriter(shelf)
    kept, complete = published(1)
    writer.write([kept], [complete])
    shelf.put("stamps", "a", [shelf.before("stamps", "a", 1)._replace(data=b"\xc1")])
    sync()
    with pytest.raises(JournalDamaged, match=r"stamp of topic 'a', number 1, cannot be read"):
        LogReader(read_shelf).read("a", 1, 1, MUCH)


def without(shelf: Any, kind: Kind, topic: str, number: int) -> None:
    """A row gets lost, as by a page that SQLite does not find any more."""
    if isinstance(shelf, MemoryShelf):
        rows = shelf._rows[topic, kind]
        del rows.rows[(at := rows.firsts.index(number))], rows.firsts[at]
    else:
        shelf._run(f"DELETE FROM {kind} WHERE key = ?", (shelf._base(topic) + number,))


@pytest.fixture
def three(shelves: tuple[Any, Any, Any]) -> tuple[Any, LogReader, Any]:
    """A log of three events, somebody who knows that nothing is under way, and what is to be done after writing."""
    shelf, read_shelf, sync = shelves
    writer = LogWriter(shelf)
    for number in range(1, 4):
        kept, complete = published(number, b=number)
        writer.write([kept], [complete])
    sync()
    return shelf, LogReader(read_shelf, {}), sync


@pytest.mark.parametrize("number", [1, 2])
def test_a_kept_number_with_a_stamp_and_no_event_is_damage_and_not_silence(
    three: tuple[Any, LogReader, Any], number: int
) -> None:
    shelf, reader, sync = three
    without(shelf, "events", "a", number)
    sync()
    lost = rf"lacks the events of topic 'a' from number {number} on"
    with pytest.raises(JournalDamaged, match=lost):
        reader.read("a", 1, 3, MUCH)
    with pytest.raises(JournalDamaged, match=lost):
        reader.rows("a", 1, 3, MUCH)
    assert reader.silence("a", 1, 3) == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_timestamp_that_is_lost_is_not_taken_for_one_that_is_to_come(
    three: tuple[Any, LogReader, Any], number: int
) -> None:
    shelf, reader, sync = three
    without(shelf, "stamps", "a", number)
    sync()
    lost = rf"lacks the timestamps of numbers {number} of topic 'a'"
    for read in (reader.read, reader.rows):
        with pytest.raises(JournalDamaged, match=lost):
            read("a", 1, 9, MUCH)
    with pytest.raises(JournalDamaged, match=lost):
        reader.full_at("a", 3)


def test_what_is_under_way_still_has_no_timestamp_and_is_not_lost(three: tuple[Any, LogReader, Any]) -> None:
    shelf, reader, sync = three
    without(shelf, "stamps", "a", 2)
    sync()
    knowing = LogReader(reader.shelf, {"a": Ranges([(2, 2)])})
    assert [item.first for item in knowing.read("a", 1, 9, MUCH).items] == [1, 3]
    assert knowing.rows("a", 1, 9, MUCH).read_to == 1
    assert knowing.full_at("a", 3) is None


def test_without_the_timestamp_of_what_is_forgotten_nothing_behind_it_has_one(
    three: tuple[Any, LogReader, Any],
) -> None:
    shelf, reader, sync = three
    LogWriter(shelf).forget("a", 1)
    without(shelf, "fulls", "a", 1)
    sync()
    with pytest.raises(JournalDamaged, match="lacks the full timestamp of number 1 of topic 'a'"):
        reader.full_at("a", 2)


def test_a_batch_is_whole_or_not_there_for_who_reads_while_it_is_written(tmp_path: Path) -> None:
    """Its events are read before its timestamp: what is written in between must not make the event silence."""
    store = open_store(str(tmp_path / "stage.db"), "os", "main")
    journal = store.journal
    writer = LogWriter(journal.shelf)
    shelf = journal.read_shelf
    assert isinstance(shelf, SqliteShelf)

    class Overtaken(SqliteShelf):
        """Between the two, something is written."""

        def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
            rows = list(super().get(kind, topic, first, last))
            if kind == "events":
                kept, complete = published(1)
                writer.write([kept], [complete])
                journal.sync()
            return iter(rows)

    overtaken = Overtaken(shelf.file, shelf._connection, shelf._begin, shelf.ids)
    assert LogReader(overtaken, {}).read("a", 1, 1, MUCH).items == []
    assert [item.first for item in LogReader(shelf, {}).read("a", 1, 1, MUCH).items] == [1]
    store.close(None)


def test_a_bit_that_has_turned_over_on_the_disk_is_noticed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "stage.db"), "fsync", "main")
    journal = store.journal
    assert isinstance(journal, SqliteJournal)
    kept, complete = published(1)
    LogWriter(journal.shelf).write([kept], [complete])
    journal.sync()
    journal._connection.execute("UPDATE events SET data = x'00'")
    with pytest.raises(JournalDamaged, match=r"its events of topic 'a' from number 1 on fail their checksum"):
        LogReader(journal.read_shelf).read("a", 1, 1, MUCH)
    store.close(None)
