"""The log: what was published on a stage's own topics, and with which timestamps.

An event is published when its number and the event itself are on disk at the owner of its topic (`LogWriter.write`, before the
journal's record of it, before the answer). Its timestamp comes later, when the operation has passed its last stage; until then
nobody is given it.

Rows lie on a `Shelf`, in the order of their numbers, of four kinds for each topic:

- *events*: a chunk of consecutive events, in the bytes that the publishing client made of them. Nothing here reads them;
- *stamps*: a batch, from its first number to its last, with its delta timestamp, its marks, its place and its time, and whether
  its events were kept. A void number has a stamp that says they were not, and no events;
- *fulls*: now and then the full timestamp, so that any number's is found from the last one before it and the stamps since. Where
  something is gone there is always one for what follows it;
- *pending*: of topics whose events nobody keeps, the stamps of batches that may turn out to be void (`core.liveness.voids`). What
  is void gets a stamp, the rest is removed.

What is below a topic's `floor` is gone: dropped, or never kept. Only three things raise it: retention (`forget`), a stage that
starts with another level of the topic than it had before (`begin_after`), and a topic that has rested: its log begins behind the
last number that it had. Nothing that is published does. Above it, up to the last number that was kept, nothing is missing: each
number has a stamp, unless its operation is under way still, and if that says that the events were kept, they are there. So
whoever reads can tell what was lost from what never was, and says so. INVARIANT, for floor < n ≤ last: n has a stamp or is
unfinished; and what has a stamp that `is_kept` has its event.

Here is what lies on a shelf; who writes it is in `writer`, and who reads it in `reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol, TypeVar

import attrs
import msgspec

from ordered_pubsub.core.messages import ChangeMark, Transaction
from ordered_pubsub.errors import JournalDamaged

_Data = TypeVar("_Data")
Kind = Literal["events", "stamps", "fulls", "pending"]
KINDS: tuple[Kind, ...] = ("events", "stamps", "fulls", "pending")
ENDLESS = 1 << 39
"""More than any number."""
NEVER_KEPT = b"\x00"
"""Stands for events that were asked for when nobody kept those of their topic, and numbered when somebody did: they are at the
ENS, if anywhere, and the log says of them only that they were there."""


class Row(NamedTuple):
    """What is known of the numbers from `first` to `last`."""

    first: int
    last: int
    data: bytes


class Shelf(Protocol):
    """Where the rows are. Rows of one kind and topic do not overlap; one with the same first number replaces another.

    What `put`, `drop` and `cut` did is on disk when the journal's next `sync` has returned, at the latest; either before any
    record that is appended to the journal after it, or together with it.
    """

    def at_once(self) -> AbstractContextManager[object]:
        """What is read within it is as it was at one moment, whoever writes meanwhile. Not to be nested."""

    def put(self, kind: Kind, topic: str, rows: list[Row]) -> None:
        """Write rows."""

    def put_all(self, kind: Kind, rows: Mapping[str, list[Row]]) -> None:
        """Write rows of several topics."""

    def get(self, kind: Kind, topic: str, first: int, last: int) -> Iterator[Row]:
        """The rows that have to do with these numbers, in order, as they are on disk."""

    def before(self, kind: Kind, topic: str, number: int) -> Row | None:
        """The last row that begins at or before a number."""

    def floor(self, topic: str) -> int:
        """Up to which number everything is gone."""

    def last(self, topic: str) -> int:
        """The last number that has events; the floor if there is none."""

    def drop(self, topic: str, up_to: int, full: bytes) -> None:
        """Raise the floor: remove rows that end at or below it. `full` is then the only full timestamp there: what comes before
        that which follows `up_to`.

        All of it happens or nothing: of what follows, the timestamps could not be found without that one.
        """

    def cut(self, topic: str, after: int) -> None:
        """Remove rows that begin above a number."""

    def settle(self, topic: str, first: int, stamps: list[Row]) -> None:
        """Remove the row of `pending` that begins with this number, and write stamps for it. All of it happens or nothing."""

    def topics(self, kind: Kind | None = None) -> list[str]:
        """The topics that have rows; of this kind, if one is named."""

    def ends(self, kind: Kind) -> Iterator[tuple[str, Row]]:
        """The last row of each topic that has rows of this kind. Nothing is to be written meanwhile."""

    def rest(self, numbers: Mapping[str, int]) -> None:
        """Remember the last numbers of topics that rest (`core.stage._resting`). Those of one that has no rows are gone, up to
        there."""

    def number(self, topic: str) -> int:
        """What is remembered of a topic that rests, or has rested until just now; 0 if nothing is."""

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics of which something is remembered, and what."""

    def wake(self, topics: Iterable[str]) -> None:
        """These are in use again, and that is on disk: nothing of them is to be remembered."""

    def clear(self, topics: Iterable[str]) -> None:
        """Remove what is left of topics whose rows are all gone: their floors are their last numbers, which are remembered."""


class LogStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the log knows of a batch: its delta timestamp, or the full one, and where and when it was numbered."""

    entries: dict[str, int]
    full: bool
    marks: list[ChangeMark]
    place: int
    published_at: float
    is_kept: bool = False
    """whether there are events: without them it is void"""
    transaction: Transaction | None = None
    """what took its place together with them"""


@attrs.define(slots=True)
class FullTimestamp:
    """The full timestamp of a topic, from one batch to the next one: the deltas one upon the other.

    What follows a transaction on the topic comes after all of it, on whatever topics it was. No delta says so, since that needs
    to be known only where the reading begins, or ends: whoever has read on has read the transaction in one piece.
    """

    topic: str
    last: int
    """the last number of the last batch"""
    full: dict[str, int]
    transaction: Transaction | None = None
    """what that batch is a part of"""

    def take(self, first: int, last: int, stamp: LogStamp) -> bool:
        """Go on to the batch that follows; return whether this one does. The last one again tells what it was a part of."""
        if last <= self.last:
            self.transaction = stamp.transaction
            return True
        if first != self.last + 1:
            return False
        self.go_on(last, stamp.entries, stamp.transaction)
        return True

    def go_on(self, last: int, entries: Mapping[str, int], transaction: Transaction | None) -> None:
        """Go on to the batch that follows."""
        before = self.transaction
        if before is not None and (transaction is None or transaction.id != before.id):
            before.follow(self.topic, self.full)
        self.full.update(entries)
        self.last, self.transaction = last, transaction


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that may turn out to be void: who has asked for it, by which request, and its timestamp."""

    session: str
    sequence: int
    stamp: LogStamp


_stamps = msgspec.msgpack.Decoder(LogStamp)
_fulls = msgspec.msgpack.Decoder(dict[str, int])
_pending = msgspec.msgpack.Decoder(Pending)


def decode_stamp(topic: str, row: Row) -> LogStamp:
    """What is known of a batch."""
    return _decoded(_stamps, "stamp", topic, row)


def decode_pending(topic: str, row: Row) -> Pending:
    """What is known of a batch that is pending."""
    return _decoded(_pending, "pending batch", topic, row)


def decode_full(topic: str, row: Row) -> dict[str, int]:
    """The full timestamp of the row's last number."""
    return _decoded(_fulls, "full timestamp", topic, row)


def _decoded(decoder: msgspec.msgpack.Decoder[_Data], what: str, topic: str, row: Row) -> _Data:
    try:
        return decoder.decode(row.data)
    except msgspec.MsgspecError as error:
        raise JournalDamaged(
            f"the log's {what} of topic {topic!r}, number {row.first}, cannot be read ({error})"
        ) from error
