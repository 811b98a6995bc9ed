"""Numbers whose events nobody keeps: void only if their publisher is silent and everybody says that it has not seen them."""

from __future__ import annotations

from random import Random

import pytest

from helpers.draining import drain
from ordered_pubsub.core.liveness.voids import ASKS_AT_ONCE, LOOK_S, RANGES_MAX, SEAL_AGAIN_S, Voids
from ordered_pubsub.core.log.memory_shelf import MemoryShelf
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.writer import Decision, Kept, LogWriter
from ordered_pubsub.core.messages import (
    Chunk,
    Holders,
    LeaseRenewal,
    LeaseReply,
    Publication,
    SeenAsk,
    SeenReply,
    TopicRange,
    VoidAsk,
    VoidDecision,
)

LEASE_S = 10.0
PAST_LEASE = LEASE_S + 1


class Owner:
    """An owner of the topic "a" in a system of two stages, and its log."""

    def __init__(self) -> None:
        self.shelf = MemoryShelf()
        self.writer = LogWriter(self.shelf)
        self.begin()

    def begin(self) -> None:
        """Start it from what its log has."""
        self.voids = Voids(0, 2, LogReader(self.shelf), LEASE_S)
        self.voids.restore()

    def number(self, first: int, last: int, session: str = "p", sequence: int = 1, now: float = 0.0) -> None:
        part = Publication("a", last - first + 1, 5.0, first, 0, entries={"b": first})
        self.writer.hold(session, sequence, part)
        assert self.voids.numbered(session, sequence, "a", first, last, now) is None

    def hear(self, sequence: int, now: float, *asks: TopicRange, session: str = "p") -> list[TopicRange]:
        """A publisher says something; return what it is told to be void."""
        leased, decisions = self.handed(LeaseRenewal(session, 7, sequence, [0], list(asks)), now)
        for decision in decisions:
            self.writer.decide(decision)
        assert leased is not None
        assert (leased.session, leased.serial, leased.rank) == (session, 7, 0)
        return leased.voids

    def handed(self, handed: LeaseRenewal, now: float) -> tuple[LeaseReply | None, list[Decision]]:
        """A publisher says what it has published; return the answer, if there is one, and what is decided by that."""
        decisions = self.voids.hear(handed, now)
        answers: list[LeaseReply] = []
        drain(self.voids.leasing(handed, answers))
        return (answers[0] if answers else None), decisions

    def undecided(self, asked: VoidAsk) -> list[VoidDecision]:
        """A client asks what has become of some numbers."""
        found: list[VoidDecision] = []
        drain(self.voids.telling(asked, found))
        return found

    def asked(self, now: float) -> list[SeenAsk]:
        """What it asks the two stages for, the same of both."""
        seals: list[SeenAsk] = []
        for rank, seal in self.voids.tick(now, 1_000.0):
            if rank == 0:
                seals.append(seal)
        return seals

    def answer(
        self, seal: SeenAsk, holders: dict[int, list[str]], seen: dict[str, list[tuple[int, int]]]
    ) -> list[Decision]:
        """Registrars and clients answer; return what is decided."""
        decisions: list[Decision] = []
        for rank, sessions in holders.items():
            decisions += self.voids.holders(rank, Holders(seal.serial, sessions))
        for session, numbers in seen.items():
            decisions += self.voids.sealed(SeenReply(seal.serial, 0, [session], numbers))
        return decisions

    def write(self, decision: Decision) -> VoidDecision:
        self.writer.decide(decision)
        (decided,) = self.voids.written([decision])
        return decided


@pytest.fixture
def owner() -> Owner:
    owner = Owner()
    owner.voids.tick(0.0, 0.0)
    return owner


def test_nobody_is_asked_as_long_as_the_publisher_is_heard_of(owner: Owner) -> None:
    owner.number(1, 3)
    assert owner.asked(LEASE_S - 1) == []
    owner.hear(0, LEASE_S - 1)
    assert owner.asked(PAST_LEASE) == []
    assert [seal.numbers for seal in owner.asked(2 * LEASE_S)] == [[(1, 3)]]


