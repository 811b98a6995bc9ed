"""A reader with a name: what a turn asks for, and how far it says to have come."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.client.named_reader import TELL_S, NamedReader, Turn
from ordered_pubsub.core.client.session import Outcome, Queued
from ordered_pubsub.core.messages import Acked, Change, ChangeAsk, Refusal, Resume
from ordered_pubsub.core.order.registrar import OPENINGS_MAX, WRONG_EPOCH
from ordered_pubsub.errors import ConfigurationError, UsageError

NAME = "market//spark"


def reader() -> NamedReader:
    return NamedReader("market", NAME)


def outcome(change: Change | None = None, refusal: Refusal | None = None) -> Outcome:
    return Outcome(1, Queued([], []), [], change, refusal)


def change(*topics: str, entries: dict[str, int] | None = None, resume: Resume | None = None) -> Outcome:
    """Now it holds these."""
    return outcome(Change(NAME, 3, (), topics, 2, False, entries or {}, resume))


def refusal(code: str, opened: int = 0) -> Outcome:
    return outcome(refusal=Refusal("session", 1, 1, code, "no", opened=opened))


def asked(said: ChangeAsk | Acked) -> ChangeAsk:
    assert isinstance(said, ChangeAsk)
    return said


def ended(turn: Turn) -> dict[str, int]:
    """What it finds when its acknowledgement is saved."""
    with pytest.raises(StopIteration) as over:
        turn.send(None)
    found: dict[str, int] = over.value.value
    return found


def test_a_turn_begins_the_subscription_says_how_far_it_is_and_finds_a_cut() -> None:
    one = reader()
    turn = one.cut("session", ["a", "b"], {"a": 2}, 5.0)
    ask = asked(next(turn))
    assert (ask.subscription, ask.add, ask.opens, ask.start) == (NAME, ("a", "b"), 1, {"a": 2})

    said = turn.send(change("a", "b", entries={"a": 7}))
    assert said == Acked(NAME, "session", 1, 3, {"a": 2, "b": 0}, 2)
    assert ended(turn) == {"a": 7, "b": 0}
    assert not one.is_due({"a": 2}, 5.0 + TELL_S - 1)
    assert one.is_due({"a": 2}, 5.0 + TELL_S)
    assert one.is_due({"a": 7}, 5.0)


def test_the_next_turn_goes_on_with_it_in_the_next_epoch() -> None:
    one = reader()
    turn = one.cut("session", ["a"], {}, 0.0)
    next(turn)
    turn.send(change("a"))
    ended(turn)

    ask = asked(next(one.cut("session", ["a"], {}, 0.0)))
    assert (ask.add, ask.opens) == ((), 2)


def test_another_process_goes_on_in_the_epoch_after_the_last_and_takes_nothing_back() -> None:
    one = reader()
    turn = one.cut("session", ["a"], {"a": 2}, 0.0)
    next(turn)
    again = asked(turn.send(refusal(WRONG_EPOCH, opened=8)))
    assert (again.add, again.opens) == ((), 9)

    resume = Resume(3, ("a",), {"a": 5}, 11, None, {})
    said = turn.send(change("a", resume=resume))
    assert isinstance(said, Acked)
    assert (said.clock, said.position) == ({"a": 5}, 11)


def test_topics_that_are_new_are_added() -> None:
    turn = reader().cut("session", ["a", "b"], {}, 0.0)
    next(turn)
    ask = asked(turn.send(change("a")))
    assert (ask.add, ask.opens) == (("b",), 0)

    assert isinstance(turn.send(change("a", "b", entries={"b": 4})), Acked)
    assert ended(turn) == {"a": 0, "b": 4}


def test_a_turn_that_was_broken_off_asks_for_the_same_again() -> None:
    one = reader()
    first = asked(next(one.cut("session", ["a"], {}, 0.0)))

    assert asked(next(one.cut("session", ["a"], {}, 0.0))) == first
    assert one.is_due({}, 0.0)


def test_what_is_refused_is_said() -> None:
    for code, error, said in (
        ("exists", ConfigurationError, "holds other topics"),
        ("forbidden", UsageError, r"no \(forbidden\)"),
    ):
        turn = reader().cut("session", ["a"], {}, 0.0)
        next(turn)
        with pytest.raises(error, match=said):
            turn.send(refusal(code))


def test_who_is_overtaken_again_and_again_gives_up() -> None:
    turn = reader().cut("session", ["a"], {}, 0.0)
    next(turn)
    for opened in range(1, OPENINGS_MAX):
        turn.send(refusal(WRONG_EPOCH, opened))
    with pytest.raises(UsageError, match=WRONG_EPOCH):
        turn.send(refusal(WRONG_EPOCH, OPENINGS_MAX))
