"""How far a reader with a name has come: a subscription that outlives it, so that stages keep what it has not read.

The subscription holds the topics in one order from its first use on, so their events are decided against each other. A cut is
taken by going on with it, which is an operation; how far the reader has committed goes along.

What a turn has to say is yielded, one thing at a time: a change, whose outcome is sent in, or an acknowledgement, after which
nothing is, once it is on disk. A turn that is broken off anywhere begins again: what has happened of it by then is another epoch,
and no more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import attrs

from ordered_pubsub.core.client.session import Outcome, change_of, refused
from ordered_pubsub.core.messages import Acked, Change, ChangeAsk
from ordered_pubsub.core.order.registrar import epoch_after
from ordered_pubsub.errors import ConfigurationError

TELL_S = 60.0
"""So often stages hear that it is there: what they hear nothing of for long ends."""

Turn = Generator[ChangeAsk | Acked, Outcome | None, dict[str, int]]


@attrs.define
class NamedReader:
    """Of one name, for as long as its session lasts."""

    name: str
    subscription: str
    _epoch: int = 0
    """in which this session has the subscription"""
    _told: dict[str, int] | None = None
    """how far it was when stages heard of it last"""
    _told_at: float = 0.0

    def is_due(self, start: Mapping[str, int], now: float) -> bool:
        """Whether stages have to hear of this one, though nothing new is there for it."""
        return start != self._told or now >= self._told_at + TELL_S

    def cut(self, session: str, topics: Sequence[str], start: Mapping[str, int], now: float) -> Turn:
        """Find a place in the order; what comes before `start` was committed."""
        change = yield from self._open(topics, start)
        more = tuple(topic for topic in topics if topic not in change.new)
        if more:
            change = change_of((yield ChangeAsk(self.subscription, more)))
        yield self._acknowledgement(session, change, start)
        self._told, self._told_at = dict(start), now
        return {topic: change.entries.get(topic, 0) for topic in topics}

    def _open(self, topics: Sequence[str], start: Mapping[str, int]) -> Generator[ChangeAsk, Outcome | None, Change]:
        """Begin it, or go on with it; if it is there in another epoch, in the one after that."""
        epoch = self._epoch + 1
        ask = ChangeAsk(self.subscription, tuple(topics) if epoch == 1 else (), opens=epoch, start=dict(start))
        openings = 0
        while True:
            outcome = yield ask
            assert outcome is not None
            refusal = outcome.refusal
            if refusal is None:
                self._epoch = epoch
                return change_of(outcome)
            openings += 1
            again_in = epoch_after(refusal, openings)
            if again_in is not None:
                epoch = again_in
                ask = ChangeAsk(self.subscription, opens=epoch)
            elif refusal.code == "exists":
                raise ConfigurationError(
                    f"option reader={self.name!r}: its subscription holds other topics ({refusal.reason}); give another name"
                )
            else:
                raise refused(refusal)

    def _acknowledgement(self, session: str, change: Change, start: Mapping[str, int]) -> Acked:
        """Everything before `start` was handled; nothing is taken back that an earlier session has said."""
        resume = change.resume
        clock = {topic: start.get(topic, 0) for topic in change.new}
        if resume is not None:
            for topic, count in (resume.clock or resume.start or {}).items():
                clock[topic] = max(clock.get(topic, 0), count)
        position = max(sum(clock.values()), 0 if resume is None else resume.position)
        return Acked(self.subscription, session, 1, change.version, clock, position)
