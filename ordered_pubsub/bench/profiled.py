"""`python -m ordered_pubsub.bench.profiled FILE COMMAND...`: a command of `ordered-pubsub` that can be profiled while it runs.

SIGUSR1 begins to profile, SIGUSR2 ends it, and what was seen is written when the command ends: so its start is
not in the profile.
"""

from __future__ import annotations

import signal
import sys
from cProfile import Profile
from runpy import run_module

from ordered_pubsub.bench.processes import BEGIN_PROFILE, END_PROFILE


def run(file: str, command: list[str]) -> None:
    """Run it; what was seen is written whatever becomes of it."""
    profile = Profile()
    signal.signal(BEGIN_PROFILE, lambda *_: profile.enable())
    signal.signal(END_PROFILE, lambda *_: profile.disable())
    sys.argv = ["ordered-pubsub", *command]
    try:
        run_module("ordered_pubsub", run_name="__main__")
    finally:
        profile.disable()
        profile.dump_stats(file)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
