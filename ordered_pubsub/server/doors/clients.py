"""Clients at home at this stage.

A client's requests are checked against what its identity may do, for every topic that they name, and go to the stage in the
order in which they came. One that the stage has taken before is not judged again: it has its answer, whatever holds now. A
client that does not read what it is sent is not waited for: when more is waiting than is allowed, it is disconnected with the
reason. Nothing is lost by that, since it asks again what it has no answer to.

What it says is looked at frame by frame, in its order. As long as its identity has not had its share of this moment, that is at
once; else what has come waits for its turn (`Node.turns`), and when much waits, no more is read from its connection. So a
client that says more than a stage can handle waits for itself.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.config.kinds import NAME
from ordered_pubsub.config.schema import IdentitySection
from ordered_pubsub.core.checking import COUNT_MAX, PARTS_MAX, RANGES_MAX, SPANS_MAX, are_counts, check_message
from ordered_pubsub.core.log.questions import (
    Bound,
    Bounded,
    Find,
    FoundTopics,
    FromReader,
    Read,
    Rows,
    ToReader,
    Trace,
    Traced,
    Unread,
)
from ordered_pubsub.core.messages import (
    Acked,
    Answer,
    AskKeys,
    AskNews,
    AskVersion,
    ChangeAsk,
    Ended,
    FromSubscriber,
    KeepAlive,
    Keys,
    LeaseRenewal,
    Locate,
    Nack,
    NotArrivedCounts,
    Progress,
    PublishAsk,
    Refusal,
    Request,
    SeenAsk,
    SeenReply,
    ToSession,
    VoidAsk,
    changes_of,
    find_change,
)
from ordered_pubsub.core.order.registrar import TOPICS_MAX
from ordered_pubsub.core.stage.turns import Work
from ordered_pubsub.core.topics import check_pattern
from ordered_pubsub.core.trust.keys import TOPICS_ASKED_MAX
from ordered_pubsub.errors import FilterError, ProtocolError, TopicError
from ordered_pubsub.server.doors._holdings import Holdings
from ordered_pubsub.server.doors._verdicts import FINE, FORBIDDEN, Verdicts
from ordered_pubsub.server.doors.access import has_lost_subscribe
from ordered_pubsub.server.doors.admission import Visitor
from ordered_pubsub.server.doors.rules import Rules
from ordered_pubsub.server.stage.choosing import read_filter
from ordered_pubsub.server.stage.node import Node
from ordered_pubsub.wire.channel import Channel, Owner
from ordered_pubsub.wire.pack import signing_request
from ordered_pubsub.wire.protocol import (
    AskUnread,
    Inquire,
    Ping,
    Pong,
    Rejected,
    Report,
    Tell,
    TurnKeys,
    a_request,
    decode,
    encode,
    from_client_unread,
)
from ordered_pubsub.wire.sessions import NAMELESS, publisher_of
from ordered_pubsub.wire.weighing import check_weight

SLICE_REQUESTS, SLICE_BYTES = 64, 1 << 14
"""So many requests, or about so many bytes of them, are looked at in one step."""
WAITING_BYTES_MAX = 1 << 17
"""When so much of a connection waits to be looked at, no more is read from it."""
FILTERS_MAX, CHANGE_FILTERS_MAX = 1_000, 100
"""So many different filters one client may ask by on a connection, and one change may bring."""
SUBSCRIPTION_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
SUBSCRIPTION_LENGTH_MAX = 64
"""How much the id of a subscription may have after its client's session."""

_ASK = b"\xa3ask"
_PING, _PONG = encode(Ping()), encode(Pong())


