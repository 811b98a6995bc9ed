"""The one order of all operations, and every subscriber in it: the first twelve belong to the protocol as it was designed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ordered_pubsub.core.client.session import Session
from ordered_pubsub.core.messages import Change, Operation, Publication, Refusal, Request
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import IN_GROUP, Groups, _take_out
from ordered_pubsub.core.order.registrar import Registrar
from ordered_pubsub.core.stage._links import Link
from ordered_pubsub.core.stage._peers import Peers
from ordered_pubsub.core.stage._requests import Requests, RequestVerdict
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber._changes import Changes
from ordered_pubsub.core.subscriber.delivery import Delivery, TopicQueue
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.testing import checkers, history
from simulation.mutants.mutant import Mutant, nothing


def _jump(stage: Stage, operation: Operation) -> int:
    """Straight to the next stage that owns a topic of the operation or of its groups."""
    concerned = {operation.top}
    for part in operation.parts:
        topics = (
            part.topics if isinstance(part, Change) else [part.topic, *stage.state.groups.weights.get(part.topic, ())]
        )
        concerned.update(stage.topology.owner(topic) for topic in topics)
        if isinstance(part, Publication):
            concerned.update(stage.state.groups.reach.get(part.topic, ()))
    return max(rank for rank in concerned if rank < stage.rank)


def _take_in_any_order(link: Link, number: int) -> bool:
    return number > link.received or number in _missed.get(id(link), ())


_missed: dict[int, set[int]] = {}
_take = Link.take


def _take_and_remember_holes(link: Link, number: int) -> None:
    missed = _missed.setdefault(id(link), set())
    missed.update(range(link.received + 1, number))
    missed.discard(number)
    _take(link, max(number, link.received))


def _always_new(requests: Requests, request: Request, now: float) -> RequestVerdict:
    return RequestVerdict.TAKE


def _answer_at_once(driver: Driver) -> Any:
    """All is written, but nobody waits until it is on disk."""
    batch = driver.take()
    driver.log.write(batch.effects.kept, batch.published)
    for topic, up_to in batch.effects.forget:
        driver.log.forget(topic, up_to)
    if batch.effects.journal:
        driver.journal.append(batch.effects.journal)
    driver.on_synced(batch.effects)
    return driver.release(batch)


def _exactly(clock: int, need: int) -> bool:
    return need == clock


_demands_of = Delivery._demands_of


def _without_baseline(delivery: Delivery, queue: TopicQueue, head: Any) -> list[tuple[str, int]]:
    queue.segment.baseline = None
    return _demands_of(delivery, queue, head)


def _merge_everything(session: Session, queued: Any) -> int:
    return len(session.topology.stages)


def _turn_at_once(registrar: Registrar, name: str) -> Any:
    waiting = registrar.subscriptions[name].waiting
    return waiting.pop(0) if waiting else None


_begin = Registrar.begin


def _begin_on_top(registrar: Registrar, ask: Any) -> Change:
    change = _begin(registrar, ask)
    registrar.subscriptions[ask.subscription].topics = change.new
    return change


def _settle_at_once(registrar: Registrar, change: Change) -> None:
    subscription = registrar.subscriptions.get(change.subscription)
    if subscription is not None and subscription.ended and not subscription.topics:
        del registrar.subscriptions[change.subscription]


_owe = Groups.owe


def _owe_only_who_enters(groups: Groups, topic: str, other: str, rank: int) -> None:
    if groups.weights.get(topic, {}).get(other, 0) >= IN_GROUP:
        _owe(groups, topic, other, rank)
    elif rank < groups.rank:
        groups.owed_up.pop(topic, None)
    elif other in groups.owed.get(topic, {}):
        _take_out(groups.owed, topic, other)
        _take_out(groups.owed_to, other, topic)


def _delta_only(log: Any, number: int) -> dict[str, int]:
    return next((dict(logged.entries) for logged in log if logged.first <= number <= logged.last), {})


_open = Stage._open


def _open_unconfirmed(stage: Stage, rank: int, topology: Topology) -> None:
    _open(stage, rank, topology)
    stage.peers.unconfirmed = {}


_snapshot = Stage.snapshot


def _forgetful_snapshot(stage: Stage) -> bytes:
    clocks = stage.state.clocks
    seen, clocks.seen = clocks.seen, {}
    try:
        return _snapshot(stage)
    finally:
        clocks.seen = seen


def _meet_nobody(registrar: Registrar, name: str, ranks: list[int], here: int) -> int:
    return max(ranks, default=here)


_settled = Changes.settled


def _all_at_once(changes: Changes, change: Change, removes: Any) -> Iterator[Change]:
    return iter(list(_settled(changes, change, removes)))


def _pipeline_everything(session: Session, queued: Any) -> bool:
    return True


def _release_all(session: Session) -> list[Any]:
    held, session._held = session._held, {}
    return list(held.values())


_handle_request = Stage.handle_request


def _refuse_at_home(stage: Stage, request: Request, now: float, refusal: Refusal | None = None) -> None:
    if refusal is None:
        _handle_request(stage, request, now)
    else:
        stage.effects.replies.append(refusal)


def _see_nothing(clocks: Clocks, topic: str, number: int) -> None:
    return None


MUTANTS = (
    Mutant(
        "jump",
        "an operation never jumps over a stage",
        ((Stage, "next_stage", _jump), (Peers, "check_message", nothing)),
    ),
    Mutant(
        "overtake",
        "links between neighbours are FIFO",
        ((Link, "is_next", _take_in_any_order), (Link, "take", _take_and_remember_holes)),
    ),
    Mutant(
        "forget-identity", "a request that is asked again gets the first answer", ((Requests, "judge", _always_new),)
    ),
    Mutant("answer-early", "the commit comes before the answer", ((Driver, "flush", _answer_at_once),)),
    Mutant(
        "exact-entries",
        "an entry is satisfied from its count on, not only at it",
        ((Delivery, "is_satisfied", staticmethod(_exactly)),),
    ),
    Mutant(
        "no-baseline",
        "the first event of a gained topic waits for the change's entries",
        ((Delivery, "_demands_of", _without_baseline),),
    ),
    Mutant("no-marks", "the next event after a change carries its mark", ((Stage, "_mark", nothing),)),
    Mutant(
        "no-registrar",
        "changes of one subscription travel one at a time",
        (
            (Registrar, "next_turn", _turn_at_once),
            (Registrar, "begin", _begin_on_top),
            (Registrar, "settle", _settle_at_once),
        ),
    ),
    Mutant("leave-early", "a topic leaves a group one event late", ((Groups, "owe", _owe_only_who_enters),)),
    Mutant(
        "begin-by-delta",
        "who begins anew judges first events by full timestamps",
        ((history, "full_timestamp", _delta_only), (checkers, "full_timestamp", _delta_only)),
    ),
    Mutant(
        "any-topology",
        "stages check the topology against their journals and each other",
        (
            (Topology, "check_same", nothing),
            (Topology, "check_still_owned", nothing),
            (Stage, "_open", _open_unconfirmed),
        ),
    ),
    Mutant("forgetful-snapshot", "a snapshot holds all that was counted", ((Stage, "snapshot", _forgetful_snapshot),)),
    # Ours, beyond the first twelve: what the simulation taught us.
    Mutant(
        "lead-the-change",
        "events follow a change of their topic's subscription up the line until it is done",
        ((Groups, "follow", nothing),),
        "exchange",
    ),
    Mutant(
        "lead-the-exchange",
        "… and those of a topic that the change gains",
        ((Groups, "follow", nothing),),
        "exchange",
    ),
    Mutant(
        "out-of-turn",
        "the outcomes of a client's publications are used in the order of their requests",
        ((Session, "_release", _release_all),),
        "slow-then-quick",
    ),
    Mutant(
        "never-meet",
        "consecutive changes of a subscription visit a common stage",
        ((Registrar, "meet", _meet_nobody),),
        "drop-then-gain",
    ),
    Mutant("settle-together", "outcomes of changes take effect one at a time", ((Changes, "settled", _all_at_once),)),
    Mutant(
        "pipeline-all",
        "a publication does not overtake an unfinished one at another stage",
        ((Session, "may_pipeline", _pipeline_everything),),
    ),
    Mutant(
        "merge-all",
        "behind unfinished publications, only those are merged that the same stage takes",
        ((Session, "lowest_to_merge", _merge_everything),),
    ),
    Mutant(
        "refuse-at-home",
        "the stage that takes a request says whether it is refused, not the client's home",
        ((Stage, "handle_request", _refuse_at_home),),
    ),
    Mutant("see-nothing", "a passing publication is counted at later stages", ((Clocks, "see", _see_nothing),)),
)
