"""One of each: messages as clients and stages send them, with something in every field."""

from __future__ import annotations

from typing import Any

from ordered_pubsub.core.messages import (
    Ack,
    Answer,
    Change,
    ChangeAsk,
    Done,
    Frame,
    Hello,
    Launch,
    Mark,
    Operation,
    Pass,
    PeerMessage,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Reply,
    Request,
)
from ordered_pubsub.wire.protocol import (
    VERSION,
    Ask,
    Claim,
    Claimed,
    ClientGreeting,
    Differs,
    Inquire,
    Names,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Report,
    Say,
    Tell,
    Welcome,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session

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


PUBLICATION = Publication("a", 3, 1.7e9, 7, 12, True, {"b": 4, "c": 1}, [Mark(SUBSCRIPTION, 2)])
CHANGE = Change(SUBSCRIPTION, 2, ("a",), ("a", "b"), 2, False, {"a": 9})
OPERATION = Operation(KEY.session, 1, 5, 0, 0, 1, 0, [PUBLICATION, CHANGE])
ANSWER = Answer(KEY.session, 1, 5, [PUBLICATION, CHANGE])
REFUSAL = Refusal(KEY.session, 1, 6, "forbidden", "it may not", False)

FROM_CLIENT = (
    Ask([request(PublishAsk("a", 3), ChangeAsk(SUBSCRIPTION, ("a", "b"), ("c",), 1, True, True))]),
    Inquire(4),
    Ping(),
    Pong(),
)
TO_CLIENT = (
    Welcome(VERSION, "main", [["main", ["a/**"]]], 5.0, 1 << 20, ["ops://127.0.0.1:7411"], 1 << 22),
    Rejected("denied", "nobody knows it"),
    Tell([ANSWER, REFUSAL]),
    Report(4, {"ready": True, "links": {"b": "up"}}, ""),
    Ping(),
    Pong(),
)
PEER_MESSAGES: tuple[PeerMessage, ...] = (
    Relay(1, request()),
    Reply(ANSWER),
    Reply(REFUSAL),
    Frame(1, Launch(OPERATION)),
    Frame(2, Pass(OPERATION)),
    Frame(3, Done(OPERATION)),
    Hello("fingerprint", 3),
    Ack(3),
)
FROM_PEER = (
    TO_CLIENT[0],
    TO_CLIENT[1],
    Differs({"topics": "open", "stage": [{"name": "x", "topics": []}]}),
    Say(list(PEER_MESSAGES)),
    Claim("desk-1", KEY.session, "trader", True, False),
    Claimed("desk-1", KEY.session, "somebody has it"),
    Names([Claim("desk-1", KEY.session, "trader", False, True)]),
    Ping(),
    Pong(),
)
GREETINGS = (greeting(token="t" * 40, resumes=True), PeerGreeting(VERSION, 1, "t" * 40, "digest"))
