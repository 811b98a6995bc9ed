"""Ending tasks for sure, and waiting for what may not end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_AGAIN_S = 0.1
_T = TypeVar("_T")


async def in_time(work: Awaitable[_T], seconds: float, otherwise: Exception, ending_s: float) -> _T:
    """The outcome of some work; if it takes longer, it is cancelled, has so long to end, and that is an error.

    `asyncio.wait_for` may swallow a cancellation before Python 3.12 (https://github.com/python/cpython/issues/86296).
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.done():
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=ending_s)
        if task.done() and not task.cancelled():
            task.exception()  # it was not wanted any more, whatever became of it
    raise otherwise


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and return when it has ended.

    Up to Python 3.11, `asyncio.wait_for` swallows a cancellation that comes in the moment in which it has its result; so
    the task is cancelled until it has heard.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)
