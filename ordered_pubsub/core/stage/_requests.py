"""The identity of requests: asking again gives the first answer.

A client numbers its requests 1, 2, 3, …; those that go to the same stage form a chain (`Request.after`), and a stage takes
them in the order of that chain, so that pipelined requests keep their order even if they are lost and repeated on the way.
Remembered per client: the last sequence taken, and the answers that the client has not said it is done with, of which
there are at most `UNANSWERED_MAX`, with at most `UNANSWERED_LOAD_MAX` names of topics. Who has more is not heard until it says
that it is done with some.

A session belongs to the identity of its first request: nobody else asks in it. A session of a higher epoch replaces that of a
lower one, whose requests are refused from then on. Sessions that have been silent for long are forgotten once there are too
many; a chain that refers to a forgotten session is refused as expired. Of one identity there are no more than it may have, and
their answers take no more room than they may: of these sessions the one not heard of for longest goes first, unless something of
it is under way. Which of them goes is written down with the request that needs the room (`Asked.forgets`), since how many there
may be can be another number when that is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from itertools import islice

import msgspec

from ordered_pubsub.core.messages import ANYBODY, Answer, Refusal, Request, load_of

UNANSWERED_MAX = 4096
UNANSWERED_LOAD_MAX = 65_536
SESSIONS_MAX = 100_000
SESSION_TTL_S = 3600.0
LOOKED_AT_MAX = 64
"""So many sessions are forgotten at once, to make room."""


class RequestVerdict(Enum):
    """What is to be done with a request."""

    TAKE = auto()
    WAIT = auto()
    """it is under way already; its answer will come"""
    IGNORE = auto()
    """an earlier one is missing, or it was done long ago, or there is no room now"""


class SessionState(msgspec.Struct):
    """What a stage remembers of one client."""

    epoch: int
    home: int
    heard: float
    last: int = 0
    pending: dict[int, int] = msgspec.field(default_factory=dict)
    """the requests that are under way: sequence → how many parts each has"""
    answers: dict[int, Answer | Refusal] = msgspec.field(default_factory=dict)
    load: int = 0
    """names of topics in the answers, and as far as is known in those to come"""
    identity: str = ""
    """whose it is, since its first request here"""

    def forget_answers(self, done: int) -> None:
        """The client has the answers up to this sequence."""
        while self.answers and (first := next(iter(self.answers))) <= done:
            self.load -= _load(self.answers.pop(first))


class Requests(msgspec.Struct):
    """The sessions of all clients that ask at this stage, the one not heard of for longest first."""

    sessions: dict[str, SessionState] = msgspec.field(default_factory=dict)
    owned: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)
    """identity → its sessions, the one not heard of for longest first"""
    loads: dict[str, int] = msgspec.field(default_factory=dict)
    """identity → names of topics in the answers to all its sessions"""

    def __post_init__(self) -> None:
        # As in `Clocks`: what is taken from the front of a plain dict leaves holes.
        self.owned = {identity: OrderedDict(sessions) for identity, sessions in self.owned.items()}

    def room_for(self, request: Request, sessions_max: int, load_max: int) -> list[str] | None:
        """The sessions of an identity that are forgotten to take a request of it; None if there is no room all the same."""
        identity = request.identity
        owned = self.owned.get(identity)
        if not identity or owned is None:
            return []
        session = self.sessions.get(request.client)
        excess = len(owned) + (session is None) - sessions_max
        load = self.loads.get(identity, 0) - load_max
        if excess <= 0 and load <= 0:
            return []
        found: list[str] = []
        for client in islice(owned, 2 * LOOKED_AT_MAX):
            if (excess <= 0 and load <= 0) or len(found) >= LOOKED_AT_MAX:
                break
            other = self.sessions[client]
            if client != request.client and not other.pending and (excess > 0 or other.load):
                found.append(client)
                excess -= 1
                load -= other.load
        return None if excess > 0 else found

    def forget(self, client: str) -> None:
        """A session is not remembered any more."""
        session = self.sessions.pop(client, None)
        owned = self.owned.get(session.identity) if session is not None else None
        if session is not None and owned is not None:
            owned.pop(client, None)
            self._weigh(session.identity, -session.load)
            if not owned:
                del self.owned[session.identity]

    def _weigh(self, identity: str, change: int) -> None:
        if identity and change:
            self.loads[identity] = load = self.loads.get(identity, 0) + change
            if not load:
                del self.loads[identity]

    def judge(self, request: Request, now: float) -> RequestVerdict | Answer | Refusal:
        """Say what is to be done with a request; changes nothing."""
        # DEVIATION (Baldoni 4, "Reliability": who gets no answer starts again): a request has an identity, and gets the first
        # answer; else its first number would stay a hole. Mutant `forget-identity`.
        session = self.sessions.get(request.client)
        if session is not None and session.identity not in (request.identity, ANYBODY):
            return request.refused(
                "forbidden", f"session {request.client!r} is another identity's, and not one of {request.identity!r}"
            )
        if session is None and request.is_guest:
            return RequestVerdict.IGNORE  # it is asked again; by then it is known whose the name is
        if session is None or request.epoch > session.epoch:
            if request.after > request.done:
                return RequestVerdict.IGNORE  # the one before it has no answer yet and will be asked again
            if request.after:
                return request.refused("session-expired", "this stage knows nothing of the session's earlier requests")
            if session is None and len(self.sessions) >= SESSIONS_MAX and not self._silent(now):
                return RequestVerdict.IGNORE  # until there is room; it will be asked again
            return RequestVerdict.TAKE
        if request.epoch < session.epoch:
            return request.refused(
                "session-replaced",
                f"session {request.epoch} of client {request.client!r} was replaced by session {session.epoch}",
            )
        if request.sequence in session.pending:
            return RequestVerdict.WAIT
        if request.sequence in session.answers:
            return session.answers[request.sequence]
        is_next = request.after == session.last and self._has_room(session, request)
        return RequestVerdict.TAKE if is_next else RequestVerdict.IGNORE

    @staticmethod
    def _has_room(session: SessionState, request: Request) -> bool:
        """Whether one more answer may be kept, when those are forgotten that the client is done with."""
        if len(session.pending) + len(session.answers) < UNANSWERED_MAX and session.load < UNANSWERED_LOAD_MAX:
            return True
        kept = [answer for sequence, answer in session.answers.items() if sequence > request.done]
        if not session.pending and len(kept) <= 1:
            return True  # however large that one answer is: who keeps it, so that it can be asked for again, goes on
        return (
            len(session.pending) + len(kept) < UNANSWERED_MAX
            and sum(session.pending.values(), sum(map(_load, kept))) < UNANSWERED_LOAD_MAX
        )

    def take(self, request: Request, home: int, now: float) -> None:
        """Remember a request that was judged `TAKE`."""
        session = self.sessions.get(request.client)
        if session is None or request.epoch > session.epoch:
            self.forget(request.client)
            session = SessionState(request.epoch, home, now, identity=request.identity)
            if len(self.sessions) >= SESSIONS_MAX:
                for client in self._silent(now):
                    self.forget(client)
        else:
            del self.sessions[request.client]
        self.sessions[request.client] = session
        if session.identity:
            self._heard(session.identity, request.client)
        before = session.load
        session.home = home
        session.heard = now
        session.last = request.sequence
        session.pending[request.sequence] = len(request.parts)
        session.load += len(request.parts)
        session.forget_answers(request.done)
        self._weigh(session.identity, session.load - before)

    def _heard(self, identity: str, client: str) -> None:
        owned = self.owned.get(identity)
        if owned is None:
            owned = self.owned[identity] = OrderedDict()
        owned.pop(client, None)  # not `move_to_end`: a snapshot has the order in which keys came
        owned[client] = True

    def answered(self, answer: Answer | Refusal) -> int | None:
        """Remember the answer to a request that was taken; return where its client asked from last."""
        session = self.sessions.get(answer.client)
        if session is None or session.epoch != answer.epoch or answer.sequence not in session.pending:
            return None
        session.answers[answer.sequence] = answer
        change = _load(answer) - session.pending.pop(answer.sequence)
        session.load += change
        self._weigh(session.identity, change)
        return session.home

    def traced(self, session: str) -> tuple[int, list[int]]:
        """The epoch of a session, and which of its requests were taken, as far as that is remembered."""
        known = self.sessions.get(session)
        return (0, []) if known is None else (known.epoch, sorted((*known.answers, *known.pending)))

    def _silent(self, now: float) -> list[str]:
        """Some of the sessions that may be forgotten, the most silent first."""
        return [
            client
            for client, session in islice(self.sessions.items(), 64)
            if not session.pending and session.heard + SESSION_TTL_S <= now
        ]

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is counted of the sessions is not what they have."""
        loads: dict[str, int] = {}
        for client, session in self.sessions.items():
            both = session.pending.keys() & session.answers.keys()
            assert not both, f"{client} has answers to {both}, which are under way"
            assert session.last >= max([*session.pending, *session.answers], default=0), (
                f"{client} is at {session.last}"
            )
            load = sum(session.pending.values()) + sum(map(_load, session.answers.values()))
            assert load == session.load, f"the answers to {client} are {load} large, and {session.load} is counted"
            if session.identity:
                assert client in self.owned[session.identity], f"{client} is not among those of {session.identity!r}"
                loads[session.identity] = loads.get(session.identity, 0) + load
        assert {who: load for who, load in loads.items() if load} == self.loads, f"{loads} is not {self.loads}"
        assert sum(map(len, self.owned.values())) <= len(self.sessions), "identities have sessions that are not there"


def _load(answer: Answer | Refusal) -> int:
    """About how large an answer is: names of topics that it holds."""
    return load_of(answer.parts) if isinstance(answer, Answer) else 1
