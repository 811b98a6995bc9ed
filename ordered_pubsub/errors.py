"""Every error of this library, by whose fault it is.

One base class, `OrderedPubSubError`. Below it: what the caller did wrong (`UsageError`), what a peer sent that it must not
(`ProtocolError`), what storage did (`JournalError`), and what the broker or the system could not do in time
(`UnavailableError`). Messages say what was expected, what came, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OrderedPubSubError(Exception):
    """Base of all errors that this library raises on purpose."""


class UsageError(OrderedPubSubError):
    """The caller asked for something that cannot be given; nothing was changed."""


class TopicError(UsageError):
    """A topic name or a topic pattern is not a valid one."""


class FilterError(UsageError):
    """A filter (`where=`) cannot be read, or does not fit; the message points at the place."""


class ConfigurationError(UsageError):
    """A setting is unknown or does not fit."""


class NameInUse(ConfigurationError):
    """Another client has the name."""


class NotOffered(UsageError):
    """Something was asked for that this adapter, topic or version does not give."""


class AccessDenied(UsageError):
    """A stage or a broker does not allow this to whoever asks."""


class WouldBlock(UsageError):
    """The bounded pipeline is full; wait for earlier publications, or use `publish`, which waits."""


class TransactionConflict(OrderedPubSubError):
    """A transaction has not happened: a subscription that it was to change was not as it has to be. Look, and try again."""


class TransactionAborted(OrderedPubSubError):
    """A transaction has not happened, and may be tried again: it did not get its turn in time."""


class Closed(UsageError):
    """The client or subscription was used after it was closed."""


class ProtocolError(OrderedPubSubError):
    """A peer sent what the protocol does not allow; the input was refused and changed nothing."""


class NotOwner(ProtocolError):
    """An operation reached a stage that does not own its topic."""


class UnknownVersion(ProtocolError):
    """Something on the wire or on disk was written by a newer version."""


class TopologyMismatch(ProtocolError):
    """Two stages, or a stage and its own journal, disagree about who owns what."""


class SystemMismatch(ProtocolError):
    """Stages, or events, of two systems meet where there should be one."""


class SessionExpired(OrderedPubSubError):
    """A request belongs to a session that was replaced or forgotten; its outcome is unknown."""


class JournalError(OrderedPubSubError):
    """The journal cannot be used."""


class JournalDamaged(JournalError):
    """A record in the middle of the journal fails its checksum; the stage must not start on it."""


class UnavailableError(OrderedPubSubError):
    """Something needed was not reachable in time; the outcome is unknown."""


class Timeout(UnavailableError):
    """A call ran out of its time; the outcome is unknown."""


class TransactionUnknown(Timeout):
    """A commit was asked for, and has no answer yet: the transaction may happen, or not. `outcome` goes on waiting."""

    def __init__(self, reason: str, wait: Callable[[], Any]) -> None:
        super().__init__(reason)
        self._wait = wait

    def outcome(self) -> Any:
        """What the transaction is called, when it has happened; raises why it has not. An asynchronous client awaits it."""
        return self._wait()


class AdapterError(UnavailableError):
    """The broker or its client library reported a failure."""


class BufferOverflow(UnavailableError):
    """A subscription's buffer of waiting events is full; it stopped at its clock and lost nothing before it."""


class EventVoid(UnavailableError):
    """An event got its number, and was not at the ENS in time: nobody is notified of it. Publish it again."""


BEGIN_ANEW = "Begin anew with start='new', or where the log begins with start='earliest'"


class HistoryLost(UnavailableError):
    """Events that somebody is entitled to are not kept any more; what wanted them stopped before the first of them."""

    def __init__(self, who: str, topic: str, first_lost: int, first_there: int, remedy: str = BEGIN_ANEW) -> None:
        super().__init__(
            f"{who} needs number {first_lost} of topic {topic!r}, but the log begins at number {first_there}: the "
            "events between were dropped by the topic's retention (max_age, max_bytes), or were published before its events "
            f"were kept. {remedy}"
        )
        self.topic = topic
        self.first_lost = first_lost
        self.first_there = first_there
