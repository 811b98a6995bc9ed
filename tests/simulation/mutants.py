"""The guards of the protocol, to be taken away one at a time.

Each mutant replaces one method of the core by one without the guard. The simulation must find each within `SEEDS_MAX` seeds,
else it could not be trusted to find a fault of ours. `make mutants` writes what it finds into docs/mutants.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core import checking
from ordered_pubsub.core.client.batches import UnkeptBatches
from ordered_pubsub.core.client.holding import Hold, Holding, Pause
from ordered_pubsub.core.client.named_reader import NamedReader
from ordered_pubsub.core.client.outbox import Outbox
from ordered_pubsub.core.client.session import Outcome, Session
from ordered_pubsub.core.client.subscription import QUEUED, ClientSubscription, TopicChange
from ordered_pubsub.core.client.writer import READY, StageWriter, TaskWriter
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.liveness.voids import _Round
from ordered_pubsub.core.log import cuts
from ordered_pubsub.core.log.cuts import BoundsAsk, Clock, Search
from ordered_pubsub.core.log.log import LogReader, LogReading, LogWriter
from ordered_pubsub.core.log.range_reader import LogBatch, OwnerRange, RangeReader, TopicRange
from ordered_pubsub.core.log.reading import Rows, Traced
from ordered_pubsub.core.log.retention import LogTrimmer
from ordered_pubsub.core.messages import (
    Acked,
    Answer,
    Change,
    ChangeAsk,
    Chunk,
    Done,
    Durable,
    FromSubscriber,
    LogItem,
    LogReply,
    Operation,
    Publication,
    Recovered,
    Refusal,
    Request,
)
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import IN_GROUP, Groups, _take_out
from ordered_pubsub.core.order.registrar import Registrar, SubscriptionState
from ordered_pubsub.core.ranges import ENDLESS, Ranges
from ordered_pubsub.core.recovery._nacks import Consolidation
from ordered_pubsub.core.recovery.hosting import Hosting, _Curious
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.stage import stage
from ordered_pubsub.core.stage._links import Link
from ordered_pubsub.core.stage._requests import Requests, RequestVerdict
from ordered_pubsub.core.stage._resting import LastNumbers, Resting
from ordered_pubsub.core.stage.driver import Driver, FlushBatch
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber._changes import Changes
from ordered_pubsub.core.subscriber._withheld import Withheld
from ordered_pubsub.core.subscriber.acknowledging import Acknowledging, InHand
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery, TopicQueue
from ordered_pubsub.core.subscriber.subscriber import Leaving, Subscriber
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.core.trust import inspection
from ordered_pubsub.core.trust.authenticity import Stamp
from ordered_pubsub.core.trust.inspection import ARRIVED, Inspection
from ordered_pubsub.testing import checkers, history, ranges
from ordered_pubsub.testing.hosts import RecordPacker
from ordered_pubsub.testing.record import Violation
from ordered_pubsub.testing.simulation import Simulation
from ordered_pubsub.testing.world import World, draw
from simulation.scenarios import SCENARIOS

SEEDS_MAX = 2000


@attrs.frozen
class Mutant:
    """A guard, and how to take it away."""

    name: str
    guard: str
    patches: tuple[tuple[Any, str, Any], ...]
    scenario: str = ""
    """the named scenario in which it must be found, with some chance; a drawn world if there is none"""

    def world(self, seed: int) -> World:
        """The world in which to look for it."""
        return attrs.evolve(SCENARIOS[self.scenario], chance=seed) if self.scenario else draw(seed)

    @contextmanager
    def active(self) -> Iterator[None]:
        """The guard is gone."""
        with ExitStack() as stack:
            for target, attribute, replacement in self.patches:
                stack.enter_context(patch.object(target, attribute, replacement))
            yield


@attrs.frozen
class Finding:
    """The first seed in which a mutant shows."""

    seed: int
    violation: Violation


def find(mutant: Mutant, seeds: range = range(SEEDS_MAX)) -> Finding | None:
    """Run worlds without the guard until an invariant falls, in a world in which none falls with it."""
    for seed in seeds:
        world = mutant.world(seed)
        with mutant.active():
            violations = Simulation(world).run().violations
        for violation in violations:
            # What falls must be the protocol, and not a mutant that has not kept up with it.
            is_own_fault = violation.invariant == "error" and "simulation/mutants.py" in violation.what
            assert not is_own_fault, f"mutant {mutant.name} is wrong: {violation.what}"
        if violations and not Simulation(world).run().violations:
            return Finding(seed, violations[0])
    return None


# -- the guards -----------------------------------------------------------------------------------------------------------


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


def _nothing(*_: object) -> None:
    return None


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
    stage.unconfirmed = {}


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


# -- the guards of exactly-once -------------------------------------------------------------------------------------------


def _log_last(driver: Driver, batch: FlushBatch) -> None:
    """The journal first, and the log when that is on disk."""
    effects = batch.effects
    if effects.journal or effects.forget:
        if effects.journal:
            driver.journal.append(effects.journal)
        driver.journal.sync()
        driver.on_synced(effects)
        driver.crash_point("flush:before-log")
        driver.log.write(effects.kept, batch.published)
        for topic, up_to in effects.forget:
            driver.log.forget(topic, up_to)
        driver.journal.sync()
        driver.crash_point("flush:after-sync")
    if batch.snapshot is not None:
        driver.journal.replace(batch.snapshot)


def _last_number(retention: LogTrimmer, topic: str) -> int:
    return retention.shelf.last(topic)


def _named_floors_only(retention: LogTrimmer, topic: str) -> int:
    if len(retention._floors) < retention.registrars:
        return 0
    return min(acked.get(topic, ENDLESS) for acked, _ in retention._floors.values())


_begin_at = Delivery.begin_at


def _begin_at_by_delta(delivery: Delivery, *place: Any) -> None:
    _begin_at(delivery, *place)
    for queue in delivery._queues.values():
        queue.segment.needs_full = False


def _expect_nothing(owner_logs: OwnerLogs, now: float) -> list[Any]:
    return []


def _acknowledge_what_was_in_hand(in_hand: InHand, holder: object) -> Any:
    in_hand._expect_several()
    counts = in_hand._hands.pop(holder, [])
    places = [place for place in in_hand._taken if place.count in counts]
    if places:
        in_hand.handled_to(places[-1].count)
    return places[-1] if places else None


_tick_pubends = OwnerLogs.tick


def _set_deadlines_anew(owner_logs: OwnerLogs, now: float) -> list[Any]:
    for topic in owner_logs._stirred:
        for _, lasts in owner_logs._milestones:
            lasts.pop(topic, None)
    return _tick_pubends(owner_logs, now)


_refuse = Registrar.refuse


def _refuse_no_epoch(registrar: Registrar, request: Request, ask: ChangeAsk) -> Refusal | None:
    subscription = registrar.subscriptions.get(ask.subscription)
    if subscription is not None:
        subscription.epoch = -1
    return _refuse(registrar, request, ask)


_read = LogReader.read


def _read_incomplete(
    reader: LogReader, topic: str, first: int, last: int, bytes_max: int, full: bool = False
) -> LogReading:
    reading = _read(reader, topic, first, last, bytes_max, full)
    told = {number for item in reading.items for number in range(item.first, item.last + 1)}
    items = list(reading.items)
    for row in reader.shelf.get("events", topic, max(first, reading.floor + 1), reading.read_to):
        if row.first not in told:
            chunk = Chunk(row.last - row.first + 1, row.data)
            items.append(LogItem(row.first, row.last, {}, False, [], row.first, 0, 0.0, [chunk]))
    return LogReading(sorted(items, key=lambda item: item.first), reading.floor, reading.read_to)


def _always_clean(delivery: Delivery) -> None:
    delivery.left_up_to = delivery.changes.version


_unpack = RecordPacker.unpack


def _unpack_at_once(packer: RecordPacker, topic: str, item: LogItem) -> list[Arrival]:
    """Silence waits for nothing."""
    arrivals = _unpack(packer, topic, item)
    if arrivals[0].last:
        arrivals[0].entries = {}
    return arrivals


def _filter_of_last(delivery: Delivery, topic: str) -> str:
    """Its filter, whatever else may hold for some of its numbers."""
    queue = delivery._queues.get(topic)
    return "" if queue is None else queue.last_segment.where


_tell = Hosting._tell


def _tell_all_what_one_wants(hosting: Hosting, told: LogReply, *others: Any) -> None:
    """What was left out for one subscription is left out for those that are told after it."""
    before = len(hosting.tells)
    _tell(hosting, told, *others)
    for _, said in hosting.tells[before:]:
        assert isinstance(said, Recovered)
        left = {item.first: item for item in said.reply.items}
        told.items[:] = [left.get(item.first, item) for item in told.items]


def _missed_by_any(curious: _Curious, where: str) -> Ranges:
    """Its last filter is for all that a subscription misses."""
    for numbers in curious.numbers.values():
        curious.numbers = {where: numbers}
    return curious.numbers.setdefault(where, Ranges())


def _floors_without_gains(subscription: SubscriptionState) -> dict[str, int]:
    if subscription.resume is None or subscription.ended:
        return dict(subscription.low)
    return subscription._named_floors(subscription.resume)


def _nothing_unwanted(delivery: Delivery, topic: str, queue: TopicQueue, head: Arrival) -> None:
    _notify(delivery, topic, queue, head)
    if queue.segment.wants is not None and not queue.segment.wants(head):
        delivery.position -= 1


_notify = Delivery._notify


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


def _refuse_nobody(registrar: Registrar, request: Request, ask: ChangeAsk) -> Refusal | None:
    found = registrar.subscriptions.get(ask.subscription)
    whose = request if found is None else replace(request, identity=found.owner)
    return _refuse(registrar, whose, ask)


def _refuse_no_later_epoch(registrar: Registrar, request: Request, ask: ChangeAsk) -> Refusal | None:
    found = registrar.subscriptions.get(ask.subscription)
    following = 1 if found is None else found.epoch + 1
    return _refuse(registrar, request, replace(ask, opens=min(ask.opens, following)))


_handle_subscriber = Driver.handle_subscriber


def _unchecked(driver: Driver, session: str, message: FromSubscriber, now: float, identity: str = "") -> None:
    with patch("ordered_pubsub.core.stage.driver.check_message", _nothing):
        _handle_subscriber(driver, session, message, now, identity)


def _for_ever(lease: Lease, rank: int, asked_at: float, now: float) -> bool:
    return True


def _acknowledge_past_hands(subscriber: Subscriber, acking: Acknowledging, now: float) -> None:
    with patch.object(InHand, "__len__", lambda in_hand: 0):
        _acknowledge_passed(subscriber, acking, now)


_acknowledge_passed = Subscriber._acknowledge_passed


def _leave_once(leaving: Leaving, subscription: str, now: float) -> None:
    _leave(leaving, subscription, now)
    leaving._left[subscription].pause_s = float("inf")


_leave = Leaving.leave


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


def _without_tags(judge: Inspection, topic: str, tag: bytes, stamp: Stamp, head: bytes, content: bytes) -> str:
    verdict = _judge(judge, topic, tag, stamp, head, content)
    return ARRIVED if verdict in ("tag", "untagged") else verdict


def _of_any_system(judge: Inspection, topic: str, tag: bytes, stamp: Stamp, head: bytes, content: bytes) -> str:
    own = msgspec.structs.replace(stamp, system=judge.system)
    return _judge(judge, topic, tag, own, head, content)


_judge = Inspection.judge


def _keep_the_last(delivery: Delivery, kept: dict[int, Arrival], arrival: Arrival) -> None:
    if arrival.number in kept and not arrival.last:
        arrival = msgspec.structs.replace(arrival, is_logged=True, full=True)
    _keep(delivery, kept, arrival)


_keep = Delivery._keep


def _never_doubted(delivery: Delivery, topic: str) -> None:
    """It waits."""


# -- the guards of topics that rest ---------------------------------------------------------------------------------------


def _no_number(numbers: LastNumbers, topic: str) -> int:
    return 0


def _on_disk_only(numbers: LastNumbers, topic: str) -> int:
    return numbers.shelf.number(topic)


def _wake_unsaid(stage: Stage, parts: Iterable[Any]) -> None:
    """It is woken, and the journal does not say so."""
    before = len(stage.effects.journal)
    _wake(stage, parts)
    del stage.effects.journal[before:]


_wake = Stage._wake


def _wake_what_comes(stage: Stage, message: Durable) -> Iterable[Any]:
    """What waits until a change is done is forgotten."""
    return [] if isinstance(message, Done) else _concerned(stage, message)


_concerned = Stage._concerned


def _rest_at_once(resting: Resting, topic: str) -> bool:
    """Whatever subscriptions hold it, or follow a change of it."""
    state = resting.stage.state
    return topic not in state.kept or resting.shelf.floor(topic) >= state.kept[topic]


def _named_by_nobody(retention: LogTrimmer, topic: str) -> bool:
    return False


def _take_woken_unmarked(stage: Stage, numbers: dict[str, int]) -> None:
    _take_woken(stage, numbers)
    for topic in numbers:
        stage.state.marks.pop(topic, None)


_take_woken = Stage._take_woken


def _always_still(resting: Resting, topic: str, candidate: object) -> bool:
    """Whoever has begun to hold it in the meantime."""
    return topic in resting.stage.state.clocks.numbers or topic in resting.stage.state.groups.owed


def _logged_or_not(resting: Resting, topic: str) -> bool:
    groups, clocks = resting.stage.state.groups, resting.stage.state.clocks
    return topic in clocks.numbers and topic not in groups.held and topic not in groups.reach


def _see_if_counted(clocks: Clocks, topic: str, number: int, groups: Groups) -> None:
    """Only of what has been counted already."""
    if topic in clocks.seen:
        clocks.see(topic, number)


def _prune_what_is_owed(clocks: Clocks, topics: Iterable[str], groups: Groups) -> None:
    for topic in topics:
        if topic not in groups.filled:
            for table in (clocks.visited, clocks.own_changed, clocks.lower_changed, clocks.seen):
                table.pop(topic, None)


def _wanted_if_settled(groups: Groups, topic: str) -> bool:
    return topic in groups.filled or topic in groups.owed_to


# -- the guards of a client -----------------------------------------------------------------------------------------------


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


# -- the guards of who reads ranges of the logs, and of tasks that are run again -------------------------------------------


def _known_of_any(owner: OwnerRange) -> int | None:
    """Up to the last place of any topic."""
    return max((one.batches[-1].place for one in owner.topics if not one.is_over and one.batches), default=None)


def _satisfied_at_once(reader: RangeReader, head: LogBatch) -> bool:
    return True


_receive = OwnerRange._receive


def _receive_by_delta(owner: OwnerRange, one: TopicRange, rows: Rows) -> None:
    one.needs_full = False
    _receive(owner, one, rows)


_skip = OwnerRange._skip


def _skip_in_silence(owner: OwnerRange, one: TopicRange, floor: int) -> None:
    lose, owner.lose = owner.lose, _nothing
    _skip(owner, one, floor)
    owner.lose = lose


def _not_lowered(start: Mapping[str, int], clock: Mapping[str, int], is_whole: bool = True) -> Search[Clock | None]:
    yield BoundsAsk(start, clock, is_whole)
    return dict(clock)


_acknowledgement = NamedReader._acknowledgement


def _acknowledge_the_cut(reader: NamedReader, session: str, change: Change, start: Mapping[str, int]) -> Acked:
    return _acknowledgement(reader, session, change, change.entries)


def _always_news(writer: StageWriter, row: int) -> bool:
    return True


def _found_whatever_it_is(writer: StageWriter, answer: Answer | Refusal) -> None:
    writer._know(answer.sequence)


_traced = StageWriter.traced


def _traced_whatever_epoch(writer: StageWriter, traced: Traced) -> None:
    _traced(writer, replace(traced, epoch=min(traced.epoch, writer.epoch)))


def _traced_whatever_was_taken(writer: StageWriter, traced: Traced) -> None:
    known = traced.sequences if writer._taken is None else [writer._taken]
    _traced(writer, replace(traced, sequences=known))


def _traced_and_no_more(writer: StageWriter, traced: Traced) -> None:
    if writer._taken is None:
        _traced(writer, traced)
    else:
        writer._become(READY)


_ask_writer = StageWriter._ask


def _ask_no_more_of_the_last(writer: StageWriter) -> None:
    _ask_writer(writer)
    request = writer.says[-1]
    assert isinstance(request, Request)
    writer.says[-1] = replace(request, done=writer._published.sequence)


def _put_side_by_side(task: TaskWriter, row: Any, way: Any) -> Any:
    if not way.filling.has_room(row, task.events_max):
        yield from task._send(way)
    task._add(row, way)


MUTANTS = (
    Mutant(
        "jump",
        "an operation never jumps over a stage",
        ((Stage, "next_stage", _jump), (Stage, "_check_message", _nothing)),
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
    Mutant("no-marks", "the next event after a change carries its mark", ((Stage, "_mark", _nothing),)),
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
            (Topology, "check_same", _nothing),
            (Topology, "check_still_owned", _nothing),
            (Stage, "_open", _open_unconfirmed),
        ),
    ),
    Mutant("forgetful-snapshot", "a snapshot holds all that was counted", ((Stage, "snapshot", _forgetful_snapshot),)),
    # Ours, beyond the first twelve: what the simulation taught us.
    Mutant(
        "lead-the-change",
        "events follow a change of their topic's subscription up the line until it is done",
        ((Groups, "follow", _nothing),),
        "exchange",
    ),
    Mutant(
        "lead-the-exchange",
        "… and those of a topic that the change gains",
        ((Groups, "follow", _nothing),),
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
    # Exactly once, over an ENS that loses.
    Mutant(
        "ask-once",
        "what a home stage has asked an owner for is asked for again after a while",
        ((Consolidation, "forget_expired", _nothing),),
    ),
    Mutant(
        "log-after-journal",
        "events are in the log before the journal says so, and before the answer",
        ((Driver, "make_safe", _log_last),),
    ),
    Mutant(
        "cut-nothing",
        "what the journal knows nothing of is cut from the log",
        ((LogWriter, "cut", _nothing),),
        "reordered-after-crash",
    ),
    Mutant(
        "incomplete-told",
        "the log tells nothing of an operation that is not complete",
        ((LogReader, "read", _read_incomplete),),
    ),
    Mutant(
        "no-tail",
        "an owner says how far a topic is, to those who have not acknowledged its last events",
        ((OwnerLogs, "tick", _expect_nothing),),
    ),
    Mutant(
        "deadline-anew",
        "the time after which an owner says how far a topic is runs for each event, and not from the last one on",
        ((OwnerLogs, "tick", _set_deadlines_anew),),
        "starved",
    ),
    Mutant(
        "forget-unasked",
        "what is not acknowledged is not forgotten",
        ((LogTrimmer, "_acked", _last_number),),
    ),
    Mutant(
        "default-to-now",
        "of a topic that a registrar does not name only what there was when it was asked is not needed",
        ((LogTrimmer, "_acked", _named_floors_only),),
    ),
    Mutant(
        "gain-unblocked",
        "nothing is forgotten of a topic that changes under way gain",
        ((SubscriptionState, "floors", _floors_without_gains),),
    ),
    Mutant(
        "resume-by-delta",
        "who resumes judges the first event of each topic by its full timestamp",
        ((Delivery, "begin_at", _begin_at_by_delta),),
        "gained-then-died",
    ),
    Mutant(
        "clean-too-early",
        "an acknowledgement names the last change before which nothing is being left any more",
        ((Delivery, "_note_left", _always_clean),),
        "left-then-died",
    ),
    Mutant(
        "handed-out",
        "what was handed out is not acknowledged before all that came before it was handled",
        ((InHand, "ask", _acknowledge_what_was_in_hand),),
    ),
    Mutant(
        "late-opening",
        "a request of an earlier session takes a named subscription from no later one",
        ((Registrar, "refuse", _refuse_no_epoch),),
        "opened-late",
    ),
    Mutant(
        "silence-at-once",
        "silence has its place in the order as events have",
        ((RecordPacker, "unpack", _unpack_at_once),),
    ),
    Mutant(
        "filtered-for-void",
        "what a home stage leaves out for one filter it has for the others",
        ((Hosting, "_tell", _tell_all_what_one_wants),),
    ),
    Mutant(
        "filter-of-all",
        "what was asked for by one filter is not chosen by another",
        ((_Curious, "missed", _missed_by_any),),
        "filter-after-filter",
    ),
    Mutant(
        "filter-of-last",
        "a filter is asked by only if none but it holds for what is missing",
        ((Delivery, "filter_of", _filter_of_last),),
    ),
    Mutant(
        "count-wanted",
        "what a filter takes out has its place, and is counted",
        ((Delivery, "_notify", _nothing_unwanted),),
    ),
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
        "tag-unchecked",
        "what no stage has tagged has not arrived",
        ((Inspection, "judge", _without_tags),),
    ),
    Mutant(
        "system-unchecked",
        "what is of another system has not arrived",
        ((Inspection, "judge", _of_any_system),),
    ),
    Mutant(
        "replace",
        "what the ENS brings takes the place of nothing",
        ((Delivery, "_keep", _keep_the_last),),
    ),
    Mutant(
        "never-doubted",
        "what was made to wait by somebody who has the keys is asked for at its log",
        ((Delivery, "_doubt", _never_doubted),),
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
    Mutant(
        "passed-unhandled",
        "what was passed is acknowledged only when nothing before it is in anybody's hand",
        ((Subscriber, "_acknowledge_passed", _acknowledge_past_hands),),
    ),
    Mutant(
        "left-once",
        "that a subscription is over is said again, since nobody answers it",
        ((Leaving, "leave", _leave_once),),
    ),
    # What a client does by itself.
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
        ((inspection, "ASK_AGAIN_S", float("inf")), (Inspection, "connected", _nothing)),
    ),
    Mutant(
        "end-unsaid",
        "a subscription that stops by itself asks for its end",
        ((ClientSubscription, "stop", _stop_unsaid),),
    ),
    # What one client says must not hurt others.
    Mutant(
        "level-unchecked",
        "whether events are kept is said by their topic, not by who publishes them",
        ((Stage, "_refuse_level", _nothing),),
    ),
    Mutant(
        "request-unchecked",
        "a request that cannot be is refused",
        ((stage, "check_request", _nothing), (checking, "check_request", _nothing)),
    ),
    Mutant(
        "owner-unchecked",
        "a subscription belongs to the identity that began it",
        ((Registrar, "refuse", _refuse_nobody),),
    ),
    Mutant(
        "any-epoch",
        "who opens a subscription names the epoch after the last",
        ((Registrar, "refuse", _refuse_no_later_epoch),),
    ),
    Mutant(
        "client-unchecked",
        "what a client may say, every stage takes from every other",
        ((Driver, "handle_subscriber", _unchecked),),
    ),
    # Topics that rest.
    Mutant("begin-again", "a topic that rested goes on after its last number", ((LastNumbers, "number", _no_number),)),
    Mutant(
        "not-yet-there",
        "… also if that is only on its way to the disk",
        ((LastNumbers, "number", _on_disk_only),),
        "used-while-put-down",
    ),
    Mutant(
        "wake-unsaid",
        "what wakes a topic is in the journal before what needs it",
        ((Stage, "_wake", _wake_unsaid),),
        "woken-then-crashed",
    ),
    Mutant(
        "wake-what-comes",
        "a topic is woken for a change as well that has waited for its turn",
        ((Stage, "_concerned", _wake_what_comes),),
        "waits-while-resting",
    ),
    Mutant("rest-held", "no topic rests that somebody holds", ((Resting, "_may_rest", _rest_at_once),)),
    Mutant(
        "rest-needed",
        "no topic rests of which a registrar knows somebody who needs it, or is gaining it",
        ((LogTrimmer, "is_named", _named_by_nobody),),
        "left-and-late",
    ),
    Mutant(
        "rest-gained",
        "what was gained while the registrars were asked does not rest",
        ((Resting, "_is_still_idle", _always_still), (Resting, "_drop_touched", _nothing)),
    ),
    Mutant("rest-logged", "no topic rests of which the log has something", ((Resting, "_may_rest", _logged_or_not),)),
    Mutant(
        "wake-unmarked",
        "whoever has a change under way waits for its outcome before the first event of a topic that rested",
        ((Stage, "_take_woken", _take_woken_unmarked),),
        "left-without-outcome",
    ),
    Mutant(
        "see-again",
        "what passes is counted from the change on that lets it enter a group",
        ((Clocks, "passes", _see_if_counted),),
    ),
    Mutant(
        "prune-owed",
        "the count of a topic is not forgotten while it is owed",
        ((Clocks, "prune", _prune_what_is_owed),),
    ),
    Mutant(
        "row-later",
        "what changes have left to do in the row of a topic is done before its next event",
        ((Stage, "_settle", _nothing),),
    ),
    Mutant(
        "due-uncounted",
        "a topic about which something is due is counted as it passes",
        ((Groups, "is_wanted", _wanted_if_settled),),
        "due-when-read-again",
    ),
    # Ranges of the logs, and tasks that are run again.
    Mutant(
        "known-of-any",
        "of one owner's topics only that is next before which nothing can come of any of them",
        ((OwnerRange, "_horizon", _known_of_any),),
    ),
    Mutant(
        "range-at-once",
        "a batch waits until what its timestamp names has come from the other owners",
        ((RangeReader, "_is_satisfied", _satisfied_at_once),),
    ),
    Mutant(
        "range-by-delta",
        "the first batch of each topic of a range waits for its full timestamp",
        ((OwnerRange, "_receive", _receive_by_delta),),
    ),
    Mutant(
        "gone-in-silence",
        "what is gone of a range is said",
        ((OwnerRange, "_skip", _skip_in_silence),),
    ),
    Mutant(
        "old-line",
        "what was asked for on a line that is lost is asked for again",
        ((OwnerRange, "begin_anew", _nothing),),
    ),
    Mutant(
        "not-lowered",
        "a range ends where nothing in it needs anything beyond its end",
        ((cuts, "lower", _not_lowered), (ranges, "lower", _not_lowered)),
    ),
    Mutant(
        "commit-unread",
        "what somebody who follows topics under a name has not read is not acknowledged",
        ((NamedReader, "_acknowledgement", _acknowledge_the_cut),),
    ),
    Mutant(
        "write-again",
        "what an earlier run of a task has published is left out",
        ((StageWriter, "is_news", _always_news),),
    ),
    Mutant(
        "digest-unchecked",
        "a run that has other rows than the one before ends",
        ((StageWriter, "check", _nothing),),
    ),
    Mutant(
        "less-unnoticed",
        "… and so does one that has less",
        ((StageWriter, "check_end", _nothing),),
    ),
    Mutant(
        "refused-for-written",
        "what was refused is not published",
        ((StageWriter, "_found", _found_whatever_it_is),),
    ),
    Mutant(
        "later-batch-unnoticed",
        "a run ends when a later batch was written",
        ((StageWriter, "traced", _traced_whatever_epoch),),
    ),
    Mutant(
        "other-run-unnoticed",
        "… and when another run of its task has gone on",
        ((StageWriter, "traced", _traced_whatever_was_taken),),
    ),
    Mutant(
        "asked-on-one-line",
        "what has no answer is asked for again on the next line",
        ((StageWriter, "traced", _traced_and_no_more),),
    ),
    Mutant(
        "answer-let-go",
        "what was published last is still answered: another run asks for it",
        ((StageWriter, "_ask", _ask_no_more_of_the_last),),
    ),
    Mutant(
        "side-by-side",
        "where one order goes across stages, a row waits until those before it have their places",
        ((TaskWriter, "_put_behind", _put_side_by_side),),
    ),
)


HEAD = """\
# Mutants

