"""The event loop that the blocking clients of a process share, in a thread of its own.

The first client starts it, and it ends with the last: so the clients of a `memory://` system are in one loop, and no thread
stays behind. The thread is a daemon; when the interpreter ends while clients are open, they are closed, but not waited for
any longer than `EXIT_S`.

Whoever asks for something waits for a `concurrent.futures.Future`. Such a wait ends by Ctrl-C, since the loop runs elsewhere.
Once the loop takes nothing more, asking raises `Closed`: nobody waits for what nobody will do (`_gate`).

A process that was forked has the objects, but not the thread. It is told so, instead of waiting for it (`check_process`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any, TypeVar

from ordered_pubsub.client.client import Client
from ordered_pubsub.errors import Closed, Timeout, UsageError

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

EXIT_S = 5.0
"""How long an interpreter that ends waits for the receipts of clients that nobody has closed."""
END_S = 5.0
"""How long what still runs in a loop that ends may take to notice."""
GRACE_S = 10.0
"""A loop that has not answered so long after a call's own time is held up."""


class LoopThread:
    """An event loop in a thread. Made by `enter`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clients: dict[object, Client | None] = {}
        """who uses it: each with its client, once that is connected"""
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self.is_over = False
        """whether it takes nothing more"""
        self._thread = threading.Thread(target=self._run, name="ordered-pubsub", daemon=True)
        self._thread.start()

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one in which it runs."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise in a process that was forked from the one that connected."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"this client was connected in process {self._pid}, and a fork takes neither its thread nor its connection: "
                f"connect another one in this process ({os.getpid()})"
            )

    def submit(self, work: Coroutine[Any, Any, _Result]) -> futures.Future[_Result]:
        """Let the loop do something."""
        try:
            self.check_process()
            with self._gate:
                if self.is_over:
                    raise Closed("the client is closed; connect another one")
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def call(self, work: Coroutine[Any, Any, _Result], timeout_s: float | None = None) -> _Result:
        """Let the loop do something, and wait for it. Interrupted, it is cancelled there.

        What is done there has times of its own; `timeout_s` is for a loop that is held up.
        """
        try:
            check_may_block()
        except UsageError:
            work.close()
            raise
        future = self.submit(work)
        try:
            return outcome(future, timeout_s)
        except BaseException:
            future.cancel()
            raise

    def post(self, callback: Callable[[], None]) -> bool:
        """Let the loop call something soon; say whether it will."""
        with self._gate:
            if not self.is_over:
                self.loop.call_soon_threadsafe(callback)
            return not self.is_over

    def look(self, read: Callable[[], _Result]) -> _Result:
        """Read something that only the loop changes."""

        async def look() -> _Result:
            return read()

        try:
            return self.call(look(), GRACE_S)
        except Closed:
            self.join()
            return read()  # nobody changes it any more

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # they are for the main thread
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._gate:
                self.is_over = True
            try:
                self.loop.run_until_complete(_end_tasks())
            finally:
                self.loop.close()

    def leave(self, user: object) -> None:
        """Somebody needs it no more; after the last one, it ends."""
        global _shared
        with _lock:
            self.clients.pop(user, None)
            if self.clients or _shared is not self:
                return
            _shared = None
        self.post(self.loop.stop)

    def join(self) -> None:
        """If it is about to end, wait until it has; not for ever, and not in its own thread."""
        if not self.clients and threading.current_thread() is not self._thread:
            self._thread.join(END_S)

    def close_clients(self) -> None:
        """The interpreter ends: give what was published a moment, and disconnect."""
        open_clients = [client for client in self.clients.values() if client is not None]
        try:
            self.submit(_close_all(open_clients)).result(EXIT_S)
        except (Closed, futures.TimeoutError, futures.CancelledError):
            _log.warning("what had no receipt after %g s was left; its outcome is unknown", EXIT_S)
        self.clients.clear()
        self.post(self.loop.stop)
        self._thread.join(1.0)


async def _close_all(clients: list[Client]) -> None:
    """As at the end of blocks that the end of the interpreter has left: handlers are given up, and troubles logged."""
    leaving = SystemExit("the interpreter ends")
    await asyncio.gather(*(client.__aexit__(SystemExit, leaving, None) for client in clients))


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


# -- the one of this process ------------------------------------------------------------------------------------------

_lock = threading.Lock()
_shared: LoopThread | None = None


def enter(user: object) -> LoopThread:
    """The loop of this process, which is there until `user` leaves it."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        _shared.clients[user] = None
        return _shared


def _forget() -> None:
    """This process was forked: nothing of that is here."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


def _at_exit() -> None:
    if _shared is not None:
        _shared.close_clients()


os.register_at_fork(after_in_child=_forget)
atexit.register(_at_exit)


# -- waiting ----------------------------------------------------------------------------------------------------------


def check_may_block() -> None:
    """Raise where waiting would hold up an event loop, the library's own for one."""
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "ordered_pubsub.sync waits, and here an event loop is running that it would hold up: use the asynchronous face, "
            "`async with ordered_pubsub.connect(...) as client`, or call this in a thread (asyncio.to_thread)"
        )


def outcome(future: futures.Future[_Result], timeout_s: float | None = None) -> _Result:
    """What became of something that the loop does."""
    try:
        return future.result(timeout_s)
    except futures.CancelledError:
        raise Closed("the client was closed before this had an outcome") from None
    except futures.TimeoutError as error:
        if not is_late(future, error):
            raise
        raise Timeout(
            f"the thread of ordered_pubsub.sync did not answer within {timeout_s:g} s: something holds it up, perhaps a callback "
            "that was added to the future of a publication"
        ) from None


def is_late(future: futures.Future[Any], error: BaseException) -> bool:
    """Whether an error came from waiting for a future, and not from the future itself."""
    return not future.done() or future.cancelled() or future.exception() is not error
