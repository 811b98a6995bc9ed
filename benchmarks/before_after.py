"""This tree beside another commit, in one run: `python benchmarks/before_after.py [COMMIT] [--only core,log] [--least 0.95]`.

Without a COMMIT: where this branch has left `main`, or else the commit before this one. That commit is checked out beside, into a
temporary worktree, and each line is measured on both in turns (before, after, after, before, …), each time in a process of its
own that finds the library of its side first. A figure is the median of its turns, and the ratio is the median of after divided by
before within a turn, so that a slow moment of the machine meets both: more is better.

Each line has its time and is cut off there. It ends after as many turns as `--turns` says; one that is below `--least` then
goes on, up to three times as many, and all of them count. All lines together take less than 25 minutes. Exit code 1 if a ratio
is below `--least`, or a line could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import attrs
from before_after_side import LINES, Figures

HERE = Path(__file__).resolve().parents[1]
SIDE = Path(__file__).with_name("before_after_side.py")
LEAST = 0.95
TURNS, DOUBTED = 3, 3
"""So many turns has a line, and so many times as many one that would be too slow."""
WHOLE_S = 24 * 60.0
WEIGHTS = {"spark": 3.0, "replay": 2.0}
"""How much of the time a line has; 1 if it is not named."""


@attrs.define
class Line:
    """What was measured of a line on both sides."""

    name: str
    before: list[Figures] = attrs.field(factory=list)
    after: list[Figures] = attrs.field(factory=list)
    trouble: str = ""

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Each figure: its name, before, after, and the ratio."""
        turns = list(zip(self.before, self.after, strict=False))
        return [
            (
                name,
                median(before[name] for before, _ in turns),
                median(after[name] for _, after in turns),
                median(after[name] / before[name] for before, after in turns),
            )
            for name in (turns[0][1] if turns else ())
            if all(name in before and name in after for before, after in turns)
        ]

    def holds(self, least: float) -> bool:
        """Whether no figure is below this ratio."""
        return all(ratio >= least for *_, ratio in self.rows())


def default_commit() -> str:
    """Where this branch has left main; on main, the commit before."""
    base = _git("merge-base", "HEAD", "main", check=False)
    return base if base and base != _git("rev-parse", "HEAD") else _git("rev-parse", "HEAD~1")


def _git(*arguments: str, check: bool = True) -> str:
    found = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    if found.returncode and check:
        raise SystemExit(f"git {' '.join(arguments)} failed: {found.stderr.strip()}")
    return found.stdout.strip()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A tree of a commit, until the end of the block."""
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree), check=False)


def measure_once(line: str, tree: Path, share: float, limit_s: float) -> Figures:
    """The figures of one turn on one side."""
    path = os.pathsep.join([str(tree), str(tree / "adapters")])
    command = [sys.executable, str(SIDE), line, str(tree), str(share)]
    found = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if found.returncode:
        raise RuntimeError((found.stderr or found.stdout).strip()[-500:])
    figures: Figures = json.loads(found.stdout.splitlines()[-1])["figures"]
    return figures


def measure(name: str, before: Path, turns: int, share: float, limit_s: float, least: float) -> Line:
    """One line, on both sides in turns."""
    line, end = Line(name), time.monotonic() + limit_s
    longest = 0.0
    for turn in range(DOUBTED * turns):
        if turn >= turns and line.holds(least):
            break
        sides = [(before, line.before), (HERE, line.after)]
        for tree, found in sides if turn % 2 == 0 else reversed(sides):
            begin = time.monotonic()
            try:
                found.append(measure_once(name, tree, share, max(end - begin, 1.0)))
            except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                line.trouble = f"{'before' if tree == before else 'after'}: {error}"
                return line
            longest = max(longest, time.monotonic() - begin)
        if time.monotonic() + 2 * longest > end:
            break
    return line


def show(line: Line, least: float) -> bool:
    """Print the rows of a line; return whether all is well."""
    rows = line.rows()
    for figure, before, after, ratio in rows:
        mark = "" if ratio >= least else f"  below {least:g}, in {len(line.after)} turns"
        print(f"| {line.name} | {figure} | {_shown(before)} | {_shown(after)} | {ratio:.3f} |{mark}", flush=True)
    if line.trouble or not rows:
        print(f"| {line.name} | not measured: {' '.join(line.trouble.split())[:300]} | | | |", flush=True)
        return False
    return line.holds(least)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="what to compare with")
    parser.add_argument("--only", default=",".join(LINES), help="lines, of: %(default)s")
    parser.add_argument("--least", type=float, default=LEAST, help="the least ratio (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each line (default: %(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual amounts, for a first look")
    parser.add_argument("--minutes", type=float, default=WHOLE_S / 60, help="for all lines (default: %(default)g)")
    given = parser.parse_args(arguments)
    names = [name for name in given.only.split(",") if name]
    unknown = [name for name in names if name not in LINES]
    if unknown or not names:
        parser.error(f"--only {given.only}: the lines are {', '.join(LINES)}")
    commit = given.commit or default_commit()
    weights = sum(WEIGHTS.get(name, 1.0) for name in names)
    print(f"before: {_git('log', '-1', '--format=%h %s', commit)}\nafter:  this tree\n")
    print("| line | a second | before | after | ratio |\n| --- | --- | ---: | ---: | ---: |", flush=True)
    is_well = True
    with checked_out(commit) as before:
        for name in names:
            limit_s = 60 * given.minutes * WEIGHTS.get(name, 1.0) / weights
            is_well = (
                show(measure(name, before, given.turns, given.share, limit_s, given.least), given.least) and is_well
            )
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
