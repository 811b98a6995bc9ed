"""Exactly once over an ENS that loses, also for who dies and comes back: logs, what is asked again, and what is acknowledged."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from ordered_pubsub.core.log.reader import LogReader, LogReading
from ordered_pubsub.core.log.retention import LogTrimmer
from ordered_pubsub.core.log.writer import LogWriter
from ordered_pubsub.core.messages import ChangeAsk, Chunk, LogItem, LogReply, Recovered, Refusal, Request
from ordered_pubsub.core.order.registered import SubscriptionState
from ordered_pubsub.core.order.registrar import Registrar
from ordered_pubsub.core.ranges import ENDLESS, Ranges
from ordered_pubsub.core.recovery._nacks import Consolidation
from ordered_pubsub.core.recovery.curiosity import Curiosity, _Curious
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.stage.driver import Driver, FlushBatch
from ordered_pubsub.core.subscriber.acknowledging import Acknowledging, InHand
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery, TopicQueue
from ordered_pubsub.core.subscriber.subscriber import Leaving, Subscriber
from ordered_pubsub.testing.packer import RecordPacker
from simulation.mutants.mutant import Mutant, nothing


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


_tell = Curiosity._tell


def _tell_all_what_one_wants(curiosity: Curiosity, told: LogReply, *others: Any) -> None:
    """What was left out for one subscription is left out for those that are told after it."""
    before = len(curiosity.tells)
    _tell(curiosity, told, *others)
    for _, said in curiosity.tells[before:]:
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


def _acknowledge_past_hands(subscriber: Subscriber, acking: Acknowledging, now: float) -> None:
    with patch.object(InHand, "__len__", lambda in_hand: 0):
        _acknowledge_passed(subscriber, acking, now)


_acknowledge_passed = Subscriber._acknowledge_passed


def _leave_once(leaving: Leaving, subscription: str, now: float) -> None:
    _leave(leaving, subscription, now)
    leaving._left[subscription].pause_s = float("inf")


_leave = Leaving.leave


MUTANTS = (
    Mutant(
        "ask-once",
        "what a home stage has asked an owner for is asked for again after a while",
        ((Consolidation, "forget_expired", nothing),),
    ),
    Mutant(
        "log-after-journal",
        "events are in the log before the journal says so, and before the answer",
        ((Driver, "make_safe", _log_last),),
    ),
    Mutant(
        "cut-nothing",
        "what the journal knows nothing of is cut from the log",
        ((LogWriter, "cut", nothing),),
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
        "gained-unheard",
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
        ((Curiosity, "_tell", _tell_all_what_one_wants),),
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
        "passed-unhandled",
        "what was passed is acknowledged only when nothing before it is in anybody's hand",
        ((Subscriber, "_acknowledge_passed", _acknowledge_past_hands),),
    ),
    Mutant(
        "left-once",
        "that a subscription is over is said again, since nobody answers it",
        ((Leaving, "leave", _leave_once),),
    ),
)
