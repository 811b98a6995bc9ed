"""Topics that rest: when they may, what is left of them, and that they go on where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import (
    EVERYBODY_ASKS,
    Answer,
    ChangeAsk,
    Chunk,
    LeaseRenewal,
    PublishAsk,
    Request,
    TopologyOffered,
)
from ordered_pubsub.core.stage import stage as core
from ordered_pubsub.core.stage._resting import LOOKED_AT_ONCE, REST_AFTER_S
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.journal import encode_input
from ordered_pubsub.core.stage.storage import Journal, MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged, TopologyMismatch
from ordered_pubsub.server.store.store import SqliteJournal, open_store

ALONE = Topology((StageSpec("only"),))
FORGET = Policies(default=Policy(keep_age_s=0.0, max_age_s=float("inf")))
TICK_S = 0.5
BEFORE = Topology((StageSpec("only", ("t",)), StageSpec("other")))
AFTER = Topology((StageSpec("only"), StageSpec("other", ("t",))))


class Stage:
    """A stage alone, and its only client."""

    def __init__(self, journal: Journal | None = None, level: str = ORDERED, topology: Topology = ALONE) -> None:
        self.journal = journal or MemoryJournal()
        self.level, self.topology = level, topology
        self.now, self.sequence = 0.0, 0
        self.driver = self.open()

    def open(self) -> Driver:
        """Start, also after a crash."""
        levels = Levels((("**", self.level),))
        return Driver.open(0, self.topology, self.journal, policies=FORGET, levels=levels)

    def ask(self, *parts: PublishAsk | ChangeAsk) -> Answer:
        self.sequence += 1
        request = Request("c", 1, self.sequence, self.sequence - 1, self.sequence - 1, parts)
        self.driver.handle_request(request, self.now)
        (answer,) = [reply for reply in self.driver.flush().replies if isinstance(reply, Answer)]
        self.driver.handle_subscriber("c", LeaseRenewal("c", self.sequence, self.sequence, [0], []), self.now)
        self.driver.flush()
        return answer

    def publish(self, topic: str = "t", count: int = 1) -> Any:
        """The publication as it is complete."""
        is_kept = self.level == EXACTLY_ONCE
        chunks = (Chunk(count, b"x"),) if is_kept else ()
        return self.ask(PublishAsk(topic, count, is_kept, chunks)).parts[0]

    def change(self, subscription: str = "s", **fields: Any) -> None:
        self.ask(ChangeAsk(subscription, **fields))

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            self.driver.tick(self.now, 1_000.0 + self.now)
            while self.driver.is_asked:
                self.driver.serve()
            self.driver.flush()

    @property
    def awake(self) -> list[str]:
        return list(self.driver.stage.state.clocks.numbers)


LONG_S = REST_AFTER_S + 30.0


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    store = open_store(str(tmp_path / "stage.db") if request.param == "sqlite" else None, "os", "only")
    yield store.journal
    store.close(None)


def test_of_a_topic_that_nobody_needs_only_its_last_number_is_left(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish(count=7)
    stage.go_on(LONG_S)
    assert (stage.awake, journal.read_shelf.number("t")) == ([], 7)


def test_it_goes_on_after_its_last_number(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish(count=7)
    stage.go_on(LONG_S)
    assert stage.publish().first == 8


def test_it_goes_on_after_its_last_number_when_the_stage_was_killed_just_after_that(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish(count=7)
    stage.go_on(LONG_S)
    stage.publish()
    stage.driver = stage.open()
    assert stage.publish().first == 9


def test_it_is_gained_at_its_last_number(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish(count=7)
    stage.go_on(LONG_S)
    change = stage.ask(ChangeAsk("s", add=("t",))).parts[0]
    assert change.entries == {"t": 7}


def test_a_topic_that_is_used_now_and_then_does_not_rest() -> None:
    stage = Stage()
    for _ in range(10):
        stage.publish()
        stage.go_on(REST_AFTER_S - 1)
    assert stage.awake == ["t"]


def test_a_topic_that_somebody_holds_does_not_rest() -> None:
    stage = Stage()
    stage.change(add=("t",))
    stage.go_on(LONG_S)
    assert stage.awake == ["t"]


def test_a_topic_that_a_client_may_still_miss_something_of_does_not_rest() -> None:
    stage = Stage()
    stage.change(add=("t", "u"))
    stage.publish()
    stage.change(remove=("t",))  # and the client does not say that it has all of it
    stage.go_on(LONG_S)
    assert stage.awake == ["t", "u"]


def test_a_topic_that_was_never_published_on_leaves_nothing(journal: Any) -> None:
    stage = Stage(journal)
    stage.change(add=("t",), best_effort=True)
    stage.change(remove=("t",), best_effort=True)
    stage.go_on(LONG_S)
    assert (stage.awake, list(journal.read_shelf.resting())) == ([], [])


def test_a_topic_whose_log_has_something_does_not_rest(journal: Any) -> None:
    stage = Stage(journal, EXACTLY_ONCE)
    stage.publish()
    stage.driver.retention.policies = Policies(default=Policy(keep_age_s=1e6))
    stage.go_on(LONG_S)
    assert stage.awake == ["t"]


def test_a_topic_whose_log_is_empty_leaves_no_rows(journal: Any) -> None:
    stage = Stage(journal, EXACTLY_ONCE)
    stage.publish(count=3)
    stage.go_on(LONG_S)
    shelf = journal.read_shelf
    assert (stage.awake, shelf.topics(), shelf.floor("t"), shelf.last("t")) == ([], [], 3, 3)


def test_the_log_of_a_topic_that_rested_begins_behind_its_last_number_with_a_full_timestamp(journal: Any) -> None:
    stage = Stage(journal, EXACTLY_ONCE)
    stage.publish(count=3)
    stage.go_on(LONG_S)
    part = stage.publish()
    reading = LogReader(journal.read_shelf).read("t", 1, 9, 1_000_000)
    assert (part.full, reading.floor, [item.first for item in reading.items]) == (True, 3, [4])


def test_the_stage_starts_on_the_log_of_a_topic_that_rested_and_was_used_again(journal: Any) -> None:
    stage = Stage(journal, EXACTLY_ONCE)
    stage.publish(count=3)
    stage.go_on(LONG_S)
    stage.publish()
    stage.driver = stage.open()
    assert LogReader(journal.read_shelf).full_at("t", 4) == {}


def test_a_batch_that_may_turn_out_to_be_void_keeps_its_topic_awake() -> None:
    stage = Stage()
    stage.sequence += 1
    stage.driver.handle_request(Request("d", 1, 1, 0, 0, (PublishAsk("t"),)), 0.0)
    stage.driver.flush()  # and nothing is heard of "d" any more
    stage.driver.voids.lease_s = 10 * LONG_S
    stage.go_on(LONG_S)
    assert stage.awake == ["t"]


def test_whoever_has_a_change_under_way_waits_for_its_outcome_before_the_first_event_of_a_topic_that_rested() -> None:
    stage = Stage()
    stage.publish()
    stage.go_on(LONG_S)
    assert stage.publish().marks == [EVERYBODY_ASKS]


def test_a_snapshot_does_not_grow_with_topics_that_rest() -> None:
    stage = Stage()
    stage.publish("first")
    stage.go_on(LONG_S)
    before = len(stage.driver.stage.snapshot())
    for number in range(200):
        stage.publish(f"topic-{number}")
    stage.go_on(LONG_S)
    assert len(stage.driver.stage.snapshot()) < before + 100  # larger counts, and stamps


def test_statistics_count_topics_that_rest_and_their_events() -> None:
    stage = Stage()
    stage.publish(count=5)
    stage.go_on(LONG_S)
    statistics = stage.driver.stage.statistics()
    assert (statistics["topics"], statistics["resting"], statistics["events"]) == (1, 1, 5)


def test_nothing_is_owed_to_topics_that_rest() -> None:
    stage = Stage()
    stage.change("long", add=("held",), best_effort=True)
    for number in range(20):
        stage.change(f"s{number}", add=("held", f"t{number}"), best_effort=True)
        stage.change(f"s{number}", ends=True)
    assert stage.driver.stage.state.groups.owed["held"]
    stage.go_on(LONG_S)
    groups = stage.driver.stage.state.groups
    assert (stage.awake, groups.owed, groups.owed_to) == (["held"], {}, {})


def test_only_some_topics_are_looked_at_at_a_time() -> None:
    stage = Stage()
    for number in range(3):
        stage.ask(*(PublishAsk(f"t{number}/{n}") for n in range(LOOKED_AT_ONCE)))
    stage.driver.flush()
    stage.go_on(TICK_S)
    assert len(stage.driver.resting._own) == LOOKED_AT_ONCE


def test_a_stage_does_not_start_where_a_topic_that_rests_would_belong_to_another_one(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish()
    stage.go_on(LONG_S)
    numbers, records = stage.driver.numbers, [encode_input(TopologyOffered(0, BEFORE.dump(), True))]
    with pytest.raises(TopologyMismatch, match="holds the numbers of topic 't'"):
        core.Stage.restore(0, AFTER, None, records, numbers=numbers)


def test_a_stage_does_not_start_where_a_last_number_is_lost(journal: Any) -> None:
    stage = Stage(journal)
    for topic in ("t", "u"):
        stage.publish(topic)
    stage.go_on(LONG_S)
    journal.shelf.wake(["u"])
    journal.sync()
    with pytest.raises(JournalDamaged, match="the last numbers of 1 topics that rest, 1 in all"):
        stage.open()


def test_what_is_left_in_the_table_of_a_topic_in_use_is_no_damage(journal: Any) -> None:
    stage = Stage(journal)
    stage.publish()
    stage.go_on(LONG_S)
    stage.publish()
    journal.shelf.rest({"t": 1})  # as after a crash just behind the commit that woke it
    journal.sync()
    stage.driver = stage.open()
    assert (list(journal.read_shelf.resting()), stage.publish().first) == ([], 3)


def test_a_last_number_that_was_changed_is_noticed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "stage.db"), "os", "only")
    assert isinstance(store.journal, SqliteJournal)
    stage = Stage(store.journal)
    stage.publish()
    stage.go_on(LONG_S)
    store.journal._connection.execute("UPDATE number SET last = 5")
    with pytest.raises(JournalDamaged, match="last number of topic 't', which rests, fails its checksum"):
        stage.publish()
    store.close(None)


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_topics_rest_across_starts(tmp_path: Path, durability: str) -> None:
    store = open_store(str(tmp_path / "stage.db"), durability, "only")
    stage = Stage(store.journal)
    stage.publish(count=7)
    stage.go_on(LONG_S)
    store.close(stage.driver.stage.snapshot())
    store = open_store(str(tmp_path / "stage.db"), durability, "only")
    stage.journal = store.journal
    stage.driver = stage.open()
    assert (stage.awake, stage.publish().first) == ([], 8)
    store.close(None)


def test_an_id_of_the_shelf_is_given_to_another_topic_when_its_topic_rests(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "stage.db"), "os", "only")
    assert isinstance(store.journal, SqliteJournal)
    stage = Stage(store.journal, EXACTLY_ONCE)
    used = set()
    for number in range(10):
        stage.publish(f"topic-{number}")
        used.update(store.journal._shelf.ids.values())
        stage.go_on(LONG_S)
    store.close(None)
    assert used == {1, 2}  # one is free only when the batch that has freed it is on disk
