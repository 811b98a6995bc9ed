"""What the broker brings is looked at before it arrives: is it of this system, can it be, and has a stage tagged it?

    frame ──> judge ──┬── arrived ──> the subscriptions
                      ├── wait: its key is asked for ──> later again
                      └── not arrived: counted by its cause, never kept, and said now and then

What has not arrived never takes the place of anything. Where a log keeps the events, the subscriber misses the number, asks
for it, and the log brings it: so whoever writes to the broker can delay an event by that, and do nothing else.

Keys come from the home stage, topic by topic (`core.trust.keys`), and are asked for again until they are there. What was tagged
by keys that are not known here waits, in a bounded room, until the stage has said which keys there are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs
import msgspec

from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import EPOCH_MAX, MARKS_MAX, VERSION_MAX, AskKeys, ChangeMark, Keys
from ordered_pubsub.core.transactions import NAME_LENGTH_MAX, is_possible
from ordered_pubsub.core.trust.authenticity import NO_TAG, TAG_BYTES, Hash, Stamp, is_genuine, keyed
from ordered_pubsub.core.trust.keys import TOPICS_ASKED_MAX

ASK_AGAIN_S = 1.0
ASKED_BYTES_MAX = 32_768
"""Names of topics have no more bytes in one message: each stage takes so much."""
WAIT_S = 5.0
"""So long after something has come a stage must have heard of the epochs, to be believed that it is of none: their messages
take time."""
WAITING_BYTES_MAX = 16 << 20
WAITING_BYTES = 1_600
"""What waits takes so much beside its content, about."""
SAID_EVERY_S = 60.0
"""Of each cause and topic, not more often is something said."""
SAID_MAX = 1_000

ARRIVED, WAIT = "", "wait"
CAUSES = {
    "tag": "its tag is wrong: no stage has numbered just this, or it was changed on its way",
    "untagged": "it has no tag",
    "system": "it is of another system that uses this broker and topic",
    "number": "its number cannot be",
    "impossible": "its timestamp or its marks cannot be",
    "version": "it was written by another release of ordered_pubsub",
    "unreadable": "it cannot be read",
    "epoch": "it was tagged by keys that are not good, or not any more",
}
"""Why something has not arrived."""


class NotArrived(NamedTuple):
    """What is to be said of something that has not arrived."""

    topic: str
    cause: str
    events: int
    """so many since it was said last"""
    why: str


class _Waiting(NamedTuple):
    since: float
    epoch: int
    size: int
    what: Any


@attrs.define(slots=True, eq=False)
class _Topic:
    """What is known of the keys of one topic."""

    keys: dict[int, Hash] = attrs.field(factory=dict)
    is_wanted: bool = True
    """whether they are to be asked for (again)"""
    unknown: int = 0
    """an epoch that was met, and whose key is not here"""
    waiting: deque[_Waiting] = attrs.field(factory=deque)
    waiting_bytes: int = 0
    refusal: tuple[str, str] | None = None

    @property
    def is_asking(self) -> bool:
        """Whether something of it needs keys that are not here."""
        return self.is_wanted or bool(self.waiting)


@attrs.define(eq=False)
class Inspection:
    """What one client asks of whatever the broker brings."""

    session: str
    has_tags: bool = True
    """whether the stages of the system make tags"""
    now: float = 0.0
    """the time; whoever gives an input sets it before"""
    system: bytes = b""
    """which one it is, as soon as a stage has said it"""
    counts: dict[str, int] = attrs.field(factory=dict)
    """cause → how many events have not arrived by it"""
    unreported: dict[str, int] = attrs.field(factory=dict)
    """the same, since it was reported to the stage"""
    mixed: str = ""
    """the topic on which another system was met although there are no tags, if so"""
    _topics: dict[str, _Topic] = attrs.field(factory=dict)
    _ends: dict[int, float] = attrs.field(factory=dict)
    """epoch → when it is not good any more"""
    _due: dict[str, bool] = attrs.field(factory=dict)
    """topics whose keys are to be asked for now"""
    _asked: OrderedDict[str, float] = attrs.field(factory=OrderedDict)
    """topic → when its keys were asked for last, the first one first; not before `ASK_AGAIN_S` is over they may be due again"""
    _crowd: OrderedDict[str, _Topic] = attrs.field(factory=OrderedDict)
    """topics of which something waits"""
    _waiting_bytes: int = 0
    """of all of them together"""
    _said: OrderedDict[tuple[str, str], tuple[float, int]] = attrs.field(factory=OrderedDict)
    """what was said last, and how many there were since"""
    _notes: list[NotArrived] = attrs.field(factory=list)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def hold(self, topics: Iterable[str]) -> None:
        """Events of these topics are to come: their keys are needed."""
        for topic in topics:
            known = self._topics.setdefault(topic, _Topic())
            known.is_wanted, known.refusal = known.is_wanted or not known.keys, None
            self._maybe_ask(topic, known)

    def release(self, topics: Iterable[str]) -> None:
        """Nothing of these topics is to come any more."""
        for topic in topics:
            known = self._topics.pop(topic, None)
            self._due.pop(topic, None)
            self._asked.pop(topic, None)
            if known is not None:
                self._take_all(topic, known)

    def is_ready(self, topic: str) -> bool:
        """Whether what comes on a topic can be judged."""
        known = self._topics.get(topic)
        return known is not None and bool(self.system) and (bool(known.keys) or not self.has_tags)

    def refusal(self, topic: str) -> tuple[str, str] | None:
        """Why it may not have the keys of a topic: a code and a reason."""
        known = self._topics.get(topic)
        return None if known is None else known.refusal

    def connected(self) -> None:
        """There is a home stage, perhaps another one: what it says may be news."""
        self._asked.clear()
        self.new_epoch()

    def new_epoch(self) -> None:
        """The home stage says that there are other keys."""
        for topic, known in self._topics.items():
            known.is_wanted = True
            self._maybe_ask(topic, known)

    def _maybe_ask(self, topic: str, known: _Topic) -> None:
        """Its keys are due, if something of it needs them and they were not asked for just now."""
        if known.is_asking and topic not in self._asked:
            self._due[topic] = True

    def take_due(self) -> list[AskKeys]:
        """What to ask the home stage for now."""
        while self._asked and next(iter(self._asked.values())) + ASK_AGAIN_S <= self.now:
            self._due[self._asked.popitem(last=False)[0]] = True
        due = [topic for topic in self._due if self._topics[topic].is_asking]
        self._due.clear()
        if not due:
            return []
        self._asked.update(dict.fromkeys(due, self.now))
        epoch = max(self._topics[topic].unknown for topic in due)
        return [AskKeys(self.session, piece, epoch) for piece in _pieces(due)]

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called next, if nothing comes until then; None if nothing is to be asked."""
        if self._due:
            return self.now
        return next(iter(self._asked.values())) + ASK_AGAIN_S if self._asked else None

    def given(self, keys: Keys) -> list[Any]:
        """The home stage has given keys: what waited for them is to be judged again."""
        again: list[Any] = []
        for topic, refusal in keys.refused.items():
            if (known := self._topics.get(topic)) is not None:
                known.refusal, known.is_wanted = refusal, False
        if not keys.system:
            return again
        self.system = keys.system
        self._ends = {epoch: self.now + valid_s for epoch, valid_s in keys.epochs if valid_s}
        for topic in keys.keys if self.has_tags else list(self._topics):
            known = self._topics.get(topic)
            if known is None:
                continue
            known.is_wanted = False
            pairs = zip(keys.epochs, keys.keys.get(topic, ()), strict=False)
            known.keys = {epoch: keyed(key) for (epoch, _), key in pairs}
            again += self._take_waiting(topic, known, self.now - keys.age_s)
        return again

    def _take_waiting(self, topic: str, known: _Topic, as_of: float) -> list[Any]:
        """What waits for a key that is here; what will never have one has not arrived.

        An epoch that had begun when something came is known to who has heard of the epochs later than that, and to nobody else.
        """
        again: list[Any] = []
        for one in self._take_all(topic, known):
            if one.epoch in known.keys:
                again.append(one.what)
            elif as_of >= one.since + WAIT_S:
                self.not_arrived(topic, "epoch")
            else:
                self._put(topic, known, one)
        known.unknown = max((one.epoch for one in known.waiting), default=0)
        self._maybe_ask(topic, known)
        return again

    # -- what comes ---------------------------------------------------------------------------------------------------

    def judge(self, topic: str, tag: bytes, stamp: Stamp, head: bytes, content: bytes | msgspec.Raw) -> str:
        """Whether an event, or a piece of several, has arrived: `ARRIVED`, `WAIT`, or the cause why it has not."""
        if stamp.system != self.system:
            if not self.has_tags and self.system:
                self.mixed = self.mixed or topic
            return "system"
        if not 1 <= stamp.number < ENDLESS:
            return "number"
        for count in stamp.entries.values():
            if not 1 <= count < ENDLESS:
                return "impossible"
        if stamp.marks and not _can_be(stamp.marks):
            return "impossible"
        if stamp.transaction and not _can_be_together(stamp):
            return "impossible"
        if not self.has_tags:
            return ARRIVED
        if len(tag) != TAG_BYTES or tag == NO_TAG:
            return "untagged"
        known = self._topics.get(topic)
        key = None if known is None else known.keys.get(stamp.key_epoch)
        if key is None:
            return WAIT if 1 <= stamp.key_epoch <= EPOCH_MAX else "epoch"
        if self._ends and self._ends.get(stamp.key_epoch, self.now) < self.now:
            return "epoch"
        return ARRIVED if is_genuine(key, tag, head, content) else "tag"

    def wait(self, topic: str, epoch: int, size: int, what: Any) -> None:
        """Something was tagged by keys that are not known here.

        In a full room the oldest goes of a topic that takes more than its share: what somebody forges on one topic takes the room
        from no other one.
        """
        known = self._topics.get(topic)
        if known is None:
            return
        size += WAITING_BYTES
        if size > WAITING_BYTES_MAX:
            self.not_arrived(topic, "epoch")
            return
        while self._waiting_bytes + size > WAITING_BYTES_MAX:
            self._make_room()
        self._put(topic, known, _Waiting(self.now, epoch, size, what))
        known.unknown = max(known.unknown, epoch)
        self._maybe_ask(topic, known)

    def _make_room(self) -> None:
        topic, known = next(iter(self._crowd.items()))
        if known.waiting_bytes * len(self._crowd) < self._waiting_bytes:
            self._crowd.move_to_end(topic)
            return
        one = known.waiting.popleft()
        self._weigh(topic, known, -one.size)
        self.not_arrived(topic, "epoch")

    def _put(self, topic: str, known: _Topic, one: _Waiting) -> None:
        known.waiting.append(one)
        self._weigh(topic, known, one.size)

    def _take_all(self, topic: str, known: _Topic) -> Iterable[_Waiting]:
        waiting, known.waiting = known.waiting, deque()
        self._weigh(topic, known, -known.waiting_bytes)
        return waiting

    def _weigh(self, topic: str, known: _Topic, change: int) -> None:
        """More of a topic waits, or less."""
        known.waiting_bytes += change
        self._waiting_bytes += change
        if known.waiting:
            self._crowd[topic] = known
        else:
            self._crowd.pop(topic, None)

    # -- what has not arrived -----------------------------------------------------------------------------------------

    def not_arrived(self, topic: str, cause: str, count: int = 1, why: str = "") -> None:
        """Count it; it is said at once if it was not lately."""
        self.counts[cause] = self.counts.get(cause, 0) + count
        self.unreported[cause] = self.unreported.get(cause, 0) + count
        said_at, since = self._said.pop((topic, cause), (float("-inf"), 0))
        if self.now >= said_at + SAID_EVERY_S:
            self._notes.append(NotArrived(topic, cause, since + count, why or CAUSES[cause]))
            said_at, since = self.now, 0
        else:
            since += count
        self._said[topic, cause] = (said_at, since)
        if len(self._said) > SAID_MAX:
            self._said.popitem(last=False)

    def take_notes(self) -> list[NotArrived]:
        """What is to be said."""
        notes, self._notes = self._notes, []
        return notes


def _pieces(topics: Iterable[str]) -> Iterator[list[str]]:
    """Topics, as many as go into a message."""
    piece: list[str] = []
    size = 0
    for topic in topics:
        more = len(topic.encode())
        if piece and (len(piece) >= TOPICS_ASKED_MAX or size + more > ASKED_BYTES_MAX):
            yield piece
            piece, size = [], 0
        piece.append(topic)
        size += more
    if piece:
        yield piece


def _can_be_together(stamp: Stamp) -> bool:
    """Whether this event could be a part of such a transaction."""
    transaction = stamp.transaction
    if isinstance(transaction, str):
        return len(transaction) <= NAME_LENGTH_MAX
    return is_possible(transaction) and any(
        first <= stamp.number <= last for first, last in transaction.ranges.values()
    )


def _can_be(marks: Sequence[ChangeMark]) -> bool:
    """Whether a stage could have written these marks."""
    return len(marks) <= MARKS_MAX and all(0 <= mark.version <= VERSION_MAX for mark in marks)
