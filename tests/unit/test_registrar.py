"""The registrar: who may open a subscription that has a name, where it goes on, and what of the logs it may still need."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ordered_pubsub.core.log.floors import AT_ONCE, LONG, Needs
from ordered_pubsub.core.messages import (
    VERSION_MAX,
    Acked,
    Change,
    ChangeAsk,
    Ended,
    Progress,
    Refusal,
    Request,
    TopicsReleased,
)
from ordered_pubsub.core.order.registered import WaitingChange
from ordered_pubsub.core.order.registrar import WRONG_EPOCH, Registrar


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


def adding(topics: str = "", remove: str = "", **others: Any) -> ChangeAsk:
    """A change of a subscription without a name."""
    return ChangeAsk("s", tuple(topics), tuple(remove), **others)


def opening(topics: str = "", epoch: int = 1, **others: Any) -> ChangeAsk:
    return adding(topics, opens=epoch, **others)


def request(ask: ChangeAsk, session: str) -> Request:
    return Request(session, 1, 1, 0, 0, (ask,))


def refusal(registrar: Registrar, ask: ChangeAsk, session: str = "one") -> tuple[str, str]:
    refused = registrar.refuse(request(ask, session), ask)
    assert isinstance(refused, Refusal)
    return refused.code, refused.reason


def start(registrar: Registrar, ask: ChangeAsk, session: str = "one") -> Change:
    """A change is taken, and enters the line."""
    assert registrar.refuse(request(ask, session), ask) is None
    assert registrar.ask(ask, WaitingChange(request(ask, session), 0, 0.0)) is not None
    return registrar.begin(ask)


def finish(registrar: Registrar, change: Change, **entries: int) -> Change:
    """It has passed its last stage."""
    change.entries.update(entries)
    registrar.settle(change)
    return change


def take(registrar: Registrar, ask: ChangeAsk, session: str = "one", **entries: int) -> Change:
    return finish(registrar, start(registrar, ask, session), **entries)


def acked(version: int, position: int, session: str = "one", **clock: int) -> Acked:
    return Acked("s", session, 1, version, clock, position)


def floors(registrar: Registrar) -> dict[str, int]:
    return registrar.subscriptions["s"].floors()


def test_changes_that_are_kept_have_the_names_of_their_topics_once(registrar: Registrar) -> None:
    take(registrar, opening("a", epoch=1))
    for number in range(10):
        ask = ChangeAsk("s", (f"topic {number}",))
        change = start(registrar, ask)
        fresh = msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=Change)
        finish(registrar, fresh, **dict.fromkeys(fresh.topics, 1))
    subscription = registrar.subscriptions["s"]
    assert subscription.resume is not None
    names = [
        name for kept in subscription.resume.changes for name in (*kept.old, *kept.new, *kept.entries) if name != "a"
    ]
    assert len(names) > 100
    assert len({id(name) for name in names}) == 10


# -- opening ------------------------------------------------------------------------------------------------------------


def test_who_opens_what_is_not_there_begins_it(registrar: Registrar) -> None:
    change = take(registrar, opening("ab"))
    assert (change.version, change.new, change.resume) == (1, ("a", "b"), None)


def test_who_opens_what_is_not_there_without_topics_is_told_so(registrar: Registrar) -> None:
    code, reason = refusal(registrar, opening())
    assert code == "unknown"
    assert "name the topics that it is to hold" in reason


def test_who_opens_what_is_there_goes_on_with_it_and_changes_nothing(registrar: Registrar) -> None:
    take(registrar, opening("ab"))
    change = take(registrar, opening("ba", epoch=2), "two")
    assert (change.version, change.old, change.new) == (2, ("a", "b"), ("a", "b"))
    assert change.resume is not None


def test_who_names_no_topics_goes_on_with_those_that_it_holds(registrar: Registrar) -> None:
    take(registrar, opening("ab"))
    assert take(registrar, opening(epoch=2), "two").new == ("a", "b")


@pytest.mark.parametrize("epoch", [1, 2])
def test_who_names_no_later_epoch_is_told_which_it_is(registrar: Registrar, epoch: int) -> None:
    """What a dead session had asked for, and that comes late, takes nothing back."""
    take(registrar, opening("a"))
    take(registrar, opening("a", epoch=2), "two")
    ask = opening("a", epoch=epoch)
    refused = registrar.refuse(request(ask, "one"), ask)
    assert refused is not None
    assert (refused.code, refused.opened) == (WRONG_EPOCH, 2)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (opening("ac", epoch=2, where={"a": "x > 1"}), "is there and holds 'a', 'b'"),
        (opening("ab", epoch=2, weight=1, where={"a": "x > 1"}), "another order="),
        (opening("ab", epoch=2, where={"a": "x > 2"}), "another filter"),
        (opening("ab", epoch=2), "another filter"),
    ],
)
def test_who_wants_something_else_than_is_there_is_told_in_what(
    registrar: Registrar, ask: ChangeAsk, says: str
) -> None:
    take(registrar, opening("ab", where={"a": "x > 1"}))
    code, reason = refusal(registrar, ask)
    assert code == "exists"
    assert says in reason


def test_what_has_no_name_cannot_be_opened(registrar: Registrar) -> None:
    take(registrar, adding("a"))
    assert refusal(registrar, opening("a"), "two") == ("exists", "subscription 's' has no name to be resumed by")


def test_a_topic_that_is_held_keeps_its_filter(registrar: Registrar) -> None:
    """Whoever asks for it once more, also together with leaving it."""
    take(registrar, opening("ab", where={"a": "x > 1"}))
    again = take(registrar, adding("abc", "b", where={"a": "x > 2", "b": "x > 3", "c": "x > 4"}))
    assert (set(again.new), again.where) == ({"a", "b", "c"}, {"c": "x > 4"})
    assert registrar.subscriptions["s"].where == {"a": "x > 1", "c": "x > 4"}


def test_a_filter_goes_with_its_topic(registrar: Registrar) -> None:
    """Of changes as well that wait for their turn."""
    first = start(registrar, opening("a", where={"a": "x > 1"}))
    for ask in (adding("", "a"), adding("a", where={"a": "x > 2"})):
        assert registrar.ask(ask, WaitingChange(request(ask, "one"), 0, 0.0)) is None
    assert registrar.subscriptions["s"].where == {"a": "x > 2"}
    registrar.settle(first)
    left = registrar.begin(adding("", "a"))
    registrar.settle(left)
    assert (left.where, registrar.begin(adding("a", where={"a": "x > 2"})).where) == ({}, {"a": "x > 2"})


def test_whose_subscription_goes_on_elsewhere_may_not_change_it(registrar: Registrar) -> None:
    take(registrar, opening("a"))
    take(registrar, opening(epoch=2), "two")
    assert refusal(registrar, adding("b")) == ("taken-over", "subscription 's' goes on in another session now")


def test_a_subscription_counts_for_the_session_that_has_it(registrar: Registrar) -> None:
    take(registrar, opening("a"))
    take(registrar, opening(epoch=2), "two")
    assert registrar.held == {"two": 1}


# -- resuming -----------------------------------------------------------------------------------------------------------


def test_who_resumes_is_told_what_was_acknowledged_last(registrar: Registrar) -> None:
    take(registrar, opening("ab"), a=1)
    registrar.acknowledged(acked(1, 7, a=5, b=3))
    resume = take(registrar, opening(epoch=2), "two").resume
    assert resume is not None
    assert (resume.version, resume.clock, resume.position, resume.topics) == (1, {"a": 5, "b": 3}, 7, ("a", "b"))


def test_who_resumes_is_told_the_filters_of_what_was_held_and_of_what_came_since(registrar: Registrar) -> None:
    """Of a topic that it has lost since it needs some events still, by the filter of that time."""
    take(registrar, opening("ab", where={"a": "x > 1", "b": "x > 2"}))
    registrar.acknowledged(acked(1, 0, a=0, b=0))
    take(registrar, adding("c", "a", where={"c": "x > 3"}))
    resume = take(registrar, opening("", epoch=2), "two").resume
    assert resume is not None
    assert resume.where == {"a": "x > 1", "b": "x > 2"}
    assert [change.where for change in resume.changes] == [{"c": "x > 3"}]
    registrar.acknowledged(acked(3, 0, "two", b=0, c=0))
    resume = take(registrar, opening("", epoch=3), "three").resume
    assert resume is not None
    assert (resume.where, resume.changes) == ({"b": "x > 2", "c": "x > 3"}, [])


def test_filters_are_kept_of_what_was_acknowledged_before_it_is_known_here(registrar: Registrar) -> None:
    """A client knows where its change has passed before the registrar does."""
    change = start(registrar, opening("a", where={"a": "x > 1"}))
    registrar.acknowledged(acked(1, 0, a=0))
    finish(registrar, change)
    resume = take(registrar, opening("", epoch=2), "two").resume
    assert resume is not None
    assert resume.where == {"a": "x > 1"}


def test_who_resumes_before_anything_was_acknowledged_is_told_where_it_begins(registrar: Registrar) -> None:
    first = take(registrar, opening("ab", start={"a": 2}), a=9)
    resume = take(registrar, opening(epoch=2), "two").resume
    assert resume is not None
    assert (resume.version, resume.start, resume.clock) == (0, {"a": 2}, {})
    assert [(change.version, change.entries) for change in resume.changes] == [(1, first.entries)]


def test_who_resumes_repeats_the_changes_since_and_no_others(registrar: Registrar) -> None:
    take(registrar, opening("a"))
    take(registrar, adding("b"), b=2)
    registrar.acknowledged(acked(2, 7, a=5, b=3))
    take(registrar, adding("c", "a"), a=6, c=1)
    resume = take(registrar, opening(epoch=2), "two").resume
    assert resume is not None
    assert [(change.version, change.old, change.new) for change in resume.changes] == [(3, ("a", "b"), ("b", "c"))]
    assert resume.topics == ("a", "b")


def test_what_it_held_when_it_acknowledged_is_what_the_first_change_since_found(registrar: Registrar) -> None:
    take(registrar, opening("ab"))
    registrar.acknowledged(acked(1, 1, a=1, b=0))
    take(registrar, adding("", "a"), a=4)
    take(registrar, adding("c"))
    assert registrar.subscriptions["s"].acked_topics == ("a", "b")


def test_an_earlier_resumption_is_remembered_as_a_change_of_nothing(registrar: Registrar) -> None:
    take(registrar, opening("ab"))
    registrar.acknowledged(acked(1, 1, a=1, b=0))
    take(registrar, opening(epoch=2), "two")
    resume = take(registrar, opening(epoch=3), "three").resume
    assert resume is not None
    assert [(change.version, change.old, change.new, change.resume) for change in resume.changes] == [(2, (), (), None)]
    assert resume.topics == ("a", "b")


def test_what_who_resumes_is_told_stays_what_it_was(registrar: Registrar) -> None:
    """The change with it is still on its way up when the next one is noted."""
    take(registrar, opening("a"))
    change = start(registrar, opening(epoch=2), "two")
    assert change.resume is not None
    before = list(change.resume.changes)
    finish(registrar, change)
    assert change.resume.changes == before


# -- acknowledging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "is_news"),
    [
        (acked(1, 8, a=6), True),
        (acked(2, 7, a=5, b=0), True),
        (acked(2, 7, a=5), True),
        (acked(1, 7, a=5), False),
        (acked(1, 6, a=4), False),
    ],
    ids=["an event", "a change", "a change of nothing", "the same", "less"],
)
def test_only_what_says_more_than_is_known_is_news(registrar: Registrar, said: Acked, is_news: bool) -> None:
    take(registrar, opening("a"))
    registrar.acknowledged(acked(1, 7, a=5))
    take(registrar, adding("b"))
    assert registrar.is_news(said) is is_news


def test_what_comes_late_takes_nothing_back(registrar: Registrar) -> None:
    take(registrar, opening("a"))
    registrar.acknowledged(acked(1, 7, a=5))
    registrar.acknowledged(acked(1, 6, a=4))
    resume = registrar.subscriptions["s"].resume
    assert resume is not None
    assert (resume.clock, resume.position) == ({"a": 5}, 7)


@pytest.mark.parametrize("has_name", [True, False])
def test_who_does_not_have_the_subscription_may_not_acknowledge(registrar: Registrar, has_name: bool) -> None:
    if has_name:
        take(registrar, opening("a"))
        take(registrar, opening(epoch=2), "two")
    ended = registrar.refuse_ack(acked(1, 7, a=5))
    assert isinstance(ended, Ended)
    assert ended.code == ("taken-over" if has_name else "ended")
    assert ended.session == "one"


def test_who_has_it_may_acknowledge(registrar: Registrar) -> None:
    take(registrar, opening("a"))
    assert registrar.refuse_ack(acked(1, 7, a=5)) is None


# -- what may still be needed of the logs -------------------------------------------------------------------------------


def test_what_is_being_gained_is_needed_from_the_beginning_until_it_is_known_where(registrar: Registrar) -> None:
    change = start(registrar, adding("a"))
    assert floors(registrar) == {"a": 0}
    finish(registrar, change, a=5)
    assert floors(registrar) == {"a": 5}


def test_what_a_change_that_waits_gains_is_needed_as_well(registrar: Registrar) -> None:
    """Between two changes nobody has told the owner of the second one's topics anything."""
    first, second = start(registrar, adding("a")), adding("b")
    assert registrar.ask(second, WaitingChange(request(second, "one"), 0, 0.0)) is None
    finish(registrar, first, a=5)
    assert floors(registrar) == {"a": 5, "b": 0}


