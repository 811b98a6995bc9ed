"""Whole systems as processes, put on trial: every stage is killed under load, and so are the brokers that keep what they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.trial.__main__ import describe
from ordered_pubsub.testing.trial.system import Trial, TrialPlan

KILLS = 2
EVENTS = 6_000


@pytest.mark.parametrize(
    ("start", "query", "broker_kills"),
    [
        pytest.param(Mosquitto, "", 0, id="mosquitto"),
        pytest.param(NatsServer, "", 0, id="nats"),
        pytest.param(lambda: NatsServer(jetstream=True), "?jetstream=TRIAL&create=true", 1, id="jetstream"),
        pytest.param(RabbitMq, "", 1, id="rabbitmq"),
    ],
)
def test_stages_and_brokers_are_killed_and_nothing_is_lost_doubled_or_out_of_order(
    start: Callable[[], Broker], query: str, broker_kills: int
) -> None:
    with start() as broker:
        plan = TrialPlan(
            ens=broker.url + query,
            events=EVENTS,
            rate=300.0,
            change_every=500,
            kills=KILLS,
            broker_kills=broker_kills,
            patience_s=120.0,
        )
        outcome = Trial(plan, restart_broker=broker.restart).run()

    assert outcome.is_good, describe(outcome)
    assert outcome.kills == plan.stages * KILLS + broker_kills
    assert outcome.changes >= plan.subscribers
    assert outcome.verdict.published >= EVENTS
    assert outcome.verdict.notified > 0
