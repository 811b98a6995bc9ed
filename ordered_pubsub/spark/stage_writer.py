"""Rows on their way to one stage, in the name of a session that is always the same one.

A task that Spark runs again has the same rows, and publishes them in the name of the same session. The sequence of a request says
up to which row of the task it goes, with a digest of all rows up to there. So the stage can say how far an earlier run has come
(`Trace`): what it has taken is asked for again, whose answer says that it is on disk, and the stage's rows up to there are left
out. If the digest says that these are not the rows of that run, in its order, the task ends with that, instead of publishing
something twice or leaving it out; so it does if that run had all of its rows published, and there are more now. One request at a
time is under way; the next is prepared meanwhile.

What was refused, by a rule that may have been changed since, is asked for under a higher sequence by the next run. A later batch
of the same query is a later epoch of the session, in which the stage takes nothing of an earlier one: a task that was given up
and still runs does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.errors import OrderedPubSubError, SessionExpired, UnavailableError, UsageError
from ordered_pubsub.reading.connection import StageLine
from ordered_pubsub.reading.stages import ASK_AGAIN_S, StageLines, refused
from ordered_pubsub.wire.protocol import Ask, Tell
from ordered_pubsub.wire.reading import Trace, Traced
from ordered_pubsub.wire.sessions import SessionKey

DIGEST_BITS, ROWS_BITS, TRIES_BITS = 24, 27, 11
ROWS_MAX, TRIES_MAX = (1 << ROWS_BITS) - 1, (1 << TRIES_BITS) - 1
_DIGEST_MAX = (1 << DIGEST_BITS) - 1


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

    stages: StageLines
    rank: int
    topic: str
    """one of the stage's"""
    key: SessionKey
    epoch: int
    _line: StageLine | None = None
    _published: Reach = Reach()
    """what is on the stage's disk"""
    _taken: int | None = None
    """the last sequence that it took: more than that if something was refused since; None: it is not known yet"""
    _pending: tuple[int, tuple[PublishAsk, ...]] | None = None
    """what was asked for last, and has no answer yet"""
    _is_asked: bool = False
    """whether it was, on this line"""

    def open(self, rows: int) -> None:
        """Find out what was published before; the first row that comes here is this one of the task."""
        self.stages.again(self._what, self._connect)
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
        """Ask for all rows up to this one of the task. What was asked for before is finished."""
        assert self._pending is None
        assert self._taken is not None
        tries = Reach.of(self._taken).tries + (self._taken != self._published.sequence)
        if tries > TRIES_MAX:
            raise UsageError(f"this batch was refused {tries} times: begin a new checkpoint, or take another writeId")
        self._pending = (Reach(row, digest & _DIGEST_MAX, is_last, tries).sequence, tuple(parts))
        self._is_asked = False
        if self._line is not None:
            try:
                self._ask(self._line)
            except UnavailableError:
                self.close()

    def finish(self) -> list[Publication]:
        """Wait for what was asked for, if there is anything."""
        if self._pending is None:
            return []
        answer = self.stages.again(self._what, self._attempt)
        self._pending = None
        return [part for part in answer.parts if isinstance(part, Publication)]

    def check_end(self, rows: int) -> None:
        """The task has so many rows; an earlier run must not have had more."""
        if rows < self._published.rows:
            raise self._differs()

    def close(self) -> None:
        """Let go of the line."""
        line, self._line, self._is_asked = self._line, None, False
        if line is not None:
            line.close()

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"publishing at stage {self.stages.topology.stages[self.rank].name!r}"

    def _attempt(self) -> Answer:
        try:
            if self._line is None:
                self._connect()
            assert self._line is not None
            assert self._pending is not None
            if not self._is_asked:
                self._ask(self._line)
            sequence, _ = self._pending
            answer = self._hear(self._line, sequence)
            if isinstance(answer, Refusal):
                raise refused(answer)
        except OrderedPubSubError:
            self.close()
            raise
        self._taken, self._published = sequence, Reach.of(sequence)
        return answer

    def _ask(self, line: StageLine) -> None:
        assert self._pending is not None
        assert self._taken is not None
        sequence, parts = self._pending
        # What was published last is still answered: another run asks for it.
        done = max(self._published.sequence - 1, 0)
        line.say(Ask([Request(self.key.session, self.epoch, sequence, self._taken, done, parts)]))
        self._is_asked = True

    def _hear(self, line: StageLine, sequence: int) -> Answer | Refusal:
        while True:
            message = line.hear(ASK_AGAIN_S)
            for answer in message.answers if isinstance(message, Tell) else ():
                if (answer.epoch, answer.sequence) == (self.epoch, sequence):
                    return answer

    def _connect(self) -> None:
        """Make a line; if it is the first, find out what was published before."""
        line = self.stages.line_as(self.rank, self.key)
        try:
            sequences = self._trace(line)
            taken = max(sequences, default=0)
            if self._taken is None:
                self._published = Reach.of(self._find_published(line, sequences))
                self._taken = taken
            elif taken != self._taken and (self._pending is None or taken != self._pending[0]):
                raise SessionExpired(
                    f"stage {line.address} has not taken of this task what it should have: another run of it goes on, or the "
                    "stage has lost its store. Run it again"
                )
        except BaseException:
            line.close()
            raise
        self._line, self._is_asked = line, False

    def _trace(self, line: StageLine) -> list[int]:
        """The sequences that the stage remembers of this batch."""
        line.say(Trace(1))
        while not isinstance(traced := line.hear(ASK_AGAIN_S), Traced):
            pass
        if traced.epoch > self.epoch:
            raise SessionExpired(
                f"batch {self.epoch - 1} is over: batch {traced.epoch - 1} was written already. If the checkpoint was taken back "
                "on purpose, what it had published stays published: begin a new checkpoint"
            )
        return sorted(traced.sequences) if traced.epoch == self.epoch else []

    def _find_published(self, line: StageLine, sequences: list[int]) -> int:
        """The last one that was not refused; its answer says that it is on disk."""
        for sequence in reversed(sequences):
            # A stage that does not have it must not take it now: there is nothing that it could come after.
            again = Request(self.key.session, self.epoch, sequence, sequence - 1, 0, (PublishAsk(self.topic),))
            line.say(Ask([again]))
            if isinstance(self._hear(line, sequence), Answer):
                return sequence
        return 0

    def _differs(self) -> UsageError:
        return UsageError(
            "the rows of this batch are not those of the run before, or not in the same order, and some of those are published: "
            "publishing these would double some and leave out others. To have the same rows in the next batches, give option "
            "sort, and divide them by their values (repartition by a column, or coalesce(1)). This batch can only be published "
            "as another one, by a new checkpoint or writeId, with what it has published already being doubled"
        )
