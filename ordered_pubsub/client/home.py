"""How a client reaches the stage that it is at home at: requests out, answers in.

A home may lose a request or an answer whenever its connection breaks; the session asks again, so a home need not remember
anything. It must keep the order of what it does carry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ordered_pubsub.core.messages import Answer, Refusal, Request
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.wire.sessions import SessionKey

AnswersHandler = Callable[[Sequence[Answer | Refusal]], None]
"""Takes all the answers that came at once; never called from within `send`."""

StateHandler = Callable[[bool, str], None]
"""Is told whether the stage is connected now, and why."""


class Home(ABC):
    """One client's connection to a home stage."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Which stage this is, or why there is none now, in words."""

    @property
    def payload_bytes_max(self) -> int | None:
        """What an event may have, as far as the stages say."""
        return None

    @abstractmethod
    async def open(
        self, key: SessionKey, name: str | None, on_answers: AnswersHandler, on_state: StateHandler
    ) -> Topology:
        """Connect, for a session and the name that its client goes by; return what owns what.

        `on_state` is told of what changes afterwards. Cancelled, it leaves nothing open.
        """

    @abstractmethod
    def send(self, requests: Sequence[Request]) -> None:
        """Send requests, in this order, after all that were sent before."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; no answer comes any more."""
