"""Transactions that change subscriptions: their turns, what is judged then, and what becomes of those that will not happen."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
import msgspec
import pytest

from ordered_pubsub.core.messages import (
    Answer,
    AskNews,
    Change,
    ChangeAsk,
    Chunk,
    LinkFrame,
    News,
    NotReserved,
    PeerMessage,
    Publication,
    PublishAsk,
    Refusal,
    Request,
    Reserve,
    Reserved,
)
from ordered_pubsub.core.order.registered import ENDED, LAST, RESERVED
from ordered_pubsub.core.stage import gatekeeper
from ordered_pubsub.core.stage._committing import GIVE_UP_S
from ordered_pubsub.core.stage.quotas import Quota, Quotas
from ordered_pubsub.core.stage.stage import Stage, taken_at
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import ProtocolError

TOPOLOGY = Topology((StageSpec("high", ("a",)), StageSpec("middle", ("b", "x")), StageSpec("low", ("c",))))
_decoder = msgspec.msgpack.Decoder(PeerMessage)


def named(rank: int, number: int = 1) -> str:
    """A subscription that is registered at this stage."""
    names = (f"agent-{place}//s" for place in range(1, 10_000))
    return [
        name for name, _ in zip((one for one in names if TOPOLOGY.registrar(one) == rank), range(number), strict=False)
    ][-1]


HIGH, MIDDLE, LOW, LOW_TOO = named(0), named(1), named(2), named(2, 2)


@attrs.define
class Line:
    """Three stages, each on its journal, whose messages go where and when a test wants."""

    stages: list[Stage] = attrs.field(factory=list)
    journals: list[list[bytes]] = attrs.field(factory=lambda: [[], [], []])
    links: dict[tuple[int, int], deque[bytes]] = attrs.field(factory=dict)
    answers: list[Answer | Refusal] = attrs.field(factory=list)
    news: list[News] = attrs.field(factory=list)
    held_up: tuple[int, int] | None = None
    """a link that brings nothing for now"""
    sequences: dict[str, list[int]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.stages = [Stage.restore(rank, TOPOLOGY, None, []) for rank in range(3)]
        for stage in self.stages:
            for peer in range(3):
                if peer != stage.rank:
                    stage.connected(peer)
        self.settle()

    def settle(self, now: float = 0.0) -> None:
        """Let everything be said that is to be said."""
        while True:
            for stage in self.stages:
                effects = stage.take_effects()
                self.journals[stage.rank] += effects.journal
                self.answers += effects.replies
                for name in effects.changed:
                    found = stage.news_of(name)
                    self.news += [] if found is None else [found]
                for peer, message in effects.sends:
                    self.links.setdefault((stage.rank, peer), deque()).append(msgspec.msgpack.encode(message))
                stage.check_invariants()
            waiting = [link for link, queue in self.links.items() if queue and link != self.held_up]
            if not waiting:
                return
            source, target = waiting[0]
            message = _decoder.decode(self.links[source, target].popleft())
            self.stages[target].handle_peer(source, message, now)

    def restart(self, rank: int) -> None:
        """A stage dies, and starts again from its journal."""
        self.stages[rank] = stage = Stage.restore(rank, TOPOLOGY, None, self.journals[rank])
        stage.take_effects()
        for peer in range(3):
            if peer != rank:
                for link in ((rank, peer), (peer, rank)):
                    self.links[link] = deque()
                stage.connected(peer)
                self.stages[peer].connected(rank)
        self.settle()

    def ask(self, client: str, *parts: PublishAsk | ChangeAsk, is_transaction: bool = False) -> Request:
        """A client that is at home at the middle stage asks."""
        mine = self.sequences.setdefault(client, [0, 0, 0])
        request = Request(client, 1, sum(mine) + 1, 0, 0, parts, is_transaction=is_transaction)
        rank = taken_at(TOPOLOGY, request)
        last = [0, 0, 0] if not sum(mine) else mine
        request = msgspec.structs.replace(request, after=last[rank])
        mine[rank] = request.sequence
        self.stages[1].handle_request(request, 0.0)
        return request

    def begin(self, name: str, *topics: str) -> None:
        """The client of a subscription begins it."""
        self.ask(name, ChangeAsk(name, topics, opens=1))
        self.settle()
        assert isinstance(self.answers.pop(), Answer)

    def transact(self, client: str, *parts: PublishAsk | ChangeAsk) -> Request:
        """A transaction begins; it goes on in `settle`."""
        return self.ask(client, *parts, is_transaction=True)

    def held(self, name: str) -> tuple[str, ...]:
        """What its registrar says that a subscription holds."""
        return self.stages[TOPOLOGY.registrar(name)].state.registrar.subscriptions[name].topics

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left of any transaction."""
        states = [stage.state for stage in self.stages]
        return not any(state.commits or state.registrar.reservations for state in states)


