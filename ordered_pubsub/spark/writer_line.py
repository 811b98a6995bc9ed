"""The line of one writer to its stage: carries what `core.client.writer` says, and what the stage answers."""

from __future__ import annotations

import attrs

from ordered_pubsub.core.client.writer import StageWriter
from ordered_pubsub.core.log.questions import Traced
from ordered_pubsub.core.messages import Request
from ordered_pubsub.errors import OrderedPubSubError, UnavailableError
from ordered_pubsub.reading.connection import StageLine
from ordered_pubsub.reading.stages import ASK_AGAIN_S, StageLines
from ordered_pubsub.wire.protocol import Ask, Tell
from ordered_pubsub.wire.sessions import SessionKey


@attrs.define(eq=False)
class WriterLine:
    """For one task: made when it is needed, and made again when it is lost."""

    stages: StageLines
    rank: int
    key: SessionKey
    writer: StageWriter
    _line: StageLine | None = None

    def say(self) -> None:
        """Say now what the writer has to say. Without a line that waits until the answer is waited for."""
        if self._line is not None:
            try:
                self._say(self._line)
            except UnavailableError:
                self.close()

    def settle(self) -> None:
        """Wait until the writer waits for nothing any more."""
        self.stages.again(f"publishing at stage {self.writer.stage!r}", self._attempt)

    def _attempt(self) -> None:
        writer = self.writer
        try:
            if self._line is None:
                self._line = self.stages.line_as(self.rank, self.key)
                writer.connected()
            while writer.is_waiting:
                self._say(self._line)
                message = self._line.hear(ASK_AGAIN_S)
                if isinstance(message, Traced):
                    writer.traced(message)
                for answer in message.answers if isinstance(message, Tell) else ():
                    writer.answered(answer)
        except OrderedPubSubError:
            self.close()
            raise

    def _say(self, line: StageLine) -> None:
        said, self.writer.says = self.writer.says, []
        if said:
            line.say(*[Ask([message]) if isinstance(message, Request) else message for message in said])

    def close(self) -> None:
        """Let go of the line."""
        line, self._line = self._line, None
        self.writer.lost()
        if line is not None:
            line.close()
