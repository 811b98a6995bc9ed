"""`mqtt://` and `mqtts://`: events over an MQTT 5 broker, with paho-mqtt on the running event loop.

    mqtt://user:password@broker:1883?qos=1&keepalive_s=60&session_s=300

Theory of operation
===================
An event is a PUBLISH whose payload is the application's own, so plain clients read and write the same topics. Its content type
is MQTT's, its other headers are user properties, and its stamp is the correlation data, behind a mark.

Each client has one connection, and a session at the broker that outlives breaks of `session_s` seconds. When the connection
breaks, everything that is being published fails, to be handed over again, and the session connects again by itself. If the
broker has forgotten it, the topics are subscribed to again, and the log says that events were lost. Several hosts in the URL are
tried in turn; unless they are one cluster, the next one does not know the session.

What can be relied on, and why:

- `qos=0`: nobody counts. Frames are lost when a connection breaks or a queue is full.
- `qos=1`, the default: the broker confirms what it takes, and so do we, when `on_frames` has returned. What was not confirmed
  when the connection broke comes again, so there are duplicates.
- `qos=2`: the broker repeats nothing. What `publish` raised for is another message to it when it is handed over again.
- The messages of one topic keep their order, since a broker keeps it from each publisher to each subscriber, and each has one
  connection. All publishers of a topic should have the same QoS: between different ones a broker promises nothing.
- What is published while a subscriber is away is kept as far as the broker keeps it. When Mosquitto is killed it forgets all
  that it has not saved (`persistence`, every half an hour if nothing else is configured). And without telling anybody it drops
  what exceeds `max_queued_messages`, 1000 if nothing else is configured: raise that where no event may be lost.
- MQTT does not hold up publishers. A subscriber that does not keep up fills queues at the broker, and not this process.

Costs. With Mosquitto 2.0, QoS 1, 200 bytes of payload and a stamp of 90, a publisher takes 16 µs of processor time a message and
a subscriber 12. Plain paho with MQTT 5 and its loop in a thread takes 50 and 37, without any properties (`mqtt_packets` says
why). The stamp as a user property, which is text, would take 0.6 µs more on either side and 45 to 70 bytes more, and a plain
subscriber with paho 7 µs more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.mqtt_session import Session
from ordered_pubsub_adapters.urls import UrlRules, read_url, whole

RULES = UrlRules(
    ports={"mqtt": 1883, "mqtts": 8883},
    encrypted=("mqtts",),
    parameters={"qos": whole(0, 2), "keepalive_s": whole(2, 65_535), "session_s": whole(0, 604_800)},
)
QOS = 1
KEEPALIVE_S = 60
SESSION_S = 300


class MqttAdapter(Adapter):
    """One client's connection to an MQTT broker."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._url = read_url(url, RULES)
        self._qos: int = self._url.get("qos", QOS)
        self._session_s: int = self._url.get("session_s", SESSION_S)
        self._session: Session | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the quality of service promises; see the top of this module."""
        session_s = self._session.session_s if self._session else self._session_s
        return Capabilities(
            loses=self._qos == 0,
            reorders=False,
            duplicates=self._qos == 1,
            keeps_while_away=self._qos > 0 and session_s > 0,
            carries_headers=True,
            confirms=self._qos > 0,
        )

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest packet that the broker takes."""
        return self._session.packet_bytes_max if self._session is not None else None

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect, or raise an `AdapterError` that says why the broker cannot be used."""
        if self._session is not None:
            raise AdapterError(f"this adapter for {self._url.shown} is open already; each client has its own")
        keepalive_s = self._url.get("keepalive_s", KEEPALIVE_S)
        session = Session(self._url, self._qos, keepalive_s, self._session_s, on_state, self.on_failure)
        await session.open(on_frames)
        self._session = session

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Publish frames, and return when the broker has confirmed all of them; at QoS 0, when they were written."""
        if frames:
            await self._opened().publish(frames)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to topics, and return when the broker has agreed."""
        await self._opened().subscribe(topics)

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Unsubscribe from topics. While the connection is broken, the broker is told later."""
        await self._opened().unsubscribe(topics)

    async def close(self) -> None:
        """Disconnect, and let the broker forget the session; for at most some seconds."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> Session:
        if self._session is None:
            raise AdapterError(f"{self._url.shown} is not open")
        return self._session
