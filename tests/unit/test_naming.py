"""Patterns of clients' names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.config.kinds import is_named


def reference(pattern: str, name: str) -> bool:
    """What `*` means, by its definition."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(reference(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and name[0] == pattern[0] and reference(pattern[1:], name[1:])


@given(pattern=st.text("ab*", max_size=8), name=st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    assert is_named(pattern, name) is reference(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("desk-*", "desk-eu", True),
        ("desk-*", "desk", False),
        ("*-eu", "desk-eu", True),
        ("*.eu", "desk-eu", False),
        ("ab*ba", "aba", False),
        ("desk", "desk", True),
        ("desk", "desk-1", False),
    ],
)
def test_everything_else_stands_for_itself(pattern: str, name: str, fits: bool) -> None:
    assert is_named(pattern, name) is fits


def test_no_name_takes_long_whatever_the_pattern() -> None:
    """Tried by going back, this would take longer than there are computers."""
    assert not is_named("*-" * 40 + "eu", "-" * 128)
