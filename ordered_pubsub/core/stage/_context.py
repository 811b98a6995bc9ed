"""What the parts of one stage share: its state, its place on the line, and what is to be done about an input.

What must not be forgotten changes by an input only, and each goes by `take`: it is journalled, and takes effect. So a part may
look at everything, decide, and let an input happen; `apply` does the same when the journal is read again. Two things change
without one, since they are said again: how much of a link its peer has on its disk, and where a client asks from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.messages import (
    MARKS_MAX,
    Answer,
    ChangeAsk,
    FrameTaken,
    Input,
    Launch,
    Part,
    Pass,
    Publication,
    PublishAsk,
    Refusal,
    Reply,
    RequestTaken,
    find_change,
)
from ordered_pubsub.core.stage.effects import Effects
from ordered_pubsub.core.stage.journal import encode_input
from ordered_pubsub.core.stage.state import StageState
from ordered_pubsub.core.topology import Topology

_P = TypeVar("_P", bound="Part | PublishAsk | ChangeAsk")


@attrs.define(eq=False)
class Context:
    """What the parts of one stage share."""

    state: StageState
    topology: Topology
    marks_max: int = MARKS_MAX
    """marks that a topic keeps for its next event"""
    apply: Callable[[Input], None] = attrs.field(init=False)
    """lets a journalled input take effect; the same code runs when it happens and when it is read again"""
    rank: int = attrs.field(init=False)
    """this stage's place on the line, 0 the highest"""
    levels: Levels | None = attrs.field(init=False)
    """what topics give; None: what is asked for"""
    effects: Effects = attrs.field(factory=Effects)
    """what is to be done about the inputs since they were taken from here last"""

    def __attrs_post_init__(self) -> None:
        self.rank = self.state.rank
        self.know_levels()

    def know_levels(self) -> None:
        """What topics give is what the state says."""
        self.levels = None if self.state.levels is None else Levels.load(self.state.levels)

    def take(self, event: Input) -> None:
        """An input happens: it is journalled, and takes effect."""
        self.effects.journal.append(encode_input(self._without_events(event)))
        self.apply(event)

    def reply(self, home: int, answer: Answer | Refusal) -> None:
        """Answer a client, by its home stage."""
        if home == self.rank:
            self.effects.replies.append(answer)
        else:
            self.effects.sends.append((home, Reply(answer)))

    def is_own(self, topic: str) -> bool:
        """Whether this stage gives the numbers of a topic."""
        return self.topology.owner(topic) == self.rank

    def name_of(self, rank: int) -> str:
        """What a stage is called, for errors."""
        return repr(self.topology.stages[rank].name)

    def _without_events(self, event: Input) -> Input:
        """The input as the journal has it: without the events that are numbered here and now, for the log has those.

        A request that changes a subscription may have to wait for its turn, so its events stay with it.
        """
        if isinstance(event, RequestTaken):
            request = event.request
            if _have_events(request.parts) and find_change(request.parts) is None:
                parts = tuple(map(self._emptied, request.parts))
                return replace(event, request=replace(request, parts=parts))
        elif isinstance(event, FrameTaken) and isinstance(event.message, (Launch, Pass)):
            operation = event.message.operation
            if _have_events(operation.parts):
                emptied = replace(operation, parts=list(map(self._emptied, operation.parts)))
                return replace(event, message=replace(event.message, operation=emptied))
        return event

    def _emptied(self, part: _P) -> _P:
        if isinstance(part, (Publication, PublishAsk)) and self.is_own(part.topic):
            return replace(part, chunks=())
        return part


def _have_events(parts: Iterable[Part | PublishAsk | ChangeAsk]) -> bool:
    return any(isinstance(part, (Publication, PublishAsk)) and part.chunks for part in parts)
