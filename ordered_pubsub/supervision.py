"""Whoever must live is looked after: one supervisor for the tasks and timers of an owner, and one way to wait before trying anew.

An owner is what somebody relies on: a stage, a client, an adapter's connection. It has tasks and timers that must live for as
long as it does, and each of them may meet an error that nobody has thought of. Then there are two ways, and none beside them:

- *Going on is safe*, since nothing is lost or half done: a connection that is made anew, a file that is looked at again. The
  error is logged, not more often than every `LOGGED_EVERY_S`, and the work begins again after a pause (`keep`, `every`).
- *Going on is not*, since nobody knows what state is in memory now: the owner fails, at once and loudly (`later`, `at`, `soon`,
  `must`). It says so to whoever relies on it, and does nothing more.

So nothing is deaf and says that it is ready. `tests/unit/test_supervision.py` looks for tasks and timers that nobody looks
after; docs/operations.md lists those that there are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from ordered_pubsub.errors import OrderedPubSubError

_log = logging.getLogger(__name__)

PAUSE_FIRST_S, PAUSE_MOST_S = 0.05, 5.0
LOGGED_EVERY_S = 10.0
"""An error that comes again and again is logged so often."""
LASTED_S = 10.0
"""Work that has gone well for so long begins again with a short pause."""


class Unexpected(OrderedPubSubError):
    """Something met an error that nobody has thought of, and does nothing more. Its cause is that error."""


@attrs.define
class Backoff:
    """Pauses between attempts: they double up to a limit, and differ, so that many who wait do not come back together."""

    first_s: float = PAUSE_FIRST_S
    most_s: float = PAUSE_MOST_S
    _next_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reset()

    @property
    def limit_s(self) -> float:
        """The next pause is not longer."""
        return self._next_s

    def next_s(self) -> float:
        """How long to wait before the next attempt."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self.most_s)
        return random.uniform(pause_s / 2, pause_s)

    def reset(self) -> None:
        """It went well: begin with short pauses again."""
        self._next_s = min(self.first_s, self.most_s)

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(self.next_s())


Failing = Callable[[Exception], None]
"""What becomes of an owner that has met what it cannot mend. Never raises."""


