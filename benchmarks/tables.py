"""All figures of benchmarks/README.md, measured and written again: `make bench-tables`.

    python benchmarks/tables.py [--only core-events,wan] [--list]
    python benchmarks/tables.py --share 0.01 --print      # a first look at everything, in small

Each table stands in the page between two comments, which name it, and is written when it is measured: what fails leaves the old
one where it is, and the exit code is 1. Above a table stands what it was measured on. The machine should have nothing else to do;
all of it takes about an hour on two processors.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs

from ordered_pubsub.bench.aims import NUMBERS_PER_S, judge
from ordered_pubsub.bench.numbers import JUDGED, NumbersRow, measure_numbers
from ordered_pubsub.bench.plan import DURABILITIES, KINDS, LEVELS, Amounts, BenchPlan, variants_of
from ordered_pubsub.bench.report import processors_here
from ordered_pubsub.bench.results import BenchOutcome, Series, Spread
from ordered_pubsub.bench.rounds import measure, rigged
from ordered_pubsub.testing.brokers import BrokerMissing, find_broker
from ordered_pubsub.testing.processes import Starter, WorkerProcess, command_of

if TYPE_CHECKING:
    from spark_rate import Found

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
BEGIN, END = "<!-- table {} -->", "<!-- end of {} -->"
MARKED = re.compile(r"<!-- table ([\w-]+) -->\n(.*?)<!-- end of \1 -->", re.DOTALL)

Rows = Sequence[Sequence[str]]
"""The head, and the rows below it."""


@attrs.frozen
class Table:
    """One table of the page, or several that belong together."""

    measured: Callable[[float], str]
    """its text in Markdown, of a share of the usual amounts"""
    about: str = ""
    """the level of what is measured and how durable it is, where the rows do not say that"""
    needs: Sequence[str] = ()
    """the programs that take part: brokers, PySpark"""

    @property
    def what(self) -> str:
        """What is measured, in a line."""
        return (self.measured.__doc__ or "").partition("\n")[0]


class NotInPage(Exception):
    """The page does not have the tables that it should have."""


# -- the page -------------------------------------------------------------------------------------------------------------


def tables_in(text: str) -> list[str]:
    """The names of the tables that a page has, in their order."""
    return [found[1] for found in MARKED.finditer(text)]


def replaced(text: str, name: str, table: str) -> str:
    """The page with another text between the comments of a table."""
    begin, end = BEGIN.format(name), END.format(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise NotInPage(f"expected one line {begin!r} in the page, and one line {end!r} below it")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{table.strip()}\n\n{end}{rest.partition(end)[2]}"


def markdown(rows: Rows, text_columns: int = 1) -> str:
    """A table; all columns but so many have numbers."""
    head, *others = rows
    marks = ["---" if at < text_columns else "---:" for at in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *others))


# -- what it was measured on ----------------------------------------------------------------------------------------------

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "Mosquitto": ("mosquitto", "-h"),
    "NATS": ("nats-server", "--version"),
    "RabbitMQ": ("rabbitmqctl", "version"),
}
BROKERS = tuple(VERSIONS)


@cache
def version_of(program: str) -> str:
    """With its name."""
    if program == "PySpark":
        return f"PySpark {version('pyspark')}"
    command, *options = VERSIONS[program]
    try:
        said = subprocess.run([find_broker(command), *options], capture_output=True, text=True, check=False).stdout
    except BrokerMissing:
        said = ""
    found = re.search(r"\d+(?:\.\d+)+", said)
    return f"{program} {found[0] if found else 'of an unknown version'}"


@cache
def commit() -> str:
    """What is checked out, and whether anything is changed beside the tables."""
    git = ["git", "-C", str(HERE.parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    ours = [f":!{path.relative_to(HERE.parent)}" for path in (PAGE, *HERE.glob("*.png"))]
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", ".", *ours], capture_output=True, text=True, check=True
    )
    return f"`{head.strip()}`{' with changes' if changed.stdout.strip() else ''}"


@cache
def machine() -> str:
    """Processors, Python and system."""
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = f" ({names[0].strip()})" if names else ""
    python = f"Python {platform.python_version()}"
    return f"{processors_here()} processors{model}, {python}, {platform.system()} {platform.release()}"


def caption(table: Table, share: float) -> str:
    """What a table was measured on, in one line."""
    day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    parts = [f"Commit {commit()}, {day}", machine(), *map(version_of, table.needs), table.about]
    warning = "" if share == 1 else f" **In small ({share:g} of the usual amounts): these figures say nothing.**"
    return f"*{'; '.join(filter(None, parts))}.*{warning}"


# -- the core -------------------------------------------------------------------------------------------------------------


@cache
def _core(share: float) -> Mapping[str, list[dict[str, Any]]]:
    import core

    core.ROUNDS = max(1, round(core.ROUNDS * share))
    found = {name: section() for name, (_, section) in core.SECTIONS.items()}
    return {**found, "aims": core.beside_the_aims(found["events"])}


def core_events(share: float) -> str:
    """An event at one stage, without sockets and disk: time beside that of a single event in a group of 1."""
    found = _core(share)
    us = {(row["group"], row["pattern"], row["mode"]): row["us_per_event"] for row in found["events"]}
    one = us[1, "round-robin", "single"]
    ways = [(pattern, mode) for mode in ("single", "batch") for pattern in ("round-robin", "one topic")]
    groups = dict.fromkeys(group for group, _, _ in us)
    rows = [
        ("group", "single, in turn", "single, one topic", "batches of 100, in turn", "batches of 100, one topic"),
        *((f"{group}", *(f"{us[(group, *way)] / one:.2g}" for way in ways)) for group in groups),
    ]
    aims = ", ".join(
        f"{row['ratio']:.1f} times the aim of {row['aim']:,} {row['mode']} events a second" for row in found["aims"]
    )
    return f"{markdown(rows, 0)}\n\nA group of 10, topics in turn: {aims}."


def core_growth(share: float) -> str:
    """What must not grow: time with much of something present, divided by the time with little of it."""
    found = _core(share)
    spread, same = ([row for row in found["changes"] if row["held"] == held] for held in ("spread", "same"))
    rows = [
        ("a notification", "100,000 instead of 10 events waiting in the buffer", found["notifications"]),
        ("a change of 10 topics", "10,000 instead of 10 subscriptions, each topic held by one or two", spread),
        ("a change of 10 topics", "10,000 instead of 10 subscriptions, all of the same topics", same),
        ("adding 1,000 topics", "10,000 instead of 10 subscriptions", found["large_changes"]),
        ("an event in a group of 10", "100,000 instead of no other topics at the stage", found["events_among_topics"]),
        ("a publication at its client", "64 requests under way instead of 1", found["publications_at_client"]),
    ]
    ratios = [(what, much, f"{some[-1]['ratio']:.1f}") for what, much, some in rows]
    return markdown([("time of", "with …", "ratio"), *ratios], 2)


def core_stamps(share: float) -> str:
    """An event's timestamp on the wire: mean entries beside its own number, and bytes."""
    found = {(row["group"], row["load"]): row for row in _core(share)["stamps"]}

    def cell(row: Mapping[str, float], kind: str) -> str:
        return f"{row[f'{kind}_entries']:,.0f} entries, {row[f'{kind}_bytes']:,.0f} bytes"

    rows = [("group", "delta, in turn", "delta, skewed", "full")]
    for group in dict.fromkeys(group for group, _ in found):
        in_turn, skewed = found[group, "round-robin"], found[group, "skewed"]
        rows.append((f"{group}", cell(in_turn, "delta"), cell(skewed, "delta"), cell(in_turn, "full")))
    return markdown(rows, 0)


