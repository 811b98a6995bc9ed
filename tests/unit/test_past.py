"""The past: read from logs in pieces, it comes in the one order that the naive reader of whole logs has."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from random import Random

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.core.messages import (
    ChangeAsk,
    Chunk,
    Hello,
    NackRange,
    PeerMessage,
    Publication,
    PublishAsk,
    Request,
    Transaction,
)
from ordered_pubsub.core.recovery.missing import Missing
from ordered_pubsub.core.stage.stage import Stage, transaction_of
from ordered_pubsub.core.subscriber._past import Part, Past
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.testing.history import LoggedEvent, full_timestamp, replay

TOPOLOGY = Topology((StageSpec("high", ("a", "b")), StageSpec("middle", ("c",)), StageSpec("low", ("d", "e"))))
TOPICS = "abcde"
Event = tuple[str, int]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PeerMessage)


# -- logs that three stages have written -------------------------------------------------------------------------------


@attrs.define
class Line:
    """Three stages whose links are as slow as chance wants, and what the owners of the topics have logged."""

    random: Random
    stages: list[Stage] = attrs.field(factory=list)
    links: dict[tuple[int, int], deque[bytes]] = attrs.field(factory=dict)
    logs: dict[str, list[LoggedEvent]] = attrs.field(factory=dict)
    requests: int = 0

    def __attrs_post_init__(self) -> None:
        ranks = range(len(TOPOLOGY.stages))
        self.stages = [Stage.restore(rank, TOPOLOGY, None, []) for rank in ranks]
        for stage in self.stages:
            for peer in ranks:
                if peer != stage.rank:
                    stage.connected(peer)
                    stage.handle_peer(peer, Hello(TOPOLOGY.fingerprint, 0), 0.0)
            self.carry(stage)

    def ask(self, at: int, *parts: PublishAsk | ChangeAsk, is_transaction: bool = False) -> None:
        """A client of its own asks the stage that takes it, by whose clock it is any time."""
        self.requests += 1
        stage = self.stages[at]
        request = Request(f"c{self.requests}", 1, 1, 0, 0, parts, is_transaction=is_transaction)
        stage.handle_request(request, self.random.uniform(0, 5))
        self.carry(stage)

    def publish(self, topic: str, count: int) -> None:
        self.ask(TOPOLOGY.owner(topic), PublishAsk(topic, count))

    def publish_together(self, topics: str) -> None:
        """One event on each, as a transaction."""
        parts = [PublishAsk(topic, 1, True, (Chunk(1, b"x"),)) for topic in topics]
        self.ask(max(map(TOPOLOGY.owner, topics)), *parts, is_transaction=True)

    def subscribe(self, name: str, topics: str) -> None:
        self.ask(TOPOLOGY.registrar(name), ChangeAsk(name, tuple(topics)))

    def carry(self, stage: Stage) -> None:
        """Put what a stage says on its links, and what it knows to be complete into the logs."""
        effects = stage.take_effects()
        for peer, message in effects.sends:
            self.links.setdefault((stage.rank, peer), deque()).append(_encoder.encode(message))
        for operation in effects.completed:
            for part in operation.parts:
                if isinstance(part, Publication) and TOPOLOGY.owner(part.topic) == stage.rank:
                    self.log(part, stage.rank, transaction_of(operation))

    def log(self, part: Publication, owner: int, transaction: Transaction | None) -> None:
        logged = LoggedEvent(
            part.topic, part.first, part.last, dict(part.entries), owner, part.place, part.published_at, transaction
        )
        found = self.logs.setdefault(part.topic, [])
        found.append(logged)
        found.sort(key=lambda entry: entry.first)

    def step(self) -> bool:
        """Let one message arrive somewhere, if any is under way."""
        busy = [pair for pair, link in self.links.items() if link]
        if not busy:
            return False
        source, target = self.random.choice(busy)
        message = _decoder.decode(self.links[source, target].popleft())
        self.stages[target].handle_peer(source, message, 0.0)
        self.carry(self.stages[target])
        return True


def random_logs(random: Random) -> dict[str, list[LoggedEvent]]:
    """Batches on all topics, while subscriptions come that make groups of them."""
    line = Line(random)
    for number in range(random.randint(1, 25)):
        if random.random() < 0.2:
            line.subscribe(f"s{number}", "".join(random.sample(TOPICS, random.randint(1, len(TOPICS)))))
        elif random.random() < 0.3:
            line.publish_together("".join(random.choices(TOPICS, k=random.randint(2, 5))))
        else:
            line.publish(random.choice(TOPICS), random.choice((1, 1, 2, 5)))
        for _ in range(random.choice((0, 1, 4))):
            line.step()
    while line.step():
        pass
    return line.logs


# -- what is told of them ----------------------------------------------------------------------------------------------


def arrivals_of(topic: str, first: int, last: int) -> list[Arrival]:
    return [Arrival(topic, number, {}) for number in range(first, last + 1)]


def piece(logged: LoggedEvent, first: int, last: int, full: dict[str, int] | None = None) -> Part:
    """Some of a batch, as a log tells it: its timestamp with its first number only, unless it is the full one."""
    begins = first == logged.first
    entries = full if full is not None else logged.entries if begins else {}
    events = arrivals_of(logged.topic, first, last)
    place, at, is_full, transaction = logged.place, logged.published_at, full is not None, logged.transaction
    return Part(logged.topic, first, last, logged.first, place, at, entries, is_full, events, transaction)


def cut_up(random: Random, log: list[LoggedEvent], clock: int) -> list[Part]:
    """All of a log, in pieces of any size; the one that has the first number to be read also with its full timestamp."""
    pieces: list[Part] = []
    for logged in log:
        first = logged.first
        while first <= logged.last:
            last = random.randint(first, logged.last)
            pieces.append(piece(logged, first, last))
            if first <= clock + 1 <= last:
                pieces.append(piece(logged, first, last, full_timestamp(log, clock + 1)))
            first = last + 1
    return pieces


def counts_of(events: list[Event]) -> dict[str, int]:
    """How far each topic is after these."""
    counts = dict.fromkeys(TOPICS, 0)
    counts.update(events)
    return counts


def read_all(
    random: Random, logs: dict[str, list[LoggedEvent]], clock: dict[str, int], cut: dict[str, int]
) -> list[Event]:
    """What a reader from a clock up to a cut has when all was told: in any order, in pieces of any size, and repeatedly."""
    past = Past(dict(clock), cut, TOPOLOGY.owner, Missing())
    told = [part for _ in range(2) for topic, log in logs.items() for part in cut_up(random, log, clock[topic])]
    order: list[Event] = []
    for part in random.sample(told, len(told)):
        past.take(part)
        order += [(found.topic, number) for found, first, last in past.read() for number in range(first, last + 1)]
    assert past.is_over
    assert not past.missing.is_curious
    return order


def whole_order(logs: dict[str, list[LoggedEvent]]) -> list[Event]:
    return [(event.topic, event.number) for event in replay(logs, dict.fromkeys(TOPICS, 0))]


@given(st.integers(0, 1_000_000))
def test_what_is_read_from_the_beginning_is_what_the_naive_reader_has(seed: int) -> None:
    random = Random(seed)
    logs = random_logs(random)
    order = whole_order(logs)
    assert len(order) == sum(log[-1].last for log in logs.values())
    assert read_all(random, logs, dict.fromkeys(TOPICS, 0), counts_of(order)) == order


@given(st.integers(0, 1_000_000))
def test_wherever_the_reading_begins_it_goes_on_as_the_whole_does(seed: int) -> None:
    """At any place of the order, in the middle of a batch as well."""
    random = Random(seed)
    logs = random_logs(random)
    order = whole_order(logs)
    begun = random.randint(0, len(order))
    assert read_all(random, logs, counts_of(order[:begun]), counts_of(order)) == order[begun:]


@given(st.integers(0, 1_000_000))
def test_wherever_the_reading_ends_it_has_what_comes_before_in_the_whole(seed: int) -> None:
    random = Random(seed)
    logs = random_logs(random)
    order = whole_order(logs)
    begun = random.randint(0, len(order))
    ended = random.randint(begun, len(order))
    names = [event.logged.name for event in replay(logs, dict.fromkeys(TOPICS, 0))]
    while 0 < ended < len(order) and names[ended - 1] and names[ended] == names[ended - 1]:
        ended += 1  # no range ends within a transaction
    cut = counts_of(order[:ended])
    assert read_all(random, logs, counts_of(order[:begun]), cut) == order[begun:ended]


@given(st.integers(0, 1_000_000))
def test_a_transaction_is_read_in_one_piece_as_it_was_written(seed: int) -> None:
    logs = random_logs(Random(seed))
    order = [event.logged for event in replay(logs, dict.fromkeys(TOPICS, 0))]
    pieces = [(name, list(found)) for name, found in groupby(order, key=lambda logged: logged.name) if name]
    assert len({name for name, _ in pieces}) == len(pieces), "something comes between"
    for _, found in pieces:
        for owner in range(len(TOPOLOGY.stages)):
            places = [logged.place for logged in found if logged.owner == owner]
            assert places == sorted(places)


def test_the_logs_of_these_tests_have_what_makes_them_hard() -> None:
    """Batches, entries across owners, and times that contradict the order."""
    logs = [random_logs(Random(seed)) for seed in range(50)]
    all_logged = [logged for found in logs for log in found.values() for logged in log]
    assert any(logged.last > logged.first for logged in all_logged)
    assert any(len(logged.transaction.ranges) > 2 for logged in all_logged if logged.transaction is not None)
    assert any(TOPOLOGY.owner(other) != logged.owner for logged in all_logged for other in logged.entries)
    by_time = [[(e.topic, e.number) for e in sorted(replay(found, dict.fromkeys(TOPICS, 0)),
                key=lambda event: event.logged.published_at)] for found in logs]  # fmt: skip
    assert any(order != whole_order(found) for order, found in zip(by_time, logs, strict=True))


# -- claim by claim ----------------------------------------------------------------------------------------------------


def past_of(clock: dict[str, int] | None = None, **cut: int) -> Past:
    return Past(clock or {}, cut, TOPOLOGY.owner, Missing())


def part(name: str, last: int = 0, *, batch: int = 0, place: int = 1, at: float = 1.0, full: bool = True,
         silent: bool = False, **entries: int) -> Part:  # fmt: skip
    """`part("a3", 5, b=2)`: numbers 3 to 5 of topic a, after number 2 of topic b."""
    topic, first = name[0], int(name[1:])
    last = last or first
    events = [] if silent else arrivals_of(topic, first, last)
    return Part(topic, first, last, batch or first, place, at, entries, full, events)


def read(past: Past, *parts: Part) -> list[str]:
    for told in parts:
        past.take(told)
    return [f"{found.topic}{number}" for found, first, last in past.read() for number in range(first, last + 1)]


def test_an_empty_past_is_over_at_once() -> None:
    assert past_of(a=0, b=0).is_over


def test_all_of_the_past_is_asked_for_and_the_first_number_of_each_topic_in_full() -> None:
    past = past_of({"a": 2}, a=5, c=1)
    assert past.missing.take_due(0.0) == [NackRange("a", 3, 5, full=True), NackRange("c", 1, 1, full=True)]


def test_nothing_is_next_before_the_next_part_of_every_topic_is_here() -> None:
    past = past_of(a=1, c=1)
    assert read(past, part("a1", at=1.0)) == []
    assert read(past, part("c1", at=2.0)) == ["a1", "c1"]


def test_a_topic_at_its_end_is_not_waited_for() -> None:
    past = past_of({"c": 4}, a=1, c=4)
    assert read(past, part("a1")) == ["a1"]


def test_of_what_no_timestamp_decides_the_earlier_publication_is_next() -> None:
    assert read(past_of(a=1, c=1), part("a1", at=2.0), part("c1", at=1.0)) == ["c1", "a1"]


def test_what_a_timestamp_mentions_comes_before_whatever_the_clocks_say() -> None:
    assert read(past_of(a=1, c=1), part("a1", at=1.0, c=1), part("c1", at=2.0)) == ["c1", "a1"]


def test_of_one_owners_topics_the_order_of_its_journal_decides() -> None:
    assert read(past_of(a=1, b=1), part("a1", at=1.0, place=2), part("b1", at=2.0, place=1)) == ["b1", "a1"]


def test_a_first_part_without_its_full_timestamp_is_not_taken() -> None:
    past = past_of({"a": 1}, a=2)
    assert read(past, part("a2", full=False)) == []
    assert read(past, part("a2")) == ["a2"]


def test_later_parts_need_no_full_timestamp() -> None:
    assert read(past_of(a=2), part("a1"), part("a2", full=False)) == ["a1", "a2"]


def test_the_rest_of_a_batch_comes_before_anything_else() -> None:
    """Another topic's publication is earlier, but whoever was there had the batch in one piece."""
    past = past_of(a=2, c=1)
    first, rest = part("a1", batch=1, at=1.0), part("a2", batch=1, at=1.0, full=False)
    assert read(past, first, part("c1", at=0.5, a=1)) == ["a1"]
    assert read(past, rest) == ["a2", "c1"]