def test_what_was_lost_is_needed_until_it_is_said_that_it_is_passed(registrar: Registrar) -> None:
    take(registrar, adding("ab"), a=1)
    take(registrar, adding("", "a"), a=7)
    assert floors(registrar) == {"a": 1, "b": 0}
    registrar.passed(TopicsReleased("s", ("a",)))
    assert floors(registrar) == {"b": 0}


def test_what_was_lost_and_gained_again_stays_needed(registrar: Registrar) -> None:
    take(registrar, adding("a"), a=1)
    take(registrar, adding("", "a"), a=7)
    take(registrar, adding("a"), a=9)
    registrar.passed(TopicsReleased("s", ("a",)))
    assert floors(registrar) == {"a": 1}


def test_a_best_effort_subscription_needs_nothing_of_the_logs(registrar: Registrar) -> None:
    take(registrar, adding("a", best_effort=True), a=1)
    assert floors(registrar) == {}


def test_one_with_a_name_needs_what_it_has_not_acknowledged(registrar: Registrar) -> None:
    take(registrar, opening("a"), a=1)
    registrar.acknowledged(acked(1, 7, a=5))
    take(registrar, adding("b"), b=3)
    assert floors(registrar) == {"a": 5, "b": 3}


def test_one_with_a_name_needs_its_past_from_where_it_starts(registrar: Registrar) -> None:
    take(registrar, opening("ab", start={"a": 2}), a=9, b=9)
    assert floors(registrar) == {"a": 2, "b": 0}