def timestamps(share: float) -> str:
    """Entries of an event's timestamp under a published load: Baldoni et al., section 5.3."""
    import timestamps as load

    found = [row for shape in load.PAPER for order in ("total", "pairwise") for row in load.measure(shape, order)]
    columns = ("full, publications", "delta, publications", "full, topics", "delta, topics")
    rows = [("shape", "order", "batch", *columns, "paper")]
    for row in found:
        paper = f"{row['paper']}" if (row["order"], row["batch"]) == ("pairwise", 1) else ""
        figures = (f"{row[name]:.0f}" if row[name] >= 100 else f"{row[name]:.1f}" for name in columns)
        rows.append((f"{row['shape']}", row["order"], f"{row['batch']}", *figures, paper))
    return markdown(rows, 2)


async def draw_sizes(starter: Starter, clients: int, plot: str | None) -> None:
    """Figures 7 and 8 of Baldoni et al., with Spark; in a process of its own."""
    from ordered_pubsub.cli.spark import spark_session
    from ordered_pubsub.spark.jobs import plot_curves, size_curves

    with spark_session("tables", "local[2]") as spark:
        points = size_curves(spark, clients=clients)
    if plot:
        plot_curves(points, Path(plot))
    starter.tell(points=[attrs.asdict(point) for point in points])


