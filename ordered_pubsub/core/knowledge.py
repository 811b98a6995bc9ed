"""Knowledge: what a stage or a subscriber knows of a topic's events, and what it may forget.

After Bhola and others, "Exactly-once Delivery in a Content-based Publish-Subscribe System" (DSN 2002), section 2. Every number
of a topic is a tick of its stream. Of each tick a stream knows one of these:

                E        E   it cannot be: data was published, and there was nothing
               / \\       D*  data was published, and whoever needed it has it
              S   D*     S   silence: nothing was published here, or a filter has taken it out
               \\ / \\     F   final: nobody downstream needs data of it, whether it was S or D* once
                F   D    D   data was published, and this is it
                 \\ /     Q   nothing is known
                  Q

Knowledge rises by joining, in any order and as often as it comes, so messages may be lost, repeated or overtaken. It falls by
forgetting only; every copy but the owner's may forget whatever it likes, and ask again.

`Knowledge` holds Q, F and D. S and D* are lowered to F at once, as the paper does: the two differ in why nobody needs data,
and nobody asks why. Stored, they would cut one long range of F into many, and make E possible, which would need an answer.
What is F stays F when data comes late (F joined with D is D*, lowered to F), and its data is not kept.

Nothing is held per number. A publication of several events is one span with one value; a span may be a part of what it was,
then its value is still the whole. F is held as ranges, and so is everything that is not Q, so that the doubt horizon is found
by bisection however many publications lie before it.

INVARIANT: what is known is final or has data, and nothing is both.

`filtered` and `merged` are the edges of the paper's knowledge graph: they make one stream's spans out of others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import merge
from typing import Generic, TypeVar, cast

import attrs

from ordered_pubsub.core.ranges import ENDLESS, SHOWN_MAX, Range, RangeMap, Ranges, shown, shown_list

_Value = TypeVar("_Value")

_NOT_NEEDED, _SILENT, _PUBLISHED = 1, 2, 4


class Tick(Enum):
    """What is known of a number. The value is the set of facts that it consists of, as bits, so joining is their union."""

    Q = 0
    F = _NOT_NEEDED
    S = _NOT_NEEDED | _SILENT
    D = _PUBLISHED
    D_STAR = _NOT_NEEDED | _PUBLISHED
    E = _NOT_NEEDED | _SILENT | _PUBLISHED

    def join(self, other: Tick) -> Tick:
        """The least that says what both say."""
        return Tick(self.value | other.value)

    @property
    def lowered(self) -> Tick:
        """What is kept of it: F of S and D*, whose difference nobody asks for."""
        return Tick.F if self in (Tick.S, Tick.D_STAR) else self


@attrs.frozen
class Span(Generic[_Value]):
    """Numbers of which the same is known: D with the value of one publication, or F without one."""

    first: int
    last: int
    tick: Tick
    value: _Value | None = None

    def __str__(self) -> str:
        return f"{self.tick.name} {shown(self.first, self.last)}"


@attrs.define(eq=False, repr=False)
class Knowledge(Generic[_Value]):
    """The knowledge stream of one topic."""

    _known: Ranges = attrs.field(factory=Ranges, init=False)
    _finals: Ranges = attrs.field(factory=Ranges, init=False)
    _data: RangeMap[_Value] = attrs.field(factory=RangeMap, init=False)

    def accumulate_data(self, first: int, last: int, value: _Value) -> None:
        """Data of these numbers came. Only what is Q becomes D: D has its data already, and F needs none."""
        for begin, end in self._known.missing(first, last):
            self._data.put(begin, end, value)
        self._known.add(first, last)

    def accumulate_final(self, first: int, last: int) -> None:
        """Nobody downstream needs data of these numbers, or no longer."""
        self._data.remove(first, last)
        self._finals.add(first, last)
        self._known.add(first, last)

    def forget(self, first: int, last: int) -> None:
        """Know nothing of these numbers any more."""
        self._data.remove(first, last)
        self._finals.remove(first, last)
        self._known.remove(first, last)

    def forget_data(self, first: int, last: int) -> None:
        """Know nothing any more of those of these numbers that have data: it is what takes room."""
        for begin, end, _ in self._data.parts(first, last):
            self._known.remove(begin, end)
        self._data.remove(first, last)

    def horizon(self, after: int) -> int:
        """The doubt horizon: the last number up to which, beginning behind `after`, something is known of all.

        What is F counts as known: it is acknowledged, and the paper leaves acknowledged ticks out of doubt.
        """
        return self._known.reach(after + 1)

    def gaps(self, first: int, last: int) -> list[Range]:
        """Those of these numbers that are Q, as ranges in order."""
        return self._known.missing(first, last)

    def data(self, first: int, last: int) -> list[tuple[int, int, _Value]]:
        """Those of these numbers that are D, as (first, last, value) in order, cut to first and last."""
        return self._data.parts(first, last)

    def finals(self, first: int, last: int) -> list[Range]:
        """Those of these numbers that are F, as ranges in order."""
        return self._finals.within(first, last)

    def tick(self, number: int) -> Tick:
        """What is known of one number: Q, F or D."""
        if number not in self._known:
            return Tick.Q
        return Tick.F if number in self._finals else Tick.D

    def spans(self, first: int = 1, last: int = ENDLESS) -> Iterator[Span[_Value]]:
        """All that is known of these numbers, in order; what is Q is left out."""
        finals: Iterator[Span[_Value]] = (Span(begin, end, Tick.F) for begin, end in self.finals(first, last))
        data = (Span(begin, end, Tick.D, value) for begin, end, value in self.data(first, last))
        return merge(finals, data, key=_first_of)

    def __len__(self) -> int:
        """How many spans it has: what its memory grows with."""
        return len(self._finals) + len(self._data)

    def __repr__(self) -> str:
        few = [str(span) for span, _ in zip(self.spans(), range(SHOWN_MAX), strict=False)]
        return f"Knowledge({shown_list(few, len(self))})"


def _first_of(span: Span[_Value]) -> int:
    return span.first


_Piece = tuple[int, int, Span[_Value]]
"""The first and the last of some numbers, and a span that says what is known of them."""


def filtered(spans: Iterable[Span[_Value]], predicate: Callable[[_Value], bool]) -> Iterator[Span[_Value]]:
    """The edge that is a filter: D whose value matches passes, other D becomes F, and F passes.

    A publication of several events has one value, and so one verdict: `predicate` says whether any of them is wanted.
    """
    return _joined((span.first, span.last, _verdict(span, predicate)) for span in spans)


def _verdict(span: Span[_Value], predicate: Callable[[_Value], bool]) -> Span[_Value]:
    if span.tick is Tick.D and not predicate(cast(_Value, span.value)):  # D has a value, which may be None
        return Span(span.first, span.last, Tick.F)
    return span


def merged(*streams: Iterable[Span[_Value]]) -> Iterator[Span[_Value]]:
    """The edge that is a merge: D of any stream passes, the first one's if several have it; F passes if all have it."""
    return _joined(_pieces([iter(stream) for stream in streams]))


