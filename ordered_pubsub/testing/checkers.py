"""The judges of a simulation: they know the invariants and the observations, not the code.

Each takes a `Record` and notes what it finds as violations. `docs/invariants.md` lists the invariants.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

import attrs

from ordered_pubsub.core.messages import Change, ChangeAsk, Publication, PublishAsk
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.testing.history import LoggedEvent, full_timestamp, replay
from ordered_pubsub.testing.record import (
    EventRecord,
    Identity,
    Notified,
    RangeRecord,
    Record,
    SubscriptionRecord,
    TaskRecord,
)


class Stretch(NamedTuple):
    """Numbers of a topic that a subscription is entitled to."""

    start: int
    """after this one"""
    end: int
    """up to this one"""
    ended_by: int | None
    """the change that it ends with; None: it has none"""
    every: int
    """it wants the events whose index is a multiple of this"""


def check(record: Record) -> None:
    """Judge a whole run."""
    if record.violations:
        return
    numbers = _Numbers.collect(record)
    _check_numbers(record, numbers)
    _check_one_order(record)
    if record.violations:
        return
    _check_receipts(record)
    _check_voids(record, numbers)
    for subscription in record.subscriptions.values():
        _check_exactly_once(record, subscription, numbers)
        _check_positions(record, subscription, numbers)
        _check_causes(record, subscription, numbers)
        _check_best_effort(record, subscription, numbers)
        _check_lateness(record, subscription)
        _check_transactions(record, subscription)
    _check_commits(record)
    _check_pairs(record)
    logs = _logs(record)
    _check_history(record, numbers, logs)
    for found in record.ranges:
        _check_range(record, numbers, logs, found)
    for task in record.tasks:
        _check_task(record, numbers, task)


@attrs.define
class _Numbers:
    """All numbered events, and their full timestamps."""

    events: dict[str, dict[int, EventRecord]]
    full: dict[str, list[dict[str, int]]]
    """topic → the full timestamp of each number, from 1 on, put together from what changed"""
    published: dict[str, list[dict[str, int] | None]]
    """topic → what the timestamp of each number says, from 1 on; None if it says only what changed"""

    @classmethod
    def collect(cls, record: Record) -> _Numbers:
        events: dict[str, dict[int, EventRecord]] = {topic: {} for topic in record.world.topics}
        for event in record.events:
            if event.is_refused and not event.number:
                continue
            other = events[event.topic].get(event.number)
            if not event.number:
                record.violation("I4", f"event {event.index} on {event.topic} never got a number")
            elif other is not None:
                record.violation(
                    "I2", f"{event.topic} {event.number} was given to events {other.index} and {event.index}"
                )
            events[event.topic][event.number] = event
            event.is_void = event.number in record.voids.get(event.topic, ())
        topics = record.world.topics
        full = {topic: list(cls._fold(record, topic)) for topic in topics}
        return cls(events, full, {topic: list(cls._published(record, topic)) for topic in topics})

    @staticmethod
    def _published(record: Record, topic: str) -> Iterator[dict[str, int] | None]:
        yield None
        for completed in sorted(record.completed.get(topic, {}).values(), key=lambda entry: entry.first):
            for _ in range(completed.first, completed.last + 1):
                yield completed.entries if completed.full else None

    @staticmethod
    def _fold(record: Record, topic: str) -> Iterator[dict[str, int]]:
        """Full timestamps from the deltas that the owner logged."""
        full: dict[str, int] = {}
        yield full
        for completed in sorted(record.completed.get(topic, {}).values(), key=lambda entry: entry.first):
            full = {**full, **completed.entries}
            for _ in range(completed.first, completed.last + 1):
                yield full


def _check_numbers(record: Record, numbers: _Numbers) -> None:
    """I2: each number used once, none skipped."""
    for topic, events in numbers.events.items():
        if sorted(events) != list(range(1, len(events) + 1)):
            record.violation("I2", f"the numbers of {topic} have holes: {sorted(events)}")
        if record.owner_counts.get(topic, 0) != len(events):
            record.violation(
                "I2",
                f"the owner of {topic} has used {record.owner_counts.get(topic, 0)} numbers for {len(events)} events",
            )
        if len(numbers.full[topic]) != len(events) + 1:
            record.violation("I2", f"the log of {topic} has {len(numbers.full[topic]) - 1} events of {len(events)}")


# -- I1: one order -------------------------------------------------------------------------------------------------------


def _check_one_order(record: Record) -> None:
    """No cycle in what the stages handled before what, nor with what total subscriptions were notified of before what."""
    chains: list[list[Identity]] = list(record.handled)
    cycle = _find_cycle(chains)
    if cycle:
        record.violation("order", f"the stages' orders have a cycle: {' before '.join(map(str, cycle))}")
        return
    for subscription in record.subscriptions.values():
        if subscription.order == "total" and not subscription.best_effort and not subscription.from_start:
            chains.append(_operations(record, subscription))
    cycle = _find_cycle(chains)
    if cycle:
        record.violation("I1", f"notifications contradict the order: {' before '.join(map(str, cycle))}")


def _operations(record: Record, subscription: SubscriptionRecord) -> list[Identity]:
    """The operations in the order in which a subscription was notified of them; each in one piece, parts as written."""
    operations: list[Identity] = []
    before: EventRecord | None = None
    for notified in subscription.notifications:
        event = notified.event
        if before is None or event.operation != before.operation:
            operations.append(event.operation)
        elif (event.written, event.index) < (before.written, before.index):
            record.violation(
                "I1", f"{subscription.name}: the parts of {event.operation} came out of their written order"
            )
        before = event
    if len(set(operations)) != len(operations):
        record.violation("I1", f"{subscription.name}: an operation's events were not adjacent: {operations}")
    return operations


def _find_cycle(chains: list[list[Identity]]) -> list[Identity]:
    """A cycle in the union of the chains, or nothing."""
    following: dict[Identity, dict[Identity, bool]] = {}
    before: dict[Identity, int] = {}
    for chain in chains:
        for one in chain:
            following.setdefault(one, {})
            before.setdefault(one, 0)
        for one, two in pairwise(chain):
            if two not in following[one]:
                following[one][two] = True
                before[two] += 1
    free = [one for one, count in before.items() if not count]
    while free:
        one = free.pop()
        del before[one]
        for two in following[one]:
            before[two] -= 1
            if not before[two]:
                free.append(two)
    return _walk_cycle(before, following) if before else []


def _walk_cycle(left: dict[Identity, int], following: dict[Identity, dict[Identity, bool]]) -> list[Identity]:
    """What is left has a cycle, but also what hangs behind one: walk backwards, which must end in one."""
    preceding = {two: one for one in left for two in following[one] if two in left}
    path = [next(iter(left))]
    while path[-1] not in path[:-1]:
        path.append(preceding[path[-1]])
    return path[path.index(path[-1]) :][::-1]


def _check_pairs(record: Record) -> None:
    """I1 for the pairs that are in scope though not both subscriptions are total."""
    subscriptions = [s for s in record.subscriptions.values() if s.order != "topic" and not s.best_effort]
    for index, one in enumerate(subscriptions):
        for two in subscriptions[:index]:
            if "pairwise" in (one.order, two.order) or one.from_start or two.from_start:
                _check_pair(record, one, two)


def _check_pair(record: Record, one: SubscriptionRecord, two: SubscriptionRecord) -> None:
    places = {id(notified.event): place for place, notified in enumerate(two.notifications)}
    common = [(notified, places[id(notified.event)]) for notified in one.notifications if id(notified.event) in places]
    if all(first[1] < second[1] for first, second in pairwise(common)):
        return
    for index, (later, later_place) in enumerate(common):
        for earlier, earlier_place in common[:index]:
            if earlier_place > later_place and _is_in_scope(one, two, earlier.event, later.event):
                record.violation(
                    "I1",
                    f"{one.name} ({one.order}) and {two.name} ({two.order}) were notified in different order of "
                    f"{earlier.event.topic} {earlier.event.number} and {later.event.topic} {later.event.number}",
                )
                return


def _is_in_scope(one: SubscriptionRecord, two: SubscriptionRecord, first: EventRecord, second: EventRecord) -> bool:
    """Whether the order of two events was promised to both: one is total and held both topics then, or both held both."""
    held = [_held_both(one, first, second), _held_both(two, first, second)]
    return all(held) or (held[0] and one.order == "total") or (held[1] and two.order == "total")


def _held_both(subscription: SubscriptionRecord, first: EventRecord, second: EventRecord) -> bool:
    return second.topic in _topics_at(subscription, first) and first.topic in _topics_at(subscription, second)


def _topics_at(subscription: SubscriptionRecord, event: EventRecord) -> tuple[str, ...]:
    """What a subscription held at the place of an event that it was notified of."""
    topics: tuple[str, ...] = ()
    for _, change in _effective(subscription):
        if event.topic in change.topics and change.entries.get(event.topic, 0) >= event.number:
            break
        topics = change.new
    return topics


# -- I3, I11: everything, once, and nothing else ------------------------------------------------------------------------


def _effective(subscription: SubscriptionRecord) -> list[tuple[int, Change]]:
    """Its changes, in order. Whose client died for good may have had an outcome without that of the change before it."""
    outcomes = sorted(subscription.outcomes.items())
    if not subscription.is_orphan:
        return outcomes
    return [(version, change) for place, (version, change) in enumerate(outcomes, start=1) if version == place]


def _stretches(subscription: SubscriptionRecord, numbers: _Numbers) -> dict[str, list[Stretch]]:
    """What a subscription is entitled to, from the outcomes of its own changes alone."""
    stretches: dict[str, list[Stretch]] = {}
    open_at: dict[str, tuple[int, int]] = {}
    for version, change in _effective(subscription):
        for topic in change.new:
            if topic not in change.old:
                from_start = subscription.from_start and version == 1
                start = 0 if from_start else change.entries.get(topic, 0)
                open_at[topic] = (start, int(change.where.get(topic, "1")))
        for topic in change.old:
            if topic not in change.new:
                start, every = open_at.pop(topic)
                stretch = Stretch(start, change.entries.get(topic, 0), version, every)
                stretches.setdefault(topic, []).append(stretch)
    for topic, (start, every) in open_at.items():
        stretches.setdefault(topic, []).append(Stretch(start, len(numbers.events[topic]), None, every))
    return stretches


def _wanted(subscription: SubscriptionRecord, numbers: _Numbers) -> dict[str, list[int]]:
    """What it is to be notified of: what it is entitled to, as far as its filter lets it through."""
    return {
        topic: [
            number
            for stretch in stretches
            for number in range(stretch.start + 1, stretch.end + 1)
            if _is_wanted(subscription, stretch, numbers.events[topic][number])
        ]
        for topic, stretches in _stretches(subscription, numbers).items()
    }


def _is_wanted(subscription: SubscriptionRecord, stretch: Stretch, event: EventRecord) -> bool:
    return event.index % stretch.every == 0 and (not event.is_void or subscription.best_effort)


def _check_exactly_once(record: Record, subscription: SubscriptionRecord, numbers: _Numbers) -> None:
    entitled = _wanted(subscription, numbers)
    notified: dict[str, list[int]] = {}
    for entry in subscription.notifications:
        notified.setdefault(entry.event.topic, []).append(entry.event.number)
    for topic in {**entitled, **notified}:
        wanted, got = entitled.get(topic, []), notified.get(topic, [])
        if subscription.best_effort:  # not all, not in order, but nothing else
            wanted = got = sorted(got) if set(got) <= set(wanted) else wanted
        else:
            got = [number for number in got if not numbers.events[topic][number].is_void]
        if subscription.is_orphan:  # it died on its way
            wanted = wanted[: len(got)]
        if got != wanted:
            which = "I11" if set(got) - set(wanted) else "I3"
            record.violation(which, f"{subscription.name} was entitled to {topic} {wanted}, and notified of {got}")


def _check_lateness(record: Record, subscription: SubscriptionRecord) -> None:
    """I4, where a world says how late: nobody waits for long for what the ENS does not bring."""
    late_max_s = record.world.late_max_s
    if late_max_s is None:
        return
    for entry in subscription.notifications:
        handed_at = entry.event.handed_over_at
        if handed_at is not None and entry.at - handed_at > late_max_s:
            record.violation(
                "I4",
                f"{subscription.name} was notified of {entry.event.topic} {entry.event.number} {entry.at - handed_at:.1f} s "
                f"after it was published; {late_max_s:g} s may be",
            )
            return


def _check_receipts(record: Record) -> None:
    """I4: who is there knows of each of its events what has become of it."""
    for event in record.events:
        if event.number and event.publisher in record.present and not (event.has_receipt or event.is_known_void):
            record.violation("I4", f"the publisher of {event.topic} {event.number} has no receipt for it")


def _check_voids(record: Record, numbers: _Numbers) -> None:
    """Who is there learns that its number is void, and publishes nothing after that; and subscribers agree."""
    there = [one for one in record.subscriptions.values() if not (one.best_effort or one.is_orphan)]
    stretches = {one.name: _stretches(one, numbers) for one in there}
    notified = {one.name: {id(entry.event) for entry in one.notifications} for one in there}
    for event in (event for event in record.events if event.is_void or event.is_known_void):
        what, handed_at = f"{event.topic} {event.number}", event.handed_over_at
        if handed_at is None and not event.is_known_void and event.publisher in record.present:
            record.violation("I4", f"{what} is void, and its publisher does not know it")
        if not event.is_void:
            record.violation("I3", f"{what} is not void, though its publisher was told so")
        elif handed_at is not None and handed_at > record.voids[event.topic][event.number]:
            record.violation("I3", f"{what} was published after it had become void")
        entitled = {
            one.name: stretch.ended_by is None
            for one in there
            for stretch in stretches[one.name].get(event.topic, ())
            if stretch.start < event.number <= stretch.end
        }
        told = [name for name in entitled if id(event) in notified[name]]
        if any(entitled[name] for name in told) or 0 < len(told) < len(entitled):
            record.violation("I3", f"{what} is void, and {told} of {list(entitled)} were notified of it")


# -- I5: positions --------------------------------------------------------------------------------------------------------


def _check_positions(record: Record, subscription: SubscriptionRecord, numbers: _Numbers) -> None:
    positions = [entry.position for entry in subscription.notifications]
    if subscription.order == "topic" or subscription.best_effort:
        if any(position is not None for position in positions):
            record.violation("I5", f"{subscription.name} has positions, but promises none")
    elif positions != [entry.count for entry in subscription.notifications]:
        record.violation("I5", f"{subscription.name} was notified at the positions {positions}")
    if not subscription.best_effort:
        _check_counts(record, subscription, numbers)
    if subscription.order == "topic" or subscription.best_effort:
        return
    first = subscription.outcomes.get(1)
    if first is None or subscription.order != "total" or subscription.from_start:
        return
    for entry in subscription.notifications:
        if entry.version != 1 or not _is_before_change(subscription, entry):
            return  # from here on its topics change
        record.checked_positions += 1
        timestamp = {**numbers.full[entry.event.topic][entry.event.number], entry.event.topic: entry.event.number}
        sums = sum(max(0, timestamp.get(topic, 0) - first.entries.get(topic, 0)) for topic in first.new)
        if sums != entry.position:
            record.violation(
                "I5",
                f"{subscription.name}: {entry.event.topic} {entry.event.number} came at position {entry.position}, but its "
                f"entries {timestamp} add up to {sums} from the start {first.entries}",
            )
        counts = {topic: max(timestamp.get(topic, 0), first.entries.get(topic, 0)) for topic in first.new}
        if entry.vector != counts:
            record.violation("I5", f"{subscription.name}: the vector {entry.vector} should be {counts}")


def _check_counts(record: Record, subscription: SubscriptionRecord, numbers: _Numbers) -> None:
    """Without a filter 1, 2, 3, …; with one the holes are what it does not want: all that was passed is counted."""
    counts = [entry.count for entry in subscription.notifications]
    stretches = _stretches(subscription, numbers)
    takes_all = all(stretch.every == 1 for found in stretches.values() for stretch in found)
    if takes_all and not record.voids and counts != list(range(1, len(counts) + 1)):
        record.violation("I5", f"{subscription.name} has counted {counts}")
    for entry in subscription.notifications:
        passed = sum(_passed(entry, topic, stretch) for topic, found in stretches.items() for stretch in found)
        if entry.count != passed:
            record.violation(
                "I5",
                f"{subscription.name}: {entry.event.topic} {entry.event.number} came as number {entry.count} of what it "
                f"holds, but at {entry.vector} it has passed {passed}",
            )
            return


def _passed(entry: Notified, topic: str, stretch: Stretch) -> int:
    """How many events of a stretch come up to a notification."""
    is_over = stretch.ended_by is not None and stretch.ended_by <= entry.version
    reached = entry.vector.get(topic, stretch.end if is_over else stretch.start)
    return max(0, min(reached, stretch.end) - stretch.start)


def _is_before_change(subscription: SubscriptionRecord, entry: Notified) -> bool:
    second = subscription.outcomes.get(2)
    event = entry.event
    return second is None or (event.topic in second.topics and event.number <= second.entries.get(event.topic, 0))


# -- I6: cause before effect ----------------------------------------------------------------------------------------------


def _check_causes(record: Record, subscription: SubscriptionRecord, numbers: _Numbers) -> None:
    """A total subscription is notified of nothing before its causes, as far as it is ever entitled to them."""
    if subscription.order != "total" or subscription.best_effort or subscription.from_start:
        return
    wanted = _wanted(subscription, numbers)
    clock: dict[str, int] = {}
    for entry in subscription.notifications:
        event = entry.event
        clock[event.topic] = event.number
        for topic, number in event.causes().items():
            found = wanted.get(topic, [])
            before = bisect_right(found, number)
            if before and found[before - 1] > clock.get(topic, 0):
                record.violation(
                    "I6",
                    f"{subscription.name} was notified of {event.topic} {event.number} before its cause {topic} "
                    f"{found[before - 1]}",
                )


# -- I7: transactions ---------------------------------------------------------------------------------------------------


def _check_commits(record: Record) -> None:
    """What a transaction does to subscriptions is what was asked for, part by part; and each change goes on from the one
    before.
    """
    for identity, operation in record.seen.items():
        request = record.asked.get(identity)
        if not operation.transaction or request is None:
            continue
        asked = [
            (part.topic, part.count) if isinstance(part, PublishAsk) else part.subscription for part in request.parts
        ]
        done = [
            (part.topic, part.count) if isinstance(part, Publication) else part.subscription for part in operation.parts
        ]
        if asked != done:
            record.violation("I7", f"transaction {operation.transaction} was to do {asked}, and has done {done}")
        for ask, change in zip(request.parts, operation.parts, strict=True):
            if isinstance(ask, ChangeAsk) and isinstance(change, Change):
                _check_shift(record, operation.transaction, ask, change)
    for subscription in record.subscriptions.values():
        for (_, before), (version, change) in pairwise(_effective(subscription)):
            if change.old != before.new:
                record.violation(
                    "I8", f"{subscription.name} held {before.new}, and change {version} goes on from {change.old}"
                )


def _check_shift(record: Record, transaction: str, ask: ChangeAsk, change: Change) -> None:
    held = set(change.old)
    expected = (held - set(ask.remove)) | set(ask.add)
    if set(change.new) != expected:
        record.violation("I7", f"{transaction}: {change.subscription} was to hold {sorted(expected)}, not {change.new}")
    if ask.strict and (held & set(ask.add) or set(ask.remove) - held):
        record.violation(
            "I8", f"{transaction} has happened, and {change.subscription} held {change.old} at its place: {ask}"
        )


def _check_transactions(record: Record, subscription: SubscriptionRecord) -> None:
    """Each event says which transaction it is in, if any; and a total subscription is notified of a transaction in one go.

    Who has acknowledged a part of one, and died, goes on with the rest. That nothing comes between its events, and that they come
    as they were written, is I1; that all of them come, I3 and I4.
    """
    told: dict[tuple[Identity, int], list[Notified]] = {}
    for entry in subscription.notifications:
        identity = entry.event.operation
        if entry.transaction != record.transactions.get(identity, ""):
            record.violation(
                "I7",
                f"{subscription.name}: {entry.event.topic} {entry.event.number} is said to be of {entry.transaction!r}, and is "
                f"of {record.transactions.get(identity, '')!r}",
            )
        if entry.transaction:
            told.setdefault((identity, entry.process), []).append(entry)
    if subscription.order != "total" or subscription.best_effort:
        return
    for (identity, _), entries in told.items():
        record.checked_transactions += 1
        if len({entry.at for entry in entries}) > 1:
            what = [(entry.event.topic, entry.event.number, entry.at) for entry in entries]
            record.violation(
                "I7", f"{subscription.name} was notified of {record.transactions[identity]} bit by bit: {what}"
            )


# -- I10: best effort -----------------------------------------------------------------------------------------------------


def _check_best_effort(record: Record, subscription: SubscriptionRecord, numbers: _Numbers) -> None:
    """Exactly the notifications out of place are tagged: judged by the full timestamps and a clock of our own."""
    if not subscription.best_effort:
        if any(entry.out_of_order for entry in subscription.notifications):
            record.violation("I10", f"{subscription.name} is not best-effort, but has tagged notifications")
        return
    seen: set[tuple[str, int]] = set()
    clock: dict[str, int] = {}
    version = 0
    for entry in subscription.notifications:
        for settled in range(version + 1, entry.version + 1):
            _apply(subscription.outcomes[settled], clock)
        version = max(version, entry.version)
        event = entry.event
        if (event.topic, event.number) in seen:
            record.violation("I3", f"{subscription.name} was notified twice of {event.topic} {event.number}")
        seen.add((event.topic, event.number))
        if event.topic not in clock:
            continue  # the last of a topic that it has left just now
        full = numbers.published[event.topic][event.number]
        if full is None:
            record.violation(
                "I10", f"{subscription.name}: {event.topic} {event.number} came without its full timestamp"
            )
            continue
        in_order = event.number == clock[event.topic] + 1 and all(
            full.get(topic, 0) <= count for topic, count in clock.items() if topic != event.topic
        )
        if entry.out_of_order == in_order:
            record.violation(
                "I10",
                f"{subscription.name}: {event.topic} {event.number} is {'' if entry.out_of_order else 'not '}tagged, with "
                f"entries {full} at the clock {clock}",
            )
        clock[event.topic] = max(clock[event.topic], event.number)


def _apply(change: Change, clock: dict[str, int]) -> None:
    for topic in change.old:
        if topic not in change.new:
            clock.pop(topic, None)
    for topic in change.new:
        if topic not in change.old:
            clock[topic] = change.entries.get(topic, 0)


# -- history --------------------------------------------------------------------------------------------------------------


def _logs(record: Record) -> dict[str, list[LoggedEvent]]:
    """The logs of all topics, as their owners have written them."""
    return {
        topic: [
            LoggedEvent(
                entry.topic,
                entry.first,
                entry.last,
                entry.entries,
                record.world.owners[topic],
                entry.place,
                entry.published_at,
                entry.transaction,
            )
            for entry in sorted(found.values(), key=lambda entry: entry.first)
        ]
        for topic, found in record.completed.items()
    }


def _check_history(record: Record, numbers: _Numbers, logs: dict[str, list[LoggedEvent]]) -> None:
    """Who reads the logs later, from any clock, sees no pair in another order than those who were there."""
    for subscription in record.subscriptions.values():
        if subscription.order != "total" or subscription.best_effort:
            continue
        for fraction in (0, 2):
            topics = {topic: 0 for change in subscription.outcomes.values() for topic in change.new}
            clock = {t: len(numbers.events[t]) * (place * 7 % 5) * fraction // 10 for place, t in enumerate(topics)}
            order = [(event.topic, event.number) for event in replay(logs, clock)]
            _compare_history(record, subscription, f"the history of {clock}", clock, order, numbers)
            order = _begin_anew(logs, clock, record.world.seed)
            _compare_history(record, subscription, f"a subscriber that began at {clock}", clock, order, numbers)


def _check_range(record: Record, numbers: _Numbers, logs: dict[str, list[LoggedEvent]], found: RangeRecord) -> None:
    """I14: what is in a range and not gone, once, in the order of history."""
    where = f"the range from {found.start} to {found.end}"
    lost = {(topic, number) for topic, first, last in found.lost for number in range(first, last + 1)}
    got: dict[str, list[int]] = {topic: [] for topic in found.end}
    for topic, number, index in found.events:
        got[topic].append(number)
        if numbers.events[topic][number].index != index:
            record.violation("I14", f"{where} has event {index} as {topic} {number}")
    for topic, last in found.end.items():
        wanted = [n for n in range(found.start[topic] + 1, last + 1) if (topic, n) not in lost]
        if got[topic] != wanted:
            record.violation("I14", f"{where} has {topic} {got[topic]}, and should have {wanted}")
            return
    clock = dict(found.start)
    for topic, number, _ in found.events:
        for other, count in numbers.full[topic][number].items():
            if other != topic and other in clock and clock[other] < count and (other, count) not in lost:
                record.violation("I14", f"{where} has {topic} {number} before {other} {count}")
                return
        clock[topic] = number
    if not lost:
        ended = {
            topic: [entry for entry in logs[topic] if entry.first <= last]
            for topic, last in found.end.items()
            if last > found.start[topic]
        }
        order = [
            (past.topic, past.number) for past in replay(ended, found.start) if past.number <= found.end[past.topic]
        ]
        if order != [(topic, number) for topic, number, _ in found.events]:
            record.violation("I14", f"{where} has another order than history: {found.events}, and not {order}")


def _check_task(record: Record, numbers: _Numbers, task: TaskRecord) -> None:
    """I15: rows have their order on each topic; that each is published once is seen when they are (`number_rows`).

    The logs have the order across topics, too, as long as nobody publishes on several of them together: what is between its parts
    decides a pair that nobody holds together, and may decide it against the clock. Who holds both is judged by I6.
    """
    is_in_one_order = task.is_in_one_order and not any(
        len({part.topic for part in operation.parts if isinstance(part, Publication)}) > 1
        for operation in record.seen.values()
    )
    for event in task.wrong:
        if event.number:
            record.violation("I15", f"{task.writer}: a wrong row was published as {event.topic} {event.number}")
    last: dict[str, int] = {}
    for batch, events in enumerate(task.batches):
        for event in events:
            if event.number <= last.get(event.topic, 0):
                record.violation(
                    "I15",
                    f"{task.writer}: {event.topic} {event.number} of batch {batch} comes behind {last[event.topic]}",
                )
            last[event.topic] = event.number
        for before, after in pairwise(events) if is_in_one_order else ():
            others = numbers.full[before.topic][before.number]
            if before.topic != after.topic and others.get(after.topic, 0) >= after.number:
                record.violation(
                    "I15", f"{task.writer}: {after.topic} {after.number} comes before {before.topic} {before.number}"
                )


def _begin_anew(logs: dict[str, list[LoggedEvent]], clock: dict[str, int], seed: int) -> list[tuple[str, int]]:
    """What a subscriber is notified of that begins at a clock and gets the events since, in no order."""
    delivery = Delivery("reader")
    delivery.begin_at(clock)
    arrivals = []
    for topic, count in clock.items():
        for logged in logs.get(topic, ()):
            for number in range(max(logged.first, count + 1), logged.last + 1):
                is_first = number == count + 1
                entries = (
                    full_timestamp(logs[topic], number)
                    if is_first
                    else logged.entries
                    if number == logged.first
                    else {}
                )
                arrivals.append(Arrival(topic, number, entries, full=is_first))
    for arrival in Random(seed).sample(arrivals, len(arrivals)):
        delivery.receive(arrival)
    return [(found.arrival.topic, found.arrival.number) for found in delivery.take_ready()]


def _compare_history(
    record: Record,
    subscription: SubscriptionRecord,
    reader: str,
    clock: dict[str, int],
    order: list[tuple[str, int]],
    numbers: _Numbers,
) -> None:
    wanted = sum(len(numbers.events[topic]) - count for topic, count in clock.items())
    if len(order) != wanted:
        record.violation("I4", f"{reader} has {len(order)} events instead of {wanted}")
    places = {event: place for place, event in enumerate(order)}
    live = [entry.event for entry in subscription.notifications if (entry.event.topic, entry.event.number) in places]
    common = [(event, places[(event.topic, event.number)]) for event in live]
    if all(first[1] < second[1] for first, second in pairwise(common)):
        return
    for index, (later, later_place) in enumerate(common):
        for earlier, earlier_place in common[:index]:
            if earlier_place > later_place and _held_both(subscription, earlier, later):
                record.violation(
                    "I1",
                    f"{reader} has {later.topic} {later.number} before {earlier.topic} {earlier.number}, unlike "
                    f"{subscription.name}",
                )
                return
