"""Waiting with a limit, and ending tasks.

Before Python 3.12, `asyncio.wait_for` may swallow a cancellation that comes at the wrong moment
(https://github.com/python/cpython/issues/86296), and whoever cancelled waits for ever. nats-py uses it, and this does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

CANCEL_AGAIN_S = 0.1
CANCELS_MAX = 50

T = TypeVar("T")


def settle(future: asyncio.Future[str], trouble: str = "") -> None:
    """Say how something went, unless nobody waits any more."""
    if not future.done():
        future.set_result(trouble)


async def in_time(future: asyncio.Future[T], timeout_s: float) -> T:
    """The outcome of a future, which goes on if it is not there in time; then this raises `asyncio.TimeoutError`."""
    await asyncio.wait((future,), timeout=timeout_s)
    if not future.done():
        raise asyncio.TimeoutError
    return future.result()


async def bounded(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The outcome of some work, which is ended if it is not there in time; then this raises `asyncio.TimeoutError`."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await in_time(task, timeout_s)
    finally:
        await end(task)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Return when these tasks have ended. They are cancelled, again if need be."""
    left = [task for task in tasks if not task.done()]
    for _ in range(CANCELS_MAX):
        if not left:
            return
        for task in left:
            task.cancel()
        ended, going = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # it was not wanted any more, whatever became of it
        left = list(going)
