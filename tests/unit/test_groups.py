"""Groups and timestamps: kept incrementally, they equal what a naive model says."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from ordered_pubsub.core.messages import Change
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import DUE_MAX, IN_GROUP, Groups
from ordered_pubsub.core.topology import StageSpec, Topology

TOPICS = [f"t{n}" for n in range(6)]
RANKS = {topic: n % 3 for n, topic in enumerate(TOPICS)}
TOPOLOGY = Topology(tuple(StageSpec(f"s{rank}", tuple(t for t in TOPICS if RANKS[t] == rank)) for rank in range(3)))

CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sets(st.sampled_from(TOPICS)), st.sampled_from([0, 1, 2]), st.booleans()),
    max_size=25,
)


def change(version: int, name: str, new: set[str], weight: int = 2, best_effort: bool = False) -> Change:
    return Change(name, version, (), tuple(sorted(new)), weight, best_effort)


def _pairs(held: dict[str, tuple[set[str], int, bool]], rank: int) -> set[tuple[str, str]]:
    """All pairs in each other's group of which the stage owns one."""
    weights: dict[tuple[str, str], int] = {}
    for topics, weight, _ in held.values():
        for one, two in combinations(sorted(topics), 2):
            weights[one, two] = weights.get((one, two), 0) + weight
    return {pair for pair, weight in weights.items() if weight >= IN_GROUP and rank in (RANKS[pair[0]], RANKS[pair[1]])}


@given(CHANGES, st.sampled_from([0, 1, 2]))
def test_groups_kept_incrementally_are_those_of_a_rescan(
    changes: list[tuple[str, set[str], int, bool]], rank: int
) -> None:
    groups = Groups(rank)
    held: dict[str, tuple[set[str], int, bool]] = {}
    for version, (name, new, weight, best_effort) in enumerate(changes):
        held[name] = (new, weight, best_effort)
        groups.change(TOPOLOGY, change(version, name, new, weight, best_effort))
    pairs = _pairs(held, rank)
    filled = {tuple(sorted((one, two))) for one, others in groups.filled.items() for two in others}
    assert filled == {pair for pair in pairs if min(RANKS[topic] for topic in pair) >= rank}
    reach = {topic: set(ranks) for topic, ranks in groups.reach.items()}
    assert reach == _reach(pairs, rank)
    full = {t for topics, _, best_effort in held.values() if best_effort for t in topics if RANKS[t] == rank}
    assert set(groups.full_wanted) == full


def _reach(pairs: set[tuple[str, str]], rank: int) -> dict[str, set[int]]:
    reach: dict[str, set[int]] = {}
    for pair in pairs:
        for one, two in (pair, pair[::-1]):
            if RANKS[one] == rank and RANKS[two] < rank:
                reach.setdefault(one, set()).add(RANKS[two])
    return reach


@given(CHANGES)
def test_nothing_is_left_when_all_subscriptions_are_gone(changes: list[tuple[str, set[str], int, bool]]) -> None:
    groups = Groups(1)
    for version, (name, new, weight, best_effort) in enumerate(changes):
        groups.change(TOPOLOGY, change(version, name, new, weight, best_effort))
    for version, name in enumerate("abcd", start=100):
        groups.change(TOPOLOGY, change(version, name, set()))
    groups.rest(TOPICS)
    assert groups == Groups(1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 3)),
        st.tuples(st.just("change"), st.sampled_from("abc"), st.frozensets(st.sampled_from(TOPICS))),
    ),
    max_size=60,
)
ALONE = Topology((StageSpec("only"),))


@settings(max_examples=300)
@given(STEPS)
def test_deltas_add_up_to_the_counts_of_everything_in_the_group(steps: list[tuple[str, str, object]]) -> None:
    groups, clocks = Groups(0), Clocks()
    folded: dict[str, dict[str, int]] = {topic: {} for topic in TOPICS}
    version = 0
    for kind, name, value in steps:
        clocks.stamp += 1
        if kind == "change":
            version += 1
            assert isinstance(value, frozenset)
            groups.change(ALONE, change(version, name, set(value)))
            continue
        assert isinstance(value, int)
        clocks.take_numbers(name, value, groups)
        entries: dict[str, int] = {}
        clocks.fill(name, entries, groups, full=False)
        assert all(folded[name].get(topic) != count or topic in entries for topic, count in entries.items())
        folded[name].update(entries)
        for other in groups.filled.get(name, ()):
            assert folded[name].get(other, 0) == clocks.count(other)
        full: dict[str, int] = {}
        clocks.fill(name, full, groups, full=True)
        assert full == {t: clocks.count(t) for t in groups.filled.get(name, ()) if clocks.count(t)}


