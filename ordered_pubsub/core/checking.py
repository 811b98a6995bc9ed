"""What can be said at all: one set of bounds for what clients and stages say, and for what a journal holds.

    client ── its door ──> home stage ── link ──> the door of the other stages ──> state machines <── journal
              `check_request`                      `check_message`, `check_operation`              `check_record`
              `check_message`

The same function with the same bounds stands at both doors. So what a client may say, a stage may pass on, and no other stage
refuses what comes of it: nobody can make two stages fall out with each other. What a stage works out from what was said (how far
all its clients are, what they miss together, where a subscription goes on) lies within the same bounds, since it is the least,
the most or a part of it; only positions are sums, and have their own.

What is out of bounds: of a client's request it is a `UsageError`, which refuses the request; of anything else that a client says
it is a `ProtocolError`, for which it is disconnected. A stage that says such a thing has a bug, and must not take the others down
with it. A soft message, which may be lost anyway, is dropped and counted (`driver.Driver`). A durable one, in a numbered frame,
would come again and again: it ends the link, and says whose it is. A record of the journal was within the same bounds when it was
taken: one that is not is damaged.

Rights, levels and who owns what are not looked at here, since that needs to know more than the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from ordered_pubsub.core.filters import TEXT_LENGTH_MAX as FILTER_LENGTH_MAX
from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import (
    EPOCH_MAX,
    VERSION_MAX,
    Acked,
    AckExpected,
    AckSaved,
    AckTaken,
    Answer,
    AskKeys,
    AskNews,
    AskSecrets,
    AskVersion,
    Change,
    ChangeAsk,
    Chunk,
    Done,
    Durable,
    Ended,
    Floors,
    FrameTaken,
    FromSubscriber,
    Holders,
    HomeFloors,
    Input,
    KeepAlive,
    KeepAliveSeen,
    Launch,
    LeaseRenewal,
    LeaseReply,
    LinkAck,
    Locate,
    Located,
    LogItem,
    LogReply,
    LogRequest,
    Nack,
    NackRange,
    News,
    NotArrivedCounts,
    NotReserved,
    Operation,
    Part,
    Pass,
    PeerMessage,
    Progress,
    ProgressReports,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Release,
    Reply,
    Request,
    RequestTaken,
    Reserve,
    Reserved,
    Resume,
    Rotate,
    Secrets,
    SeenAsk,
    SeenReply,
    SessionsAlive,
    TopicRange,
    VersionThere,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.order.registrar import EXPIRING, TOPICS_MAX
from ordered_pubsub.core.topics import TOPIC_LENGTH_MAX, check_topic
from ordered_pubsub.core.transactions import NAME_LENGTH_MAX, check_counts, is_possible
from ordered_pubsub.core.trust.authenticity import DIGEST_BYTES
from ordered_pubsub.errors import ProtocolError, TopicError, UsageError

COUNT_MAX = ENDLESS
"""The last number that an event can have; so many events a topic can have, and a clock can say. Who asks for all asks up to
here."""
POSITION_MAX = 1 << 53
"""More than the counts of as many topics as a subscription may hold."""
SERIAL_MAX = (1 << 63) - 1
"""Sequences of requests, and whatever else comes back as it was said."""
ID_LENGTH_MAX = 512
"""Sessions and subscriptions: a name has up to 128 characters, and there may be one of each in an id."""
REASON_LENGTH_MAX = 1 << 16
CAUSES_MAX = 16
"""More than there are causes why something has not arrived."""
BATCH_EVENTS_MAX = 100_000
PARTS_MAX = 256
SPANS_MAX, RANGES_MAX = 1_000, 10_000
"""Stretches of numbers that a client may ask for in a message, and that its answer may name."""


# -- requests -------------------------------------------------------------------------------------------------------------


def check_request(request: Request) -> None:
    """Raise a `UsageError` that says what is wrong with a request, if anything is."""
    if request.client.startswith(EXPIRING):
        raise UsageError(f"no session is called {request.client:.80}")
    if not request.parts or len(request.parts) > PARTS_MAX:
        raise UsageError(f"a request has 1 to {PARTS_MAX} parts, not {len(request.parts)}")
    _check_chain(request)
    changes = 0
    for part in request.parts:
        if isinstance(part, PublishAsk):
            check_topic(part.topic)
            _check_batch(part)
        else:
            _check_change(part)
            changes += 1
    if request.is_transaction:
        _check_transaction(request)
    elif changes > 1:
        raise UsageError("a request changes at most one subscription; a transaction may change several")


def _check_transaction(request: Request) -> None:
    """Its events are kept, or one of them might be void; and there are no more than subscribers can wait for."""
    counts: dict[str, int] = {}
    for part in request.parts:
        if isinstance(part, ChangeAsk):
            check_changes_only(part)
            continue
        if not part.is_kept:
            raise UsageError(
                f"the events of topic {part.topic!r} are not kept, so they cannot be a part of a transaction: give the topic the "
                'level "exactly-once", or publish them beside it'
            )
        counts[part.topic] = counts.get(part.topic, 0) + part.count
    check_counts(counts)


def check_changes_only(ask: ChangeAsk) -> None:
    """Raise a `UsageError` if this is not what a transaction may do to a subscription."""
    _check_change(ask)
    if ask.opens or ask.ends or ask.start is not None or ask.best_effort:
        raise UsageError(
            f"a transaction adds and removes topics of {ask.subscription!r}, and neither begins nor ends it"
        )
    if set(ask.add) & set(ask.remove):
        raise UsageError(
            f"a transaction adds and removes a topic of {ask.subscription!r} in one change: use two, in their order"
        )


def _check_chain(request: Request) -> None:
    sequence = request.sequence
    if not (0 <= request.after < sequence <= SERIAL_MAX and 0 <= request.done <= SERIAL_MAX):
        raise UsageError(
            f"request {sequence} comes after {request.after}, and {request.done} are done; expected a number from 1 on, an "
            f"earlier one, and one from 0 on, none above {SERIAL_MAX}"
        )
    if not 1 <= request.epoch <= EPOCH_MAX:
        raise UsageError(f"a session has an epoch from 1 to {EPOCH_MAX}, not {request.epoch}")
    if len(request.client) > ID_LENGTH_MAX:
        raise UsageError(f"no session is called {request.client:.80}")
    reading = request.reading
    if len(request.identity) > ID_LENGTH_MAX or (
        reading is not None and not all(map(_is_topic, (*reading.allow, *reading.deny)))
    ):
        raise UsageError("nobody can be who asks: a name or a pattern of topics is longer than any")


def _check_count(ask: PublishAsk) -> None:
    if not 1 <= ask.count <= BATCH_EVENTS_MAX:
        raise UsageError(f"a batch has 1 to {BATCH_EVENTS_MAX} events, not {ask.count}")


def _check_batch(ask: PublishAsk) -> None:
    _check_count(ask)
    if not _are_events(ask.chunks, ask.count if ask.is_kept else 0):
        brought = sum(chunk.count for chunk in ask.chunks)
        raise UsageError(
            f"a batch of {ask.count} events on {ask.topic!r} brings {brought} of them to be kept; expected "
            f"{'all' if ask.is_kept else 'none'}, in chunks with the bytes of at least one"
        )
    if not _are_pieces(ask):
        raise UsageError(
            f"the pieces of a batch of {ask.count} events on {ask.topic!r} have so many of them, or digests of so many bytes, as "
            "it cannot be"
        )


def _are_events(chunks: Iterable[Chunk], count: int) -> bool:
    """Whether these are so many events, and the bytes of all are there."""
    for chunk in chunks:
        if chunk.count < 1 or not chunk.data:
            return False
        count -= chunk.count
    return count == 0


def _check_change(ask: ChangeAsk) -> None:
    if len(ask.add) + len(ask.remove) > TOPICS_MAX:
        raise TopicError(f"at most {TOPICS_MAX} topics can be added or removed at once")
    for topic in (*ask.add, *ask.remove):
        check_topic(topic)
    if ask.weight not in (0, 1, 2):
        raise UsageError(f"the weight of a subscription is 0, 1 or 2, not {ask.weight}")
    if not 0 <= ask.opens <= EPOCH_MAX:
        raise UsageError(f"a subscription with a name is opened in an epoch from 1 to {EPOCH_MAX}, not {ask.opens}")
    if not 0 < len(ask.subscription) <= ID_LENGTH_MAX:
        raise UsageError(f"the id of a subscription has 1 to {ID_LENGTH_MAX} characters, not {len(ask.subscription)}")
    if ask.start is not None:
        _check_start(ask.start)
    if ask.where:
        _check_filters(ask.where)


def _check_start(start: Mapping[str, int]) -> None:
    if len(start) > TOPICS_MAX:
        raise TopicError(f"a subscription begins at a clock of at most {TOPICS_MAX} topics, not {len(start)}")
    for topic, count in start.items():
        check_topic(topic)
        if not 0 <= count <= COUNT_MAX:
            raise UsageError(f"a subscription begins after so many events of {topic!r}: 0 to {COUNT_MAX}, not {count}")


def _check_filters(where: Mapping[str, str]) -> None:
    if len(where) > TOPICS_MAX:
        raise TopicError(f"a change brings filters of at most {TOPICS_MAX} topics, not {len(where)}")
    for topic, text in where.items():
        check_topic(topic)
        if len(text) > FILTER_LENGTH_MAX:
            raise UsageError(f"a filter has at most {FILTER_LENGTH_MAX} characters, not {len(text)}")


# -- operations -----------------------------------------------------------------------------------------------------------


def check_operation(operation: Operation, stages: int) -> None:
    """Raise a `ProtocolError` for an operation that cannot be: ranks that no stage has, numbers that no event can have, events
    that are not as many as it says.
    """
    _check_journey(operation, stages)
    for part in operation.parts:  # once it has its numbers, its owner has taken the events out
        if isinstance(part, Publication) and not _are_events(
            part.chunks, part.count if part.is_kept and not part.first else 0
        ):
            raise ProtocolError(f"operation {operation.identity} does not bring the events of {part!r:.500}")


def check_durable(message: Durable, stages: int) -> None:
    """Raise a `ProtocolError` for something between stages that cannot be."""
    if isinstance(message, (Launch, Pass, Done)):
        check_operation(message.operation, stages)
    else:
        check_reservation(message, stages)


def check_reservation(message: Reserve | Reserved | NotReserved | Release, stages: int) -> None:
    """Raise a `ProtocolError` for something about a transaction that cannot be."""
    whose = f"transaction {message.transaction!r:.200}"
    if not 0 < len(message.transaction) <= NAME_LENGTH_MAX:
        raise ProtocolError(f"no transaction is called {message.transaction:.80}…")
    if isinstance(message, Reserve):
        places = [place for place, _ in message.asks]
        is_fit = 0 <= message.coordinator < stages and _is_text(message.identity)
        try:
            for _, ask in message.asks:
                check_changes_only(ask)
        except UsageError as error:
            raise ProtocolError(f"{whose} changes what cannot be: {error}") from error
    elif isinstance(message, Reserved):
        places, is_fit = [place for place, _ in message.changes], all(0 <= rank < stages for rank in message.meets)
        _check_parts([change for _, change in message.changes], whose)
    elif isinstance(message, NotReserved):
        places, is_fit = [0], _is_text(message.code) and len(message.reason) <= REASON_LENGTH_MAX
    else:
        places, is_fit = [0], True
    if not is_fit or not places or sorted(set(places)) != places or not 0 <= places[0] <= places[-1] < PARTS_MAX:
        raise ProtocolError(f"{whose} says what cannot be: {message!r:.500}")


def _check_journey(operation: Operation, stages: int) -> None:
    top, bottom = operation.top, operation.bottom
    if not (0 <= top <= bottom < stages and 0 <= operation.home < stages and 0 <= operation.asked < stages):
        raise ProtocolError(
            f"operation {operation.identity} goes from stage {bottom} to {top}, for {operation.asked} and {operation.home}; "
            f"expected ranks from 0 to {stages - 1}, and to go up"
        )
    # An internal request has a sequence of its own, and an epoch; whose it is may be one of ours (`EXPIRING`).
    if not (1 <= operation.sequence <= SERIAL_MAX and 1 <= operation.epoch <= EPOCH_MAX and _is_id(operation.client)):
        raise ProtocolError(f"operation {operation.identity!r:.200} was asked for by nobody who can be")
    if len(operation.transaction) > NAME_LENGTH_MAX:
        raise ProtocolError(f"operation {operation.identity} is called transaction {operation.transaction:.80}…")
    _check_parts(operation.parts, f"operation {operation.identity}")


def _check_parts(parts: Iterable[Part], whose: str) -> None:
    for part in parts:
        fits = _is_publication(part) if isinstance(part, Publication) else _is_change(part)
        if not fits or not are_counts(part.entries):
            raise ProtocolError(f"{whose} has numbers that cannot be: {part!r:.500}")


def _is_publication(part: Publication) -> bool:
    return (
        0 < part.count <= BATCH_EVENTS_MAX
        and 0 <= part.first <= COUNT_MAX - part.count
        and 0 <= part.place <= SERIAL_MAX
        and _is_time(part.published_at)
        and _is_topic(part.topic)
        and all(0 <= mark.version <= VERSION_MAX and _is_text(mark.subscription) for mark in part.marks)
        and _are_pieces(part)
        and _is_text(part.publisher)
    )


def _are_pieces(part: PublishAsk | Publication) -> bool:
    """Whether the events of a batch can share tags like that."""
    pieces, count = part.pieces, part.count
    if pieces:
        if pieces != (count,) and (len(pieces) > count or min(pieces) < 1 or sum(pieces) != count):
            return False
        count = len(pieces)
    return len(part.digests) in (0, DIGEST_BYTES * count)


def _is_change(part: Change) -> bool:
    return (
        0 < part.version <= VERSION_MAX
        and part.weight in (0, 1, 2)
        and _is_id(part.subscription)
        and all(map(_is_topic, part.old))
        and all(map(_is_topic, part.new))
        and all(len(text) <= FILTER_LENGTH_MAX for text in part.where.values())
        and (part.resume is None or _is_resume(part.resume))
    )


def _is_resume(resume: Resume) -> bool:
    return (
        0 <= resume.version <= VERSION_MAX
        and 0 <= resume.position <= POSITION_MAX
        and are_counts(resume.clock)
        and (resume.start is None or are_counts(resume.start))
        and all(
            change.resume is None and _is_change(change) and are_counts(change.entries) for change in resume.changes
        )
    )


# -- everything else ------------------------------------------------------------------------------------------------------


def check_message(message: FromSubscriber | PeerMessage, stages: int) -> None:
    """Raise a `ProtocolError` if a message that may be lost says what cannot be, whoever says it."""
    try:
        fits = _fits(message, stages)
    except UsageError as error:
        raise ProtocolError(f"a request was passed on that cannot be: {error}") from error
    if not fits:
        raise ProtocolError(
            f"what cannot be was said: {message!r:.300} (numbers are 1 to {COUNT_MAX}, counts from 0 on, ranks 0 to {stages - 1})"
        )


def _fits(message: FromSubscriber | PeerMessage, stages: int) -> bool:
    if isinstance(message, LogReply):
        return _is_told(message)
    if isinstance(message, (HomeFloors, Floors, AckExpected, Located)):
        return _is_how_far(message)
    if isinstance(message, (Nack, LogRequest)):
        return _is_id(getattr(message, "subscription", "-")) and all(map(_is_want, message.wants))
    if isinstance(message, Progress):
        return _is_follows(message)
    if isinstance(message, ProgressReports):
        return all(map(_is_follows, message.news))
    if isinstance(message, (Acked, AckSaved, Ended)):
        return _is_of_named(message)
    if isinstance(message, (AskNews, News, AskVersion, VersionThere)):
        return _is_of_news(message)
    if isinstance(message, (LeaseRenewal, LeaseReply, SeenAsk, SeenReply, Holders, VoidAsk, VoidDecision)):
        return _is_of_voids(message, stages)
    if isinstance(message, (KeepAlive, Locate)):
        is_fit = _is_id(message.session) and _is_serial(message.serial)
        return is_fit and (
            isinstance(message, KeepAlive) or (_is_time(message.at) and all(map(_is_topic, message.topics)))
        )
    if isinstance(message, NotArrivedCounts):
        return _is_id(message.session) and len(message.counts) <= CAUSES_MAX and _are_causes(message.counts)
    if isinstance(message, (SessionsAlive, KeepAliveSeen)):
        return all(_is_id(session) and _is_serial(serial) for session, serial in message.sessions.items())
    if isinstance(message, Relay):
        check_request(message.request)
        return 0 <= message.home < stages and (message.refusal is None or _is_answer(message.refusal))
    if isinstance(message, Reply):
        return _is_answer(message.answer)
    if isinstance(message, (AskKeys, AskSecrets, Rotate, Secrets)):
        return _is_of_keys(message)
    return _is_serial(message.received if isinstance(message, LinkAck) else getattr(message, "round", 0))


def _are_causes(counts: Mapping[str, int]) -> bool:
    return all(_is_text(cause) and 0 <= count <= COUNT_MAX for cause, count in counts.items())


def _is_told(told: LogReply) -> bool:
    return (
        _is_topic(told.topic)
        and 1 <= told.first <= COUNT_MAX
        and 0 <= told.read_to <= COUNT_MAX
        and 0 <= told.floor <= COUNT_MAX
        and -1 <= told.given <= COUNT_MAX
        and len(told.where) <= FILTER_LENGTH_MAX
        and all(map(_is_recalled, told.items))
    )


def _is_recalled(item: LogItem) -> bool:
    return (
        1 <= item.batch <= item.first <= item.last <= COUNT_MAX
        and 0 <= item.place <= SERIAL_MAX
        and _is_time(item.published_at)
        and are_counts(item.entries)
        and all(0 <= mark.version <= VERSION_MAX for mark in item.marks)
        and (not item.chunks or sum(chunk.count for chunk in item.chunks) == item.last - item.first + 1)
        and all(chunk.count > 0 for chunk in item.chunks)
        and (item.transaction is None or is_possible(item.transaction))
    )


def _is_how_far(message: HomeFloors | Floors | AckExpected | Located) -> bool:
    if isinstance(message, Located):
        return _is_id(message.session) and _is_serial(message.serial) and are_counts(message.numbers)
    if isinstance(message, HomeFloors):
        return all(_is_topic(topic) and 0 <= (count or 0) <= COUNT_MAX for topic, count in message.acked.items())
    if isinstance(message, Floors):
        return _is_serial(message.round) and are_counts(message.acked)
    return are_counts(message.counts)


def _is_follows(follows: Progress) -> bool:
    return _is_id(follows.subscription) and 0 <= follows.version <= VERSION_MAX and are_counts(follows.acked)


def _is_of_named(message: Acked | AckSaved | Ended) -> bool:
    if not _is_id(message.subscription) or not _is_id(message.session):
        return False
    if isinstance(message, Ended):
        return _is_text(message.code) and len(message.reason) <= REASON_LENGTH_MAX
    if not _is_serial(message.serial):
        return False
    return isinstance(message, AckSaved) or (
        0 <= message.version <= VERSION_MAX
        and 0 <= message.position <= POSITION_MAX
        and _is_text(message.identity)
        and len(message.clock) <= 2 * TOPICS_MAX
        and are_counts(message.clock)
    )


def _is_of_news(message: AskNews | News | AskVersion | VersionThere) -> bool:
    if not _is_id(message.subscription) or not _is_id(message.session):
        return False
    if isinstance(message, News):
        return all(
            change.resume is None and _is_change(change) and are_counts(change.entries) for change in message.changes
        )
    if isinstance(message, AskNews):
        return 0 <= message.version <= VERSION_MAX and _is_text(message.identity)
    if isinstance(message, AskVersion):
        return _is_topic(message.topic) and _is_text(message.identity)
    return _is_topic(message.topic) and -1 <= message.version <= VERSION_MAX


def _is_of_voids(
    message: LeaseRenewal | LeaseReply | SeenAsk | SeenReply | Holders | VoidAsk | VoidDecision,
    stages: int,
) -> bool:
    spans: list[TopicRange] = []
    ranges: list[tuple[int, int]] = []
    ranks, serials, sessions, topics = [0], [0], [""], ["-"]
    if isinstance(message, LeaseRenewal):
        spans, ranks, serials, sessions = (
            message.asks,
            message.ranks,
            [message.serial, message.sequence],
            [message.session],
        )
    elif isinstance(message, LeaseReply):
        spans, ranks, serials, sessions = message.voids, [message.rank], [message.serial], [message.session]
    elif isinstance(message, VoidAsk):
        spans, sessions = message.spans, [message.session]
    elif isinstance(message, SeenAsk):
        ranges, ranks, serials, topics = message.numbers, [message.rank], [message.serial], [message.topic]
        sessions = [message.session]
    elif isinstance(message, SeenReply):
        ranges, ranks, serials, sessions = message.seen, [message.rank], [message.serial], message.sessions
    elif isinstance(message, Holders):
        serials, sessions = [message.serial], message.sessions
    else:
        ranges, topics, sessions = message.published, [message.topic], [message.session]
        if not all(map(_is_recalled, message.voids)):
            return False
    return (
        all(_is_topic(span.topic) and 1 <= span.first <= span.last <= COUNT_MAX for span in spans)
        and all(1 <= first <= last <= COUNT_MAX for first, last in ranges)
        and all(0 <= rank < stages for rank in ranks)
        and len(set(ranks)) == len(ranks)
        and all(map(_is_serial, serials))
        and all(map(_is_text, sessions))
        and all(map(_is_topic, topics))
    )


def _is_of_keys(message: AskKeys | AskSecrets | Rotate | Secrets) -> bool:
    if isinstance(message, Secrets):
        keys = message.keys
        return (
            0 <= keys.epoch <= EPOCH_MAX
            and max(len(keys.system), len(keys.secret)) <= ID_LENGTH_MAX
            and _is_time(keys.begun_at)
            and all(0 <= epoch <= EPOCH_MAX and _is_time(seconds) for epoch, seconds in keys.old.items())
        )
    is_fit = isinstance(message, (AskSecrets, Rotate)) or (
        _is_id(message.session) and all(map(_is_topic, message.topics))
    )
    return is_fit and 0 <= message.epoch <= EPOCH_MAX


def _is_answer(answer: Answer | Refusal) -> bool:
    if not (_is_id(answer.client) and _is_serial(answer.sequence)):
        return False
    if isinstance(answer, Refusal):
        return _is_text(answer.code) and len(answer.reason) <= REASON_LENGTH_MAX and 0 <= answer.opened <= EPOCH_MAX
    _check_parts(answer.parts, "an answer")
    return answer.transaction is None or is_possible(answer.transaction)


# -- the smallest things --------------------------------------------------------------------------------------------------


def _is_want(want: NackRange) -> bool:
    return _is_topic(want.topic) and 1 <= want.first <= want.last <= COUNT_MAX and len(want.where) <= FILTER_LENGTH_MAX


def are_counts(counts: Mapping[str, int]) -> bool:
    """Whether these can be a clock, or entries of a timestamp."""
    return all(0 <= count <= COUNT_MAX and _is_topic(topic) for topic, count in counts.items())


def _is_topic(topic: str) -> bool:
    """Whether it may be one, by its length: who owns it looks at the rest."""
    return 0 < len(topic) <= TOPIC_LENGTH_MAX


def _is_id(text: str) -> bool:
    return 0 < len(text) <= ID_LENGTH_MAX


def _is_text(text: str) -> bool:
    return len(text) <= ID_LENGTH_MAX


def _is_serial(number: int) -> bool:
    return 0 <= number <= SERIAL_MAX


def _is_time(seconds: float) -> bool:
    return isfinite(seconds)


# -- records --------------------------------------------------------------------------------------------------------------


def check_record(event: Input, stages: int) -> None:
    """Raise an error if a journalled input is out of the bounds that it was within when it was taken.

    Of the events that it brought, it has what is not in the log.
    """
    if isinstance(event, RequestTaken):
        _check_chain(event.request)
        for part in event.request.parts:
            if isinstance(part, PublishAsk):
                _check_count(part)
            else:
                _check_change(part)
    elif isinstance(event, FrameTaken):
        if isinstance(event.message, (Launch, Pass, Done)):
            _check_journey(event.message.operation, stages)
        else:
            check_reservation(event.message, stages)
    elif isinstance(event, AckTaken) and not _is_of_named(event.acked):
        raise ProtocolError(f"what cannot be was acknowledged: {event.acked!r:.300}")
