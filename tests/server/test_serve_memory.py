"""What is free goes back to the system: the C library keeps little of it for a process that runs stages."""

from __future__ import annotations

import subprocess
import sys

MIB = 1 << 20
CHILD = """
import sys
from ordered_pubsub.cli.serve import give_memory_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "tuned":
    assert give_memory_back()
large = bytearray(31 << 20)
del large  # by this glibc learns to have what is as large on its heap, and to keep it
before = resident()
several = [bytearray(2 << 20) for _ in range(10)]
del several
print(resident() - before)
"""


def kept(how: str) -> int:
    """How many bytes a process still has of twenty megabytes that it has let go."""
    return int(subprocess.check_output([sys.executable, "-c", CHILD, how], text=True))


def test_what_is_let_go_is_given_back() -> None:
    assert kept("untuned") > 15 * MIB
    assert kept("tuned") < 2 * MIB
