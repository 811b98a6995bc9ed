"""Numbers whose events nobody keeps: the holes that a publisher leaves are closed, and what nothing is heard of ends in time."""

from __future__ import annotations

from typing import Any

from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Outcome
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.liveness.voids import _Round
from ordered_pubsub.core.messages import Publication
from ordered_pubsub.core.ranges import Ranges
from ordered_pubsub.core.subscriber._withheld import Withheld
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from simulation.mutants.mutant import Mutant


def _without_clients(one: _Round, stages: int) -> bool:
    return len(one.holders) == stages


def _use_at_once(withheld: Withheld, arrival: Arrival) -> bool:
    return False


def _nothing_seen(delivery: Delivery, topic: str) -> Ranges:
    return Ranges()


def _never_cut(lifeline: Lifeline, subscription: str, now: float) -> bool:
    return False


def _none_cut(lifeline: Lifeline, now: float) -> list[str]:
    return []


def _for_ever(lease: Lease, rank: int, asked_at: float, now: float) -> bool:
    return True


def _good_again(
    batches: UnkeptBatches, part: Publication, items: list[Any], asked_at: float, voids: Any, now: float
) -> Any:
    return _settle_batch(batches, part, items, asked_at, (), now)


_settle_batch = UnkeptBatches.settled


def _never_again(outbox: Outbox, name: str, trouble: str, now: float) -> None:
    outbox.taken(name, now)


def _leave_all(outbox: Outbox, name: str, topic: Any, group: list[Any]) -> list[Any]:
    outbox._through(group)
    return []


def _receipts_when_numbered(outbox: Outbox, outcome: Outcome, now: float) -> None:
    _numbered(outbox, outcome, now)
    outbox.receipts += [
        batch for batch in zip(outcome.publications, outcome.asked.items, strict=True) if not batch[0].is_kept
    ]


_numbered = Outbox.numbered


MUTANTS = (
    Mutant(
        "void-unasked",
        "nothing is void before every subscriber has said that it has not seen it",
        ((_Round, "is_over", _without_clients),),
    ),
    Mutant(
        "use-sealed",
        "who has said so uses it no more until it is decided",
        ((Withheld, "takes", _use_at_once),),
        "seen-between",
    ),
    Mutant(
        "seen-unsaid",
        "what was notified, or waits, was seen",
        ((Delivery, "_seen", _nothing_seen),),
        "seen-then-void",
    ),
    Mutant(
        "stop-never",
        "a subscription stops by itself before its registrar gives it up",
        ((Lifeline, "is_cut", _never_cut), (Lifeline, "find_cut", _none_cut)),
    ),
    Mutant(
        "lease-for-ever",
        "a publisher that was not heard of for long publishes nothing before it has asked",
        ((Lease, "holds", _for_ever),),
    ),
    Mutant(
        "void-handed",
        "what has become void is not handed over",
        ((UnkeptBatches, "settled", _good_again),),
    ),
    Mutant(
        "not-taken-forgotten",
        "what the ENS has not taken is given to it again",
        ((Outbox, "not_taken", _never_again),),
    ),
    Mutant(
        "left-unkept",
        "only what a log keeps is left to it when the ENS does not take it",
        ((Outbox, "_leave", _leave_all),),
    ),
    Mutant(
        "receipt-unpublished",
        "what nobody keeps has its receipt when the ENS has taken it",
        ((Outbox, "numbered", _receipts_when_numbered),),
    ),
)
