"""What is printed: a table for each set-up, the aims, and what the numbers were measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ordered_pubsub.bench.aims import judge
from ordered_pubsub.bench.plan import PAYLOAD_BYTES, SUBSCRIBERS, BenchPlan
from ordered_pubsub.bench.results import BenchOutcome, Series, Spread

LIBRARIES = ("ordered-pubsub", "paho-mqtt", "nats-py", "pika", "msgspec", "uvloop")
BUSY = 0.2
"""So many processors, on average, may be busy with something else before there is a warning. Interrupts count as such."""
HEAD = ("variant", "events/s", "min..max", "x plain", "p50 us", "p99 us", "x plain")
CPU_HEAD = ("publisher", "subscribers", "stage", "broker")


def describe_machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": processors_here(),
        "libraries": versions,
    }


def processors_here() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_plan(plan: BenchPlan) -> dict[str, Any]:
    """How it was measured."""
    amounts = plan.amounts
    return {
        "rounds": amounts.rounds,
        "seconds": amounts.seconds,
        "events": amounts.events,
        "latency_rate": amounts.rate,
        "run": amounts.run,
        "payload_bytes": PAYLOAD_BYTES,
        "topics": 2,
        "publishers": 1,
        "subscribers": SUBSCRIBERS,
    }


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def describe(outcome: BenchOutcome, plan: BenchPlan) -> str:
    """A set-up: heading, table, aims."""
    amounts = plan.amounts
    in_turn = "in turn" if amounts.run == 1 else f"in runs of {amounts.run}"
    lines = [
        f"{outcome.kind}: {outcome.title}; {PAYLOAD_BYTES} bytes, 2 topics {in_turn}, 1 publisher, {SUBSCRIBERS} subscribers; "
        f"{amounts.rounds} {'round' if amounts.rounds == 1 else 'rounds'}",
        f"  plain is {plan.kind.plain}; latency at {amounts.rate:g} events/s; behind it, processor time per event, in us",
        *_warnings(outcome),
        *("  " + line for line in table([(*HEAD, *CPU_HEAD), *(_row(outcome, series) for series in outcome.series)])),
    ]
    return "\n".join([*lines, *(f"  {judgement}" for judgement in judge(outcome))])


def _warnings(outcome: BenchOutcome) -> list[str]:
    others = outcome.others
    if others is None or others <= BUSY:
        return []
    return [
        f"  {others:.1f} of {processors_here()} processors were busy with something else meanwhile: look at processor times and "
        "ratios only"
    ]


def _row(outcome: BenchOutcome, series: Series) -> tuple[str, ...]:
    rate = series.rate
    return (
        series.variant.label,
        _figure(rate, "{:,.0f}"),
        "" if rate is None else f"{rate.least:,.0f}..{rate.most:,.0f}",
        _figure(outcome.rate_ratio(series), "{:.2f}"),
        _figure(series.p50_us, "{:,.0f}"),
        _figure(series.p99_us, "{:,.0f}"),
        _figure(outcome.p50_ratio(series), "{:.2f}"),
        *_cpu(series),
    )


def _cpu(series: Series) -> tuple[str, ...]:
    subscribers = " + ".join(_us(series.cpu_us(f"subscriber {number}")) for number in range(1, SUBSCRIBERS + 1))
    return _us(series.cpu_us("publisher")), subscribers, _us(series.cpu_us("stage")), _us(series.cpu_us("broker"))


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _figure(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else form.format(spread.middle)
