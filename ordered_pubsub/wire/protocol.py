"""What clients and stages, and stages among themselves, say on a connection (docs/wire.md).

    client                     stage                       stage                    stage
      │ ── ClientGreeting ──────> │                          │ ── PeerGreeting ──────> │
      │ <── Welcome | Rejected ── │                          │ <── Welcome | Rejected  │
      │ ── Ask ─────────────────> │                          │ <── Say ──────────────> │
      │ <── Tell ──────────────── │                          │ <── Claim, Claimed ───> │
      │                           │                          │ <── Names ────────────> │

Each message is a msgpack array whose first element names it. A reader ignores elements that it does not know at the end of
an array, so messages can grow; what cannot be read that way gets another `VERSION`, which the greeting carries.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from ordered_pubsub.core.checking import ID_LENGTH_MAX, REASON_LENGTH_MAX
from ordered_pubsub.core.liveness.lease import LEASE_S
from ordered_pubsub.core.liveness.lifeline import SESSION_TTL_S
from ordered_pubsub.core.log.questions import FromReader, ToReader
from ordered_pubsub.core.messages import (
    Answer,
    FromSubscriber,
    Hello,
    LinkFrame,
    PeerMessage,
    Refusal,
    Request,
    ToSession,
)
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.framing import UNREADABLE, frame

VERSION = 4

REQUESTS_MAX = 4_096
"""How many requests one frame may hold."""

CLAIMS_MAX = 1_000_000
"""So many names the clients of one home stage may have."""
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=ID_LENGTH_MAX)]

_Message = TypeVar("_Message")


class _Base(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message: an array that begins with its name."""


class ClientGreeting(_Base, frozen=True, tag="client"):
    """A client's first frame. Who knows the `secret` of a session may go on with it (`wire.sessions`)."""

    version: int
    session: str
    secret: bytes
    name: str | None
    token: str
    resumes: bool

    def __repr__(self) -> str:
        return (
            f"ClientGreeting(version={self.version}, session={self.session!r}, name={self.name!r}, …)"  # and no secrets
        )


class PeerGreeting(_Base, frozen=True, tag="peer"):
    """A stage's first frame to another stage. `digest` stands for all that their configurations must have in common."""

    version: int
    rank: int
    token: str
    digest: str

    def __repr__(self) -> str:
        return f"PeerGreeting(version={self.version}, rank={self.rank}, …)"  # and no token


class Differs(_Base, frozen=True, tag="differs"):
    """The digests of two stages differ: each sends the other what its configuration says, and then says in what they do."""

    common: dict[str, Any]


class Welcome(_Base, frozen=True, tag="welcome"):
    """The stage lets the other side in."""

    version: int
    stage: str
    topology: list[list[Any]]
    heartbeat_s: float
    """whoever has heard nothing for three times as long gives the connection up"""
    payload_bytes_max: int
    addresses: list[str]
    """where clients reach the stages of this system, as far as they say"""
    frame_bytes_max: int
    """what the stage takes in one frame"""
    levels: list[list[str]] = []
    """patterns of topics, and what these give (`core.levels`)"""
    session_ttl_s: float = SESSION_TTL_S
    lease_s: float = LEASE_S
    """how long the stages wait for who is silent (`core.liveness.times`)"""
    tags: bool = True
    """whether what comes from the broker has tags (`core.trust.authenticity`)"""


class Rejected(_Base, frozen=True, tag="rejected"):
    """The stage does not let the other side in, or not any longer. `code` is one of `REJECTIONS`."""

    code: str
    reason: str


REJECTIONS = {
    "version": "the two sides speak different versions of this protocol",
    "bad-greeting": "the first frame was not a greeting",
    "denied": "no valid token or certificate was shown, or it does not allow this",
    "name-in-use": "another client has that name",
    "limit": "there are too many connections, or names of one identity",
    "unavailable": "the stage cannot do this now; trying again helps",
    "mismatch": "the configurations of two stages differ",
    "draining": "the stage is about to stop",
    "bad-frame": "a frame was not what this protocol allows",
    "slow": "more was waiting to be sent to this client than is allowed",
}


class Ask(_Base, frozen=True, tag="ask"):
    """A client asks, in this order."""

    requests: Annotated[list[Request], msgspec.Meta(max_length=REQUESTS_MAX)]


class AskUnread(_Base, frozen=True, tag="ask"):
    """The same as a stage takes it: each request is read when its turn comes."""

    requests: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=REQUESTS_MAX)]


class Tell(_Base, frozen=True, tag="tell"):
    """A stage answers."""

    answers: list[Answer | Refusal]


class Inquire(_Base, frozen=True, tag="inquire"):
    """A client wants to know how the stage is."""

    number: int


