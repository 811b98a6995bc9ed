"""Clients with names, as their home stage and the names' keepers see them.

A client is let in when the keeper of its name has granted it. One that says that it goes on with its session after it has
lost its home is let in at once. If its new home has not heard from the keeper that the name is this session's, then only as a
guest: what it asks for is taken by those stages only that know its session already, until the keeper has granted the name; that
is asked again until there is an answer. So a keeper that is out of reach keeps nobody from going on whom the stages know, and
nobody gets anything under a name by saying that he had it.

A keeper has on its disk whose each name is (`core.stage.naming`): the identity's that took it first, and the session's that had
it last. That one has it again at once. Another session of the same identity has it when nobody else has; and since a keeper that
has just started does not know yet who is there, it hears the home stages first, which tell to whom it had granted names before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Protocol

import attrs

from ordered_pubsub.core.stage.naming import IN_USE, NameTable
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.server.doors.names import NameKeeper
from ordered_pubsub.wire.protocol import Claim, Claimed, NamesGranted

KNOWN_MAX = 20_000
"""Of so many names a stage remembers whose they are."""
CLAIM_S = 5.0
"""How long a client with a name waits for the stage that keeps it."""
SETTLE_S = 4.0
"""How long a keeper that was started again hears only home stages, and who had a name last: those that are there come back within
2 seconds, and ask every second."""


class Way(Protocol):
    """A link to another stage."""

    def send(self, message: Claim | Claimed | NamesGranted) -> None:
        """Send, if the link is there."""


@attrs.define(eq=False)
class Claims:
    """The names of one stage's clients, and those that it keeps."""

    rank: int
    topology: Topology
    ways: Mapping[int, Way]
    let_in: Callable[[ClientConnection], None]
    is_new_system: bool
    """whether nobody can have had a name before this stage was started"""
    table: Callable[[], NameTable]
    """the names that this stage keeps, as they are on its disk, or will be"""
    give: Callable[[Claim, Container[str] | None], tuple[str, str]]
    """lets a name be a session's, while these are in use, or nobody knows yet which are; returns why not, a code and a reason, or
    says it by `handle_given`"""
    names: NameKeeper = attrs.field(factory=NameKeeper)
    _named: dict[str, dict[ClientConnection, bool]] = attrs.field(factory=dict)
    """name → the clients at home here that have it: one, or for a moment two connections of its session"""
    _known: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """name → the session and the identity that got it last, as far as this stage has heard"""
    _giving: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """(name, session) → the home stage that hears of it when it is on disk"""
    _granted: dict[str, bool] = attrs.field(factory=dict)
    """names that were granted since this stage was started, while it does not know all homes: it knows whether these are free"""
    _claiming: dict[ClientConnection, float] = attrs.field(factory=dict)
    """a client whose claim has no answer yet → when it is given up, if it is not in already"""
    _loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    _started_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started_at = self._loop.time()

    # -- the home's side ----------------------------------------------------------------------------------------------

    def client_came(self, claimant: ClientConnection, resumes: bool) -> None:
        """A client has come with a name."""
        if resumes:
            self._have(claimant)
            if self._known.get(claimant.name or "") == (claimant.session, claimant.identity_name):
                claimant.become_known()
            self.let_in(claimant)
        self._claiming[claimant] = self._loop.time() + CLAIM_S
        self._tell_keeper(self._claim_of(claimant, resumes=resumes))

    def client_left(self, claimant: ClientConnection) -> None:
        """A client is not there any more."""
        self._claiming.pop(claimant, None)
        assert claimant.name is not None
        others = self._named.get(claimant.name, {})
        others.pop(claimant, None)
        if not others:
            self._named.pop(claimant.name, None)
        if not any(self._is_same(claimant, other) for other in (*others, *self._claiming)):
            self._tell_keeper(self._claim_of(claimant, release=True))

    @staticmethod
    def _is_same(one: ClientConnection, other: ClientConnection) -> bool:
        return (one.name, one.session) == (other.name, other.session)

    def _have(self, claimant: ClientConnection) -> None:
        assert claimant.name is not None
        self._named.setdefault(claimant.name, {})[claimant] = True

    def _is_named(self, claimant: ClientConnection) -> bool:
        return claimant in self._named.get(claimant.name or "", {})

    def _claim_of(self, claimant: ClientConnection, release: bool = False, resumes: bool = False) -> Claim:
        assert claimant.name is not None
        return Claim(
            claimant.name, claimant.session, claimant.identity_name, release, resumes, claimant.is_given_its_name
        )

    def _tell_keeper(self, claim: Claim) -> None:
        keeper = self.topology.registrar(claim.name)
        if keeper == self.rank:
            self.handle_claim(self.rank, claim)
        else:
            self.ways[keeper].send(claim)

    def sweep(self, now: float) -> None:
        """Claim again what has no answer; give up what was waited for long enough."""
        for claimant, give_up_at in list(self._claiming.items()):
            is_in = self._is_named(claimant)
            if is_in or now < give_up_at:
                self._tell_keeper(self._claim_of(claimant, resumes=is_in))
            else:
                del self._claiming[claimant]
                keeper = self.topology.stages[self.topology.registrar(claimant.name or "")].name
                claimant.leave(
                    "unavailable", f"stage {keeper!r}, which keeps the name {claimant.name!r}, cannot be reached now"
                )

    def handle_claimed(self, claimed: Claimed) -> None:
        """The keeper of a name has answered."""
        if not claimed.refusal:
            # Whose a name is now is known at all stages: who loses his home goes on at another one.
            self._known.pop(claimed.name, None)
            self._known[claimed.name] = (claimed.session, claimed.identity)
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        there = [*self._named.get(claimed.name, ()), *self._claiming]
        for claimant in dict.fromkeys(there):
            if (claimant.name, claimant.session) == (claimed.name, claimed.session):
                self._settle(claimant, claimed)

    def _settle(self, claimant: ClientConnection, claimed: Claimed) -> None:
        was_waiting = self._claiming.pop(claimant, None) is not None
        if claimed.refusal:
            claimant.leave(claimed.code, claimed.refusal)
            return
        claimant.become_known()
        if was_waiting and not self._is_named(claimant):
            self._have(claimant)
            self.let_in(claimant)

    def linked(self, peer: int) -> None:
        """The link to another stage is there: tell it to whom it had granted names that it keeps, then who wants some."""
        granted = {
            name: self._claim_of(claimant, resumes=True)
            for name, claimants in self._named.items()
            for claimant in claimants
            if claimant not in self._claiming and self.topology.registrar(name) == peer
        }
        self.ways[peer].send(NamesGranted(list(granted.values())))
        for claimant in self._claiming:
            if self.topology.registrar(claimant.name or "") == peer:
                self._tell_keeper(self._claim_of(claimant, resumes=self._is_named(claimant)))

    # -- the keeper's side --------------------------------------------------------------------------------------------

    def handle_claim(self, peer: int, claim: Claim) -> None:
        """A home stage claims a name that is kept here, or gives one back."""
        if claim.release:
            if self.names.release(claim, peer) and self.table().is_of(claim.name, claim.identity, claim.session):
                self._write_down(claim)  # that it was used until now
        elif refusal := self.names.refusal(claim):
            self._answer(peer, claim, IN_USE, refusal)
        elif self._may_answer(claim):
            self._give(peer, claim)

    @property
    def _is_settled(self) -> bool:
        """Whether all homes had the time to say who is there."""
        return self.is_new_system or self._loop.time() - self._started_at >= SETTLE_S

    def _write_down(self, claim: Claim) -> tuple[str, str]:
        return self.give(claim, self.names.holders if self._is_settled else None)

    def _may_answer(self, claim: Claim) -> bool:
        """Whether those who should have been heard before have had the time for it."""
        table, name = self.table(), claim.name
        if self._is_settled:
            self._granted.clear()
            return True
        if name not in table.names or name in self.names.holders or name in self._granted:
            return True
        return table.is_of(name, claim.identity, claim.session) or (
            table.is_anothers(name, claim.identity) and not claim.is_given
        )

    def _give(self, peer: int, claim: Claim) -> None:
        """Nobody else has the name: it is the session's when it is on disk that it is."""
        self._giving[claim.name, claim.session] = peer
        self.names.claim(claim, peer)
        code, refusal = self._write_down(claim)
        if refusal:
            del self._giving[claim.name, claim.session]
            self.names.release(claim, peer)
            self._answer(peer, claim, code, refusal)

    def handle_given(self, name: str, session: str) -> None:
        """A name is a session's, on disk."""
        peer = self._giving.pop((name, session), None)
        holder = self.names.holders.get(name)
        if peer is not None and holder is not None and holder.session == session:
            self._granted[name] = True
            self._answer(peer, Claim(name, session, holder.identity))

    def handle_names(self, peer: int, message: NamesGranted) -> None:
        """A home stage tells which names of those that are kept here its clients have."""
        for claim, refusal in zip(message.claims, self.names.restate(message.claims, peer), strict=True):
            code, refusal = (IN_USE, refusal) if refusal else self._write_down(claim)
            if refusal:
                self.names.release(claim, peer)
                self._answer(peer, claim, code, refusal)

    def _answer(self, peer: int, claim: Claim, code: str = "", refusal: str = "") -> None:
        claimed = Claimed(claim.name, claim.session, refusal, claim.identity, code)
        if peer == self.rank or not refusal:
            self.handle_claimed(claimed)
        for other, way in self.ways.items():
            if other == peer or not refusal:
                way.send(claimed)
