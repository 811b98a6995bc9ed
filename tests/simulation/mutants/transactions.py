"""Transactions, of which subscribers are notified as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ordered_pubsub.core.messages import ChangeAsk, GaveUp, Operation, Transaction
from ordered_pubsub.core.order import registrar, reserving
from ordered_pubsub.core.order.registered import SubscriptionState, after
from ordered_pubsub.core.order.registrar import Registrar
from ordered_pubsub.core.order.reserving import Conflict, Granted, RanksOf, Reservation, grant
from ordered_pubsub.core.stage import driver, stage
from ordered_pubsub.core.stage._committing import Committing
from ordered_pubsub.core.stage._news import NewsTelling
from ordered_pubsub.core.subscriber._changes import Changes
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


def _turns_at_once(registrar: Registrar, transaction: str, ranks_of: RanksOf, here: int) -> Any:
    """It waits for nobody, and nobody for it."""
    reservation = registrar.reservations[transaction]
    for name in reservation.names:
        if name not in registrar.subscriptions or registrar.subscriptions[name].ended:
            return Conflict("unknown", name, "", "")
    return grant(reservation, registrar.subscriptions, registrar._topics_max, ranks_of, here)


def _free_when_granted(registrar: Registrar, transaction: str, ranks_of: RanksOf, here: int) -> Any:
    """What it was granted holds, but its turns are over at once."""
    found = _go_on(registrar, transaction, ranks_of, here)
    if isinstance(found, Granted):
        for name in registrar.reservations[transaction].names:
            one = registrar.subscriptions[name]
            one.reserved, one.under_way, one.planned = "", bool(one.waiting), one.planned if one.waiting else None
            one.gaining.clear()
    return found


def _give_up_whatever(committing: Committing, event: GaveUp) -> None:
    commit = committing.context.state.commits.get(event.transaction)
    if commit is not None:
        commit.is_launched = False
    _give_up(committing, event)


def _all_overdue(committing: Committing, now: float) -> list[str]:
    """Also what has entered the line."""
    commits = committing.context.state.commits
    return [name for name in commits if now >= committing._due.setdefault(name, now + committing.give_up_s)]


def _judge_loosely(ask: ChangeAsk, *others: Any) -> Any:
    return _changed(replace(ask, strict=False), *others)


def _all_from_the_first(
    reservation: Reservation, subscriptions: Mapping[str, SubscriptionState], topics_max: Any, ranks_of: Any, here: int
) -> Any:
    """Several changes of a subscription are judged as if each were the first."""
    found = _grant(reservation, subscriptions, topics_max, ranks_of, here)
    if isinstance(found, Granted):
        for place, (_, change) in enumerate(found.changes):
            ask = reservation.asks[place][1]
            change.old = subscriptions[ask.subscription].topics
            change.new = after(change.old, ask)
    return found


def _release_nobody(registrar: Registrar, transaction: str) -> list[Any]:
    return []


def _tell_nobody_again(telling: NewsTelling) -> None:
    """What was told once may be lost."""


def _nothing_lacks(changes: Changes) -> bool:
    return False


def _look_at_nothing(changes: Changes, topic: str, number: int) -> bool:
    return False


def _whatever_it_changes(delivery: Delivery, topic: str, transaction: Transaction) -> bool:
    """Its own changes of the subscription may take effect while it is being notified."""
    return _is_whole(delivery, topic, replace(transaction, changes=[]))


def _after_itself_only(transaction: Transaction, topic: str, full: dict[str, int]) -> None:
    """What follows a transaction on a topic follows only what is on that one."""


_give_up = Committing.give_up
_go_on, _is_whole, _changed, _grant = Registrar.go_on, Delivery._is_whole, reserving._changed, reserving.grant

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
    Mutant(
        "no-reserve",
        "a transaction has its turn at each subscription that it changes",
        ((Registrar, "go_on", _turns_at_once),),
    ),
    Mutant(
        "free-early",
        "… until it has passed its last stage",
        ((Registrar, "go_on", _free_when_granted),),
    ),
    Mutant(
        "no-release",
        "… or will not happen: then others have it",
        ((Registrar, "release", _release_nobody),),
    ),
    Mutant(
        "late-give-up",
        "nobody gives up what has entered the line",
        ((Committing, "give_up", _give_up_whatever), (Committing, "take_overdue", _all_overdue)),
    ),
    Mutant(
        "loose",
        "a strict change finds what it takes away, and not what it gives",
        ((reserving, "_changed", _judge_loosely),),
    ),
    Mutant(
        "merge-changes",
        "several changes of one subscription go on from each other",
        ((registrar, "grant", _all_from_the_first),),
    ),
    Mutant(
        "ask-nobody",
        "who meets a mark of a change of which nothing is known asks for it",
        ((Changes, "lacks", property(_nothing_lacks)), (NewsTelling, "tick", _tell_nobody_again)),
    ),
    Mutant(
        "few-look",
        "where a topic had too many marks, whoever holds it looks whether his subscription was changed",
        ((Changes, "look", _look_at_nothing),),
    ),
    Mutant(
        "own-marks-late",
        "nobody is notified of a transaction before all its changes of his own subscription have taken effect",
        ((Delivery, "_is_whole", _whatever_it_changes),),
    ),
    Mutant(
        "cut-anywhere",
        "what follows a transaction follows all of it, wherever a range begins or ends",
        ((Transaction, "follow", _after_itself_only),),
    ),
)
