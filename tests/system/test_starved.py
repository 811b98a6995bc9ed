"""A broker that brings nothing: the benchmark, in short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_everybody_is_notified_in_time_and_the_broker_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/starved.py", "--seconds", "8"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds") == 8
