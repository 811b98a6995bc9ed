"""The identity of requests: who may not ask, and how much is remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Refusal, Relay, Request
from ordered_pubsub.core.stage import _requests as requests
from ordered_pubsub.core.stage._requests import Requests, RequestVerdict
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.topology import StageSpec, Topology

TWO = Topology((StageSpec("high", ("h",)), StageSpec("low", ("l",))))
FORBIDDEN = "identity 'desk' may not publish on 'l'"


def publish(sequence: int, topic: str = "l", done: int = 0, parts: int = 1) -> Request:
    return Request("c", 1, sequence, sequence - 1, done, (PublishAsk(topic),) * parts)


def low() -> Stage:
    stage = Stage.restore(1, TWO, None, [])
    stage.peers.unconfirmed.clear()
    stage.take_effects()
    return stage


def ask(stage: Stage, request: Request, refusal: Refusal | None = None) -> list[Answer | Refusal]:
    stage.handle_request(request, 1.0, refusal)
    return stage.take_effects().replies


def forbid(request: Request) -> Refusal:
    return request.refused("forbidden", FORBIDDEN)


# -- who may not ask ----------------------------------------------------------------------------------------------------


def test_what_may_not_be_asked_is_refused_and_has_its_place() -> None:
    stage = low()
    (refusal,) = ask(stage, publish(1), forbid(publish(1)))
    assert refusal == publish(1).refused("forbidden", FORBIDDEN, taken=True)
    assert ask(stage, publish(1)) == [refusal]  # whatever is allowed by now
    (answer,) = ask(stage, publish(2))
    assert isinstance(answer, Answer)
    assert stage.state.clocks.numbers == {"l": 1}


def test_what_was_taken_while_it_was_allowed_is_answered_as_it_was_then() -> None:
    """Its number has been given; if its client did not learn that, everybody would wait for the event."""
    stage = low()
    first = ask(stage, publish(1))
    assert ask(stage, publish(1), forbid(publish(1))) == first


def test_what_a_home_stage_does_not_allow_goes_to_the_stage_that_takes_it() -> None:
    home = Stage.restore(0, TWO, None, [])
    home.peers.unconfirmed.clear()
    home.peers.greeted[1] = True
    home.take_effects()
    home.handle_request(publish(1), 1.0, forbid(publish(1)))
    effects = home.take_effects()
    assert effects.sends == [(1, Relay(0, publish(1), forbid(publish(1))))]
    assert effects.replies == []


def test_a_refusal_is_remembered_by_a_stage_that_starts_again() -> None:
    stage = Stage.restore(1, TWO, None, [])
    stage.peers.unconfirmed.clear()
    stage.handle_request(publish(1), 1.0, forbid(publish(1)))
    effects = stage.take_effects()
    again = Stage.restore(1, TWO, None, effects.journal)
    again.peers.unconfirmed.clear()
    assert ask(again, publish(1)) == effects.replies


# -- how much is remembered ---------------------------------------------------------------------------------------------


def take(known: Requests, request: Request) -> None:
    assert known.judge(request, 0.0) is RequestVerdict.TAKE
    known.take(request, 0, 0.0)


def answer(known: Requests, request: Request, entries: int = 0) -> None:
    parts = [Publication(part.topic, 1, 0.0, 1) for part in request.parts if isinstance(part, PublishAsk)]
    parts[0].entries = {f"t{number}": 1 for number in range(entries)}
    known.answered(Answer("c", 1, request.sequence, list(parts)))


@pytest.mark.parametrize("answered", [True, False])
def test_so_many_topics_are_remembered_for_a_client_and_no_more_until_it_says_that_it_is_done(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UNANSWERED_LOAD_MAX", 100)
    known = Requests()
    for sequence in range(1, 6):
        take(known, publish(sequence, parts=20))
        if answered:
            answer(known, publish(sequence, parts=20))
    assert known.judge(publish(6), 0.0) is RequestVerdict.IGNORE
    assert known.judge(publish(6, done=1), 0.0) is (RequestVerdict.TAKE if answered else RequestVerdict.IGNORE)
    answer(known, publish(1, parts=20))
    take(known, publish(6, done=1))


def test_the_entries_of_an_answer_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "UNANSWERED_LOAD_MAX", 100)
    known = Requests()
    for sequence in (1, 2):
        take(known, publish(sequence))
        answer(known, publish(sequence), entries=49)
    assert known.judge(publish(3), 0.0) is RequestVerdict.IGNORE
    assert known.judge(publish(3, done=1), 0.0) is RequestVerdict.TAKE


def test_who_keeps_one_answer_goes_on_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for one thing at a time, and keeps the last answer to have it again, is not held up by it."""
    monkeypatch.setattr(requests, "UNANSWERED_LOAD_MAX", 100)
    known = Requests()
    for sequence in range(1, 5):
        take(known, publish(sequence, done=max(sequence - 2, 0)))
        answer(known, publish(sequence), entries=1_000)
    assert known.judge(publish(5, done=2), 0.0) is RequestVerdict.IGNORE
    assert known.judge(publish(5, done=3), 0.0) is RequestVerdict.TAKE


def test_so_many_answers_are_remembered_for_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "UNANSWERED_MAX", 2)
    known = Requests()
    for sequence in (1, 2):
        take(known, publish(sequence))
        answer(known, publish(sequence))
    assert known.judge(publish(3), 0.0) is RequestVerdict.IGNORE
    take(known, publish(3, done=2))
    assert known.sessions["c"].load == 1


# -- how many sessions are remembered -----------------------------------------------------------------------------------


def session(client: str, answers: bool = True) -> Callable[[Requests], None]:
    """A client asks for something, and is answered or not."""

    def begin(known: Requests) -> None:
        request = replace(publish(1), client=client)
        take(known, request)
        if answers:
            known.answered(Answer(client, 1, 1, []))

    return begin


def begins(known: Requests, client: str, now: float) -> bool:
    request = replace(publish(1), client=client)
    if known.judge(request, now) is not RequestVerdict.TAKE:
        return False
    known.take(request, 0, now)
    known.check_invariants()
    return True


def test_who_is_new_waits_while_there_are_too_many_sessions_until_some_are_silent_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "SESSIONS_MAX", 3)
    known = Requests()
    for begin in map(session, "abc"):
        begin(known)

    assert not begins(known, "d", requests.SESSION_TTL_S - 1.0)
    assert begins(known, "d", requests.SESSION_TTL_S)
    assert list(known.sessions) == ["d"]


def test_a_session_of_which_something_is_under_way_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SESSIONS_MAX", 3)
    known = Requests()
    for begin in (session("a", answers=False), session("b"), session("c", answers=False)):
        begin(known)

    assert begins(known, "d", requests.SESSION_TTL_S)
    assert list(known.sessions) == ["a", "c", "d"]
    assert not begins(known, "e", requests.SESSION_TTL_S)


def test_who_is_known_goes_on_while_there_are_too_many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SESSIONS_MAX", 1)
    known = Requests()
    session("c")(known)

    assert not begins(known, "d", 0.0)
    take(known, publish(2, done=1))


def test_who_had_been_forgotten_is_told_that_its_session_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SESSIONS_MAX", 1)
    known = Requests()
    session("c")(known)
    assert begins(known, "d", requests.SESSION_TTL_S)

    refusal = known.judge(publish(2, done=1), requests.SESSION_TTL_S)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "session-expired"
