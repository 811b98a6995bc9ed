"""What a source reads, whatever version of Spark asks: where it begins, where a batch ends, and which parts it has.

Nothing is kept open between two questions, and nothing of what is read passes through here: parts are two clocks each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import attrs

from ordered_pubsub.core.log.cuts import divide, events_between, first_part, lower
from ordered_pubsub.core.log.range_reader import raise_lost
from ordered_pubsub.errors import ConfigurationError, TopicError
from ordered_pubsub.reading.merging import merged
from ordered_pubsub.reading.stages import Extent, SessionEpochs, StageLines
from ordered_pubsub.spark.options import Clock, Options, Place
from ordered_pubsub.spark.progress import ReaderProgress
from ordered_pubsub.spark.selecting import Selection
from ordered_pubsub.wire.sessions import make_session

_log = logging.getLogger(__name__)

ROWS_PER_PARTITION = 100_000
PARTITIONS_USUAL_MAX = 32
LOST = (
    "Go on without them: option failOnDataLoss=false. Or begin anew: another checkpoint, with startingOffsets=earliest. With "
    "option reader, what a stream has not read is kept"
)


@attrs.frozen
class Range:
    """A part of a batch: from behind one cut to another."""

    start: Clock
    end: Clock


@attrs.define
class ReadPlan:
    """One source's; it is sent to executors."""

    options: Options
    progress: ReaderProgress | None = None
    _turns: SessionEpochs = attrs.field(factory=lambda: SessionEpochs(make_session(None)))
    selection: Selection = attrs.field(factory=Selection)
    """what is wanted of the rows, as far as Spark says"""
    seen: Clock | None = None
    """how far the topics were when a stream looked last, whatever its limits"""

    def __attrs_post_init__(self) -> None:
        if self.options.reader is not None:
            self.progress = ReaderProgress(self.options.reader)

    # -- where --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what is wrong with the topics, and with the way to the stages."""
        with StageLines(self.options.access) as stages:
            self._extents(stages)

    def _extents(self, stages: StageLines) -> dict[str, Extent]:
        options = self.options
        if options.pattern is None:
            try:
                return stages.existing(options.topics, options.fail_on_unknown_topic)
            except TopicError as error:
                raise TopicError(f"{error}, or give failOnUnknownTopic=false to wait for it") from None
        return {
            topic: extent for topic, extent in stages.find([options.pattern]).items() if stages.levels.is_kept(topic)
        }

    def first(self, otherwise: Place) -> Clock:
        """Where the source begins."""
        with StageLines(self.options.access) as stages:
            extents = self._extents(stages)
            place = self.options.starting if self.options.starting is not None else otherwise
            return self._at(stages, place, extents, is_start=True)

    def last(self) -> Clock:
        """Where a source that is read once ends: a cut."""
        with StageLines(self.options.access) as stages:
            extents = self._extents(stages)
            now = stages.cut(list(extents)) if extents else {}
            if self.options.ending == "latest":
                return now
            wanted = self._at(stages, self.options.ending, extents, is_start=False)
            clock = {topic: min(wanted.get(topic, last), last) for topic, last in now.items()}
            lowered = stages.search(lower({}, clock, is_whole=False))
            if lowered is None:
                raise ConfigurationError(
                    "no end that leaves nothing out was found near endingOffsets or endingTime: take an event's vector, or latest"
                )
            return lowered

    def _at(self, stages: StageLines, place: Place, extents: Mapping[str, Extent], is_start: bool) -> Clock:
        floors = {topic: extent.floor for topic, extent in extents.items()}
        if place == "earliest":
            return floors
        if place == "latest":
            return stages.cut(list(extents)) if extents else {}
        if isinstance(place, datetime):
            return self._at_time(stages, place, extents, is_start)
        assert isinstance(place, dict)
        for topic, count in place.items():
            if topic in extents and count > extents[topic].last:
                raise ConfigurationError(
                    f"{'startingOffsets' if is_start else 'endingOffsets'} names number {count} of topic {topic!r}, which has "
                    f"{extents[topic].last} so far"
                )
        return {topic: place.get(topic, floors[topic] if is_start else extents[topic].last) for topic in extents}

    def _at_time(self, stages: StageLines, at: datetime, extents: Mapping[str, Extent], is_start: bool) -> Clock:
        clock = stages.located(list(extents), at.timestamp()) if extents else {}
        is_beyond = all(clock[topic] >= extent.last for topic, extent in extents.items())
        if is_start and is_beyond and self.options.starting_time_strategy == "error":
            raise ConfigurationError(
                f"nothing was published at or after startingTime={at.isoformat()}: take an earlier one, or "
                "startingTimeStrategy=latest to begin with what comes"
            )
        return clock

    def next(
        self,
        start: Mapping[str, int],
        rows_max: int | None = None,
        bytes_max: int | None = None,
        until: Clock | None = None,
    ) -> tuple[Clock, int]:
        """Where the batch after this place ends: at a cut, with about so many rows, or bytes, at the most. Also what there is."""
        with StageLines(self.options.access) as stages:
            end = self.seen = self._now(stages, start)
            end = {topic: min(last, until.get(topic, 0)) for topic, last in end.items()} if until is not None else end
            end = {topic: max(last, start.get(topic, 0)) for topic, last in end.items()}
            if bytes_max is not None and end != start:
                rows = max(1, int(bytes_max / max(1.0, stages.bytes_per_event(start, end))))
                rows_max = rows if rows_max is None else min(rows, rows_max)
            there = events_between(start, end)
            if rows_max is not None and there > rows_max:
                return stages.search(first_part(start, end, rows_max)), there
            return end, there

    def _now(self, stages: StageLines, start: Mapping[str, int]) -> Clock:
        """A cut; the start itself, which is one, if nothing has come since. That is found out without an operation."""
        extents = stages.find(self.options.topics or [self.options.pattern or ""])
        topics = list(self.options.topics) or [topic for topic in extents if stages.levels.is_kept(topic)]
        topics += [topic for topic in start if topic not in topics]
        progress = self.progress
        has_news = any(topic in extents and extents[topic].last > start.get(topic, 0) for topic in topics)
        if not has_news and (progress is None or not topics or not progress.is_due(start)):
            return {topic: start.get(topic, 0) for topic in topics}
        return stages.cut(topics, self._turns) if progress is None else progress.cut(stages, topics, start)

    def now(self) -> Clock:
        """A cut, now."""
        with StageLines(self.options.access) as stages:
            return self._now(stages, {})

    def parts(self, start: Mapping[str, int], end: Clock) -> list[Range]:
        """A batch in parts, which are read side by side."""
        events = events_between(start, end)
        if not events:
            return []
        self._check_kept(start, end)
        wanted = self.options.partitions or min(PARTITIONS_USUAL_MAX, -(-events // ROWS_PER_PARTITION))
        begin = {topic: start.get(topic, 0) for topic in end}
        if wanted == 1:
            return [Range(begin, end)]
        with StageLines(self.options.access) as stages:
            cuts = stages.search(divide(begin, end, wanted))
        parts = zip([begin, *cuts], cuts, strict=False)
        meets = self.selection.meets
        return [Range(before, after) for before, after in parts if meets(sum(before.values()), sum(after.values()))]

    def _check_kept(self, start: Mapping[str, int], end: Clock) -> None:
        """Say now what is lost, not when it is read."""
        with StageLines(self.options.access) as stages:
            found = stages.find([topic for topic in end if end[topic] > start.get(topic, 0)])
        for topic, extent in found.items():
            if extent.floor > start.get(topic, 0):
                self._lose(topic, start.get(topic, 0) + 1, extent.floor + 1)

    # -- what ---------------------------------------------------------------------------------------------------------

    def read(self, part: Range) -> Iterator[Any]:
        """The rows of a part, as Arrow record batches. Runs in executors."""
        from ordered_pubsub.spark.table import Table, wanted_by

        options = self.options
        wants = None if options.where is None else wanted_by(options.where)
        table = Table(sorted(part.end), part.start, part.end, wants, options.with_headers, self.selection.has_topic)
        with StageLines(options.access) as stages:
            source = merged(stages, part.start, part.end, self._lose, options.where or "")
            yield from table.record_batches(source)

    @property
    def _lose(self) -> Callable[[str, int, int], None]:
        if self.options.fail_on_data_loss:
            who = "the source" if self.options.reader is None else f"reader {self.options.reader!r}"
            return raise_lost(who, LOST)
        return _log_lost


def _log_lost(topic: str, first_lost: int, first_there: int) -> None:
    _log.warning(
        "numbers %d to %d of topic %r are gone, and left out (failOnDataLoss=false)", first_lost, first_there - 1, topic
    )
