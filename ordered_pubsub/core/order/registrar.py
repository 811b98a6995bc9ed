"""The registrar: keeps subscriptions, and lets their changes enter the line one at a time.

Two changes of one subscription that travel at once could overtake each other, since they need not have a stage in common;
then stages would disagree about the subscription's topics. So the next change of a subscription starts when the one before
has passed its last stage. It also visits a stage that the one before has visited (`via`), for only then is it after that
one in the total order, and what the subscription gains comes after all that it has lost. Each has a version, 1, 2, 3, …
per subscription, by which marks refer to it.

What a subscription may hold is judged when a change is asked for, by what it will hold (`planned`) when all that were taken
before have passed. How many subscriptions a session may have is judged here as well: nothing but this outlives the
session's connections.

A subscription with a name outlives its client's session: another session of the same client goes on with it (`opens`), by a
change that changes no topic, but has a place in the order and marks it there for the session that had it before. It names the
epoch after the last, so that what a dead session had asked for, and that comes late, takes nothing back. How far it
has acknowledged, and the changes since, are kept here (`Resume`), so that whoever resumes can repeat them.

A subscription belongs to the identity that began it (`owner`): nobody else opens, changes, acknowledges or ends it, whatever he
is called. Who opens one must be allowed to subscribe to all that it holds then, not only to what he adds.

What a subscription has lost it may still need events of, from before that place. So it is remembered where it has gained and
lost a topic until its client says that it is beyond that, and the subscription itself is forgotten when all is said. Its id is
not used again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.messages import (
    ANYBODY,
    Acked,
    Change,
    ChangeAsk,
    Ended,
    Refusal,
    Request,
    Resume,
    TopicsReleased,
)
from ordered_pubsub.core.order.registered import (
    SubscriptionState,
    WaitingChange,
    after,
    change_filters,
    filters_of,
)
from ordered_pubsub.core.order.reserving import (
    Conflict,
    Granted,
    RanksOf,
    Reservation,
    gone,
    grant,
    meeting,
    refuse_at_once,
)

TOPICS_MAX = 10_000
"""Topics that one request may name, and that a subscription of weight 0 may hold."""
HOLDERS_AT_ONCE = 500
"""So many subscriptions are looked at in one step."""
ORDERED_TOPICS_MAX = 2_000
"""Topics that a subscription may hold that is ordered across them: each pair costs its stages some memory."""
SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions that one session may have registered at one stage: more than it needs, and no more than it may leave behind."""

EXPIRING = "@expiring-"
"""With the rank of a stage: who asks there for the end of subscriptions that nothing was heard of. No session has such an id."""
WRONG_EPOCH = "epoch"
"""The code of a refusal whose reason is the epoch of a named subscription: who opens it must name a later one."""
OPENINGS_MAX = 5
"""So often a named subscription is opened anew when somebody else has opened it in between."""


def epoch_after(refusal: Refusal, openings: int) -> int | None:
    """In which epoch to open a named subscription instead, of which so many openings were refused since others had opened it.

    None if it was refused for another reason, or if they do so again and again.
    """
    return refusal.opened + 1 if refusal.code == WRONG_EPOCH and openings < OPENINGS_MAX else None


Turn = WaitingChange | str
"""Whose turn it is: a change, or a transaction, by its name."""


