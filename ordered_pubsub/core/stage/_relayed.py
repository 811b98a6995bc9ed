"""What was asked of other stages for clients at home here, and has no answer yet: bounded, so that nothing queues up on the way.

Of an identity that has `OPEN_LOAD` of it under way, what is more waits here, at its turn; and of what a client asks again while
the same is under way, nothing is sent. An answer that does not come for `OPEN_S` was lost, or waits for something: then it may be
asked again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import attrs

from ordered_pubsub.core.messages import (
    Acked,
    AckSaved,
    Answer,
    AskNews,
    AskVersion,
    Ended,
    LeaseRenewal,
    LeaseReply,
    Locate,
    Located,
    News,
    PeerMessage,
    Refusal,
    Request,
    VersionThere,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.stage._clock import Clock
from ordered_pubsub.core.stage.stage import Stage, taken_at
from ordered_pubsub.core.stage.turns import Work

OPEN_LOAD, OPEN_S = 512, 4.0
"""So much of an identity may be relayed and have no answer, and so long it is waited for."""

Key = tuple[Hashable, ...]
"""What is answered: client, epoch and sequence of a request, or the kind of a question, whose it was, and whom it went to."""


def key_of(message: AskNews | News | AskVersion | VersionThere) -> Key:
    """What is asked, or answered, of a subscription that others may have changed."""
    if isinstance(message, (AskNews, News)):
        return (AskNews, message.session, message.subscription)
    return (AskVersion, message.session, message.subscription, message.topic)


@attrs.define(eq=False)
class Relayed:
    """What is under way to other stages."""

    stage: Stage
    clock: Clock
    _loads: dict[str, int] = attrs.field(factory=dict)
    """identity → how much of it is under way"""
    _open: OrderedDict[Key, tuple[str, int, float]] = attrs.field(factory=OrderedDict)
    """that: its identity, its load, since when"""

    def has_much(self, request: Request) -> bool:
        """Whether a request has to wait until some of its identity's, which were relayed, have their answers."""
        is_much = self._loads.get(request.identity, 0) >= OPEN_LOAD
        return is_much and taken_at(self.stage.topology, request) != self.stage.rank

    def relayed(self, request: Request, load: int) -> None:
        """A request was relayed."""
        if request.identity:
            self._begin((request.client, request.epoch, request.sequence), request.identity, load)

    def asking(self, rank: int, identity: str, key: Key, load: int, message: PeerMessage) -> Work:
        """Ask another stage for a client, when the same was answered before, and its identity has not too much under way."""
        while identity and (key in self._open or self._loads.get(identity, 0) >= OPEN_LOAD):
            yield False
        if identity:
            self._begin(key, identity, load)
        self.stage.effects.sends.append((rank, message))

    def _begin(self, key: Key, identity: str, load: int) -> None:
        if key not in self._open:
            self._open[key] = (identity, load, self.clock.now)
            self._loads[identity] = self._loads.get(identity, 0) + load

    def told_by(
        self, peer: int, message: AckSaved | Ended | News | VersionThere | Located | LeaseReply | VoidDecision
    ) -> None:
        """What a client had asked another stage for is answered."""
        if isinstance(message, (News, VersionThere)):
            self._close(key_of(message))
        elif isinstance(message, (AckSaved, Ended)):
            self._close((Acked, message.session, message.subscription))
        elif isinstance(message, Located):
            self._close((Locate, message.session, peer))
        elif isinstance(message, LeaseReply):
            self._close((LeaseRenewal, message.session, message.serial, peer))
        else:
            self._close((VoidAsk, message.session, peer))

    def answered(self, answer: Answer | Refusal) -> None:
        """A request has its answer."""
        if self._open:
            self._close((answer.client, answer.epoch, answer.sequence))

    def _close(self, key: Key) -> None:
        identity, load, _ = self._open.pop(key, ("", 0, 0.0))
        if identity:
            self._loads[identity] -= load
            if not self._loads[identity]:
                del self._loads[identity]

    def give_up_old(self) -> None:
        """What has no answer for so long may be asked again."""
        while self._open:
            key, (_, _, at) = next(iter(self._open.items()))
            if at + OPEN_S > self.clock.now:
                return
            self._close(key)
