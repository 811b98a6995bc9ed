"""A journal is read again: a snapshot, and the inputs that were taken since, one after the other.

What they do then has happened before, and nobody is to do it once more. They make the stage that had written them, whoever runs
it next, and under whichever topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ordered_pubsub.core.checking import check_record
from ordered_pubsub.core.messages import Input, TopologyOffered
from ordered_pubsub.core.stage._context import Context
from ordered_pubsub.core.stage.journal import decode_input
from ordered_pubsub.core.stage.state import StageState, empty_state, read_snapshot
from ordered_pubsub.errors import JournalDamaged, JournalError

REPLAYED_AT_ONCE = 256
"""What so many records did is handed on at once when a journal is read again."""


def read_journal(snapshot: bytes | None, records: Iterable[bytes]) -> tuple[StageState, Iterator[Input]]:
    """What the stage was when this journal began, and the inputs since."""
    inputs: Iterator[Input] = map(decode_input, records)
    if snapshot is not None:
        return read_snapshot(snapshot), inputs
    first = next(inputs, None)
    if not isinstance(first, TopologyOffered):
        raise JournalError("a journal without a snapshot must begin with the record that opened it")
    return empty_state(first.rank, first.topology, len(first.topology)), chain((first,), inputs)


def replay(context: Context, inputs: Iterator[Input]) -> Iterator[None]:
    """Let these inputs take effect, `REPLAYED_AT_ONCE` in each step."""
    for place, event in enumerate(inputs, 1):
        try:
            check_record(event, len(context.topology.stages))
            context.apply(event)
        except Exception as error:
            raise JournalDamaged(
                f"record {place} of the journal, {type(event).__name__}, cannot take effect ({type(error).__name__}: {error}): "
                "what came before it is not what came before it then, or it was taken by another release. Start the stage with "
                "that release, or restore its store from a copy"
            ) from error
        if not place % REPLAYED_AT_ONCE:
            yield
    yield
