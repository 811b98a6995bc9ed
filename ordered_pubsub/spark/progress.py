"""How far a source with a name has come: a subscription that outlives it, so that stages keep what it has not read.

The subscription `NAME//spark` holds the topics in one order from its first use on, so their events are decided against each
other. A cut is taken by going on with it, which is an operation; how far Spark has committed goes along.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import attrs

from ordered_pubsub.core.client.session import refused
from ordered_pubsub.core.messages import Acked, AckSaved, Change, ChangeAsk
from ordered_pubsub.core.order.registrar import epoch_after
from ordered_pubsub.errors import ConfigurationError, NameInUse, UnavailableError
from ordered_pubsub.reading.stages import ASK_AGAIN_S, OperationLine, SessionEpochs, StageLines
from ordered_pubsub.wire.sessions import make_session

SUBSCRIPTION = "spark"
TELL_S = 60.0
"""So often stages hear that it is there: what they hear nothing of for long ends."""


@attrs.define
class ReaderProgress:
    """Of one name. Its session lasts as long as this does: it has the name whatever becomes of a connection, or a stage."""

    name: str
    _turns: SessionEpochs = attrs.field(init=False)
    _epoch: int = 0
    """in which this session has the subscription"""
    _was_in: bool = False
    _told: dict[str, int] | None = None
    """how far it was when stages heard of it last"""
    _told_at: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._turns = SessionEpochs(make_session(self.name))

    def is_due(self, start: Mapping[str, int]) -> bool:
        """Whether stages have to hear of this one, though nothing new is there for it."""
        return start != self._told or time.monotonic() >= self._told_at + TELL_S

    def cut(self, stages: StageLines, topics: Sequence[str], start: Mapping[str, int]) -> dict[str, int]:
        """A place in the order, now; what comes before `start` was committed."""
        return stages.again(f"the progress of reader {self.name!r}", lambda: self._cut(stages, topics, start))

    def _cut(self, stages: StageLines, topics: Sequence[str], start: Mapping[str, int]) -> dict[str, int]:
        place = OperationLine(stages, self.name, self._turns.key, self._was_in, self._turns.next())
        try:
            with place:
                self._was_in = True
                change = self._open(place, topics, start)
                more = tuple(topic for topic in topics if topic not in change.new)
                if more:
                    change = place.change(ChangeAsk(self._subscription, more))
                self._acknowledge(place, change, start)
                self._told, self._told_at = dict(start), time.monotonic()
        except NameInUse as error:  # perhaps for as long as a connection that is gone is not missed yet
            raise UnavailableError(str(error)) from error
        return {topic: change.entries.get(topic, 0) for topic in topics}

    @property
    def _subscription(self) -> str:
        return f"{self.name}//{SUBSCRIPTION}"

    def _open(self, place: OperationLine, topics: Sequence[str], start: Mapping[str, int]) -> Change:
        """Begin it, or go on with it; if it is there in another epoch, in the one after that."""
        epoch = self._epoch + 1
        ask = ChangeAsk(self._subscription, tuple(topics) if epoch == 1 else (), opens=epoch, start=dict(start))
        openings = 0
        while True:
            outcome = place.ask(ask)
            if outcome.change is not None:
                self._epoch = epoch
                return outcome.change
            refusal = outcome.refusal
            assert refusal is not None
            openings += 1
            again_in = epoch_after(refusal, openings)
            if again_in is not None:
                epoch = again_in
                ask = ChangeAsk(self._subscription, opens=epoch)
            elif refusal.code == "exists":
                raise ConfigurationError(
                    f"option reader={self.name!r}: its subscription holds other topics ({refusal.reason}); give another name"
                )
            else:
                raise refused(refusal)

    def _acknowledge(self, place: OperationLine, change: Change, start: Mapping[str, int]) -> None:
        resume = change.resume
        clock = {topic: start.get(topic, 0) for topic in change.new}
        if resume is not None:
            for topic, count in (resume.clock or resume.start or {}).items():
                clock[topic] = max(clock.get(topic, 0), count)
        position = max(sum(clock.values()), 0 if resume is None else resume.position)
        place.line.say(Acked(self._subscription, place.session, 1, change.version, clock, position))
        while not isinstance(place.line.hear(ASK_AGAIN_S), AckSaved):
            pass
