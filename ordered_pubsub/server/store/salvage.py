"""What an operator can do about a damaged store: see what is damaged, and copy what is good.

`check` reads all of a store and changes nothing. `salvage` writes a new one, on which a stage can go on:

- *The state* is that of the last commit up to which the journal is good. If the mark says that there were more, numbers were
  given that nobody here knows. The mark also says how many in all, so no topic has had more of them than that: each goes on
  beyond so many (`Stage.go_on_beyond`), one that is not known yet begins there, and clients' sessions are forgotten, for their
  requests may have been answered.
- *The log* is copied row by row. An event that is lost stays an event: who reads it is told that it cannot be read. Where
  timestamps are lost, the order is, up to the next full timestamp: the log begins there.
- *The write-ahead log* is read beyond a frame that is bad, in a copy with new checksums: what is wrong in that frame's page is
  found by the rows' own.

Other stages know what passed between them and this one, and refuse a stage that does not. So a store of one of several stages
can only be salvaged if its journal is whole.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ordered_pubsub.core.log.shelf import ENDLESS, KINDS, Kind, LogStamp, Row
from ordered_pubsub.core.ranges import Range, Ranges, shown
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, UsageError
from ordered_pubsub.server.store._contents import StoredJournal, read_about, read_journal
from ordered_pubsub.server.store._lock import FileLock
from ordered_pubsub.server.store._write_ahead import PAGE_BYTES, mended
from ordered_pubsub.server.store.examining import check_pages, examine, log_of
from ordered_pubsub.server.store.mark import HighWaterMark, boot_mark, mark_of, read_mark
from ordered_pubsub.server.store.shelf import SHIFT, SQLITE_ERRORS, is_number_sound, is_topic_sound, sound_row
from ordered_pubsub.server.store.store import SqliteJournal, boot_id

MARGIN = 1_000_000
"""Numbers that are left out beyond those that the mark says were given: it may be older than what is lost, by a second. Who says
otherwise without a mark says how many may be lost."""
LOST = b"lost: the store of this topic's stage was damaged, and salvaged without this"
ROWS_AT_ONCE = 1_000
_stamps = msgspec.msgpack.Decoder(LogStamp)
_encode = msgspec.msgpack.Encoder().encode
Say = Callable[[str], None]


@attrs.define
class TopicLog:
    """What is good of a topic's log."""

    name: str
    number: int
    """its own in the store"""
    floor: int
    last: int
    """its last number that was kept, as the journal says; 0 if its events are not kept"""
    lost: list[Range] = attrs.field(factory=list)
    """events that are not there"""
    begins_after: int = 0
    """from here on there is an order"""
    damaged_rows: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost and self.begins_after == self.floor and not self.damaged_rows

    def describe(self) -> str:
        """In words."""
        if not self.last:
            words = f"topic {self.name!r}: its events are not kept"
        elif self.begins_after >= self.last:
            words = f"topic {self.name!r}: nothing of numbers {self.floor + 1} to {self.last}"
        else:
            words = f"topic {self.name!r}: numbers {self.begins_after + 1} to {self.last}"
        if self.begins_after > self.floor:
            words += f"; lost: the order of numbers {self.floor + 1} to {self.begins_after}"
        if self.lost:
            words += f"; lost: the events of {', '.join(shown(*span) for span in Ranges(self.lost))}"
        return words + (f"; {self.damaged_rows} rows are damaged" if self.damaged_rows else "")


@attrs.define
class Findings:
    """What is in a store."""

    troubles: list[str] = attrs.field(factory=list)
    about: dict[str, str] = attrs.field(factory=dict)
    mark: HighWaterMark | None = None
    journal: StoredJournal | None = None
    stage: Stage | None = None
    topics: list[TopicLog] = attrs.field(factory=list)
    numbers: dict[str, int] = attrs.field(factory=dict)
    """the last numbers of topics that rest"""
    are_numbers_whole: bool = False

    @property
    def is_journal_whole(self) -> bool:
        """Whether the state is that of the last commit that there was."""
        journal, mark = self.journal, self.mark
        return (
            journal is not None
            and not journal.trouble
            and mark is not None
            and mark.store.hex() == self.about.get("store")
            and journal.commits >= mark.commits
        )


# -- looking --------------------------------------------------------------------------------------------------------------


