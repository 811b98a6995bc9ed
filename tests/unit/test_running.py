"""How tests run: none can hang, and none depends on where it is started. Shown with those of tests/data/odd_tests.py.

They run with the settings of all tests, but for shorter time-outs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[2]
ODD = "tests/data/odd_tests.py"
PLAIN = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


def run(name: str, *options: str) -> str:
    """What pytest says of one of them, which it does not pass."""
    command = [sys.executable, "-m", "pytest", f"{ODD}::{name}", *options]
    short = ["-o", "timeout=1", "-o", "faulthandler_timeout=5"]
    ended = subprocess.run(
        [*command, *short], cwd=ROOT, env=PLAIN, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    return ended.stdout + ended.stderr


def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads() -> None:
    said = run("test_a_thread")
    assert "Timeout (>1.0s)" in said
    assert "in wait_in_a_thread" in said
    assert "def test_a_thread" in said
    assert "1 failed" in said


def test_a_test_that_hangs_fails_with_the_stacks_of_all_tasks() -> None:
    said = run("test_a_task")
    assert "Timeout (>1.0s)" in said
    assert "in wait_in_a_task\n    await wait_for_nobody()" in said
    assert "in wait_for_nobody\n    await asyncio.Event().wait()" in said
    assert "in test_a_task" in said


def test_what_ends_a_test_that_failed_may_hang() -> None:
    said = run("test_what_ends_a_test_that_failed")
    assert "RuntimeError" in said
    assert "in wait_in_a_task" in said
    assert "1 failed, 1 error" in said


def test_a_test_that_catches_its_time_out_ends_its_process() -> None:
    """With the stacks; there is no report."""
    said = run("test_everything_is_caught")
    assert "Timeout (0:00:05)!" in said
    assert "in test_everything_is_caught" in said


def test_a_process_of_tests_that_does_not_end_is_ended() -> None:
    said = run("test_the_end")
    assert "1 passed" in said
    assert "in wait_in_a_thread" in said


def test_the_other_processes_go_on() -> None:
    """With several of them, the test is reported that was running."""
    said = run("test_everything_is_caught", "-n", "1")
    assert "in test_everything_is_caught" in said
    assert "crashed while running 'tests/data/odd_tests.py::test_everything_is_caught'" in said
    assert "1 failed" in said


def test_what_tests_start_heeds_ctrl_c_though_a_shell_started_them_in_the_background() -> None:
    shell = ["sh", "-c", 'trap "" INT; exec "$0" -m pytest "$1"']
    command = [*shell, sys.executable, f"{ODD}::test_what_it_starts_heeds_ctrl_c"]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)


def test_who_debugs_may_do_without_time_outs() -> None:
    command = [sys.executable, "-m", "pytest", f"{ODD}::test_what_it_starts_heeds_ctrl_c", "--timeout=0"]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