def _pieces(streams: list[Iterator[Span[_Value]]]) -> Iterator[_Piece[_Value]]:
    """Walk through all streams at once; what passes comes in pieces that end wherever a span of any stream does."""
    heads = [next(stream, None) for stream in streams]
    number = 1
    while live := [head for head in heads if head is not None]:
        first = max(number, min(head.first for head in live))
        here = [head for head in live if head.first <= first]
        last = min([head.last for head in here] + [head.first - 1 for head in live if head.first > first])
        data = [head for head in here if head.tick is Tick.D]
        if data or len(here) == len(streams):
            yield first, last, (data or here)[0]
        number = last + 1
        heads = [_head(head, stream, number) for head, stream in zip(heads, streams, strict=True)]


def _head(head: Span[_Value] | None, stream: Iterator[Span[_Value]], number: int) -> Span[_Value] | None:
    """What a stream says of this number, or next after it."""
    return next(stream, None) if head is not None and head.last < number else head


def _joined(pieces: Iterable[_Piece[_Value]]) -> Iterator[Span[_Value]]:
    """One span of adjacent pieces that are all F, or all of one span."""
    run: _Piece[_Value] | None = None
    for first, last, source in pieces:
        if run is not None and run[1] + 1 == first and _is_one(run[2], source):
            run = (run[0], last, run[2])
            continue
        if run is not None:
            yield attrs.evolve(run[2], first=run[0], last=run[1])
        run = (first, last, source)
    if run is not None:
        yield attrs.evolve(run[2], first=run[0], last=run[1])


def _is_one(one: Span[_Value], other: Span[_Value]) -> bool:
    return one is other or one.tick is other.tick is Tick.F
