"""The stages of one system, as a reader sees them: who owns what, how far it is, and what the logs have.

Lines are made when they are needed. What fails because a stage cannot be reached is tried again until `timeout_s` is over, on new
lines: a stage that is killed and started again has the same answers. What is asked for is harmless to ask again.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import attrs
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from ordered_pubsub.config.addresses import Address, parse_address
from ordered_pubsub.core.client.session import RESEND_AFTER_S, Outcome, Session, change_of
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log.cuts import BoundsAsk, Clock, Search
from ordered_pubsub.core.log.questions import (
    ASKED_MAX,
    PATTERNS_MAX,
    Bound,
    Bounded,
    Find,
    FoundTopics,
    Read,
    Rows,
    Unread,
)
from ordered_pubsub.core.messages import Change, ChangeAsk, Locate, Located
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import (
    AccessDenied,
    HistoryLost,
    NotOffered,
    ProtocolError,
    TopicError,
    UnavailableError,
)
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.connection import NothingHeard, StageLine
from ordered_pubsub.wire.protocol import Ask, Tell
from ordered_pubsub.wire.sessions import SessionKey, make_session

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

PAUSE_FIRST_S, PAUSE_MOST_S = 0.05, 2.0
ASK_AGAIN_S = 5.0
"""So long an answer is waited for before the same is asked on another line."""
LINES_TRIED_MAX = 64
SAMPLE_BYTES = 16 * 1024


@attrs.frozen
class Extent:
    """What is there of a topic: from behind `floor` to `last`."""

    floor: int
    last: int


@attrs.define(eq=False)
class StageLines:
    """For one thread, and a short time: a context manager that closes its lines."""

    access: ReaderAccess
    topology: Topology = attrs.field(init=False)
    levels: Levels = attrs.field(init=False)
    payload_bytes_max: int = attrs.field(init=False)
    """what an event may have"""
    _where: dict[str, Address] = attrs.field(factory=dict)
    """stage → where it is, as far as that is known"""
    _candidates: list[Address] = attrs.field(factory=list)
    """addresses of which it is not known which stage is there"""
    _lines: dict[str, StageLine] = attrs.field(factory=dict)
    _advanced_at: float = float("-inf")
    """when something of what is read has come"""
    _number: int = 0

    def __enter__(self) -> StageLines:
        """Find out who owns what."""
        self._candidates = list(self.access.addresses)
        try:
            self.again("the line of stages", self._meet)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close all lines."""
        self.close()

    def close(self) -> None:
        """Nothing stays open."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def again(self, what: str, attempt: Callable[[], _T]) -> _T:
        """Do something until it works, as long as stages are out of reach, and not for ever, unless it advances (`advanced`)."""
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_exponential(PAUSE_FIRST_S, PAUSE_MOST_S, min=PAUSE_FIRST_S),
            stop=self._has_waited,
            before_sleep=self._start_anew,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except HistoryLost:
            raise
        except UnavailableError as error:
            raise UnavailableError(
                f"{what}: no answer within {self.access.timeout_s:g} s (timeout_s); at last: {error}"
            ) from error

    def _has_waited(self, state: RetryCallState) -> bool:
        return time.monotonic() >= max(state.start_time, self._advanced_at) + self.access.timeout_s

    def advanced(self) -> None:
        """Something has come: what is tried again has all of its time again."""
        self._advanced_at = time.monotonic()

    def _start_anew(self, state: RetryCallState) -> None:
        _log.info("trying again: %s", state.outcome and state.outcome.exception())
        self.close()

    # -- lines --------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Hear from any stage who owns what."""
        if not self._lines:
            self._dial_next(list(self._candidates) or list(self.access.addresses))

    def _dial_next(self, addresses: Sequence[Address]) -> str:
        """Connect to the first of these that answers; return which stage that is."""
        trouble: list[str] = []
        for address in addresses:
            try:
                return self._learn(StageLine(address, self.access), address)
            except UnavailableError as error:
                trouble.append(str(error))
        raise UnavailableError("; ".join(trouble))

    def _learn(self, line: StageLine, address: Address) -> str:
        welcome = line.welcome
        try:
            self.topology, self.levels = Topology.load(welcome.topology), Levels.load(welcome.levels)
        except (TypeError, ValueError) as error:
            line.close()
            raise ProtocolError(f"what stage {address} says of the line of stages cannot be read: {error}") from error
        self.payload_bytes_max = welcome.payload_bytes_max
        self._where[welcome.stage] = address
        older = self._lines.pop(welcome.stage, None)
        if older is not None:
            older.close()
        self._lines[welcome.stage] = line
        if address in self._candidates:
            self._candidates.remove(address)
        known = {*self._candidates, *self._where.values()}
        for text in welcome.addresses[:LINES_TRIED_MAX]:
            other = parse_address(text)
            if self.access.client.tls is not None:
                other = attrs.evolve(other, tls=True)
            if other not in known:
                self._candidates.append(other)
        return welcome.stage

    def line_to(self, rank: int) -> StageLine:
        """The line to a stage."""
        name = self.topology.stages[rank].name
        while name not in self._lines:
            if name in self._where:
                self._learn(StageLine(self._where[name], self.access), self._where[name])
                if name not in self._lines:  # another one is there now
                    del self._where[name]
            elif self._candidates:
                self._dial_next(self._candidates)
            else:
                raise UnavailableError(
                    f"nobody says where stage {name!r} is: give its address as well, in sequencer or as the stage's `advertise`"
                )
        return self._lines[name]

    def line_as(self, rank: int, key: SessionKey) -> StageLine:
        """A line of its own to a stage, for a session; whoever asked for it closes it."""
        self.line_to(rank)
        name = self.topology.stages[rank].name
        line = StageLine(self._where[name], self.access, key=key)
        if line.welcome.stage != name:
            line.close()
            raise UnavailableError(f"at {line.address} is stage {line.welcome.stage!r} now, and not {name!r}")
        return line

    def owner_line(self, topic: str) -> StageLine:
        """The line to a topic's owner."""
        return self.line_to(self.topology.owner(topic))

    def next_number(self) -> int:
        """Under which something is asked that was not asked before."""
        self._number += 1
        return self._number

    def answer(self, line: StageLine, numbers: Container[int]) -> Any:
        """What a stage answers to what was asked under one of these numbers."""
        while True:
            message = line.hear(ASK_AGAIN_S)
            if getattr(message, "number", None) in numbers:
                if isinstance(message, Unread):
                    raise _refused(message)
                return message

    # -- topics -------------------------------------------------------------------------------------------------------

    def find(self, patterns: Sequence[str]) -> dict[str, Extent]:
        """The topics that there are, of these names and patterns, by all their owners."""
        found: dict[str, Extent] = {}
        for first in range(0, len(patterns), PATTERNS_MAX):
            piece = patterns[first : first + PATTERNS_MAX]
            found |= self.again("looking for topics", partial(self._find, piece))
        return dict(sorted(found.items()))

    def _find(self, patterns: Sequence[str]) -> dict[str, Extent]:
        asks: list[tuple[StageLine, Find]] = []
        for rank in range(len(self.topology.stages)):
            own = [pattern for pattern in patterns if "*" in pattern or self.topology.owner(pattern) == rank]
            if own:
                asks.append((self.line_to(rank), Find(self.next_number(), own)))
        for line, ask in asks:
            line.say(ask)
        found: dict[str, Extent] = {}
        for line, ask in asks:
            answer = self.answer(line, (ask.number,))
            assert isinstance(answer, FoundTopics)
            found.update((topic, Extent(*extent)) for topic, extent in answer.topics.items())
        return found

    def check_kept(self, topics: Iterable[str]) -> None:
        """Raise `NotOffered` for a topic whose events nobody keeps."""
        for topic in topics:
            if not self.levels.is_kept(topic):
                raise NotOffered(
                    f"topic {topic!r} gives delivery={self.levels.of(topic)!r}: its events are kept nowhere, so nobody can read "
                    "its past. Give it 'exactly-once' in the stages' configuration ([[topic]])"
                )

    def existing(self, topics: Sequence[str], must_be: bool = True) -> dict[str, Extent]:
        """How far these topics are. Raises for one that there is not, or that may not be read, if all of them must be there."""
        self.check_kept(topics)
        found = self.find(topics)
        for topic in topics:
            if topic not in found and must_be:
                raise _unknown(topic, list(self.find(["**"])))
        return {topic: found.get(topic, Extent(0, 0)) for topic in topics}

    # -- places in the order ------------------------------------------------------------------------------------------

    def cut(self, topics: Sequence[str], turns: SessionEpochs | None = None) -> dict[str, int]:
        """A place in the order, now: for each topic how many of its events come before it. No number is used for it.

        Who takes many does it in turns of one session: a stage remembers sessions for long, and not more than so many.
        """
        own = turns or SessionEpochs(make_session(None))
        return self.again("taking a cut", lambda: self._cut(topics, own))

    def _cut(self, topics: Sequence[str], turns: SessionEpochs) -> dict[str, int]:
        with OperationLine(self, key=turns.key, epoch=turns.next()) as place:
            name = f"{place.session}/{place.epoch}"
            change = place.change(ChangeAsk(name, tuple(topics), weight=0, best_effort=True))
            place.change(ChangeAsk(name, weight=0, best_effort=True, ends=True))
        return {topic: change.entries.get(topic, 0) for topic in topics}

    def located(self, topics: Sequence[str], at: float) -> dict[str, int]:
        """How far topics were at a time, by the clocks of their owners."""
        return self.again("looking for a time", lambda: self._located(topics, at))

    def _located(self, topics: Sequence[str], at: float) -> dict[str, int]:
        numbers: dict[str, int] = {}
        with OperationLine(self) as place:
            place.line.say(Locate(place.session, 1, list(topics), at))
            while len(numbers) < len(topics):
                answer = place.line.hear(ASK_AGAIN_S)
                if isinstance(answer, Located):
                    numbers.update(answer.numbers)
        return numbers

    def search(self, search: Search[_T]) -> _T:
        """Ask the owners of topics what a search for the end of a range wants to know (`core.log.cuts`); return what it finds."""
        try:
            ask = next(search)
            while True:
                ask = search.send(self.again("looking for the end of a range", partial(self._bounds, ask)))
        except StopIteration as found:
            return cast(_T, found.value)

    def _bounds(self, ask: BoundsAsk) -> Clock:
        """For each topic the last number up to the clock's before which nothing comes that is beyond the clock."""
        low, clock, is_whole = ask
        found = dict(clock)
        by_line: dict[StageLine, list[Bound]] = {}
        topics: dict[int, str] = {}
        for topic, high in clock.items():
            if high > low.get(topic, 0):
                bound = Bound(self.next_number(), topic, low.get(topic, 0), high, dict(clock), is_whole)
                topics[bound.number] = topic
                by_line.setdefault(self.owner_line(topic), []).append(bound)
        for line, asks in by_line.items():
            for first in range(0, len(asks), ASKED_MAX):
                piece = asks[first : first + ASKED_MAX]
                line.say(*piece)
                for _ in piece:
                    answer = self.answer(line, topics)
                    assert isinstance(answer, Bounded)
                    topic = topics[answer.number]
                    if not answer.is_complete:
                        raise UnavailableError(
                            f"number {clock[topic]} of topic {topic!r} is not complete: a stage that it has to pass may be down"
                        )
                    found[topic] = answer.last
        return found

    def bytes_per_event(self, start: Mapping[str, int], end: Mapping[str, int]) -> float:
        """About how large the events of a range are, by the first of each topic."""
        return self.again("looking how large events are", lambda: self._bytes_per_event(start, end))

    def _bytes_per_event(self, start: Mapping[str, int], end: Mapping[str, int]) -> float:
        total, counted = 0.0, 0
        for topic, last in end.items():
            count = last - start.get(topic, 0)
            if count <= 0:
                continue
            line = self.owner_line(topic)
            number = self.next_number()
            line.say(Read(number, topic, start.get(topic, 0) + 1, last, bytes_max=SAMPLE_BYTES))
            rows = self.answer(line, (number,))
            assert isinstance(rows, Rows)
            events = sum(last - first + 1 for first, last, _ in rows.events)
            if events:
                total += count * sum(len(data) for _, _, data in rows.events) / events
                counted += count
        return total / counted if counted else 0.0