def test_who_begins_in_the_middle_of_a_batch_has_its_rest_first() -> None:
    past = past_of({"a": 1, "c": 0}, a=2, c=1)
    assert read(past, part("a2", batch=1, at=9.0), part("c1", at=1.0)) == ["a2", "c1"]


def test_what_is_beyond_the_cut_is_not_read() -> None:
    past = past_of(a=2)
    assert read(past, part("a1", 4)) == ["a1", "a2"]
    assert past.is_over


def test_what_was_read_is_not_taken_again() -> None:
    past = past_of(a=3)
    assert read(past, part("a1", 2)) == ["a1", "a2"]
    assert read(past, part("a1", 2), part("a2", full=False), part("a3", full=False)) == ["a3"]


@pytest.mark.parametrize("lasts", [(1, 3), (3, 1)])
def test_of_two_parts_with_the_same_beginning_the_longer_one_counts(lasts: tuple[int, int]) -> None:
    past = past_of(a=3, c=1)
    assert read(past, *(part("a1", last) for last in lasts)) == []
    assert read(past, part("c1", at=9.0)) == ["a1", "a2", "a3", "c1"]


def test_of_a_part_that_overlaps_what_was_read_the_rest_is_read() -> None:
    past = past_of(a=5, c=1)
    assert read(past, part("a2", 5, batch=1, full=False), part("a1", 3)) == []
    assert read(past, part("c1", at=9.0)) == ["a1", "a2", "a3", "a4", "a5", "c1"]


