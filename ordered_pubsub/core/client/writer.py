"""Rows of a task on their way to the stages that own their topics, published once however often the task is run.

A task that is run again has the same rows, and publishes them in the name of the same session at each stage. The sequence of a
request says up to which row of the task it goes, with a digest of all rows up to there (`Reach`). So the stage can say how far
an earlier run has come (`Trace`): what it has taken is asked for again, whose answer says that it is on disk, and the stage's
rows up to there are left out. If the digest says that these are not the rows of that run, in its order, the task ends with that,
instead of publishing something twice or leaving it out; so it does if that run had all of its rows published, and there are more
now. One request at a time is under way at a stage; the next is prepared meanwhile.

What was refused, by a rule that may have been changed since, is asked for under a higher sequence by the next run. A later batch
of the same writer is a later epoch of the session, in which the stage takes nothing of an earlier one: a task that was given up
and still runs does no harm.

Stages get their rows side by side, unless one order goes across them: then a row for another stage waits until those before it
have their places.

Why not `core.client.session`: there a sequence only counts, requests are pipelined, and what has no answer is known. Here a
sequence must say to another process what was published, and nothing else is remembered of it.

The duties of a caller: what a `StageWriter` `says` goes to its stage on a line of the writer's session; what comes back is told
by `traced` and `answered`; `connected` and `lost` tell of the line. Whatever raises ends the run.

INVARIANT: a request is under way only after the last one that the stage has taken (`after`), which this run has seen answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs

from ordered_pubsub.core.client.session import REQUEST_BYTES_MAX, refused
from ordered_pubsub.core.log.questions import Trace, Traced
from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.core.states import States
from ordered_pubsub.errors import SessionExpired, UsageError

REQUEST_EVENTS_MAX = 10_000
REQUEST_PARTS_MAX = 64
DIGEST_BITS, ROWS_BITS, TRIES_BITS = 24, 27, 11
ROWS_MAX, TRIES_MAX = (1 << ROWS_BITS) - 1, (1 << TRIES_BITS) - 1
_DIGEST_MAX = (1 << DIGEST_BITS) - 1

APART, TRACING, FINDING, ASKED, READY = "apart", "tracing", "finding", "asked", "ready"
WRITERS = States(
    "a task's writer at a stage",
    {
        APART: {TRACING: "it has a line: the stage is asked which requests of the session it has taken"},
        TRACING: {
            FINDING: "there are some, and it is not known whether the last one was refused: that is asked for again",
            ASKED: "it was known already how far the stage was: what has no answer is asked for again",
            READY: "there are none",
            APART: "the line is lost",
        },
        FINDING: {
            FINDING: "that one was refused: the one before it is asked for",
            READY: "it was published; or there is none before it",
            APART: "the line is lost",
        },
        READY: {ASKED: "rows are to be published", APART: "the line is lost"},
        ASKED: {READY: "they are", APART: "the line is lost"},
    },
)


@attrs.frozen
class Reach:
    """How far a run has come, as the sequence of a request says it."""

    rows: int = 0
    """of the task, on whatever stage they are"""
    digest: int = 0
    """of these rows, in `DIGEST_BITS`"""
    is_last: bool = False
    """whether the task has no more"""
    tries: int = 0
    """how often something was refused before"""

    @property
    def sequence(self) -> int:
        """What stands for it: 0 for nothing, and more for what comes later."""
        return ((self.tries << ROWS_BITS | self.rows) << 1 | self.is_last) << DIGEST_BITS | self.digest

    @classmethod
    def of(cls, sequence: int) -> Reach:
        """What a sequence stands for."""
        rest = sequence >> DIGEST_BITS
        return cls(rest >> 1 & ROWS_MAX, sequence & _DIGEST_MAX, bool(rest & 1), rest >> 1 + ROWS_BITS)


@attrs.define(eq=False)
class StageWriter:
    """The rows of one task that go to one stage."""

    stage: str
    """its name"""
    topic: str
    """one of the stage's"""
    session: str
    epoch: int
    """the number of the batch, from 1 on"""
    says: list[Trace | Request] = attrs.field(factory=list)
    """to be given to the stage, in order; the caller empties it"""
    state: str = attrs.field(default=APART, init=False)
    _published: Reach = Reach()
    """what is on the stage's disk"""
    _taken: int | None = None
    """the last sequence that it took: more than that if something was refused since; None: it is not known yet"""
    _remembered: list[int] = attrs.field(factory=list)
    """the sequences that it had taken when this run began"""
    _unsure: list[int] = attrs.field(factory=list)
    """… of which it is not known yet whether they were refused"""
    _pending: tuple[int, tuple[PublishAsk, ...]] | None = None
    """what was to be published last, and has no answer yet"""
    _outcome: list[Publication] = attrs.field(factory=list)

    def _become(self, state: str) -> None:
        WRITERS.check(self.state, state)
        self.state = state

    @property
    def is_waiting(self) -> bool:
        """Whether the stage has to answer first: how far an earlier run has come, or to what was asked for."""
        return self._taken is None or self._pending is not None

    # -- what is to be published --------------------------------------------------------------------------------------

    def check_begin(self, rows: int) -> None:
        """It is known what was published before; the first row that comes here is this one of the task."""
        if 0 < self._published.rows < rows:
            raise self._differs()

    def is_news(self, row: int) -> bool:
        """Whether this row of the task is still to be published here."""
        if self._published.is_last and row > self._published.rows:
            raise self._differs()
        return row > self._published.rows

    def check(self, row: int, digest: int, is_here: bool) -> None:
        """If an earlier run has come as far as this row, its rows must have been these."""
        if row == self._published.rows and (not is_here or digest & _DIGEST_MAX != self._published.digest):
            raise self._differs()

    def begin(self, parts: Sequence[PublishAsk], row: int, digest: int, is_last: bool) -> None:
        """Ask for all rows up to this one of the task. What was asked for before has its outcome."""
        assert self._pending is None
        assert self._taken is not None
        tries = Reach.of(self._taken).tries + (self._taken != self._published.sequence)
        if tries > TRIES_MAX:
            raise UsageError(f"this batch was refused {tries} times: begin a new checkpoint, or take another writeId")
        self._pending = (Reach(row, digest & _DIGEST_MAX, is_last, tries).sequence, tuple(parts))
        if self.state == READY:
            self._ask()

    def take_outcome(self) -> list[Publication]:
        """What became of what was asked for last."""
        outcome, self._outcome = self._outcome, []
        return outcome

    def check_end(self, rows: int) -> None:
        """The task has so many rows; an earlier run must not have had more."""
        if rows < self._published.rows:
            raise self._differs()

    # -- its line -----------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """There is a line: the stage must be as this run knows it."""
        self._become(TRACING)
        self.says = [Trace(1)]

    def lost(self) -> None:
        """The line is lost, and with it perhaps what was said."""
        if self.state != APART:
            self._become(APART)
        self.says = []

    def traced(self, traced: Traced) -> None:
        """The stage says which requests of the session it has taken."""
        if self.state != TRACING:
            return
        if traced.epoch > self.epoch:
            raise SessionExpired(
                f"batch {self.epoch - 1} is over: batch {traced.epoch - 1} was written already. If the checkpoint was taken back "
                "on purpose, what it had published stays published: begin a new checkpoint"
            )
        sequences = sorted(traced.sequences) if traced.epoch == self.epoch else []
        if self._taken is None:
            self._remembered, self._unsure = sequences, list(sequences)
            self._find()
            return
        taken = max(sequences, default=0)
        if taken != self._taken and (self._pending is None or taken != self._pending[0]):
            raise SessionExpired(
                f"stage {self.stage!r} has not taken of this task what it should have: another run of it goes on, or the stage "
                "has lost its store. Run it again"
            )
        if self._pending is None:
            self._become(READY)
        else:
            self._ask()

    def answered(self, answer: Answer | Refusal) -> None:
        """The stage answers."""
        if answer.epoch != self.epoch:
            return
        if self.state == FINDING and answer.sequence == self._unsure[-1]:
            self._found(answer)
        elif self.state == ASKED and self._pending is not None and answer.sequence == self._pending[0]:
            if isinstance(answer, Refusal):
                raise refused(answer)
            self._pending, self._taken = None, answer.sequence
            self._published = Reach.of(answer.sequence)
            self._outcome = [part for part in answer.parts if isinstance(part, Publication)]
            self._become(READY)

    def _find(self) -> None:
        """Ask for the last request that is not known to be refused: its answer says that it is on disk."""
        if self._unsure:
            sequence = self._unsure[-1]
            # A stage that does not have it must not take it now: there is nothing that it could come after.
            self.says.append(Request(self.session, self.epoch, sequence, sequence - 1, 0, (PublishAsk(self.topic),)))
            self._become(FINDING)
        else:
            self._know(0)

    def _found(self, answer: Answer | Refusal) -> None:
        """Whether that one was published."""
        if isinstance(answer, Answer):
            self._know(answer.sequence)
        else:
            self._unsure.pop()
            self._find()

    def _know(self, published: int) -> None:
        """It is known how far an earlier run has come."""
        self._published, self._taken = Reach.of(published), max(self._remembered, default=0)
        self._become(READY)

    def _ask(self) -> None:
        assert self._pending is not None
        assert self._taken is not None
        sequence, parts = self._pending
        # What was published last is still answered: another run asks for it.
        done = max(self._published.sequence - 1, 0)
        self.says.append(Request(self.session, self.epoch, sequence, self._taken, done, parts))
        self._become(ASKED)

    def _differs(self) -> UsageError:
        return UsageError(
            "the rows of this batch are not those of the run before, or not in the same order, and some of those are published: "
            "publishing these would double some and leave out others. To have the same rows in the next batches, give option "
            "sort, and divide them by their values (repartition by a column, or coalesce(1)). This batch can only be published "
            "as another one, by a new checkpoint or writeId, with what it has published already being doubled"
        )


