"""Total order across topics over any pub/sub broker.

async with ordered_pubsub.connect("memory://example") as client:
    subscription = await client.subscribe("trades", "quotes")
    receipt = await client.publish("trades", {"symbol": "ACME", "price": 101.5})
    async for event in subscription:      # one total order over both topics
        print(event.position, event.topic, event.number, event.data)
"""

from importlib.metadata import PackageNotFoundError, version

from ordered_pubsub import errors
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.event import Event, Receipt
from ordered_pubsub.client.subscription import Lag, Subscription
from ordered_pubsub.connecting import connect
from ordered_pubsub.errors import (
    AccessDenied,
    AdapterError,
    BufferOverflow,
    Closed,
    ConfigurationError,
    EventVoid,
    FilterError,
    HistoryLost,
    NotOffered,
    OrderedPubSubError,
    ProtocolError,
    SessionExpired,
    Timeout,
    TopicError,
    UnavailableError,
    UsageError,
    WouldBlock,
)

try:
    __version__ = version("ordered-pubsub")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0+unknown"

__all__ = [
    "AccessDenied",
    "AdapterError",
    "BufferOverflow",
    "Client",
    "Closed",
    "ConfigurationError",
    "Event",
    "EventVoid",
    "FilterError",
    "HistoryLost",
    "Lag",
    "NotOffered",
    "OrderedPubSubError",
    "ProtocolError",
    "Receipt",
    "SessionExpired",
    "Subscription",
    "Timeout",
    "TopicError",
    "UnavailableError",
    "UsageError",
    "WouldBlock",
    "__version__",
    "connect",
    "errors",
]
