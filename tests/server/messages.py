"""One of each: messages as clients and stages send them, with something in every field."""

from __future__ import annotations

from typing import Any

from ordered_pubsub.core.log.questions import Bound, Bounded, Find, FoundTopics, Read, Rows, Unread
from ordered_pubsub.core.messages import (
    Acked,
    AckExpected,
    AckSaved,
    Answer,
    AskFloors,
    Change,
    ChangeAsk,
    ChangeMark,
    Chunk,
    Done,
    Ended,
    Floors,
    Hello,
    Holders,
    HomeFloors,
    KeepAlive,
    KeepAliveAck,
    KeepAliveSeen,
    Launch,
    LeaseRenewal,
    LeaseReply,
    LinkAck,
    LinkFrame,
    LogItem,
    LogReply,
    LogRequest,
    Nack,
    NackRange,
    NotArrivedCounts,
    Operation,
    Pass,
    PeerMessage,
    Progress,
    ProgressReports,
    Publication,
    PublishAsk,
    Recovered,
    Refusal,
    Relay,
    Reply,
    Request,
    Resume,
    SeenAsk,
    SeenReply,
    SessionsAlive,
    TopicHeads,
    TopicRange,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.wire.pack import Logged, PackedEvent, encode_logged
from ordered_pubsub.wire.protocol import (
    VERSION,
    Ask,
    Claim,
    Claimed,
    ClientGreeting,
    Differs,
    Inquire,
    NamesGranted,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Report,
    Say,
    Tell,
    Welcome,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session, publisher_of

KEY: SessionKey = make_session("desk-1")
SUBSCRIPTION = f"{KEY.session}/1"


def greeting(key: SessionKey = KEY, name: str | None = "desk-1", **fields: Any) -> ClientGreeting:
    """A client's first frame."""
    known: dict[str, Any] = {"version": VERSION, "token": "", "resumes": False, **fields}
    return ClientGreeting(session=key.session, secret=key.secret, name=name, **known)


def request(*parts: PublishAsk | ChangeAsk, sequence: int = 1, after: int | None = None, client: str = "") -> Request:
    """What a client asks; by itself, the request after the one before."""
    before = sequence - 1 if after is None else after
    return Request(client or KEY.session, 1, sequence, before, 0, parts or (PublishAsk("a", 3),))


def events_of(session: str, count: int = 1) -> bytes:
    """So many events of a session, as its topic's log has them."""
    label = session.rpartition("#")[0]
    publisher = publisher_of(session, None if label == "anonymous" else label)
    return encode_logged(Logged(publisher, [PackedEvent(f"id{at}", b"x", "text/plain") for at in range(count)]))


def with_events(part: PublishAsk | ChangeAsk, session: str) -> PublishAsk | ChangeAsk:
    """A publication with its events, which are to be kept."""
    if isinstance(part, ChangeAsk) or part.chunks or not 0 < part.count < 1_000:
        return part
    return PublishAsk(part.topic, part.count, True, (Chunk(part.count, events_of(session, part.count)),))


CHUNKS = (Chunk(2, b"\x01two"), Chunk(1, b"\x01one"))
PUBLICATION = Publication("a", 3, 1.7e9, 7, 12, True, {"b": 4, "c": 1}, [ChangeMark(SUBSCRIPTION, 2)], True, CHUNKS)
RESUME = Resume(1, ("a",), {"a": 3}, 5, {"a": 1}, {"a": "x > 1"}, [Change(SUBSCRIPTION, 2, (), ("a",), 2, False)])
CHANGE = Change(SUBSCRIPTION, 3, ("a",), ("a", "b"), 2, False, {"a": 9}, RESUME)
OPERATION = Operation(KEY.session, 1, 5, 0, 0, 1, 0, [PUBLICATION, CHANGE])
ANSWER = Answer(KEY.session, 1, 5, [PUBLICATION, CHANGE])
REFUSAL = Refusal(KEY.session, 1, 6, "forbidden", "it may not", False)
WANTS = [NackRange("a", 7, 9, True), NackRange("b", 1, 1)]
TOLD = LogReply(
    "a", 7, 12, 2,
    [
        LogItem(7, 9, {"b": 4, "c": 1}, True, [ChangeMark(SUBSCRIPTION, 2)], 7, 12, 1.7e9, list(CHUNKS)),
        LogItem(10, 12, {}, False, [], 10, 13, 1.7e9, []),
    ],
)  # fmt: skip
FOLLOWS = Progress(SUBSCRIPTION, {"a": 6, "b": 0}, True, 2)
ACKED = Acked(SUBSCRIPTION, KEY.session, 3, 2, {"a": 7}, 9)
SAVED, ENDED = AckSaved(SUBSCRIPTION, KEY.session, 3), Ended(SUBSCRIPTION, KEY.session, "taken-over", "elsewhere")

HANDED = LeaseRenewal(KEY.session, 3, 7, [0, 1], [TopicRange("a", 3, 4)])
LEASED = LeaseReply(KEY.session, 3, 1, [TopicRange("a", 4, 4)])
SEAL = SeenAsk(KEY.session, 3, 1, "a", [(3, 4), (7, 7)])
SEALED = SeenReply(3, 1, [KEY.session], [(4, 4)])
UNDECIDED = VoidAsk(KEY.session, [TopicRange("a", 3, 4)])
DECIDED = VoidDecision(KEY.session, "a", [LogItem(3, 3, {"b": 2}, True, [], 3, 9, 1.5, [])], [(4, 4)])
FROM_CLIENT = (
    Ask(
        [
            request(
                PublishAsk("a", 3, True, CHUNKS),
                ChangeAsk(SUBSCRIPTION, ("a", "b"), ("c",), 1, True, True, 2, {"a": 3}, {"a": "x > 1"}),
            )
        ]
    ),
    Nack(SUBSCRIPTION, WANTS),
    FOLLOWS,
    ACKED,
    KeepAlive(KEY.session, 3),
    NotArrivedCounts(KEY.session, {"tag": 2}),
    HANDED,
    SEALED,
    UNDECIDED,
    Find(5, ["a/**", "b"]),
    Read(6, "a", 3, 9, True, 1_000, "x > 1"),
    Bound(7, "a", 3, 9, {"b": 12}, False),
    Inquire(4),
    Ping(),
    Pong(),
)
TO_CLIENT = (
    Welcome(
        VERSION, "main", [["main", ["a/**"]]], 5.0, 1 << 20, ["ops://127.0.0.1:7411"], 1 << 22, [["a/**", "ordered"]]
    ),
    Rejected("denied", "nobody knows it"),
    Tell([ANSWER, REFUSAL]),
    Recovered(SUBSCRIPTION, TOLD),
    TopicHeads(SUBSCRIPTION, {"a": 12}),
    SAVED,
    ENDED,
    KeepAliveAck(KEY.session, 3, 1),
    LEASED,
    SEAL,
    DECIDED,
    FoundTopics(5, {"a": (2, 9)}),
    Rows(6, 2, 4, {"b": 12}, [(3, 4, b"stamp")], [(3, 3, b"one"), (4, 4, b"two")]),
    Bounded(7, 8, False),
    Unread(8, "forbidden", "it may not"),
    Report(4, {"ready": True, "links": {"b": "up"}}, ""),
    Ping(),
    Pong(),
)
PEER_MESSAGES: tuple[PeerMessage, ...] = (
    Relay(1, request()),
    Reply(ANSWER),
    Reply(REFUSAL),
    LinkFrame(1, Launch(OPERATION)),
    LinkFrame(2, Pass(OPERATION)),
    LinkFrame(3, Done(OPERATION)),
    Hello("fingerprint", 3),
    LinkAck(3),
    LogRequest(WANTS),
    TOLD,
    HomeFloors({"a": 7, "b": None}, True),
    AckExpected({"a": 12}),
    ProgressReports([FOLLOWS]),
    AskFloors(4),
    Floors(4, {"a": 7}),
    SessionsAlive({KEY.session: 3}),
    KeepAliveSeen({KEY.session: 3}),
    ACKED,
    SAVED,
    ENDED,
    HANDED,
    LEASED,
    SEAL,
    SEALED,
    Holders(3, [KEY.session]),
    UNDECIDED,
    DECIDED,
)
FROM_PEER = (
    TO_CLIENT[0],
    TO_CLIENT[1],
    Differs({"topics": "open", "stage": [{"name": "x", "topics": []}]}),
    Say(list(PEER_MESSAGES)),
    Claim("desk-1", KEY.session, "trader", True, False),
    Claimed("desk-1", KEY.session, "somebody has it"),
    NamesGranted([Claim("desk-1", KEY.session, "trader", False, True)]),
    Ping(),
    Pong(),
)
GREETINGS = (greeting(token="t" * 40, resumes=True), PeerGreeting(VERSION, 1, "t" * 40, "digest"))