def test_one_that_has_ended_still_needs_the_past_that_it_had_not_read(registrar: Registrar) -> None:
    take(registrar, opening("ab", start={"a": 2}), a=9, b=9)
    take(registrar, adding(ends=True), a=12, b=10)
    assert floors(registrar) == {"a": 2, "b": 0}
    assert Needs(registrar).note_progress(Progress("s", {"a": 12, "b": 9})) == TopicsReleased("s", ("a",))


def test_one_that_is_being_ended_before_it_has_begun_needs_all(registrar: Registrar) -> None:
    change = start(registrar, opening("a", start={}))
    ask = adding(ends=True)
    assert registrar.ask(ask, WaitingChange(request(ask, "one"), 0, 0.0)) is None
    assert floors(registrar) == {"a": 0}
    finish(registrar, change, a=9)
    finish(registrar, registrar.begin(ask), a=9)
    assert floors(registrar) == {"a": 0}


def test_one_that_has_ended_is_forgotten_when_it_needs_nothing_any_more(registrar: Registrar) -> None:
    take(registrar, adding("ab"))
    take(registrar, adding(ends=True), a=7, b=8)
    registrar.passed(TopicsReleased("s", ("a",)))
    assert "s" in registrar.subscriptions
    registrar.passed(TopicsReleased("s", ("b",)))
    assert (registrar.subscriptions, registrar.held) == ({}, {})


