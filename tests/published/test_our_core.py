"""The schedules on which the published algorithm stops do not stop ours."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from published.our_core import Line, follow, interleave, notify_all
from published.search import draw, search

CASES = json.loads((Path(__file__).parent.parent / "data" / "published_algorithm.json").read_text())


def assert_live_and_ordered(line: Line, publications: int) -> None:
    assert len(line.published) == publications
    notified, stuck = notify_all(line, Random(1))
    assert stuck == []
    for name, delivery in line.deliveries.items():
        entitled = {(a.topic, a.number) for a in line.published if a.topic in delivery.topics}
        assert set(notified[name]) == entitled
        assert len(notified[name]) == len(entitled)
    for one, two in combinations(notified, 2):
        topics = set(line.deliveries[one].topics) & set(line.deliveries[two].topics)
        both = [[event for event in notified[name] if event[0] in topics] for name in (one, two)]
        assert both[0] == both[1]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_schedule_that_stops_the_published_algorithm_is_live_and_ordered(case: dict[str, Any]) -> None:
    subscriptions = {name: tuple(topics) for name, topics in case["subscriptions"].items()}
    line = follow((1, 2, 3, 4), subscriptions, case["group_threshold"], case["schedule"])
    created = sum(" creates " in step for step in case["schedule"])
    assert_live_and_ordered(line, created)


@pytest.mark.parametrize("threshold", [2, 1])
def test_the_schedules_that_the_search_finds_are_live_and_ordered(threshold: int) -> None:
    found = list(search(range(3000), threshold))
    assert found
    for one in found:
        drawn = draw(one.seed)
        assert_live_and_ordered(interleave(drawn, threshold), len(drawn.publications))


@pytest.mark.parametrize("threshold", [2, 1])
def test_any_draw_is_live_and_ordered(threshold: int) -> None:
    for seed in range(500):
        drawn = draw(seed)
        assert_live_and_ordered(interleave(drawn, threshold), len(drawn.publications))