PLACED_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([t for t in TOPICS if RANKS[t] >= 1]), st.integers(1, 3)),
        st.tuples(
            st.just("change"),
            st.sampled_from("abc"),
            st.tuples(st.frozensets(st.sampled_from(TOPICS)), st.sampled_from([0, 1, 2])),
        ),
        st.tuples(st.just("settle"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@attrs.define
class Table:
    """The groups and counts of the stage in the middle, whose changes are done at once up to so many cells."""

    at_once: int
    groups: Groups = attrs.field(factory=lambda: Groups(1))
    clocks: Clocks = attrs.field(factory=Clocks)

    def change(self, part: Change, counts: dict[str, int]) -> None:
        self.clocks.stamp += 1
        for topic in part.topics:
            if RANKS[topic] == 2:
                self.clocks.see(topic, counts[topic])
        self.groups.change(TOPOLOGY, part, self.at_once)
        self.clocks.prune(part.topics, self.groups)

    def publish(self, topic: str, count: int, last: int) -> tuple[int, dict[str, int]]:
        """How far an event goes up, and its entries."""
        clocks, groups = self.clocks, self.groups
        clocks.stamp += 1
        clocks.prune(groups.settle(topic), groups)
        highest = groups.highest(topic)
        if RANKS[topic] == 1:
            clocks.take_numbers(topic, count, groups)
        else:
            clocks.passes(topic, last, groups)
        entries: dict[str, int] = {}
        clocks.fill(topic, entries, groups, full=False)
        return highest, entries

    def settle(self) -> None:
        if self.groups.due:
            self.clocks.prune(self.groups.settle_next(), self.groups)


@settings(max_examples=500)
@given(PLACED_STEPS)
def test_nobody_can_tell_whether_a_change_is_done_at_once_or_row_by_row(steps: list[tuple[str, str, Any]]) -> None:
    at_once, later = Table(1_000), Table(0)
    held: dict[str, tuple[str, ...]] = {}
    counts = dict.fromkeys(TOPICS, 0)
    for version, (kind, name, value) in enumerate(steps, 1):
        if kind == "settle":
            later.settle()
        elif kind == "publish":
            counts[name] += value
            assert later.publish(name, value, counts[name]) == at_once.publish(name, value, counts[name])
        else:
            part = Change(name, version, held.get(name, ()), tuple(sorted(value[0])), value[1], False)
            held[name] = part.new
            for table in (at_once, later):
                table.change(part, counts)
    while later.groups.due:
        later.settle()
    assert later.groups == at_once.groups
    for topic in 2 * [topic for topic in TOPICS if RANKS[topic] >= 1]:
        counts[topic] += 1
        assert later.publish(topic, 1, counts[topic]) == at_once.publish(topic, 1, counts[topic])


def test_a_large_change_does_a_row_at_a_time_and_a_topic_rests_when_nothing_is_due_about_it() -> None:
    names = [f"n{number:03}" for number in range(100)]
    groups = Groups(0)
    groups.change(ALONE, change(1, "a", set(names)))
    assert (groups.weights, groups.due_number) == ({}, 1)
    assert groups.settle("n007") == []
    assert list(groups.filled) == ["n007"]
    assert len(groups.filled["n007"]) == 99
    groups.settle_next()
    assert len(groups.filled) == 2
    groups.change(ALONE, change(2, "a", set()))
    groups.rest(names)
    assert groups == Groups(0)


def test_what_is_due_in_a_row_is_bounded() -> None:
    groups = Groups(0)
    for version in range(1, 2 * DUE_MAX + 2):
        groups.change(ALONE, change(version, "a", {"t0", "t1"} if version % 2 else set()), at_once=0)
        assert all(len(due) <= DUE_MAX for due in groups.due_in.values())
    assert len(groups.due) <= DUE_MAX
    assert groups.settle("t0") == []
    assert groups.settle("t1") == ["t0", "t1"]
    assert groups.filled == {"t0": {"t1": True}, "t1": {"t0": True}}


def test_events_follow_a_change_up_to_its_last_stage_and_no_longer() -> None:
    groups = Groups(2)
    assert groups.highest("t2") == 2
    groups.follow("a@1", 0, ["t2"])
    groups.follow("b@1", 1, ["t2"])
    assert groups.highest("t2") == 0
    groups.passed("a@1")
    assert groups.highest("t2") == 1
    groups.passed("b@1")
    assert groups == Groups(2)


def test_an_entry_that_did_not_change_is_left_out() -> None:
    groups, clocks = Groups(0), Clocks()
    groups.change(ALONE, change(1, "a", {"t0", "t1", "t2"}))

    def publish(topic: str) -> dict[str, int]:
        clocks.stamp += 1
        clocks.take_numbers(topic, 1, groups)
        entries: dict[str, int] = {}
        clocks.fill(topic, entries, groups, full=False)
        return entries

    assert [publish(t) for t in ("t0", "t1", "t0", "t0", "t2", "t1")] == [
        {},
        {"t0": 1},
        {"t1": 1},
        {},
        {"t0": 3, "t1": 1},
        {"t2": 1, "t0": 3},
    ]


def test_a_topic_that_left_the_group_is_in_the_next_event_once_more() -> None:
    groups, clocks = Groups(0), Clocks()
    groups.change(ALONE, change(1, "a", {"t0", "t1"}))
    clocks.take_numbers("t1", 4, groups)
    groups.change(ALONE, change(2, "a", {"t0"}))
    written = []
    for _ in range(2):
        clocks.stamp += 1
        entries: dict[str, int] = {}
        clocks.take_numbers("t0", 1, groups)
        clocks.fill("t0", entries, groups, full=False)
        written.append(entries)
    assert written == [{"t1": 4}, {}]