# -- a whole task ---------------------------------------------------------------------------------------------------------


class Row(Protocol):
    """A row of a task."""

    @property
    def topic(self) -> str:
        """On which topic it is to be published."""

    @property
    def size(self) -> int:
        """How many bytes that are, about."""


class RowPacker(Protocol):
    """Makes of rows what the log keeps of them."""

    def name(self, row: Any, number: int, rank: int) -> None:
        """This row of the task is to be published at a stage."""

    def ask(self, rank: int, topic: str, rows: Sequence[Any]) -> PublishAsk:
        """Ask a stage for numbers for all these rows, which go along."""


@attrs.define
class _Filling:
    """The next request to a stage."""

    runs: list[tuple[str, list[Any]]] = attrs.field(factory=list)
    """rows on one topic"""
    by_topic: dict[str, list[Any]] = attrs.field(factory=dict)
    events: int = 0
    bytes: int = 0
    row: int = 0
    """the last row of the task that goes along"""
    digest: int = 0
    """of all rows up to there"""

    def has_room(self, row: Row, events_max: int) -> bool:
        """Whether one more goes along; into an empty one, any does."""
        return not self.runs or (
            self.bytes + row.size <= REQUEST_BYTES_MAX
            and self.events < events_max
            and len(self.runs) < REQUEST_PARTS_MAX
        )

    def add(self, row: Row, is_in_one_order: bool) -> None:
        """One more row."""
        run = self.by_topic.get(row.topic)
        if run is None or (is_in_one_order and self.runs[-1][0] != row.topic):
            run = self.by_topic[row.topic] = []
            self.runs.append((row.topic, run))
        run.append(row)
        self.events += 1
        self.bytes += row.size


