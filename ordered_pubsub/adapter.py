"""Adapters: how this library reaches the event notification service (ENS) that its users already run.

Theory of operation
===================
An adapter carries frames and knows nothing of the order. The payload of a frame is the application's own bytes, so that a
plain consumer of the topic can read it; everything that belongs to the order travels in the headers. The order survives an
ENS that is slow, reorders and repeats. It does not survive one that says "published" and then forgets.

A client and its adapter talk to each other like this:

- `open` connects, and returns when the ENS can be used. From then on the adapter keeps the connection by itself: when it
  breaks, it connects and subscribes again, and tells `on_state` of both.
- `publish` returns when the ENS has taken responsibility for all the frames, if it can say so (`Capabilities.confirms`). If
  it raises, the client hands over the same frames again later: a frame may arrive twice, but not never. (Or it has packed
  their events anew, because `frame_bytes_max` has changed.)
- `subscribe` returns when the subscription is active: everything that anybody publishes after that arrives.
- `on_frames` is given what arrives, as many frames at once as there are, and is awaited. While it has not returned, the
  client wants no more frames of this connection: the adapter stops reading, or leaves the frames with the ENS, as far as
  that lets it. This is how a slow consumer is felt by the ENS and not by the memory of the process. It never raises.

A package offers an adapter by an entry point in the group `ordered_pubsub.adapters`, named after the URL's scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

import attrs
import msgspec

from ordered_pubsub.errors import ConfigurationError

ENTRY_POINT_GROUP = "ordered_pubsub.adapters"

EXTRAS = {"mqtt": "mqtt", "mqtts": "mqtt", "nats": "nats", "tls": "nats", "amqp": "rabbitmq", "amqps": "rabbitmq"}
"""Which of this package's extras brings the client library of a scheme's broker."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One message of the ENS: the application's payload, and headers that say everything else."""

    topic: str
    payload: bytes
    headers: Mapping[str, bytes | str] = {}


FramesHandler = Callable[[Sequence[Frame]], Awaitable[None]]
"""Takes what has arrived; while it is awaited, no more is wanted."""

StateHandler = Callable[[bool, str], None]
"""Is told whether the ENS is connected now, and why."""


@attrs.frozen
class Capabilities:
    """What an ENS does to frames, and what it can be relied on for."""

    loses: bool
    """a frame that it took responsibility for may never arrive"""
    reorders: bool
    """frames of one topic may arrive in another order than they were published in"""
    duplicates: bool
    """a frame may arrive more than once"""
    keeps_while_away: bool
    """what is published while a subscriber's connection is broken arrives when it is back"""
    carries_headers: bool
    """headers travel beside the payload, which stays the application's own bytes"""
    confirms: bool
    """`publish` returns when the ENS has taken responsibility, not just when the bytes have left"""


def _nobody(error: Exception) -> None:
    """Nobody relies on it yet."""


class Adapter(ABC):
    """One client's connection to an ENS."""

    on_failure: Callable[[Exception], None] = staticmethod(_nobody)
    """The client puts here, before `open`, what an adapter calls with the reason when it can bring nothing more and cannot mend
    that by itself: a task that has met an error that nobody has thought of. The client then fails, and says so."""

    def __init__(self, url: str) -> None:
        """Read the URL, and raise a `ConfigurationError` if it does not fit; nothing is connected yet."""
        self.url = url

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this ENS can be relied on for, as far as it is known; for certain once it is open."""

    @property
    def frame_bytes_max(self) -> int | None:
        """How many bytes a frame may have, headers included, once the ENS is open; None if there is no limit to speak of.

        An event is given its number before the ENS sees it, and then it must be published. So what an ENS would never take is
        refused before: of this limit, an eighth, and 16 KiB at least, is kept for what the order says of an event, and the rest
        is for its payload and headers. It is asked for again whenever frames of several events are made.
        """
        return None

    @property
    def local_system(self) -> str | None:
        """The name of the system, if it lives in this process; its clients then share one embedded stage."""
        return None

    @abstractmethod
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect. `on_state` is told of what changes afterwards. Cancelled, it leaves nothing open."""

    @abstractmethod
    async def publish(self, frames: Sequence[Frame]) -> None:
        """Hand frames over, in this order. Cancelled, any of them may or may not have been published.

        Called again for another topic before it has returned for the first, so that a topic that is held up does not hold
        up others.
        """

    @abstractmethod
    async def subscribe(self, topics: Sequence[str]) -> None:
        """Let the frames of these topics come, too. Cancelled, they may or may not come."""

    @abstractmethod
    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Let no more frames of these topics come. Cancelled, they may or may not go on coming."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. What was published and confirmed stays so; `on_frames` is not called any more."""


def load_adapter(url: str) -> Adapter:
    """The adapter that a URL's scheme chooses, for that URL."""
    scheme = scheme_of(url)
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in found:
        names = ", ".join(f"{name}://" for name in sorted(found)) or "none (is ordered-pubsub itself installed?)"
        raise ConfigurationError(
            f"ens={redacted(url)!r}: no adapter for {redacted(scheme)}:// is installed. Installed: {names}"
        )
    return _load(found[scheme])(url)


def _load(entry: EntryPoint) -> type[Adapter]:
    try:
        adapter = entry.load()
    except (ImportError, AttributeError) as error:
        extra = EXTRAS.get(entry.name)
        remedy = f"pip install 'ordered-pubsub[{extra}]'" if extra else "install its broker's client library"
        advice = f". Try: {remedy}" if isinstance(error, ModuleNotFoundError) else "; its package is not whole"
        raise ConfigurationError(
            f"the adapter for {entry.name}:// ({entry.value}) is registered but cannot be loaded: {error}{advice}"
        ) from error
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        raise ConfigurationError(
            f"what is registered for {entry.name}:// ({entry.value}) is not a subclass of ordered_pubsub.adapter.Adapter: "
            f"{adapter!r}"
        )
    return adapter


def scheme_of(url: str) -> str:
    """The scheme of an ENS's URL, or a `ConfigurationError` if it has none."""
    if not isinstance(url, str):
        raise ConfigurationError(
            f"ens= is a URL such as 'memory://name', or an Adapter, not {type(url).__name__}: {url!r}"
        )
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise ConfigurationError(f"ens={redacted(url)!r} is not a URL: expected scheme://..., as in 'memory://name'")
    return scheme.lower()


def redacted(url: str) -> str:
    """A URL as it may be shown: without its password, or the token that a user without one is. It need not be a good one."""
    head, at, host = url.rpartition("@")
    if not at:
        return url
    scheme, separator, user = head.partition("://")
    if separator and not set(":/@").isdisjoint(scheme):  # mistyped, so a password may stand in it
        return f"***@{host}"
    name, colon, _ = user.partition(":")
    is_shown = colon and "@" not in name  # with one, it may be a password as well
    return f"{scheme}://{name + colon if is_shown else ''}***@{host}" if separator else f"***@{host}"
