"""Whether one topic pattern covers another: every topic that the second matches, the first matches as well.

Both patterns are small automata over levels. They are walked together: in which places may the first be after the levels that
take the second to a place? The second's `*` may be any level, so it is tried with one that appears in neither; a level that
is written in one of them could only make the first match more. If the second can end where the first cannot, it is not covered;
but it cannot end before the first level, since every topic has one.
"""

from __future__ import annotations

from typing import NamedTuple

STEPS_MAX = 10_000
"""Patterns can be made that need very many steps. They are taken for not covered, which only costs a piece of advice."""

_ANY_OTHER = ""
"""A level that appears in no pattern."""


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` matches all that `narrow` matches; both are valid patterns."""
    first, second = wide.split("/"), narrow.split("/")
    todo = [_State(0, _rest(first, {0}), has_begun=False)]
    seen = set(todo)
    while todo:
        if len(seen) > STEPS_MAX:
            return False
        state = todo.pop()
        if state.place < len(second):
            new = [reached for reached in _steps(first, second, state) if reached not in seen]
            seen.update(new)
            todo += new
        elif state.has_begun and len(first) not in state.places:
            return False
    return True


class _State(NamedTuple):
    """How far the second pattern is, where the first may be then, and whether there was a level yet."""

    place: int
    places: frozenset[int]
    has_begun: bool


def _steps(first: list[str], second: list[str], state: _State) -> list[_State]:
    """Where both can be after the second has made a step."""
    level, place = second[state.place], state.place
    if level == "**":
        any_other = _after(first, state.places, _ANY_OTHER)
        return [state._replace(place=place + 1), _State(place, any_other, has_begun=True)]
    return [_State(place + 1, _after(first, state.places, _ANY_OTHER if level == "*" else level), has_begun=True)]


def _after(pattern: list[str], places: frozenset[int], level: str) -> frozenset[int]:
    """The places of a pattern after one more level."""
    reached: set[int] = set()
    for place in places:
        if place < len(pattern):
            if pattern[place] == "**":
                reached.add(place)
            elif pattern[place] in ("*", level):
                reached.add(place + 1)
    return _rest(pattern, reached)


def _rest(pattern: list[str], places: set[int]) -> frozenset[int]:
    """These places, and those behind every `**` that stands for nothing."""
    reached = set(places)
    for place in sorted(places):
        while place < len(pattern) and pattern[place] == "**":
            place += 1
            reached.add(place)
    return frozenset(reached)
