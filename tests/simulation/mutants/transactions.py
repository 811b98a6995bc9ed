"""Transactions, of which subscribers are notified as a whole."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ordered_pubsub.core.messages import Operation, Transaction
from ordered_pubsub.core.stage import driver, stage
from ordered_pubsub.core.subscriber.delivery import Delivery, Segment, TopicQueue
from simulation.mutants.mutant import Mutant

_transaction_of = stage.transaction_of


def _bit_by_bit(delivery: Delivery, topic: str, transaction: Transaction) -> bool:
    return True


def _of_one_topic(operation: Operation) -> Transaction | None:
    found = _transaction_of(operation)
    if found is None:
        return None
    topic = next(iter(found.ranges))
    return replace(found, ranges={topic: found.ranges[topic]})


def _whatever_waits(delivery: Delivery, queue: TopicQueue, segment: Segment, first: int, last: int) -> int:
    return sum(number not in queue.waiting for number in range(first, last + 1))


def _nothing_stuck(delivery: Delivery, clocks: Any, ends: Any) -> int:
    return 0


MUTANTS = (
    Mutant(
        "bit-by-bit",
        "a total subscription waits for all of a transaction before it is notified of the first of it",
        ((Delivery, "_is_whole", _bit_by_bit),),
    ),
    Mutant(
        "of-one-topic",
        "each event of a transaction says all that it consists of",
        ((driver, "transaction_of", _of_one_topic), (stage, "transaction_of", _of_one_topic)),
    ),
    Mutant(
        "whatever-waits",
        "… and what waits for a change, or for its full timestamp, holds all of it",
        ((Delivery, "_lacks_of", _whatever_waits),),
    ),
    Mutant(
        "nothing-stuck",
        "… and so does one that somebody who has the keys has made wait",
        ((Delivery, "_doubt_stuck", _nothing_stuck),),
    ),
)
