"""Who reads ranges of the logs, and tasks that are run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ordered_pubsub.core.client.named_reader import NamedReader
from ordered_pubsub.core.client.writer import READY, StageWriter, TaskWriter
from ordered_pubsub.core.log import cuts
from ordered_pubsub.core.log.cuts import BoundsAsk, Clock, Search
from ordered_pubsub.core.log.questions import Rows, Traced
from ordered_pubsub.core.log.range_reader import LogBatch, OwnerRange, RangeReader, TopicRange
from ordered_pubsub.core.messages import Acked, Answer, Change, Refusal, Request
from ordered_pubsub.testing import ranges
from simulation.mutants.mutant import Mutant, nothing


def _known_of_any(owner: OwnerRange) -> int | None:
    """Up to the last place of any topic."""
    return max((one.batches[-1].place for one in owner.topics if not one.is_over and one.batches), default=None)


def _satisfied_at_once(reader: RangeReader, head: LogBatch, clock: Any) -> bool:
    return True


_receive = OwnerRange._receive


def _receive_by_delta(owner: OwnerRange, one: TopicRange, rows: Rows) -> None:
    one.needs_full = False
    _receive(owner, one, rows)


_skip = OwnerRange._skip


def _skip_in_silence(owner: OwnerRange, one: TopicRange, floor: int) -> None:
    lose, owner.lose = owner.lose, nothing
    _skip(owner, one, floor)
    owner.lose = lose


def _not_lowered(start: Mapping[str, int], clock: Mapping[str, int], is_whole: bool = True) -> Search[Clock | None]:
    yield BoundsAsk(start, clock, is_whole)
    return dict(clock)


_acknowledgement = NamedReader._acknowledgement


def _acknowledge_the_cut(reader: NamedReader, session: str, change: Change, start: Mapping[str, int]) -> Acked:
    return _acknowledgement(reader, session, change, change.entries)


def _always_news(writer: StageWriter, row: int) -> bool:
    return True


def _found_whatever_it_is(writer: StageWriter, answer: Answer | Refusal) -> None:
    writer._know(answer.sequence)


_traced = StageWriter.traced


def _traced_whatever_was_taken(writer: StageWriter, traced: Traced) -> None:
    known = traced.sequences if writer._taken is None else [writer._taken]
    _traced(writer, replace(traced, sequences=known))


def _traced_and_no_more(writer: StageWriter, traced: Traced) -> None:
    if writer._taken is None:
        _traced(writer, traced)
    else:
        writer._become(READY)


_ask_writer = StageWriter._ask


def _ask_no_more_of_the_last(writer: StageWriter) -> None:
    _ask_writer(writer)
    request = writer.says[-1]
    assert isinstance(request, Request)
    writer.says[-1] = replace(request, done=writer._published.sequence)


def _put_side_by_side(task: TaskWriter, row: Any, way: Any) -> Any:
    if not way.filling.has_room(row, task.events_max):
        yield from task._send(way)
    task._add(row, way)


MUTANTS = (
    Mutant(
        "known-of-any",
        "of one owner's topics only that is next before which nothing can come of any of them",
        ((OwnerRange, "_horizon", _known_of_any),),
    ),
    Mutant(
        "range-at-once",
        "a batch waits until what its timestamp names has come from the other owners",
        ((RangeReader, "_is_satisfied", _satisfied_at_once),),
    ),
    Mutant(
        "range-by-delta",
        "the first batch of each topic of a range waits for its full timestamp",
        ((OwnerRange, "_receive", _receive_by_delta),),
    ),
    Mutant(
        "gone-in-silence",
        "what is gone of a range is said",
        ((OwnerRange, "_skip", _skip_in_silence),),
    ),
    Mutant(
        "old-line",
        "what was asked for on a line that is lost is asked for again",
        ((OwnerRange, "begin_anew", nothing),),
    ),
    Mutant(
        "not-lowered",
        "a range ends where nothing in it needs anything beyond its end",
        ((cuts, "lower", _not_lowered), (ranges, "lower", _not_lowered)),
    ),
    Mutant(
        "commit-unread",
        "what somebody who follows topics under a name has not read is not acknowledged",
        ((NamedReader, "_acknowledgement", _acknowledge_the_cut),),
    ),
    Mutant(
        "write-again",
        "what an earlier run of a task has published is left out",
        ((StageWriter, "is_news", _always_news),),
    ),
    Mutant(
        "digest-unchecked",
        "a run that has other rows than the one before ends",
        ((StageWriter, "check", nothing),),
    ),
    Mutant(
        "less-unnoticed",
        "… and so does one that has less",
        ((StageWriter, "check_end", nothing),),
    ),
    Mutant(
        "refused-for-written",
        "what was refused is not published",
        ((StageWriter, "_found", _found_whatever_it_is),),
    ),
    Mutant(
        "other-run-unnoticed",
        "a run ends when another run of its task has gone on",
        ((StageWriter, "traced", _traced_whatever_was_taken),),
    ),
    Mutant(
        "asked-on-one-line",
        "what has no answer is asked for again on the next line",
        ((StageWriter, "traced", _traced_and_no_more),),
    ),
    Mutant(
        "answer-let-go",
        "what was published last is still answered: another run asks for it",
        ((StageWriter, "_ask", _ask_no_more_of_the_last),),
    ),
    Mutant(
        "side-by-side",
        "where one order goes across stages, a row waits until those before it have their places",
        ((TaskWriter, "_put_behind", _put_side_by_side),),
    ),
)
