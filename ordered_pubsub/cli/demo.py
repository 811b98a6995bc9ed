"""`ordered-pubsub demo`: total order across topics, on this machine, with nothing else installed.

Shown are, side by side, the orders in which an ENS gives the same events to two subscribers, and in which these are notified of
them (see `demonstration`); counted is in how many pairs of events they differ.

With `--ens` that is a real broker, with topics of the demonstration's own below `PREFIX`. A broker may well give both subscribers
the same order; then it is said so, and by how much that differs from the order in which the events were numbered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from itertools import zip_longest
from typing import Any
from uuid import uuid4

import attrs

from ordered_pubsub.adapter import redacted
from ordered_pubsub.cli.clients import named_stages, report_trouble, whole
from ordered_pubsub.cli.demonstration import SUBSCRIBERS, DemoPlan, Result, run
from ordered_pubsub.errors import UsageError

ROWS = 15
CELL = 18
"""The width of a column."""
PREFIX = "ordered-pubsub-demo"
"""Below it are the topics that are used on a real broker, which may have others."""

DESCRIPTION = "Shows two subscribers of the same topics: what the ENS gives them, and what they are notified of."
EPILOG = """\
examples:
  ordered-pubsub demo
  ordered-pubsub demo --topics 8 --publishers 5 --events 5000 --seed 42
  ordered-pubsub demo --json
  ordered-pubsub demo --ens mqtt://127.0.0.1:1883
  ordered-pubsub demo --ens 'nats://127.0.0.1:4222' --sequencer ops://127.0.0.1:7411