@pytest.fixture
def line() -> Line:
    found = Line()
    found.begin(HIGH, "a", "x")
    found.begin(MIDDLE, "b")
    found.begin(LOW, "c")
    return found


def adds(name: str, *topics: str, **others: Any) -> ChangeAsk:
    return ChangeAsk(name, topics, strict=True, **others)


def removes(name: str, *topics: str, **others: Any) -> ChangeAsk:
    return ChangeAsk(name, (), topics, strict=True, **others)


def publishes(topic: str, count: int = 1) -> PublishAsk:
    return PublishAsk(topic, count, True, (Chunk(count, b"x" * count),))


def refusal(line: Line) -> tuple[str, str]:
    found = line.answers.pop()
    assert isinstance(found, Refusal)
    assert found.taken
    return found.code, found.reason


def test_a_topic_is_handed_over_together_with_what_is_published(line: Line) -> None:
    line.transact("d", publishes("a"), removes(HIGH, "x"), publishes("x"), adds(LOW, "x"), publishes("x", 2))
    line.settle()

    answer = line.answers.pop()
    assert isinstance(answer, Answer)
    kinds = [type(part) for part in answer.parts]
    assert kinds == [Publication, Change, Publication, Change, Publication]
    lost, gained = answer.parts[1], answer.parts[3]
    assert isinstance(lost, Change)
    assert isinstance(gained, Change)
    assert (lost.entries.get("x", 0), gained.entries["x"]) == (0, 1)
    assert (line.held(HIGH), line.held(LOW)) == (("a",), ("c", "x"))
    assert {news.subscription: [change.version for change in news.changes] for news in line.news} == {
        HIGH: [2],
        LOW: [2],
    }
    assert line.is_at_rest


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((adds(HIGH, "x"),), f"{HIGH!r} holds 'x' already"),
        ((removes(LOW, "x"),), f"{LOW!r} does not hold 'x'"),
        ((removes(HIGH, "x"), removes(HIGH, "x")), f"{HIGH!r} does not hold 'x'"),
        ((removes(HIGH, "x"), adds(MIDDLE, "b")), f"{MIDDLE!r} holds 'b' already"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(line: Line, parts: tuple[ChangeAsk, ...], says: str) -> None:
    line.transact("d", publishes("a"), *parts)
    line.settle()

    code, reason = refusal(line)
    assert code == "conflict"
    assert says in reason
    assert line.held(HIGH) == ("a", "x")
    assert line.stages[0].state.clocks.numbers.get("a", 0) == 0
    assert line.is_at_rest
    assert not line.news
    change = ChangeAsk(HIGH, ("b",))
    line.ask(HIGH, change)
    line.settle()
    answer = line.answers.pop()
    assert isinstance(answer, Answer)
    assert isinstance(answer.parts[0], Change)
    assert answer.parts[0].version == 2  # a turn that was given back leaves no trace


def test_what_is_not_strict_fits_whatever_is_held(line: Line) -> None:
    line.transact("d", ChangeAsk(HIGH, ("x", "b"), ("c",)))
    line.settle()

    assert isinstance(line.answers.pop(), Answer)
    assert line.held(HIGH) == ("a", "x", "b")


@pytest.mark.parametrize("name", ["somebody", "agent-1//nothing"])
def test_what_is_not_there_cannot_be_changed(line: Line, name: str) -> None:
    line.transact("d", removes(HIGH, "x"), adds(name, "x"))
    line.settle()

    code, reason = refusal(line)
    assert code == "unknown"
    assert name in reason
    assert line.is_at_rest


def test_only_what_has_a_name_is_changed_by_others(line: Line) -> None:
    line.ask("d", ChangeAsk(named(0, 3), ("a",)))
    line.settle()
    line.answers.clear()
    line.transact("e", adds(named(0, 3), "x"))
    line.settle()

    assert refusal(line)[0] == "no-name"


def test_several_changes_of_one_subscription_are_several_versions_in_their_order(line: Line) -> None:
    line.transact("d", adds(HIGH, "b"), publishes("b"), removes(HIGH, "b"), adds(HIGH, "c"))
    line.settle()

    answer = line.answers.pop()
    assert isinstance(answer, Answer)
    changes = [part for part in answer.parts if isinstance(part, Change)]
    assert [change.version for change in changes] == [2, 3, 4]
    assert [change.new for change in changes] == [("a", "x", "b"), ("a", "x"), ("a", "x", "c")]
    assert (changes[0].entries.get("b", 0), changes[1].entries["b"]) == (0, 1)
    assert line.held(HIGH) == ("a", "x", "c")


def test_who_hands_over_the_same_as_somebody_else_finds_it_gone(line: Line) -> None:
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.transact("e", removes(HIGH, "x"), adds(MIDDLE, "x"))
    line.settle()

    assert sorted(isinstance(answer, Answer) for answer in line.answers) == [False, True]
    assert ("x" in line.held(LOW)) != ("x" in line.held(MIDDLE))
    assert line.is_at_rest


def test_transactions_that_want_the_same_subscriptions_do_not_wait_for_each_other_in_a_ring(line: Line) -> None:
    line.begin(LOW_TOO, "c")
    for count in range(6):
        one, two = (LOW, LOW_TOO) if count % 2 else (LOW_TOO, LOW)
        line.transact(f"d{count}", ChangeAsk(one, ("x",)), ChangeAsk(two, (), ("x",)), ChangeAsk(HIGH, ("b",)))
    line.settle()

    assert [type(answer) for answer in line.answers] == [Answer] * 6
    assert line.is_at_rest


def test_what_is_published_does_not_wait_for_turns(line: Line) -> None:
    line.held_up = (0, 2)  # so the registrar of LOW hears of nothing
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    assert not line.is_at_rest
    line.ask("p", publishes("x"))
    line.settle()
    assert isinstance(line.answers.pop(), Answer)
    line.ask(HIGH, ChangeAsk(HIGH, ("b",)))
    line.settle()
    assert not line.answers  # a change of the same subscription does

    line.held_up = None
    line.settle()
    assert [type(answer) for answer in line.answers] == [Answer, Answer]
    assert line.held(HIGH) == ("a", "b")


def test_who_waits_too_long_gives_up_and_leaves_nothing(line: Line) -> None:
    line.held_up = (0, 2)
    request = line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    line.stages[0].tick(1.0)
    line.stages[0].tick(GIVE_UP_S)
    line.settle()
    assert not line.answers
    line.stages[0].tick(1.0 + GIVE_UP_S)
    line.settle()
    assert refusal(line)[0] == "busy"
    line.held_up = None
    line.settle()
    assert line.is_at_rest
    assert line.held(LOW) == ("c",)
    line.stages[1].handle_request(request, 0.0)
    line.settle()
    assert refusal(line)[0] == "busy"  # asked again, it gets the first answer


def test_nobody_gives_up_what_is_on_the_line(line: Line) -> None:
    line.held_up = (2, 1)  # it enters at the lowest stage, and does not come further
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    line.stages[0].tick(0.0)
    line.stages[0].tick(2 * GIVE_UP_S)
    line.settle()
    assert not line.answers
    line.held_up = None
    line.settle()
    assert isinstance(line.answers.pop(), Answer)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("held_up", [(0, 2), (2, 0), (2, 1), (1, 0)])
def test_stages_that_die_meanwhile_go_on_where_they_were(line: Line, rank: int, held_up: tuple[int, int]) -> None:
    line.held_up = held_up
    request = line.transact("d", removes(HIGH, "x"), publishes("x"), adds(LOW, "x"), removes(MIDDLE, "b"))
    line.settle()
    line.held_up = None
    line.restart(rank)
    for stage in line.stages:
        stage.tick(0.0)
        stage.tick(5.0)  # what may have been lost is said again
    line.settle()
    line.answers.clear()
    line.stages[1].handle_request(request, 0.0)
    line.settle()

    assert isinstance(line.answers.pop(), Answer)
    assert (line.held(HIGH), line.held(MIDDLE), line.held(LOW)) == (("a",), (), ("c", "x"))
    assert line.stages[1].state.clocks.numbers["x"] == 1
    assert line.is_at_rest


def test_who_goes_on_with_a_subscription_is_judged_by_what_it_holds_when_his_turn_comes(line: Line) -> None:
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    line.ask("another", ChangeAsk(HIGH, ("a", "x"), opens=2))  # it will not hold x any more
    line.settle()
    line.held_up = None
    line.settle()

    outcomes = {answer.client: answer for answer in line.answers}
    assert isinstance(outcomes["d"], Answer)
    late = outcomes["another"]
    assert isinstance(late, Refusal)
    assert (late.code, late.taken) == ("exists", True)
    assert line.held(HIGH) == ("a",)
    assert line.is_at_rest


def test_what_ends_meanwhile_is_not_changed(line: Line) -> None:
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    line.ask(LOW, ChangeAsk(LOW, ends=True))
    line.settle()
    line.answers.clear()
    line.held_up = None
    line.settle()

    assert refusal(line)[0] == "unknown"
    assert line.held(HIGH) == ("a", "x")
    assert line.is_at_rest


def test_each_of_its_events_says_what_it_publishes_and_changes(line: Line) -> None:
    line.transact("d", publishes("a", 2), removes(HIGH, "x"), publishes("c"), adds(LOW, "x"))
    line.settle()
    operation = next(iter(line.stages[0].state.requests.sessions["d"].answers.values()))
    assert isinstance(operation, Answer)
    transaction = operation.transaction
    assert transaction is not None
    assert transaction.ranges == {"a": (1, 2), "c": (1, 1)}
    assert [(mark.subscription, mark.version) for mark in transaction.changes] == [(HIGH, 2), (LOW, 2)]


def test_a_client_is_told_until_it_says_that_it_knows(line: Line) -> None:
    line.transact("d", removes(HIGH, "x"))
    line.settle()
    stage = line.stages[0]
    found = stage.handle_ask_news(AskNews(HIGH, HIGH, 1))
    assert found is not None
    assert [change.version for change in found.changes] == [2]
    assert stage.handle_ask_news(AskNews(HIGH, "somebody", 2)) is None
    assert stage.news_of(HIGH) == found
    assert stage.handle_ask_news(AskNews(HIGH, HIGH, 2)) is None
    assert stage.news_of(HIGH) is None
    assert not stage.state.registrar.untold


@pytest.mark.parametrize("others", [(), (LOW,)])
def test_what_would_be_too_large_for_a_frame_is_refused(line: Line, others: tuple[str, ...]) -> None:
    """At the registrar that would have to tell it, or at the coordinator, who has all of it."""
    topics = tuple(f"{'x' * 200}/{number}" for number in range(1_000))
    for name in (HIGH, *others):
        line.ask(name, ChangeAsk(name, topics))
        line.settle()
    line.answers.clear()
    shifts = [adds(HIGH, f"t{number}") for number in range(2 - len(others))]
    line.transact("d", *shifts, *(adds(name, "t") for name in others))
    line.settle()

    code, reason = refusal(line)
    assert code == "limit"
    assert "divide it" in reason
    assert line.is_at_rest
    assert not line.news


@pytest.mark.parametrize(
    ("peer", "message", "error"),
    [
        (2, Reserve("2.9", 2, "", [(0, ChangeAsk(LOW, ("a",)))]), "registered elsewhere"),
        (2, Reserve("1.9", 1, "", [(0, ChangeAsk(HIGH, ("b",)))]), "asks for the turns"),
        (2, Reserved("0.1", [(1, Change(LOW, 2, ("c",), ("c", "b"), 2, False))], [2]), "was not asked"),
        (1, Reserved("0.1", [(1, Change(LOW, 2, ("c",), ("c", "x"), 2, False))], [2]), "was not asked"),
        (1, NotReserved("0.1", "conflict", "so it is"), "was not asked"),
    ],
)
def test_what_another_stage_must_not_say_is_refused(line: Line, peer: int, message: Any, error: str) -> None:
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    link = line.stages[0].state.links[peer]
    if isinstance(message, Reserved) and peer == 2:
        message = msgspec.structs.replace(message, changes=[(7, message.changes[0][1])])
    with pytest.raises(ProtocolError, match=error):
        line.stages[0].handle_peer(peer, LinkFrame(link.received + 1, message), 0.0)
    line.held_up = None
    line.settle()
    assert isinstance(line.answers.pop(), Answer)


def test_no_more_wait_for_their_turns_than_may(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.held_up = (0, 2)
    for number in range(gatekeeper.COMMITS_PER_IDENTITY_MAX):
        line.transact(f"d{number}", ChangeAsk(HIGH, ("x",)), ChangeAsk(LOW, ("x",)))
    line.settle()
    line.transact("one-more", ChangeAsk(HIGH, ("x",)), ChangeAsk(LOW, ("x",)))
    line.settle()
    assert refusal(line)[0] == "busy"
    monkeypatch.setattr(gatekeeper, "COMMITS_MAX", 1)
    line.transact("another", ChangeAsk(HIGH, ("x",)), ChangeAsk(LOW, ("x",)))
    line.settle()
    assert "at this stage already" in refusal(line)[1]
    line.held_up = None
    line.settle()
    assert [type(answer) for answer in line.answers] == [Answer] * gatekeeper.COMMITS_PER_IDENTITY_MAX
    assert line.is_at_rest


def test_their_events_are_bounded_in_bytes(line: Line) -> None:
    line.held_up = (0, 2)
    large = PublishAsk("a", 1, True, (Chunk(1, b"x" * (gatekeeper.COMMITS_BYTES_MAX - 10)),))
    line.transact("d", large, ChangeAsk(HIGH, ("x",)), ChangeAsk(LOW, ("x",)))
    line.settle()
    line.transact("e", publishes("a", 20), ChangeAsk(HIGH, ("x",)), ChangeAsk(LOW, ("x",)))
    line.settle()

    assert "bytes of events" in refusal(line)[1]


# -- what a critical reading has found ----------------------------------------------------------------------------------


def test_what_enters_the_line_as_another_one_gives_up_is_not_given_up_with_it(line: Line) -> None:
    line.held_up = (0, 2)
    line.transact("x", removes(HIGH, "x"), adds(LOW, "x"))
    line.transact("y", adds(HIGH, "c"))
    line.settle()
    line.restart(0)
    line.stages[0].tick(0.0)
    line.held_up = (0, 2)  # so that y, which is launched at the lowest stage, is still on its way
    line.stages[0].tick(GIVE_UP_S)
    line.settle()
    line.held_up = None
    line.settle()

    outcomes = {answer.client: answer for answer in line.answers}
    assert isinstance(outcomes["x"], Refusal)
    assert isinstance(outcomes["y"], Answer)
    assert line.held(HIGH) == ("a", "x", "c")
    assert line.stages[0].state.registrar.subscriptions[HIGH].version == 2
    assert line.is_at_rest


def test_who_may_not_change_a_subscription_does_not_wait_at_it(line: Line) -> None:
    """Nor lets its owner wait, while he waits for his own."""
    line.stages[2].state.registrar.subscriptions[LOW].owner = "somebody else"
    mine = next(name for name in (named(2, number) for number in range(2, 50)) if name > LOW)
    line.begin(mine, "c")
    line.held_up = (2, 1)
    line.ask(mine, ChangeAsk(mine, ("a",)))  # it is under way, and stays so
    line.settle()
    line.transact("evil", ChangeAsk(LOW, ("x",)), ChangeAsk(mine, ("x",)))
    line.settle()
    registrar = line.stages[2].state.registrar
    assert not registrar.subscriptions[LOW].under_way
    assert not registrar.reservations
    line.held_up = None
    line.settle()
    (refused,) = [answer for answer in line.answers if isinstance(answer, Refusal)]
    assert refused.code == "forbidden"


def test_what_changes_a_large_subscription_again_and_again_is_refused_before_it_is_worked_out(line: Line) -> None:
    topics = tuple(f"t/{number}" for number in range(9_000))
    name = named(0, 4)
    line.ask(name, ChangeAsk(name, topics, opens=1, weight=0))
    line.settle()
    line.answers.clear()
    shifts = [ChangeAsk(name, ("u",) if place % 2 else (), () if place % 2 else ("u",)) for place in range(256)]
    line.transact("d", *shifts)
    line.settle()
    code, reason = refusal(line)
    assert code == "limit"
    size = int(reason.split(" are ")[1].split(" bytes")[0].replace(",", ""))
    assert size < 2 << 20  # and not that of all of them


def test_a_topic_that_rests_wakes_for_whatever_a_transaction_lets_go_on(line: Line) -> None:
    """A message frees one subscription, the transaction that waits there cannot happen, and frees another one."""
    stage = line.stages[2]
    one, two = sorted((LOW, LOW_TOO))
    line.held_up = None
    line.begin(LOW_TOO, "c")
    line.held_up = (2, 1)
    reservations = stage.state.registrar.reservations
    line.ask(two, ChangeAsk(two, ("a",)))  # under way
    line.settle()
    line.transact("t", removes(one, "nothing"), adds(two, "x"))
    line.settle()
    line.ask(one, ChangeAsk(one, ("b",)))  # behind the transaction, which has its turn at this one
    line.settle()
    assert len(reservations) == 1
    concerned = stage.committing.waiting_at([two])
    assert ChangeAsk(one, ("b",)) in concerned


def test_an_opening_that_is_refused_at_its_turn_leaves_no_filters(line: Line) -> None:
    line.ask(HIGH, ChangeAsk(HIGH, (), ("a",)))
    line.settle()
    line.ask(HIGH, ChangeAsk(HIGH, ("a",), where={"a": "price > 1"}))
    line.settle()
    line.answers.clear()
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    line.ask("another", ChangeAsk(HIGH, ("a", "x"), opens=2, where={"a": "price > 1", "x": ""}))
    line.settle()
    line.held_up = None
    line.settle()
    found = line.stages[0].state.registrar.subscriptions[HIGH]
    assert found.where == found.filters


def test_what_was_judged_by_a_transaction_that_does_not_happen_is_judged_again(line: Line) -> None:
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "c"))  # it holds that: it will not happen
    line.settle()
    line.ask("another", ChangeAsk(HIGH, ("a",), opens=2))  # fits what it would hold
    line.settle()
    line.held_up = None
    line.settle()

    outcomes = {answer.client: answer for answer in line.answers}
    assert isinstance(outcomes["d"], Refusal)
    late = outcomes["another"]
    assert isinstance(late, Refusal)
    assert late.code == "exists"
    assert line.held(HIGH) == ("a", "x")


