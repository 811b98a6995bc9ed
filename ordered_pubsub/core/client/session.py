"""The client's side of requests: numbers them, pipelines them, and asks again until each has its answer.

Publications are sent in the order in which they were queued. Those that the same stage takes are pipelined, since that
stage takes them in their order; one for another stage waits until those before it are complete, so it can never overtake
them: this keeps cause before effect across topics. What waits in the queue is merged: consecutive publications on one topic
become one batch, and batches on several topics become the parts of one operation, in their order, so that waiting costs a
journey for all of them and not for each. The first publication on a topic goes alone: if the stage refuses it, nothing else is
refused with it.

Changes of subscriptions are not ordered against publications and are sent at once, up to `CHANGES_IN_FLIGHT_MAX`. A transaction
that changes subscriptions comes after all that was published before it was asked for, and may have to wait for its turns. What is
published after it does not wait for it: whoever wants that waits for its outcome.

The outcomes of publications are given to the caller in the order of their requests, whatever the order of the answers. So
no subscriber can know of a publication, and publish what follows from it, before the client's earlier ones have their place.

Everything unfinished is sent again, the same and in order, when the client has a home again (`connected`) or when no answer
has come for a while (`tick`). The identity of a request makes that harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import msgspec

from ordered_pubsub.core.checking import BATCH_EVENTS_MAX
from ordered_pubsub.core.messages import (
    Answer,
    Change,
    ChangeAsk,
    Publication,
    PublishAsk,
    Refusal,
    Request,
)
from ordered_pubsub.core.states import States
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import (
    AccessDenied,
    Closed,
    OrderedPubSubError,
    SessionExpired,
    TopicError,
    TransactionAborted,
    TransactionConflict,
    UnavailableError,
    UsageError,
    WouldBlock,
)

PIPELINE_EVENTS_MAX = 10_000
REQUESTS_IN_FLIGHT_MAX = 64
CHANGES_IN_FLIGHT_MAX = 64
PARTS_MERGED_MAX = 64
REQUEST_BYTES_MAX = 1 << 18
"""Bytes of events in a request that has more than one: small ones are merged, large ones go alone."""
ACCEPTED_REMEMBERED_MAX = 10_000
RESEND_AFTER_S = 2.0


UNDER_WAY, ANSWERED, OUT = "under way", "answered", "out"
REQUESTS = States(
    "a request of a client",
    {
        "queued": {
            UNDER_WAY: "its turn has come: what it waits for is complete, and there is room",
            "queued": "others are put together with it",
        },
        UNDER_WAY: {
            UNDER_WAY: "there is another home stage, or no answer for long: it is sent again, the same",
            ANSWERED: "its answer is there, and not those of all publications before it",
            OUT: "its answer is there, and so are those before it",
        },
        ANSWERED: {OUT: "the answers to those before it are there"},
        OUT: {},
    },
)


@attrs.define(slots=True, eq=False)
class Queued:
    """A request that waits to be sent: topics, with the caller's own thing for each event of each, and perhaps a change."""

    topics: list[str]
    items: list[list[Any]]
    change: ChangeAsk | None = None
    may_merge: bool = False
    """whether others may take their place together with it: publications on topics of one stage that nobody asked to keep to
    themselves"""
    weight: int = 0
    """how many bytes of events go along"""
    rank: int = 0
    """of the stage that takes it"""
    is_transaction: bool = False
    """whether subscribers are to be notified of all of it together"""
    written: Sequence[int | ChangeAsk] = ()
    """of a transaction that changes subscriptions: its parts as they were written, those with events by their places here"""

    @property
    def is_commit(self) -> bool:
        """Whether it is a transaction that changes subscriptions: it may have to wait for its turns at them."""
        return bool(self.written)

    @property
    def keeps_order(self) -> bool:
        """Whether it is a publication, which nothing that is published later overtakes."""
        return bool(self.items) and not self.written

    @property
    def count(self) -> int:
        """How many events these are."""
        return sum(map(len, self.items))


class Packer(Protocol):
    """Makes of events what their topic's log keeps of them."""

    def weigh(self, topic: str, items: Sequence[Any]) -> int:
        """How many bytes that will be, about; 0 for a topic without a log."""

    def ask(self, topic: str, items: Sequence[Any]) -> PublishAsk:
        """Ask for numbers for all these events, which go along if the topic has a log."""


class NoLogs:
    """Every topic's events stay with their publisher."""

    def weigh(self, topic: str, items: Sequence[Any]) -> int:
        """Nothing."""
        return 0

    def ask(self, topic: str, items: Sequence[Any]) -> PublishAsk:
        """For numbers only."""
        return PublishAsk(topic, len(items))


