"""The blocking face: the same verbs for scripts and threads.

with ordered_pubsub.sync.connect("memory://example") as client:
    subscription = client.subscribe("trades", "quotes")
    receipt = client.publish("trades", {"symbol": "ACME", "price": 101.5})
    for event in subscription:            # one total order over both topics
        print(event.position, event.topic, event.number, event.data)

Below it is the asynchronous client, in an event loop of its own thread (`loops`). What is published goes to it through an
`outbox`, and events come back from it in batches (`subscription`), so that threads meet once per batch and not once per event.
Everything may be used from any thread, and from several at once.
"""

from ordered_pubsub.sync.client import Client, connect
from ordered_pubsub.sync.subscription import Subscription

__all__ = ["Client", "Subscription", "connect"]
