"""`make prove-04`: run what the fourth milestone must show, line by line, and print the figures.

A real Spark on this machine, real stages, all of them processes. Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it
lacks); the exit code is 0 only if all hold. `--only pipeline,audit` runs some, `--list` names them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline_kills import KILLS, KINDS, Outcome
from pipeline_kills import describe as describe_pipeline
from pipeline_kills import run as run_pipeline
from proving import expect, main
from spark_audit import PLANTING, Judged
from spark_audit import run as run_audit
from spark_audit import table as audit_table
from spark_rate import Held, Rates
from spark_rate import run as run_rate
from spark_rate import table as rate_table

RATE_LEAST = 200_000
HOLDERS = ("driver", "JVM", "heap", "workers", "s0", "s1")
MEMORY_TIMES, MEMORY_MB = 1.1, 20.0
"""By how much the most in the last fifth may exceed the most in the first fifth."""
NOTIFICATIONS_LEAST = 999_999
"""in each log: a gap is one notification less"""


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


LINES = {
    "pipeline": pipeline,
    "rate": rate,
    "audit": audit,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