def group_sizes(share: float) -> str:
    """Timestamps over the number of subscriptions: figures 7 and 8 of Baldoni et al.; draws group_sizes.png."""
    plan = {"clients": max(100, int(10_000 * share)), "plot": str(HERE / "group_sizes.png") if share == 1 else None}
    with TemporaryDirectory() as folder:
        worker = WorkerProcess("group sizes", command_of(draw_sizes), Path(folder) / "log", plan=plan)
        try:
            worker.begin()
            points = worker.hear(600.0)["points"]
        finally:
            worker.kill()
    cells: dict[tuple[float, int], dict[tuple[str, str], str]] = {}
    for point in points:
        setting = point["setting"]
        row = cells.setdefault((setting["shape"], point["subscribed"]), {})
        for kind in ("full", "delta"):
            found = point[kind]
            text = f"{found['mean']:.1f} ± {found['deviation']:.1f}; {found['mean_published']:.1f}"
            row[setting["order"], kind] = text
    curves = (("pairwise", "full"), ("total", "full"), ("total", "delta"))
    return markdown(
        [
            ("shape", "subscribed", "pairwise, full (the paper's rule)", "total, full", "total, delta"),
            *((f"{shape}", f"{count:,}", *(row[one] for one in curves)) for (shape, count), row in cells.items()),
        ],
        0,
    )


# -- over brokers ---------------------------------------------------------------------------------------------------------

IN_TURN, IN_RUNS = 1, 100
ROUNDS, SECONDS = 3, 0.8


@cache
def _brokers(run_length: int, share: float) -> Sequence[BenchOutcome]:
    amounts = Amounts(rounds=max(1, round(ROUNDS * share)), seconds=max(0.05, SECONDS * share), run=run_length)
    outcomes = []
    for kind in KINDS.values():
        with kind.make_broker() as broker:
            variants = variants_of(LEVELS, DURABILITIES, is_packed=True)
            plan = BenchPlan(kind=kind, ens=broker.url + kind.query, variants=variants, amounts=amounts)
            with rigged(plan, broker.pid) as rig:
                outcomes.append(measure(rig, _progress))
    return outcomes


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def brokers_in_turn(share: float) -> str:
    """This library beside the plain client of each broker, topics in turn."""
    return _beside_plain(_brokers(IN_TURN, share))


def brokers_in_runs(share: float) -> str:
    """The same, topics in runs of 100."""
    return _beside_plain(_brokers(IN_RUNS, share))


