"""What travels: requests of clients, operations on the line, answers, and the frames of a link.

An `Operation` is made of parts in their written order. A `Publication` part is a batch on one topic: `count` numbers from
`first` on, and one timestamp (`entries`) for all of them, since the events of a batch differ only in their own number. A
`Change` part takes one subscription from the topics `old` to the topics `new`; its completed `entries` are the start of what
it gained and the end of what it lost. Parts are filled in on the way up the line, so these two are mutable; everything
else is frozen.

An entry of 0 is never written: it would say that nothing comes before.

`gc=False`: messages are trees and never point back, so the garbage collector need not look at the thousands that are alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ordered_pubsub.core.topics import matches


class ChangeMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tells a subscriber that a change of its own subscription has its place before this event."""

    subscription: str
    version: int


EVERYBODY_ASKS = ChangeMark("", 0)
"""Stands for more marks than a topic keeps: whoever has a change under way waits for its outcome."""
EVERYBODY_LOOKS = ChangeMark("", 1)
"""The same, where some of these changes were made by others: whoever holds the topic looks whether its own is among them."""
MARKS_MAX = 16
"""Marks that a topic keeps for its next event."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive events of one batch, as the log keeps them: so many, and their bytes, which only clients read.

    Without bytes they are events that a home stage leaves out, since the filter lets none of them through.
    """

    count: int
    data: bytes


class Transaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What takes its place together with an event: all that a transaction has published, and which changes it has made.

    The numbers of a transaction on one topic are consecutive, since its operation is handled in one go.
    """

    id: str
    ranges: dict[str, tuple[int, int]]
    """topic → its first and its last number"""
    changes: list[ChangeMark] = []

    def has_begun(self, clock: Mapping[str, int]) -> bool:
        """Whether who has come so far has some of it."""
        return any(clock.get(topic, 0) >= first for topic, (first, _) in self.ranges.items())

    def follow(self, topic: str, full: dict[str, int]) -> None:
        """What comes on a topic after this one comes after all of it: put that into a full timestamp."""
        for other, (_, last) in self.ranges.items():
            if other != topic and full.get(other, 0) < last:
                full[other] = last


class PublishAsk(msgspec.Struct, frozen=True, array_like=True, tag="publish", gc=False):
    """A client asks for `count` numbers on a topic.

    `is_kept`: the events themselves are in `chunks`, and are to be in the owner's log before the numbers are answered. A
    record of the journal says so without the chunks, where the log has them.
    """

    topic: str
    count: int = 1
    is_kept: bool = False
    chunks: tuple[Chunk, ...] = ()
    pieces: tuple[int, ...] | None = None
    """which events share a tag: so many in each piece, of kept ones as in `chunks`; empty: each has its own; None: there are to
    be no tags, since nobody publishes them on the broker"""
    digests: bytes = b""
    """of each piece, one behind the other (`core.trust.authenticity`); of what is kept, the home stage makes them"""
    publisher: str = ""
    """what the events carry as their publisher; set by the home stage"""


class ChangeAsk(msgspec.Struct, frozen=True, array_like=True, tag="change", gc=False):
    """A client asks to add topics to a subscription and to remove others, or to end it."""

    subscription: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    weight: int = 2
    best_effort: bool = False
    ends: bool = False
    opens: int = 0
    """it is a named one, and is to begin, or, if it is there, to go on in this session instead of any other: in this epoch"""
    start: dict[str, int] | None = None
    """where a named one begins in the past; None: at its place in the order"""
    where: dict[str, str] = {}
    """what is wanted of the topics that it adds: filters, as they are written"""
    may_be_empty: bool = False
    """it begins without a topic, if it is not there: others will give it some"""
    strict: bool = False
    """in a transaction: whether that is refused if the subscription holds something of `add`, or lacks something of `remove`"""
    is_managed: bool = False
    """in a transaction: whether who asks may change it though it is another identity's; set by the home stage"""


ANYBODY = "anyone"
"""The identity of all who come where there are none. What was begun then is whoever's comes first when there are some."""


