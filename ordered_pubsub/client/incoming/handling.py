"""What calls a handler (`notify=`), and what happens when it fails.

A handler that raises is called again with the same event as the retry policy says (tenacity); nothing else of the subscription is
handled meanwhile, so the order holds. When the policy gives up, the event goes to the dead-letter topic with the reason, and the
subscription goes on behind it; without such a topic the subscription stops there. An event is never dropped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable

import attrs
import tenacity

from ordered_pubsub.client.event import Event
from ordered_pubsub.errors import ConfigurationError

_log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 10.0
"""Between the first attempts, and at most; what comes between doubles, with some jitter."""

Handler = Callable[[Event], Awaitable[object] | object]
"""What `notify=` takes: a plain or an async function."""


@attrs.frozen
class Handling:
    """A handler, and what to do when it fails."""

    handler: Handler
    retry: tenacity.AsyncRetrying | None = None
    dead_letter: Callable[[Event, Exception], Awaitable[object]] | None = None
    """publishes an event that cannot be handled, with the reason"""

    async def __call__(self, event: Event) -> None:
        """Have an event handled, or put aside. Raises what the handler raised last if neither is possible."""
        try:
            if self.retry is None:
                await self._call(event)
            else:
                await self._try(self.retry, event)
        except Exception as error:
            if self.dead_letter is None:
                raise
            _log.warning("%r could not be handled and goes to the dead-letter topic: %r", event, error)
            await self.dead_letter(event, error)

    async def _call(self, event: Event) -> None:
        outcome = self.handler(event)
        if isawaitable(outcome):
            await outcome

    async def _try(self, retry: tenacity.AsyncRetrying, event: Event) -> None:
        try:
            async for attempt in retry.copy(reraise=True):
                with attempt:
                    await self._call(event)
        except tenacity.RetryError as error:  # the policy gave up by a way of its own
            last = error.last_attempt.exception()
            raise (last if isinstance(last, Exception) else error) from error


def policy_of(retry: object) -> tenacity.AsyncRetrying | None:
    """A retry policy that can be awaited: of how many times to try in all, or of a policy of tenacity."""
    if retry is None:
        return None
    if isinstance(retry, tenacity.AsyncRetrying):
        return retry
    if isinstance(retry, tenacity.BaseRetrying):
        return tenacity.AsyncRetrying(
            stop=retry.stop,
            wait=retry.wait,
            retry=retry.retry,
            before=retry.before,
            after=retry.after,
            before_sleep=retry.before_sleep,
        )
    if isinstance(retry, int) and not isinstance(retry, bool) and retry >= 1:
        wait = tenacity.wait_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MOST_S) + tenacity.wait_random(
            0, RETRY_FIRST_S
        )
        return tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(retry), wait=wait)
    raise ConfigurationError(
        f"retry={retry!r} does not fit; retry is how many times to try in all, or a policy of tenacity, such as "
        "AsyncRetrying(stop=stop_after_attempt(5), wait=wait_fixed(1))"
    )