def test_what_came_is_not_asked_for_again_though_it_has_to_wait() -> None:
    past = past_of(a=1, c=1)
    past.missing.take_due(0.0)
    past.take(part("a1"))
    assert past.missing.take_due(100.0) == [NackRange("c", 1, 1, full=True)]


def test_what_is_beyond_the_cut_is_not_kept() -> None:
    past = past_of(a=2)
    past.take(part("a3"))
    assert past._parts == {}


def test_silence_is_read_and_has_no_events() -> None:
    past = past_of(a=3, c=1)
    for told in (part("a1", 3, silent=True), part("c1", at=2.0, a=3)):
        past.take(told)
    assert [(found.topic, found.arrivals == [], first, last) for found, first, last in past.read()] == [
        ("a", True, 1, 3),
        ("c", False, 1, 1),
    ]


def test_what_the_log_has_lost_may_be_skipped_and_the_next_number_is_asked_for_in_full() -> None:
    past = past_of(a=5)
    past.missing.take_due(0.0)
    past.skip("a", 3)
    assert past.clock == {"a": 3}
    assert past.missing.take_due(100.0) == [NackRange("a", 4, 5, full=True)]
    assert read(past, part("a4", 5)) == ["a4", "a5"]


def test_a_past_of_which_all_is_lost_is_over() -> None:
    past = past_of(a=5)
    past.skip("a", 9)
    assert past.is_over
    assert past.clock == {"a": 5}


@pytest.mark.parametrize("others", [1, 3])
def test_its_clock_is_how_far_it_was_read(others: int) -> None:
    past = past_of(a=5, c=others)
    assert read(past, part("a1", 2), part("c1", others, at=9.0)) == ["a1", "a2"]
    assert past.clock == {"a": 2, "c": 0}
