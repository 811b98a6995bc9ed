"""What a client does by itself."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ordered_pubsub.core.client.holding import Hold, Holding, Pause
from ordered_pubsub.core.client.session import Session
from ordered_pubsub.core.client.subscription import QUEUED, ClientSubscription, TopicChange
from ordered_pubsub.core.messages import Change, Refusal
from ordered_pubsub.core.trust import inspection
from ordered_pubsub.core.trust.inspection import Inspection
from simulation.mutants.mutant import Mutant, nothing


def _hold_at_once(holding: Holding, hold: Hold, now: float) -> None:
    """Whether the ENS brings it or not."""
    hold.is_held = True
    holding._finish(hold)


def _make_all_at_once(subscription: ClientSubscription) -> None:
    """Those behind one that waits as well."""
    for change in subscription.unasked:
        if change.state == QUEUED:
            subscription._changes.remove(change)
            subscription._changes.appendleft(change)
            _go_on(subscription)


_go_on = ClientSubscription.go_on


def _take_back_unsaid(subscription: ClientSubscription, change: TopicChange) -> None:
    """Its buffer goes on waiting for it."""
    if change.hold is not None:
        subscription.client.holding.give_up(change.hold)


def _forget_nothing(holding: Holding, subscription: str, topics: Iterable[str] | None = None) -> None:
    """The ENS goes on bringing it."""
    holding._held_by.pop(subscription, None)
    for holders in holding._holders.values():
        holders.pop(subscription, None)
    holding._holders = {topic: holders for topic, holders in holding._holders.items() if holders}


def _forget_for_all(holding: Holding, subscription: str, topics: Iterable[str] | None = None) -> None:
    """Whoever else holds it."""
    topics = list(holding._held_by.get(subscription, ()) if topics is None else topics)
    _forget(holding, subscription, topics)
    for topic in topics:
        for other in list(holding.holders(topic)):
            _forget(holding, other, [topic])


_forget = Holding.forget


def _in_the_old_epoch(subscription: ClientSubscription, change: TopicChange, refusal: Refusal) -> bool:
    """It is asked for as it was."""
    return _begins_anew(subscription, change, msgspec.structs.replace(refusal, opened=change.opens - 1))


_begins_anew = ClientSubscription._begins_anew


def _connected_unasked(session: Session, now: float) -> None:
    """What has no answer is not sent again."""
    session.is_connected = True
    session._send_queued(now)


def _stop_unsaid(subscription: ClientSubscription) -> None:
    subscription.is_known = False
    _stop(subscription)


_stop = ClientSubscription.stop


def _never_again(pause: Pause, now: float) -> None:
    pause.until = float("inf")


def _in_any_hands(subscription: ClientSubscription, change: TopicChange, outcome: Change) -> None:
    """What it holds is not asked of the ENS."""
    holding = subscription.client.holding
    subscription.client.holding = Holding(Inspection("nobody")) if outcome.resume is not None else holding
    _settled(subscription, change, outcome)
    subscription.client.holding = holding


_settled = ClientSubscription.settled


MUTANTS = (
    Mutant(
        "ask-unheld",
        "a change is asked for when the ENS brings what it adds",
        ((Holding, "_look", _hold_at_once),),
    ),
    Mutant(
        "changes-at-once",
        "the changes of a subscription are made one after the other",
        ((ClientSubscription, "go_on", _make_all_at_once),),
    ),
    Mutant(
        "given-up-unsaid",
        "a change that is given up is taken back from the buffer that waits for it",
        ((ClientSubscription, "_take_back", _take_back_unsaid),),
    ),
    Mutant(
        "never-released",
        "what nobody holds any more is unsubscribed from",
        ((Holding, "forget", _forget_nothing),),
    ),
    Mutant(
        "released-for-all",
        "… and not while somebody else holds it",
        ((Holding, "forget", _forget_for_all),),
    ),
    Mutant(
        "try-once",
        "what the ENS could not do is tried again",
        ((Pause, "begin", _never_again),),
    ),
    Mutant(
        "resume-unheld",
        "the ENS is asked to bring what a subscription holds that goes on",
        ((ClientSubscription, "settled", _in_any_hands),),
    ),
    Mutant(
        "old-epoch",
        "who goes on with a subscription does so in the epoch after the one that it had last",
        ((ClientSubscription, "_begins_anew", _in_the_old_epoch),),
    ),
    Mutant(
        "reconnect-unasked",
        "on each connection everything is asked for again that has no answer",
        ((Session, "connected", _connected_unasked),),
    ),
    Mutant(
        "keys-asked-once",
        "keys are asked for until they are there",
        ((inspection, "ASK_AGAIN_S", float("inf")), (Inspection, "connected", nothing)),
    ),
    Mutant(
        "end-unsaid",
        "a subscription that stops by itself asks for its end",
        ((ClientSubscription, "stop", _stop_unsaid),),
    ),
)
