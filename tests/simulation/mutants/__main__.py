"""`make mutants`: looks for each mutant, and prints docs/mutants.md."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor

from simulation.mutants import MUTANTS, find, row

HEAD = """\
# Mutants

A simulation that finds nothing may be blind. So the guards of the protocol are taken away one at a time, and the
simulation must find each of them missing within 2,000 seeds (or within 2,000 chances of a named scenario,
`tests/simulation/scenarios.py`); it counts only if nothing falls there with the guard. The first twelve belong to the
protocol as it was designed; the next nine, from `lead-the-change` on, are guards that the simulation itself has taught us;
those from `ask-once` on make it exactly once over an ENS that loses, also for who dies and comes back; those from `void-unasked`
on close the holes that a publisher leaves where nobody keeps its events, and end what nothing is heard of in time; those from
`ask-unheld` on are what a client does by itself; those from `tag-unchecked` on stand between anybody and what is not his to
say; those from `begin-again` on let topics rest and wake; those from `known-of-any` on are of who reads ranges of the
logs, or writes by tasks that are run again; and those from `bit-by-bit` on let a transaction come as a whole, and
happen as a whole. This page is
written by `make mutants`, and `tests/simulation/test_mutants.py` runs every line of it.
To see one: `python -m ordered_pubsub.testing.simulate --seed N` with the guard taken away in the code.

"I" numbers are those of [invariants.md](invariants.md); "order" is the one total order of all operations.

| mutant | the guard | seed | fell |
| --- | --- | --- | --- |
"""


def row_of(number: int) -> str:
    """The line of a mutant, by its number: it itself cannot be sent to another process."""
    return row(MUTANTS[number], find(MUTANTS[number]))


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(row_of, range(len(MUTANTS))))
    sys.stdout.write(HEAD + "\n".join(rows) + "\n")