def test_what_others_give_counts_for_whose_it_is(line: Line) -> None:
    registrar = line.stages[0].state.registrar
    for stage in line.stages:
        stage.gatekeeper.quotas = Quotas(Quota(held=5))
    name = named(0, 5)
    mine = Request(name, 1, 1, 0, 0, (ChangeAsk(name, ("a", "b"), opens=1),), identity="its owner")
    line.stages[0].handle_request(mine, 0.0)
    line.settle()
    line.answers.clear()
    many = tuple(f"t{number}" for number in range(4))
    asks = [ChangeAsk(name, many[:2], is_managed=True), ChangeAsk(name, many[2:], is_managed=True)]
    line.stages[0].handle_request(Request("m", 1, 1, 0, 0, tuple(asks), identity="manager", is_transaction=True), 0.0)
    line.settle()
    found = line.answers.pop()
    assert isinstance(found, Refusal)
    assert (found.code, "'its owner' may have 5 topics" in found.reason) == ("limit", True)
    elsewhere = ChangeAsk(MIDDLE, ("x",), is_managed=True)
    line.stages[0].handle_request(
        Request("n", 1, 1, 0, 0, (asks[0], elsewhere), identity="manager", is_transaction=True), 0.0
    )
    line.settle()
    assert isinstance(line.answers.pop(), Answer)
    assert registrar.subscriptions[name].topics == ("a", "b", "t0", "t1")


