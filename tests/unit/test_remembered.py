"""What is remembered for speed has a bound, and nothing else changes when it is forgotten."""

from __future__ import annotations

import pytest

from ordered_pubsub.core import levels, topology
from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.topology import StageSpec, Topology

TOPICS = [f"{'eu' if number % 3 else 'us'}/{number}" for number in range(20)]


def test_owners_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "OWNERS_REMEMBERED_MAX", 4)
    line = Topology((StageSpec("high", ("eu/**",)), StageSpec("low", ("**",))))
    for _ in range(2):
        assert [line.owner(topic) for topic in TOPICS] == [int(topic.startswith("us")) for topic in TOPICS]
        assert len(line._owners) <= 4


def test_levels_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "REMEMBERED_MAX", 4)
    rules = Levels((("us/**", ORDERED), ("**", EXACTLY_ONCE)))
    for _ in range(2):
        assert [rules.is_kept(topic) for topic in TOPICS] == [topic.startswith("eu") for topic in TOPICS]
        assert len(rules._known) <= 4