class TurnKeys(_Base, frozen=True, tag="turn-keys"):
    """A client wants another epoch of keys. The `report` says which one is used until then."""

    number: int


class Report(_Base, frozen=True, tag="report"):
    """How the stage is, as plain data; or, in `refusal`, why it does not say."""

    number: int
    data: dict[str, Any]
    refusal: str = ""


class Ping(_Base, frozen=True, tag="ping"):
    """The other side is to say that it is there."""


class Pong(_Base, frozen=True, tag="pong"):
    """It is."""


class Say(_Base, frozen=True, tag="say"):
    """What one stage's state machine says to another's, in this order."""

    messages: list[PeerMessage]


class Claim(_Base, frozen=True, tag="claim"):
    """A home stage asks the keeper of a name for it (`release` false), or gives it back.

    `resumes` says that the session has been a client of this system before, and so had the name.
    """

    name: Id
    session: Id
    identity: Text
    release: bool = False
    resumes: bool = False
    is_given: bool = False
    """whether the configuration gives the name to the identity, whoever had it before"""


class Claimed(_Base, frozen=True, tag="claimed"):
    """The keeper's answer: granted, which it tells all stages, or the reason why not."""

    name: Id
    session: Id
    refusal: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
    identity: Text = ""
    code: Text = ""
    """of the refusal, one of `REJECTIONS`"""


class NamesGranted(_Base, frozen=True, tag="names"):
    """All the names of one keeper that clients of this home stage have: so the keeper knows when a link is there again."""

    claims: Annotated[list[Claim], msgspec.Meta(max_length=CLAIMS_MAX)]


Greeting = ClientGreeting | PeerGreeting
FromClientUnread = AskUnread | FromSubscriber | FromReader | Inquire | TurnKeys | Ping | Pong
FromClient = Ask | FromSubscriber | FromReader | Inquire | TurnKeys | Ping | Pong
ToClient = Welcome | Rejected | Tell | ToSession | ToReader | Report | Ping | Pong
FromPeer = Welcome | Rejected | Differs | Say | Claim | Claimed | NamesGranted | Ping | Pong

_encoder = msgspec.msgpack.Encoder()
greetings: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
from_client_unread: msgspec.msgpack.Decoder[FromClientUnread] = msgspec.msgpack.Decoder(FromClientUnread)
a_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
from_peer: msgspec.msgpack.Decoder[FromPeer] = msgspec.msgpack.Decoder(FromPeer)


class _Said(_Base, frozen=True, tag="say"):
    """`Say`, before its messages are read."""

    messages: list[msgspec.Raw]


_said = msgspec.msgpack.Decoder(_Said)
_peer_message: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_elements = msgspec.msgpack.Decoder(list[msgspec.Raw])
_OF_NAMES = {_encoder.encode(kind) for kind in ("claim", "claimed", "names")}
_NOT_TO_BE_LOST = {_encoder.encode(kind.__struct_config__.tag) for kind in (LinkFrame, Hello)}


def decode_said(payload: bytes, who: str) -> tuple[Say, list[ProtocolError]]:
    """Those messages of a `Say` that can be read, and what is wrong with the others.

    Raises a `ProtocolError` if it is no such thing, or if one of the others must not get lost.
    """
    readable: list[PeerMessage] = []
    errors: list[ProtocolError] = []
    for one in decode(_said, payload, who).messages:
        try:
            readable.append(decode(_peer_message, one, who))
        except ProtocolError as error:
            if _kind_of(one, who) in (b"", *_NOT_TO_BE_LOST):
                raise
            errors.append(error)
    return Say(readable), errors


def decode_from_peer(payload: bytes, who: str) -> tuple[FromPeer, list[ProtocolError]]:
    """What a stage says, as far as it can be read, and what is wrong with the rest.

    Raises a `ProtocolError` if that is not known here, or must not get lost. What is said of names is said again.
    """
    try:
        return decode(from_peer, payload, who), []
    except ProtocolError as error:
        if _kind_of(payload, who) in _OF_NAMES:
            return Say([]), [error]
        return decode_said(payload, who)


def _kind_of(message: bytes | msgspec.Raw, who: str) -> bytes:
    """Its name, as it is written; empty if it has none."""
    elements = decode(_elements, message, who)
    return bytes(elements[0]) if elements else b""


def encode(message: _Base | FromSubscriber | ToSession | FromReader | ToReader) -> bytes:
    """A message as a frame."""
    return frame(_encoder.encode(message))


def decode(decoder: msgspec.msgpack.Decoder[_Message], payload: bytes | msgspec.Raw, who: str) -> _Message:
    """The message in a frame's payload, or a `ProtocolError` that says what is wrong with it."""
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise ProtocolError(
            f"{who} sent a frame of {len(memoryview(payload))} bytes that is not a message known here: {error}"
        ) from error
