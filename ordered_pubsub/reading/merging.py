"""A range of the logs in the one order, read from the owners over blocking lines: what is asked for, and what comes of it, says
`core.log.range_reader`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

from ordered_pubsub.core.log.questions import Rows
from ordered_pubsub.core.log.range_reader import INCOMPLETE_PAUSE_S, LogBatch, Lose, RangeReader
from ordered_pubsub.reading.connection import StageLine
from ordered_pubsub.reading.stages import StageLines


def merged(
    stages: StageLines, start: Mapping[str, int], end: Mapping[str, int], lose: Lose, where: str = ""
) -> Iterator[LogBatch]:
    """The batches between a clock and a later cut, in order. `lose` is told of what is gone, and may raise.

    With a filter, stages leave out the events that it does not let through, as far as they can read them.
    """
    return taken(stages, RangeReader.of(stages.topology.owner, start, end, lose, where))


def taken(stages: StageLines, reader: RangeReader) -> Iterator[LogBatch]:
    """What a reader finds."""
    lines: dict[int, StageLine] = {}
    while True:
        yield from reader.take()
        if reader.lacking is not None:
            stages.again("reading the log", partial(_read, stages, reader, reader.lacking, lines))
        elif reader.is_over:
            return


def _read(stages: StageLines, reader: RangeReader, rank: int, lines: dict[int, StageLine]) -> None:
    """Ask an owner, and hear it, until nothing is lacking of it that may be next."""
    owner, line = reader.owners[rank], stages.line_to(rank)
    if lines.get(rank) is not line:
        lines[rank] = line
        owner.begin_anew()
    while True:
        asks = owner.asks(time.monotonic(), stages.next_number)
        if asks:
            line.say(*asks)
        if not owner.is_lacking:
            return
        if owner.is_asked:
            answer = stages.answer(line, owner.asked)
            assert isinstance(answer, Rows)
            if owner.hear(answer, time.monotonic()):
                stages.advanced()
        else:
            owner.check_patience(time.monotonic(), stages.access.timeout_s / 2)
            time.sleep(INCOMPLETE_PAUSE_S)
