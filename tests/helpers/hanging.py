"""No test can hang: what makes pytest's own time-outs complete. `tests/conftest.py` loads it for all tests.

Theory of operation
===================
`pyproject.toml` gives every test two time-outs. After `timeout` (pytest-timeout) the test fails, with the stacks of all threads
and of all asyncio tasks, and the other tests go on. This failure is an exception in the main thread, so whatever catches
every exception can swallow it: a task in the background, for one. After `faulthandler_timeout` (pytest) the process
ends, with the stacks of all threads.

Pytest takes both away when a test fails, to make room for a debugger; but nothing hangs as easily as what ends a test that
has failed. So both are set again for that. The second one is also set where no test is: while tests are collected, and
while the process ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

STDERR = pytest.StashKey[int]()
"""The one of the process: while a test runs, pytest has put a file in its place."""
SETTINGS = pytest.StashKey[Any]()
"""What pytest-timeout made of the settings and marks of a test."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)


def end_if_it_hangs(config: pytest.Config) -> None:
    """End this process with the stacks of all threads, unless this is called again or called off in time."""
    patience_s = float(config.getini("faulthandler_timeout"))
    faulthandler.dump_traceback_later(patience_s, exit=True, file=config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    end_if_it_hangs(session.config)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    """The tasks are shown as well, before pytest-timeout shows the threads and fails the test."""
    item.stash[SETTINGS] = settings
    result = yield
    fail: Any = signal.getsignal(signal.SIGALRM)

    def show_and_fail(number: int, frame: FrameType | None) -> None:
        show_tasks()
        fail(number, frame)

    signal.signal(signal.SIGALRM, show_and_fail)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Who calls this takes both away again afterwards."""
    if SETTINGS in item.stash:  # else there is none: --timeout=0, to debug
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[SETTINGS])
    end_if_it_hangs(item.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that nobody ends keeps the process from ending."""
    end_if_it_hangs(config)


def show_tasks() -> None:
    """All tasks of all event loops, with the line at which each waits, and those that led to it."""
    loops = [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.AbstractEventLoop)]
    for task in (task for loop in loops for task in asyncio.all_tasks(loop)):
        lines = traceback.StackSummary.extract(frames_of(task)).format()
        sys.stderr.write(f"{task!r}\n{''.join(lines)}\n")


def frames_of(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Of all coroutines that wait for each other; `Task.get_stack` has the outermost only."""
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
