"""Whether an event is one that a filter lets through: its payload is decoded for that, if the filter asks about it."""

from __future__ import annotations

from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Wants
from ordered_pubsub.wire.event_frames import Body
from ordered_pubsub.wire.pack import Unreadable


def wanted_by(where: str, decoder: Decoder) -> Wants:
    """What decides for each event. A payload that cannot be decoded has no fields, so it matches what asks for none.

    What nobody can read at all is always let through: it is an event with an error, and not one that nobody wants.
    """
    chosen = Filter.parse(where)
    matches, needs_payload = chosen.matcher, chosen.needs_payload

    def wants(arrival: Arrival) -> bool:
        body: Body = arrival.body
        if isinstance(body.content_type, Unreadable):
            return True
        data = decoder.decode(arrival.topic, body.payload, body.content_type)[0] if needs_payload else None
        return matches(data, body.headers)

    return wants
