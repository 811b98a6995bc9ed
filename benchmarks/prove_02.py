"""`make prove-02`: run what the second milestone must show, line by line, and print the figures.

Real brokers, real processes. Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if
all hold. `--only order,kill` runs some, `--list` names them. FUZZ_SECONDS (600) is how long each target is fuzzed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proving import expect, main

from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.trial.__main__ import describe
from ordered_pubsub.testing.trial.system import Plan, Trial

EVENTS = 100_000
KILLS = 10
KILL_RATE = 600.0
"""events that each of six publishers publishes in a second while stages are killed"""
BROKER_KILLS = 3
FUZZ_SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))

BROKERS: dict[str, tuple[Callable[[], Broker], str, int]] = {
    # name: how it is started, more of its URL, how often it can be killed without forgetting
    "Mosquitto": (Mosquitto, "", 0),
    "NATS core": (NatsServer, "", 0),
    "JetStream": (lambda: NatsServer(jetstream=True), "?jetstream=TRIAL&create=true", BROKER_KILLS),
    "RabbitMQ": (RabbitMq, "", BROKER_KILLS),
}


@contextmanager
def running(name: str) -> Iterator[tuple[Broker, str]]:
    """A private broker, and its URL."""
    start, more, _ = BROKERS[name]
    with start() as broker:
        yield broker, broker.url + more


# -- the lines ------------------------------------------------------------------------------------------------------------


def order() -> None:
    """3 stages, 6 publishers, 6 subscribers whose subscriptions change, 12 topics, 100,000 events, on each broker."""
    disagreeing = {}
    for name in BROKERS:
        with running(name) as (_, url):
            outcome = Trial(Plan(ens=url, events=EVENTS)).run()
        print(f"{name}: {describe(outcome)}", flush=True)
        expect(outcome.is_good, f"{name}: not as promised")
        expect(outcome.changes >= 6, f"{name}: subscriptions did not change")
        disagreeing[name] = outcome.verdict.raw_disagreeing_pairs
    expect(any(disagreeing.values()), f"no broker delivered anything in different order: {disagreeing}")


def kill() -> None:
    """The same with each stage killed (-9) and restarted 10 times; JetStream and RabbitMQ killed 3 times as well."""
    for name, (_, _, broker_kills) in BROKERS.items():
        with running(name) as (broker, url):
            plan = Plan(
                ens=url, events=EVENTS, kills=KILLS, broker_kills=broker_kills, rate=KILL_RATE, patience_s=120.0
            )
            outcome = Trial(plan, restart_broker=broker.restart).run()
        print(f"{name}: {describe(outcome)}", flush=True)
        expect(outcome.is_good, f"{name}: not as promised")
        expect(outcome.kills == 3 * KILLS + broker_kills, f"{name}: {outcome.kills} kills")


LINES = {
    "order": order,
    "kill": kill,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
