"""Fuzz for as long as it is told.

    cd tests && python -m fuzz.run --seconds 600                   # all targets, one after the other
    cd tests && python -m fuzz.run --target peer-frames --seconds 600 --seed 7

Each case depends on the target, the seed and its number only. A failure names the three, and `--first` begins there; what a stage
has been through before belongs to it as well, so a case of a live target may need those before it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from random import Random

import attrs

from fuzz import live, pure

TARGETS = (*pure.TARGETS, *live.TARGETS)


@attrs.define
class Cases:
    """The cases of one target, until the time is up or there were enough."""

    target: str
    seed: int
    first: int = 0
    count: int | None = None
    seconds: float = float("inf")
    number: int = -1
    """of the case that is tried now"""

    def __iter__(self) -> Iterator[Random]:
        give_up_at = time.monotonic() + self.seconds
        self.number = self.first
        while time.monotonic() < give_up_at and (self.count is None or self.number < self.first + self.count):
            yield Random(f"{self.target} {self.seed} {self.number}")
            self.number += 1

    @property
    def tried(self) -> int:
        """How many there were."""
        return self.number - self.first


def fuzz(cases: Cases) -> None:
    """Try the cases of a target; raises what one of them found."""
    logging.disable(logging.CRITICAL)  # what strangers say wrong is logged, and that is not what is looked for
    try:
        if cases.target in live.TARGETS:
            asyncio.run(live.TARGETS[cases.target].cases(iter(cases)))
        else:
            for random in cases:
                pure.TARGETS[cases.target](random)
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    """Fuzz what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description="Fuzz for as long as it is told.")
    parser.add_argument("--target", choices=TARGETS, action="append", help="what is fuzzed (default: everything)")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="for how long, all targets together (default: 600)"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--first", type=int, default=0, help="begin at this case")
    arguments = parser.parse_args()
    targets = arguments.target or TARGETS
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    found = 0
    for target in targets:
        cases = Cases(target, seed, arguments.first, seconds=arguments.seconds / len(targets))
        try:
            fuzz(cases)
        except Exception:
            found += 1
            traceback.print_exc()
            said = f"case {cases.number} of seed {seed} found this, the {cases.tried + 1}. that was tried"
        else:
            said = f"{cases.tried} cases of seed {seed}, and nothing found"
        sys.stdout.write(f"{target}: {said}\n")
        sys.stdout.flush()
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