@attrs.define(eq=False)
class ClientConnection(Owner):
    """One client's connection, once it has been let in."""

    channel: Channel
    session: str
    name: str | None
    visitor: Visitor
    node: Node
    rules: Rules
    on_gone: Callable[[ClientConnection], None]
    is_in: bool = False
    """whether it was welcomed, so that it may ask"""
    is_guest: bool = attrs.field(init=False)
    """whether it is not known yet that its name is its own"""
    publisher: str = attrs.field(init=False)
    """what its events carry"""
    _following: dict[str, bool] = attrs.field(factory=dict)
    """subscriptions that have said how far they are"""
    _verdicts: Verdicts = attrs.field(init=False)
    _holdings: Holdings = attrs.field(init=False)
    _waiting: deque[bytes] = attrs.field(factory=deque)
    """frames that were not looked at yet"""
    _is_waiting: bool = False
    """whether they wait for their turn"""
    _reading: dict[int, str] = attrs.field(factory=dict)
    """what it reads of the logs has no answer yet: number → topic, or nothing if it looks for topics"""
    _filters: dict[int, bool] = attrs.field(factory=dict)
    """by which it has asked: their hashes"""

    def __attrs_post_init__(self) -> None:
        self._verdicts = Verdicts(self.session, self.identity, self.rules)
        self._holdings = Holdings(self.identity_name, self.rules)
        self.publisher = publisher_of(self.session, self.name)
        self.is_guest = self.name is not None

    @property
    def identity(self) -> IdentitySection:
        """Who it is, and what it may do."""
        return self.visitor.identity

    @property
    def identity_name(self) -> str:
        """Who it is."""
        return self.visitor.identity.name

    def welcome(self, frame: bytes) -> None:
        """Let it in."""
        self.is_in = True
        self._write(frame)

    @property
    def is_given_its_name(self) -> bool:
        """Whether the configuration gives its name to its identity."""
        return self.name is not None and self.identity.has_name(self.name)

    def become_known(self) -> None:
        """Its name is its own."""
        self.is_guest = False

    def received(self, payloads: list[bytes]) -> None:
        """The client says something."""
        if not self.is_in:
            raise ProtocolError("a greeting was followed by other frames before it had an answer")
        self._waiting.extend(payloads)
        if not self._is_waiting:
            self._is_waiting = True
            self.node.begin(self.identity_name, self, self._look())
        if self._is_waiting:
            self.channel.queued_bytes = sum(map(len, self._waiting))
            if self.channel.queued_bytes > WAITING_BYTES_MAX:
                self.channel.pause()

    def _look(self) -> Work:
        """Look at what has come, a little at each step."""
        try:
            while self._waiting and self.channel.is_open:
                yield from self._look_at(self._waiting.popleft())
                while self.node.is_busy_with(self.identity_name, self.session):
                    yield False
                if self._waiting:
                    yield True
        except ProtocolError as error:
            self.broken(error)
        finally:
            self._is_waiting = False
            self._waiting.clear()
            self.channel.queued_bytes = 0
            self.channel.count_held()
            self.channel.resume()

    def _look_at(self, payload: bytes) -> Work:
        who = f"client {self.session}"
        if payload[1 : 1 + len(_ASK)] != _ASK:
            check_weight(payload, who)
        message = decode(from_client_unread, payload, who)
        if isinstance(message, AskUnread):
            yield from self._look_at_requests(message.requests, who)
        elif isinstance(message, FromSubscriber):
            if isinstance(message, Nack):
                yield from self._check_filters(want.where for want in message.wants)
            yield from self._verdicts.judging(message)
            if self._may_follow(message):
                self.node.handle_subscriber(self.session, self._sayable(message), self.identity_name)
        elif isinstance(message, FromReader):
            self._read(message)
        elif isinstance(message, (Inquire, TurnKeys)):
            self._report(message)
        elif isinstance(message, Ping):
            self._write(_PONG)

    def _look_at_requests(self, found: list[msgspec.Raw], who: str) -> Work:
        """Some requests at each step; one that brings filters by itself, for they take long to read."""
        some: list[Request] = []
        size = 0
        for raw in found:
            check_weight(raw, who)
            request = decode(a_request, raw, who)
            size += len(memoryview(raw))
            changes = changes_of(request.parts)
            for change in changes:
                yield from self._verdicts.judging(change)
            if any(change.where for change in changes):
                yield from self._asking(some)
                unfit = FINE
                for change in changes:
                    unfit = unfit if unfit[0] else (yield from self._unfit_filters(change))
                yield from self._asking([request], unfit)
                some, size = [], 0
            else:
                some.append(request)
            if len(some) >= SLICE_REQUESTS or size >= SLICE_BYTES:
                yield from self._asking(some)
                some, size = [], 0
                yield True
        yield from self._asking(some)

    def _unfit_filters(self, change: ChangeAsk) -> Generator[bool, None, tuple[str, str]]:
        """What is wrong with the filters that a change brings, if anything is: a code and a reason."""
        wheres = dict.fromkeys(change.where.values())
        if len(wheres) > CHANGE_FILTERS_MAX:
            return (
                "limit",
                f"a change brings at most {CHANGE_FILTERS_MAX} different filters (where=), not {len(wheres)}",
            )
        try:
            for where in wheres:
                read_filter(where)
                yield True
        except FilterError as error:
            return ("bad-request", f"subscription {change.subscription!r} has a filter that is none: {error}")
        strange = next((topic for topic in change.where if topic not in change.add), None)
        if strange is not None:
            return ("bad-request", f"a filter is for {strange!r:.300}, and the change does not add that topic")
        return FINE

    def _check_filters(self, wheres: Iterable[str]) -> Work:
        for where in dict.fromkeys(wheres):
            if where and hash(where) not in self._filters:
                if len(self._filters) >= FILTERS_MAX:
                    raise ProtocolError(f"client {self.session} asks by more than {FILTERS_MAX} filters")
                _check_filter(where, f"client {self.session}")
                self._filters[hash(where)] = True
                yield True

    def _asking(self, requests: list[Request], unfit: tuple[str, str] = ("", "")) -> Work:
        if not requests:
            return
        refusals: dict[int, Refusal] = {}
        all_taken: list[Request] = []
        identity = self.identity_name
        for request in requests:
            if request.client != self.session:
                raise ProtocolError(f"a request of {request.client!r} came on the connection of {self.session!r}")
            refusal = request.refused(*unfit) if unfit[0] else self._refusal(request)
            opens = any(change.opens for change in changes_of(request.parts))
            reading = self.identity.reading if opens else None
            taken = replace(request, identity=identity, reading=reading, is_guest=self.is_guest)
            if request.is_transaction:
                taken = replace(taken, parts=tuple(map(self._managed, taken.parts)))
            if refusal is None:
                taken, refusal = yield from self._signing(taken)
            if refusal is not None:
                refusals[request.sequence] = refusal
            all_taken.append(taken)
        self.node.handle_requests(all_taken, refusals)

    def _read(self, message: FromReader) -> None:
        """It wants much of a log: the rights are those of now, and only the owner of a topic has its log."""
        if message.number in self._reading:
            raise ProtocolError(
                f"a reader asked under number {message.number}, which has no answer yet: {message!r:.300}"
            )
        if isinstance(message, Trace):
            self.bring(Traced(message.number, *self.node.traced(self.session)))
            return
        if isinstance(message, Find):
            unfit = next((str(error) for error in map(_pattern_error, message.patterns) if error is not None), "")
            code, reason = ("bad-request", unfit) if unfit else FINE
        else:
            low, high = (message.low, message.high) if isinstance(message, Bound) else (message.first, message.last)
            clock = message.clock if isinstance(message, Bound) else {}
            if not (0 <= low <= high + 1 <= COUNT_MAX + 1 and are_counts(clock)):
                raise ProtocolError(f"a reader asked for numbers that cannot be: {message!r:.300}")
            if isinstance(message, Read) and message.where:
                _check_filter(message.where, f"a reader of {message.topic!r}")
            code, reason = self._verdicts.of("subscribe", message.topic)
            owner = self.node.topology.owner(message.topic) if not code else self.node.rank
            if owner != self.node.rank:
                code, reason = "not-owned", f"topic {message.topic!r} is owned by another stage: {owner}"
        if code:
            self.bring(Unread(message.number, code, reason))
        else:
            self._reading[message.number] = "" if isinstance(message, Find) else message.topic
            self.node.handle_reader(self, message)

    def may_read(self, topic: str) -> bool:
        """Whether it may know of this topic at all."""
        return self._verdicts.may_read(topic)

    def bring(self, message: ToReader) -> None:
        """What it has read, if it may have it now, too."""
        topic = self._reading.pop(message.number, None)
        if isinstance(message, FoundTopics):
            topics = {topic: extent for topic, extent in message.topics.items() if self.may_read(topic)}
            message = replace(message, topics=topics)
        elif topic and isinstance(message, (Rows, Bounded)):
            code, reason = self._verdicts.of("subscribe", topic)
            message = Unread(message.number, code, reason) if code else message
        self._write(encode(message))

    def _may_follow(self, message: FromSubscriber) -> bool:
        """Whether a subscription may ask this, or say it; the rights are those of now, whatever it was allowed before."""
        check_message(message, len(self.node.topology.stages))
        if isinstance(message, Locate):
            return self._may_locate(message)
        if isinstance(message, AskKeys):
            return self._may_ask_for_keys(message)
        if isinstance(message, (KeepAlive, LeaseRenewal, SeenReply, VoidAsk, NotArrivedCounts)):
            return self._may_say(message)
        unfit = self._unfit(message.subscription)
        if unfit:
            raise ProtocolError(unfit)
        if isinstance(message, (Acked, AskNews, AskVersion)):
            if message.session != self.session:
                raise ProtocolError(
                    f"session {self.session!r} spoke of a subscription in the name of {message.session!r}"
                )
            return True
        limits = self.rules.limits
        is_new = message.subscription not in self._following
        if is_new and len(self._following) >= limits.subscriptions_per_client_max:
            excess = f"{limits.subscriptions_per_client_max} subscriptions (limits.subscriptions_per_client_max)"
            return self._end(message.subscription, "limit", f"this client speaks for more than {excess}")
        if isinstance(message, Progress):
            if len(message.acked) > 2 * limits.topics_per_subscription_max:
                excess = f"{limits.topics_per_subscription_max} topics (limits.topics_per_subscription_max)"
                return self._end(message.subscription, "limit", f"it follows more than twice {excess}")
            self._note_following(message)
            topics = list(message.acked)
        else:
            self._following[message.subscription] = True
            topics = [want.topic for want in message.wants]
        denial = self._verdicts.denial(topics)
        return self._end(message.subscription, FORBIDDEN, denial) if denial else True

    def _end(self, subscription: str, code: str, reason: str) -> bool:
        """Tell a subscription why it cannot go on."""
        self._write(encode(Ended(subscription, self.session, code, reason)))
        return False

    def _sayable(self, message: FromSubscriber) -> FromSubscriber:
        """As much of a message as it may say."""
        if isinstance(message, SeenReply) and message.seen:
            topic = self.node.driver.rounds.topic(message)
            return message if topic is not None and self.may_read(topic) else replace(message, seen=[])
        return self._verdicts.sayable(message)

    def _may_say(self, message: KeepAlive | LeaseRenewal | SeenReply | VoidAsk | NotArrivedCounts) -> bool:
        """What is said of numbers whose events nobody keeps is said for the session itself, and is not much."""
        sessions, stretches = _own(message)
        if sessions != [self.session] or stretches > (RANGES_MAX if isinstance(message, SeenReply) else SPANS_MAX):
            raise ProtocolError(f"session {self.session!r} said what it may not say: {message!r:.300}")
        return True

    def _may_locate(self, message: Locate) -> bool:
        if message.session != self.session or len(message.topics) > TOPICS_MAX:
            raise ProtocolError(
                f"session {self.session!r} asked in the name of {message.session!r}, or for too many topics"
            )
        return not self._verdicts.denial(message.topics)

    def _may_ask_for_keys(self, message: AskKeys) -> bool:
        """Whether it may have the keys of any of these topics; of the others it is said why not."""
        if message.session != self.session or len(message.topics) > TOPICS_ASKED_MAX:
            raise ProtocolError(
                f"session {self.session!r} asked for the keys of {len(message.topics)} topics in the name of "
                f"{message.session!r}; expected its own, and up to {TOPICS_ASKED_MAX}"
            )
        verdicts = {topic: self._verdicts.of("subscribe", topic) for topic in message.topics}
        refused = {topic: verdict for topic, verdict in verdicts.items() if verdict is not FINE}
        if refused:
            self._write(encode(Keys(self.session, b"", [], {}, float("inf"), refused=refused)))
        return len(refused) < len(verdicts)

    def _note_following(self, message: Progress) -> None:
        if message.acked or not message.is_all:
            self._following[message.subscription] = True
        else:
            self._following.pop(message.subscription, None)

    def _managed(self, part: PublishAsk | ChangeAsk) -> PublishAsk | ChangeAsk:
        """A part of a transaction; of a change, with whether it may change what is others'."""
        if isinstance(part, PublishAsk):
            return part
        client = part.subscription.rpartition("//")[0]
        return replace(part, is_managed=bool(client) and self.identity.may("manage", client))

    def _refusal(self, request: Request) -> Refusal | None:
        """Why a request may not be asked, if so."""
        refusal = self._verdicts.refuse(request)
        ask = None if request.is_transaction else find_change(request.parts)
        if refusal is not None or ask is None or len(request.parts) > PARTS_MAX:
            return refusal
        unfit = self._unfit(ask.subscription)
        if unfit:
            return request.refused("bad-request", unfit)
        excess = self._holdings.excess(request.sequence, ask)
        return request.refused("limit", excess) if excess else None

    def _signing(self, request: Request) -> Generator[None, None, tuple[Request, Refusal | None]]:
        """What it asks as it is passed on; or why its events are not taken: written by others, or by nobody's rules."""
        return signing_request(request, self.publisher, self._may_sign)

    def _may_sign(self, publisher: str) -> bool:
        """Whether a name that it has not taken is its identity's all the same, since it was given to that."""
        return NAME.test(publisher) and not publisher.startswith(NAMELESS) and self.identity.has_name(publisher)

    def become(self, identity: IdentitySection) -> None:
        """Go on under the rights that its identity has now.

        Its subscriptions to what it may not have any more end at once. What is on its way already cannot be looked at again: if
        there is any of it, and a right is gone, the client has to connect anew, and asks again for what it still may have.
        """
        before = self.identity
        self.visitor = attrs.evolve(self.visitor, identity=identity)
        self._verdicts.become(identity)
        if not has_lost_subscribe((before,), (identity,)):
            return
        if self.channel.unsent_bytes:
            self.channel.abort("its rights have changed, and what waited to be sent was read by other ones")
            return
        followed = self.node.driver.hosting.followed_by(self.session)
        held = self._holdings.subscriptions
        for subscription in dict.fromkeys((*held, *followed)):
            denial = self._verdicts.denial((*held.get(subscription, ()), *followed.get(subscription, ())))
            if denial:
                self._end(subscription, FORBIDDEN, denial)

    def _unfit(self, subscription: str) -> str:
        """What is wrong with an id. Others know a client's session, so a subscription's id must be its client's."""
        if self.name is not None and subscription.startswith(f"{self.name}//"):
            is_fit = SUBSCRIPTION_NAME.fullmatch(subscription[len(self.name) + 2 :])
            return "" if is_fit else f"a subscription's name fits {SUBSCRIPTION_NAME.pattern}"
        session, separator, rest = subscription.rpartition("/")
        fits = rest.isascii() and rest.isalnum() and len(rest) <= SUBSCRIPTION_LENGTH_MAX
        if session != self.session or not separator or not fits:
            return (
                f"a subscription's id is its client's session, a slash, and 1 to {SUBSCRIPTION_LENGTH_MAX} ASCII letters or "
                f"digits, as in '{self.session}/1'"
            )
        return ""

    def _report(self, message: Inquire | TurnKeys) -> None:
        if not self.identity.may("administer"):
            wanted = "see how the stage is" if isinstance(message, Inquire) else "rotate keys"
            reason = f"identity {self.identity.name!r} may not {wanted}: it needs the right 'administer'"
            self._write(encode(Report(message.number, {}, reason)))
        elif isinstance(message, Inquire):
            self._write(encode(Report(message.number, self.rules.report())))
        else:
            self._write(encode(Report(message.number, {"key_epoch": self.node.rotate_keys()})))

    def send_answers(self, answers: list[Answer | Refusal]) -> None:
        """Bring answers."""
        self._write(encode(Tell(answers)))

    def send_messages(self, messages: list[ToSession]) -> None:
        """Bring what its subscriptions miss: as much of it as it may have now, whatever it might have when it asked."""
        allowed = [message for message in map(self._readable, messages) if message is not None]
        if allowed:
            self._write(b"".join(map(encode, allowed)))

    def _readable(self, message: ToSession) -> ToSession | None:
        """As much of a message as it may have now."""
        found = self._verdicts.readable(message)
        if found is None and isinstance(message, SeenAsk):  # whatever it has seen, it has nothing to say of it
            self.node.handle_subscriber(self.session, SeenReply(message.serial, message.rank, [self.session], []))
        return found

    def ask_for_a_sign(self) -> None:
        """It has been silent."""
        self._write(_PING)

    def _write(self, frame: bytes) -> None:
        channel = self.channel
        channel.send(frame)
        if channel.is_clogged:
            self.leave(
                "slow",
                f"more than {channel.buffered_bytes_max} bytes (limits.buffered_bytes_max) waited for this client to read them; "
                "nothing is lost, it asks again",
            )
        else:
            self.rules.sent(self.identity_name, channel)

    def is_late(self, now: float) -> bool:
        """Whether a frame has begun so long ago that it should be here."""
        since = self.channel.half_since
        return since is not None and not self.channel.is_paused and now - since > self.rules.limits.frame_s

    def leave(self, code: str, reason: str) -> None:
        """Disconnect the client, with the reason. One that does not read for a second more never sees it."""
        self.channel.close(reason, encode(Rejected(code, reason)))

    def broken(self, error: ProtocolError) -> None:
        """The client sent what it must not."""
        self.leave("bad-frame", str(error))

    def lost(self, reason: str) -> None:
        """The client is gone."""
        self.node.forget(self.identity_name, self)
        self._holdings.forget()
        self._waiting.clear()
        self.on_gone(self)


def _own(message: KeepAlive | LeaseRenewal | SeenReply | VoidAsk | NotArrivedCounts) -> tuple[list[str], int]:
    """For which sessions a message speaks, and of how many stretches of numbers."""
    if isinstance(message, SeenReply):
        return message.sessions, len(message.seen)
    if isinstance(message, (KeepAlive, NotArrivedCounts)):
        return [message.session], 0
    return [message.session], len(message.asks if isinstance(message, LeaseRenewal) else message.spans)


def _pattern_error(pattern: str) -> TopicError | None:
    try:
        check_pattern(pattern)
    except TopicError as error:
        return error
    return None


def _check_filter(where: str, who: str) -> None:
    try:
        read_filter(where)
    except FilterError as error:
        raise ProtocolError(f"{who} asks by a filter that is none: {error}") from None
