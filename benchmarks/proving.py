"""What the proofs of the milestones have in common: lines that hold or fail, and how they are run.

Each line ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if all hold.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Lines = Mapping[str, Callable[[], str | None]]
"""What each line is called, and what it does; it may return what there is to say besides that it holds."""


class Failed(Exception):
    """A line does not hold."""


class NotRun(Exception):
    """A line cannot be run here."""


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it printed; it must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def tested(*tests: str, **environment: str) -> str:
    """What pytest says in the end; all must pass, and none be left out."""
    summary = run(sys.executable, "-m", "pytest", "-q", "-n", "2", *tests, **environment).strip().splitlines()[-1]
    expect("passed" in summary and "skipped" not in summary and "failed" not in summary, summary)
    return summary


def expect(condition: bool, what: str) -> None:
    """Fail unless it is so."""
    if not condition:
        raise Failed(what)


def first_line(text: str | None) -> str:
    """What a line claims."""
    return (text or "").splitlines()[0]


def main(lines: Lines, description: str | None, argv: list[str] | None = None) -> int:
    """Run the lines."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="some lines, with commas between them")
    parser.add_argument("--list", action="store_true", help="name the lines")
    arguments = parser.parse_args(argv)
    if arguments.list:
        for name, line in lines.items():
            print(f"{name:14} {first_line(line.__doc__)}")
        return 0
    chosen = arguments.only.split(",") if arguments.only else list(lines)
    unknown = [name for name in chosen if name not in lines]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; the lines are {', '.join(lines)}")
    verdicts = {name: _verdict(name, lines[name]) for name in chosen}
    print("\n" + "\n".join(f"{name:14} {verdict}" for name, verdict in verdicts.items()))
    return 0 if all(verdict.startswith("holds") for verdict in verdicts.values()) else 1


def _verdict(name: str, line: Callable[[], str | None]) -> str:
    print(f"\n=== {name}: {first_line(line.__doc__)}", flush=True)
    started = time.monotonic()
    try:
        said = line()
    except Failed as failure:
        verdict = f"FAILS: {failure}"
    except NotRun as reason:
        verdict = f"NOT RUN: {reason}"
    except Exception as error:  # the other lines are to be run all the same
        traceback.print_exc()
        verdict = f"FAILS: {type(error).__name__}: {error}"
    else:
        verdict = f"holds: {said}" if said else "holds"
    verdict = f"{verdict} ({time.monotonic() - started:.0f} s)"
    print(f"--- {name}: {verdict}", flush=True)
    return verdict