class Registrar(msgspec.Struct):
    """The subscriptions that are registered at one stage."""

    subscriptions: dict[str, SubscriptionState] = msgspec.field(default_factory=dict)
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """client → how many of these are its own"""
    lingering: dict[str, int] = msgspec.field(default_factory=dict)
    """client → how many of its own have ended, and may still need what came before"""
    untold: dict[str, bool] = msgspec.field(default_factory=dict)
    """subscriptions with changes by others of which their clients have not said that they know"""
    reservations: dict[str, Reservation] = msgspec.field(default_factory=dict)
    """transaction → its turns here, those that it has and those that it waits for"""

    def refuse(self, request: Request, ask: ChangeAsk) -> Refusal | None:
        """Why a request for a change is not taken, if it is not."""
        found = self.subscriptions.get(ask.subscription)
        subscription = found or SubscriptionState(request.client)
        is_expiring = request.client.startswith(EXPIRING)
        opened = 0
        if found is not None and found.owner not in (request.identity, ANYBODY) and not is_expiring:
            code, reason = "not-yours", f"subscription {ask.subscription!r} belongs to another identity"
        elif subscription.client != request.client and not ask.opens and not is_expiring:
            code, reason = _not_yours(subscription, ask)
        elif subscription.ended:
            code, reason = "ended", f"subscription {ask.subscription!r} has ended; begin another one"
        elif ask.opens and found is None and not (ask.add or ask.may_be_empty):
            code = "unknown"
            reason = (
                f"subscription {ask.subscription!r} is not there: name the topics that it is to hold, or begin it with none "
                "(empty=True)"
            )
        elif ask.opens and ask.opens != subscription.epoch + 1:
            code, opened = WRONG_EPOCH, subscription.epoch
            reason = f"subscription {ask.subscription!r} is in epoch {opened}: it is to be opened in the next one"
        elif ask.opens and found is not None and (denied := found.denied(request.reading)) is not None:
            code = "forbidden"
            reason = f"subscription {ask.subscription!r} holds {denied!r}, and {request.identity!r} may not subscribe to that"
        elif ask.opens and found is not None and (difference := found.difference(ask)):
            code, reason = "exists", f"subscription {ask.subscription!r} {difference}"
        elif found is None and self._is_full(request.client):
            code = "limit"
            reason = (
                f"a client may have {SUBSCRIPTIONS_MAX} subscriptions at one stage: end one, or hold more topics in one"
            )
        elif len(subscription.after(ask)) > self._topics_max(ask.weight):
            code, reason = self._too_many(ask.subscription, ask.weight)
        else:
            return None
        return request.refused(code, reason, True, opened)

    def ask(self, ask: ChangeAsk, waiting: WaitingChange) -> Turn | None:
        """Take a change; return it if its turn is now."""
        client = waiting.request.client
        subscription = self.subscriptions.get(ask.subscription)
        if subscription is None:
            subscription = SubscriptionState(client, weight=ask.weight, owner=waiting.request.identity)
            self.subscriptions[ask.subscription] = subscription
            if ask.opens:
                subscription.epoch = ask.opens
                subscription.resume = Resume(0, (), {}, 0, ask.start, {})
            self.held[client] = self.held.get(client, 0) + 1
        elif ask.opens:
            subscription.epoch, subscription.owner = ask.opens, waiting.request.identity
            _add(self.held, subscription.client, -1)
            subscription.client = client
            _add(self.held, client, 1)
        subscription.ended = ask.ends
        subscription.expect(ask)
        subscription.gaining.update(dict.fromkeys(ask.add, True))
        subscription.waiting.append(waiting)
        return self.next_turn(ask.subscription)

    def _is_full(self, client: str) -> bool:
        """Whether a client has as many as it may have; of those that have ended, as many again."""
        held = self.held.get(client, 0)
        return held - self.lingering.get(client, 0) >= SUBSCRIPTIONS_MAX or held >= 2 * SUBSCRIPTIONS_MAX

    def next_turn(self, name: str) -> Turn | None:
        """Whose turn it is now at this subscription, if there is anybody: a change, or a transaction."""
        # DEVIATION (Baldoni, figure 5: a subscriber starts its changes itself, several at once if it likes): one at a time, or
        # stages disagree about its topics. Mutant `no-registrar`.
        subscription = self.subscriptions[name]
        if subscription.under_way or not subscription.waiting:
            return None
        subscription.under_way = True
        turn = subscription.waiting.pop(0)
        if isinstance(turn, str):
            subscription.reserved = turn
        return turn

    def refuse_turn(self, ask: ChangeAsk, request: Request) -> Refusal | None:
        """Why a change whose turn it is will not happen after all: it was judged before a transaction had changed the rest."""
        subscription = self.subscriptions[ask.subscription]
        if not subscription.was_changed:
            return None
        found = msgspec.structs.replace(subscription, planned=None, where=subscription.filters)
        if ask.opens and (denied := found.denied(request.reading)) is not None:
            code = "forbidden"
            reason = f"subscription {ask.subscription!r} holds {denied!r}, and {request.identity!r} may not subscribe to that"
        elif ask.opens and subscription.version and (difference := found.difference(ask)):
            code, reason = "exists", f"subscription {ask.subscription!r} {difference}"
        elif len(after(found.topics, ask)) > self._topics_max(found.weight):
            code, reason = self._too_many(ask.subscription, found.weight)
        else:
            return None
        return request.refused(code, reason, True)

    @staticmethod
    def _topics_max(weight: int) -> int:
        return ORDERED_TOPICS_MAX if weight else TOPICS_MAX

    def _too_many(self, name: str, weight: int) -> tuple[str, str]:
        most = self._topics_max(weight)
        return "too-many-topics", f"subscription {name!r} would hold more than {most} topics; use a second one"

    def begin(self, ask: ChangeAsk) -> Change:
        """The next step of a subscription whose turn it is."""
        subscription = self.subscriptions[ask.subscription]
        subscription.version += 1
        resume = subscription.resume if ask.opens and subscription.version > 1 else None
        new = after(subscription.topics, ask)
        return Change(
            subscription=ask.subscription,
            version=subscription.version,
            old=subscription.topics,
            new=new,
            weight=ask.weight,
            best_effort=ask.best_effort,
            resume=None
            if resume is None
            else replace(resume, topics=subscription.acked_topics, changes=list(resume.changes)),
            where=filters_of(ask, subscription.topics, new),
        )

    def meet(self, name: str, ranks: list[int], here: int) -> int:
        """A stage for the change to visit, so that it meets the one before; and remember where the next one meets it."""
        # DEVIATION (the same): consecutive changes meet at a stage, or subscribers wait for each other in a ring. Mutant
        # `never-meet`.
        subscription = self.subscriptions[name]
        stage, subscription.via = meeting(subscription.via, ranks, here)
        return stage

    def settle(self, change: Change) -> Turn | None:
        """Take note that a change has passed its last stage; return whose turn it is next, if there is anybody."""
        subscription = self.subscriptions.get(change.subscription)
        if subscription is None or subscription.version != change.version:
            return None
        subscription.settled(change)
        if change.resume is not None:
            self.known(change.subscription, change.version)  # it is told everything
        return self.free(change.subscription)

    def free(self, name: str) -> Turn | None:
        """What was under way is over; return whose turn it is next, if there is anybody."""
        subscription = self.subscriptions[name]
        if subscription.reserved:
            subscription.reserved = ""
            subscription.was_changed = bool(subscription.waiting)  # they were judged by what it would have held
            subscription.plan()
        subscription.under_way = False
        following = self.next_turn(name)
        if following is None:
            subscription.planned = None
            subscription.was_changed = False
            subscription.gaining.clear()
            if subscription.ended:
                subscription.lose_name()
                _add(self.lingering, subscription.client, 1)
            self._maybe_forget(name)
        return following

    # -- transactions -------------------------------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> None:
        """A transaction wants its turns at some subscriptions: `go_on` takes them."""
        self.reservations[reservation.transaction] = reservation

    def go_on(self, transaction: str, ranks_of: RanksOf, here: int) -> Granted | Conflict | None:
        """Take the turns that a transaction needs, in the order of the subscriptions' names, as far as nobody is before it.

        When it has all of them, it is judged: only now nothing can change any more. None: it waits.
        """
        # Each transaction takes its turns in the same order, so none of two waits for the other. Mutant `any-order`.
        reservation = self.reservations[transaction]
        if not reservation.taken:  # nobody waits at what he must not change, nor lets others wait there
            for _, ask in reservation.asks:
                trouble = refuse_at_once(ask, self.subscriptions.get(ask.subscription), reservation.identity)
                if trouble is not None:
                    return trouble
        while reservation.taken < len(reservation.names):
            name = reservation.names[reservation.taken]
            subscription = self.subscriptions.get(name)
            if subscription is None or subscription.ended:
                return gone(name)
            if subscription.reserved != transaction:
                subscription.waiting.append(transaction)
                if self.next_turn(name) != transaction:
                    return None
                subscription.plan()
            reservation.taken += 1
        found = grant(reservation, self.subscriptions, self._topics_max, ranks_of, here)
        if isinstance(found, Granted):
            for name in reservation.names:
                subscription = self.subscriptions[name]
                changes = [change for _, change in found.changes if change.subscription == name]
                subscription.plan(changes)
                subscription.gaining.update((topic, True) for change in changes for topic in change.gained)
        return found

    def release(self, transaction: str) -> list[Turn]:
        """A transaction will not happen; return whose turns these are now."""
        reservation = self.reservations.pop(transaction, None)
        return [] if reservation is None else self._free_all(reservation)

    def settle_transaction(self, transaction: str, changes: list[Change]) -> list[Turn]:
        """Take note that a transaction has passed its last stage, with these changes; return whose turns these are now."""
        reservation = self.reservations.pop(transaction, None)
        if reservation is None:
            return []
        for change in changes:
            subscription = self.subscriptions[change.subscription]
            subscription.version = change.version
            subscription.via = reservation.vias[change.subscription]
            subscription.settled(change)
            subscription.news.append(change)
            self.untold[change.subscription] = True
        return self._free_all(reservation)

    def _free_all(self, reservation: Reservation) -> list[Turn]:
        turns: list[Turn] = []
        for name in reservation.names:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                continue
            if subscription.reserved == reservation.transaction:
                following = self.free(name)
                if following is not None:
                    turns.append(following)
            elif reservation.transaction in subscription.waiting:
                subscription.waiting.remove(reservation.transaction)
        return turns

    def known(self, name: str, version: int) -> None:
        """The client of a subscription knows of its changes up to this one."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.news = [change for change in subscription.news if change.version > version]
            if not subscription.news:
                self.untold.pop(name, None)

    # -- what ends ----------------------------------------------------------------------------------------------------

    def passed(self, passed: TopicsReleased) -> None:
        """A subscription needs nothing any more of some topics that it had left."""
        subscription = self.subscriptions.get(passed.subscription)
        if subscription is None:
            return
        for topic in passed.topics:
            if subscription.leaving.pop(topic, None) is not None and topic not in subscription.topics:
                subscription.low.pop(topic, None)
        self._maybe_forget(passed.subscription)

    def _maybe_forget(self, name: str) -> None:
        """One that has ended is forgotten when it needs nothing any more."""
        subscription = self.subscriptions[name]
        if subscription.ended and not subscription.leaving and not subscription.under_way and not subscription.waiting:
            del self.subscriptions[name]
            self.untold.pop(name, None)
            _add(self.held, subscription.client, -1)
            _add(self.lingering, subscription.client, -1)

    def finding_holders(self, topic: str, found: dict[str, bool]) -> Iterator[None]:
        """The sessions that may have something to do with a topic whose events nobody keeps, found in small steps.

        Who begins to hold the topic meanwhile has nothing to do with what is asked about.
        """
        for count, name in enumerate(list(self.subscriptions), 1):
            subscription = self.subscriptions.get(name)
            if subscription is not None and subscription.resume is None and subscription.concerns(topic):
                found[subscription.client] = True
            if not count % HOLDERS_AT_ONCE:
                yield

    # -- acknowledgements of those that have a name -------------------------------------------------------------------

    def refuse_ack(self, acked: Acked) -> Ended | None:
        """Why an acknowledgement is not taken, if the subscription is not this session's any more."""
        subscription = self.subscriptions.get(acked.subscription)
        if subscription is None or subscription.resume is None:
            code, reason = "ended", f"subscription {acked.subscription!r} is not there any more"
        elif subscription.owner != acked.identity:
            code, reason = "not-yours", f"subscription {acked.subscription!r} belongs to another identity"
        elif subscription.client != acked.session:
            code, reason = "taken-over", f"subscription {acked.subscription!r} goes on in another session now"
        else:
            return None
        return Ended(acked.subscription, acked.session, code, reason)

    def is_ahead(self, acked: Acked) -> bool:
        """Whether its client knows of a change of which the registrar does not know yet that it has passed its last stage."""
        return acked.version > self.subscriptions[acked.subscription].version

    def is_news(self, acked: Acked) -> bool:
        """Whether an acknowledgement of this session says more than is known."""
        resume = self.subscriptions[acked.subscription].resume
        assert resume is not None
        is_older = acked.version < resume.version or acked.position < resume.position
        return not is_older and (acked.clock != resume.clock or acked.version > resume.version)

    def acknowledged(self, acked: Acked) -> None:
        """A named subscription has acknowledged more."""
        subscription = self.subscriptions.get(acked.subscription)
        resume = None if subscription is None else subscription.resume
        if resume is not None and acked.position >= resume.position and acked.version >= resume.version:
            for change in resume.changes:
                if change.version <= acked.version:
                    change_filters(resume.where, change.lost, change.where)
            resume.changes = [change for change in resume.changes if change.version > acked.version]
            resume.version, resume.clock, resume.position = acked.version, dict(acked.clock), acked.position
            self.known(acked.subscription, acked.version)

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if what is written at the top, and beside the fields, does not hold between two inputs."""
        held: dict[str, int] = {}
        lingering: dict[str, int] = {}
        for name, one in self.subscriptions.items():
            _add(held, one.client, 1)
            if one.ended and not one.under_way:
                _add(lingering, one.client, 1)
            assert one.under_way or not one.waiting, f"{name} has changes that wait, and none is under way"
            assert (one.planned is not None) == one.under_way, f"{name} is to hold {one.planned}"
            assert one.under_way or not one.gaining, f"{name} gains {one.gaining}, and nothing is under way"
            assert len(set(one.topics)) == len(one.topics), f"{name} holds a topic twice: {one.topics}"
            assert not one.ended or one.under_way or one.leaving, f"{name} has ended, needs nothing, and is there"
            if one.resume is not None:
                versions = [one.resume.version, *(change.version for change in one.resume.changes)]
                assert versions == list(range(versions[0], versions[0] + len(versions))), (
                    f"{name} resumes by {versions}"
                )
                assert versions[-1] <= one.version, f"{name} is at {one.version}, and resumes by {versions}"
        assert held == self.held, f"clients have {held} subscriptions, and {self.held} are counted"
        assert lingering == self.lingering, f"{lingering} have ended, and {self.lingering} are counted"


def _not_yours(subscription: SubscriptionState, ask: ChangeAsk) -> tuple[str, str]:
    if subscription.resume is None:
        return "not-yours", f"subscription {ask.subscription!r} belongs to another client"
    return "taken-over", f"subscription {ask.subscription!r} goes on in another session now"


def _add(counts: dict[str, int], key: str, step: int) -> None:
    counts[key] = counts.get(key, 0) + step
    if not counts[key]:
        del counts[key]
