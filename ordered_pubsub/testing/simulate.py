"""`python -m ordered_pubsub.testing.simulate --seed 7`: repeat one world, print it, its trace and the verdict.

With `--shrink` a failing world is made small first. Exit code 1 if an invariant fell.
"""

from __future__ import annotations

import argparse
import sys

from ordered_pubsub.testing.shrink import shrink
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import World, draw


def report(world: World, with_trace: bool) -> tuple[str, bool]:
    """The world, its trace if wanted, and the verdict; and whether it passed."""
    simulation = Simulation(world, keep_trace=with_trace)
    record = simulation.run()
    lines = [world.describe(), *(simulation.lines or ())]
    if record.violations:
        lines.extend(f"VIOLATION {violation}" for violation in record.violations)
    else:
        lines.append(
            f"no violation: {len(record.events)} events, {record.operations} operations, {record.notifications} notifications, "
            f"{record.crashes} crashes"
        )
    return "\n".join(lines), not record.violations


def main(argv: list[str] | None = None) -> int:
    """Run one seed."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the seed of the world")
    parser.add_argument("--shrink", action="store_true", help="make a failing world small first")
    parser.add_argument("--quiet", action="store_true", help="without the trace")
    arguments = parser.parse_args(argv)
    world = draw(arguments.seed)
    if arguments.shrink:
        violations = Simulation(world).run().violations
        if violations:
            world = shrink(world, violations[0])
    text, passed = report(world, with_trace=not arguments.quiet)
    sys.stdout.write(text + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
