"""The examples run, and show what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_desks_agree_on_every_spread() -> None:
    assert "the desks agree on every spread: True" in run("two_desks.py")


def test_every_example_is_run_here() -> None:
    source = Path(__file__).read_text()
    assert all(f'run("{path.name}")' in source for path in EXAMPLES.glob("*.py"))