@attrs.define(eq=False)
class _Way:
    """The way to one owner: what is asked for next, and what was asked for last."""

    rank: int
    writer: StageWriter
    filling: _Filling = attrs.field(factory=_Filling)
    sent: list[tuple[str, list[Any]]] = attrs.field(factory=list)


Steps = Iterable[StageWriter]
"""Work that goes on once the writer that it yields is not waiting any more."""


@attrs.define(eq=False)
class TaskWriter:
    """What one run of a task publishes."""

    owner: Callable[[str], int]
    begin: Callable[[int, str], StageWriter]
    """makes the writer at a stage, which has this topic"""
    packer: RowPacker
    is_in_one_order: bool = False
    """whether one order goes across all topics"""
    events_max: int = REQUEST_EVENTS_MAX
    """so many go into one request"""
    rows: int = 0
    """how many there were"""
    digest: int = 0
    """of these"""
    published: list[tuple[Publication, list[Any]]] = attrs.field(factory=list)
    """batches that have their numbers, each with its rows; the caller empties it"""
    asking: list[StageWriter] = attrs.field(factory=list)
    """those that have something to say since rows were put; the caller empties it"""
    _ways: dict[int, _Way] = attrs.field(factory=dict)
    _last: _Way | None = None
    """the way of the last row"""

    def put(self, row: Row, digest: int) -> Steps:
        """Publish a row, sooner or later, unless an earlier run has. `digest` is that of all rows up to it."""
        self.rows += 1
        if self.rows > ROWS_MAX:
            raise UsageError(f"a task has more than {ROWS_MAX:,} rows: divide the batch into more parts (repartition)")
        self.digest = digest
        way = self._ways.get(self.owner(row.topic))
        if way is None:
            return self._put_first(row)
        return self._put(row, way)

    def _put_first(self, row: Row) -> Steps:
        """The first row that goes to a stage: find out how far an earlier run has come there."""
        rank = self.owner(row.topic)
        way = self._ways[rank] = _Way(rank, self.begin(rank, row.topic))
        while way.writer.is_waiting:
            yield way.writer
        way.writer.check_begin(self.rows)
        yield from self._put(row, way)

    def _put(self, row: Row, way: _Way) -> Steps:
        for other in self._ways.values():
            other.writer.check(self.rows, self.digest, other is way)
        if not way.writer.is_news(self.rows):
            return ()
        self.packer.name(row, self.rows, way.rank)
        changes = self.is_in_one_order and self._last is not None and self._last is not way
        if changes or not way.filling.has_room(row, self.events_max):
            return self._put_behind(row, way)
        self._add(row, way)
        return ()

    def _put_behind(self, row: Row, way: _Way) -> Steps:
        """What comes before it has to be asked for; and where one order goes on at another stage, to have its place."""
        if self.is_in_one_order and self._last is not None and self._last is not way:
            yield from self._send(self._last)
            yield from self._receive(self._last)
        if not way.filling.has_room(row, self.events_max):
            yield from self._send(way)
        self._add(row, way)

    def _add(self, row: Row, way: _Way) -> None:
        self._last = way
        way.filling.add(row, self.is_in_one_order)
        way.filling.row, way.filling.digest = self.rows, self.digest

    def finish(self, is_whole: bool = True) -> Steps:
        """Publish all of it. What is not known to be all of it may go on in another run."""
        for way in self._ways.values():
            yield from self._send(way, is_whole)
        for way in self._ways.values():
            yield from self._receive(way)
            way.writer.check_end(self.rows)

    def _send(self, way: _Way, is_last: bool = False) -> Steps:
        """Ask for what is there, once what was asked for before has its place."""
        filling = way.filling
        if filling.runs:
            asks = [self.packer.ask(way.rank, topic, rows) for topic, rows in filling.runs]
            yield from self._receive(way)
            way.writer.begin(asks, filling.row, filling.digest, is_last)
            self.asking.append(way.writer)
            way.filling, way.sent = _Filling(), filling.runs

    def _receive(self, way: _Way) -> Steps:
        """Wait for what was asked for last, if there is anything."""
        while way.writer.is_waiting:
            yield way.writer
        sent, way.sent = way.sent, []
        self.published += [(part, rows) for part, (_, rows) in zip(way.writer.take_outcome(), sent, strict=True)]
