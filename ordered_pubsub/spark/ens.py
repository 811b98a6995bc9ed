"""The broker, for what a task of Spark publishes: subscribers hear of it at once, and not only from the logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import attrs

from ordered_pubsub.adapter import Adapter, Frame, load_adapter, redacted
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.core.messages import Publication
from ordered_pubsub.errors import ConfigurationError, OrderedPubSubError, Timeout
from ordered_pubsub.sync.loops import LoopThread, enter
from ordered_pubsub.wire.event_frames import stamped

_log = logging.getLogger(__name__)

TIMEOUT_S, PAUSE_S = 5.0, 30.0
"""So long the broker has for what a request published, and so long it is left alone if it did not take it."""


@attrs.define(eq=False)
class TaskEns:
    """The broker on which subscribers hear of events at once; what does not reach them there, they get from the logs."""

    adapter: Adapter
    thread: LoopThread
    _again_at: float = 0.0
    """when it is tried again, if it did not take something"""

    @classmethod
    def open(cls, url: str, timeout_s: float) -> TaskEns:
        """Connect, or raise what is the matter with it."""
        adapter = load_adapter(url)
        if adapter.local_system is not None:
            raise ConfigurationError(
                f"option ens={url!r} is a system within one process, and Spark's workers are others: give the broker, as in "
                "mqtt://127.0.0.1:1883, or leave the option out"
            )
        ens = cls(adapter, enter(adapter))
        try:
            ens._call(adapter.open(_ignore, lambda is_connected, reason: None), timeout_s)
        except BaseException:
            ens.thread.leave(adapter)
            raise
        return ens

    def hand_over(self, published: Sequence[tuple[Publication, list[Outgoing]]]) -> None:
        """Let subscribers have it. What the broker does not take, their logs have; then it is left alone for a while."""
        if time.monotonic() < self._again_at:
            return
        frames = [frame for part, items in published for frame in stamped(part, items)]
        try:
            self._call(self.adapter.publish(frames), TIMEOUT_S)
        except OrderedPubSubError as error:
            self._again_at = time.monotonic() + PAUSE_S
            _log.warning(
                "the ENS did not take %d events, which their logs have; it is tried again in %g s: %s",
                len(frames),
                PAUSE_S,
                error,
            )

    def _call(self, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        self.thread.call(_within(timeout_s, work, redacted(self.adapter.url)))

    def close(self) -> None:
        """Disconnect."""
        try:
            self._call(self.adapter.close(), TIMEOUT_S)
        except OrderedPubSubError as error:
            _log.warning("while the ENS was left: %s", error)
        finally:
            self.thread.leave(self.adapter)
            self.thread.join()


async def _within(timeout_s: float, work: Coroutine[Any, Any, None], url: str) -> None:
    try:
        await asyncio.wait_for(work, timeout_s)
    except (TimeoutError, asyncio.TimeoutError):
        raise Timeout(f"the ENS at {url} has not answered for {timeout_s:g} s") from None


async def _ignore(frames: Sequence[Frame]) -> None:
    """Nothing was subscribed to."""