class SubscribeRights(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an identity may subscribe to, as its home stage knows it: patterns of topics. Deny wins."""

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()

    def denied(self, topics: Iterable[str]) -> str | None:
        """A topic that it may not subscribe to, if there is one."""
        for topic in topics:
            if not _is_among(topic, self.allow) or _is_among(topic, self.deny):
                return topic
        return None


def _is_among(topic: str, patterns: Iterable[str]) -> bool:
    return any(matches(pattern, topic) for pattern in patterns)


class Request(msgspec.Struct, frozen=True, array_like=True, tag="request", gc=False):
    """What a client asks, under an identity that makes asking again harmless.

    `after` is the sequence of the request that the client sent to the same stage before this one: a stage takes the
    requests of a client in that order. `done` says that the answers up to this sequence have arrived and may be forgotten.
    `identity` is who asks, as its home stage knows it; and where it opens a subscription with a name, which may hold topics that
    it does not name, `reading` is what it may subscribe to. What a client writes there counts for nothing.
    """

    client: str
    epoch: int
    sequence: int
    after: int
    done: int
    parts: tuple[PublishAsk | ChangeAsk, ...]
    identity: str = ""
    reading: SubscribeRights | None = None
    is_guest: bool = False
    """whether it comes from somebody who goes on under a name that is perhaps not his: only a stage that knows the session takes
    it"""
    is_transaction: bool = False
    """whether subscribers are to be notified of all its parts together, or of none"""

    def refused(self, code: str, reason: str, taken: bool = False, opened: int = 0) -> Refusal:
        """The answer that refuses it."""
        return Refusal(self.client, self.epoch, self.sequence, code, reason, taken, opened)

    def refused_as(self, refusal: Refusal, taken: bool = False) -> Refusal:
        """The answer that refuses it for the same reason."""
        return self.refused(refusal.code, refusal.reason, taken, refusal.opened)


def find_change(parts: Iterable[PublishAsk | ChangeAsk]) -> ChangeAsk | None:
    """The change of a subscription among the parts of a request, if there is one."""
    for part in parts:
        if isinstance(part, ChangeAsk):
            return part
    return None


def changes_of(parts: Iterable[PublishAsk | ChangeAsk]) -> list[ChangeAsk]:
    """The changes of subscriptions among the parts of a request: at most one, unless it is a transaction."""
    return [part for part in parts if isinstance(part, ChangeAsk)]


class Publication(msgspec.Struct, array_like=True, tag="publication", gc=False):
    """A batch of events on one topic, numbered and stamped on the way."""

    topic: str
    count: int
    published_at: float
    first: int = 0
    place: int = 0
    full: bool = False
    entries: dict[str, int] = msgspec.field(default_factory=dict)
    marks: list[ChangeMark] = msgspec.field(default_factory=list)
    is_kept: bool = False
    """whether the owner's log has the events"""
    chunks: tuple[Chunk, ...] = ()
    """the events on their way to the owner, who takes them out"""
    pieces: tuple[int, ...] | None = None
    """as it was asked for: which events share a tag"""
    digests: bytes = b""
    """of the pieces, until the home stage makes tags of them for its client"""
    publisher: str = ""
    tags: bytes = b""
    """for the client: of the pieces, one behind the other"""
    system: bytes = b""
    """for the client: which system's order this is"""
    key_epoch: int = 0
    """for the client: by which keys the tags were made"""
    transaction: Transaction | None = None
    """once it is complete, who remembers it: what it is a part of. It does not travel with each part"""

    @property
    def last(self) -> int:
        """The number of the last event of the batch."""
        return self.first + self.count - 1


class Change(msgspec.Struct, array_like=True, tag="change", gc=False):
    """One subscription's step from the topics `old` to the topics `new`."""

    subscription: str
    version: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    weight: int
    best_effort: bool
    entries: dict[str, int] = msgspec.field(default_factory=dict)
    resume: Resume | None = None
    """where a named subscription goes on that was there already"""
    where: dict[str, str] = msgspec.field(default_factory=dict)
    """filters of the topics that it gains, as they are written"""

    @property
    def identity(self) -> str:
        """A text that names this change in the whole system."""
        return f"{self.subscription}@{self.version}"

    @property
    def lost(self) -> list[str]:
        """The topics that it takes away."""
        kept = set(self.new)
        return [topic for topic in self.old if topic not in kept]

    @property
    def gained(self) -> list[str]:
        """The topics that it adds."""
        held = set(self.old)
        return [topic for topic in self.new if topic not in held]

    @property
    def topics(self) -> list[str]:
        """The topics that it concerns: the old ones, then those that are new."""
        known = set(self.old)
        return [*self.old, *(topic for topic in self.new if topic not in known)]


class Resume(msgspec.Struct, array_like=True, gc=False):
    """How far a named subscription has acknowledged, and what it has to know to go on.

    It had acknowledged `clock` on its way through the `changes` that followed the change `version`, after which it held
    `topics`. With version 0 it is still before its first change, on its way from `start`, if it begins in the past.
    """

    version: int
    topics: tuple[str, ...]
    clock: dict[str, int]
    position: int
    start: dict[str, int] | None
    where: dict[str, str]
    """the filters of `topics`; later ones are in the changes"""
    changes: list[Change] = msgspec.field(default_factory=list)


Part = Publication | Change


LOAD_BYTES = 32
"""So many bytes of events weigh as much as the name of a topic."""


def load_of(parts: Iterable[Part]) -> int:
    """About how large these are: the names of topics in them, and what weighs as much."""
    load = 0
    for part in parts:
        load += 1 + len(part.entries)
        if isinstance(part, Change):
            load += len(part.old) + len(part.new)
        else:
            size = len(part.digests)
            for chunk in part.chunks:
                size += len(chunk.data)
            load += size // LOAD_BYTES
    return load


class Operation(msgspec.Struct, array_like=True, gc=False):
    """One journey up the line.

    `asked` is the rank of the stage that took the request and remembers its answer, `home` that of the client's home stage,
    `bottom` and `top` those of the lowest and the highest stage concerned (`top` may rise at the owner of a publication's
    topic, who reads the group).
    """

    client: str
    epoch: int
    sequence: int
    home: int
    asked: int
    bottom: int
    top: int
    parts: list[Part]
    transaction: str = ""
    """which one it is, if it is one"""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Who asked for it, unique in the whole system."""
        return (self.client, self.epoch, self.sequence)


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer", gc=False):
    """What became of a request: its completed parts."""

    client: str
    epoch: int
    sequence: int
    parts: list[Part]
    transaction: Transaction | None = None
    """what else takes its place with them, if they are a transaction"""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal", gc=False):
    """Why nothing was done for a request.

    With `taken`, the request has its place in its chain, and whoever asks again is refused again. Without, no stage
    remembers it.
    """

    client: str
    epoch: int
    sequence: int
    code: str
    reason: str
    taken: bool = False
    opened: int = 0
    """of an opening that names a wrong epoch: in which one the subscription was opened last; 0: in none"""


class Acked(msgspec.Struct, frozen=True, array_like=True, tag="acked", gc=False):
    """A named subscription has acknowledged its events up to a clock, at which the change `version` had taken effect.

    `serial` rises with each, and comes back when it is on disk. `identity` is whose session it is, as its home stage knows it.
    """

    subscription: str
    session: str
    serial: int
    version: int
    clock: dict[str, int]
    position: int
    identity: str = ""


class AckSaved(msgspec.Struct, frozen=True, array_like=True, tag="ack-saved", gc=False):
    """An acknowledgement is on the registrar's disk."""

    subscription: str
    session: str
    serial: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    """A subscription is not this session's any more."""

    subscription: str
    session: str
    code: str
    reason: str


# What stages say to each other in numbered frames: never lost, never twice, in their order.


class Launch(msgspec.Struct, frozen=True, array_like=True, tag="launch", gc=False):
    """A registrar hands a subscription's next change to the stage where it enters the line."""

    operation: Operation


class Pass(msgspec.Struct, frozen=True, array_like=True, tag="pass", gc=False):
    """An operation goes up to the neighbour."""

    operation: Operation


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """The last stage tells who must remember it that an operation is complete."""

    operation: Operation


class Reserve(msgspec.Struct, frozen=True, array_like=True, tag="reserve", gc=False):
    """A transaction wants its turns at subscriptions that are registered at this stage (`core.order.reserving`)."""

    transaction: str
    coordinator: int
    """the rank of the stage that carries it out"""
    identity: str
    asks: list[tuple[int, ChangeAsk]]
    """its changes there, each with its place among all parts of the transaction"""
    excess: str = ""
    """why the registrar refuses it at once, since somebody would take up too much: it notes that as it takes it"""


class Reserved(msgspec.Struct, frozen=True, array_like=True, tag="reserved", gc=False):
    """A registrar tells the coordinator: the transaction has its turns there, and nothing speaks against it."""

    transaction: str
    changes: list[tuple[int, Change]]
    meets: list[int]
    """stages that it has to visit, so that it meets what came before"""


class NotReserved(msgspec.Struct, frozen=True, array_like=True, tag="not-reserved", gc=False):
    """A registrar tells the coordinator why the transaction cannot happen. It has no turns there."""

    transaction: str
    code: str
    reason: str


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release", gc=False):
    """The transaction will not happen: whatever turns it has, others have them now."""

    transaction: str


OnTheLine = Launch | Pass | Done
Durable = Launch | Pass | Done | Reserve | Reserved | NotReserved | Release


def load_of_message(message: Durable) -> int:
    """About how large a message between stages is: names of topics in it, and what weighs as much."""
    if isinstance(message, (Launch, Pass, Done)):
        return load_of(message.operation.parts)
    if isinstance(message, Reserved):
        return load_of([change for _, change in message.changes])
    if isinstance(message, Reserve):
        return 1 + sum(len(ask.add) + len(ask.remove) for _, ask in message.asks)
    return 1


# What may be lost, since whoever needs it asks again.


class Relay(msgspec.Struct, frozen=True, array_like=True, tag="relay", gc=False):
    """A home stage forwards a client's request to the stage that takes it; with a refusal, if the client may not ask this."""

    home: int
    request: Request
    refusal: Refusal | None = None


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply", gc=False):
    """An answer or a refusal on its way to the client's home stage."""

    answer: Answer | Refusal


class LinkFrame(msgspec.Struct, frozen=True, array_like=True, tag="link-frame", gc=False):
    """A durable message with its number on this link."""

    number: int
    message: Durable


# What subscribers miss, and get from the logs: lost without harm, too.


class NackRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Somebody misses these numbers of a topic; with `full`, the first one's full timestamp is wanted."""

    topic: str
    first: int
    last: int
    full: bool = False
    where: str = ""
    """events that this filter does not let through need not be brought"""


class Nack(msgspec.Struct, frozen=True, array_like=True, tag="nack", gc=False):
    """A client tells its home stage what one of its subscriptions misses."""

    subscription: str
    wants: list[NackRange]


VERSION_MAX = 1 << 40
"""Later than any change."""
EPOCH_MAX = 1 << 40
"""No session, subscription or key has a higher one."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress", gc=False):
    """A client tells its home stage, and that the registrar, up to which numbers one of its subscriptions needs nothing any more.

    With `is_all` these are all the topics that it has to do with, as it knows them after the change `version`; else those of
    which something has changed.
    """

    subscription: str
    acked: dict[str, int]
    is_all: bool = False
    version: int = 0


class ProgressReports(msgspec.Struct, frozen=True, array_like=True, tag="progress-reports", gc=False):
    """A home stage tells a registrar what subscriptions have said."""

    news: list[Progress]


class HomeFloors(msgspec.Struct, frozen=True, array_like=True, tag="home-floors", gc=False):
    """A home stage tells an owner up to where all its clients have acknowledged a topic; None: none of them holds it.

    With `is_all` these are all the topics of that owner.
    """

    acked: dict[str, int | None]
    is_all: bool = False


class AskNews(msgspec.Struct, frozen=True, array_like=True, tag="ask-news", gc=False):
    """A client asks the registrar of a subscription which changes others have made of it, in transactions, after the change
    `version`. Of those up to that one it knows."""

    subscription: str
    session: str
    version: int
    identity: str = ""


class News(msgspec.Struct, frozen=True, array_like=True, tag="news", gc=False):
    """A registrar tells a client what others have changed of a subscription."""

    subscription: str
    session: str
    changes: list[Change]


class AskVersion(msgspec.Struct, frozen=True, array_like=True, tag="ask-version", gc=False):
    """A client asks the owner of a topic which change of a subscription was the last that has passed there."""

    subscription: str
    session: str
    topic: str
    identity: str = ""


class VersionThere(msgspec.Struct, frozen=True, array_like=True, tag="version-there", gc=False):
    """The owner of a topic answers; -1: it holds nothing of that stage any more."""

    subscription: str
    session: str
    topic: str
    version: int


class AckExpected(msgspec.Struct, frozen=True, array_like=True, tag="ack-expected", gc=False):
    """An owner tells a home stage how far some topics are, since it misses acknowledgements."""

    counts: dict[str, int]


class AskFloors(msgspec.Struct, frozen=True, array_like=True, tag="ask-floors", gc=False):
    """An owner asks a registrar up to where its subscriptions need nothing any more, and which of some other topics they need."""

    round: int
    about: tuple[str, ...] = ()
    """topics of lower stages, of which the asking one remembers something"""


class Floors(msgspec.Struct, frozen=True, array_like=True, tag="floors", gc=False):
    """A registrar answers: those of the topics in question of which a subscription may need something, and from where on."""

    round: int
    acked: dict[str, int]


class SessionsAlive(msgspec.Struct, frozen=True, array_like=True, tag="sessions-alive", gc=False):
    """A home stage says which sessions are connected to it, and the serial of what each of them has said last."""

    sessions: dict[str, int]


class KeepAlive(msgspec.Struct, frozen=True, array_like=True, tag="keep-alive", gc=False):
    """A client says that it is there; `serial` comes back from each registrar that has subscriptions of it."""

    session: str
    serial: int


class KeepAliveSeen(msgspec.Struct, frozen=True, array_like=True, tag="keep-alive-seen", gc=False):
    """A registrar answers a home stage: the sessions that have subscriptions there, and what they had said."""

    sessions: dict[str, int]


class KeepAliveAck(msgspec.Struct, frozen=True, array_like=True, tag="keep-alive-ack", gc=False):
    """A home stage tells a client that a registrar has heard of it."""

    session: str
    serial: int
    rank: int


class Locate(msgspec.Struct, frozen=True, array_like=True, tag="locate", gc=False):
    """A client asks where some topics were at a time, by the wall clocks of their owners; `serial` comes back."""

    session: str
    serial: int
    topics: list[str]
    at: float


class Located(msgspec.Struct, frozen=True, array_like=True, tag="located", gc=False):
    """An owner answers: the last number of each topic that was published before that time, and is kept."""

    session: str
    serial: int
    numbers: dict[str, int]


class TopicHeads(msgspec.Struct, frozen=True, array_like=True, tag="topic-heads", gc=False):
    """A home stage tells a subscription how far some of its topics are."""

    subscription: str
    counts: dict[str, int]


class LogRequest(msgspec.Struct, frozen=True, array_like=True, tag="log-request", gc=False):
    """A home stage asks the owner of some topics for what its clients miss."""

    wants: list[NackRange]


class LogItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a topic's log, complete: events, or without chunks, silence.

    `entries` and `marks` are those of the number `first`; what follows differs in its own number only.
    """

    first: int
    last: int
    entries: dict[str, int]
    full: bool
    marks: list[ChangeMark]
    batch: int
    """the first number of the batch that it is a part of"""
    place: int
    published_at: float
    chunks: list[Chunk]
    transaction: Transaction | None = None


class LogReply(msgspec.Struct, frozen=True, array_like=True, tag="log-reply", gc=False):
    """What a log says of the numbers `first` to `read_to` of a topic; what is not said is not known yet."""

    topic: str
    first: int
    read_to: int
    floor: int
    """everything up to here is gone"""
    items: list[LogItem]
    where: str = ""
    """the filter by which events are left out: this is true for who has this filter, and for nobody else"""
    given: int = -1
    """the last number of the topic that its owner has given: there are none above it; -1: it is not said"""


class Recovered(msgspec.Struct, frozen=True, array_like=True, tag="recovered", gc=False):
    """A home stage brings a subscription what it misses."""

    subscription: str
    reply: LogReply


# Numbers on topics whose events nobody keeps: were they published? Lost without harm, too.


Range = tuple[int, int]
"""Numbers of a topic: from the first to the last."""


class TopicRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """These numbers of a topic."""

    topic: str
    first: int
    last: int


class LeaseRenewal(msgspec.Struct, frozen=True, array_like=True, tag="lease-renewal", gc=False):
    """A client says that all its publications up to a sequence are at the ENS, as far as nobody keeps them.

    That renews its leases at the stages `ranks`. It asks which numbers of `asks` have become void; `serial` comes back.
    """

    session: str
    serial: int
    sequence: int
    ranks: list[int]
    asks: list[TopicRange]


class LeaseReply(msgspec.Struct, frozen=True, array_like=True, tag="lease-reply", gc=False):
    """An owner answers: what it was asked for and is void. Nothing else will be as long as the lease holds."""

    session: str
    serial: int
    rank: int
    voids: list[TopicRange]


class SeenAsk(msgspec.Struct, frozen=True, array_like=True, tag="seen-ask", gc=False):
    """An owner asks home stages, and these their clients, for numbers whose publisher is not heard of any more.

    Who has not seen them yet is to use none of them until it is decided what they are.
    """

    session: str
    """empty between stages"""
    serial: int
    rank: int
    topic: str
    numbers: list[Range]


class SeenReply(msgspec.Struct, frozen=True, array_like=True, tag="seen-reply", gc=False):
    """The answer of some clients: what was seen of them. The rest will not be used."""

    serial: int
    rank: int
    sessions: list[str]
    seen: list[Range]


class Holders(msgspec.Struct, frozen=True, array_like=True, tag="holders", gc=False):
    """A registrar answers who must be asked: the sessions that may have something to do with the topic."""

    serial: int
    sessions: list[str]


class VoidAsk(msgspec.Struct, frozen=True, array_like=True, tag="void-ask", gc=False):
    """A client asks what has become of numbers that do not come, or that it must not use yet."""

    session: str
    spans: list[TopicRange]


class VoidDecision(msgspec.Struct, frozen=True, array_like=True, tag="void-decision", gc=False):
    """An owner says which numbers are void, as silence, and which are not. Without a session it is for all clients."""

    session: str
    topic: str
    voids: list[LogItem]
    published: list[Range]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", gc=False):
    """The greeting of a (re)connected link: topology, and how far the frames of both sides have come."""

    fingerprint: str
    received: int
    """frames of the other side that are here"""
    system: bytes = b""
    """which system this stage is a part of, if it knows"""
    acknowledged: int = 0
    """frames of this side that the other one has said are on its disk"""


class LinkAck(msgspec.Struct, frozen=True, array_like=True, tag="link-ack", gc=False):
    """Everything up to this number is on the receiver's disk."""

    received: int


# Which system this is, and the keys by which its stages tag what they have numbered (`core.trust.authenticity`).


class SystemKeys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A system's identity, and what its keys are made of. Nobody but its stages may see it."""

    system: bytes = b""
    secret: bytes = b""
    epoch: int = 0
    """by which tags are made now; 0: there is no system yet"""
    begun_at: float = 0.0
    """when that began, by the wall clock of the highest stage"""
    old: dict[int, float] = {}
    """earlier epochs → for how many seconds after that what they tagged is good"""

    def __repr__(self) -> str:
        return f"SystemKeys(system={self.system.hex()!r}, epoch={self.epoch}, …)"  # and no secret


class AskSecrets(msgspec.Struct, frozen=True, array_like=True, tag="ask-secrets", gc=False):
    """A stage asks the highest one for the system's keys, and says which epoch it knows."""

    epoch: int


class Secrets(msgspec.Struct, frozen=True, array_like=True, tag="secrets", gc=False):
    """The highest stage says what the system's keys are made of."""

    keys: SystemKeys


class Rotate(msgspec.Struct, frozen=True, array_like=True, tag="rotate", gc=False):
    """A stage wants another epoch than the one that it knows; with `revokes`, somebody must not know the next one either."""

    epoch: int
    revokes: bool = False


class AskKeys(msgspec.Struct, frozen=True, array_like=True, tag="ask-keys", gc=False):
    """A client asks for the keys of topics; `epoch` is one that it has met and does not know, or 0."""

    session: str
    topics: list[str]
    epoch: int = 0


class NotArrivedCounts(msgspec.Struct, frozen=True, array_like=True, tag="not-arrived", gc=False):
    """A client says how much that the broker brought has not arrived since it said so last, by cause
    (`core.trust.inspection`)."""

    session: str
    counts: dict[str, int]


class Keys(msgspec.Struct, frozen=True, array_like=True, tag="keys", gc=False):
    """A home stage gives a client keys: of each topic those of the epochs, in their order.

    What was not of `epochs` so long ago (`age_s`) was of no epoch then: that is when the stage heard of them last.
    """

    session: str
    system: bytes
    epochs: list[tuple[int, float]]
    """epoch → for how many seconds it is good; those without an end say 0"""
    keys: dict[str, list[bytes]]
    age_s: float
    refused: dict[str, tuple[str, str]] = {}
    """topics whose keys it may not have: a code and a reason"""

    def __repr__(self) -> str:
        return f"Keys(session={self.session!r}, epochs={self.epochs}, topics={list(self.keys)}, refused={self.refused})"


class NewEpoch(msgspec.Struct, frozen=True, array_like=True, tag="new-epoch", gc=False):
    """A home stage tells a client that there are other keys: those that it has are old, or will be."""

    session: str
    epoch: int


PeerMessage = (
    Relay
    | Reply
    | LinkFrame
    | Hello
    | LinkAck
    | LogRequest
    | LogReply
    | HomeFloors
    | AckExpected
    | Acked
    | AckSaved
    | Ended
    | AskNews
    | News
    | AskVersion
    | VersionThere
    | AskFloors
    | Floors
    | SessionsAlive
    | KeepAliveSeen
    | ProgressReports
    | Locate
    | Located
    | LeaseRenewal
    | LeaseReply
    | SeenAsk
    | SeenReply
    | Holders
    | VoidAsk
    | VoidDecision
    | AskSecrets
    | Secrets
    | Rotate
)
FromSubscriber = (
    Nack
    | Progress
    | Acked
    | AskNews
    | AskVersion
    | Locate
    | KeepAlive
    | LeaseRenewal
    | SeenReply
    | VoidAsk
    | AskKeys
    | NotArrivedCounts
)
ToSubscriber = Recovered | TopicHeads | AckSaved | Ended | News | VersionThere
ToSession = ToSubscriber | Located | KeepAliveAck | LeaseReply | SeenAsk | VoidDecision | Keys | NewEpoch


# What a stage's journal holds: its inputs, in order.


class TopologyOffered(msgspec.Struct, frozen=True, array_like=True, tag="opened", gc=False):
    """A stage starts under a topology that it will offer to its peers; or (`confirmed`) all of them have it, too."""

    rank: int
    topology: list[list[object]]
    confirmed: bool


class RequestTaken(msgspec.Struct, frozen=True, array_like=True, tag="asked", gc=False):
    """A request was taken; with a refusal, only to be refused, now and whenever it is asked again."""

    request: Request
    home: int
    now: float
    refusal: Refusal | None = None
    forgets: tuple[str, ...] = ()
    """sessions of the same identity that are forgotten to make room for it"""


class FrameTaken(msgspec.Struct, frozen=True, array_like=True, tag="framed", gc=False):
    """A peer's frame was taken."""

    peer: int
    number: int
    message: Durable


class AckTaken(msgspec.Struct, frozen=True, array_like=True, tag="acknowledged", gc=False):
    """A named subscription has acknowledged."""

    acked: Acked


class TopicsReleased(msgspec.Struct, frozen=True, array_like=True, tag="passed", gc=False):
    """A subscription needs nothing any more of topics that it had left."""

    subscription: str
    topics: tuple[str, ...]


class Named(msgspec.Struct, frozen=True, array_like=True, tag="named", gc=False):
    """A session of an identity gets a name that is kept here; others that nobody has used for long are given up for it."""

    name: str
    identity: str
    session: str
    at: float
    forgets: tuple[str, ...] = ()


class NewsKnown(msgspec.Struct, frozen=True, array_like=True, tag="news-known", gc=False):
    """The client of a subscription knows what others have changed of it, up to a version."""

    subscription: str
    version: int


class GaveUp(msgspec.Struct, frozen=True, array_like=True, tag="gave-up", gc=False):
    """A transaction has waited too long for its turns: it will not happen."""

    transaction: str


class Leveled(msgspec.Struct, frozen=True, array_like=True, tag="leveled", gc=False):
    """What topics give from now on, by the rules of `core.levels`."""

    levels: list[list[str]]


class Founded(msgspec.Struct, frozen=True, array_like=True, tag="founded", gc=False):
    """The system begins here, or this stage has heard of which system it is a part."""

    keys: SystemKeys


class Rotated(msgspec.Struct, frozen=True, array_like=True, tag="rotated", gc=False):
    """Another epoch of keys has begun."""

    keys: SystemKeys


class Rested(msgspec.Struct, frozen=True, array_like=True, tag="rested", gc=False):
    """Nobody holds these topics, and nobody needs any of their events: nothing is remembered of them.

    Of those that are this stage's own, the last number is in a table of its own beside the log.
    """

    topics: tuple[str, ...]


class Woken(msgspec.Struct, frozen=True, array_like=True, tag="woken", gc=False):
    """What comes next concerns topics that rested: their last numbers, from that table."""

    numbers: dict[str, int]


Input = (
    TopologyOffered
    | RequestTaken
    | FrameTaken
    | AckTaken
    | TopicsReleased
    | GaveUp
    | NewsKnown
    | Leveled
    | Founded
    | Rotated
    | Rested
    | Woken
    | Named
)
