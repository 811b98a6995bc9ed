"""`python -m ordered_pubsub.bench.profiled FILE COMMAND...`: a command of `ordered-pubsub`, profiled into a file."""

from __future__ import annotations

import sys
from cProfile import Profile

from ordered_pubsub.cli import main


def run(file: str, command: list[str]) -> int:
    """Run it; what was seen is written whatever becomes of it."""
    profile = Profile()
    try:
        return profile.runcall(main, command)
    finally:
        profile.dump_stats(file)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
