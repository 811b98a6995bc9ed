"""Everything that can be configured: typed, frozen records, one for each table of the file.

Each field has a kind (`kinds`), so a record that exists fits by itself; what must fit together is for `checks`. The names
are those of the file. A field with a text that stands for something (an address, a store, an age) has a property beside
it that says for what. Lists are tuples, and what was left out is the default, or None where leaving it out means something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ordered_pubsub.config import kinds
from ordered_pubsub.config.addresses import Address, parse_address, parse_listen
from ordered_pubsub.config.kinds import hashes_as_tuple, is_named, names_or_switch, one_or_more, setting
from ordered_pubsub.core.levels import EXACTLY_ONCE, Levels
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import SubscribeRights
from ordered_pubsub.core.stage.quotas import Quota, Quotas
from ordered_pubsub.core.topics import matches
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.keys import OLD_KEYS_VALID_S, Security
from ordered_pubsub.errors import ConfigurationError

MEBIBYTE = 1 << 20
PAYLOAD_BYTES_MOST = 1 << 30
FRAME_BYTES_LEAST = 1 << 16
FRAME_BYTES_MORE = 3 * MEBIBYTE
"""What a frame may hold besides a payload: a subscription's topics, for one."""
FRAME_BYTES_MOST = 2 * PAYLOAD_BYTES_MOST
TOKEN_LENGTH_MIN = 32
TOKEN_LENGTH_MAX = 512
DEFAULT_LISTEN = "127.0.0.1:7411"
DEFAULT_STAGE = "main"
"""What the stage is called that runs without a `[[stage]]` in the file."""
DEFAULT_DELIVERY = EXACTLY_ONCE
"""The level of topics for which nothing is said."""
RIGHTS = ("publish", "subscribe", "transact", "manage", "move", "administer", "stage")
MEMORY = "memory"


