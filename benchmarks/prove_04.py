"""`make prove-04`: run what the fourth milestone must show, line by line, and print the figures.

A real Spark on this machine, real stages, all of them processes. Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it
lacks); the exit code is 0 only if all hold. `--only rate,audit` runs some, `--list` names them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline_kills import KILLS, KINDS, Outcome
from pipeline_kills import describe as describe_pipeline
from pipeline_kills import run as run_pipeline
from proving import ROOT, expect, main, tested
from spark_audit import PLANTING, Judged
from spark_audit import run as run_audit
from spark_audit import table as audit_table
from spark_rate import Held, Rates
from spark_rate import run as run_rate
from spark_rate import table as rate_table

if TYPE_CHECKING:
    from ordered_pubsub.spark.jobs import Point

RATE_LEAST = 200_000
HOLDERS = ("driver", "JVM", "heap", "workers", "s0", "s1")
MEMORY_TIMES, MEMORY_MB = 1.1, 20.0
"""By how much the most in the last fifth may exceed the most in the first fifth."""
NOTIFICATIONS_LEAST = 999_999
"""in each log: a gap is one notification less"""
CUTS = 40
"""seeds: so many systems, each with some dozens of cuts"""
SIZE_TOLERANCE = 0.15
"""The paper's law is a reading of what it says of it, and its draws are others."""
PLOT = ROOT / "benchmarks" / "results" / "group_sizes.png"


# -- the lines ------------------------------------------------------------------------------------------------------------


def pipeline() -> str:
    """1,000,000 events through the example pipeline, killed 20 times: the table is what a subscriber was notified of."""
    found = run_pipeline()
    print(describe_pipeline(found), flush=True)
    check_pipeline(found)
    return f"{found.rows:,} rows with one sha256, killed {len(found.kills)} times"


