"""The published algorithm gets stuck: on the known schedules, and on some that a search finds.

These tests watch the instrument. Our own core is given the same schedules and draws elsewhere.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from published.algorithm import (
    Event,
    ImpossibleStep,
    Outcome,
    Subscriptions,
    in_words,
    notify_all,
    run,
    sequencing_group,
    stuck_subscribers,
)
from published.search import Found, draw, interleave, one_at_a_time, search

LOG = logging.getLogger(__name__)
"""Shown with `pytest tests/published --log-cli-level=INFO`: the cycles of waiting, the rates."""

DATA = Path(__file__).parent.parent / "data" / "published_algorithm.json"
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in json.loads(DATA.read_text())}
SEEDS = range(3000)
THRESHOLDS = (2, 1)

Findings = dict[int, list[Found]]
"""By threshold."""

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_threshold = pytest.mark.parametrize("threshold", THRESHOLDS)


def run_case(case: dict[str, Any]) -> Outcome:
    return run(case["subscriptions"], case["group_threshold"], case["schedule"])


def test_groups_are_those_of_figure_1() -> None:
    square = CASES["square, threshold 2 (paper default)"]["subscriptions"]
    groups = {topic: sequencing_group(topic, square, 2) for topic in range(1, 6)}
    assert groups == {1: (1, 2, 4), 2: (1, 2, 3), 3: (2, 3, 4), 4: (1, 3, 4), 5: (5,)}
    assert sequencing_group(1, square, 1) == (1, 2, 3, 4)


@each_case
def test_a_known_schedule_gives_its_timestamps_and_leaves_its_subscribers_stuck(
    case: dict[str, Any],
) -> None:
    outcome = run_case(case)
    written = [event["timestamp"] for event in case["timestamps"]]
    expected = [{int(topic): number for topic, number in entries.items()} for entries in written]
    assert [event.timestamp for event in outcome.published] == expected
    named = [(event["topic"], event["number"]) for event in case["timestamps"]]
    assert [(event.topic, event.number) for event in outcome.published] == named
    assert sorted(outcome.stuck) == case["stuck_subscribers"]


@each_case
def test_no_order_of_arrival_from_the_ens_helps(case: dict[str, Any]) -> None:
    outcome = run_case(case)
    for events in permutations(outcome.published):
        assert stuck_subscribers(case["subscriptions"], events) == outcome.stuck


def test_the_square_waits_in_a_ring_of_four() -> None:
    outcome = run_case(CASES["square, threshold 2 (paper default)"])
    words = in_words(outcome.stuck["s"])
    LOG.info(words)
    assert words.split(", ") == [
        "e1.1 waits for e4.1",
        "e4.1 waits for e3.1",
        "e3.1 waits for e2.1",
        "e2.1 waits for e1.1",
    ]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("overtaking")])
def test_the_overtaken_event_and_a_later_one_wait_for_each_other(name: str) -> None:
    words = in_words(run_case(CASES[name]).stuck["a"])
    LOG.info(words)
    assert words == "e1.1 waits for e3.1, e3.1 waits for e1.1"


@pytest.mark.parametrize(
    "schedule",
    [
        ["TM2 creates e2.1", "TM1 passes e2.1 -> {1: 1, 2: 1}"],
        ["TM2 creates e2.1", "TM2 creates e2.2", "TM1 passes e2.2 -> {1: 0, 2: 2}"],
        ["TM2 creates e2.1"],
        ["TM2 creates e2.2", "TM1 passes e2.2 -> {1: 0, 2: 2}"],
        ["TM2 forgets e2.1"],
    ],
    ids=["another timestamp", "not FIFO", "ends too early", "a number is skipped", "no step"],
)
def test_a_schedule_that_cannot_happen_is_refused(schedule: list[str]) -> None:
    with pytest.raises(ImpossibleStep):
        run({"a": (1, 2), "b": (1, 2)}, 2, schedule)


@pytest.fixture(scope="module")
def found() -> Findings:
    return {threshold: list(search(SEEDS, threshold)) for threshold in THRESHOLDS}


@each_threshold
def test_the_search_finds_stuck_schedules_by_itself(
    found: Findings, threshold: int, record_property: Callable[[str, object], None]
) -> None:
    count = len(found[threshold])
    rate = f"threshold {threshold}: {count} of {len(SEEDS)} random schedules get stuck"
    LOG.info(rate)
    record_property("stuck_rate", rate)
    assert count > 0


@each_threshold
def test_a_found_schedule_can_be_followed_again(found: Findings, threshold: int) -> None:
    for finding in found[threshold]:
        outcome = run(draw(finding.seed).subscriptions, threshold, finding.schedule)
        assert outcome.stuck == finding.stuck


@each_threshold
def test_in_a_found_cycle_each_event_needs_the_next(found: Findings, threshold: int) -> None:
    for finding in found[threshold]:
        subscriptions = draw(finding.seed).subscriptions
        published = run(subscriptions, threshold, finding.schedule).published
        by_id = {event.event_id: event for event in published}
        for name, cycle in finding.stuck.items():
            events = [by_id[event_id] for event_id in (*cycle, cycle[0])]
            assert len(cycle) > 1
            assert {event.topic for event in events} <= set(subscriptions[name])
            assert all(a.timestamp[b.topic] >= b.number for a, b in pairwise(events))


@each_threshold
def test_a_found_schedule_stays_stuck_in_other_ens_orders(found: Findings, threshold: int) -> None:
    for finding in found[threshold]:
        subscriptions = draw(finding.seed).subscriptions
        events = list(run(subscriptions, threshold, finding.schedule).published)
        rng = random.Random(finding.seed)
        for _ in range(10):
            rng.shuffle(events)
            assert stuck_subscribers(subscriptions, events) == finding.stuck


def assert_everybody_has_everything(subscriptions: Subscriptions, events: list[Event]) -> None:
    subscribers = notify_all(subscriptions, reversed(events))
    for name, topics in subscriptions.items():
        wanted = {event.event_id for event in events if event.topic in topics}
        assert set(subscribers[name].notified) == wanted
        assert len(subscribers[name].notified) == len(wanted)


@each_threshold
def test_one_operation_at_a_time_never_gets_stuck(threshold: int) -> None:
    for seed in range(1000):
        drawn = draw(seed)
        published = one_at_a_time(drawn, threshold).published
        assert len(published) == len(drawn.publications)
        assert_everybody_has_everything(drawn.subscriptions, published)


def test_where_every_group_is_full_nothing_jumps_and_nothing_gets_stuck() -> None:
    for seed in range(1000):
        drawn = draw(seed)
        drawn = evolve(drawn, subscriptions=dict.fromkeys(("a", "b"), drawn.topics))
        assert_everybody_has_everything(drawn.subscriptions, interleave(drawn, 2).published)


def test_a_draw_depends_on_its_seed_alone() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert draw(1) != draw(2)
