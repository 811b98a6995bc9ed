"""Where a range of the order ends, and how it is divided.

A *cut* is a clock with nothing left out: whatever comes before one of its events is in it as well. What an operation has met on
its way through the line is one. Any other clock is lowered until it is one (`lower`): each topic ends before the first event that
needs something beyond the clock, again and again, until nothing changes. Where all pairs are decided, once is enough. A batch is
divided only where somebody has said so by a clock of their own.

What has to be asked of the topics' owners is yielded (`BoundsAsk`), and the answer is sent in: for each topic the last number up
to the clock's before which nothing comes that is beyond the clock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeVar

Clock = dict[str, int]
_Found = TypeVar("_Found")
ROUNDS_MAX = 100
STEPS_MAX = 8


class BoundsAsk(NamedTuple):
    """How far may these topics go?"""

    low: Mapping[str, int]
    """numbers that are not too far"""
    clock: Mapping[str, int]
    is_whole: bool
    """whether no batch may be divided"""


Search = Generator[BoundsAsk, Clock, _Found]


def events_between(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    """How many numbers there are from one clock to another."""
    return sum(end[topic] - start.get(topic, 0) for topic in end)


def lower(start: Mapping[str, int], clock: Mapping[str, int], is_whole: bool = True) -> Search[Clock | None]:
    """The largest cut from `start` on that is not beyond a clock, or None if that takes too long to find."""
    found = dict(clock)
    for _ in range(ROUNDS_MAX):
        lowered = yield BoundsAsk(start, found, is_whole)
        if lowered == found:
            return found
        found = lowered
    return None


def first_part(start: Mapping[str, int], end: Clock, events_max: int) -> Search[Clock]:
    """A cut between a clock and a later cut, with about so many events at the most; with one batch at least, if there is any."""
    at: Clock = {topic: start.get(topic, 0) for topic in end}
    room = events_max
    for _ in range(STEPS_MAX):
        if room >= events_between(at, end):
            return end
        further = yield from _step(at, end, room)
        gained = events_between(at, further) if further is not None else 0
        if further is None or not gained:
            break
        at, room = further, room - gained
        if room <= events_max // 10:
            break
    while events_between(start, at) <= 0 and room < events_between(at, end):
        room *= 2  # a batch is larger
        at = (yield from _step(at, end, room)) or at
    return at if events_between(start, at) > 0 else end


def _step(at: Clock, end: Clock, events: int) -> Search[Clock | None]:
    """The same share of what is left of each topic, as far as nothing is left out."""
    total = events_between(at, end)
    share = {topic: at[topic] + -(-(last - at[topic]) * min(events, total) // total) for topic, last in end.items()}
    return (yield from lower(at, share))


def divide(start: Mapping[str, int], end: Clock, parts: int) -> Search[list[Clock]]:
    """Cuts between a clock and a later cut, for so many parts of about the same size, or fewer; the last is the end."""
    cuts: list[Clock] = []
    at: Mapping[str, int] = start
    for left in range(parts, 1, -1):
        events = events_between(at, end)
        if events <= left:
            break
        at = yield from first_part(at, end, -(-events // left))
        if at == end:
            break
        cuts.append(dict(at))
    return [*cuts, end]
