"""Waiting for what is to happen, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""
POLL_S = 0.002

Result = TypeVar("Result")


async def until(condition: Callable[[], object]) -> None:
    """Give way until something is the case."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    while not condition():
        assert loop.time() < give_up_at, "waited in vain"
        await asyncio.sleep(POLL_S)


async def soon(awaitable: Awaitable[Result]) -> Result:
    """What something comes to, if it comes."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)