def _beside_plain(outcomes: Iterable[BenchOutcome]) -> str:
    head = ("set-up", "way", "level", "durability", "events/s", "x plain", "p50 µs", "x plain", "p99 µs")
    rows: list[Sequence[str]] = [(*head, "CPU: publisher", "subscribers", "stage", "broker")]
    for outcome in outcomes:
        for at, series in enumerate(outcome.series):
            variant = series.variant
            name = outcome.title if at == 0 else ""
            rows.append(
                (
                    name,
                    variant.name,
                    variant.level or "-",
                    variant.durability or "-",
                    _middle(series.rate, "{:,.0f}"),
                    _middle(outcome.rate_ratio(series), "{:.2f}"),
                    _middle(series.p50_us, "{:,.0f}"),
                    _middle(outcome.p50_ratio(series), "{:.2f}"),
                    _middle(series.p99_us, "{:,.0f}"),
                    *_cpu_cells(series),
                )
            )
    return markdown(rows, 4)


def _middle(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else form.format(spread.middle)


def _cpu_cells(series: Series) -> list[str]:
    def us(process: str) -> str:
        value = series.cpu_us(process)
        return "-" if value is None else f"{value:.1f}"

    return [us("publisher"), f"{us('subscriber 1')} + {us('subscriber 2')}", us("stage"), us("broker")]


def aims(share: float) -> str:
    """Which of the project's aims are met, and which are missed, by the figures of the two tables before."""
    ways = (("turn", IN_TURN), ("runs of 100", IN_RUNS))
    return _judged([(f"topics in {way}", outcome) for way, length in ways for outcome in _brokers(length, share)])


def _judged(outcomes: Iterable[tuple[str, BenchOutcome]]) -> str:
    """How many are met; each that is missed, with the processors that it takes."""
    found = [(way, outcome, judgement) for way, outcome in outcomes for judgement in judge(outcome)]
    missed = []
    for way, outcome, judgement in found:
        if not judgement.is_met:
            series = next(one for one in outcome.series if one.variant.label == judgement.label)
            publisher, subscribers, stage, broker = _cpu_cells(series)
            cpu = f"publisher {publisher}, subscribers {subscribers}, stage {stage}, broker {broker}"
            missed.append(f"- {way}: {str(judgement).split(maxsplit=1)[1]}; CPU µs: {cpu}")
    return "\n".join([f"{len(found) - len(missed)} of {len(found)} aims are met. Missed:", "", *(missed or ["- none"])])


@cache
def _numbers(share: float) -> Sequence[NumbersRow]:
    amounts = Amounts(rounds=max(1, round(ROUNDS * share)), seconds=max(0.05, SECONDS * share))
    return asyncio.run(measure_numbers(amounts, DURABILITIES, _progress))


def numbers(share: float) -> str:
    """Numbers that one stage gives in a second, asked for in batches, without a broker."""
    rows = [("durability", "batch", "numbers/s", "stage, µs a number")]
    rows += [
        (row.durability, f"{row.batch:,}", f"{row.rate.middle:,.0f}", f"{median(row.cpu_us):.2f}")
        for row in _numbers(share)
    ]
    verdicts = ", ".join(
        f"{row.rate.middle / NUMBERS_PER_S:.1f} times with {row.durability}"
        for row in _numbers(share)
        if row.batch == JUDGED
    )
    return f"{markdown(rows)}\n\nThe aim of {NUMBERS_PER_S:,} a second, in batches of {JUDGED}: {verdicts}."


def stage_time(share: float) -> str:
    """Where a stage's time goes: microseconds of an event, part by part."""
    import stage_time as parts

    return markdown(parts.table(parts.run(max(200, int(20_000 * share)))), 3)


# -- five stages, failures, disks -----------------------------------------------------------------------------------------


WAN_RATES = (1_000, 3_000, 5_000, 7_500, 10_000)


def wan(share: float) -> str:
    """Five stages far from each other, as in Baldoni et al., section 5.4; draws wan.png."""
    import wan as far

    few = share < 1
    rates, shapes = (far.RATES[:1], far.SHAPES[:1]) if few else (WAN_RATES, far.SHAPES)
    found = far.measure(shapes, ("total", "pairwise"), rates, 1.0 if few else 3.0, "fsync")
    if not few:
        far.plot(found, HERE / "wan.png")
    rows = [("shape", "order", "asked/s", "numbers/s", "mean ms", "p50 ms", "p99 ms")]
    rows += [
        (
            f"{row['shape']}",
            row["order"],
            *(f"{row[key]:,.0f}" for key in ("asked", "reached", "mean_ms", "p50_ms", "p99_ms")),
        )
        for row in found
    ]
    return markdown(rows, 2)


def overhead(share: float) -> str:
    """Exactly-once beside best-effort, without failures: Bhola et al., section 4.1."""
    import overhead as beside

    points = beside.run(max(1.0, 5.0 * share), 1, (1, 50, 200) if share == 1 else (1, 5))
    return beside.table(points)


def failures(share: float) -> str:
    """Link cut, home stage killed, owner killed: Bhola et al., section 4.2; draws failures.png."""
    import failures as failing

    few = share < 1
    kinds, counts = (failing.FAILURES[:1], (2,)) if few else (failing.FAILURES, (1, 100))
    runs = asyncio.run(failing.measure(kinds, counts, 1))
    if not few:
        failing.plot(runs, HERE / "failures.png")
    faults = [fault for run in runs for fault in run.faults]
    if faults:
        raise AssertionError(f"events were not as they must be: {faults[:3]}")
    return failing.table(runs)


def replay(share: float) -> str:
    """A log replayed at full speed, and what another subscriber notices of it."""
    import replay as again

    again.ROUNDS, again.CALM_S = 3, max(0.5, 4.0 * share)
    found = again.run(max(2_000, int(500_000 * share)))
    ms = [f"{1_000 * found[key]:.2f}" for key in ("calm_p99_s", "busy_p99_s", "hog_p99_s")]
    return markdown(
        [
            (
                "events",
                "events/s",
                "stage, MB: first, later",
                "client, MB",
                "p99 of another, ms: calm",
                "replaying",
                "computing",
            ),
            (
                f"{found['events']:,.0f}",
                f"{found['events_per_s']:,.0f}",
                f"{found['stage_mb_first']:.0f}, {found['stage_mb']:.0f}",
                f"{found['client_mb_first']:.0f}, {found['client_mb']:.0f}",
                *ms,
            ),
        ],
        0,
    )


def full_disk(share: float) -> str:
    """A full disk, and an I/O error."""
    import full_disk as trouble

    outcomes = [trouble.measure(kind) for kind in trouble.ERRORS]
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    if faults:
        raise AssertionError(f"it did not go on as it must: {faults[:3]}")
    return trouble.table(outcomes)


# -- Spark ----------------------------------------------------------------------------------------------------------------


@cache
def _spark(share: float) -> Found:
    from spark_rate import run

    rows, more = (max(4_000, int(share * usual) // 4_000 * 4_000) for usual in (1_000_000, 2_000_000))
    return run(rows, 3 if share == 1 else 1, more, max(2_000, more // 8))


def spark_rate(share: float) -> str:
    """Rows a second that Spark reads: the topics, Parquet, and one batch again and again."""
    rates = _spark(share).rates
    names = {"topics": "the topics", "Parquet": "Parquet", "nothing": "one batch again and again, in Python"}
    rows = [("from", "rows a second", "the topics have … as many")]
    for kind, name in names.items():
        times = f"{rates.median('topics') / rates.median(kind):.2f} times" if kind != "topics" else ""
        rows.append((name, f"{rates.median(kind):,.0f}", times))
    return f"{rates.rows:,} rows:\n\n{markdown(rows)}"


def spark_memory(share: float) -> str:
    """What everybody holds at most while Spark reads for long, in each fifth of the time."""
    held = _spark(share).held
    fifths = [f"fifth {at + 1}" for at in range(5)]
    rows = [("MB", *fifths), *((who, *(f"{mb:,.0f}" for mb in mbs)) for who, mbs in held.mb.items())]
    return f"{held.rows:,} rows in {held.batches} batches, {held.took_s:.0f} s:\n\n{markdown(rows)}"


def spark_audit(share: float) -> str:
    """Logs of notifications judged by Spark, a clean one and four with a mistake in each."""
    from spark_audit import EACH, run

    rows = [("log", "notifications", "found", "seconds", "MB at most")]
    for one in run(each=max(200, int(EACH / 2 * share))):
        found = ", ".join(f"{kind} {count}" for kind, count in one.found) or "nothing"
        mb = f"{sum(one.mb.values()):,.0f}"
        rows.append((one.what, f"{one.notifications:,}", found, f"{one.took_s:.1f}", mb))
    return markdown([[row[0], row[2], row[1], *row[3:]] for row in rows], 2)


def spark_write(share: float) -> str:
    """Rows a second that Spark writes, topics by themselves and in one order."""
    from spark_write import ROWS, SORTED, run

    found = run(max(1_000, int(ROWS * share)), max(200, int(SORTED * share)))
    return markdown([("written", "rows a second"), *((way, f"{rate:,.0f}") for way, rate in found.items())])


# -- trust ----------------------------------------------------------------------------------------------------------------

TITLES = {"mqtt": "Mosquitto", "nats": "NATS", "jetstream": "JetStream", "rabbitmq": "RabbitMQ"}


def forging(share: float) -> str:
    """Somebody forges on each broker."""
    import forging as forged

    rows: list[Sequence[str]] = [("broker", "events", "forged", "not arrived", "wrong", "lost", "latest")]
    for kind, title in TITLES.items():
        with forged.BROKERS[kind]() as broker, TemporaryDirectory() as folder:
            events = max(1_000, int(forged.EVENTS * share))
            one = asyncio.run(forged.run_one(kind, forged.url_of(kind, broker), events, forged.SEED, Path(folder)))
        if not one.holds:
            raise AssertionError(f"{title}: {one}")
        counts = (one.events, sum(one.forged.values()), sum(one.not_arrived.values()), one.wrong, one.missing)
        rows.append((title, *(f"{count:,}" for count in counts), f"{one.late_s:.1f} s"))
    return markdown(rows)


def hostile(share: float) -> str:
    """One identity does its worst, and another client measures what it notices."""
    import hostile as attack

    with TemporaryDirectory() as folder:
        found = attack.run(Path(folder), max(4.0, 60.0 * share))
    if found.ended or found.cuts or found.during.failures:
        raise AssertionError(f"stages {found.ended} ended, {found.cuts} links were cut, {found.during.failures} failed")
    rows: list[Sequence[str]] = [("another client", "receipt p50, ms", "p99, ms", "notification p50, ms", "p99, ms")]
    for name, times in (("before", found.before), ("during", found.during)):
        ms = [
            1e3 * attack._quantile(some, share_) for some in (times.receipts, times.notified) for share_ in (0.5, 0.99)
        ]
        rows.append((name, *(f"{one:.1f}" for one in ms)))
    grown = ", ".join(
        f"{name} {(most - before) / attack.MIB:.0f} MiB"
        for name, before, most in zip(attack.NAMES, found.memory_before, found.memory_most, strict=True)
    )
    return f"{markdown(rows)}\n\nThe stages grew by {grown}, and were ready again {found.restart_s:.1f} s after they were killed."


def tag_cost(share: float) -> str:
    """What tags cost: rates and processor time with tags and without, in turns."""
    import tag_cost as cost
    from forging import BROKERS as START
    from forging import url_of

    rows: list[Sequence[str]] = [("broker", "way", "rate with / without", "CPU µs with", "without")]
    for kind, title in TITLES.items():
        with START[kind]() as broker, TemporaryDirectory() as folder:
            for mode in cost.MODES:
                events = max(200, int(cost.EVENTS * share)) * (5 if mode == "packed" else 1)
                rounds = max(1, round(5 * share))
                found = asyncio.run(cost.compare(url_of(kind, broker), Path(folder), mode, events, rounds, cost.BYTES))
                pairs = zip(found["tags"], found["none"], strict=True)
                ratio = median(one.rate / other.rate for one, other in pairs)
                cpu = (f"{median(one.cpu_us for one in found[side]):.1f}" for side in ("tags", "none"))
                rows.append((title if mode == "unpacked" else "", mode, f"{ratio:.3f}", *cpu))
    return markdown(rows, 2)


# -- all of it ------------------------------------------------------------------------------------------------------------

NO_DISK = "no sockets, no disk, no broker"
FSYNC = "durability fsync"
EXACTLY = f"level exactly-once, {FSYNC}"
IN_SMALL = f"{ROUNDS} rounds of {SECONDS:g} s for each row"
TABLES: Mapping[str, Table] = {
    "core-events": Table(core_events, NO_DISK),
    "core-growth": Table(core_growth, NO_DISK),
    "core-stamps": Table(core_stamps, NO_DISK),
    "timestamps": Table(timestamps, NO_DISK),
    "group-sizes": Table(group_sizes, "computed, not timed", ("PySpark",)),
    "brokers-in-turn": Table(brokers_in_turn, IN_SMALL, BROKERS),
    "brokers-in-runs": Table(brokers_in_runs, IN_SMALL, BROKERS),
    "aims": Table(aims, "as in the two tables above", BROKERS),
    "stage-time": Table(stage_time, "µs of an event"),
    "numbers": Table(numbers, "level ordered, no events and no broker"),
    "wan": Table(wan, "level ordered, durability fsync, an ENS that takes everything at once"),
    "overhead": Table(overhead, f"best-effort / exactly-once, {FSYNC}", ("NATS",)),
    "failures": Table(failures, EXACTLY, ("NATS",)),
    "replay": Table(replay, EXACTLY, ("NATS",)),
    "full-disk": Table(full_disk, EXACTLY, ("NATS",)),
    "spark-rate": Table(spark_rate, EXACTLY, ("PySpark",)),
    "spark-memory": Table(spark_memory, EXACTLY, ("PySpark",)),
    "spark-audit": Table(spark_audit, "recorded notifications, no stage", ("PySpark",)),
    "spark-write": Table(spark_write, EXACTLY, ("PySpark",)),
    "forging": Table(forging, EXACTLY, BROKERS),
    "hostile": Table(hostile, "level exactly-once, durability os"),
    "tag-cost": Table(tag_cost, "level exactly-once, durability os, events of 100 bytes", BROKERS),
}


def check_page(text: str) -> None:
    """The page must have these tables, and no others, in this order."""
    if tables_in(text) != list(TABLES):
        raise NotInPage(f"{PAGE.name} has the tables {tables_in(text)}, and this program knows {list(TABLES)}")


def write(name: str, share: float, page: Path | None) -> None:
    """Measure a table, and write it into the page, or print it."""
    table = TABLES[name]
    began = time.monotonic()
    text = f"{caption(table, share)}\n\n{table.measured(share)}"
    if page is None:
        print(f"\n{text}\n")
    else:
        page.write_text(replaced(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    print(f"{name}: {table.what} ({time.monotonic() - began:.0f} s)", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES), help="tables, with commas between them")
    parser.add_argument("--list", action="store_true", help="name the tables, and what they are about")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual amounts, for a first look")
    parser.add_argument("--print", action="store_true", help="print the tables, and leave the page as it is")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(f"{name:16} {table.what}" for name, table in TABLES.items()))
        return 0
    names = given.only.split(",")
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        parser.error(f"--only {given.only}: the tables are {', '.join(TABLES)}")
    if given.share != 1 and not given.print:
        parser.error(
            "--share is for a first look: figures of a part of the amounts do not belong in the page; add --print"
        )
    check_page(PAGE.read_text(encoding="utf-8"))
    failed = []
    for name in names:
        try:
            write(name, given.share, None if given.print else PAGE)
        except Exception:  # the other tables are to be measured all the same
            traceback.print_exc()
            failed.append(name)
    if failed:
        print(f"not measured, and left as they were: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main())