exit code: 0 if all subscribers were notified of the same events in the same order, 1 if not
"""


# -- what is printed --------------------------------------------------------------------------------------------------


@attrs.frozen
class Paint:
    """Colours, if they are wanted."""

    is_on: bool

    def __call__(self, text: str, *codes: int) -> str:
        """The text in ANSI colours; what fills it up stays plain."""
        if not self.is_on:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


BOLD, DIM, RED, GREEN = 1, 2, 31, 32


def as_json(plan: DemoPlan, result: Result) -> dict[str, Any]:
    """The counts, for machines."""
    return {
        "ens": redacted(plan.url),
        "seed": plan.seed,
        "topics": plan.topics,
        "publishers": plan.publishers,
        "events": len(result.labels),
        "subscribers": len(SUBSCRIBERS),
        "pairs": result.pairs,
        "ens_disagreements": result.ens_disagreements,
        "ens_against_order": result.against_order,
        "ordered_disagreements": result.ordered_disagreements,
        "missing": result.missing,
        "duration_s": round(result.duration_s, 3),
    }


def as_text(plan: DemoPlan, result: Result, paint: Paint) -> str:
    """Both orders side by side, and the counts, for people."""
    names = "".join(name.ljust(CELL) for name in SUBSCRIBERS)
    lines = [
        paint(
            f"{plan.topics} topics, {plan.publishers} publishers, {len(SUBSCRIBERS)} subscribers of all topics", BOLD
        ),
        paint(_about_ens(plan), DIM),
        "",
        "      " + paint("given by the ENS".ljust(2 * CELL + 8), BOLD) + paint("notified by ordered-pubsub", BOLD),
        "      " + paint(names + " " * 8 + names.rstrip(), DIM),
        *_rows(result, paint),
        "",
        *_counts(result, paint, plan.ens is not None),
        *_remark(plan, result),
        "",
        f"took {result.duration_s:.2f} s",
    ]
    return "\n".join(lines)


def _about_ens(plan: DemoPlan) -> str:
    if plan.ens is None:
        return f"an ENS that reorders: {plan.url.replace(f'-{os.getpid()}', '')}"
    stage = ", ".join(plan.sequencer) or "in this process"
    return f"the ENS: {redacted(plan.ens)}; the stage: {stage}"


def _remark(plan: DemoPlan, result: Result) -> list[str]:
    """A broker that has shown no disorder between subscribers: what that means."""
    if plan.ens is None or result.ens_disagreements:
        return []
    kept = "and it was that of the numbers." if not any(result.against_order) else "but it was not that of the numbers."
    return [
        "",
        f"This time the ENS gave both subscribers the same order, {kept}",
        "It does not promise that: other runs (--seed, --publishers, --events) may differ.",
    ]


def _rows(result: Result, paint: Paint) -> list[str]:
    rows = []
    given_rows, notified_rows = (
        zip_longest(*(order[:ROWS] for order in orders)) for orders in (result.given, result.notified)
    )
    for number, (given, notified) in enumerate(zip(given_rows, notified_rows, strict=False), 1):
        cells = _pair(given, result, paint) + "  " + _pair(notified, result, paint)
        rows.append(f"{number:4}  {cells}".rstrip())
    return rows


def _pair(events: tuple[str | None, ...], result: Result, paint: Paint) -> str:
    same = len(set(events)) == 1
    cells = "".join(result.labels.get(event or "", "-")[: CELL - 1].ljust(CELL) for event in events)
    return paint(cells + ("same  " if same else "differ"), GREEN if same else RED)


def _counts(result: Result, paint: Paint, is_broker: bool) -> list[str]:
    ens, ordered = result.ens_disagreements, result.ordered_disagreements
    rows = [
        ("events", len(result.labels), ()),
        ("subscribers", len(SUBSCRIBERS), ()),
        ("pairs of events", result.pairs, ()),
        ("pairs that the ENS gave in different order", ens, (BOLD, RED) if ens else ()),
        ("pairs notified in different order", ordered, (BOLD, RED if ordered else GREEN)),
    ]
    if is_broker:
        against = zip(SUBSCRIBERS, result.against_order, strict=True)
        rows[4:4] = [(f"pairs given to {name} in another order than numbered", count, ()) for name, count in against]
    if result.missing:
        rows.append(("events missing or notified twice", result.missing, (BOLD, RED)))
    width = max(44, *(len(text) + 2 for text, _, _ in rows))
    return [f"{text:{width}}" + paint(f"{count:>12,}", *codes) for text, count, codes in rows]


# -- the command ------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--seed", type=whole(0, 2**63), default=7, metavar="N", help="draw another run (default: 7)")
    add("--topics", type=whole(1, 100), default=4, metavar="N", help="how many topics (default: 4)")
    add("--events", type=whole(1, 100_000), default=1_000, metavar="N", help="how many events (default: 1000)")
    add("--publishers", type=whole(1, 100), default=3, metavar="N", help="how many publishers (default: 3)")
    add("--json", action="store_true", help="print one JSON object, for machines")
    add("--ens", metavar="URL", help="a real broker instead, such as mqtt://127.0.0.1:1883")
    add("--sequencer", metavar="ADDRESS", action="append", help="with --ens: a stage (default: one in this process)")
    add("--token-file", metavar="FILE", help="with --sequencer: the token to show to the stage")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run it, print it, and say by the exit code whether it is as it should be."""
    plan = _plan(arguments)
    report_trouble("demo")
    result = asyncio.run(run(plan))
    if arguments.json:
        print(json.dumps(as_json(plan, result)))
    else:
        print(as_text(plan, result, Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR"))))
    return 0 if result.is_good else 1


def _plan(arguments: argparse.Namespace) -> DemoPlan:
    plan = DemoPlan(arguments.seed, arguments.topics, arguments.publishers, arguments.events)
    if arguments.ens is None:
        if arguments.sequencer is not None:
            raise UsageError("--sequencer goes with --ens: the ENS of the demo itself embeds its stage")
        return plan
    return attrs.evolve(
        plan,
        ens=arguments.ens,
        sequencer=tuple(named_stages(arguments)),
        token_file=arguments.token_file,
        prefix=f"{PREFIX}/{uuid4().hex[:8]}/",
    )
