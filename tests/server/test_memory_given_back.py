"""What large frames have taken goes back to the system when nobody needs it any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re
import sys

from ordered_pubsub.cli.serve import give_memory_back

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024

if sys.argv[1] == "gives back":
    give_memory_back()
for _ in range(3):
    large = bytes(b"x") * (8 << 20)  # by the first of these glibc learns that such pieces come and go
    del large
before = resident()
frames, small = [], []
for _ in range(100):
    frames.append(b"x" * (1 << 20))
    small.append(bytearray(b"x" * 10_000))  # what stays, in between
del frames
print(resident() - before)
"""


def resident_after(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that holds on to it")
def test_what_large_frames_have_taken_is_given_back() -> None:
    assert resident_after("gives back") < 10
    assert resident_after("keeps it") > 80, "this test does not see any more what it is about"