def check(file: Path, say: Say) -> bool:
    """Read all of a store, and say what is in it; whether it is whole."""
    with _held(file):
        findings = Findings()
        try:
            findings.mark = read_mark(mark_of(file))
            examine(file, findings.mark, boot_mark(boot_id()))
        except OrderedPubSubError as error:
            findings.troubles.append(str(error))
        try:
            with closing(_reading(file)) as connection:
                _look(file, connection, findings)
        except SQLITE_ERRORS as error:
            findings.troubles.append(f"it cannot be read any further: {error}")
    _say(findings, say)
    return not findings.troubles and all(topic.is_whole for topic in findings.topics)


def _say(findings: Findings, say: Say) -> None:
    if findings.journal is not None:
        marked = "there is no mark" if findings.mark is None else f"its mark says {findings.mark.commits:,}"
        say(f"stage {findings.about.get('stage', '?')!r}: {findings.journal.commits:,} commits; {marked}")
    for topic in findings.topics:
        say(topic.describe())
    for trouble in dict.fromkeys(findings.troubles):
        say(f"damaged: {trouble}")


def _held(file: Path) -> ExitStack:
    """Nobody else has the store meanwhile."""
    if not file.is_file():
        raise UsageError(f"there is no store {file}: name its database, as `store` in the configuration does")
    stack = ExitStack()
    try:
        stack.callback(FileLock.take(file).release)
    except OSError as error:
        raise JournalError(f"the store {file} cannot be looked at: {error}") from error
    return stack