A simulation that finds nothing may be blind. So the guards of the protocol are taken away one at a time, and the
simulation must find each of them missing within 2,000 seeds (or within 2,000 chances of a named scenario,
`tests/simulation/scenarios.py`); it counts only if nothing falls there with the guard. The first twelve belong to the
protocol as it was designed; the next nine, from `lead-the-change` on, are guards that the simulation itself has taught us;
those from `ask-once` on make it exactly once over an ENS that loses, also for who dies and comes back; the next five close the
holes that a publisher leaves where nobody keeps its events, and end what nothing is heard of in time; those from
`ask-unheld` on are what a client does by itself; those from `level-unchecked` on stand between a client and what is not
its to say; those from `begin-again` on let topics rest; and those from `known-of-any` on are of who reads ranges of the
logs, or writes by tasks that are run again. This page is written by `make mutants`, and
`tests/simulation/test_mutants.py` runs every line of it. To see one: `python -m ordered_pubsub.testing.simulate --seed N`
with the guard taken away in the code.

"I" numbers are those of [invariants.md](invariants.md); "order" is the one total order of all operations.

| mutant | the guard | seed | fell |
| --- | --- | --- | --- |
"""


def row(mutant: Mutant, found: Finding | None) -> str:
    """A line of docs/mutants.md."""
    seed, fell = (str(found.seed), found.violation.invariant) if found else ("none", "nothing")
    where = f"`{mutant.scenario}`, chance {seed}" if mutant.scenario else seed
    return f"| `{mutant.name}` | {mutant.guard} | {where} | {fell} |"


def row_of(number: int) -> str:
    """The line of a mutant, by its number: it itself cannot be sent to another process."""
    return row(MUTANTS[number], find(MUTANTS[number]))


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(row_of, range(len(MUTANTS))))
    sys.stdout.write(HEAD + "\n".join(rows) + "\n")
