"""How a client reaches the stage that it is at home at: requests out, answers in.

A home may lose a request or an answer whenever its connection breaks; the session asks again, so a home need not remember
anything. It must keep the order of what it does carry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import attrs

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.messages import Answer, FromSubscriber, Refusal, Request, ToSession
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.wire.sessions import SessionKey


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


@attrs.frozen
class Listener:
    """Who hears what comes from a home. None of it raises."""

    on_answers: Callable[[Sequence[Answer | Refusal]], None]
    """takes all the answers that came at once; never called from within `send`"""
    on_told: Callable[[Sequence[ToSession]], None]
    """takes what the stage tells subscriptions; never called from within `say`"""
    on_state: Callable[[bool, str], None]
    """is told whether the stage is connected now, and why"""
    on_failure: Callable[[Exception], None] = _ignore
    """is told why nothing comes any more, if the home has met what it cannot mend"""


NOBODY = Listener(_ignore, _ignore, _ignore)


class Home(ABC):
    """One client's connection to a home stage."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Which stage this is, or why there is none now, in words."""

    payload_bytes_max: int | None = None
    """what an event may have, as far as the stages say"""
    has_tags: bool = True
    """whether the stages tag what they have numbered"""
    levels: Levels = Levels()
    """what the topics of the system give, once it is connected"""
    times: Times = Times()
    """how long the stages wait for who is silent, as those say that it was connected to last"""

    @abstractmethod
    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        """Connect, for a session and the name that its client goes by; return what owns what.

        `on_state` is told of what changes afterwards. Cancelled, it leaves nothing open.
        """

    @abstractmethod
    def send(self, requests: Sequence[Request]) -> None:
        """Send requests, in this order, after all that were sent before."""

    @abstractmethod
    def say(self, message: FromSubscriber) -> None:
        """Send what a subscription says. It may be lost with the connection; what matters is said again."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; no answer comes any more."""
