"""A range of the logs in the one order: what to ask the topics' owners for, what their answers give, which batch is next.

The rule is that of `ordered_pubsub.testing.history`. Of one owner's topics the order is that of its journal, so what is here of
them is sorted by its place, up to the last place that is known of all of them. Between owners a batch waits until what its
timestamp names has come; of those that wait for nothing the earliest by its time, then by its topic, is next. A transaction is
read in one piece, and begins when all of it can follow. The first timestamp of each topic is a full one; what a later delta
leaves out has come before. A cut ends no batch in the middle, so a batch is one piece here.

    take ──> batches, in order        nothing? then `lacking` names an owner:
    asks ──> Read, Read, …    ─── line ──>   its stage
    hear <── Rows             <── line ───

Whoever drives it asks that owner on a line of its own choosing, says `begin_anew` whenever that is another one, and tells the
time. What is asked for is harmless to ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from operator import attrgetter

import attrs
import msgspec

from ordered_pubsub.core.log.questions import ASKED_MAX, PIECE_BYTES, Read, Rows
from ordered_pubsub.core.log.shelf import LogStamp
from ordered_pubsub.core.messages import Transaction
from ordered_pubsub.errors import BEGIN_ANEW, HistoryLost, ProtocolError, UnavailableError

MEMORY_BYTES = 32 * 1024 * 1024
"""About so much of all topics is held, at the least one row of each."""
PIECE_BYTES_MIN = 4 * 1024
INCOMPLETE_PAUSE_S = 0.02
"""So long after it was not complete something is asked for again."""
BATCH_BYTES = 300
"""What a batch counts for besides its events."""

Lose = Callable[[str, int, int], None]
"""Told of what is gone, a topic, the first number lost and the first one there: raises, or lets it be left out."""

_stamps = msgspec.msgpack.Decoder(LogStamp)
_by_place = attrgetter("place")


class LogBatch(msgspec.Struct, frozen=True, gc=False):
    """Events that were numbered together; what is in no chunk is void, or was left out."""

    topic: str
    first: int
    last: int
    place: int
    published_at: float
    entries: dict[str, int]
    chunks: list[tuple[int, int, bytes]]
    size: int
    transaction: Transaction | None = None
    """what takes its place together with them"""
    is_gone: bool = False
    """whether these are numbers of which nothing is known any more"""


@attrs.define(eq=False)
class TopicRange:
    """One topic in the range. INVARIANT: what is here, or was taken, ends with `passed`."""

    topic: str
    passed: int
    """how far it has come from its owner"""
    last: int
    batches: list[LogBatch] = attrs.field(factory=list)
    held_bytes: int = 0
    """of the batches"""
    asked: int = 0
    """the number under which more was asked for; 0: nothing was"""
    needs_full: bool = True
    """whether what comes next must have its full timestamp: nothing that it would leave out has come before"""
    retry_at: float = float("-inf")
    """when to ask again for what was not complete"""

    @property
    def is_over(self) -> bool:
        """Whether all of it has come."""
        return self.passed >= self.last


@attrs.define(eq=False)
class OwnerRange:
    """The topics of one owner, in the order of its journal."""

    topics: list[TopicRange]
    piece_bytes: int
    """so much is asked for at a time, and no more of a topic of which so much is here"""
    lose: Lose
    where: str = ""
    _by_number: dict[int, TopicRange] = attrs.field(factory=dict)
    """what was asked for, and has no answer yet"""
    _incomplete_since: float | None = None

    @property
    def is_lacking(self) -> bool:
        """Whether of some topic nothing is here, and more is to come: that could be next."""
        return any(not one.batches and not one.is_over for one in self.topics)

    @property
    def is_over(self) -> bool:
        """Whether all of it has come, and was taken."""
        return all(one.is_over and not one.batches for one in self.topics)

    def take(self) -> list[LogBatch]:
        """All that nothing can come before any more."""
        horizon = self._horizon()
        block: list[LogBatch] = []
        for one in self.topics:
            found = one.batches
            if horizon is not None and found and found[-1].place > horizon:
                count = sum(batch.place <= horizon for batch in found)
            else:
                count = len(found)
            one.held_bytes -= sum(batch.size for batch in found[:count])
            block += found[:count]
            del found[:count]
        block.sort(key=_by_place)
        return block

    def _horizon(self) -> int | None:
        """The last place that is known of all topics of which more is to come; None: of none is."""
        return min(
            (one.batches[-1].place if one.batches else 0 for one in self.topics if not one.is_over), default=None
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """What was asked for will have no answer: the line is another one."""
        self._by_number.clear()
        for one in self.topics:
            one.asked = 0

    @property
    def asked(self) -> Container[int]:
        """The numbers under which something was asked for; empty if nothing was."""
        return self._by_number

    @property
    def is_asked(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._by_number)

    def asks(self, now: float, number: Callable[[], int]) -> list[Read]:
        """Ask, under new numbers, for the next piece of each topic that has room for it; those first of which nothing is here."""
        wanting = [
            one
            for one in self.topics
            if not (one.asked or one.is_over) and one.held_bytes < self.piece_bytes and one.retry_at <= now
        ]
        wanting.sort(key=lambda one: len(one.batches))
        asks: list[Read] = []
        for one in wanting[: ASKED_MAX - len(self._by_number)]:
            one.asked = number()
            self._by_number[one.asked] = one
            asks.append(
                Read(one.asked, one.topic, one.passed + 1, one.last, one.needs_full, self.piece_bytes, self.where)
            )
        return asks

    def check_patience(self, now: float, patience_s: float) -> None:
        """Raise what is waited for, if nothing of it was complete for so long."""
        if self._incomplete_since is not None and now - self._incomplete_since > patience_s:
            waiting = next(one for one in self.topics if not one.batches and not one.is_over)
            raise UnavailableError(
                f"number {waiting.passed + 1} of topic {waiting.topic!r} is not complete: a stage that it has to pass may be down"
            )

    # -- hearing ------------------------------------------------------------------------------------------------------

    def hear(self, rows: Rows, now: float) -> bool:
        """Take an answer to what was asked for; return whether something has come."""
        one = self._by_number.pop(rows.number)
        one.asked = 0
        if rows.floor > one.passed:
            self._skip(one, min(rows.floor, one.last))
            return True
        if one.needs_full and rows.stamps and rows.full is None:
            return False  # it is asked for again
        if rows.read_to <= one.passed:
            one.retry_at = now + INCOMPLETE_PAUSE_S
            if self._incomplete_since is None:
                self._incomplete_since = now
            return False
        self._incomplete_since = None
        self._receive(one, rows)
        return True

    def _receive(self, one: TopicRange, rows: Rows) -> None:
        """Batches have come, without a gap."""
        events = iter(rows.events)
        event = next(events, None)
        for first, last, data in rows.stamps:
            stamp = _stamps.decode(data)
            chunks: list[tuple[int, int, bytes]] = []
            while event is not None and event[0] <= last:
                chunks.append(event)
                event = next(events, None)
            if stamp.is_kept and not self.where:
                _check_whole(one, first, min(last, rows.read_to), chunks)
            entries = stamp.entries
            if one.needs_full:
                entries, one.needs_full = rows.full or {}, False
            size = BATCH_BYTES + sum(len(chunk[2]) for chunk in chunks)
            one.held_bytes += size
            place, published_at, transaction = stamp.place, stamp.published_at, stamp.transaction
            one.batches.append(
                LogBatch(one.topic, first, last, place, published_at, entries, chunks, size, transaction)
            )
        one.passed = rows.read_to

    def _skip(self, one: TopicRange, floor: int) -> None:
        """Numbers that are gone are passed in silence, behind what is here of the topic, once that was said."""
        self.lose(one.topic, one.passed + 1, floor + 1)
        place = one.batches[-1].place if one.batches else 0
        one.held_bytes += BATCH_BYTES
        one.batches.append(LogBatch(one.topic, one.passed + 1, floor, place, 0.0, {}, [], BATCH_BYTES, None, True))
        one.passed, one.needs_full = floor, True


def _check_whole(one: TopicRange, first: int, last: int, chunks: list[tuple[int, int, bytes]]) -> None:
    """A batch that was kept has all its events: what is missing is not silence."""
    passed = max(first, one.passed + 1) - 1
    for begin, end, _ in chunks:
        if begin > passed + 1:
            break
        passed = end
    if passed < last:
        raise ProtocolError(
            f"the log's owner has brought no events of topic {one.topic!r} from number {passed + 1} on, though it says that "
            f"they were kept: its store is damaged, or it answers something else than it was asked"
        )


@attrs.define(eq=False)
class RangeReader:
    """The batches between a clock and a later cut, in order."""

    owners: dict[int, OwnerRange]
    """by the rank of the stage"""
    clock: dict[str, int]
    """how far the order has come"""
    lacking: int | None = None
    """the owner of which something is needed before anything more is known to be next"""
    _known: dict[int, deque[LogBatch]] = attrs.field(init=False)
    """of each owner what is known to be next of it; the first one is its head"""
    _heads: dict[int, LogBatch] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._known = {rank: deque() for rank in self.owners}

    @classmethod
    def of(
        cls,
        owner: Callable[[str], int],
        start: Mapping[str, int],
        end: Mapping[str, int],
        lose: Lose,
        where: str = "",
        piece_bytes: int = PIECE_BYTES,
    ) -> RangeReader:
        """From behind `start` to `end`, a cut. `owner` says which stage has a topic.

        With a filter, stages leave out the events that it does not let through, as far as they can read them.
        """
        clock = {topic: start.get(topic, 0) for topic in end}
        topics = [TopicRange(topic, clock[topic], last) for topic, last in end.items() if last > clock[topic]]
        piece_bytes = min(piece_bytes, max(PIECE_BYTES_MIN, MEMORY_BYTES // max(1, 2 * len(topics))))
        by_owner: dict[int, list[TopicRange]] = {}
        for one in topics:
            by_owner.setdefault(owner(one.topic), []).append(one)
        owners = {rank: OwnerRange(found, piece_bytes, lose, where) for rank, found in sorted(by_owner.items())}
        return cls(owners, clock)

    @property
    def is_over(self) -> bool:
        """Whether all of it was taken."""
        return not self._heads and all(owner.is_over for owner in self.owners.values())

    def take(self) -> list[LogBatch]:
        """All that is known to be next. When it is nothing, an owner is `lacking`, or all of it was taken."""
        self.lacking = None
        if len(self.owners) == 1:
            ((rank, owner),) = self.owners.items()
            self.lacking = rank if owner.is_lacking else None
            return [] if owner.is_lacking else owner.take()
        taken: list[LogBatch] = []
        clock = self.clock
        for rank in self.owners:
            if rank not in self._heads:
                self._advance(rank)
        while self._heads and self.lacking is None:
            following = self._next()
            if following is None:
                break
            rank = following
            batch, known = self._heads[rank], self._known[rank]
            taken.append(batch)
            clock[batch.topic] = max(clock[batch.topic], batch.last)
            known.popleft()
            if known:
                self._heads[rank] = known[0]
            else:
                self._advance(rank)
        return taken

    def _advance(self, rank: int) -> None:
        """Find the next batch of an owner; if there may be one and it is not here, that is lacking."""
        self._heads.pop(rank, None)
        if self._learn(rank):
            heads = {**self._heads, rank: self._known[rank][0]}
            self._heads = {rank: heads[rank] for rank in self.owners if rank in heads}  # whoever was heard of first

    def _learn(self, rank: int) -> bool:
        """Take in what else is known to be next of an owner; whether there is any. If that is not here, it is lacking."""
        owner = self.owners[rank]
        if owner.is_lacking:
            self.lacking = rank if self.lacking is None else self.lacking
            return False
        found = owner.take()
        self._known[rank] += found
        return bool(found)

    def _next(self) -> int | None:
        """The owner whose head is next; None if something is lacking to know that."""
        chosen, best = -1, None
        for rank, head in self._heads.items():
            transaction = head.transaction
            has_begun = transaction is not None and transaction.has_begun(self.clock)
            key = (not has_begun, head.published_at, head.topic)
            if best is not None and key >= best:
                continue
            if not self._is_satisfied(head, self.clock):
                continue
            if transaction is not None and not has_begun and not self._may_begin(transaction):
                continue
            chosen, best = rank, key
        if self.lacking is not None:
            return None
        if best is None:
            raise ProtocolError(
                f"the range ends too early: {next(iter(self._heads.values())).topic!r} waits for something that is not in it"
            )
        return chosen

    # -- transactions -------------------------------------------------------------------------------------------------

    def _may_begin(self, transaction: Transaction) -> bool:
        """Whether all of a transaction could be read now; if it is not here, that is lacking."""
        clock = self.clock
        beyond = {
            **clock,
            **{topic: last for topic, (_, last) in transaction.ranges.items() if last > clock.get(topic, last)},
        }
        for rank, owner in self.owners.items():
            wanted = sum([_wanted_of(one, transaction, clock[one.topic]) for one in owner.topics])
            at, known = 0, self._known[rank]
            while wanted > 0:
                if at == len(known) and not self._learn(rank):
                    if self.lacking is not None:
                        return False
                    break  # the rest of it is gone
                part = known[at]
                at += 1
                if part.is_gone:
                    first, last = transaction.ranges.get(part.topic, (1, 0))
                    wanted -= max(0, min(part.last, last) - max(part.first, first) + 1)
                    continue
                if part.transaction is None or part.transaction.id != transaction.id:
                    return False  # something else comes before it there
                if not self._is_satisfied(part, beyond):
                    return False
                wanted -= part.last - max(part.first - 1, clock[part.topic])
        return True

    @staticmethod
    def _is_satisfied(head: LogBatch, clock: Mapping[str, int]) -> bool:
        """Whether what a batch's timestamp names has come, as far as it is in the range."""
        topic = head.topic
        return not any(other != topic and count > clock.get(other, count) for other, count in head.entries.items())


def _wanted_of(one: TopicRange, transaction: Transaction, count: int) -> int:
    """How many numbers of a topic a transaction has in the range, after so many of it."""
    first, last = transaction.ranges.get(one.topic, (1, 0))
    return max(0, min(last, one.last) - max(first - 1, count))


def raise_lost(reader: str, remedy: str = BEGIN_ANEW) -> Lose:
    """What is gone is an error."""

    def lose(topic: str, first_lost: int, first_there: int) -> None:
        raise HistoryLost(reader, topic, first_lost, first_there, remedy)

    return lose