@attrs.define
class SessionEpochs:
    """One session that is used again and again: each time in a higher epoch, so that its requests begin anew."""

    key: SessionKey = attrs.field(repr=False)
    _epoch: int = 0

    def next(self) -> int:
        """The epoch of the next turn: what became of an earlier one that was not answered is not known."""
        self._epoch += 1
        return self._epoch


@attrs.define(eq=False)
class OperationLine:
    """A line on which operations are asked for, one after the other, by a session."""

    stages: StageLines
    name: str | None = None
    key: SessionKey | None = None
    """whose session it is, if it is to be used again"""
    resumes: bool = False
    """whether this session was let in before"""
    epoch: int = 1
    """of the session (`SessionEpochs`)"""
    line: StageLine = attrs.field(init=False)
    requests: Session = attrs.field(init=False)
    """what is asked for, under which sequence, and when again"""

    def __enter__(self) -> OperationLine:
        """Connect to any stage."""
        trouble: list[str] = []
        for address in (*self.stages._where.values(), *self.stages.access.addresses):
            try:
                self.line = StageLine(address, self.stages.access, self.name, self.key, self.resumes)
            except UnavailableError as error:
                trouble.append(str(error))
            else:
                self.requests = Session(self.session, self.stages.topology, self.epoch, is_connected=True)
                return self
        raise UnavailableError("; ".join(trouble))

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.line.close()

    @property
    def session(self) -> str:
        """Who asks."""
        return self.line.session.session

    def change(self, ask: ChangeAsk) -> Change:
        """Have a subscription changed; return the outcome, or raise why not."""
        return change_of(self.ask(ask))

    def ask(self, ask: ChangeAsk) -> Outcome:
        """Ask for a change until its outcome comes: a stage that cannot reach the one that takes it drops what is asked."""
        requests, timeout_s = self.requests, self.stages.access.timeout_s
        give_up_at = time.monotonic() + timeout_s
        requests.change(ask, time.monotonic())
        while (now := time.monotonic()) < give_up_at:
            requests.tick(now)
            if requests.sends:
                self.line.say(Ask(requests.sends))
                requests.sends.clear()
            with suppress(NothingHeard):
                message = self.line.hear(min(RESEND_AFTER_S, give_up_at - now))
                for answer in message.answers if isinstance(message, Tell) else ():
                    for outcome in requests.handle_answer(answer, time.monotonic()):
                        return outcome
        raise NothingHeard(
            f"an operation asked for at stage {self.line.address} has had no outcome for {timeout_s:g} s"
        )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, UnavailableError) and not isinstance(error, HistoryLost)


def _refused(unread: Unread) -> Exception:
    if unread.code == "forbidden":
        return AccessDenied(unread.reason)
    return (
        TopicError(unread.reason) if unread.code in ("unknown-topic", "bad-request") else ProtocolError(unread.reason)
    )


def _unknown(topic: str, there: list[str]) -> TopicError:
    close = difflib.get_close_matches(topic, there, n=3)
    said = f"; there is {', '.join(map(repr, close))}" if close else ""
    with suppress(IndexError):
        said = said or f"; there is, for example, {there[0]!r}"
    return TopicError(f"nothing was ever published on topic {topic!r}, or it may not be read{said}. Check its name")
