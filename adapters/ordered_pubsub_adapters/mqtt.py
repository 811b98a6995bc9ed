"""`mqtt://` and `mqtts://`: events over an MQTT 5 broker, with paho-mqtt on the running event loop.

    mqtt://user:password@broker:1883?qos=1&keepalive_s=60&session_s=300

Theory of operation
===================
An event is a PUBLISH whose payload is the application's own. Its content type is MQTT's, its other headers are user
properties, and its stamp is the correlation data: plain clients read and write the same topics.

One connection per client, with a session of its own at the broker that is to outlive breaks of `session_s`. When the
connection breaks, everything that was being published fails, to be handed over again, and the link is made again after a
moment that grows up to `RETRY_MOST_S`. If the broker has forgotten the session, the topics are subscribed to again.

What can be relied on, and why:

- `qos=0`: nobody counts, so frames are lost when the connection breaks, or when a queue is full.
- `qos=1`, the default: the broker confirms each message, and so do we when `on_frames` has returned. After a break, what was
  not confirmed comes again: duplicates.
- `qos=2`: the broker repeats nothing. What `publish` raised for, and is handed over again, is another message to it; so are
  the messages that it forgets in a crash and that are published again.
- A broker keeps the messages of one publisher on one topic in order, and we have a single connection: nothing is reordered.
  That needs all publishers of a topic to have the same QoS.
- What is kept while a subscriber is away is what the broker keeps: Mosquitto forgets everything when it is killed (even with
  `persistence true`, all since the last `autosave_interval`), and drops what exceeds `max_queued_messages`, 1000 if nothing else
  is configured, without telling anybody. Set it to 0 where no event may be lost.
- MQTT does not slow down publishers: a subscriber that does not keep up fills the broker's queues, not this process.

Costs, measured with Mosquitto 2.0 and 200 bytes, are in `docs/adapters.md`.
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
    parameters={"qos": whole(0, 2), "keepalive_s": whole(10, 65_535), "session_s": whole(0, 604_800)},
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

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Connect, or raise an `AdapterError` that says why the broker cannot be used."""
        if self._session is not None:
            raise AdapterError(f"this adapter for {self._url.shown} is open already; each client has its own")
        keepalive_s = self._url.get("keepalive_s", KEEPALIVE_S)
        self._session = session = Session(self._url, self._qos, keepalive_s, self._session_s, on_state)
        try:
            await session.open(on_frames)
        except BaseException:
            self._session = None
            raise

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