def test_what_is_at_the_ens_is_asked_for_by_nobody(owner: Owner) -> None:
    owner.number(1, 3, sequence=1)
    owner.number(4, 4, sequence=2)
    owner.hear(1, 0.0)
    assert [seal.numbers for seal in owner.asked(PAST_LEASE)] == [[(4, 4)]]


def test_what_is_said_to_be_at_the_ens_before_it_is_known_here_is_published(owner: Owner) -> None:
    owner.hear(5, 0.0)
    assert owner.voids.numbered("p", 5, "a", 1, 2, 1.0) == Decision("a", 1, 2, [])
    assert owner.asked(PAST_LEASE + 1) == []


def test_what_nobody_has_seen_is_void_and_has_its_place(owner: Owner) -> None:
    owner.number(1, 3)
    (seal,) = owner.asked(PAST_LEASE)
    (decision,) = owner.answer(seal, {0: ["c"], 1: ["d"]}, {"c": [], "d": []})
    assert decision == Decision("a", 1, 3, [(1, 3)])
    decided = owner.write(decision)
    assert decided.published == []
    assert [(item.first, item.last, item.entries, item.chunks) for item in decided.voids] == [(1, 3, {"b": 1}, [])]


def test_what_somebody_has_seen_is_published_and_the_rest_is_void(owner: Owner) -> None:
    owner.number(1, 5)
    (seal,) = owner.asked(PAST_LEASE)
    (decision,) = owner.answer(seal, {0: ["c", "d"], 1: []}, {"c": [(2, 2)], "d": [(4, 4)]})
    assert decision.voids == [(1, 1), (3, 3), (5, 5)]
    decided = owner.write(decision)
    assert decided.published == [(2, 2), (4, 4)]
    assert [(item.first, item.entries) for item in decided.voids] == [(1, {"b": 1}), (3, {}), (5, {})]


@pytest.mark.parametrize(
    ("holders", "seen"),
    [({0: ["c"]}, ["c"]), ({0: ["c"], 1: ["d"]}, ["c"]), ({}, ["c", "d"])],
    ids=["a registrar", "a client", "all registrars"],
)
def test_nothing_is_decided_before_everybody_has_answered(
    owner: Owner, holders: dict[int, list[str]], seen: list[str]
) -> None:
    owner.number(1, 1)
    (seal,) = owner.asked(PAST_LEASE)
    assert owner.answer(seal, holders, {session: [] for session in seen}) == []
    assert owner.asked(PAST_LEASE + SEAL_AGAIN_S) == [seal]
    assert len(owner.answer(seal, {0: ["c"], 1: []}, {"c": []})) == 1


def test_a_client_whose_subscriptions_have_expired_is_not_waited_for(owner: Owner) -> None:
    owner.number(1, 1)
    (seal,) = owner.asked(PAST_LEASE)
    assert owner.answer(seal, {0: ["gone"], 1: []}, {}) == []
    assert len(owner.answer(seal, {0: []}, {})) == 1


def test_a_publisher_that_comes_back_in_time_has_its_numbers(owner: Owner) -> None:
    owner.number(1, 3)
    (seal,) = owner.asked(PAST_LEASE)
    assert owner.hear(0, PAST_LEASE, TopicRange("a", 1, 3)) == []
    assert owner.answer(seal, {0: [], 1: []}, {}) == []
    assert len(owner.asked(2 * PAST_LEASE)) == 1


def test_a_publisher_that_comes_too_late_is_told_when_it_is_written_down(owner: Owner) -> None:
    """Told before, it would publish nothing, and an owner that dies in between would know nothing of it."""
    owner.number(1, 3)
    (seal,) = owner.asked(PAST_LEASE)
    (decision,) = owner.answer(seal, {0: ["c"], 1: []}, {"c": [(2, 2)]})
    assert owner.handed(LeaseRenewal("p", 1, 0, [0], [TopicRange("a", 1, 3)]), PAST_LEASE)[0] is None
    owner.write(decision)
    assert owner.hear(0, PAST_LEASE, TopicRange("a", 1, 3)) == [TopicRange("a", 1, 1), TopicRange("a", 3, 3)]
    assert owner.hear(0, PAST_LEASE, TopicRange("a", 2, 2), TopicRange("b", 1, 9)) == []