def _reading(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _look(file: Path, connection: sqlite3.Connection, findings: Findings) -> None:
    """Find out what is good."""
    try:
        check_pages(file, connection)
    except JournalDamaged as error:
        findings.troubles.append(str(error))
    findings.about = read_about(connection)
    findings.journal = read_journal(connection)
    if findings.journal.trouble:
        findings.troubles.append(findings.journal.trouble)
    try:
        findings.stage = Stage.replay(findings.journal.snapshot, findings.journal.records)
    except OrderedPubSubError as error:
        findings.troubles.append(f"the stage's state cannot be made of its journal: {error}")
    kept = findings.stage.state.kept if findings.stage is not None else {}
    rows = connection.execute("SELECT id, name, floor, checksum FROM topic ORDER BY id")
    for number, name, floor, checksum in rows:
        if not is_topic_sound(number, name, floor, checksum):
            findings.troubles.append(f"the row of topic {name!r} fails its checksum")
            continue
        topic = TopicLog(name, number, floor, kept.get(name, 0), begins_after=floor)
        _judge(connection, topic, findings.stage)
        findings.topics.append(topic)
    _look_for_numbers(connection, findings)
    known = {topic.name for topic in findings.topics}
    for name, last in kept.items():
        if last and name not in known:
            findings.troubles.append(f"topic {name!r} is gone, of which {last} numbers were kept")
            findings.topics.append(TopicLog(name, 0, 0, last, begins_after=last))


def _look_for_numbers(connection: sqlite3.Connection, findings: Findings) -> None:
    """The last numbers of topics that rest, as far as they are good."""
    awake = findings.stage.state.clocks.numbers if findings.stage is not None else {}
    damaged_rows = 0
    try:
        for name, last, checksum in connection.execute("SELECT name, last, checksum FROM number"):
            if not is_number_sound(name, last, checksum):
                damaged_rows += 1
            elif name not in awake:
                findings.numbers[name] = last
    except SQLITE_ERRORS:
        damaged_rows += 1
    state = None if findings.stage is None else findings.stage.state
    expected = None if state is None else (state.resting, state.resting_events)
    found = (len(findings.numbers), sum(findings.numbers.values()))
    findings.are_numbers_whole = not damaged_rows and found == expected
    if damaged_rows or (expected is not None and found != expected):
        findings.troubles.append(
            "the last numbers of topics that rest are not all there: a new store gives them later ones"
        )


def _judge(connection: sqlite3.Connection, topic: TopicLog, stage: Stage | None) -> None:
    """What is missing of a topic's log."""
    stamped, there, fulls, kept = Ranges(), Ranges(), list[int](), list[Range]()
    for row in _good_rows(connection, "stamps", topic):
        stamped.add(row.first, row.last)
        if _stamps.decode(row.data).is_kept:
            kept.append((row.first, row.last))
    for row in _good_rows(connection, "fulls", topic):
        fulls.append(row.last)
    for row in _good_rows(connection, "events", topic):
        there.add(row.first, row.last)
    for _ in _good_rows(connection, "pending", topic):
        pass
    for first, last in ({} if stage is None else stage.state.unfinished.get(topic.name, {})).items():
        stamped.add(first, last)
        kept.append((first, last))
    gaps = stamped.missing(topic.floor + 1, topic.last)
    if gaps or (topic.floor and topic.floor not in fulls):
        behind = gaps[-1][1] if gaps else topic.floor + 1
        topic.begins_after = min((last for last in fulls if last >= behind), default=max(topic.last, topic.floor))
    for first, last in kept:  # batch by batch: no row of events is a part of two
        topic.lost += there.missing(max(first, topic.begins_after + 1), last)


def _good_rows(connection: sqlite3.Connection, kind: Kind, topic: TopicLog) -> Iterator[Row]:
    """The rows of a topic that are what their checksums say; the others are counted."""
    base = topic.number << SHIFT
    span = (base, base + ENDLESS)
    try:
        yield from _sound(connection.execute(_select(kind), span), kind, base, topic)
    except SQLITE_ERRORS:
        topic.damaged_rows += 1  # what comes after it is read from the other end
    else:
        return
    found: list[Row] = []
    try:
        for row in _sound(connection.execute(_select(kind) + " DESC", span), kind, base, topic):
            found.append(row)
    except SQLITE_ERRORS:
        pass
    yield from reversed(found)


def _select(kind: Kind) -> str:
    return f"SELECT key, last, checksum, data FROM {kind} WHERE key BETWEEN ? AND ? ORDER BY key"


def _sound(rows: Iterable[tuple[Any, ...]], kind: Kind, base: int, topic: TopicLog) -> Iterator[Row]:
    for values in rows:
        row = sound_row(kind, base, values)
        if row is None:
            topic.damaged_rows += 1
        else:
            yield row


# -- salvaging ------------------------------------------------------------------------------------------------------------


def salvage(file: Path, new: Path, now: float, say: Say, leave_out: int | None = None) -> bool:
    """Copy what is good into a new store, and say what is lost; whether nothing is.

    If nobody knows how many numbers were given after what is good, `leave_out` says how many may have been.
    """
    if new.exists() or mark_of(new).exists():
        raise UsageError(f"{new} is there already: name a store that is not")
    with _held(file), tempfile.TemporaryDirectory(dir=new.absolute().parent, prefix=f".{new.name}-") as folder:
        findings = Findings()
        try:
            findings.mark = read_mark(mark_of(file))
        except JournalDamaged as error:
            findings.troubles.append(str(error))
        copy = _best_view(file, Path(folder))
        try:
            with closing(_reading(copy)) as connection:
                _look(file, connection, findings)
                _say(findings, say)
                return _write(new, connection, findings, now, say, leave_out)
        except SQLITE_ERRORS as error:
            raise JournalDamaged(f"the store {file} cannot be salvaged: {error}") from error


def _best_view(file: Path, folder: Path) -> Path:
    """A copy of a store: with its write-ahead log read beyond bad frames, if that makes sense, else as SQLite reads it."""
    log = log_of(file)
    plain = folder / "plain.db"
    shutil.copyfile(file, plain)
    if not log.exists():
        return plain
    data = log.read_bytes()
    shutil.copyfile(log, log_of(plain))
    with plain.open("rb") as opened:
        page_bytes = int.from_bytes(opened.read(18)[16:18], "big")
    other = folder / "mended.db"
    shutil.copyfile(file, other)
    log_of(other).write_bytes(mended(data, page_bytes if page_bytes in PAGE_BYTES else 65_536))
    return other if _commits_of(other) > _commits_of(plain) else plain


def _commits_of(file: Path) -> int:
    """How many commits can be read; none if the pages are not in order."""
    try:
        with closing(_reading(file)) as connection:
            check_pages(file, connection)
            return read_journal(connection).commits
    except (JournalError, *SQLITE_ERRORS):
        return -1


def _write(
    new: Path, connection: sqlite3.Connection, findings: Findings, now: float, say: Say, leave_out: int | None
) -> bool:
    stage = findings.stage
    if stage is None or "stage" not in findings.about:
        raise JournalDamaged(
            "nothing can go on from here: the stage's state is lost, so nobody knows which numbers were given. Begin the whole "
            "system anew: remove the stores of all its stages, and restart all clients"
        )
    others = len(stage.topology.stages) - 1
    if others and not findings.is_journal_whole:
        raise JournalDamaged(
            "nothing can go on from here: the end of the journal is lost, and the other stages know of it and would refuse this "
            "one. Begin the whole system anew: remove the stores of all its stages, and restart all clients"
        )
    if not findings.is_journal_whole and findings.mark is None and leave_out is None:
        raise UsageError(
            "the end of the journal may be lost, and there is no mark that says how many numbers were given: nobody else knows. "
            "Say by --leave-out N how many may have been given after what is good, in all topics together, and rather too many; "
            f"with a mark it is {MARGIN:,} more than that says"
        )
    journal = SqliteJournal.open(new, "fsync", findings.about["stage"])
    try:
        for topic in findings.topics:
            _copy(connection, journal, topic, stage)
        if not findings.is_journal_whole:
            _go_on_beyond(journal, stage, findings, now, say, MARGIN if leave_out is None else leave_out)
        elif findings.are_numbers_whole:
            journal.shelf.rest(findings.numbers)
        else:
            stage.waking.lose_numbers()
        journal.append([], stage.state.clocks.given)
        journal.sync()
        snapshot = stage.snapshot()
    except BaseException:
        journal.close(None)
        raise
    journal.close(snapshot)
    say(f"{new} is a store on which stage {findings.about['stage']!r} goes on")
    return findings.is_journal_whole and all(topic.is_whole for topic in findings.topics)


def _copy(connection: sqlite3.Connection, journal: SqliteJournal, topic: TopicLog, stage: Stage) -> None:
    """What is good of a topic's log; what is lost of its events can be seen there."""
    shelf, floor = journal.shelf, topic.begins_after
    full = b""
    journal.make_topic(topic.name, floor)
    for kind in KINDS:
        batch: list[Row] = []
        for row in _good_rows(connection, kind, topic):
            if kind == "fulls" and row.last == floor:
                full = row.data
            elif row.last > floor:
                batch.append(row)
            if len(batch) >= ROWS_AT_ONCE:
                shelf.put(kind, topic.name, batch)
                journal.sync()
                batch = []
        shelf.put(kind, topic.name, batch)
    if floor:
        shelf.put("fulls", topic.name, [Row(floor, floor, full or _encode({}))])
    if floor and not full and topic.last:
        stage.state.kept[topic.name] = floor - 1  # so that the next timestamp is a full one
    shelf.put("events", topic.name, [Row(first, last, LOST) for first, last in topic.lost])
    journal.sync()


def _go_on_beyond(
    journal: SqliteJournal, stage: Stage, findings: Findings, now: float, say: Say, leave_out: int
) -> None:
    """Numbers that may have been given and are lost are not given again."""
    assert findings.journal is not None
    marked = 0 if findings.mark is None else findings.mark.given - stage.state.clocks.given
    count = max(marked, 0) + leave_out
    without_log = {topic.name for topic in findings.topics if topic.last and topic.begins_after >= topic.last}
    for publication in stage.go_on_beyond(count, now):
        first, last = publication.first, publication.last
        if publication.topic in without_log:  # it has no order to go on from: what comes next has a full timestamp
            journal.make_topic(publication.topic, last)
            journal.shelf.put("fulls", publication.topic, [Row(last, last, _encode({}))])
            stage.state.kept[publication.topic] = last - 1
            continue
        stamp = LogStamp({}, False, [], publication.place, now, publication.is_kept)
        rows = [Row(first, last, _encode(stamp))]
        if publication.is_kept:  # one event says so to everybody who comes by; the rest is silence
            journal.shelf.put("events", publication.topic, [Row(first, first, LOST)])
            silence = msgspec.structs.replace(stamp, is_kept=False)
            rows = [Row(first, first, _encode(stamp)), Row(first + 1, last, _encode(silence))]
        journal.shelf.put("stamps", publication.topic, rows)
    journal.sync()
    lost = f"up to {leave_out:,} (as was said)" if findings.mark is None else f"up to {max(marked, 0):,}"
    say(
        f"lost: everything after commit {findings.journal.commits:,}, with {lost} numbers that were given. Each topic goes on "
        f"{count:,} numbers further, with one event that cannot be read in between; clients' sessions have ended"
    )