@attrs.define(eq=False)
class Supervisor:
    """The tasks and timers of one owner."""

    owner: str
    """in a few words, for the log: "client desk-1", "stage eu" """
    fail: Failing
    advice: str = "Begin anew, and report this with the log"
    """what to do when it has failed by what nobody has thought of"""
    healed: int = 0
    """how often something was begun again, or gone on with, after an error that nobody has thought of"""
    _tasks: dict[asyncio.Task[Any], bool] = attrs.field(factory=dict)
    _logged_at: dict[str, float] = attrs.field(factory=dict)
    """by the name of the work"""
    _unlogged: dict[str, int] = attrs.field(factory=dict)

    # -- going on is safe ---------------------------------------------------------------------------------------------

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Have some work done for as long as the owner lives: it is begun again whenever an error has ended it."""
        return self._spawn(self._keep(work, name), name)

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff()
        while True:
            began_at = loop.time()
            try:
                return await work()
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                self.note(name, error)  # what it has waited for was cancelled, and not this
            except Exception as error:
                self.note(name, error)
            if loop.time() - began_at >= LASTED_S:
                backoff.reset()
            await backoff.pause()

    def every(self, period_s: float, step: Callable[[], None], name: str) -> Repeated:
        """Do something now and then, from now on; an error keeps nobody from doing it again."""
        repeated = Repeated(self, period_s, step, name)
        repeated.run()
        return repeated

    def note(self, name: str, error: BaseException) -> None:
        """Something met an error and goes on."""
        self.healed += 1
        now = asyncio.get_running_loop().time()
        if now < self._logged_at.get(name, float("-inf")) + LOGGED_EVERY_S:
            self._unlogged[name] = self._unlogged.get(name, 0) + 1
            return
        self._logged_at[name] = now
        more = self._unlogged.pop(name, 0)
        before = f" ({more} times more since this was said last)" if more else ""
        _log.error("%s: %s met %r%s, and goes on", self.owner, name, error, before, exc_info=error)

    # -- going on is not ----------------------------------------------------------------------------------------------

    def must(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Have some work done without which the owner is of no use: it fails by an error of it."""
        return self._spawn(self._must(work, name), name, work)

    async def _must(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self.give_up(name, error)
        except Exception as error:
            self.give_up(name, error)

    def soon(self, step: Callable[..., None], name: str, *arguments: Any) -> None:
        """Do something in the next turn of the loop; the owner fails by an error of it."""
        asyncio.get_running_loop().call_soon(self.guarded, step, name, *arguments)

    def later(self, delay_s: float, step: Callable[..., None], name: str, *arguments: Any) -> asyncio.TimerHandle:
        """Do something after a while; the owner fails by an error of it."""
        return asyncio.get_running_loop().call_later(delay_s, self.guarded, step, name, *arguments)

    def at(self, due_at: float, step: Callable[..., None], name: str, *arguments: Any) -> asyncio.TimerHandle:
        """Do something at a time of the loop; the owner fails by an error of it."""
        return asyncio.get_running_loop().call_at(due_at, self.guarded, step, name, *arguments)

    def guarded(self, step: Callable[..., None], name: str, *arguments: Any) -> None:
        """Do something now; the owner fails by an error of it."""
        try:
            step(*arguments)
        except Exception as error:
            self.give_up(name, error)

    def give_up(self, name: str, error: BaseException) -> None:
        """Something met an error that cannot be mended."""
        _log.critical("%s: %s met %r: it does nothing more", self.owner, name, error, exc_info=error)
        if isinstance(error, OrderedPubSubError):
            self.fail(error)
            return
        failure = Unexpected(
            f"{self.owner} has stopped, since it met what it cannot handle ({name}: {type(error).__name__}: {error}). "
            f"{self.advice}"
        )
        failure.__cause__ = error
        self.fail(failure)

    # -- beside the owner ---------------------------------------------------------------------------------------------

    def beside(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do something once that the owner can do without; what goes wrong is logged."""
        return self._spawn(self._beside(work, name), name, work)

    async def _beside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception as error:
            unexpected = None if isinstance(error, OrderedPubSubError) else error
            _log.warning("%s: %s failed: %s", self.owner, name, error, exc_info=unexpected)

    def reported(
        self, work: Coroutine[Any, Any, None], name: str, told: Callable[[BaseException | None], None]
    ) -> asyncio.Task[None]:
        """Do something once, whose end somebody is told, with its error if there was one; the owner fails by an error of that."""

        def ended(task: asyncio.Task[None]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self.guarded(told, name, error)

        task = self._spawn(work, name)
        task.add_done_callback(ended)
        return task

    # -- the end ------------------------------------------------------------------------------------------------------

    def _spawn(
        self, work: Coroutine[Any, Any, None], name: str, inner: Coroutine[Any, Any, None] | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = True

        def ended(_: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if inner is not None:
                inner.close()  # cancelled before it has begun

        task.add_done_callback(ended)
        return task

    def cancel(self) -> None:
        """Let all tasks end soon."""
        for task in list(self._tasks):
            task.cancel()


@attrs.define(eq=False)
class Repeated:
    """Something that is done now and then. Made by `Supervisor.every`."""

    _supervisor: Supervisor
    _period_s: float
    _step: Callable[[], None]
    _name: str
    _handle: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Do it now, and again after a while."""
        self._handle = asyncio.get_running_loop().call_later(self._period_s, self.run)
        try:
            self._step()
        except Exception as error:
            self._supervisor.note(self._name, error)

    def cancel(self) -> None:
        """Do it no more."""
        if self._handle is not None:
            self._handle.cancel()


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task, and not just what it waits for; up to Python 3.10 nobody knows."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0
