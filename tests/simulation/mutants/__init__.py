"""The guards of the protocol, to be taken away one at a time.

Each mutant replaces one method of the core by one without the guard. The simulation must find each within `SEEDS_MAX` seeds,
else it could not be trusted to find a fault of ours. `make mutants` writes what it finds into docs/mutants.md.
"""

from __future__ import annotations

from simulation.mutants import client, order, reading, recovery, resting, transactions, trust, voids
from simulation.mutants.mutant import SEEDS_MAX, Finding, Mutant, find, row

MUTANTS = (
    *order.MUTANTS,
    *recovery.MUTANTS,
    *voids.MUTANTS,
    *client.MUTANTS,
    *trust.MUTANTS,
    *resting.MUTANTS,
    *reading.MUTANTS,
    *transactions.MUTANTS,
)

__all__ = ["MUTANTS", "SEEDS_MAX", "Finding", "Mutant", "find", "row"]
