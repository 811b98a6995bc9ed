"""How far a source with a name has come: says to stages what `core.client.named_reader` has to say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import attrs

from ordered_pubsub.core.client.named_reader import NamedReader, Turn
from ordered_pubsub.core.client.session import Outcome
from ordered_pubsub.core.messages import AckSaved, ChangeAsk
from ordered_pubsub.errors import NameInUse, UnavailableError
from ordered_pubsub.reading.stages import ASK_AGAIN_S, OperationLine, SessionEpochs, StageLines
from ordered_pubsub.wire.sessions import make_session

SUBSCRIPTION = "spark"


@attrs.define
class ReaderProgress:
    """Of one name. Its session lasts as long as this does: it has the name whatever becomes of a connection, or a stage."""

    name: str
    _reader: NamedReader = attrs.field(init=False)
    _turns: SessionEpochs = attrs.field(init=False)
    _was_in: bool = False

    def __attrs_post_init__(self) -> None:
        self._reader = NamedReader(self.name, f"{self.name}//{SUBSCRIPTION}")
        self._turns = SessionEpochs(make_session(self.name))

    def is_due(self, start: Mapping[str, int]) -> bool:
        """Whether stages have to hear of this one, though nothing new is there for it."""
        return self._reader.is_due(start, time.monotonic())

    def cut(self, stages: StageLines, topics: Sequence[str], start: Mapping[str, int]) -> dict[str, int]:
        """A place in the order, now; what comes before `start` was committed."""
        return stages.again(f"the progress of reader {self.name!r}", lambda: self._cut(stages, topics, start))

    def _cut(self, stages: StageLines, topics: Sequence[str], start: Mapping[str, int]) -> dict[str, int]:
        place = OperationLine(stages, self.name, self._turns.key, self._was_in, self._turns.next())
        try:
            with place:
                self._was_in = True
                return _made(place, self._reader.cut(place.session, topics, start, time.monotonic()))
        except NameInUse as error:  # perhaps for as long as a connection that is gone is not missed yet
            raise UnavailableError(str(error)) from error


def _made(place: OperationLine, turn: Turn) -> dict[str, int]:
    """Say what a turn has to say; return what it finds."""
    outcome: Outcome | None = None
    while True:
        try:
            said = turn.send(outcome)
        except StopIteration as over:
            cut: dict[str, int] = over.value
            return cut
        if isinstance(said, ChangeAsk):
            outcome = place.ask(said)
        else:
            outcome = None
            place.line.say(said)
            while not isinstance(place.line.hear(ASK_AGAIN_S), AckSaved):
                pass
