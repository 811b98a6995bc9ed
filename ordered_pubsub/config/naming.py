"""Patterns of clients' names: `*` stands for any characters, also none; everything else stands for itself."""

from __future__ import annotations


def is_named(pattern: str, name: str) -> bool:
    """Whether a name is one of those that a pattern stands for."""
    first, *others = pattern.split("*")
    if not others:
        return name == first
    *middle, last = others
    if not name.startswith(first):
        return False
    at = len(first)
    for (
        text
    ) in middle:  # as early as it is there: later would leave less for those that follow, so nothing is tried twice
        found = name.find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return len(name) - len(last) >= at and name.endswith(last)
