"""What one identity may take up at a stage: counted once, bounded, said, and the same after a restart."""

from __future__ import annotations

import attrs
import msgspec
import pytest

from ordered_pubsub.core.messages import (
    Acked,
    Answer,
    ChangeAsk,
    Chunk,
    Ended,
    PublishAsk,
    Refusal,
    Request,
    TopicsReleased,
)
from ordered_pubsub.core.stage import gatekeeper as gatekeeper_module
from ordered_pubsub.core.stage import quotas as quotas_module
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.quotas import Quota, Quotas, Used
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology

ONE = Topology((StageSpec("only"),))
EVIL = "evil"


@attrs.define(eq=False)
class Asking:
    """A stage with a journal, and those who ask it for something."""

    quota: Quota = attrs.field(factory=Quota)
    journal: MemoryJournal = attrs.field(factory=MemoryJournal)
    driver: Driver = attrs.field(init=False)
    sequences: dict[str, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start again from the journal."""
        self.driver = Driver.open(0, ONE, self.journal)
        self.driver.stage.gatekeeper.quotas = Quotas(self.quota)
        self.driver.flush()

    def ask(
        self, *parts: PublishAsk | ChangeAsk, client: str = "c", who: str = EVIL, done: bool = True
    ) -> Answer | Refusal:
        """Ask for something; what becomes of it."""
        sequence = self.sequences[client] = self.sequences.get(client, 0) + 1
        request = Request(client, 1, sequence, sequence - 1, sequence - 1 if done else 0, parts, who)
        self.driver.handle_request(request, 0.0)
        (answer,) = self.driver.flush().replies
        return answer

    @property
    def used(self) -> dict[str, Used]:
        """What is counted."""
        return self.driver.stage.state.ledger.used

    @property
    def sessions(self) -> list[str]:
        """Who is remembered."""
        return list(self.driver.stage.state.requests.sessions)


def publish(topic: str) -> PublishAsk:
    return PublishAsk(topic, 1, True, (Chunk(1, b"x"),))


def hold(name: str, *topics: str, **fields: object) -> ChangeAsk:
    return ChangeAsk(f"c/{name}", topics, **fields)  # type: ignore[arg-type]  # whatever a test says


def refused(answer: Answer | Refusal, key: str) -> bool:
    """Whether something was refused for this limit, and that was said."""
    return isinstance(answer, Refusal) and answer.code == "limit" and f"limits.{key}_per_identity_max" in answer.reason


# -- topics -----------------------------------------------------------------------------------------------------------


def test_an_identity_brings_so_many_topics_into_being() -> None:
    asking = Asking(Quota(topics=2))
    for topic in ("a", "b", "a"):
        assert isinstance(asking.ask(PublishAsk(topic)), Answer)

    assert refused(asking.ask(PublishAsk("c")), "topics")
    assert isinstance(asking.ask(PublishAsk("b")), Answer)


def test_a_topic_that_is_there_costs_whoever_was_first() -> None:
    asking = Asking(Quota(topics=1))
    asking.ask(PublishAsk("a"), who="good", client="g")

    assert isinstance(asking.ask(PublishAsk("a")), Answer)
    assert isinstance(asking.ask(PublishAsk("b")), Answer)


def test_what_is_refused_brings_nothing_into_being() -> None:
    asking = Asking(Quota(topics=1))
    asking.ask(PublishAsk("a"), PublishAsk("b"))

    assert asking.used == {}
    assert not asking.driver.stage.state.clocks.numbers


def test_a_topic_that_rests_costs_nothing_any_more() -> None:
    asking = Asking(Quota(topics=1))
    asking.ask(PublishAsk("a"))
    asking.driver.stage.state.ledger.rest("a")

    assert asking.used == {}


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_an_identity_has_so_many_subscriptions_whatever_its_clients() -> None:
    asking = Asking(Quota(subscriptions=2))
    for number in range(2):
        assert isinstance(asking.ask(hold(str(number), "a"), client=f"c{number}"), Answer)

    assert refused(asking.ask(hold("3", "a"), client="c3"), "subscriptions")


def test_those_with_a_name_count_as_well() -> None:
    asking = Asking(Quota(subscriptions=1))
    asking.ask(ChangeAsk("n//x", ("a",), opens=1))

    assert refused(asking.ask(ChangeAsk("n//y", ("a",), opens=1)), "subscriptions")


def test_one_that_has_ended_makes_room() -> None:
    asking = Asking(Quota(subscriptions=1))
    asking.ask(hold("1", weight=0))
    asking.ask(hold("1", ends=True))

    assert isinstance(asking.ask(hold("2", "a")), Answer)


def test_the_topics_of_all_subscriptions_count() -> None:
    asking = Asking(Quota(held=3))
    asking.ask(hold("1", "a", "b"))

    assert refused(asking.ask(hold("2", "a", "b")), "held_topics")
    assert isinstance(asking.ask(hold("2", "a")), Answer)
    assert refused(asking.ask(hold("1", "c")), "held_topics")
    assert isinstance(asking.ask(hold("1", "c", remove=("a",))), Answer)


def test_pairs_count_where_topics_are_ordered_against_each_other() -> None:
    asking = Asking(Quota(pairs=3))
    assert isinstance(asking.ask(hold("1", "a", "b", "c")), Answer)

    assert refused(asking.ask(hold("2", "a", "b")), "pairs")
    assert isinstance(asking.ask(hold("2", *"abcdefgh", weight=0)), Answer)


def test_whoever_has_too_much_may_always_have_less() -> None:
    asking = Asking()
    asking.ask(hold("1", "a", "b", "c"))
    asking.driver.stage.gatekeeper.quotas = Quotas(Quota(held=1, pairs=0))

    assert isinstance(asking.ask(hold("1", remove=("a",))), Answer)
    assert isinstance(asking.ask(hold("1", ends=True)), Answer)


def test_bytes_count_of_names_filters_and_clocks() -> None:
    asking = Asking(Quota(state_bytes=20_000))
    asking.ask(hold("1", "a"))

    long = {f"b{n}": "x" * 4_000 for n in range(6)}
    assert refused(asking.ask(hold("2", *long, where=long)), "state_bytes")
    assert refused(asking.ask(hold("2", *(f"{n:03}" + "x" * 200 for n in range(100)), weight=0)), "state_bytes")
    assert isinstance(asking.ask(hold("2", "b")), Answer)


def test_an_acknowledgement_of_very_much_is_not_kept() -> None:
    asking = Asking(Quota(state_bytes=20_000))
    asking.ask(ChangeAsk("n//x", ("a",), opens=1))
    acked = Acked("n//x", "c", 1, 1, {f"z{n}" * 20: 1 for n in range(1_000)}, 1, EVIL)
    asking.driver.stage.handle_acked(0, acked)

    ((_, ended),) = asking.driver.flush().tells

    assert isinstance(ended, Ended)
    assert (ended.code, "state_bytes" in ended.reason) == ("limit", True)


def test_a_subscription_that_changes_and_never_acknowledges_takes_up_more_and_more() -> None:
    asking = Asking(Quota(state_bytes=60_000))
    asking.ask(ChangeAsk("n//x", ("a",), opens=1, weight=0))
    answers = [asking.ask(ChangeAsk("n//x", (f"t{n}",), (f"t{n - 1}",), weight=0)) for n in range(300)]

    assert refused(answers[-1], "state_bytes")


def test_changes_that_wait_for_their_turn_count_with_all_that_they_name() -> None:
    """As long as another stage is not there, one subscription may gain and lose the same topics again and again."""
    asking = Asking(Quota(state_bytes=200_000))
    asking.ask(hold("1", "a", weight=0))
    subscription = asking.driver.stage.state.registrar.subscriptions["c/1"]
    subscription.under_way = True  # its change is on its way to the other one
    names = tuple(f"{n:03}" * 20 for n in range(100))
    for n in range(2, 30):
        part = hold("1", *names, weight=0) if n % 2 else hold("1", remove=names, weight=0)
        asking.driver.stage.handle_request(Request("c", 1, n, n - 1, 0, (part,), EVIL), 0.0)
    answers = asking.driver.flush().replies

    assert answers
    assert all(refused(answer, "state_bytes") for answer in answers)
    assert asking.used[EVIL].size <= 200_000
    assert len(subscription.waiting) == 28 - len(answers) < 15


def test_of_one_subscription_so_many_changes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "CHANGES_MAX", 3)
    asking = Asking()
    asking.ask(hold("1", "a", weight=0))
    asking.driver.stage.state.registrar.subscriptions["c/1"].under_way = True
    for n in range(2, 7):
        request = Request("c", 1, n, n - 1, 0, (hold("1", f"t{n}", weight=0),), EVIL)
        asking.driver.handle_request(request, 0.0)
    answers = asking.driver.flush().replies

    assert [answer.code for answer in answers if isinstance(answer, Refusal)] == ["limit", "limit"]
    assert "3 changes that wait for their turn" in answers[0].reason  # type: ignore[union-attr]  # as was just seen


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_the_session_that_was_not_heard_of_for_longest_makes_room() -> None:
    asking = Asking(Quota(sessions=2))
    asking.ask(PublishAsk("a"), client="x")
    asking.ask(PublishAsk("a"), client="y")
    asking.ask(PublishAsk("a"), client="x")
    asking.ask(PublishAsk("a"), client="z")

    assert asking.sessions == ["x", "z"]


def test_sessions_of_others_stay() -> None:
    asking = Asking(Quota(sessions=1))
    asking.ask(PublishAsk("a"), client="good", who="good")
    for number in range(5):
        asking.ask(PublishAsk("a"), client=f"e{number}")

    assert asking.sessions == ["good", "e4"]


def test_a_session_with_something_under_way_is_not_forgotten_and_who_finds_no_room_is_told() -> None:
    asking = Asking(Quota(sessions=1))
    asking.ask(PublishAsk("a"), client="x")
    asking.driver.stage.state.requests.sessions["x"].pending[9] = 1

    answer = asking.ask(PublishAsk("a"), client="y")

    assert refused(answer, "sessions")
    assert asking.sessions == ["x"]


def test_answers_that_nobody_is_done_with_take_room_from_other_sessions() -> None:
    asking = Asking(Quota(state_bytes=32 * 500))
    for number in range(10):
        asking.ask(*(PublishAsk("a") for _ in range(100)), client=f"e{number}", done=False)

    assert len(asking.sessions) <= 6


def test_who_has_only_been_refused_has_no_session_and_is_not_written_down() -> None:
    asking = Asking(Quota(topics=0))
    before = len(asking.journal.records)
    for number in range(100):
        answer = asking.ask(PublishAsk("a"), client=f"e{number}")
        assert isinstance(answer, Refusal)
        assert not answer.taken
        request = Request(f"f{number}", 1, 1, 0, 0, (PublishAsk("a"),), EVIL)
        asking.driver.handle_request(request, 0.0, request.refused("forbidden", "no"))
        asking.driver.flush()

    assert asking.sessions == []
    assert len(asking.journal.records) == before


def test_what_was_refused_stays_refused_when_it_comes_again() -> None:
    """On its way twice, it may come again when it would be allowed, after its client was told that nothing had become of it."""
    asking = Asking()
    request = Request("c", 1, 1, 0, 0, (PublishAsk("a"),), EVIL)
    asking.driver.handle_request(request, 0.0, request.refused("forbidden", "no"))
    asking.driver.handle_request(request, 0.0)
    answers = asking.driver.flush().replies
    after = Request("c", 1, 2, 0, 1, (PublishAsk("a"),), EVIL)  # it takes the place of the one that was not taken
    asking.driver.handle_request(after, 0.0)

    assert [(answer.code, answer.taken) for answer in answers if isinstance(answer, Refusal)] == [
        ("forbidden", False)
    ] * 2
    assert [type(answer) for answer in asking.driver.flush().replies] == [Answer]


def test_what_was_refused_long_ago_may_be_asked_for_again() -> None:
    """As by a job that is run again when its rights are mended: its requests are the same."""
    asking = Asking()
    request = Request("c", 1, 1, 0, 0, (PublishAsk("a"),), EVIL)
    asking.driver.handle_request(request, 0.0, request.refused("forbidden", "no"))
    asking.driver.flush()
    asking.driver.handle_request(request, gatekeeper_module.REFUSED_S)

    assert [type(answer) for answer in asking.driver.flush().replies] == [Answer]


def test_first_requests_that_were_refused_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatekeeper_module, "REFUSED_MAX", 10)
    asking = Asking(Quota(topics=0))
    for number in range(100):
        asking.ask(PublishAsk("a"), client=f"e{number}")

    assert list(asking.driver.stage.gatekeeper.refused) == [f"e{number}" for number in range(90, 100)]


def test_what_is_refused_is_written_down_without_what_was_asked_for() -> None:
    asking = Asking()
    asking.ask(PublishAsk("a"))
    before = sum(map(len, asking.journal.records))
    request = Request("c", 1, 2, 1, 1, (hold("1", "t", where={"t": "z" * 100_000}),), EVIL)
    asking.driver.handle_request(request, 0.0, request.refused("forbidden", "no"))
    asking.driver.flush()

    assert sum(map(len, asking.journal.records)) - before < 500


# -- after a restart --------------------------------------------------------------------------------------------------


def _much(asking: Asking) -> None:
    """Some of everything."""
    for number in range(8):
        asking.ask(PublishAsk(f"t{number}"), client=f"c{number % 5}")
        asking.ask(hold(f"s{number}", "a", f"b{number}"), client=f"c{number % 5}")
    asking.ask(ChangeAsk("n//x", ("a", "b"), opens=1), client="c1")
    asking.driver.stage.handle_acked(0, Acked("n//x", "c1", 1, 1, {"a": 0, "b": 0}, 0, EVIL))
    asking.ask(hold("s1", ends=True), client="c1")
    asking.driver.flush()


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_is_counted_is_the_same_after_a_restart_also_with_other_quotas(has_snapshot: bool) -> None:
    asking = Asking(Quota(sessions=3, topics=5, subscriptions=6))
    _much(asking)
    before, sessions = msgspec.to_builtins(asking.driver.stage.state.ledger), asking.sessions
    if has_snapshot:
        asking.journal.replace(asking.driver.stage.snapshot())
    asking.quota = Quota(sessions=1, topics=1, subscriptions=1)
    asking.restart()

    assert msgspec.to_builtins(asking.driver.stage.state.ledger) == before
    assert asking.sessions == sessions
    assert list(asking.driver.stage.state.requests.owned[EVIL]) == sessions


def test_who_is_in_this_process_is_not_counted() -> None:
    asking = Asking(Quota(sessions=0, topics=0, subscriptions=0))

    assert isinstance(asking.ask(PublishAsk("a"), hold("1", "a"), who=""), Answer)
    assert (asking.used, asking.driver.stage.state.ledger.brought) == ({}, {})


def test_when_all_is_gone_nothing_is_counted() -> None:
    asking = Asking()
    asking.ask(PublishAsk("a"))
    asking.ask(hold("1", "a", "b"))
    assert asking.used[EVIL].pairs == 1
    asking.ask(hold("1", ends=True))
    stage: Stage = asking.driver.stage
    subscription = stage.state.registrar.subscriptions.get("c/1")
    assert subscription is not None
    stage.handle_passed(TopicsReleased("c/1", tuple(subscription.leaving)))
    stage.state.ledger.rest("a")

    assert asking.used == {}


# -- what a stage can have at all -------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [EVIL, ""])
def test_a_stage_has_no_more_topics_in_use_than_its_log_has_room_for(who: str) -> None:
    """Whoever publishes on them: its log would fail, at each start again."""
    asking = Asking()
    asking.driver.stage.gatekeeper.topics_max = 3
    for topic in "abc":
        assert isinstance(asking.ask(publish(topic), who=who), Answer)
    refusal = asking.ask(publish("c"), publish("d"), who=who)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.taken) == ("limit", True)
    assert "nothing is published on another one, 'd'" in refusal.reason
    assert isinstance(asking.ask(publish("c"), who=who), Answer)
    asking.driver.stage.waking.rest(["a"])
    assert isinstance(asking.ask(publish("d"), who=who), Answer)
    asking.restart()
    assert list(asking.driver.stage.state.clocks.numbers) == ["b", "c", "d"]
