"""`python -m ordered_pubsub.testing.soak --seeds 10000`: many worlds, side by side, and what they covered.

Prints worlds, operations, events, notifications, crashes and how often a stage died at each crash point. The first failing
seeds are named with the command that repeats them. Exit code 1 if any invariant fell, or if a crash point was never hit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import attrs

from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import CRASH_POINTS, draw

CHUNK_SEEDS = 50
FAILURES_SHOWN_MAX = 10
COVERAGE_FROM_SEEDS = 1_000
"""From so many seeds on, a crash point that was never hit counts as a failure."""


@attrs.define
class SoakTally:
    """What some worlds covered, and which of them failed."""

    counts: Counter[str] = attrs.field(factory=Counter)
    deaths: Counter[str] = attrs.field(factory=Counter)
    failures: list[tuple[int, str]] = attrs.field(factory=list)

    def add(self, other: SoakTally) -> None:
        """Add what other worlds covered."""
        self.counts.update(other.counts)
        self.deaths.update(other.deaths)
        self.failures.extend(other.failures)


def run_seeds(seeds: range) -> SoakTally:
    """Run the worlds of these seeds."""
    tally = SoakTally()
    for seed in seeds:
        record = Simulation(draw(seed)).run()
        tally.counts.update(
            worlds=1,
            operations=record.operations,
            events=len(record.events),
            notifications=record.notifications,
            subscriptions=len(record.subscriptions),
            changes=sum(len(subscription.outcomes) for subscription in record.subscriptions.values()),
            crashes=record.crashes,
            torn_records=record.torn_records,
            refused_starts=record.refused_starts,
            refused_inputs=record.refused_inputs,
            refused_requests=record.refused_requests,
            given_up=record.given_up,
            not_taken=record.not_taken,
            checked_positions=record.checked_positions,
            ranges=len(record.ranges),
            ranges_lost=sum(bool(found.lost) for found in record.ranges),
            batches_followed=record.batches_followed,
            task_runs=sum(task.runs for task in record.tasks),
            task_runs_killed=sum(task.killed for task in record.tasks),
            other_rows_noticed=sum(task.noticed for task in record.tasks),
        )
        tally.deaths.update(record.deaths_at)
        if record.violations:
            tally.failures.append((seed, str(record.violations[0])))
    return tally


def run_many(first: int, seeds: int, workers: int) -> Iterator[SoakTally]:
    """Run worlds in several processes; yields what each piece covered."""
    pieces = [range(at, min(at + CHUNK_SEEDS, first + seeds)) for at in range(first, first + seeds, CHUNK_SEEDS)]
    if workers == 1:
        yield from map(run_seeds, pieces)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run_seeds, pieces)


def report(tally: SoakTally, seconds: float) -> str:
    """What was covered, in words."""
    counts = tally.counts
    lines = [
        f"{counts['worlds']:,} worlds in {seconds:.0f} s",
        *(f"  {name.replace('_', ' '):18} {count:>12,}" for name, count in counts.items() if name != "worlds"),
        f"{len(tally.deaths)} of {len(CRASH_POINTS)} crash points hit:",
        *(f"  {point:24} {tally.deaths.get(point, 0):>8,}" for point in CRASH_POINTS),
        f"{len(tally.failures)} worlds with a violation",
    ]
    for seed, what in sorted(tally.failures)[:FAILURES_SHOWN_MAX]:
        lines.append(f"  seed {seed}: {what[:300]}")
        lines.append(f"    repeat: python -m ordered_pubsub.testing.simulate --seed {seed} --shrink")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub.testing.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many worlds (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="how many processes (default: 2)")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1 or arguments.workers < 1:
        parser.error("--seeds and --workers must be at least 1")
    started = time.monotonic()
    total = SoakTally()
    for tally in run_many(arguments.first, arguments.seeds, arguments.workers):
        total.add(tally)
        if sys.stderr.isatty():
            done, seconds = total.counts["worlds"], time.monotonic() - started
            sys.stderr.write(
                f"\r{done:,} of {arguments.seeds:,} worlds, {seconds:.0f} s, {len(total.failures)} violations "
            )
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    print(report(total, time.monotonic() - started))
    missed = [point for point in CRASH_POINTS if not total.deaths.get(point)]
    if missed and arguments.seeds >= COVERAGE_FROM_SEEDS:
        print(f"never hit: {', '.join(missed)}: draw more crashes there, or take the points away")
        return 1
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