def test_one_with_a_name_that_has_ended_still_needs_what_it_had_not_acknowledged(registrar: Registrar) -> None:
    take(registrar, opening("a"), a=1)
    registrar.acknowledged(acked(1, 7, a=5))
    take(registrar, adding(ends=True), a=9)
    assert floors(registrar)["a"] <= 5


# -- what clients say of that -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        (Progress("s", {"a": 7}), ("a",)),
        (Progress("s", {"a": 6}), ()),
        (Progress("s", {"b": 0}), ()),
        (Progress("s", {"b": 0}, True, 2), ("a",)),
        (Progress("s", {"b": 0}, True, 1), ()),
    ],
    ids=["at its end", "before its end", "no word of it", "all, without it", "all, as of before it was lost"],
)
def test_a_lost_topic_is_passed_when_its_client_says_so(
    registrar: Registrar, said: Progress, passed: tuple[str, ...]
) -> None:
    take(registrar, adding("ab"), a=1)
    take(registrar, adding("", "a"), a=7)
    assert registrar.subscriptions["s"].passed(said) == passed
    assert Needs(registrar).note_progress(said) == (TopicsReleased("s", passed) if passed else None)


def needed(needs: Needs) -> dict[str, int]:
    """For each topic, up to where no subscription needs anything."""
    found: dict[int, dict[str, int]] = {}
    for _ in needs.finding(lambda topic: 0, found):
        pass
    return found.get(0, {})