def test_who_asks_later_is_told_what_was_decided_and_not_what_was_not(owner: Owner) -> None:
    owner.number(1, 2)
    owner.number(3, 4, session="q")
    owner.number(5, 5, session="q", sequence=2)
    (seal,) = [seal for seal in owner.asked(PAST_LEASE) if seal.numbers == [(1, 2)]]
    (decision,) = owner.answer(seal, {0: ["c"], 1: []}, {"c": [(1, 1)]})
    (before,) = owner.undecided(VoidAsk("s", [TopicRange("a", 1, 5)]))
    assert (before.voids, before.published) == ([], [])
    owner.write(decision)
    owner.hear(1, PAST_LEASE, session="q")
    (after,) = owner.undecided(VoidAsk("s", [TopicRange("a", 1, 5)]))
    assert after.session == "s"
    assert [(item.first, item.last) for item in after.voids] == [(2, 2)]
    assert after.published == [(1, 1), (3, 4)]


def test_what_is_numbered_while_everybody_is_asked_is_asked_for_by_itself(owner: Owner) -> None:
    owner.number(1, 1)
    (one,) = owner.asked(PAST_LEASE)
    owner.number(2, 2, sequence=2, now=PAST_LEASE)
    (_, two) = owner.asked(2 * PAST_LEASE + 1)
    assert (one.numbers, two.numbers) == ([(1, 1)], [(2, 2)])
    assert [decision.first for decision in owner.answer(one, {0: [], 1: []}, {})] == [1]
    assert [decision.first for decision in owner.answer(two, {0: [], 1: []}, {})] == [2]


def test_after_a_start_all_leases_begin_anew(owner: Owner) -> None:
    owner.number(1, 3)
    owner.begin()
    start = 1_000.0
    assert owner.asked(start) == []
    assert owner.asked(start + LEASE_S - 1) == []
    assert [seal.numbers for seal in owner.asked(start + PAST_LEASE)] == [[(1, 3)]]


def test_after_a_start_what_is_pending_is_decided_by_nobody_before_time_passes(owner: Owner) -> None:
    """Told that it was published, a client would use what it has promised not to use."""
    owner.number(1, 3)
    owner.begin()
    (decided,) = owner.undecided(VoidAsk("s", [TopicRange("a", 1, 3)]))
    assert (decided.voids, decided.published) == ([], [])


def test_what_is_published_or_void_is_not_pending_after_a_start(owner: Owner) -> None:
    owner.number(1, 1)
    owner.number(2, 2, sequence=2)
    owner.hear(1, 0.0)
    (seal,) = owner.asked(PAST_LEASE)
    owner.write(*owner.answer(seal, {0: [], 1: []}, {}))
    assert list(owner.voids.reader.pending()) == []
    owner.begin()
    assert owner.hear(0, 0.0, TopicRange("a", 1, 2)) == [TopicRange("a", 2, 2)]


def test_what_is_known_of_a_publisher_is_forgotten(owner: Owner) -> None:
    for number in range(1, 101):
        owner.number(number, number, session=f"p{number}")
        owner.hear(1, 0.0, session=f"p{number}")
    owner.asked(10 * LEASE_S)
    assert (owner.voids._publishers, owner.voids._batches) == ({}, {})


