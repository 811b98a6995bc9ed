"""What users get back: the receipt of a publication, and the event that a subscription is notified of.

Much of an event is rarely looked at, so it is made when it is: its data is decoded and its vector counted on first use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ordered_pubsub.client.serialization import Decoder
from ordered_pubsub.core.subscriber.buffer import Notification
from ordered_pubsub.errors import ProtocolError, UsageError
from ordered_pubsub.wire.event_frames import Body
from ordered_pubsub.wire.pack import Unreadable


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A publication has its place in the order, and its owner keeps it, or the broker has taken it."""

    topic: str
    number: int
    """its number on its topic: 1, 2, 3, … without holes"""
    id: str
    """the same as in the event"""


class Event(msgspec.Struct, eq=False, gc=False):
    """One event, as one subscription is notified of it. Two are equal if they have the same `id`."""

    _notification: Notification
    _decoder: Decoder
    _acker: Callable[[Notification], Awaitable[None]] | None = None
    _was_redelivered: bool = False
    _decoded: tuple[Any, ProtocolError | None] | None = None
    _vector: Mapping[str, int] | None = None

    @property
    def _body(self) -> Body:
        body: Body = self._notification.arrival.body
        return body

    @property
    def notification(self) -> Notification:
        """What it was made of."""
        return self._notification

    @property
    def topic(self) -> str:
        """What it was published on."""
        return self._notification.arrival.topic

    @property
    def number(self) -> int:
        """Its number on its topic: 1, 2, 3, … without holes; 0 for a plain client's message (`unordered="deliver"`)."""
        return self._notification.arrival.number

    @property
    def position(self) -> int | None:
        """Its place among all events of the subscription: 1, 2, 3, …; None for order="topic" and best-effort delivery."""
        return self._notification.position

    @property
    def publisher(self) -> str:
        """The name of the client that published it."""
        return self._body.publisher

    @property
    def id(self) -> str:
        """Unique in the whole system, and the same as in the receipt."""
        return self._body.id

    @property
    def published_at(self) -> float:
        """When it was numbered, in seconds since 1970 by the wall clock of the stage that did."""
        return self._body.published_at

    @property
    def vector(self) -> Mapping[str, int]:
        """topic → how many of its events the subscription has passed, this one included."""
        if self._vector is None:
            self._vector = self._notification.vector
        return self._vector

    @property
    def out_of_order(self) -> bool:
        """Whether it could not be held back any longer, or its number had been passed (best-effort), or it has none."""
        return self._notification.out_of_order

    @property
    def data(self) -> Any:
        """What was published; None if it cannot be decoded, and then `error` says why."""
        return (self._decoded or self._decode())[0]

    @property
    def error(self) -> ProtocolError | None:
        """Why the payload cannot be decoded, or the event not be read at all; None if it can."""
        return (self._decoded or self._decode())[1]

    @property
    def raw(self) -> bytes:
        """The payload as it travelled."""
        return self._body.payload

    @property
    def content_type(self) -> str | None:
        """What the payload is written in, as its publisher says."""
        content_type = self._body.content_type
        return content_type if isinstance(content_type, str) and not isinstance(content_type, Unreadable) else None

    @property
    def headers(self) -> Mapping[str, bytes | str]:
        """The headers that the publisher gave."""
        return self._body.headers

    @property
    def tx(self) -> str | None:
        """The transaction that it belongs to: what was published in one has the same; None if it was published by itself."""
        return self._notification.arrival.transaction_id or None

    @property
    def redelivered(self) -> bool:
        """Whether an earlier session of a subscription with a name may have been notified of it."""
        return self._was_redelivered

    async def ack(self) -> None:
        """It was handled, and all before it in the subscription's order; return when that is on the stage's disk.

        For subscriptions with a name and ack="manual". Cancelled, it may still come there.
        """
        if self._acker is None:
            raise UsageError("event.ack() goes with a subscription that has a name= and ack='manual'")
        await self._acker(self._notification)

    def _decode(self) -> tuple[Any, ProtocolError | None]:
        arrival = self._notification.arrival
        body: Body = arrival.body
        self._decoded = decoded = self._decoder.decode(arrival.topic, body.payload, body.content_type)
        return decoded

    def __repr__(self) -> str:
        return (
            f"Event(topic={self.topic!r}, number={self.number}, position={self.position}, publisher={self.publisher!r}, "
            f"id={self.id!r}, published_at={self.published_at}, out_of_order={self.out_of_order})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.id == other.id if self.id else self is other

    def __hash__(self) -> int:
        return hash(self.id)
