"""A link between two stages: FIFO, without loss or repetition, over a connection that may give neither.

Durable messages get numbers 1, 2, 3, … per link and stay in the `outbox` until the other side says that they are on its
disk (`Ack`). The receiver takes a frame exactly if its number is the next, whatever else arrives; a gap is closed by the
sender, who sends what is unacknowledged again when the link reconnects (`Hello`) or when no acknowledgement has come for a
while; a window at a time, however much there is. The outbox is rebuilt from the journal after a crash, since it follows from
the inputs.

INVARIANT: outbox numbers are consecutive and end at `sent`.
"""

from __future__ import annotations

import msgspec

from ordered_pubsub.core.messages import Durable, LinkFrame, load_of_message
from ordered_pubsub.errors import JournalDamaged, ProtocolError

FRAMES_UNDER_WAY_MAX = 1_024
"""Frames that a peer has not acknowledged, of those that were sent on this connection."""
LOAD_MAX = 65_536
"""Names of topics in those frames: a few megabytes."""


class Link(msgspec.Struct):
    """This stage's end of the link to one peer."""

    sent: int = 0
    received: int = 0
    outbox: dict[int, Durable] = msgspec.field(default_factory=dict)

    def number(self, message: Durable) -> LinkFrame:
        """Give a message its number and keep it until it is acknowledged."""
        self.sent += 1
        self.outbox[self.sent] = message
        return LinkFrame(self.sent, message)

    def is_next(self, number: int) -> bool:
        """Whether a frame with this number is to be taken now."""
        # DEVIATION (Baldoni 2: FIFO links are assumed): frames have numbers, and are kept until they are on the other side's
        # disk. Mutant `overtake`.
        return number == self.received + 1

    def take(self, number: int) -> None:
        """Take note that a frame was taken."""
        self.received = number

    def acknowledged(self, received: int) -> None:
        """Forget what the peer has on its disk."""
        for number in range(self.sent - len(self.outbox) + 1, min(received, self.sent) + 1):
            del self.outbox[number]

    def check(self, received: int, acknowledged: int, who: str) -> None:
        """See by what a peer has of this link that neither journal has lost anything. `received` is how many frames of this
        stage it has, `acknowledged` how many of its own this stage had said are on its disk.

        A peer that is behind is refused. If this stage is behind itself, it has given numbers that it does not know of: it must
        not run, which is what `JournalDamaged` says.
        """
        behind = (
            "this stage runs on an older copy of its journal, or has lost the end of it, and would give numbers again"
        )
        if received > self.sent:
            raise JournalDamaged(
                f"{who} has {received} frames of this stage, which has sent only {self.sent}: {behind}"
            )
        if acknowledged > self.received:
            raise JournalDamaged(
                f"{who} was told that {acknowledged} of its frames are on the disk here, and there are only {self.received}: "
                f"{behind}"
            )
        if received < self.known_received:
            raise ProtocolError(
                f"{who} has {received} frames of this stage, but had acknowledged {self.known_received}: its journal "
                "was lost or is an older copy; give it the right one"
            )

    @property
    def known_received(self) -> int:
        """Up to where the peer has acknowledged."""
        return self.sent - len(self.outbox)

    def window(self, after: int) -> list[LinkFrame]:
        """The next frames after this number, as many as may be under way without an acknowledgement."""
        frames: list[LinkFrame] = []
        if after >= self.sent:
            return frames
        load = 0
        for number in range(self.known_received + 1, min(self.sent, self.known_received + FRAMES_UNDER_WAY_MAX) + 1):
            message = self.outbox[number]
            load += load_of_message(message)
            if load > LOAD_MAX and number > self.known_received + 1:
                break
            if number > after:
                frames.append(LinkFrame(number, message))
        return frames

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if the frames that are kept are not the last ones."""
        assert list(self.outbox) == list(range(self.known_received + 1, self.sent + 1)), f"{list(self.outbox)} are kept"
