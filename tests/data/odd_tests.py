"""Tests that hang, each in another way, and one that looks at how it was started. tests/unit/test_running.py runs them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest


def wait_in_vain() -> None:
    threading.Event().wait()


def wait_in_a_thread() -> None:
    wait_in_vain()


async def wait_in_a_task() -> None:
    await wait_for_nobody()


async def wait_for_nobody() -> None:
    await asyncio.Event().wait()


def test_a_thread() -> None:
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    wait_in_vain()


async def test_a_task() -> None:
    task = asyncio.create_task(wait_in_a_task())
    await asyncio.Event().wait()
    await task


@pytest.fixture
async def never_ends() -> AsyncIterator[None]:
    yield
    await asyncio.create_task(wait_in_a_task())


async def test_what_ends_a_test_that_failed(never_ends: None) -> None:
    raise RuntimeError


def test_everything_is_caught() -> None:
    while True:
        with contextlib.suppress(BaseException):
            wait_in_vain()


@pytest.fixture
def leaves_a_thread() -> Iterator[None]:
    yield
    threading.Thread(target=wait_in_a_thread).start()


def test_the_end(leaves_a_thread: None) -> None:
    """The process, whose thread is left."""


def test_what_it_starts_heeds_ctrl_c() -> None:
    asks = "import signal; print(signal.getsignal(signal.SIGINT) == signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", asks], text=True) == "True\n"
