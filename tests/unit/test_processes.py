"""Processes that tests and measurements start: named when they fail, gone when they are not wanted any more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ordered_pubsub.testing.processes import (
    HOST,
    ORPHANED,
    Process,
    ProcessError,
    Starter,
    WorkerProcess,
    command_of,
    memory_bytes,
    plain_environment,
)
from ordered_pubsub.testing.stages import StageProcesses

Make = Callable[[str], Process]


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Make]:
    """Starts a process that runs some Python."""
    made: list[Process] = []

    def make(code: str) -> Process:
        made.append(Process("the process", [sys.executable, "-u", "-c", code], tmp_path / "log"))
        made[-1].begin()
        return made[-1]

    yield make
    for process in made:
        process.kill()


def test_who_ends_before_it_is_ready_is_named_with_its_last_words(python: Make) -> None:
    process = python("print('a word'); raise SystemExit(7)")

    with pytest.raises(ProcessError, match=r"(?s)the process was not ready when it ended with 7.*a word"):
        process.wait_until(lambda: False)


def test_who_is_not_ready_in_time_is_named(python: Make) -> None:
    with pytest.raises(ProcessError, match=r"the process was not ready within 0\.01 s"):
        python("input = __import__('time').sleep(60)").wait_until(lambda: False, timeout_s=0.01)


def test_what_it_said_in_an_earlier_life_is_not_what_it_says_now(python: Make) -> None:
    process = python("import time; print('ready'); time.sleep(60)")
    process.wait_until(lambda: "ready" in process.said)
    process.kill()
    process.begin()
    process.wait_until(lambda: "ready" in process.said)

    assert process.said.count("ready") == 1
    assert process.log.read_text().count("ready") == 2


def test_who_does_not_end_when_told_to_is_killed(python: Make) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    process = python(code)
    process.wait_until(lambda: "deaf" in process.said)

    assert process.stop(timeout_s=0.05) == -signal.SIGKILL
    assert process.pid is None


def test_children_go_with_the_one_that_is_killed(python: Make) -> None:
    child_code = "import time; time.sleep(60)"
    code = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {child_code!r}]).pid); time.sleep(60)"
    process = python(code)
    process.wait_until(lambda: "\n" in process.said)
    child = int(process.said)
    process.kill()

    while memory_bytes(child):  # whoever has adopted it takes note of its end
        os.sched_yield()


async def double(starter: Starter, number: int) -> None:
    """A part: doubles what it is told, and fails at what it cannot double."""
    starter.tell(plan=number)
    while True:
        starter.tell(result=2 * (await starter.hear())["number"])


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    made = WorkerProcess("the worker", command_of(double), tmp_path / "log", plan={"number": 3})
    made.begin()
    yield made
    made.kill()


def test_a_worker_runs_a_function_is_given_its_plan_and_answers(worker: WorkerProcess) -> None:
    assert worker.hear() == {"plan": 3}
    assert worker.ask(number=21) == {"result": 42}


def test_a_worker_that_is_let_go_is_gone(worker: WorkerProcess) -> None:
    worker.hear()
    worker.end()

    assert worker.exit_code == ORPHANED


def test_a_worker_that_says_nothing_says_it_later(worker: WorkerProcess) -> None:
    worker.hear()
    assert worker.hear_within(0.01) is None
    assert worker.ask(number=1) == {"result": 2}


def test_a_worker_that_has_failed_is_named_with_its_last_words(worker: WorkerProcess) -> None:
    worker.hear()
    with pytest.raises(ProcessError, match=r"(?s)the worker ended with 1.*TypeError"):
        worker.ask(number=None)


def test_what_would_configure_the_library_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_SEQUENCER", "ops://elsewhere:1")

    assert "ORDERED_PUBSUB_SEQUENCER" not in plain_environment()
    assert "PATH" in plain_environment()


def test_stages_have_their_sections_and_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    settings = [{"name": "eu", "store": "memory", "durability": "none"}, {"name": "us"}]
    stages = StageProcesses(tmp_path / "new", [["eu/**"], ["**"]], more="# first\n", settings=settings)
    stages.write()
    eu, us = stages.processes

    assert stages.config.stat().st_mode & 0o777 == 0o600
    assert (
        stages.config.read_text()
        == f"""\
# first

[[stage]]
name = "eu"
listen = "{HOST}:{eu.port}"
store = "memory"
topics = ["eu/**"]
durability = "none"

[[stage]]
name = "us"
listen = "{HOST}:{us.port}"
store = "sqlite:us.db"
topics = ["**"]
durability = "fsync"
"""
    )
