"""Ending tasks for sure."""

from __future__ import annotations

import asyncio

_AGAIN_S = 0.1


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and return when it has ended.

    Up to Python 3.11, `asyncio.wait_for` swallows a cancellation that comes in the moment in which it has its result; so
    the task is cancelled until it has heard.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)
