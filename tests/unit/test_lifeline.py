"""A subscription stops by itself before its registrar gives it up."""

from __future__ import annotations

from ordered_pubsub.core.liveness.lifeline import SAY_SHARE, Lifeline
from ordered_pubsub.core.messages import KeepAliveAck

TTL_S = 100.0


def lifeline(*subscriptions: str) -> Lifeline:
    made = Lifeline("c", TTL_S)
    for subscription in subscriptions:
        made.watch(subscription, 1, 0.0)
    return made


def speak(one: Lifeline, now: float) -> int:
    here = one.take_due(now)
    assert here is not None
    return here.serial


def hear(one: Lifeline, serial: int, rank: int = 1) -> None:
    """At once."""
    one.heard(KeepAliveAck("c", serial, rank), one._renewals._said[serial])


def test_without_an_answer_it_is_cut_off_after_half_of_the_time() -> None:
    one = lifeline("s")
    speak(one, 1.0)
    assert one.find_cut(49.9) == []
    assert not one.is_cut("s", 49.9)
    assert one.is_cut("s", 50.0)
    assert one.find_cut(50.0) == ["s"]


def test_an_answer_counts_from_when_the_client_has_spoken() -> None:
    one = lifeline("s")
    serial = speak(one, 10.0)
    hear(one, serial)
    one.find_cut(40.0)
    assert not one.is_cut("s", 59.9)
    assert one.is_cut("s", 60.0)


def test_each_registrar_answers_for_its_own() -> None:
    one = lifeline("s")
    one.watch("t", 2, 0.0)
    hear(one, speak(one, 10.0), rank=2)
    assert one.find_cut(55.0) == ["s"]


def test_what_was_cut_off_stays_so() -> None:
    """A process that has slept hears an answer to what it says now before anything else."""
    one = lifeline("s")
    hear(one, speak(one, 10.0))
    hear(one, speak(one, 200.0))
    assert one.find_cut(200.0) == ["s"]


def test_what_is_begun_after_that_is_not() -> None:
    one = lifeline("s")
    hear(one, speak(one, 200.0))
    one.watch("t", 1, 210.0)
    assert one.find_cut(240.0) == ["s"]
    hear(one, speak(one, 245.0))
    assert one.find_cut(280.0) == ["s"]


def test_it_speaks_now_and_then_and_at_once_when_it_has_a_home_again() -> None:
    one = lifeline("s")
    assert [now for now in range(100) if one.take_due(float(now)) is not None] == list(
        range(0, 100, int(TTL_S / SAY_SHARE))
    )
    one.connected()
    assert one.take_due(100.0) is not None


def test_without_subscriptions_it_says_nothing() -> None:
    one = lifeline("s")
    one.unwatch("s")
    assert one.take_due(0.0) is None
    assert one.find_cut(1_000.0) == []
    assert not one.is_cut("s", 1_000.0)


def test_a_shorter_time_holds_at_once() -> None:
    one = lifeline("s")
    hear(one, speak(one, 10.0))
    assert one.find_cut(31.0) == []
    one.change_time(40.0, 20.0)
    assert not one.is_cut("s", 29.9)
    assert one.is_cut("s", 30.0)


def test_a_longer_time_holds_for_what_is_said_from_then_on() -> None:
    """The registrar that has heard what was said before may still have had the shorter one."""
    one = lifeline("s")
    hear(one, speak(one, 10.0))
    one.change_time(400.0, 20.0)
    assert one.is_cut("s", 60.0)
    hear(one, speak(one, 20.0))
    assert not one.is_cut("s", 219.9)
    assert one.is_cut("s", 220.0)


def test_of_several_times_the_shortest_holds_for_what_was_said_before() -> None:
    one = lifeline("s")
    hear(one, speak(one, 10.0))
    for ttl_s in (40.0, 400.0, 300.0, 300.0):
        one.change_time(ttl_s, 20.0)
    assert not one.is_cut("s", 29.9)
    assert one.is_cut("s", 30.0)


def test_it_speaks_more_often_when_there_is_less_time() -> None:
    one = lifeline("s")
    speak(one, 0.0)
    one.change_time(20.0, 1.0)
    assert [now for now in range(1, 6) if one.take_due(float(now)) is not None] == [1, 2, 3, 4, 5]
