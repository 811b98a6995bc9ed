"""Rows on their way to one stage, in the name of a session that is always the same one.

A task that Spark runs again has the same rows, and publishes them in the name of the same session. The sequence of a request says
how many rows of the task it goes up to, with a digest of all of them. So the stage can say how far an earlier run has come
(`Trace`): what it has taken is asked for again, whose answer says that it is on disk, and so many rows are left out. If the
digest says that these are not the rows of that run, in its order, the task ends with that, instead of publishing something twice
or leaving it out. One request at a time is under way; the next is prepared meanwhile.

What was refused, by a rule that may have been changed since, is asked for under a higher sequence by the next run. A later batch
of the same query is a later epoch of the session, in which the stage takes nothing of an earlier one: a task that was given up
and still runs does no harm.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import attrs

from ordered_pubsub.client.publisher import Outgoing
from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.errors import OrderedPubSubError, SessionExpired, UnavailableError, UsageError
from ordered_pubsub.reading.line import Line
from ordered_pubsub.reading.stages import ASK_AGAIN_S, Stages, refused
from ordered_pubsub.wire.protocol import Ask, Tell
from ordered_pubsub.wire.reading import Trace, Traced
from ordered_pubsub.wire.sessions import SessionKey

DIGEST_BITS, ROWS_BITS, TRY_BITS = 28, 30, 5
_ROWS_MAX, _TRIES_MAX = (1 << ROWS_BITS) - 1, (1 << TRY_BITS) - 1


@attrs.frozen
class Progress:
    """How far a run has come, as the sequence of a request says it."""

    rows: int = 0
    digest: int = 0
    tries: int = 0
    """how often something was refused before"""

    @property
    def sequence(self) -> int:
        """What stands for it."""
        return (self.tries << ROWS_BITS | self.rows) << DIGEST_BITS | self.digest

    @classmethod
    def of(cls, sequence: int) -> Progress:
        """What a sequence stands for."""
        rest = sequence >> DIGEST_BITS
        return cls(rest & _ROWS_MAX, sequence & (1 << DIGEST_BITS) - 1, rest >> ROWS_BITS)


@attrs.define(eq=False)
class Lane:
    """The rows of one task that go to one stage."""

    stages: Stages
    rank: int
    topic: str
    """one of the stage's"""
    key: SessionKey
    epoch: int
    rows: int = 0
    """how many there were"""
    _digest: int = 0
    """of these"""
    _line: Line | None = None
    _published: Progress = Progress()
    """what is on the stage's disk"""
    _taken: int = 0
    """the last sequence that it took: more than that if something was refused since"""
    _pending: tuple[int, tuple[PublishAsk, ...]] | None = None
    """what was asked for last, and has no answer yet"""
    _is_asked: bool = False
    """whether it was, on this line"""

    def open(self) -> None:
        """Find out what was published before."""
        self.stages.again(self._what, self._connect)

    def is_news(self, item: Outgoing) -> bool:
        """Whether the next row is to be published. If it was in an earlier run, it has to be the same one."""
        if self.rows >= _ROWS_MAX:
            raise UsageError(
                f"a task has more than {_ROWS_MAX} rows for one stage: divide the batch into more parts (repartition)"
            )
        self.rows += 1
        self._digest = _digest(item, self._digest)
        earlier = self._published
        if self.rows == earlier.rows and self._digest & (1 << DIGEST_BITS) - 1 != earlier.digest:
            raise self._differs()
        return self.rows > earlier.rows

    def begin(self, parts: Sequence[PublishAsk]) -> None:
        """Ask for all rows up to here. What was asked for before is finished."""
        assert self._pending is None
        tries = Progress.of(self._taken).tries
        if self._taken != self._published.sequence:
            tries += 1
        if tries > _TRIES_MAX:
            raise UsageError("this batch was refused too often: begin a new checkpoint")
        progress = Progress(self.rows, self._digest & (1 << DIGEST_BITS) - 1, tries)
        self._pending, self._is_asked = (progress.sequence, tuple(parts)), False
        if self._line is not None:
            try:
                self._ask(self._line)
            except UnavailableError:
                self._drop()

    def finish(self) -> list[Publication]:
        """Wait for what was asked for, if there is anything."""
        if self._pending is None:
            return []
        answer = self.stages.again(self._what, self._attempt)
        self._pending = None
        return [part for part in answer.parts if isinstance(part, Publication)]

    def check_end(self) -> None:
        """There are no more rows; an earlier run must not have had more."""
        if self.rows < self._published.rows:
            raise self._differs()

    def close(self) -> None:
        """Let go of the line."""
        self._drop()

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
            self._drop()
            raise
        self._taken, self._published = sequence, Progress.of(sequence)
        return answer

    def _ask(self, line: Line) -> None:
        assert self._pending is not None
        sequence, parts = self._pending
        # What was published last is still answered: another run asks for it.
        done = max(self._published.sequence - 1, 0)
        line.say(Ask([Request(self.key.session, self.epoch, sequence, self._taken, done, parts)]))
        self._is_asked = True

    def _hear(self, line: Line, sequence: int) -> Answer | Refusal:
        while True:
            message = line.hear(ASK_AGAIN_S)
            for answer in message.answers if isinstance(message, Tell) else ():
                if answer.sequence == sequence:
                    return answer

    def _connect(self) -> None:
        """Make a line; if it is the first, find out what was published before."""
        line = self.stages.line_as(self.rank, self.key)
        try:
            sequences = self._trace(line)
            taken = max(sequences, default=0)
            if not self.rows:
                self._published, self._taken = Progress.of(self._find_published(line, sequences)), taken
            elif taken != self._taken and (self._pending is None or taken != self._pending[0]):
                raise SessionExpired(
                    f"stage {line.address} has not taken of this task what it should have: another run of it goes on, or the "
                    "stage has lost its store. Run it again"
                )
        except BaseException:
            line.close()
            raise
        self._line, self._is_asked = line, False

    def _trace(self, line: Line) -> list[int]:
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

    def _find_published(self, line: Line, sequences: list[int]) -> int:
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
            "publishing these would double some and leave out others. Give option sort, so that a shuffle does not change "
            "their order, and divide the batch in the same way each time (repartition)"
        )

    def _drop(self) -> None:
        line, self._line, self._is_asked = self._line, None, False
        if line is not None:
            line.close()


def _digest(item: Outgoing, before: int) -> int:
    """Of an event, and of all before it."""
    texts = [
        item.topic,
        item.id,
        item.content_type,
        *(f"{name}\0{value!r}" for name, value in sorted(item.headers.items())),
    ]
    return zlib.crc32(item.payload, zlib.crc32("\0".join(texts).encode(), before))