def is_token(value: object) -> bool:
    """Whether this is fit to be a token: long enough that its SHA-256 tells nobody anything, and printable."""
    return (
        isinstance(value, str)
        and TOKEN_LENGTH_MIN <= len(value) <= TOKEN_LENGTH_MAX
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


TOKEN = kinds.Kind(
    f"{TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} printable ASCII characters without spaces; "
    '"ordered-pubsub config token NAME" makes one',
    is_token,
    is_secret=True,
)


def parse_store(text: str) -> str | None:
    """The path of a store's database, or None if it is in memory."""
    if text == MEMORY:
        return None
    scheme, _, path = text.partition(":")
    if path.startswith("//"):
        if not path.startswith("///") or path.startswith("////"):
            raise ConfigurationError("an absolute path is written with three slashes, a relative one with none")
        path = path[2:]
    if scheme != "sqlite" or not path or path.endswith("/") or path == ":memory:":
        raise ConfigurationError("a store is the file of an SQLite database, or 'memory'")
    return path


def locate_store(text: str, folder: str) -> str:
    """A store's relative path becomes an absolute one, below a folder if there is one."""
    path = parse_store(text)
    return text if path is None or not folder else "sqlite://" + os.path.join(folder, path)


def _made_of(key: str, kind: type, make: Callable[[Any], object]) -> Any:
    """A default that another key decides. attrs makes defaults before it looks at what was given, so that may be anything."""

    def default(section: object) -> object:
        given = getattr(section, key)
        return make(given if isinstance(given, kind) else kind())

    return attrs.Factory(default, takes_self=True)


def _is_ens(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(scheme and separator) and " " not in text


ENS = kinds.text_kind("the URL of a broker, such as 'nats://127.0.0.1:4222' or 'memory://'", _is_ens)
SEQUENCERS = kinds.text_kind(
    "the address of a stage, such as 'ops://127.0.0.1:7411', or a list of them",
    lambda text: bool(parse_address(text)),
    parse=lambda text: [part.strip() for part in text.split(",")],
    is_list=True,
)
LISTEN = kinds.text_kind("an address to listen at, such as '127.0.0.1:7411'", lambda text: bool(parse_listen(text)))
ADVERTISE = kinds.text_kind(
    "the address at which others reach the stage, such as 'ops://stage-1:7411'", lambda text: bool(parse_address(text))
)
STORE = kinds.text_kind(
    "'sqlite:///absolute/path', 'sqlite:relative/path' or 'memory'",
    lambda text: parse_store(text) != "",
    locate=locate_store,
)


@attrs.frozen(kw_only=True)
class ClientTls:
    """How a client trusts stages, and shows who it is, over TLS."""

    ca: str | None = setting(kinds.FILE, None)
    """certificates of the authorities that stages are trusted by; left out: those of the system"""
    cert: str | None = setting(kinds.FILE, None)
    """the client's own certificate, for stages that ask for one"""
    key: str | None = setting(kinds.FILE, None)
    """its private key"""


UNORDERED = ("refuse", "deliver")
"""What may become of messages that a plain client published."""


@attrs.frozen(kw_only=True)
class ClientSettings:
    """How a client works, whatever it is connected to."""

    unordered: str = setting(kinds.choice(*UNORDERED), "refuse")
    """what becomes of messages that a plain client published, which have no place in the order"""
    linger_s: float = setting(kinds.SECONDS_OR_NONE_AT_ALL, 0.0)
    """how long a publication may wait for others to share its message"""
    batch_events_max: int = setting(kinds.whole(1), 1)
    """events of one topic that may share a message of the ENS; 1: each has its own, and plain consumers can read it"""
    timeout_s: float = setting(kinds.SECONDS, 60.0)
    """how long a call waits for its outcome"""
    connect_timeout_s: float = setting(kinds.SECONDS_OR_NONE_AT_ALL, 5.0)
    """how long connecting is tried again while no stage can be reached, since they may all be just starting; 0: not at all"""
    pipeline_events_max: int = setting(kinds.whole(1), 10_000)
    """publications that may be unfinished at once"""
    pipeline_bytes_max: int = setting(kinds.whole(1), 64 * MEBIBYTE)
    """bytes of payload and headers, and of timestamps once there are some, that may be unfinished at once"""
    payload_bytes_max: int = setting(kinds.whole(1), MEBIBYTE)
    """bytes that one event's payload and headers may have together"""
    queue_events_max: int = setting(kinds.whole(1), 100_000)
    """events of one subscription whose turn has come and that the application has not taken yet"""
    queue_bytes_max: int = setting(kinds.whole(1), 64 * MEBIBYTE)
    """the same in bytes of payload, headers and timestamps"""
    unacknowledged_events_max: int = setting(kinds.whole(1), 100_000)
    """events of one subscription with a name that the application has taken and that are not acknowledged, from the first on"""
    buffer_events_max: int | None = setting(kinds.whole(1), None)
    """events of one subscription that wait for earlier ones; left out: 1,000,000, and 1,000 with best-effort delivery"""
    buffer_bytes_max: int = setting(kinds.whole(1), 256 * MEBIBYTE)
    """the same in bytes of payload, headers and timestamps"""
    ttl_s: float = setting(kinds.SECONDS, 1.0)
    """how long an event waits for earlier ones with best-effort delivery"""


@attrs.frozen(kw_only=True, slots=False)
class ConnectionSettings:
    """What a client is connected to, and as whom."""

    ens: str | None = setting(ENS, None, repr=lambda text: repr(None if text is None else kinds.redacted(text)))
    """the URL of the event notification service; its scheme picks the adapter"""
    sequencer: tuple[str, ...] = setting(SEQUENCERS, (), converter=one_or_more)
    """one or several stages: any will do, the rest is learned"""
    name: str | None = setting(kinds.NAME, None)
    """what the client's events carry as their publisher; one client of a system has it at a time"""
    delivery: str | None = setting(kinds.choice("exactly-once", "ordered", "best-effort"), None)
    """the level that subscriptions have unless they say otherwise"""
    token: str | None = setting(TOKEN, None, repr=False)
    """only through ORDERED_PUBSUB_TOKEN: a file that is not a `token_file` is read by too many"""
    token_file: str | None = setting(kinds.FILE, None)
    """the file that holds the client's token, and that nobody else may read"""
    tls: ClientTls | None = setting(kinds.section(ClientTls), None)
    """given: TLS is spoken to all stages, also to those at ops://"""


@attrs.frozen(kw_only=True)
class ClientSection(ClientSettings, ConnectionSettings):
    """`[client]`: what a client is connected to, and how."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the stages are. With a `tls` table, TLS is spoken to all of them."""
        found = (parse_address(text) for text in self.sequencer)
        return tuple(attrs.evolve(address, tls=address.tls or self.tls is not None) for address in found)


@attrs.frozen(kw_only=True)
class StageTls:
    """How a stage shows who it is, and whether it asks who a client is, over TLS."""

    cert: str = setting(kinds.FILE)
    """the stage's certificate, with those between it and its authority"""
    key: str = setting(kinds.FILE)
    """its private key"""
    client_ca: str | None = setting(kinds.FILE, None)
    """given: a client may show a certificate of these authorities, and is the identity that names it"""


@attrs.frozen(kw_only=True)
class StageSection:
    """`[[stage]]`: one stage of the line; the first has rank 0, the highest."""

    name: str = setting(kinds.STAGE_NAME)
    """what it is called, here and at every other stage"""
    listen: str = setting(LISTEN, DEFAULT_LISTEN)
    """the address that it listens at; without a host it is loopback"""
    advertise: str | None = setting(ADVERTISE, None)
    """how clients and other stages reach it; left out: at `listen`"""
    topics: tuple[str, ...] = setting(kinds.PATTERNS, ())
    """patterns of the topics that it owns; those that nobody names are spread over all stages"""
    store: str = setting(STORE, _made_of("name", str, "sqlite:ordered_pubsub-{}.db".format))
    """where its journal is"""
    durability: str = setting(
        kinds.choice("fsync", "os", "none"),
        _made_of("store", str, lambda store: "none" if store == MEMORY else "fsync"),
    )
    """what has happened when it answers: the disk has it, the operating system has it, or nothing; in memory: nothing"""
    http: str | None = setting(LISTEN, None)
    """the address of /healthz and /metrics, without TLS and for everybody; left out: there is none"""
    tls: StageTls | None = setting(kinds.section(StageTls), None)
    """given: only TLS is spoken at `listen`"""
    token_file: str | None = setting(kinds.FILE, None)
    """the file that holds the token that it shows to other stages, and that nobody else may read"""

    @property
    def address(self) -> Address:
        """Where it listens."""
        return attrs.evolve(parse_listen(self.listen), tls=self.tls is not None)

    @property
    def advertised(self) -> Address | None:
        """Where others reach it, as far as is known. A stage with a `tls` table is spoken to by TLS, whatever the scheme."""
        if self.advertise is not None:
            address = parse_address(self.advertise)
            return attrs.evolve(address, tls=address.tls or self.tls is not None)
        return None if self.address.is_everywhere or not self.address.port else self.address

    @property
    def http_address(self) -> Address | None:
        """Where health and metrics are."""
        return None if self.http is None else parse_listen(self.http)

    @property
    def store_path(self) -> str | None:
        """The path of its database, or None if it is in memory."""
        return parse_store(self.store)


@attrs.frozen(kw_only=True)
class RetentionSection:
    """How long the events of a topic are kept that everybody has acknowledged, and how long at most."""

    keep_age: str | float = setting(kinds.AGE, "1d")
    """at least so long for those who come late"""
    keep_bytes: str | int | None = setting(kinds.SIZE, None)
    """and at least so much"""
    max_age: str | float = setting(kinds.AGE, "1w")
    """never longer, whoever has not acknowledged"""
    max_bytes: str | int | None = setting(kinds.SIZE, None)
    """never more"""

    @property
    def policy(self) -> Policy:
        """What the stages make of it, in seconds and bytes."""
        keep, most = (None if size is None else kinds.size_bytes(size) for size in (self.keep_bytes, self.max_bytes))
        return Policy(kinds.age_s(self.keep_age), keep, kinds.age_s(self.max_age), most)


@attrs.frozen(kw_only=True)
class TopicSection:
    """`[[topic]]`: what topics give; of several that match, the first."""

    pattern: str = setting(kinds.PATTERN)
    """which topics"""
    delivery: str = setting(kinds.choice("exactly-once", "ordered"), DEFAULT_DELIVERY)
    """their level"""
    retention: RetentionSection | None = setting(kinds.section(RetentionSection), None)
    """how long their events are kept"""


@attrs.frozen(kw_only=True)
class GroupSection:
    """`[[group]]`: topics whose common history is wanted in one decided order."""

    topics: tuple[str, ...] = setting(kinds.TOPICS)
    """two or more"""


@attrs.frozen(kw_only=True)
class Rights:
    """What an identity may do (`allow`), or may not, whatever else is said (`deny`)."""

    publish: tuple[str, ...] = setting(kinds.PATTERNS, ())
    """publish on topics that match one of these patterns"""
    subscribe: tuple[str, ...] = setting(kinds.PATTERNS, ())
    """be notified of events of topics that match one of these patterns"""
    transact: bool = setting(kinds.SWITCH, False)
    """use transactions"""
    manage: tuple[str, ...] = setting(kinds.NAMES, ())
    """change, in transactions, the named subscriptions of other identities' clients whose names match one of these patterns"""
    move: bool = setting(kinds.SWITCH, False)
    """move clients"""
    administer: bool = setting(kinds.SWITCH, False)
    """see and change what belongs to others"""
    stage: bool | tuple[str, ...] = setting(kinds.STAGES, False, converter=names_or_switch)
    """link as these stages of this system; true: as any"""

    def covers(self, right: str, topic: str | None = None) -> bool:
        """Whether these say something of a right, on a topic if it is about topics, and of a stage if it is about stages."""
        said = getattr(self, right)
        if isinstance(said, bool):
            return said
        if right == "stage":
            return topic in said
        if right == "manage":
            return topic is not None and any(is_named(pattern, topic) for pattern in said)
        return topic is not None and any(matches(pattern, topic) for pattern in said)


@attrs.frozen(kw_only=True)
class IdentityLimits:
    """What one identity may take up at a stage; what is left out is what [limits] says."""

    sessions: int | None = setting(kinds.whole(1), None)
    """as `sessions_per_identity_max`"""
    subscriptions: int | None = setting(kinds.whole(1), None)
    """as `subscriptions_per_identity_max`"""
    held_topics: int | None = setting(kinds.whole(1), None)
    """as `held_topics_per_identity_max`"""
    pairs: int | None = setting(kinds.whole(0), None)
    """as `pairs_per_identity_max`"""
    topics: int | None = setting(kinds.whole(1), None)
    """as `topics_per_identity_max`"""
    state_bytes: int | None = setting(kinds.whole(MEBIBYTE), None)
    """as `state_bytes_per_identity_max`"""

    def over(self, quota: Quota) -> Quota:
        """These, and of the other quota what is left out here."""
        names = {"held": "held_topics"}
        given = {field.name: getattr(self, names.get(field.name, field.name)) for field in attrs.fields(Quota)}
        return attrs.evolve(quota, **{name: value for name, value in given.items() if value is not None})


@attrs.frozen(kw_only=True)
class IdentitySection:
    """`[[identity]]`: somebody who may connect, how that is known, and with which rights."""

    name: str = setting(kinds.NAME)
    """what it is called in logs and errors"""
    token_sha256: tuple[str, ...] = setting(kinds.HASHES, (), converter=hashes_as_tuple)
    """the hash of its token; of two tokens while one takes the other's place"""
    certificate: str | None = setting(kinds.CERTIFICATE, None)
    """whoever shows a certificate with exactly this name is this identity"""
    names: tuple[str, ...] = setting(kinds.NAMES, ())
    """patterns of the names that its clients may take, and sign by, and nobody else's"""
    allow: Rights = setting(kinds.section(Rights), attrs.Factory(Rights))
    """what it may do; nothing unless it is said"""
    deny: Rights = setting(kinds.section(Rights), attrs.Factory(Rights))
    """what it may not do, also if it is allowed"""

    limits: IdentityLimits | None = setting(kinds.section(IdentityLimits), None)
    """what it may take up, where that is not what [limits] says"""

    def may(self, right: str, topic: str | None = None) -> bool:
        """Whether it has a right (one of `RIGHTS`), on a topic or a stage where the right is about these. Deny wins."""
        return self.allow.covers(right, topic) and not self.deny.covers(right, topic)

    @property
    def reading(self) -> SubscribeRights:
        """What it may subscribe to."""
        return SubscribeRights(self.allow.subscribe, self.deny.subscribe)

    def has_name(self, name: str) -> bool:
        """Whether a name is one of those that were given to it."""
        return any(is_named(pattern, name) for pattern in self.names)


@attrs.frozen(kw_only=True)
class LimitsSection:
    """`[limits]`: what a stage takes from its clients."""

    payload_bytes_max: int = setting(kinds.whole(1, PAYLOAD_BYTES_MOST), MEBIBYTE)
    """bytes that one event's payload and headers may have together"""
    frame_bytes_max: int = setting(
        kinds.whole(FRAME_BYTES_LEAST, FRAME_BYTES_MOST),
        _made_of("payload_bytes_max", int, lambda size: size + FRAME_BYTES_MORE),
    )
    """bytes of one frame, from somebody whom the stage knows; left out: 3 MiB more than a payload"""
    buffered_bytes_max: int = setting(
        kinds.whole(FRAME_BYTES_LEAST), _made_of("frame_bytes_max", int, lambda size: 4 * size)
    )
    """bytes that may wait to be sent on one connection, before it is closed; left out: four frames"""
    buffered_bytes_per_identity_max: int = setting(
        kinds.whole(FRAME_BYTES_LEAST), _made_of("buffered_bytes_max", int, lambda size: 8 * size)
    )
    """the same on all connections of one identity; left out: eight connections' worth"""
    received_bytes_per_identity_max: int = setting(
        kinds.whole(FRAME_BYTES_LEAST), _made_of("frame_bytes_max", int, lambda size: max(16 * size, 64 * MEBIBYTE))
    )
    """bytes of frames that are not complete or wait for their turn, of one identity; left out: 16 frames, or 64 MiB if more"""
    frame_s: float = setting(kinds.SECONDS, 30.0)
    """how long a frame may take from its first byte to its last"""
    connections_max: int = setting(kinds.whole(1), 10_000)
    """connections in all"""
    connections_per_identity_max: int = setting(kinds.whole(1), 1_000)
    """connections of one identity"""
    names_per_identity_max: int = setting(kinds.whole(1), 10_000)
    """names of clients of one identity that one stage keeps"""
    connections_per_address_max: int = setting(kinds.whole(1), 1_000)
    """connections from one network address"""
    subscriptions_per_client_max: int = setting(kinds.whole(1), 1_000)
    """subscriptions of one client"""
    topics_per_subscription_max: int = setting(kinds.whole(1), 1_000)
    """topics of one subscription"""
    sessions_per_identity_max: int = setting(kinds.whole(1), 10_000)
    """sessions of one identity that a stage remembers; those not heard of for longest are forgotten for new ones"""
    subscriptions_per_identity_max: int = setting(kinds.whole(1), 10_000)
    """subscriptions of one identity, with a name and without, at one stage"""
    held_topics_per_identity_max: int = setting(kinds.whole(1), 200_000)
    """topics of all these together"""
    pairs_per_identity_max: int = setting(kinds.whole(0), 2_000_000)
    """pairs of topics of all these that are ordered against each other"""
    topics_per_identity_max: int = setting(kinds.whole(1), 100_000)
    """topics that one identity was the first to publish on, as long as they do not rest"""
    state_bytes_per_identity_max: int = setting(kinds.whole(MEBIBYTE), 64 * MEBIBYTE)
    """bytes of all that, about"""
    authentication_s: float = setting(kinds.SECONDS, 5.0)
    """how long a connection may take to say who it is"""
    unauthenticated_bytes_max: int = setting(kinds.whole(1_024), 8_192)
    """bytes that a connection may send before it has said who it is"""


@attrs.frozen(kw_only=True)
class TimesSection:
    """`[times]`: how long the stages wait for who is silent, the same at all of them."""

    session_ttl: str | float = setting(kinds.age("30s", "1d"), "5min")
    """a subscription without a name ends so long after its client was last heard of"""
    named_ttl: str | float = setting(kinds.age("1h", "52w"), "1w")
    """the same of one with a name"""
    lease: str | float = setting(kinds.age("5s", "1h"), "30s")
    """numbers without an event may become void so long after their publisher was last heard of"""

    @property
    def values(self) -> Times:
        """In seconds."""
        return Times(kinds.age_s(self.session_ttl), kinds.age_s(self.named_ttl), kinds.age_s(self.lease))


@attrs.frozen(kw_only=True)
class SecuritySection:
    """`[security]`: how subscribers know that what the broker brings is genuine; the same at all stages."""

    tags: bool = setting(kinds.SWITCH, True)
    """whether the stages tag events; without, whoever writes to the broker is believed, and no other system may use its topics"""
    rotate_every: str | float | None = setting(kinds.age("1min", "52w"), None)
    """how often the keys of tags are changed; left out: only when it is wanted, or somebody loses a right"""
    old_keys_valid_s: float = setting(kinds.SECONDS, OLD_KEYS_VALID_S)
    """how long events are good that were tagged before a change of keys"""

    @property
    def values(self) -> Security:
        """What the stages make of it."""
        every_s = None if self.rotate_every is None else kinds.age_s(self.rotate_every)
        return Security(self.tags, every_s, self.old_keys_valid_s)


@attrs.frozen(kw_only=True)
class Configuration:
    """One file, with the environment and arguments over it."""

    client: ClientSection = setting(kinds.section(ClientSection), attrs.Factory(ClientSection))
    stage: tuple[StageSection, ...] = setting(kinds.sections(StageSection), ())
    """in the order of their ranks; see `stages`"""
    topics: str = setting(kinds.choice("open", "listed"), "open")
    """whether a topic exists from its first use, or only if a [[topic]] names it"""
    topic: tuple[TopicSection, ...] = setting(kinds.sections(TopicSection), ())
    """the first that matches a topic holds for it"""
    group: tuple[GroupSection, ...] = setting(kinds.sections(GroupSection), ())
    """no topic is in two"""
    identity: tuple[IdentitySection, ...] | None = setting(kinds.sections(IdentitySection), None)
    """who may connect; None (nothing is said): everybody, at loopback; empty (`identity = []`): nobody"""
    limits: LimitsSection = setting(kinds.section(LimitsSection), attrs.Factory(LimitsSection))
    times: TimesSection = setting(kinds.section(TimesSection), attrs.Factory(TimesSection))
    security: SecuritySection = setting(kinds.section(SecuritySection), attrs.Factory(SecuritySection))
    insecure_allow_anyone: bool = setting(kinds.SWITCH, False)
    """let everybody do everything, also at listeners that other machines reach, and without TLS"""
    insecure_allow_plaintext: bool = setting(kinds.SWITCH, False)
    """let tokens and events travel without TLS between machines"""
    folder: str = attrs.field(default="", eq=False)
    """where relative paths begin; not a key itself, nor are `lines`"""
    lines: Mapping[kinds.Path, int] = attrs.field(factory=dict, eq=False, repr=False)
    """the way to a key → its line in the file"""

    @property
    def stages(self) -> tuple[StageSection, ...]:
        """The stages of the line: those of the file, or one with defaults."""
        if self.stage:
            return self.stage
        stage = StageSection(name=DEFAULT_STAGE)
        return (attrs.evolve(stage, store=locate_store(stage.store, self.folder)),)

    @property
    def topology(self) -> Topology:
        """Who owns what."""
        return Topology(tuple(StageSpec(stage.name, stage.topics) for stage in self.stages))

    @property
    def quotas(self) -> Quotas:
        """What each identity may take up at a stage. Where everybody is let in, nobody is anybody, and nothing is counted."""
        if self.identity is None:
            return Quotas()
        limits = self.limits
        default = Quota(
            limits.sessions_per_identity_max,
            limits.subscriptions_per_identity_max,
            limits.held_topics_per_identity_max,
            limits.pairs_per_identity_max,
            limits.topics_per_identity_max,
            limits.state_bytes_per_identity_max,
        )
        others = {one.name: one.limits.over(default) for one in self.identity if one.limits is not None}
        return Quotas(default, others)

    @property
    def levels(self) -> Levels:
        """What topics give."""
        return Levels(tuple((rule.pattern, rule.delivery) for rule in self.topic), DEFAULT_DELIVERY)

    @property
    def policies(self) -> Policies:
        """How long the events of topics are kept."""
        plain = RetentionSection().policy
        return Policies(
            tuple((rule.pattern, rule.retention.policy if rule.retention else plain) for rule in self.topic), plain
        )

    @property
    def is_anyone_let_in(self) -> bool:
        """Whether a client needs not say who it is."""
        return self.identity is None

    def rule_of(self, topic: str) -> TopicSection | None:
        """The [[topic]] that holds for a topic; None if there is none, and then the topic has the defaults."""
        return next((rule for rule in self.topic if matches(rule.pattern, topic)), None)

    def is_listed(self, topic: str) -> bool:
        """Whether a topic may exist."""
        return self.topics == "open" or self.rule_of(topic) is not None
