"""`ordered-pubsub bench`: this library against the plain client library, on the same broker and in the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ordered_pubsub.bench.numbers import describe_numbers, measure_numbers, numbers_data
from ordered_pubsub.bench.plan import (
    DURABILITIES,
    KINDS,
    LEVELS,
    Amounts,
    BenchPlan,
    SetupKind,
    Variant,
    check_ens,
    kind_of,
    variants_of,
)
from ordered_pubsub.bench.processes import BenchError
from ordered_pubsub.bench.profiles import profile_all
from ordered_pubsub.bench.report import describe, describe_machine, describe_plan
from ordered_pubsub.bench.rounds import measure, rigged
from ordered_pubsub.cli.clients import number, whole
from ordered_pubsub.errors import UsageError

OWN_STAGE = "its own"
"""The durability of a stage that runs already, and what its topics give."""

DESCRIPTION = (
    "Measures events per second, latency and processor time of this library and of the plain client library, "
    "side by side on the same broker."
)
EPILOG = """\
examples:
  ordered-pubsub bench --ens mqtt://127.0.0.1:1883
      the broker that runs there, and a stage that is started for this
  ordered-pubsub bench --broker rabbitmq --packed --profile profiles
      a private RabbitMQ, packed events as well, and where the time goes
  ordered-pubsub bench --all --packed --json bench.json
      private brokers of all kinds: twenty minutes
  ordered-pubsub bench --numbers
      how many numbers a stage gives in a second

docs/benchmarks.md says how to read the table. Exit code: 0 if everything could be measured, whether or not the aims are met.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    what = parser.add_argument_group("what is measured (one of these)").add_mutually_exclusive_group(required=True)
    what.add_argument("--ens", metavar="URL", help="the broker that runs there")
    what.add_argument(
        "--broker", action="append", choices=KINDS, help="a private one, started for this; may be repeated"
    )
    what.add_argument("--all", action="store_true", help="private ones of all kinds")
    what.add_argument("--numbers", action="store_true", help="a stage alone, without a broker")
    add = parser.add_argument
    add("--sequencer", metavar="ADDRESS", help="a stage that runs already, instead of one of our own")
    add("--durability", choices=DURABILITIES, help="of our own stage (default: both, reported separately)")
    add("--level", choices=LEVELS, help="what topics at our own stage give (default: both, reported separately)")
    add("--packed", action="store_true", help="measure events that share messages as well")
    events, default = whole(1, 10_000_000), Amounts()
    add("--rounds", type=whole(1, 1_000), default=default.rounds, metavar="N", help="default: %(default)s")
    add(
        "--seconds",
        type=number(0.05, 600.0),
        default=default.seconds,
        metavar="S",
        help="of each measurement, about (default: %(default)g)",
    )
    add("--events", type=events, metavar="N", help="of each measurement, instead of --seconds")
    add(
        "--rate", type=number(1.0, 100_000.0), default=default.rate, metavar="N",
        help="events per second while latency is measured (default: %(default)g)",
    )  # fmt: skip
    add(
        "--run", dest="run_length", type=events, default=default.run, metavar="N",
        help="events in a row on one topic, before it is the other one's turn (default: %(default)s)",
    )  # fmt: skip
    add("--json", metavar="FILE", help="write all figures there; - is the standard output, without tables")
    add("--profile", metavar="DIR", help="profile one more round, and write the profiles there")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    amounts = Amounts(
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        events=arguments.events,
        rate=arguments.rate,
        run=arguments.run_length,
    )
    report = Reporting(arguments.json)
    if arguments.numbers:
        _measure_numbers(arguments, amounts, report)
    else:
        for kind, ens in _chosen(arguments):
            _measure_setup(kind, ens, arguments, amounts, report)
    report.finish()
    return 0


def _measure_numbers(arguments: argparse.Namespace, amounts: Amounts, report: Reporting) -> None:
    if arguments.sequencer or arguments.profile or arguments.packed or arguments.level:
        raise UsageError(
            "--numbers measures a stage of its own: leave out --sequencer, --profile, --packed and --level"
        )
    machine = describe_machine()
    rows = asyncio.run(measure_numbers(amounts, _durabilities(arguments), report.progress))
    report.add({"kind": "numbers", "about": {"machine": machine}, "rows": numbers_data(rows)}, describe_numbers(rows))


def _chosen(arguments: argparse.Namespace) -> list[tuple[SetupKind, str | None]]:
    """Set-ups, and the URLs of those that run already."""
    if arguments.ens is not None:
        ens = check_ens(arguments.ens)
        return [(kind_of(ens), ens)]
    names = list(KINDS) if arguments.all else list(dict.fromkeys(arguments.broker))
    return [(KINDS[name], None) for name in names]


def _durabilities(arguments: argparse.Namespace) -> Sequence[str]:
    return DURABILITIES if arguments.durability is None else (arguments.durability,)


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    if arguments.sequencer is None:
        levels = LEVELS if arguments.level is None else (arguments.level,)
        return variants_of(levels, _durabilities(arguments), arguments.packed)
    for option in ("durability", "level"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} is for a stage that is started here; that of --sequencer has its own: leave one out"
            )
    return variants_of([""], [OWN_STAGE], arguments.packed)


def _measure_setup(
    kind: SetupKind, ens: str | None, arguments: argparse.Namespace, amounts: Amounts, report: Reporting
) -> None:
    variants = _variants(arguments)
    machine = describe_machine()
    with _broker(kind, ens, report.progress) as (url, pid):
        plan = BenchPlan(kind=kind, ens=url, variants=variants, amounts=amounts, sequencer=arguments.sequencer)
        with rigged(plan, pid) as rig:
            outcome = measure(rig, report.progress)
            outcome.about = {"machine": machine, "amounts": describe_plan(plan)}
            report.add(outcome.as_data(), describe(outcome, plan))
            if arguments.profile:
                counts = [(series.variant, series.rushes[-1].events) for series in outcome.series]
                report.show(*profile_all(rig, counts, Path(arguments.profile), report.progress))


@contextmanager
def _broker(kind: SetupKind, ens: str | None, say: Callable[[str], None]) -> Iterator[tuple[str, int | None]]:
    """The URL of a broker, and its process if it is ours."""
    if ens is not None:
        yield ens, None
        return
    say(f"{kind.name}: starting the broker")
    with kind.make_broker() as broker:
        yield broker.url + kind.query, broker.pid


class Reporting:
    """Where figures go: tables to the terminal, all of them to a file, and what is going on to a terminal only."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._data: list[dict[str, Any]] = []
        self._shows_progress = sys.stderr.isatty()

    def progress(self, line: str) -> None:
        """Say what is being done, in the place of what was said last."""
        if self._shows_progress:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def add(self, data: dict[str, Any], text: str) -> None:
        """A set-up has been measured."""
        self._data.append(data)
        self.show(text)

    def show(self, *texts: str) -> None:
        """Print something for people."""
        self.progress("")
        if self._file != "-":
            for text in texts:
                print(text + "\n", flush=True)

    def finish(self) -> None:
        """Write the file."""
        if self._file is None:
            return
        text = json.dumps(self._data, indent=1)
        if self._file == "-":
            print(text)
            return
        try:
            Path(self._file).write_text(text + "\n")
        except OSError as error:
            raise BenchError(f"--json {self._file}: cannot be written: {error.strerror}") from error
