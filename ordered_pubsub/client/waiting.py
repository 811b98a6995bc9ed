"""Waiting for an outcome, but not for ever, and without changing what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ordered_pubsub.errors import Timeout

_Result = TypeVar("_Result")


async def within(
    timeout_s: float, future: asyncio.Future[_Result], what: Callable[[], str], give_up_at: float | None = None
) -> _Result:
    """The result of a future, or a `Timeout` that says what was waited for. Cancelled, it leaves the future going on.

    `give_up_at` is the loop's time, for a call that has used up some of its `timeout_s` already.
    """
    if not future.done():
        wait_s = timeout_s if give_up_at is None else max(give_up_at - asyncio.get_running_loop().time(), 0.0)
        try:
            await asyncio.wait((future,), timeout=wait_s)
        finally:
            if not future.done():
                future.add_done_callback(forget_outcome)
    if not future.done():
        raise Timeout(f"no outcome within {timeout_s:g} s (timeout_s): waited for {what()}. The outcome is unknown")
    return future.result()


def forget_outcome(future: asyncio.Future[_Result]) -> None:
    """Nobody waits for this any more: its error need not be reported as one that was never seen."""
    if not future.cancelled():
        future.exception()


def tell(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Say from another thread that something is done, or failed. If the loop is closed, nobody waits for it."""

    def settle() -> None:
        if not future.done() and error is None:
            future.set_result(None)
        elif not future.done() and error is not None:
            future.set_exception(error)

    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(settle)