def test_each_number_is_decided_once_whatever_comes_in_between() -> None:
    """Against a naive model: what was seen or confirmed is published, everything else becomes void, each once."""
    for seed in range(200):
        random = Random(seed)
        owner = Owner()
        owner.voids.tick(0.0, 0.0)
        now, number, fates = 0.0, 0, dict[int, set[str]]()
        for _ in range(60):
            now += random.choice((0.0, LOOK_S, LEASE_S / 2))
            action = random.random()
            if action < 0.4:
                count = random.randint(1, 3)
                owner.number(number + 1, number + count, random.choice("pq"), number + 1, now)
                number += count
            elif action < 0.5:
                owner.hear(random.randint(0, number), now, session=random.choice("pq"))
            for seal in owner.asked(now):
                seen = [(n, n) for first, last in seal.numbers for n in range(first, last + 1) if random.random() < 0.3]
                for decision in owner.answer(seal, {0: ["c"], 1: []}, {"c": seen} if random.random() < 0.7 else {}):
                    decided = owner.write(decision)
                    for item in decided.voids:
                        for n in range(item.first, item.last + 1):
                            fates.setdefault(n, set()).add("void")
                    for first, last in decided.published:
                        for n in range(first, last + 1):
                            fates.setdefault(n, set()).add("published")
        assert all(len(fate) == 1 for fate in fates.values()), (seed, fates)
        (all_of_it,) = owner.undecided(VoidAsk("s", [TopicRange("a", 1, number)]))
        void = {n for item in all_of_it.voids for n in range(item.first, item.last + 1)}
        assert void == {n for n, fate in fates.items() if fate == {"void"}}
        published = {n for first, last in all_of_it.published for n in range(first, last + 1)}
        assert published >= {n for n, fate in fates.items() if fate == {"published"}}
        assert not published & void


def test_an_answer_to_what_was_asked_before_a_start_decides_nothing(owner: Owner) -> None:
    owner.number(1, 1)
    (before,) = owner.asked(PAST_LEASE)
    owner.begin()
    owner.voids.tick(0.0, 60.0)
    (after,) = owner.asked(PAST_LEASE)
    assert owner.answer(before, {0: [], 1: []}, {}) == []
    assert len(owner.answer(after, {0: [], 1: []}, {})) == 1


def test_much_is_asked_for_in_pieces(owner: Owner) -> None:
    for number in range(1, 4 * RANGES_MAX, 2):
        owner.number(number, number, sequence=number)
    (one,) = owner.asked(PAST_LEASE)
    (_, two) = owner.asked(PAST_LEASE + SEAL_AGAIN_S)
    assert (len(one.numbers), len(two.numbers)) == (RANGES_MAX, RANGES_MAX)
    assert {*one.numbers, *two.numbers} == {(number, number) for number in range(1, 4 * RANGES_MAX, 2)}


def test_many_stretches_of_which_nothing_is_void_take_few_steps(owner: Owner) -> None:
    owner.hear(0, 0.0)
    spans = [TopicRange("a", number, number) for number in range(1, 800, 2)]
    answers: list[LeaseReply] = []
    assert (
        sum(1 for _ in owner.voids.leasing(LeaseRenewal("p", 7, 0, [0], spans), answers)) == len(spans) // ASKS_AT_ONCE
    )
    assert len(answers) == 1
    found: list[VoidDecision] = []
    assert sum(1 for _ in owner.voids.telling(VoidAsk("p", spans), found)) == len(spans) // ASKS_AT_ONCE
    assert len(found) == len(spans)


def test_events_that_are_kept_are_not_taken_for_void() -> None:
    """A topic may have been given another level."""
    owner = Owner()
    part = Publication("a", 2, 5.0, 1, 0, is_kept=True)
    owner.writer.write([Kept("a", 1, (Chunk(2, b"12"),))], [part])
    (decided,) = owner.undecided(VoidAsk("s", [TopicRange("a", 1, 2)]))
    assert decided.voids == []


def test_what_is_decided_together_is_announced_together(owner: Owner) -> None:
    for number in range(1, 4):
        owner.number(number, number, sequence=number)
    (seal,) = owner.asked(PAST_LEASE)
    decisions = owner.answer(seal, {0: ["c"], 1: []}, {"c": [(2, 2)]})
    for decision in decisions:
        owner.writer.decide(decision)
    (decided,) = owner.voids.written(decisions)
    assert [item.first for item in decided.voids] == [1, 3]
    assert decided.published == [(2, 2)]
