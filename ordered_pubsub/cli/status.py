"""`ordered-pubsub status`: how the stages of a system are.

Each stage is asked by a connection of its own, without a broker. Those that are given say where the others are, and these are
asked as well. A stage answers whoever has the right 'administer'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import attrs

from ordered_pubsub.cli.clients import add_client_options, client_section, run, seconds, stages_to_ask
from ordered_pubsub.cli.sub import printable
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.connecting import stage_home
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.wire.sessions import make_session

ASK_S = 10.0
COLUMNS = ("stage", "ready", "waiting for", "clients", "subscriptions", "topics", "events", "pending", "links")
NUMBERS = ("clients", "subscriptions", "topics", "events", "pending")
NAMED_COLUMNS = ("named subscription", "topics", "acknowledged", "behind")
NAMED_NUMBERS = ("topics", "acknowledged", "behind")

DESCRIPTION = "Asks stages how they are. If they ask for a token, it needs the right 'administer'."
EPILOG = """\
examples:
  ordered-pubsub status
  ordered-pubsub status --sequencer ops://stage-1:7411,ops://stage-2:7411 --token-file operator.token
  ordered-pubsub status --watch 2
  ordered-pubsub status --json | jq '.stages[] | select(.ready | not)'

Without an address, the stages of the configuration are asked, or the one at ops://127.0.0.1:7411.