def test_without_a_word_of_its_client_everything_since_it_was_gained_is_needed(registrar: Registrar) -> None:
    take(registrar, adding("a"), a=4)
    assert needed(Needs(registrar)) == {"a": 4}


def test_what_a_client_does_not_need_any_more_may_be_forgotten(registrar: Registrar) -> None:
    needs = Needs(registrar)
    take(registrar, adding("ab"), a=4)
    needs.note_progress(Progress("s", {"a": 9, "b": 2}))
    needs.note_progress(Progress("s", {"a": 8}))
    assert needed(needs) == {"a": 9, "b": 2}


def test_what_its_client_says_does_not_count_for_one_with_a_name(registrar: Registrar) -> None:
    """What came to a client that dies is lost, unless it was acknowledged."""
    needs = Needs(registrar)
    take(registrar, opening("a"), a=1)
    registrar.acknowledged(acked(1, 7, a=5))
    needs.note_progress(Progress("s", {"a": 9}))
    assert needed(needs) == {"a": 5}


def test_the_subscription_that_needs_most_counts(registrar: Registrar) -> None:
    take(registrar, adding("a"), a=4)
    other = ChangeAsk("other", ("a",))
    take(registrar, other, a=2)
    assert needed(Needs(registrar)) == {"a": 2}


def test_after_many_changes_what_a_named_subscription_needs_is_remembered_until_anything_changes(
    registrar: Registrar,
) -> None:
    needs = Needs(registrar)
    take(registrar, opening("a"), a=1)
    for number in range(LONG):
        take(registrar, ChangeAsk("s", (f"t{number}",)), **{f"t{number}": number})
        assert needed(needs) == floors(registrar)
    assert set(needs._long) == {"s"}
    change = start(registrar, adding("b"))
    assert needed(needs) == floors(registrar)
    assert needed(needs)["b"] == 0
    finish(registrar, change, b=7)
    assert needed(needs)["b"] == 7
    registrar.acknowledged(acked(1, 7, a=5))
    assert needed(needs) == floors(registrar)
    assert needed(needs)["a"] == 5


def test_nothing_is_remembered_of_subscriptions_that_are_gone(registrar: Registrar) -> None:
    needs = Needs(registrar)
    take(registrar, adding("a"))
    needs.note_progress(Progress("s", {"a": 9}))
    take(registrar, adding(ends=True), a=9)
    registrar.passed(TopicsReleased("s", ("a",)))
    needed(needs)
    needs.note_progress(Progress("s", {"a": 9}))
    assert needs._said == {}


def test_what_is_over_needs_nothing_any_more_whatever_is_still_said_of_it(registrar: Registrar) -> None:
    needs = Needs(registrar)
    take(registrar, adding("a"), a=4)
    needs.note_progress(Progress("s", {"a": 9}))
    take(registrar, ChangeAsk("s", ends=True), a=9)
    passed = needs.note_progress(Progress("s", {}, True, VERSION_MAX))
    assert passed == TopicsReleased("s", ("a",))
    registrar.passed(passed)

    assert needs.note_progress(Progress("s", {"a": 11})) is None
    assert needed(needs) == {}
    take(registrar, adding("a"), a=12)
    assert needed(needs) == {"a": 12}


def test_a_subscription_that_ends_while_all_are_looked_at_is_not_waited_for(registrar: Registrar) -> None:
    needs, found = Needs(registrar), dict[int, dict[str, int]]()
    take(registrar, ChangeAsk("first", tuple(f"t{number}" for number in range(AT_ONCE))))
    take(registrar, adding("a"), a=4)
    looking = needs.finding(lambda topic: 0, found)
    next(looking)
    take(registrar, ChangeAsk("s", ends=True), a=4)
    registrar.passed(TopicsReleased("s", ("a",)))
    assert "s" not in registrar.subscriptions

    assert list(looking) == []
    assert "a" not in found[0]
