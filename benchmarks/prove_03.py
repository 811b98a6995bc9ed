"""`make prove-03`: run what the third milestone must show, line by line, and print the figures.

Real brokers, real processes. Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if
all hold. `--only lossy,everything` runs some, `--list` names them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from attrs import evolve
from proving import expect, main

from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.trial.__main__ import describe
from ordered_pubsub.testing.trial.system import Outcome, Plan, Trial

BROKERS: dict[str, tuple[Callable[[], Broker], str]] = {
    # name: how it is started, more of its URL
    "Mosquitto, QoS 0": (Mosquitto, "?qos=0"),
    "NATS core": (NatsServer, ""),
    "RabbitMQ": (RabbitMq, ""),
}
LOSING = ("Mosquitto, QoS 0", "NATS core")
LOSS = Loss(drop=0.1, repeat=0.1, delay=0.1)
DURABLE = 3
EVENTS = 100_000
RATE = 300.0
"""events that each of six publishers publishes in a second while others are killed"""
KILLS, SUBSCRIBER_KILLS = 10, 3
EVERYTHING_KILLS = 20
EVERYTHING_EVENTS, EVERYTHING_RATE = 20_000, 100.0
LATENCY_EVENTS, LATENCY_RATE = 12_000, 100.0
PATIENCE_S = 300.0


def tried(name: str, what: str, plan: Plan, start: Callable[[], Broker], query: str) -> Outcome:
    """Hold one trial, which must be good."""
    with start() as broker:
        plan = evolve(plan, ens=broker.url + query)
        outcome = Trial(plan, restart_broker=broker.restart, kill_broker=broker.kill).run()
    print(f"{name}, {what}: {describe(outcome)}", flush=True)
    expect(outcome.is_good, f"{name}, {what}: not as promised")
    return outcome


# -- the lines ------------------------------------------------------------------------------------------------------------


def lossy() -> str:
    """10 % of the events lost, 10 % repeated, 10 % delayed; each of 3 stages killed 10 times, named subscribers 3 times."""
    figures = []
    for name in LOSING:
        plan = Plan(ens="", durable=DURABLE, patience_s=PATIENCE_S)
        killed = evolve(plan, events=EVENTS, rate=RATE, kills=KILLS, subscriber_kills=SUBSCRIBER_KILLS, loss=LOSS)
        outcome = tried(name, "killed", killed, *BROKERS[name])
        expect(outcome.kills == 3 * KILLS + DURABLE * SUBSCRIBER_KILLS, f"{name}: {outcome.kills} kills")
        expect(outcome.verdict.published >= EVENTS, f"{name}: {outcome.verdict.published} events")
        losses = outcome.losses
        expect(
            losses is not None and min(losses.dropped, losses.repeated, losses.delayed) > EVENTS / 20,
            f"{name}: its line did too little: {losses}",
        )
        for what, loss in (("without loss", None), ("with loss", LOSS)):
            quiet = evolve(plan, events=LATENCY_EVENTS, rate=LATENCY_RATE, loss=loss)
            verdict = tried(name, what, quiet, *BROKERS[name]).verdict
            figures.append(
                f"{name}, {what}: p50 {verdict.latency_ms(0.5):.1f} ms, p99 {verdict.latency_ms(0.99):.1f} ms "
                f"from publication to notification at {LATENCY_RATE * 6:g} events in a second"
            )
    return "\n    ".join(["", *figures])


def everything() -> None:
    """All stages, the broker, all publishers and all subscribers killed at once, 20 times, on each of three brokers."""
    for name, broker in BROKERS.items():
        plan = Plan(
            ens="",
            durable=DURABLE,
            events=EVERYTHING_EVENTS,
            rate=EVERYTHING_RATE,
            everything_kills=EVERYTHING_KILLS,
            patience_s=PATIENCE_S,
        )
        outcome = tried(name, "everything killed", plan, *broker)
        expect(outcome.kills == EVERYTHING_KILLS, f"{name}: {outcome.kills} kills")
        expect(outcome.verdict.again > 0, f"{name}: no kill came between an effect and its acknowledgement")


LINES = {
    "lossy": lossy,
    "everything": everything,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
