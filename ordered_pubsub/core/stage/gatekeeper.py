"""What clients ask for is taken, or refused: by what the stage knows of them, and by how much they take up already.

Theory of operation
===================
A request is judged by the stage that takes it, once: its verdict is journalled with the request (`RequestTaken.refusal`), so that
it is the same when the journal is read again, under other quotas. Nothing but its place in the session is then remembered of
a request that is refused.

Of a session that would begin with what is refused, nothing is written down at all: it does not begin. But the same request may
be on its way twice, and must not be taken the second time, when the client knows that it was refused. So what was refused first
is remembered for a while, in memory (`refused`).

Names that only one session may have are given here as well; whose they are is in the state (`naming`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    LOAD_BYTES,
    ChangeAsk,
    Named,
    PublishAsk,
    Refusal,
    Request,
    RequestTaken,
    changes_of,
    find_change,
)
from ordered_pubsub.core.order.groups import cells
from ordered_pubsub.core.order.reserving import BUSY
from ordered_pubsub.core.stage._context import Context
from ordered_pubsub.core.stage.naming import IN_USE, LIMIT, RENEWALS
from ordered_pubsub.core.stage.quotas import ENDLESS, Quota, Quotas

REFUSED_MAX, REFUSED_S = 4_096, 60.0
"""Of so many sessions that did not begin it is remembered what was refused, for as long as it may be on its way once more."""
COMMITS_MAX, COMMITS_PER_IDENTITY_MAX, COMMITS_BYTES_MAX = 1_000, 64, 16 << 20
"""So many transactions may wait for their turns, of all and of one identity; and so many bytes of events in those of one."""
WRONG_LEVEL = "level"
"""The code of a refusal of events that were not brought to be kept, on a topic whose events are, or the other way round."""


@attrs.define(eq=False)
class Gatekeeper:
    """Who may have what at one stage."""

    context: Context
    quotas: Quotas = attrs.field(factory=Quotas)
    """what each identity may take up"""
    topics_max: int = ENDLESS
    """so many topics may be in use"""
    refused: OrderedDict[str, tuple[float, Refusal]] = attrs.field(factory=OrderedDict)
    """session that has not begun → when it was refused what last"""
    cells: dict[str, int] = attrs.field(factory=dict)
    """identity → how many cells of the groups' tables its changes concern that were taken lately; the caller forgets them"""

    # -- requests -----------------------------------------------------------------------------------------------------

    def admit(self, request: Request, home: int, now: float, refusal: Refusal | None) -> RequestTaken | Refusal:
        """What is to be journalled of a request whose turn it is; or what it is refused for, without a trace of it.

        With a `refusal` it is not allowed, by its home stage.
        """
        requests, quota = self.context.state.requests, self.quotas.of(request.identity)
        begins = bool(request.identity) and request.client not in requests.sessions
        if begins:
            refusal = self._refused_before(request, now) or refusal or self._refuse(request, quota)
            if refusal is not None:
                return self._refuse_first(request, now, refusal)
        forgets = requests.room_for(request, quota.sessions, quota.state_bytes // LOAD_BYTES)
        if forgets is None:
            reason = (
                f"identity {request.identity!r} may have {quota.sessions} sessions at one stage "
                "(limits.sessions_per_identity_max), and something of each is under way: try again when some of it is done"
            )
            return self._refuse_first(request, now, request.refused("limit", reason))
        if not begins:
            refusal = refusal or self._refuse(request, quota)
        if refusal is not None:
            request = replace(request, parts=())
        return RequestTaken(request, home, now, refusal, tuple(forgets))

    def refuse_level(self, request: Request) -> Refusal | None:
        """Why its events cannot be published as they are brought, if so: those of some topics are kept, and no others."""
        levels = self.context.levels
        if levels is None:
            return None
        for part in request.parts:
            if isinstance(part, ChangeAsk):
                unkept = next((topic for topic in part.add if not levels.is_kept(topic)), None)
                if request.is_transaction and unkept is not None:
                    reason = (
                        f"the events of topic {unkept!r} are not kept by its stage, so no transaction lets a subscription gain "
                        "it: its client could not get what it does not know of"
                    )
                    return request.refused(WRONG_LEVEL, reason)
            elif part.is_kept != levels.is_kept(part.topic):
                kept, brought = ("not kept", "were") if part.is_kept else ("kept", "were not")
                reason = (
                    f"the events of topic {part.topic!r} are {kept} by its stage, and these {brought} brought to be kept: what "
                    "topics give was changed, or the client does not know it. Publish them again"
                )
                return request.refused(WRONG_LEVEL, reason)
        return None

    def _refuse_first(self, request: Request, now: float, refusal: Refusal) -> Refusal:
        """Refuse what a session would begin with, and remember that."""
        refusal = request.refused_as(refusal)
        self.refused.setdefault(request.client, (now, refusal))
        if len(self.refused) > REFUSED_MAX:
            self.refused.popitem(last=False)
        return refusal

    def _refused_before(self, request: Request, now: float) -> Refusal | None:
        at, found = self.refused.get(request.client, (0.0, None))
        if found is None:
            return None
        if (found.epoch, found.sequence) == (request.epoch, request.sequence) and abs(now - at) < REFUSED_S:
            return found
        del self.refused[request.client]
        return None

    def _refuse(self, request: Request, quota: Quota) -> Refusal | None:
        """Why a request is refused, if so: there is no room for another topic, its subscription forbids it, or its quota does."""
        state = self.context.state
        known = state.clocks.numbers
        for part in request.parts if len(known) >= self.topics_max else ():
            if isinstance(part, PublishAsk) and part.topic not in known and self.context.is_own(part.topic):
                reason = (
                    f"{self.topics_max} topics of stage {self.context.name_of(self.context.rank)} are in use, as many as it can "
                    f"have, so nothing is published on another one, {part.topic!r}: try again when some of them rest"
                )
                return request.refused("limit", reason, taken=True)
        ask = None if request.is_transaction else find_change(request.parts)  # of a transaction, its registrars judge
        if ask is not None and (refusal := state.registrar.refuse(request, ask)) is not None:
            return refusal
        if request.is_transaction and (excess := self._excess_of_commits(request)):
            return request.refused(BUSY, excess, taken=True)
        if request.is_transaction and (excess := self.excess_of_shifts(changes_of(request.parts))):
            return request.refused("limit", excess, taken=True)
        if not request.identity:
            return None
        new = self._new_topics(request)
        excess = state.ledger.excess_of_topics(request.identity, new, quota) if new else ""
        if ask is not None and not excess:
            found = state.registrar.subscriptions.get(ask.subscription)
            excess = state.ledger.excess_of_change(request.identity, ask, found, quota)
        return request.refused("limit", excess, taken=True) if excess else None

    def excess_of_shifts(self, asks: list[ChangeAsk]) -> str:
        """Why a transaction may not change subscriptions that are registered here so; empty if it may."""
        state = self.context.state
        return state.ledger.excess_of_shifts(asks, state.registrar.subscriptions, self.quotas) if asks else ""

    def _excess_of_commits(self, request: Request) -> str:
        """Why no more transactions that wait for their turns are taken, from anybody or from this identity; empty if they are."""
        commits = self.context.state.commits
        if not commits or find_change(request.parts) is None:
            return ""
        if len(commits) >= COMMITS_MAX:
            return f"{COMMITS_MAX:,} transactions wait for their turns at this stage already: try again when some have ended"
        mine = [one.waiting.request for one in commits.values() if one.waiting.request.identity == request.identity]
        if len(mine) >= COMMITS_PER_IDENTITY_MAX:
            return (
                f"{COMMITS_PER_IDENTITY_MAX} transactions of identity {request.identity!r} wait for their turns already"
            )
        size = sum(_events_bytes(one) for one in mine)
        if mine and size + _events_bytes(request) > COMMITS_BYTES_MAX:
            return f"transactions of identity {request.identity!r} with {size:,} bytes of events wait for their turns already"
        return ""

    def _new_topics(self, request: Request) -> list[str]:
        """The topics of this stage that a request publishes on, and no identity has since they rested last."""
        brought = self.context.state.ledger.brought
        found = [part.topic for part in request.parts if isinstance(part, PublishAsk) and part.topic not in brought]
        return [topic for topic in dict.fromkeys(found) if self.context.is_own(topic)] if found else found

    # -- what was taken -----------------------------------------------------------------------------------------------

    def count(self, request: Request, ask: ChangeAsk | None) -> None:
        """Take note of what an identity takes up, and of how much work it makes, with a request that takes effect."""
        identity, state = request.identity, self.context.state
        if new := self._new_topics(request):
            state.ledger.bring(identity, new)
        if ask is None and not request.is_transaction:
            return
        for one in changes_of(request.parts) if ask is None else (ask,):
            found = state.registrar.subscriptions.get(one.subscription)
            held = 0 if found is None else len(found.held)
            if (one.weight if found is None else found.weight) and (held or one.add):
                concerned = cells(held, 0) if one.ends else cells(len(one.add) + len(one.remove), held)
                self.cells[identity] = self.cells.get(identity, 0) + concerned

    # -- names --------------------------------------------------------------------------------------------------------

    def give_name(
        self, named: Named, most: int, unused_s: float, in_use: Container[str] | None, is_given: bool = False
    ) -> tuple[str, str]:
        """Give a name that is kept here to a session that no other session has; return why not, if not: a code and a reason.

        It has it when `effects.named` says so. An identity that has as many as it may have (`most`) loses those that it has not
        used for `unused_s`, and that are not `in_use`; as long as nobody knows which are (None), nothing is said, and it has to
        be asked for again. What the configuration says `is_given` to it, it has whoever had it before.
        """
        context, name, identity = self.context, named.name, named.identity
        names = context.state.names
        if names.is_anothers(name, identity) and not is_given:
            return IN_USE, f"the name {name!r} belongs to another identity; take another one"
        if names.is_of(name, identity, named.session):
            if named.at - names.names[name].at > unused_s / RENEWALS:
                context.take(named)
            else:
                context.effects.named.append((name, named.session))
            return "", ""
        has_room, forgets = names.make_room(name, identity, most, named.at - unused_s, in_use or ())
        if in_use is None and forgets:
            return "", ""
        if not has_room:
            return LIMIT, (
                f"identity {identity!r} has {most} names at one stage, as many as allowed (limits.names_per_identity_max): go on "
                "under one of these, or without a name"
            )
        context.take(replace(named, forgets=forgets))
        return "", ""


def _events_bytes(request: Request) -> int:
    return sum(len(chunk.data) for part in request.parts if isinstance(part, PublishAsk) for chunk in part.chunks)
