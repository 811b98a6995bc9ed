"""Whether one topic pattern covers another: every topic that the second matches, the first matches as well.

Both patterns are small automata over levels. They are walked together: in which places may the first be after the levels that
take the second to a place? The second's `*` may be any level, so it is tried with one that appears in neither; a level that
is written in one of them could only make the first match more. If the second can end where the first cannot, it is not covered.
"""

from __future__ import annotations

STEPS_MAX = 10_000
"""Patterns can be made that need very many steps. They are taken for not covered, which only costs a piece of advice."""

_ANY_OTHER = ""
"""A level that appears in no pattern."""


def covers(wide: str, narrow: str) -> bool:
    """Whether `wide` matches all that `narrow` matches; both are valid patterns."""
    first, second = wide.split("/"), narrow.split("/")
    todo = [(0, _rest(first, {0}))]
    seen = set(todo)
    while todo:
        if len(seen) > STEPS_MAX:
            return False
        place, places = todo.pop()
        if place == len(second):
            if len(first) not in places:
                return False
            continue
        for reached in _steps(first, second, place, places):
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
    return True


def _steps(first: list[str], second: list[str], place: int, places: frozenset[int]) -> list[tuple[int, frozenset[int]]]:
    """Where both can be after the second has made a step."""
    level = second[place]
    if level == "**":
        return [(place + 1, places), (place, _after(first, places, _ANY_OTHER))]
    return [(place + 1, _after(first, places, _ANY_OTHER if level == "*" else level))]


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
