"""What users get back: the receipt of a publication, and the event that a subscription is notified of.

Much of an event is rarely looked at, so it is made when it is: its data is decoded and its vector counted on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from ordered_pubsub.client.frames import Body
from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.buffer import Notification
from ordered_pubsub.errors import NotOffered, ProtocolError


@attrs.frozen
class Receipt:
    """A publication has its place in the order, and the ENS has taken it."""

    topic: str
    number: int
    """its number on its topic: 1, 2, 3, … without holes"""
    id: str
    """the same as in the event"""


@attrs.frozen(slots=True, eq=False, weakref_slot=False)
class Event:
    """One event, as one subscription is notified of it. Two are equal if they have the same `id`."""

    topic: str
    number: int
    """its number on its topic: 1, 2, 3, … without holes; 0 for a plain client's message (`unordered="deliver"`)"""
    position: int | None
    """its place among all events of the subscription: 1, 2, 3, …; None for order="topic" and best-effort delivery"""
    publisher: str
    """the name of the client that published it"""
    id: str
    """unique in the whole system, and the same as in the receipt"""
    published_at: float
    """when it was numbered, in seconds since 1970 by the wall clock of the stage that did"""
    vector: Mapping[str, int] = attrs.field(repr=False)
    """topic → how many of its events the subscription has passed, this one included"""
    out_of_order: bool
    """it could not be held back any longer, or its number had been passed, with best-effort delivery; or it has none"""
    _body: Body = attrs.field(repr=False)
    _decoder: Decoder = attrs.field(repr=False)
    _decoded: tuple[Any, ProtocolError | None] | None = attrs.field(default=None, init=False, repr=False)

    @property
    def data(self) -> Any:
        """What was published; None if it cannot be decoded, and then `error` says why."""
        return self._decode()[0]

    @property
    def error(self) -> ProtocolError | None:
        """Why the payload cannot be decoded; None if it can."""
        return self._decode()[1]

    @property
    def raw(self) -> bytes:
        """The payload as it travelled."""
        return self._body.payload

    @property
    def headers(self) -> Mapping[str, bytes | str]:
        """The headers that the publisher gave."""
        return self._body.headers

    @property
    def tx(self) -> None:
        """The transaction that it belongs to; there are none in this release."""
        return None

    @property
    def redelivered(self) -> bool:
        """Whether it was notified before, to an earlier session; there are none in this release."""
        return False

    async def ack(self) -> NoReturn:
        """Not offered in this release: what was taken from the subscription counts as handled."""
        raise NotOffered("event.ack() goes with ack='manual', which comes with a later release")

    def _decode(self) -> tuple[Any, ProtocolError | None]:
        if self._decoded is None:
            decoded = self._decoder.decode(self.topic, self.raw, self._body.content_type)
            object.__setattr__(self, "_decoded", decoded)  # filled in once; nobody sees it change
            return decoded
        return self._decoded

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.id == other.id if self.id else self is other

    def __hash__(self) -> int:
        return hash(self.id)


def event_of(notification: Notification, decoder: Decoder) -> Event:
    """The event that a subscription is notified of."""
    arrival = notification.arrival
    body: Body = arrival.body
    return Event(
        arrival.topic,
        arrival.number,
        notification.position,
        body.publisher,
        body.id,
        body.published_at,
        notification.vector,
        notification.out_of_order,
        body,
        decoder,
    )
