"""Subscriptions that nothing is heard of: who is given up, when, and who is told."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.liveness import expiry as module
from ordered_pubsub.core.liveness.expiry import LOOK_S, NAMED_TTL_S, Expiry
from ordered_pubsub.core.liveness.lifeline import SESSION_TTL_S
from ordered_pubsub.core.messages import Ended, KeepAliveSeen, Resume, SessionsAlive
from ordered_pubsub.core.order.registered import SubscriptionState
from ordered_pubsub.core.order.registrar import Registrar


def subscription(client: str, *, named: bool = False, under_way: bool = False) -> SubscriptionState:
    resume = Resume(1, (), {}, 0, None, {}) if named else None
    return SubscriptionState(client, resume=resume, under_way=under_way)


def expiry_of(**subscriptions: SubscriptionState) -> Expiry:
    registrar = Registrar(dict(subscriptions))
    for found in subscriptions.values():
        registrar.held[found.client] = registrar.held.get(found.client, 0) + 1
    return Expiry(registrar)


def end(expiry: Expiry, name: str) -> None:
    """The change that ends it has passed."""
    client = expiry.registrar.subscriptions.pop(name).client
    expiry.registrar.held[client] -= 1
    if not expiry.registrar.held[client]:
        del expiry.registrar.held[client]


def alive(*sessions: str) -> SessionsAlive:
    return SessionsAlive({session: place for place, session in enumerate(sessions)})


def names(ended: list[Ended]) -> list[str]:
    return [found.subscription for found in ended]


def test_nobodys_time_runs_before_it_was_looked_at_for_the_first_time() -> None:
    """A stage that was down for a week takes nobody's subscription away when it starts."""
    assert expiry_of(s=subscription("c")).find_expired(1_000_000.0) == []


def test_what_nothing_is_heard_of_for_a_while_is_to_be_ended() -> None:
    expiry = expiry_of(s=subscription("c"))
    expiry.find_expired(0.0)
    assert expiry.find_expired(SESSION_TTL_S - 1) == []
    (ended,) = expiry.find_expired(SESSION_TTL_S + LOOK_S)
    assert (ended.subscription, ended.session, ended.code) == ("s", "c", "expired")
    assert "nothing was heard of its client for 305 s" in ended.reason


def test_one_with_a_name_is_waited_for_much_longer() -> None:
    expiry = expiry_of(s=subscription("c", named=True))
    expiry.find_expired(0.0)
    assert expiry.find_expired(NAMED_TTL_S - 1) == []
    assert names(expiry.find_expired(NAMED_TTL_S + LOOK_S)) == ["s"]


def test_who_is_heard_of_is_not_given_up() -> None:
    expiry = expiry_of(s=subscription("c"), t=subscription("d"))
    expiry.find_expired(0.0)
    expiry.heard(alive("c"), SESSION_TTL_S - 1)
    assert names(expiry.find_expired(SESSION_TTL_S + LOOK_S)) == ["t"]


def test_they_are_looked_at_now_and_then_only() -> None:
    expiry = expiry_of(s=subscription("c"))
    expiry.session_ttl_s = 0.0
    assert names(expiry.find_expired(0.0)) == ["s"]
    assert expiry.find_expired(LOOK_S / 2) == []
    assert names(expiry.find_expired(LOOK_S)) == ["s"]


def test_what_has_a_change_under_way_is_not_ended_now() -> None:
    expiry = expiry_of(s=subscription("c", under_way=True))
    expiry.session_ttl_s = 0.0
    assert expiry.find_expired(0.0) == []


def test_who_comes_back_is_told_once_what_was_ended() -> None:
    expiry = expiry_of(s=subscription("c"), t=subscription("c"), u=subscription("d"))
    expiry.session_ttl_s = 0.0
    expiry.find_expired(0.0)
    assert names(expiry.heard(alive("c"), 1.0)[1]) == ["s", "t"]
    assert expiry.heard(alive("c"), 2.0)[1] == []


def test_who_was_not_given_up_is_told_nothing() -> None:
    expiry = expiry_of(s=subscription("c"))
    expiry.find_expired(0.0)
    assert expiry.heard(alive("c", "stranger"), 1.0) == (KeepAliveSeen({"c": 0}), [])


def test_those_who_have_not_come_back_are_remembered_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them are forgotten."""
    monkeypatch.setattr(module, "TOLD_MAX", 3)
    expiry = expiry_of(**{f"s{number}": subscription(f"c{number}") for number in range(5)})
    expiry.session_ttl_s = 0.0
    expiry.find_expired(0.0)
    assert names(expiry.heard(alive(*(f"c{number}" for number in range(5))), 1.0)[1]) == ["s2", "s3", "s4"]


def test_nothing_is_kept_of_sessions_without_subscriptions() -> None:
    expiry = expiry_of(s=subscription("c"))
    expiry.heard(alive("c", "stranger"), 0.0)
    end(expiry, "s")
    expiry.find_expired(LOOK_S)
    assert expiry._heard == {}


def test_a_subscription_that_has_just_begun_is_not_given_up_for_an_earlier_silence() -> None:
    """Nothing was heard of its session for long, until it asked for this one."""
    expiry = expiry_of(s=subscription("c"))
    expiry.find_expired(0.0)
    expiry.registrar.subscriptions["t"] = subscription("c")
    expiry.registrar.held["c"] = 2
    expiry.find_expired(SESSION_TTL_S - 1)
    assert names(expiry.find_expired(SESSION_TTL_S + LOOK_S)) == ["s"]