def check_pipeline(found: Outcome, kills: int = KILLS) -> None:
    """It was killed as often as it should be, in each way, and the table is the same."""
    expect(len(found.kills) == kills, f"killed {len(found.kills)} times instead of {kills}")
    for kind in KINDS:
        count = found.killed.get(kind, 0)
        expect(count >= kills // len(KINDS), f"the {kind} was killed {count} times only")
    gone = sum(count for kind, count in found.killed.items() if kind != "stage")
    expect(found.starts == gone + 1, f"the pipeline was started {found.starts} times, and {gone} kills ended it")
    expect(not found.difference, f"the table is not what the subscriber was notified of: {found.difference}")
    expect(found.rows == found.events, f"the table has {found.rows:,} rows, and {found.events:,} events were published")
    expect(found.table_sha256 == found.log_sha256, "the table and the notifications have not the same sha256")


def rate() -> str:
    """200,000 rows of 200 bytes a second on two processors, beside Parquet; memory is flat over 5,000,000 rows."""
    found = run_rate()
    print(rate_table(found), flush=True)
    check_rate(found.rates)
    check_memory(found.held)
    usual = found.rates.median("topics")
    beside = ", ".join(f"{usual / found.rates.median(kind):.2f} times {kind}" for kind in ("Parquet", "nothing"))
    return f"{usual:,.0f} rows a second: {beside}"


def check_rate(rates: Rates) -> None:
    """Enough rows a second, as a rule: in the middle one of the rounds."""
    usual = rates.median("topics")
    expect(usual >= RATE_LEAST, f"{usual:,.0f} rows a second, and at least {RATE_LEAST:,} were expected")


def check_memory(held: Held) -> None:
    """Everybody was looked at, and nobody holds more at the end than at the beginning."""
    missing = [f"{who} in fifth {at + 1}" for who in HOLDERS for at, mb in enumerate(held.mb.get(who, [0.0])) if not mb]
    expect(not missing, f"it was not seen what is held by {', '.join(missing)}")
    for who, mbs in held.mb.items():
        most = MEMORY_TIMES * mbs[0] + MEMORY_MB
        expect(
            mbs[-1] <= most,
            f"{who} held {mbs[-1]:.0f} MB in the last fifth, and at most {most:.0f} were expected after the first one",
        )


def audit() -> str:
    """1,000,000 notifications of 50 subscribers: nothing in a clean log, and exactly what was planted in four others."""
    found = run_audit()
    print(audit_table(found), flush=True)
    check_audit(found, NOTIFICATIONS_LEAST)
    longest, mb = max(one.took_s for one in found), max(sum(one.mb.values()) for one in found)
    return f"at most {longest:.0f} s and {mb:,.0f} MB of JVM and Python"


def check_audit(found: Sequence[Judged], notifications_least: int) -> None:
    """Each mistake is found alone, with its example; in the clean log there is none."""
    wanted = ["clean", *(plant.__name__ for plant in PLANTING)]
    expect([one.what for one in found] == wanted, f"judged were {', '.join(one.what for one in found)}")
    for one in found:
        expect(one.notifications >= notifications_least, f"{one.what}: only {one.notifications:,} notifications")
        expect(one.found == one.expected, f"{one.what}: expected {one.expected}, and found was {one.found}")
        expect(
            one.examples == () if one.what == "clean" else one.example in one.examples,
            f"{one.what}: expected the example {one.example!r}, and there are {one.examples}",
        )


def cuts() -> str:
    """Cuts at random places while publishers run: no event without those before it, and each batch again the same, row by row."""
    return tested("tests/spark/test_cuts.py", ORDERED_PUBSUB_TEST_CUTS=str(CUTS))


def sizes() -> str:
    """Figures 7 and 8 of paper 002: the paper's rule, ours in full, and ours as a delta on the wire; with a plot."""
    from ordered_pubsub.cli.group_sizes import describe_curves
    from ordered_pubsub.cli.spark import spark_session
    from ordered_pubsub.spark.jobs import plot_curves, size_curves

    with spark_session("prove-04", "local[2]") as spark:
        points = size_curves(spark)
    print("\n".join(describe_curves(points)), flush=True)
    check_sizes(points)
    PLOT.parent.mkdir(exist_ok=True)
    plot_curves(points, PLOT)
    return f"{left_ends(points)}; plot: {PLOT.relative_to(ROOT)}"


def check_sizes(points: Sequence[Point]) -> None:
    """As many subscriptions as in the paper, about its sizes where it names them, and ours beside them as they must be."""
    from ordered_pubsub.spark.jobs.curves import PAPER

    subscribed = sorted({point.subscribed for point in points})
    expect(
        (subscribed[0], subscribed[-1]) == (10_000, 2_000_000),
        f"{subscribed[0]:,} to {subscribed[-1]:,} are subscribed to",
    )
    for shape, paper in PAPER.items():
        own = left_end(points, shape).full.mean
        expect(
            abs(own - paper) <= SIZE_TOLERANCE * paper,
            f"shape {shape}: {own:.1f} entries on average, and {paper} in the paper",
        )
    curves: dict[tuple[float, str], list[Point]] = {}
    for point in points:
        curves.setdefault((point.setting.shape, point.setting.order), []).append(point)
    for (shape, order), curve in curves.items():
        means = [point.full.mean for point in sorted(curve, key=lambda point: point.subscribed)]
        expect(means == sorted(means), f"shape {shape}, {order}: sizes fall with more subscriptions: {means}")
        expect(
            all(point.delta.mean <= point.full.mean for point in curve),
            f"shape {shape}, {order}: a delta has more than all",
        )
    for (shape, order), curve in curves.items():
        if order == "pairwise":
            pairs = zip(curve, curves[shape, "total"], strict=True)
            expect(
                all(one.full.mean <= other.full.mean for one, other in pairs),
                f"shape {shape}: total has less than pairwise",
            )


def left_end(points: Sequence[Point], shape: float) -> Point:
    """Of the paper's rule: 10 topics for each client."""
    (found,) = [
        point
        for point in points
        if (point.setting.shape, point.setting.order, point.setting.topics_per_client) == (shape, "pairwise", 10)
    ]
    return found


def left_ends(points: Sequence[Point]) -> str:
    """Beside the paper's."""
    from ordered_pubsub.spark.jobs.curves import PAPER

    return ", ".join(f"{left_end(points, shape).full.mean:.1f} (paper {paper})" for shape, paper in PAPER.items())


def messages() -> str:
    """Bad options, unknown topic, lost history, unreachable stage, wrong token, unsupported PySpark: said where the user is."""
    bad_options = "tests/spark/test_source.py::test_a_bad_option_is_named_with_what_fits"
    misfits = "tests/spark/test_sink.py::test_what_does_not_fit_is_said"
    return tested("tests/spark/test_messages.py", bad_options, misfits)


def sink() -> str:
    """Rows published by df.write and df.writeStream, each once: run again, broken off, stages killed, refused, overtaken."""
    return tested("tests/spark/test_sink.py", "tests/server/test_publishing.py", "tests/system/test_publishing.py")


LINES = {
    "pipeline": pipeline,
    "rate": rate,
    "cuts": cuts,
    "audit": audit,
    "sizes": sizes,
    "messages": messages,
    "sink": sink,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