exit code: 0 if all stages answered and are ready, 1 if one did not or is not, 2 if the call does not fit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object (with --watch, one a line)")
    parser.add_argument("--watch", type=seconds, metavar="S", help="ask again every S seconds, until Ctrl-C")
    add_client_options(parser, has_ens=False)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Ask, print, and say by the exit code whether all is well."""
    client = client_section(arguments)
    addresses = stages_to_ask(arguments, client)
    return run(lambda: _watch(arguments, client, addresses), "status")


async def _watch(arguments: argparse.Namespace, client: ClientSection, addresses: Sequence[Address]) -> int:
    timeout_s = arguments.call_timeout or ASK_S
    while True:
        overview = await look(client, addresses, timeout_s)
        if arguments.json:
            print(json.dumps(overview.as_json(), indent=None if arguments.watch else 2), flush=True)
        else:
            is_screen = arguments.watch is not None and sys.stdout.isatty()
            print(("\x1b[H\x1b[2J" if is_screen else "") + "\n".join(overview.as_text()), flush=True)
        if arguments.watch is None:
            return 0 if overview.is_well else 1
        await asyncio.sleep(arguments.watch)
        if not arguments.json:
            print()


# -- asking -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class StatusFinding:
    """What one stage said, or why it said nothing."""

    address: Address
    report: dict[str, Any] | None
    trouble: str
    learned: tuple[Address, ...]
    """where the stages are that it knows of"""


@attrs.frozen
class Overview:
    """What the stages said."""

    reports: list[tuple[Address, dict[str, Any]]]
    troubles: list[tuple[str, str]]
    """which stage, by its address or name, and why nothing is known of it"""

    @property
    def is_well(self) -> bool:
        """Whether all stages answered and are ready."""
        return not self.troubles and all(report["ready"] for _, report in self.reports)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "at": time.time(),
            "is_well": self.is_well,
            "stages": [{"address": str(address), **report} for address, report in self.reports],
            "unreachable": [{"stage": stage, "reason": reason} for stage, reason in self.troubles],
        }

    def as_text(self) -> list[str]:
        """For people: a table, and what is missing in it."""
        rows = [_row(report) for _, report in self.reports]
        lines = _table([COLUMNS, *rows], NUMBERS) if rows else []
        named = self._named()
        lines += ["", *_table([NAMED_COLUMNS, *named], NAMED_NUMBERS)] if named else []
        lines += [reason if stage in reason else f"{stage}: {reason}" for stage, reason in self.troubles]
        return [printable(line) for line in lines]

    def _named(self) -> list[tuple[str, ...]]:
        """The subscriptions with a name, and how far they are, as far as the stages that answered know."""
        numbers: dict[str, int] = {}
        for _, report in self.reports:
            numbers |= report["numbers"]
        rows: list[tuple[str, ...]] = []
        found = {name: said for _, report in self.reports for name, said in report["named"].items()}
        for name, said in sorted(found.items()):
            reached = said["reached"]
            acknowledged = f"{sum(reached.values()):,}" if said["has_acknowledged"] else "never"
            rows.append((name, f"{len(reached):,}", acknowledged, _behind(reached, numbers)))
        return rows


def _behind(reached: dict[str, int], numbers: dict[str, int]) -> str:
    """How many events it has not acknowledged, as far as the owners of its topics have answered: what is unknown is not zero."""
    known = [max(0, numbers[topic] - count) for topic, count in reached.items() if topic in numbers]
    if not known:
        return "?"
    return f"{sum(known):,}" if len(known) == len(reached) else f"{sum(known):,} or more"


async def look(client: ClientSection, addresses: Sequence[Address], timeout_s: float) -> Overview:
    """Ask the stages at these addresses, and those that they know of."""
    findings: dict[Address, StatusFinding] = {}
    asking = list(dict.fromkeys(addresses))
    while asking:
        found = await asyncio.gather(*(_ask(client, address, timeout_s) for address in asking))
        findings |= {finding.address: finding for finding in found}
        known = _reports(findings)
        silent = set(_names(known)) - set(known)
        learned = [address for finding in found for address in finding.learned if silent]
        asking = [address for address in dict.fromkeys(learned) if address not in findings]
    known = _reports(findings)
    names = _names(known)
    reports = [(known[name].address, known[name].report or {}) for name in names if name in known]
    troubles = [(str(finding.address), finding.trouble) for finding in findings.values() if finding.report is None]
    missing = [name for name in names if name not in known]
    if len(troubles) < len(missing):
        troubles += [(f"stage {name!r}", "it is part of this system, and did not answer") for name in missing]
    return Overview(reports, troubles)


async def _ask(client: ClientSection, address: Address, timeout_s: float) -> StatusFinding:
    home = stage_home(client, [address])
    report, trouble = None, ""
    try:
        await asyncio.wait_for(home.open(make_session(None), None, NOBODY), timeout_s)
        report = await home.inquire(timeout_s)
    except asyncio.TimeoutError:
        trouble = f"it did not answer within {timeout_s:g} s"
    except OrderedPubSubError as error:
        trouble = str(error)
    finally:
        await home.close()
    return StatusFinding(address, report, trouble, home.addresses)


def _reports(findings: dict[Address, StatusFinding]) -> dict[str, StatusFinding]:
    """The stages that answered, each once, though it may have several addresses."""
    answered: dict[str, StatusFinding] = {}
    for finding in findings.values():
        if finding.report is not None:
            answered.setdefault(finding.report["stage"], finding)
    return answered


def _names(known: dict[str, StatusFinding]) -> list[str]:
    """The names of all stages, in the order of their ranks, as those say that answered."""
    reports = [finding.report for finding in known.values() if finding.report is not None]
    return list(dict.fromkeys(stage[0] for report in reports for stage in report["topology"]))


# -- the table --------------------------------------------------------------------------------------------------------


def _row(report: dict[str, Any]) -> tuple[str, ...]:
    links = report["links"]
    broken = [f"{name}: {trouble}" for name, trouble in links.items() if trouble != "up"]
    cells = {
        "stage": report["stage"],
        "ready": "yes" if report["ready"] else "no",
        "waiting for": ", ".join(report["waiting_for_stages"]) or "-",
        "links": "; ".join(broken) or (f"{len(links)} up" if links else "-"),
        **{key: f"{report[key]:,}" for key in NUMBERS},
    }
    return tuple(cells[column] for column in COLUMNS)


def _table(rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> list[str]:
    """Columns under their headings, which are the first row; those with numbers are set to the right."""
    columns = []
    for heading, *cells in zip(*rows, strict=True):
        width = max(map(len, (heading, *cells)))
        columns.append([f"{cell:{'>' if heading in numbers else '<'}{width}}" for cell in (heading, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
