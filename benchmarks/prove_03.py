"""`make prove-03`: run what the third milestone must show, line by line, and print the figures.

Real brokers, real processes. Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if
all hold. `--only lossy,everything` runs some, `--list` names them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve
from failures import OUTAGE_S, TOPICS, Run, calm_s, during_s, grouped, nacks, numbers
from failures import run as run_failures
from full_disk import Outcome as Stopped
from full_disk import run as run_full_disk
from overhead import Point
from overhead import run as run_overhead
from proving import expect, main
from replay import run as run_replay
from replay import table as replay_table

from ordered_pubsub.testing.brokers import Broker, Mosquitto, NatsServer, RabbitMq
from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.trial.__main__ import describe
from ordered_pubsub.testing.trial.system import Trial, TrialOutcome, TrialPlan

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
OVERHEAD_MOST, OVERHEAD_GROWTH_MOST = 10.0, 4.0
"""Percentage points of one processor: at any number of subscriptions, and from the fewest to the most (the paper: under 4 %)."""
COMMITS_LATER_MOST, LATER_MS = 2.0, 0.3
"""An event may wait for the commit that is under way and for its own; the rest is for the longer way of its bytes."""
OFF_PATH_TIMES, OFF_PATH_MS = 2.0, 10.0
"""Whoever is not on the path shares the machine with interpreters that start and subscribers that catch up; whoever has to ask
for an event is late by the gap curiosity threshold at least, which is twenty times these ms."""
NACKS_TIMES = 2.0
LIVE_TIMES = 2.0
MEMORY_TIMES, MEMORY_MB = 1.1, 5.0
"""By how much the most in later replays may exceed the most in the first one."""


def tried(name: str, what: str, plan: TrialPlan, start: Callable[[], Broker], query: str) -> TrialOutcome:
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
        plan = TrialPlan(ens="", durable=DURABLE, patience_s=PATIENCE_S)
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
        plan = TrialPlan(
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


def overhead() -> str:
    """CPU and latency beside best-effort at 2,000 events/s, 1 to 200 subscriptions: paper 003, section 4.1."""
    points = run_overhead()
    check_overhead(points)
    most = max(points, key=lambda point: point.overhead)
    return (
        f"at most {most.overhead:+.1f} percentage points of a processor at the subscribers' side ({most.ratio:.2f} times, at "
        f"{most.count} subscriptions)"
    )


def check_overhead(points: Sequence[Point]) -> None:
    """Little at any number of subscriptions, no more at many than at few, and no later than the disk makes it."""
    for point in points:
        expect(
            point.overhead <= OVERHEAD_MOST,
            f"{point.count} subscriptions: {point.overhead:.1f} percentage points more CPU, and at most {OVERHEAD_MOST:g} were "
            "expected",
        )
        later_most_ms = COMMITS_LATER_MOST * point.exactly["commit_ms"] + LATER_MS
        expect(
            point.later_ms <= later_most_ms,
            f"{point.count} subscriptions: p50 is {point.later_ms:.2f} ms later; the disk explains {later_most_ms:.2f} ms",
        )
    growth = points[-1].overhead - points[0].overhead
    expect(
        growth <= OVERHEAD_GROWTH_MOST,
        f"the overhead grows by {growth:.1f} percentage points from {points[0].count} to {points[-1].count} subscriptions, and "
        f"at most {OVERHEAD_GROWTH_MOST:g} were expected",
    )


def failures() -> None:
    """Link cut, home stage killed, owner killed, 3 times each, 1, 10 and 100 subscribers: paper 003, figures 6 to 8."""
    check_failures(run_failures())


def check_failures(runs: Sequence[Run]) -> None:
    """Everybody has everything, the others do not notice, and nacks do not grow with the subscribers."""
    for run in runs:
        where = f"{run.failure} fails, {run.count} subscribers"
        expect(not run.faults, f"{where}: {'; '.join(run.faults[:3])}")
        expect(
            run.dropped > 0 and bool(run.nacks) and run.worst_s > OUTAGE_S / 2,
            f"{where}: nothing failed: {run.dropped} events dropped, {len(run.nacks)} nacks, at most {run.worst_s:.1f} s late",
        )
        via = sorted({home for _, home, _ in run.nacks})
        expect(
            run.failure != "link" or via == ["home"], f"{where}: the owner was asked by {via}, not by their home alone"
        )
    by_failure: dict[str, list[list[Run]]] = {}
    for (failure, count), some in grouped(runs).items():
        by_failure.setdefault(failure, []).append(some)
        most_s = OFF_PATH_TIMES * calm_s(some) + OFF_PATH_MS / 1_000
        expect(
            during_s(some) <= most_s,
            f"{failure} fails, {count} subscribers: p99 off the path was {1_000 * during_s(some):.1f} ms, and at most "
            f"{1_000 * most_s:.1f} ms were expected",
        )
    for failure, groups in by_failure.items():
        few, many = groups[0], groups[-1]
        # Topics share a nack, or have one each, as their gaps happen to be noticed.
        for what, found, most in (
            ("nacks", nacks(many), NACKS_TIMES * nacks(few) + TOPICS),
            ("numbers asked for", numbers(many), NACKS_TIMES * numbers(few)),
        ):
            expect(
                found <= most,
                f"{failure} fails: {found:.1f} {what} at the owner with {many[0].count} subscribers, and at most {most:.1f} were "
                f"expected after those with {few[0].count}",
            )


def replay() -> None:
    """1,000,000 events of 200 bytes from the log to one durable subscriber, five times, and what another one notices of it."""
    found = run_replay()
    print(replay_table(found), flush=True)
    check_replay(found)


def check_replay(found: Mapping[str, float]) -> None:
    """Memory is flat, and others are not much later."""
    for who in ("stage", "client"):
        most = MEMORY_TIMES * found[f"{who}_mb_first"] + MEMORY_MB
        expect(
            found[f"{who}_mb"] <= most,
            f"the {who} had {found[f'{who}_mb']:.0f} MB later, and at most {most:.0f} were expected after the first replay",
        )
    times = found["busy_p99_s"] / found["calm_p99_s"]
    expect(
        times <= LIVE_TIMES,
        f"live p99 of another subscriber is {times:.1f} times what it is without the replay, and at most {LIVE_TIMES:g} were "
        "expected",
    )


def full_disk() -> str:
    """A full disk and an I/O error: it stops with the reason, loses nothing acknowledged, and goes on by itself."""
    outcomes = run_full_disk()
    check_full_disk(outcomes)
    return ", ".join(f"{one.kind} ({one.how})" for one in outcomes)


def check_full_disk(outcomes: Sequence[Stopped]) -> None:
    """Nothing was wrong."""
    for outcome in outcomes:
        expect(not outcome.faults, f"{outcome.kind}: {'; '.join(outcome.faults)}")


LINES = {
    "lossy": lossy,
    "everything": everything,
    "overhead": overhead,
    "failures": failures,
    "replay": replay,
    "full_disk": full_disk,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
