"""Exactly once, as processes: lines that lose, repeat and delay events, and everybody who takes part is killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer
from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.trial.__main__ import describe
from ordered_pubsub.testing.trial.system import Trial, TrialPlan

DURABLE = 3
EVENTS = 3_000
PATIENCE_S = 120.0


@pytest.mark.parametrize(
    ("start", "query"),
    [pytest.param(Mosquitto, "?qos=0", id="mosquitto"), pytest.param(NatsServer, "", id="nats")],
)
def test_over_a_bad_line_nothing_is_lost_doubled_or_out_of_order_though_stages_and_subscribers_are_killed(
    start: Callable[[], Broker], query: str
) -> None:
    with start() as broker:
        plan = TrialPlan(
            ens=broker.url + query,
            events=EVENTS,
            rate=100.0,
            change_every=300,
            durable=DURABLE,
            kills=1,
            subscriber_kills=1,
            loss=Loss(drop=0.1, repeat=0.1, delay=0.1),
            patience_s=PATIENCE_S,
        )
        outcome = Trial(plan).run()

    assert outcome.is_good, describe(outcome)
    assert outcome.kills == plan.stages + DURABLE
    assert outcome.verdict.published >= EVENTS
    assert outcome.losses is not None
    assert min(outcome.losses.dropped, outcome.losses.repeated, outcome.losses.delayed) > EVENTS / 20


def test_everything_is_killed_at_once_twice_and_whatever_has_a_receipt_has_its_effect_once() -> None:
    with Mosquitto() as broker:
        plan = TrialPlan(
            ens=f"{broker.url}?qos=0",
            events=EVENTS,
            rate=100.0,
            change_every=300,
            durable=DURABLE,
            everything_kills=2,
            patience_s=PATIENCE_S,
        )
        outcome = Trial(plan, restart_broker=broker.restart, kill_broker=broker.kill).run()

    assert outcome.is_good, describe(outcome)
    assert outcome.kills == 2
    assert outcome.verdict.published >= EVENTS / 3
    assert outcome.verdict.notified > outcome.verdict.published
