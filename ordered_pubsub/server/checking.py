"""What a stage says is looked at before the state machine takes it.

Whoever has the right to link is trusted with the order, but a stage with a bug must not take the others down with it: a frame is
journalled when it is taken, so one that cannot be handled would come again at each start.
"""

from __future__ import annotations

from ordered_pubsub.core.log import ENDLESS
from ordered_pubsub.core.messages import (
    Acked,
    AckExpected,
    Decided,
    Floors,
    Frame,
    Handed,
    Hosts,
    Operation,
    PeerMessage,
    Publication,
    Recall,
    Relay,
    Seal,
    Sealed,
    Told,
    Undecided,
)
from ordered_pubsub.errors import ProtocolError

NUMBER_MAX = ENDLESS
"""As far as a log counts."""


def check_peer_message(message: PeerMessage, stages: int) -> None:
    """Raise a `ProtocolError` for ranks that no stage has, and for numbers that no event can have."""
    if isinstance(message, Frame):
        operation = message.message.operation
        _check_ranks(operation, stages)
        _check_numbers(operation)
    elif isinstance(message, (Recall, Told, Hosts, AckExpected, Floors, Acked)):
        _check_ranges(message)
    elif isinstance(message, (Seal, Sealed, Handed, Undecided, Decided)):
        _check_ranges_of_voids(message, stages)
    elif isinstance(message, Relay) and not 0 <= message.home < stages:
        raise ProtocolError(f"a request was relayed from a stage of rank {message.home}; there are {stages} stages")


def _check_ranks(operation: Operation, stages: int) -> None:
    top, bottom = operation.top, operation.bottom
    if not (0 <= top <= bottom < stages and 0 <= operation.home < stages and 0 <= operation.asked < stages):
        raise ProtocolError(
            f"operation {operation.identity} goes from stage {bottom} to {top}, for {operation.asked} and {operation.home}; "
            f"expected ranks from 0 to {stages - 1}, and to go up"
        )


def _check_ranges(message: Recall | Told | Hosts | AckExpected | Floors | Acked) -> None:
    ranges: list[tuple[int, int]]
    if isinstance(message, Recall):
        ranges = [(want.first, want.last) for want in message.wants]
    elif isinstance(message, Told):
        ranges = [(item.first, item.last) for item in message.items]
        ranges.append((message.first, max(message.first, message.read_to, message.floor)))
    else:
        counts: dict[str, int] | dict[str, int | None]
        if isinstance(message, (Hosts, Floors)):
            counts = message.acked
        else:
            counts = message.clock if isinstance(message, Acked) else message.counts
        ranges = [(1, (count or 0) + 1) for count in counts.values()]
    _check_that_they_can_be(ranges, message)


def _check_ranges_of_voids(message: Seal | Sealed | Handed | Undecided | Decided, stages: int) -> None:
    ranks: list[int] = []
    if isinstance(message, Handed):
        ranges, ranks = [(span.first, span.last) for span in message.asks], message.ranks
    elif isinstance(message, Undecided):
        ranges = [(span.first, span.last) for span in message.spans]
    elif isinstance(message, Decided):
        ranges = [*message.published, *((item.first, item.last) for item in message.voids)]
    else:
        ranges, ranks = message.numbers if isinstance(message, Seal) else message.seen, [message.rank]
    _check_that_they_can_be(ranges, message)
    if any(not 0 <= rank < stages for rank in ranks):
        raise ProtocolError(f"a stage speaks of a stage that is not there: {message!r:.500}")


def _check_that_they_can_be(ranges: list[tuple[int, int]], message: PeerMessage) -> None:
    for first, last in ranges:
        if not 1 <= first <= last <= NUMBER_MAX:
            raise ProtocolError(f"a stage speaks of numbers that cannot be, {first} to {last}: {message!r:.500}")


def _check_numbers(operation: Operation) -> None:
    for part in operation.parts:
        fits = (
            part.count > 0 <= part.first <= NUMBER_MAX - part.count
            if isinstance(part, Publication)
            else part.version > 0
        )
        for count in part.entries.values():
            fits = fits and 0 <= count <= NUMBER_MAX
        if not fits:
            raise ProtocolError(f"operation {operation.identity} has numbers that cannot be: {part!r:.500}")