def test_a_registrar_elsewhere_refuses_what_is_too_much_and_says_so_when_its_journal_is_read_again(line: Line) -> None:
    line.stages[2].gatekeeper.quotas = Quotas(Quota(held=2))
    name = named(2, 5)
    mine = Request(name, 1, 1, 0, 0, (ChangeAsk(name, ("a", "b"), opens=1),), identity="its owner")
    line.stages[2].handle_request(mine, 0.0)
    line.settle()
    line.answers.clear()
    asks = (ChangeAsk(HIGH, ("c",), is_managed=True), ChangeAsk(name, ("x",), is_managed=True))
    line.stages[0].handle_request(Request("m", 1, 1, 0, 0, asks, identity="manager", is_transaction=True), 0.0)
    line.settle()
    assert refusal(line)[0] == "limit"
    assert line.held(HIGH) == ("a", "x")
    line.restart(2)  # under other quotas
    assert line.held(name) == ("a", "b")
    assert line.is_at_rest


def test_the_end_of_a_subscription_waits_behind_a_transaction(line: Line) -> None:
    """The simulation ends none with a name in the middle."""
    line.held_up = (0, 2)
    line.transact("d", removes(HIGH, "x"), adds(LOW, "x"))
    line.settle()
    found = line.stages[0].state.registrar.subscriptions[HIGH]
    assert found.phase == RESERVED
    line.ask(HIGH, ChangeAsk(HIGH, ends=True))
    line.settle()
    assert found.phase == LAST
    line.held_up = None
    line.settle()
    assert [type(answer) for answer in line.answers] == [Answer, Answer]
    assert found.phase == ENDED
    assert line.held(LOW) == ("c", "x")