@attrs.define(slots=True, eq=False)
class Unfinished:
    """A request that was sent and has no answer yet."""

    request: Request
    rank: int
    queued: Queued
    sent_at: float
    asked_at: float
    """when it was sent for the first time"""


@attrs.frozen(slots=True, eq=False)
class Outcome:
    """What became of a request: its completed parts, or why it was refused."""

    sequence: int
    asked: Queued
    publications: list[Publication]
    change: Change | None
    refusal: Refusal | None
    asked_at: float = 0.0
    """when it was sent for the first time"""
    changes: Sequence[Change] = ()
    """of a transaction"""
    transaction: str = ""
    """what it is called, if it is one"""


@attrs.define(eq=False)
class Session:
    """The requests of one client."""

    client: str
    topology: Topology
    epoch: int = 1
    pipeline_events_max: int = PIPELINE_EVENTS_MAX
    packer: Packer = attrs.field(factory=NoLogs)
    is_connected: bool = False
    sends: list[Request] = attrs.field(factory=list)
    """requests to be given to the home stage, in order; the caller empties it"""
    _sequence: int = 0
    _queued_events: int = 0
    _queued_changes: int = 0
    _changes_in_flight: int = 0
    """requests without publications that have no answer yet"""
    _accepted: dict[str, bool] = attrs.field(factory=dict)
    """topics on which a publication of this session was not refused"""
    _queue: deque[Queued] = attrs.field(factory=deque)
    _commits: deque[tuple[Queued, int]] = attrs.field(factory=deque)
    """transactions that change subscriptions and whose turn in the queue has come: sent when what was published up to that
    sequence is complete
    """
    _unfinished: dict[int, Unfinished] = attrs.field(factory=dict)
    _held: dict[int, Outcome] = attrs.field(factory=dict)
    """outcomes of publications that wait for those of earlier ones"""
    _last_sent: dict[int, int] = attrs.field(factory=dict)
    """rank → the sequence of the last request that was sent there"""

    def publish(self, topic: str, items: Sequence[Any], now: float) -> None:
        """Queue events for one topic; `items` come back with the outcome."""
        self.publish_runs([(topic, list(items))], now)

    def publish_runs(self, runs: Sequence[tuple[str, list[Any]]], now: float) -> None:
        """Queue runs of events, each for one topic, in this order. The lists are the session's from now on.

        Runs on topics of one stage would be merged later, whatever happens until then; so they are at once.
        """
        self._check_room(sum(len(items) for _, items in runs))
        queue, owner, accepted = self._queue, self.topology.owner, self._accepted
        last, room, may_go_along = Queued([], []), 0, False
        for topic, items, weight in self._cut(runs):
            count, rank, is_accepted = len(items), owner(topic), topic in accepted
            self._queued_events += count
            room -= count
            fits = room >= 0 and last.weight + weight <= REQUEST_BYTES_MAX and len(last.topics) < PARTS_MERGED_MAX
            if fits and may_go_along and is_accepted and rank == last.rank:
                last.topics.append(topic)
                last.items.append(items)
                last.weight += weight
            else:
                last, room = Queued([topic], [items], None, True, weight, rank), BATCH_EVENTS_MAX - count
                may_go_along = is_accepted
                queue.append(last)
        self._send_queued(now)

    def _cut(self, runs: Sequence[tuple[str, list[Any]]]) -> list[tuple[str, list[Any], int]]:
        """The same runs, with their weights, in pieces that are not too large for a request, unless it is one event that is."""
        pieces: list[tuple[str, list[Any], int]] = []
        weigh = self.packer.weigh
        for topic, items in runs:
            weight = weigh(topic, items)
            if weight > REQUEST_BYTES_MAX and len(items) > 1:
                half = len(items) // 2
                pieces += self._cut([(topic, items[:half]), (topic, items[half:])])
            else:
                pieces.append((topic, items, weight))
        return pieces

    def publish_together(
        self, parts: Sequence[tuple[str, Sequence[Any]]], now: float, is_transaction: bool = False
    ) -> Queued:
        """Queue one operation with publications on several topics, which take their place together.

        A transaction is one of which subscribers are notified together as well. What is returned comes back with the outcome.
        """
        self._check_room(sum(len(items) for _, items in parts))
        return self._queue_up(parts, None, now, is_transaction)

    def _check_room(self, count: int) -> None:
        if self._queued_events and self._queued_events + count > self.pipeline_events_max:
            raise WouldBlock(
                f"{self._queued_events} events wait to be numbered and {count} more would pass the limit of "
                f"{self.pipeline_events_max} (pipeline_events_max): wait for earlier publications first"
            )

    def commit(self, parts: Sequence[tuple[str, Sequence[Any]] | ChangeAsk], now: float) -> Queued:
        """Ask for a transaction that changes subscriptions; its parts take their place together, in their written order.

        What is returned comes back with the outcome.
        """
        written: list[int | ChangeAsk] = []
        topics: list[str] = []
        items: list[list[Any]] = []
        for part in parts:
            if isinstance(part, ChangeAsk):
                written.append(part)
            else:
                written.append(len(topics))
                topics.append(part[0])
                items.append(list(part[1]))
        self._check_room(sum(map(len, items)))
        weight = sum(map(self.packer.weigh, topics, items))
        rank = min(self.topology.registrar(part.subscription) for part in written if isinstance(part, ChangeAsk))
        queued = Queued(topics, items, None, False, weight, rank, True, written)
        self._queued_events += queued.count
        self._queue.append(queued)
        self._send_queued(now)
        return queued

    def change(self, ask: ChangeAsk, now: float, together: Sequence[tuple[str, Sequence[Any]]] = ()) -> None:
        """Ask for a change of a subscription, perhaps with publications that take their place together with it."""
        may_go = not self._queued_changes and self._changes_in_flight < CHANGES_IN_FLIGHT_MAX  # they keep their order
        if together or not may_go:
            self._queue_up(together, ask, now)
        else:
            self._send(Queued([], [], ask, rank=self._rank((), ask)), now)

    def _queue_up(
        self,
        parts: Sequence[tuple[str, Sequence[Any]]],
        change: ChangeAsk | None,
        now: float,
        is_transaction: bool = False,
    ) -> Queued:
        may_merge = len(parts) == 1 and change is None and not is_transaction
        weight = sum(self.packer.weigh(topic, items) for topic, items in parts)
        topics, items = [topic for topic, _ in parts], [list(items) for _, items in parts]
        queued = Queued(topics, items, change, may_merge, weight, self._rank(topics, change), is_transaction)
        self._queued_events += queued.count
        self._queued_changes += change is not None
        self._queue.append(queued)
        self._send_queued(now)
        return queued

    def connected(self, now: float) -> None:
        """There is a home stage: send everything unfinished again, in order, then what is queued."""
        self.is_connected = True
        oldest: dict[int, int] = {}
        for sequence, unfinished in self._unfinished.items():
            done = oldest.setdefault(unfinished.rank, sequence) - 1
            unfinished.request = msgspec.structs.replace(unfinished.request, done=done)
            unfinished.sent_at = now
            self.sends.append(unfinished.request)
        self._send_queued(now)

    def disconnected(self) -> None:
        """The home stage is gone; nothing is sent until there is one."""
        self.is_connected = False
        self.sends.clear()

    def tick(self, now: float) -> None:
        """Ask again if the oldest request has waited too long."""
        oldest = next(iter(self._unfinished.values()), None)
        if self.is_connected and oldest is not None and oldest.sent_at + RESEND_AFTER_S <= now:
            self.connected(now)

    def handle_answer(self, answer: Answer | Refusal, now: float) -> list[Outcome]:
        """An answer came: what is known now, in order. Nothing, if it was for a request that was answered before."""
        if answer.client != self.client or answer.epoch != self.epoch:
            return []
        unfinished = self._unfinished.pop(answer.sequence, None)
        if unfinished is None:
            return []
        self._changes_in_flight -= not unfinished.queued.keeps_order
        self._note_topics(unfinished.queued.topics, isinstance(answer, Answer))
        if isinstance(answer, Refusal):
            if not answer.taken:
                self._close_gap(unfinished)
            outcome = Outcome(answer.sequence, unfinished.queued, [], None, answer)
        else:
            publications = [part for part in answer.parts if isinstance(part, Publication)]
            if answer.transaction is not None:
                publications = [msgspec.structs.replace(part, transaction=answer.transaction) for part in publications]
            changes: list[Change] = []
            if len(publications) < len(answer.parts):
                changes = [part for part in answer.parts if isinstance(part, Change)]
            is_commit = unfinished.queued.is_commit
            change = None if is_commit or not changes else changes[0]
            others = changes if is_commit else []
            name = "" if answer.transaction is None else answer.transaction.id
            outcome = Outcome(
                answer.sequence, unfinished.queued, publications, change, None, unfinished.asked_at, others, name
            )
        self._send_queued(now)
        if not unfinished.queued.keeps_order:
            return [outcome]
        self._held[answer.sequence] = outcome
        return self._release()

    def _note_topics(self, topics: list[str], is_accepted: bool) -> None:
        accepted = self._accepted
        if not is_accepted:
            for topic in topics:
                accepted.pop(topic, None)
        elif not all(map(accepted.__contains__, topics)):
            if len(accepted) >= ACCEPTED_REMEMBERED_MAX:
                accepted.clear()
            accepted.update(dict.fromkeys(topics, True))

    def _release(self) -> list[Outcome]:
        """The held outcomes before which nothing is unfinished."""
        first = next((s for s, unfinished in self._unfinished.items() if unfinished.queued.keeps_order), None)
        released = [sequence for sequence in sorted(self._held) if first is None or sequence < first]
        return [self._held.pop(sequence) for sequence in released]

    def unreported(self) -> list[tuple[int, list[list[Any]]]]:
        """The requests whose outcome the caller does not know yet: sequence and items."""
        unfinished = [(sequence, unfinished.queued.items) for sequence, unfinished in self._unfinished.items()]
        return [*unfinished, *((sequence, outcome.asked.items) for sequence, outcome in self._held.items())]

    @property
    def unfinished_events(self) -> int:
        """How many events are queued or have no number yet."""
        return self._queued_events + sum(unfinished.queued.count for unfinished in self._unfinished.values())

    def states(self) -> dict[int, str]:
        """The requests that are not out, by their sequence."""
        return {**dict.fromkeys(self._unfinished, UNDER_WAY), **dict.fromkeys(self._held, ANSWERED)}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or unanswered."""
        return not self._queue and not self._unfinished and not self._commits  # then nothing is held either

    def waiting_for(self) -> str:
        """Say in words what has no answer yet."""
        if self.is_idle:
            return "nothing"
        ranks = sorted({u.rank for u in self._unfinished.values()})
        names = ", ".join(self.topology.stages[rank].name for rank in ranks)
        return f"{len(self._unfinished)} requests at stage {names}, {self._queued_events} events queued"

    def _send_queued(self, now: float) -> None:
        self._send_publications(now)
        if self._commits and self.is_connected:
            self._send_commits(now)

    def _send_commits(self, now: float) -> None:
        """Send the transactions behind everything that was published before them."""
        first = next((s for s, unfinished in self._unfinished.items() if unfinished.queued.keeps_order), None)
        while self._commits and self._changes_in_flight < CHANGES_IN_FLIGHT_MAX:
            queued, behind = self._commits[0]
            if first is not None and first <= behind:
                return
            self._commits.popleft()
            self._queued_events -= queued.count
            self._send(queued, now)

    def _send_publications(self, now: float) -> None:
        while self._queue and self.is_connected and self._has_room_for(self._queue[0]):
            if self._queue[0].is_commit:
                self._commits.append((self._queue.popleft(), self._sequence))
                continue
            if not self.may_pipeline(self._queue[0]):
                return
            queued = self._queue.popleft()
            self._merge_following(queued)
            self._queued_events -= queued.count
            self._queued_changes -= queued.change is not None
            self._send(queued, now)

    def _has_room_for(self, queued: Queued) -> bool:
        """Whether so few requests of its kind are under way that it may be sent: changes do not wait for publications."""
        if queued.is_commit:
            return True  # it does not wait here
        if not queued.items:
            return self._changes_in_flight < CHANGES_IN_FLIGHT_MAX
        return len(self._unfinished) - self._changes_in_flight < REQUESTS_IN_FLIGHT_MAX

    def may_pipeline(self, queued: Queued) -> bool:
        """Whether publications may be sent before those that are unfinished are complete.

        The stage that takes them all takes them in their order. A request that also changes a subscription may have to
        wait for its turn there, so it keeps to itself.
        """
        # DEVIATION (Baldoni: a publisher may have any number of publications under way): nothing overtakes what another stage
        # still has. Mutant `pipeline-all`.
        if not queued.items:
            return True
        # The last one stands for all: each of them was sent under this rule.
        last = self._last_unfinished()
        if last is None:
            return True
        return queued.change is None and last.queued.change is None and last.queued.rank == queued.rank

    def lowest_to_merge(self, queued: Queued) -> int:
        """The lowest stage whose topics may go along.

        Behind unfinished publications, only what the same stage takes: it is the one that keeps the order of all of them.
        """
        return queued.rank if self._last_unfinished() is not None else len(self.topology.stages)

    def _last_unfinished(self) -> Unfinished | None:
        """The last request with publications that has no answer yet."""
        return next((u for u in reversed(self._unfinished.values()) if u.queued.keeps_order), None)

    def _rank(self, topics: Sequence[str], change: ChangeAsk | None) -> int:
        """The stage that takes a request (as `stage.taken_at` says)."""
        if change is not None:
            return self.topology.registrar(change.subscription)
        return max(map(self.topology.owner, topics))

    def _merge_following(self, queued: Queued) -> None:
        """Let what waits behind it go with it: one operation, in one batch for each run of publications on one topic."""
        queue = self._queue
        if not queued.may_merge or not queue:
            return
        lowest = self.lowest_to_merge(queued)
        topics, count = queued.topics, queued.count
        while queue and queue[0].may_merge:
            following = queue[0]
            if following.topics != topics and not self._are_accepted([*topics[-1:], *following.topics]):
                return
            count += following.count
            continues = following.topics[0] == topics[-1]
            parts = len(topics) + len(following.topics) - continues
            weight = queued.weight + following.weight
            if count > BATCH_EVENTS_MAX or parts > PARTS_MERGED_MAX or weight > REQUEST_BYTES_MAX:
                return
            if not continues and following.rank > lowest:
                return
            if continues:
                queued.items[-1].extend(following.items[0])
            queued.weight, queued.rank = weight, max(queued.rank, following.rank)
            topics += following.topics[continues:]
            queued.items += following.items[continues:]
            queue.popleft()

    def _are_accepted(self, topics: list[str]) -> bool:
        """Whether publications on these topics will hardly be refused: what would be must not take others with it."""
        return all(map(self._accepted.__contains__, topics))

    def _send(self, queued: Queued, now: float) -> None:
        self._sequence += 1
        rank = queued.rank
        after, self._last_sent[rank] = self._last_sent.get(rank, 0), self._sequence
        oldest = next((s for s, unfinished in self._unfinished.items() if unfinished.rank == rank), self._sequence)
        done = oldest - 1
        self._changes_in_flight += not queued.keeps_order
        request = Request(self.client, self.epoch, self._sequence, after, done, self._asks(queued))
        if queued.is_transaction:
            request = msgspec.structs.replace(request, is_transaction=True)
        self._unfinished[self._sequence] = Unfinished(request, rank, queued, now, now)
        if self.is_connected:
            self.sends.append(request)

    def _asks(self, queued: Queued) -> tuple[PublishAsk | ChangeAsk, ...]:
        asks: list[PublishAsk | ChangeAsk] = []
        for part in queued.written:
            if isinstance(part, ChangeAsk):
                asks.append(part)
            else:
                asks.append(self.packer.ask(queued.topics[part], queued.items[part]))
        if asks:
            return tuple(asks)
        for topic, items in zip(queued.topics, queued.items, strict=True):
            asks.append(self.packer.ask(topic, items))
        if queued.change is not None:
            asks.append(queued.change)
        return tuple(asks)

    def _close_gap(self, refused: Unfinished) -> None:
        """A refused request was not taken: let the next one to that stage follow the one before it, and the others that one."""
        after, behind = refused.request.after, False
        for unfinished in self._unfinished.values():
            if unfinished.rank != refused.rank or unfinished.request.sequence < refused.request.sequence:
                continue
            if unfinished.request.after == refused.request.sequence:
                unfinished.request, behind = msgspec.structs.replace(unfinished.request, after=after), True
            if behind and self.is_connected:  # the stage could not take any of them
                self.sends.append(unfinished.request)
        if not behind and self._last_sent.get(refused.rank) == refused.request.sequence:
            self._last_sent[refused.rank] = after


def change_of(outcome: Outcome | None) -> Change:
    """The change that was asked for, or raise why there is none."""
    assert outcome is not None
    if outcome.refusal is not None:
        raise refused(outcome.refusal)
    assert outcome.change is not None
    return outcome.change


_ERRORS: dict[str, type[OrderedPubSubError]] = {
    "bad-request": UsageError,
    "session-expired": SessionExpired,
    "session-replaced": SessionExpired,
    "not-yours": UsageError,
    "forbidden": AccessDenied,
    "unknown-topic": TopicError,
    "limit": UsageError,
    "too-many-topics": UsageError,
    "ended": Closed,
    "exists": UsageError,
    "epoch": UsageError,
    "unknown": UsageError,
    "taken-over": SessionExpired,
    "level": UsageError,
    "no-name": UsageError,
    "conflict": TransactionConflict,
    "busy": TransactionAborted,
}


def error_of(code: str) -> type[OrderedPubSubError]:
    """The kind of error that a stage's refusal is."""
    return _ERRORS.get(code, UnavailableError)


def refused(refusal: Refusal) -> OrderedPubSubError:
    """What a refusal is for who asked."""
    return error_of(refusal.code)(f"{refusal.reason} ({refusal.code})")
