"""The plain client on NATS: nats-py, core and with JetStream.

*Core*: `publish` without acknowledgements, `flush` in the end, and a callback for each subscription.

*JetStream*: 256 requests in flight, each with its acknowledgement. As many workers that each `request` one message after the
other are faster than `publish_async`, which makes the loop write each message by itself, and than gathering 256 at a time, which
waits for the slowest. (To publish with a reply subject of one's own and only count what comes there is faster still; but then
nobody knows which message was refused.) A subscriber has one ordered consumer for both topics: it has no acknowledgements, and
messages come in the order of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig

from ordered_pubsub.bench.plan import PREFIX
from ordered_pubsub.bench.sides import BenchReceiver, Sender, SidePlan
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters._nats_client import login_of
from ordered_pubsub_adapters.nats import RULES
from ordered_pubsub_adapters.urls import BrokerUrl, read_url

IN_FLIGHT = 256
PENDING_MESSAGES_MAX = 1_000_000
PENDING_BYTES_MAX = 1 << 30
"""What a subscription may have waiting before nats-py drops messages: more than a measurement has."""
PUBLISH_S = 30.0
STREAM_ADVICE = (
    f"The stream must be there, with a subject that covers '{PREFIX}.>'; or let streams be made for this: &create=true"
)


async def connect(url: BrokerUrl) -> Client:
    """A connection of nats-py."""
    host, port = url.hosts[0]
    scheme = "tls" if url.is_encrypted else "nats"
    try:
        return await nats.connect(
            f"{scheme}://{host}:{port}", tls=url.tls_context(), allow_reconnect=False, **login_of(url)
        )
    except (NatsError, OSError) as error:
        raise AdapterError(f"{url.shown}: the plain client cannot connect: {error!r}") from error


def turns_of(stream: str) -> str:
    """The stream that an adapter makes beside one that it makes (`nats_jetstream.turn`)."""
    return f"{stream}_TURN"


def subject_of(topic: str) -> str:
    """A topic as a subject."""
    return topic.replace("/", ".")


def subject_of_all(topics: Sequence[str]) -> str:
    """The subject that covers all of them; they differ in their last level."""
    return subject_of(topics[0]).rpartition(".")[0] + ".*"


async def _cover(client: Client, url: BrokerUrl, topics: Sequence[str]) -> None:
    """Make the stream, as the adapter would, if the URL says so."""
    name = url.get("jetstream")
    if name is not None and url.get("create") == "true":
        config = StreamConfig(name=name, subjects=[subject_of_all(topics)], storage="file")  # type: ignore[arg-type]
        await client.jetstream().add_stream(config)


async def remove_streams(urls: Sequence[str]) -> None:
    """Delete the streams of these URLs, as far as there are any, and those by which adapters took turns to make them."""
    for text in urls:
        url = read_url(text, RULES)
        client = await connect(url)
        try:
            for name in (url.get("jetstream"), turns_of(url.get("jetstream"))):
                with suppress(NatsError):  # it was never made
                    await client.jetstream().delete_stream(name)
        finally:
            await client.close()


class NatsSender(Sender):
    """Publishes without acknowledgements."""

    def __init__(self, plan: SidePlan) -> None:
        super().__init__(plan)
        self._subjects = {topic: subject_of(topic) for topic in plan.topics}

    async def open(self) -> None:
        """Connect."""
        url = read_url(self.plan.ens, RULES)
        self._nats = await connect(url)
        await _cover(self._nats, url, self.plan.topics)

    async def rush(self, payload: bytes, count: int) -> None:
        """Publish, and flush."""
        publish, subjects, topic = self._nats.publish, self._subjects, self.topic
        for number in range(count):
            await publish(subjects[topic(number)], payload)
        await self._nats.flush()

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one message."""
        await self._nats.publish(self._subjects[topic], payload)

    async def settle(self) -> None:
        """Wait until the server has everything."""
        await self._nats.flush()

    async def close(self) -> None:
        """Disconnect."""
        await self._nats.close()


class JetStreamSender(NatsSender):
    """Publishes with acknowledgements."""

    async def rush(self, payload: bytes, count: int) -> None:
        """Keep so many requests in flight."""
        numbers = iter(range(count))
        publish, topic = self.publish, self.topic

        async def work() -> None:
            for number in numbers:
                await publish(topic(number), payload)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish one message, and wait for the stream's acknowledgement."""
        subject = self._subjects[topic]
        answer = await self._nats.request(subject, payload, timeout=PUBLISH_S)
        if not answer.data.startswith(b'{"stream":'):
            raise AdapterError(f"the stream refused a message of the plain client on {subject!r}: {answer.data!r}")


class NatsReceiver(BenchReceiver):
    """Is called by nats-py with each message."""

    def __init__(self, plan: SidePlan, take: Callable[[bytes], None]) -> None:
        super().__init__(plan, take)
        self._url = read_url(plan.ens, RULES)

    async def open(self) -> None:
        """Connect and subscribe."""
        self._nats = await connect(self._url)
        await _cover(self._nats, self._url, self.plan.topics)
        try:
            await self._subscribe()
        except NatsError as error:
            raise AdapterError(
                f"{self._url.shown}: the plain client cannot subscribe: {error!r}. {STREAM_ADVICE}"
            ) from error
        await self._nats.flush()

    async def _taking(self, message: Msg) -> None:
        self.take(message.data)

    async def _subscribe(self) -> None:
        for topic in self.plan.topics:
            await self._nats.subscribe(
                subject_of(topic),
                cb=self._taking,
                pending_msgs_limit=PENDING_MESSAGES_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )

    async def close(self) -> None:
        """Disconnect."""
        await self._nats.close()


class JetStreamReceiver(NatsReceiver):
    """Is called with each message of one ordered consumer."""

    async def _subscribe(self) -> None:
        await self._nats.jetstream().subscribe(
            subject_of_all(self.plan.topics),
            stream=self._url.get("jetstream"),
            cb=self._taking,
            ordered_consumer=True,
            pending_msgs_limit=PENDING_MESSAGES_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )
