"""What a transaction may be: how much takes its place together, so that whoever is notified of it can wait for all of it."""

from __future__ import annotations

from collections.abc import Mapping

from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import MARKS_MAX, VERSION_MAX, Transaction
from ordered_pubsub.errors import UsageError

TRANSACTION_TOPICS_MAX = 64
"""So many topics one publishes on."""
TRANSACTION_EVENTS_MAX = 10_000
TRANSACTION_TOPIC_EVENTS_MAX = 4_096
"""So many events it has on one topic: a subscriber waits for all of them, and asks for no more of a topic at once."""
NAME_LENGTH_MAX = 128


def check_counts(counts: Mapping[str, int]) -> None:
    """Raise a `UsageError` if these are too many events, by topic, for one transaction."""
    if len(counts) > TRANSACTION_TOPICS_MAX:
        raise UsageError(
            f"a transaction publishes on at most {TRANSACTION_TOPICS_MAX} topics, not {len(counts)}: divide it"
        )
    for topic, count in counts.items():
        if count > TRANSACTION_TOPIC_EVENTS_MAX:
            raise UsageError(
                f"a transaction has at most {TRANSACTION_TOPIC_EVENTS_MAX:,} events on one topic, not {count:,} as on {topic!r}: "
                "divide it"
            )
    if (events := sum(counts.values())) > TRANSACTION_EVENTS_MAX:
        raise UsageError(f"a transaction has at most {TRANSACTION_EVENTS_MAX:,} events, not {events:,}: divide it")


def is_possible(transaction: Transaction) -> bool:
    """Whether a stage could have written this."""
    return (
        0 < len(transaction.id) <= NAME_LENGTH_MAX
        and len(transaction.ranges) <= TRANSACTION_TOPICS_MAX
        and bool(transaction.ranges or transaction.changes)
        and all(
            1 <= first <= last < ENDLESS and last - first < TRANSACTION_TOPIC_EVENTS_MAX
            for first, last in transaction.ranges.values()
        )
        and len(transaction.changes) <= MARKS_MAX
        and all(0 <= mark.version <= VERSION_MAX for mark in transaction.changes)
    )
