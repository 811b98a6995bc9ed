"""Work that others cause: small steps, by turns, and no more of it than there is room for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from ordered_pubsub.core.stage.turns import Turns, Work


def work(done: list[str], name: str, steps: int) -> Work:
    """Work that says what it does."""
    for step in range(1, steps + 1):
        done.append(f"{name}{step}")
        if step < steps:
            yield


def failing() -> Work:
    """Work that nobody must do."""
    pytest.fail("it was forgotten")
    yield


def run(turns: Turns) -> None:
    while turns.has_work:
        turns.step()


def test_those_who_cause_work_take_turns_step_by_step() -> None:
    turns, done = Turns(), list[str]()
    turns.put("evil", "e", work(done, "e", 4))
    turns.put("good", "g", work(done, "g", 2))

    run(turns)

    assert done == ["e1", "g1", "e2", "g2", "e3", "e4"]


def test_many_sessions_of_one_owner_have_one_turn_together() -> None:
    turns, done = Turns(), list[str]()
    for session in "abc":
        turns.put("evil", session, work(done, session, 1))
    turns.put("good", "g", work(done, "g", 2))

    run(turns)

    assert done == ["a1", "g1", "b1", "g2", "c1"]


def test_the_work_of_a_session_is_done_in_its_order() -> None:
    turns, done = Turns(), list[str]()
    turns.put("o", "s", work(done, "first", 2))
    turns.put("o", "s", work(done, "second", 1))

    run(turns)

    assert done == ["first1", "first2", "second1"]


def test_a_session_has_no_more_work_waiting_than_it_may() -> None:
    turns = Turns(works_max=2)

    taken = [turns.put("o", "s", iter(())) for _ in range(3)]

    assert taken == [True, True, False]
    assert turns.dropped == 1


def test_who_holds_something_for_work_is_told_once_when_it_is_over_or_forgotten() -> None:
    turns, gone = Turns(works_max=2), list[str]()

    def fails() -> Work:
        raise LookupError
        yield

    for name in ("over", "forgotten", "not taken"):
        turns.put("o", "s", work([], name, 1), 10, partial(gone.append, name))
    turns.put("o", "t", fails(), 10, partial(gone.append, "failed"))
    assert (turns.size("o"), gone) == (30, [])
    turns.step()
    assert (turns.size("o"), gone) == (20, ["over"])
    with pytest.raises(LookupError):
        turns.step()
    turns.forget("o", "s")

    assert (turns.size("o"), gone) == (0, ["over", "failed", "forgotten"])


def test_an_owner_has_no_more_bytes_waiting_than_it_may_unless_it_is_one_piece() -> None:
    turns = Turns(bytes_max=100)

    assert turns.put("o", "s", iter(()), 1_000)
    assert not turns.put("o", "s", iter(()), 1)

    run(turns)
    assert turns.put("o", "s", iter(()), 60)
    assert turns.put("o", "s", iter(()), 40)


def test_what_was_forgotten_is_not_done() -> None:
    turns, done = Turns(), list[str]()
    turns.put("o", "a", work(done, "a", 2))
    turns.put("o", "b", work(done, "b", 1))
    turns.forget("o", "a")

    run(turns)

    assert done == ["b1"]


def test_work_may_end_its_own_session() -> None:
    turns = Turns()

    def ending() -> Iterator[None]:
        turns.forget("o", "s")
        yield

    turns.put("o", "s", ending())
    turns.put("o", "s", failing())
    run(turns)

    assert not turns.has_work


def test_work_that_fails_is_over_and_the_rest_goes_on() -> None:
    turns, done = Turns(), list[str]()

    def failing() -> Iterator[None]:
        yield
        raise ValueError("no")

    turns.put("o", "s", failing())
    turns.put("o", "s", work(done, "then", 1))
    turns.step()
    with pytest.raises(ValueError, match="no"):
        turns.step()
    run(turns)

    assert done == ["then1"]
