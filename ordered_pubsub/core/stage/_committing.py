"""Transactions that change subscriptions: their turns are taken first, then they enter the line as one operation.

    client ── request ──> coordinator ── reserve ──> registrar, registrar, …   one after the other, the highest stage first
                               │       <── reserved, with the changes, or not reserved: the others are released
                               │ launch, when all have said so
                               v
                          the line: one operation, of which nothing can fail any more
                               │ done, to coordinator, registrars and owners
    client <── answer ─────────┘

The coordinator is the first registrar among those of its subscriptions, so it takes the request, and remembers its answer. All
of a transaction is in its journal before anybody hears of it; and what it says goes in numbered frames. So after a crash it
goes on where it was, and asks nobody twice.

It waits for its turns: nobody is refused because somebody else is busy. All take them in the same order, stage by stage, and
within a stage by the names of the subscriptions, so they never wait for each other in a ring. Who waits for too long gives up
(`GaveUp`): as long as not all have said yes. After that, nobody can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from ordered_pubsub.core.messages import (
    Change,
    ChangeAsk,
    GaveUp,
    NotReserved,
    PublishAsk,
    Refusal,
    Release,
    Reserve,
    Reserved,
)
from ordered_pubsub.core.order.registered import WaitingChange
from ordered_pubsub.core.order.registrar import Turn
from ordered_pubsub.core.order.reserving import (
    BUSY,
    CHANGES_BYTES_MAX,
    Conflict,
    Granted,
    Reservation,
    bytes_of,
    too_large,
)
from ordered_pubsub.core.stage._context import Context
from ordered_pubsub.core.stage._peers import Peers
from ordered_pubsub.core.stage.state import Commit
from ordered_pubsub.errors import NotOwner, ProtocolError

GIVE_UP_S = 60.0
"""So long a transaction waits for its turns."""


@attrs.define(eq=False)
class Committing:
    """The transactions that one stage carries out, and those that have turns at its subscriptions."""

    context: Context
    peers: Peers
    turns: list[Turn | Commit]
    """whose turn has come: the stage takes them when the input was handled"""
    answer: Callable[[WaitingChange, Refusal], None]
    """tells who has asked that it will not happen"""
    give_up_s: float = GIVE_UP_S
    _due: dict[str, float] = attrs.field(factory=dict)
    """transaction → when it has waited too long; since this stage was started"""

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def begin(self, name: str, waiting: WaitingChange) -> None:
        """A transaction that changes subscriptions was taken."""
        asks: dict[int, list[tuple[int, ChangeAsk]]] = {}
        for place, part in enumerate(waiting.request.parts):
            if isinstance(part, ChangeAsk):
                asks.setdefault(self.context.topology.registrar(part.subscription), []).append((place, part))
        self.context.state.commits[name] = commit = Commit(name, waiting, sorted(asks.items()))
        self._reserve_next(commit)

    def _reserve_next(self, commit: Commit) -> None:
        """Ask the next registrar for its turns; if all have said yes, it enters the line."""
        if commit.asked == len(commit.asks):
            size = bytes_of(commit.changes.values())
            if size > CHANGES_BYTES_MAX:
                found = too_large(size)
                self._refuse(commit, commit.asked, found.code, found.reason)
            else:
                self.turns.append(commit)
            return
        rank, asks = commit.asks[commit.asked]
        commit.asked += 1
        reserve = Reserve(commit.transaction, self.context.rank, commit.waiting.request.identity, asks)
        if rank == self.context.rank:
            self.reserve(reserve)
        else:
            self.peers.send(rank, reserve)

    def reserved(self, message: Reserved) -> None:
        """A registrar says yes."""
        commit = self.context.state.commits.get(message.transaction)
        if commit is None:
            return  # it was given up, and the registrar has heard of that, or will
        commit.changes.update(message.changes)
        commit.meets += message.meets
        self._reserve_next(commit)

    def not_reserved(self, message: NotReserved) -> None:
        """A registrar says no."""
        commit = self.context.state.commits.get(message.transaction)
        if commit is not None:
            self._refuse(commit, commit.asked - 1, message.code, message.reason)

    def _refuse(self, commit: Commit, reserved: int, code: str, reason: str) -> None:
        """A transaction will not happen: so many registrars have to be told, the first ones."""
        del self.context.state.commits[commit.transaction]
        self._due.pop(commit.transaction, None)
        for rank, _ in commit.asks[:reserved]:
            if rank == self.context.rank:
                self.release(Release(commit.transaction))
            else:
                self.peers.send(rank, Release(commit.transaction))
        self.answer(commit.waiting, commit.waiting.request.refused(code, reason, taken=True))

    def take_overdue(self, now: float) -> list[str]:
        """The transactions that have waited too long for their turns."""
        commits = self.context.state.commits
        for name in [name for name in self._due if name not in commits]:
            del self._due[name]
        waiting = [name for name, commit in commits.items() if not commit.is_launched]
        return [name for name in waiting if now >= self._due.setdefault(name, now + self.give_up_s)]

    def give_up(self, event: GaveUp) -> None:
        """A transaction has waited too long."""
        commit = self.context.state.commits.get(event.transaction)
        if commit is None or commit.is_launched:
            return  # what another one has given up at the same time has let it enter the line
        reason = (
            f"transaction {event.transaction} did not get its turn at all its subscriptions in time: other changes of theirs "
            "are under way, or a stage is down. Nothing has happened; try it again"
        )
        self._refuse(commit, commit.asked, BUSY, reason)

    def done(self, name: str, changes: list[Change]) -> None:
        """A transaction has passed its last stage. These are its changes of subscriptions that are registered here."""
        self.context.state.commits.pop(name, None)
        self._due.pop(name, None)
        self.turns += self.context.state.registrar.settle_transaction(name, changes)

    def check(self, peer: int, message: Reserve | Reserved | NotReserved | Release) -> None:
        """Refuse what another stage must not say about a transaction, or what does not fit what it was asked."""
        state, topology = self.context.state, self.context.topology
        if isinstance(message, Reserve):
            for _, ask in message.asks:
                if topology.registrar(ask.subscription) != self.context.rank:
                    raise NotOwner(
                        f"a transaction wants its turn at {ask.subscription!r}, which is registered elsewhere"
                    )
            if message.coordinator != peer or message.transaction in state.registrar.reservations:
                raise ProtocolError(
                    f"stage {peer} asks for the turns of transaction {message.transaction!r:.200}, which stage "
                    f"{message.coordinator} carries out, or has asked for already"
                )
        elif isinstance(message, (Reserved, NotReserved)) and (commit := state.commits.get(message.transaction)):
            rank, asks = commit.asks[commit.asked - 1]
            is_asked = rank == peer and not commit.is_launched
            if isinstance(message, Reserved):
                granted = [(place, change.subscription) for place, change in message.changes]
                is_asked = is_asked and granted == [(place, ask.subscription) for place, ask in asks]
            if not is_asked:
                raise ProtocolError(
                    f"stage {peer} answers for transaction {message.transaction!r:.200} what it was not asked: {message!r:.300}"
                )

    def handle(self, message: Reserve | Reserved | NotReserved | Release) -> None:
        """Another stage says something about a transaction."""
        if isinstance(message, Reserve):
            self.reserve(message)
        elif isinstance(message, Reserved):
            self.reserved(message)
        elif isinstance(message, NotReserved):
            self.not_reserved(message)
        else:
            self.release(message)

    # -- a registrar --------------------------------------------------------------------------------------------------

    def reserve(self, message: Reserve) -> None:
        """A transaction wants turns here."""
        reservation = Reservation(message.transaction, message.coordinator, message.identity, list(message.asks))
        self.context.state.registrar.reserve(reservation)
        if message.excess:
            self._answer(message.transaction, Conflict("limit", "", "", message.excess))
        else:
            self.go_on(message.transaction)

    def go_on(self, name: str) -> None:
        """A transaction takes what turns it can have; if it has all, its coordinator is told what becomes of it."""
        state, owner = self.context.state, self.context.topology.owner

        def ranks_of(topics: Iterable[str]) -> list[int]:
            return list(map(owner, topics))

        found = state.registrar.go_on(name, ranks_of, self.context.rank)
        if found is not None:
            self._answer(name, found)

    def _answer(self, name: str, found: Granted | Conflict) -> None:
        """Tell the coordinator what becomes of a transaction."""
        reservation = self.context.state.registrar.reservations[name]
        if isinstance(found, Conflict):
            self.release(Release(name))
            answer: Reserved | NotReserved = NotReserved(name, found.code, found.reason)
        else:
            answer = Reserved(name, found.changes, found.meets)
        if reservation.coordinator != self.context.rank:
            self.peers.send(reservation.coordinator, answer)
        elif isinstance(answer, Reserved):
            self.reserved(answer)
        else:
            self.not_reserved(answer)

    def release(self, message: Release) -> None:
        """A transaction will not happen."""
        self.turns += self.context.state.registrar.release(message.transaction)

    # -- what may be handled because of it ----------------------------------------------------------------------------

    def concerned(self, message: Reserve | Reserved | NotReserved | Release) -> list[PublishAsk | ChangeAsk]:
        """What may enter the line because of what another stage says."""
        if isinstance(message, Reserved):
            commit = self.context.state.commits.get(message.transaction)
            parts = [] if commit is None else list(commit.waiting.request.parts)
            return parts + self.freed(message.transaction)  # if all of it is too large
        return [] if isinstance(message, Reserve) else self.freed(message.transaction)

    def freed(self, name: str) -> list[PublishAsk | ChangeAsk]:
        """What may enter the line when a transaction gives its turns here to others."""
        registrar = self.context.state.registrar
        reservation = registrar.reservations.get(name)
        return [] if reservation is None else self.waiting_at(reservation.names)

    def waiting_at(self, names: Iterable[str]) -> list[PublishAsk | ChangeAsk]:
        """What may enter the line when whatever is under way at these subscriptions is over.

        A transaction that gets its turn then may give back those that it has at others.
        """
        state, found = self.context.state, list[PublishAsk | ChangeAsk]()
        agenda = list(dict.fromkeys(names))
        seen = dict.fromkeys(agenda, True)
        for name in agenda:  # grows while it runs
            subscription = state.registrar.subscriptions.get(name)
            for waiting in () if subscription is None else subscription.waiting:
                if not isinstance(waiting, str):
                    found += waiting.request.parts
                    continue
                if waiting in state.commits:
                    found += state.commits[waiting].waiting.request.parts
                reservation = state.registrar.reservations.get(waiting)
                for other in () if reservation is None else reservation.names:
                    if other not in seen:
                        seen[other] = True
                        agenda.append(other)
        return found

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if a subscription is reserved for what is not there, or something is there for nothing."""
        state = self.context.state
        for name, reservation in state.registrar.reservations.items():
            for place, subscription in enumerate(reservation.names):
                found = state.registrar.subscriptions.get(subscription)
                if place < reservation.taken:
                    assert found is not None, f"{subscription} is gone, and {name} has its turn at it"
                    assert found.reserved == name, (
                        f"{name} has its turn at {subscription}, which has {found.reserved!r}"
                    )
        for subscription, one in state.registrar.subscriptions.items():
            assert not one.reserved or one.reserved in state.registrar.reservations, (
                f"{subscription} waits for {one.reserved}"
            )
        for name, commit in state.commits.items():
            assert commit.asked, f"{name} has asked nobody"
            assert commit.is_launched or commit.asked <= len(commit.asks), f"{name} has asked too many"
