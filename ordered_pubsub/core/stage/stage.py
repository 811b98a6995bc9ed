"""One stage of the sequencer.

Theory of operation
===================
The stages stand on a line in the order of their rank, 0 the highest. Everything that must be ordered is an operation. It
enters at the lowest stage that it concerns and goes up the line from neighbour to neighbour, to the highest that it
concerns; it never jumps over a stage. A stage handles one operation at a time, in the order of arrival. Therefore there is
one total order of all operations in the system, although no stage sees it whole (docs/protocol.md has the argument).

    client ── request ──> home ── relay ──> the stage that takes it        (the owner of the lowest topic, or the registrar)
                                              │ launch
                                              v
                       lowest stage ── pass ──> … ── pass ──> highest stage
                                                                │ done, to who asked, to owners and registrar
    client <── answer ── home <── reply ────────────────────────┘

Duties of the caller, in this order, for each batch of `Effects` (`driver.Driver` does them):

1. write `effects.kept` and the publications of `effects.completed` to the log;
2. append `effects.journal` to the journal;
3. sync both;
4. only then send `effects.sends` and `effects.replies`.

A stage that crashed is made again by `Stage.restore` from its last snapshot and the inputs journalled since.
Inputs that are refused raise a `ProtocolError` or are answered with a `Refusal`, and change nothing.

Here is the journey, and what begins it. What a client may ask for is in `gatekeeper`, what lies between this stage and the others
in `_peers`, topics that rest and wake in `_waking`; `_context` is what they share: the state, and how an input happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import attrs
from msgspec.structs import replace

from ordered_pubsub.core.checking import check_request
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log.shelf import NEVER_KEPT
from ordered_pubsub.core.log.writer import Kept
from ordered_pubsub.core.messages import (
    ANYBODY,
    EVERYBODY_ASKS,
    EVERYBODY_LOOKS,
    MARKS_MAX,
    Acked,
    AckSaved,
    AckTaken,
    Answer,
    AskNews,
    AskSecrets,
    Change,
    ChangeAsk,
    ChangeMark,
    Chunk,
    Done,
    Durable,
    Ended,
    Founded,
    FrameTaken,
    GaveUp,
    Hello,
    Input,
    Launch,
    Leveled,
    LinkAck,
    LinkFrame,
    Named,
    News,
    NewsKnown,
    Operation,
    Part,
    Pass,
    PeerMessage,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Reply,
    Request,
    RequestTaken,
    Reserve,
    Rested,
    Rotated,
    Secrets,
    SystemKeys,
    TopicsReleased,
    Transaction,
    Woken,
    find_change,
    load_of,
)
from ordered_pubsub.core.order.groups import PAIRS_AT_ONCE
from ordered_pubsub.core.order.registered import WaitingChange
from ordered_pubsub.core.order.registrar import EXPIRING, Turn
from ordered_pubsub.core.stage._committing import Committing
from ordered_pubsub.core.stage._context import Context
from ordered_pubsub.core.stage._peers import Peers
from ordered_pubsub.core.stage._replaying import read_journal, replay
from ordered_pubsub.core.stage._requests import Requests, RequestVerdict
from ordered_pubsub.core.stage._waking import Numbers, Waking
from ordered_pubsub.core.stage.effects import Effects, nobody
from ordered_pubsub.core.stage.gatekeeper import Gatekeeper
from ordered_pubsub.core.stage.state import Commit, StageState, empty_state, write_snapshot
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import JournalError, NotOwner, ProtocolError, UsageError

_NO_CHANGES: Mapping[int, Change] = {}
NEWS_LOAD_MAX = 16_384
"""About so many names of topics are told at once of what others have changed."""


@attrs.define(eq=False)
class Stage:
    """The state machine of one stage."""

    context: Context
    """what its parts share"""
    state: StageState = attrs.field(init=False)
    """all that it must not forget"""
    rank: int = attrs.field(init=False)
    """this stage's place on the line, 0 the highest"""
    peers: Peers = attrs.field(init=False)
    gatekeeper: Gatekeeper = attrs.field(init=False)
    waking: Waking = attrs.field(init=False)
    pairs_at_once: int = PAIRS_AT_ONCE
    """what a change does to more cells of the groups' tables than these is done a little at a time"""
    parts_handled: int = 0
    """publications, and topics of changes, since the snapshot from which this stage was made; the caller begins anew"""
    committing: Committing = attrs.field(init=False)
    _turns: list[Turn | Commit] = attrs.field(factory=list)
    """whose turn has come: changes, transactions at a subscription, and those that enter the line; empty between two inputs"""

    def __attrs_post_init__(self) -> None:
        context = self.context
        context.apply = self._apply
        self.state, self.rank = context.state, context.rank
        self.peers, self.gatekeeper, self.waking = Peers(context), Gatekeeper(context), Waking(context)
        self.committing = Committing(context, self.peers, self._turns, self._answer_refused)

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    def restore(
        cls,
        rank: int,
        topology: Topology,
        snapshot: bytes | None,
        records: Iterable[bytes],
        levels: Levels | None = None,
        founding: SystemKeys | None = None,
        numbers: Numbers | None = None,
        on_replayed: Callable[[Effects], None] = nobody,
        marks_max: int = MARKS_MAX,
    ) -> Stage:
        """A stage, from its last snapshot and the records journalled since; a new one if there are none.

        The records are read one after the other, and what they do is handed to `on_replayed`, some at a time: nobody else has it.
        Without `levels` topics give what they gave before: whatever is asked for, if nothing was ever said.
        With `founding`, it is a part of a system, and nothing is taken before it knows of which: the highest stage founds it on
        that if there is none, and the others learn it from the highest.
        """
        records = iter(records)
        first = next(records, None)
        if snapshot is None and first is None:
            stage = cls(Context(empty_state(rank, [], len(topology.stages)), topology, marks_max))
        else:
            records = records if first is None else chain((first,), records)
            stage = cls.replay(snapshot, records, topology, on_replayed, marks_max)
        if numbers is not None:
            stage.waking.numbers = numbers
        stage._open(rank, topology)
        if levels is not None and levels.dump() != stage.state.levels:
            stage.context.take(Leveled(levels.dump()))
        stage.peers.needs_system = founding is not None
        if founding is not None and rank == 0 and not stage.state.keys.epoch:
            stage.context.take(Founded(founding))
        return stage

    @classmethod
    def replay(
        cls,
        snapshot: bytes | None,
        records: Iterable[bytes],
        topology: Topology | None = None,
        on_replayed: Callable[[Effects], None] = nobody,
        marks_max: int = MARKS_MAX,
    ) -> Stage:
        """A stage as its journal has it, whoever runs it; under this topology if the journal has none."""
        state, inputs = read_journal(snapshot, records)
        loaded = Topology.load(state.topology) if state.topology or topology is None else topology
        stage = cls(Context(state, loaded, marks_max))
        for _ in replay(stage.context, inputs):
            stage.waking.touched.clear()
            stage.gatekeeper.cells.clear()
            on_replayed(stage.take_effects())
        return stage

    def _open(self, rank: int, topology: Topology) -> None:
        """Start under this topology, at once if the journal has it already, else when all stages were seen to have it."""
        context, state = self.context, self.state
        if rank != state.rank:
            raise JournalError(f"this journal belongs to the stage of rank {state.rank}, not {rank}: check `store`")
        topology.check_still_owned(rank, context.topology, self._owned(topology))
        context.topology = topology
        self.peers.offer()

    def _owned(self, topology: Topology) -> Iterator[str]:
        """The topics that must stay here. Those that rest are looked at only if one may have moved: there may be very many."""
        yield from self.state.clocks.numbers
        if topology.dump() != self.topology.dump():
            yield from (topic for topic, _ in self.waking.numbers.resting())

    def go_on_beyond(self, count: int, now: float) -> list[Publication]:
        """Leave out so many numbers of each own topic, known or not, and forget what clients were answered.

        For a stage whose journal has lost its end: among these numbers are all that it had given and does not know of. Returns
        what is left out, which is to have a place in the log.
        """
        clocks = self.state.clocks
        clocks.base += count
        self.state.transactions += count
        self.waking.lose_numbers()
        self.state.requests = Requests()
        left_out: list[Publication] = []
        for topic in list(clocks.numbers):
            clocks.stamp += 1
            first = clocks.take_numbers(topic, count, self.state.groups)
            part = Publication(topic, count, now, first, clocks.stamp, is_kept=topic in self.state.kept)
            if part.is_kept:
                self.state.kept[topic] = part.last
            left_out.append(part)
        return left_out

    def snapshot(self) -> bytes:
        """All that must not be forgotten, as bytes."""
        return write_snapshot(self.state)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The line of stages."""
        return self.context.topology

    @property
    def is_open(self) -> bool:
        """Whether requests and frames are taken."""
        return self.peers.is_open

    @property
    def unlogged(self) -> dict[str, int]:
        """Own topics whose events are kept, though their last number is one that was not: their levels were others before.

        Their logs begin behind these numbers: what comes before them is not to be had from there as a whole.
        """
        kept, levels = self.state.kept, self.context.levels
        return {
            topic: number
            for topic, number in self.state.clocks.numbers.items()
            if levels is not None and kept.get(topic, 0) < number and levels.is_kept(topic)
        }

    def statistics(self) -> dict[str, int]:
        """Counts that show what this stage holds."""
        state = self.state
        return {
            "rank": state.rank,
            "topics": len(state.clocks.numbers) + state.resting,
            "resting": state.resting,
            "events": sum(state.clocks.numbers.values()) + state.resting_events,
            "subscriptions": len(state.groups.holdings),
            "registered": len(state.registrar.subscriptions),
            "sessions": len(state.requests.sessions),
            "pending": sum(len(session.pending) for session in state.requests.sessions.values()),
            "outbox": sum(len(link.outbox) for link in state.links.values()),
            "marks": sum(len(marks) for marks in state.marks.values()),
            "transactions": len(state.commits),
        }

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if its parts are not as they say that they are between two inputs."""
        state, given = self.state, self.waking.given
        assert not self._turns, f"the turn of {self._turns} has come, and nobody has taken it"
        state.registrar.check_invariants()
        state.requests.check_invariants()
        self.committing.check_invariants()
        for link in state.links.values():
            link.check_invariants()
        for topic, last in state.kept.items():
            assert self.context.is_own(topic), f"{topic} is kept here, and owned elsewhere"
            assert last <= given(topic), f"{topic} has {given(topic)} numbers, and {last} are kept"
        for topic, batches in state.unfinished.items():
            assert batches, f"nothing of {topic} is under way, and it is here"
            assert all(last <= state.kept.get(topic, 0) for last in batches.values()), f"{topic} {batches} is not kept"

    # -- what is to be done -------------------------------------------------------------------------------------------

    @property
    def effects(self) -> Effects:
        """What is to be done about the inputs since `take_effects`."""
        return self.context.effects

    def take_effects(self) -> Effects:
        """What is to be done since the last call."""
        context = self.context
        effects, context.effects = context.effects, Effects()
        if self.peers.owed_acks:
            effects.sends += self.peers.take_acks()
        return effects

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` has something to do."""
        return bool(self.peers.owed_acks) or not self.context.effects.is_empty

    def _apply(self, event: Input) -> None:
        """Let a journalled input take effect; the same code runs when it happens and when it is read again."""
        state = self.state
        if isinstance(event, RequestTaken):
            self._take_request(event)
            self._start_turns()
        elif isinstance(event, FrameTaken):
            self._take_frame(event)
            self._start_turns()
        elif isinstance(event, GaveUp):
            self.committing.give_up(event)
            self._start_turns()
        elif isinstance(event, AckTaken):
            state.registrar.acknowledged(event.acked)
            self._count(event.acked.subscription)
        elif isinstance(event, NewsKnown):
            state.registrar.known(event.subscription, event.version)
            self._count(event.subscription)
        elif isinstance(event, TopicsReleased):
            state.registrar.passed(event)
            self._count(event.subscription)
        elif isinstance(event, Leveled):
            state.levels = event.levels
            self.context.know_levels()
        elif isinstance(event, Named):
            state.names.take(event)
            self.context.effects.named.append((event.name, event.session))
        elif isinstance(event, (Founded, Rotated)):
            state.keys = event.keys
        elif isinstance(event, Rested):
            self.waking.take_rested(event)
        elif isinstance(event, Woken):
            self.waking.take_woken(event)
        else:
            state.topology, state.confirmed = event.topology, event.confirmed
            if event.topology != self.topology.dump():
                self.context.topology = Topology.load(event.topology)

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something. With a refusal it may not; but the stage that takes it has the last word.

        Only that one knows whether it has taken the request already, when the client still might.
        """
        context = self.context
        try:
            check_request(request)
        except UsageError as error:
            context.effects.replies.append(request.refused("bad-request", str(error)))
            return
        if not self.peers.is_open:
            return  # asked again later
        refusal = refusal or self.gatekeeper.refuse_level(request)
        rank = taken_at(context.topology, request)
        if rank == self.rank:
            self._consider(request, rank, now, refusal)
        elif rank in self.peers.greeted:
            if refusal is not None:
                parts = _bare_parts(context.topology, request, rank)
                request = replace(request, parts=parts, is_transaction=False)
            context.effects.sends.append((rank, Relay(self.rank, request, refusal)))

    def _handle_relay(self, relay: Relay, now: float) -> None:
        """A client that is at home at another stage asks for something that is taken here."""
        request, context = relay.request, self.context
        rank = taken_at(context.topology, request)
        if rank != self.rank:
            raise NotOwner(
                f"a request of client {request.client!r} for {', '.join(map(_subject, request.parts))} came to stage "
                f"{context.name_of(self.rank)}, but stage {context.name_of(rank)} takes it: the sender's topology differs"
            )
        self._consider(request, relay.home, now, relay.refusal or self.gatekeeper.refuse_level(request))

    def _consider(self, request: Request, home: int, now: float, refusal: Refusal | None) -> None:
        """Take a request that is taken here, if its turn is now; answer it if it was taken before."""
        verdict = self.state.requests.judge(request, now)
        if verdict is RequestVerdict.TAKE:
            taken = self.gatekeeper.admit(request, home, now, refusal)
            if isinstance(taken, Refusal):
                self.context.reply(home, taken)
            else:
                if self.state.resting:
                    self.waking.wake(taken.request.parts)
                self.context.take(taken)
        elif verdict is RequestVerdict.WAIT:
            self.state.requests.sessions[request.client].home = home
        elif isinstance(verdict, (Answer, Refusal)):
            self.context.reply(home, verdict)

    def _take_request(self, event: RequestTaken) -> None:
        request, requests = event.request, self.state.requests
        for client in event.forgets:
            requests.forget(client)
        requests.take(request, event.home, event.now)
        if event.refusal is not None:
            refusal = request.refused_as(event.refusal, taken=True)
            requests.answered(refusal)
            self.context.reply(event.home, refusal)
            return
        ask = None if request.is_transaction else find_change(request.parts)
        if request.identity:
            self.gatekeeper.count(request, ask)
        waiting = WaitingChange(request, event.home, event.now)
        if ask is not None:
            turn = self.state.registrar.ask(ask, waiting)
            self._count(ask.subscription, request.identity)
            if turn is not None:
                self._turns.append(turn)
        elif not request.is_transaction:
            self._launch(self._operation(waiting, _NO_CHANGES, (), ""))
        elif find_change(request.parts) is None:
            self._launch(self._operation(waiting, _NO_CHANGES, (), self._name_transaction()))
        else:
            self.committing.begin(self._name_transaction(), waiting)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def handle_passed(self, passed: TopicsReleased) -> None:
        """A subscription needs nothing any more of topics that it had left."""
        if self.is_open:
            self.context.take(passed)

    def handle_acked(self, home: int, acked: Acked) -> None:
        """A named subscription has acknowledged its events; who says so is told when it is on disk."""
        if not self.is_open:
            return  # said again later
        registrar = self.state.registrar
        ended = registrar.refuse_ack(acked)
        if ended is None and registrar.is_ahead(acked):
            return  # said again later
        if ended is None and registrar.is_news(acked):
            excess = self.state.ledger.excess_of_clock(acked.subscription, acked.clock, self.gatekeeper.quotas)
            if excess:
                ended = Ended(acked.subscription, acked.session, "limit", excess)
            else:
                self.context.take(AckTaken(acked))
        answer = ended or AckSaved(acked.subscription, acked.session, acked.serial)
        if home == self.rank:
            self.effects.tells.append((acked.session, answer))
        else:
            self.effects.sends.append((home, answer))

    def handle_ask_news(self, ask: AskNews) -> News | None:
        """A client asks what others have changed of a subscription, and says up to where it knows: the answer, if any."""
        found = self.state.registrar.subscriptions.get(ask.subscription)
        if (
            not self.is_open
            or found is None
            or found.client != ask.session
            or found.owner not in (ask.identity, ANYBODY)
        ):
            return None
        if any(change.version <= ask.version for change in found.news):
            self.context.take(NewsKnown(ask.subscription, ask.version))
        return self.news_of(ask.subscription)

    def news_of(self, subscription: str) -> News | None:
        """What others have changed of a subscription, and its client may not know; a part of it, if that is much."""
        found = self.state.registrar.subscriptions.get(subscription)
        if found is None or not found.news:
            return None
        changes, load = list[Change](), 0
        for change in found.news:
            load += load_of([change])
            if changes and load > NEWS_LOAD_MAX:
                break
            changes.append(change)
        return News(subscription, found.client, changes)

    def version_there(self, subscription: str) -> int:
        """The last change of a subscription that has passed here; -1 if it holds no topic of this stage."""
        holding = self.state.groups.holdings.get(subscription)
        return -1 if holding is None else holding.version

    def expire(self, subscription: str, now: float) -> None:
        """Nothing was heard of a subscription's client for too long: end it, as if it had asked for that."""
        client = f"{EXPIRING}{self.rank}"
        before = self.state.requests.sessions.get(client)
        last = 0 if before is None else before.last
        ask = ChangeAsk(subscription, ends=True)
        self._consider(Request(client, 1, last + 1, last, last, (ask,)), self.rank, now, None)

    def _start_turns(self) -> None:
        """Let those go on whose turn has come, now that nothing else is being handled."""
        while self._turns:
            turn = self._turns.pop(0)
            if isinstance(turn, str):
                self.committing.go_on(turn)
            elif isinstance(turn, Commit):
                turn.is_launched = True
                self._launch(self._operation(turn.waiting, turn.changes, turn.meets, turn.transaction))
            else:
                self._start_change(turn)

    def _start_change(self, turn: WaitingChange) -> None:
        """A change has its turn: it enters the line."""
        request, registrar = turn.request, self.state.registrar
        ask = find_change(request.parts)
        assert ask is not None
        refusal = registrar.refuse_turn(ask, request)
        if refusal is not None:
            self._answer_refused(turn, refusal)
            registrar.subscriptions[ask.subscription].plan()
            following = registrar.free(ask.subscription)
            self._count(ask.subscription)
            if following is not None:
                self._turns.append(following)
            return
        changes = {request.parts.index(ask): registrar.begin(ask)}
        self._launch(self._operation(turn, changes, (), "", ask.subscription))

    def _answer_refused(self, waiting: WaitingChange, refusal: Refusal) -> None:
        """What was taken will not happen."""
        home = self.state.requests.answered(refusal)
        for rank in dict.fromkeys((waiting.home, waiting.home if home is None else home)):
            self.context.reply(rank, refusal)

    def _count(self, subscription: str, identity: str = "") -> None:
        """A subscription has changed: its identity may have more of it, or less."""
        self.state.ledger.count(subscription, self.state.registrar.subscriptions.get(subscription), identity)

    # -- the journey --------------------------------------------------------------------------------------------------

    def _operation(
        self,
        waiting: WaitingChange,
        changes: Mapping[int, Change],
        meets: Sequence[int],
        transaction: str,
        subscription: str = "",
    ) -> Operation:
        """The operation that a request asks for, before its journey; by their places among its parts, what its changes are.

        It visits the stages that it `meets` what came before at, or where the change of this one subscription does.
        """
        request = waiting.request
        now, owner = waiting.now, self.context.topology.owner
        parts: list[Part] = []
        ranks = [*meets]
        for ask in request.parts:
            if isinstance(ask, PublishAsk):
                parts.append(_publication(ask, now))
                ranks.append(owner(ask.topic))
            else:
                change = changes[len(parts)]
                parts.append(change)
                ranks += map(owner, change.topics)
        if subscription:
            ranks.append(self.state.registrar.meet(subscription, ranks, self.rank))
        return Operation(
            request.client,
            request.epoch,
            request.sequence,
            waiting.home,
            self.rank,
            max(ranks),
            min(ranks),
            parts,
            transaction,
        )

    def _name_transaction(self) -> str:
        """A name that no other transaction of the system has."""
        self.state.transactions += 1
        return f"{self.rank}.{self.state.transactions}"

    def _launch(self, operation: Operation) -> None:
        if operation.bottom == self.rank:
            self._handle(operation)
        else:
            self.peers.send(operation.bottom, Launch(operation))

    def _handle(self, operation: Operation) -> None:
        """Handle one operation, in one go, its parts in their written order."""
        for part in operation.parts:
            self.state.clocks.stamp += 1
            if isinstance(part, Publication):
                self.parts_handled += 1
                self._handle_publication(part, operation)
            else:
                self.parts_handled += len(part.old) + len(part.new)
                self._handle_change(part, operation.top, bool(operation.transaction))
        self.context.effects.handled.append(operation)
        if self.rank == operation.top:
            self._complete(operation)
        else:
            for part in self.kept_here(operation):
                self.state.unfinished.setdefault(part.topic, {})[part.first] = part.last
            self.peers.send(self.next_stage(operation), Pass(operation))

    def kept_here(self, operation: Operation) -> list[Publication]:
        """The publications of an operation whose events are in the log of this stage."""
        owner = self.context.topology.owner
        return [
            part
            for part in operation.parts
            if isinstance(part, Publication) and part.is_kept and owner(part.topic) == self.rank
        ]

    def next_stage(self, operation: Operation) -> int:
        """Where an operation goes from here: to the neighbour, also if that one has nothing to do with it."""
        # DEVIATION (Baldoni 3.4, figure 2b: an event jumps over managers outside of its group): no stage is jumped over, or the
        # order becomes cyclic (docs/protocol.md, "Where the published algorithm stops"). Mutant `jump`.
        return self.rank - 1

    def _handle_publication(self, part: Publication, operation: Operation) -> None:
        """Give a publication its numbers, if its topic is an own one, and the entries that are due here."""
        context, clocks, groups = self.context, self.state.clocks, self.state.groups
        owner = context.topology.owner(part.topic)
        if owner < self.rank:
            return  # its turn comes further up
        if part.topic in groups.due_in:
            self._settle(part.topic)
        if owner == self.rank:
            operation.top = min(operation.top, groups.highest(part.topic))
            part.first = clocks.take_numbers(part.topic, part.count, groups)
            part.place = clocks.stamp
            part.full = part.topic in groups.full_wanted
            levels = context.levels
            if levels is not None and part.is_kept != levels.is_kept(part.topic):
                # It was asked for when its topic gave something else. A log has no holes, and there is none where nobody looks.
                part.is_kept = not part.is_kept
                part.chunks = (Chunk(part.count, NEVER_KEPT),) if part.is_kept else ()
            if part.is_kept:
                self._keep(part)
            marks = self.state.marks.pop(part.topic, None)
            if marks:
                part.marks = marks
                self.state.marked_by_others.pop(part.topic, None)
        else:
            clocks.passes(part.topic, part.last, groups)
        clocks.fill(part.topic, part.entries, groups, part.full)

    def _settle(self, topic: str) -> None:
        """Do what is due in the row of a topic that has an event."""
        groups = self.state.groups
        self.state.clocks.prune(groups.settle(topic), groups)

    def settle_pairs(self) -> bool:
        """Do a little of what large changes have left to do; whether there was anything."""
        clocks, groups = self.state.clocks, self.state.groups
        if not groups.due:
            return False
        clocks.prune(groups.settle_next(), groups)
        return True

    def _keep(self, part: Publication) -> None:
        """Its events are for the log here, and for nobody else; when the journal is read again, the log has them."""
        begins = self.state.kept.get(part.topic, 0) != part.first - 1
        part.full = part.full or begins  # nobody finds in the log what a delta would leave out
        self.state.kept[part.topic] = part.last
        if part.chunks:
            self.context.effects.kept.append(Kept(part.topic, part.first, part.chunks))
            part.chunks = ()

    def _handle_change(self, part: Change, top: int, is_others: bool) -> None:
        """Note what a subscription holds from here on. `is_others`: its client may know nothing of it."""
        clocks, groups = self.state.clocks, self.state.groups
        owner_of = self.context.topology.owner
        topics, own = part.topics, list[str]()
        self.waking.touched.update(dict.fromkeys(topics, True))
        for topic in topics:
            owner = owner_of(topic)
            if owner > self.rank:
                clocks.see(topic, part.entries.get(topic, 0))
            elif owner == self.rank:
                own.append(topic)
                clocks.numbers.setdefault(topic, clocks.base)
                if clocks.numbers[topic]:
                    part.entries[topic] = clocks.numbers[topic]
                self._mark(topic, ChangeMark(part.subscription, part.version), is_others)
        if own:
            groups.change(self.topology, part, self.pairs_at_once)
            if top < self.rank:
                groups.follow(part.identity, top, own)
        clocks.prune(topics, groups)

    def _mark(self, topic: str, mark: ChangeMark, is_others: bool) -> None:
        """The next event says that this change was before it. Only the last one of a subscription counts.

        One with a name may be begun anew when it has ended, and its versions with it.
        """
        # If there are too many, everybody asks: of own changes, a client knows that they are under way; of those that others
        # have made, it does not. Mutant `few-look`.
        if is_others:
            self.state.marked_by_others[topic] = True
        marks = self.state.marks.setdefault(topic, [])
        marks[:] = [known for known in marks if known.subscription != mark.subscription]
        if len(marks) >= self.context.marks_max or marks in ([EVERYBODY_ASKS], [EVERYBODY_LOOKS]):
            marks[:] = [EVERYBODY_LOOKS if topic in self.state.marked_by_others else EVERYBODY_ASKS]
        else:
            marks.append(mark)

    def _complete(self, operation: Operation) -> None:
        """The last stage: tell the client, and those who must remember."""
        answer, owner = answer_to(operation), self.context.topology.owner
        self.context.reply(operation.home, answer)
        remembering = {operation.asked: True}
        for part in operation.parts:
            if isinstance(part, Publication):
                remembering[owner(part.topic)] = True
            else:
                remembering[self.topology.registrar(part.subscription)] = True
                remembering.update((owner(topic), True) for topic in part.topics)
        for rank in remembering:
            if rank == self.rank:
                self._remember(operation, answer)
            else:
                self.peers.send(rank, Done(operation))

    def _remember(self, operation: Operation, answer: Answer) -> None:
        """An operation is complete: keep its answer, log its events, let the subscription's next change start."""
        state = self.state
        if operation.asked == self.rank:
            home = state.requests.answered(answer)
            if home is not None and home != operation.home:
                self.context.reply(home, answer)
        self.context.effects.completed.append(operation)
        for kept in self.kept_here(operation) if state.unfinished else ():
            batches = state.unfinished.get(kept.topic, {})
            batches.pop(kept.first, None)
            if not batches:
                state.unfinished.pop(kept.topic, None)
        for part in operation.parts:
            if isinstance(part, Change):
                self._settle_changes(operation)
                break
        else:
            if operation.transaction:
                self.committing.done(operation.transaction, [])

    def _settle_changes(self, operation: Operation) -> None:
        """Subscriptions have changed: nothing follows that any more, and whoever waits behind it goes on."""
        state = self.state
        changes = [part for part in operation.parts if isinstance(part, Change)]
        for change in changes:
            state.groups.passed(change.identity)
        own = [change for change in changes if self.topology.registrar(change.subscription) == self.rank]
        if operation.transaction:
            self.committing.done(operation.transaction, own)
        else:
            for change in own:
                turn = state.registrar.settle(change)
                if turn is not None:
                    self._turns.append(turn)
        for change in own:
            self._count(change.subscription)
        if operation.transaction:
            self.context.effects.changed += dict.fromkeys(change.subscription for change in own)

    # -- what peers say -----------------------------------------------------------------------------------------------

    def connected(self, peer: int) -> None:
        """A connection to a peer is there; nothing is taken from it before its greeting."""
        self.peers.connected(peer)

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.peers.disconnected(peer)

    def tick(self, now: float) -> None:
        """Time passes."""
        self.peers.tick(now)
        for name in self.committing.take_overdue(now):
            if self.state.resting:
                self.waking.wake(self.committing.freed(name))
            self.context.take(GaveUp(name))

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something. Raises a `ProtocolError`, and changes nothing, if it must not say it."""
        if peer not in self.state.links:
            raise ProtocolError(f"stage {self.rank} has no peer of rank {peer}")
        if isinstance(message, Hello):
            self.peers.greet(peer, message)
        elif isinstance(message, (Secrets, AskSecrets)):
            self.peers.hear_secrets(peer, message)
        elif peer not in self.peers.greeted or not self.is_open:
            return  # an old connection's words; whoever needs an answer asks again
        elif isinstance(message, LinkFrame):
            self._handle_frame(peer, message)
        elif isinstance(message, LinkAck):
            self.peers.acknowledged(peer, message)
        elif isinstance(message, Relay):
            self._handle_relay(message, now)
        elif isinstance(message, Reply):
            self.effects.replies.append(message.answer)

    def _handle_frame(self, peer: int, frame: LinkFrame) -> None:
        if self.state.links[peer].is_next(frame.number):
            if isinstance(frame.message, (Launch, Pass, Done)):
                self.peers.check_message(peer, frame.message)
            else:
                self.committing.check(peer, frame.message)
                if isinstance(
                    frame.message, Reserve
                ):  # what somebody may take up is not looked at when this is read again
                    asks = [ask for _, ask in frame.message.asks]
                    excess = self.gatekeeper.excess_of_shifts(asks)
                    frame = replace(frame, message=replace(frame.message, excess=excess))
            if self.state.resting:
                self.waking.wake(self._concerned(frame.message))
            self.context.take(FrameTaken(peer, frame.number, frame.message))
        self.peers.owe_ack(peer)

    def _concerned(self, message: Durable) -> Iterable[Part | PublishAsk | ChangeAsk]:
        """What may be handled because of a message: its operation, or what waits until something is done."""
        if not isinstance(message, (Launch, Pass, Done)):
            return self.committing.concerned(message)
        changed = [part.subscription for part in message.operation.parts if isinstance(part, Change)]
        following = self.committing.waiting_at(changed) if changed else []
        return following if isinstance(message, Done) else [*message.operation.parts, *following]  # it may end here

    def _take_frame(self, event: FrameTaken) -> None:
        self.state.links[event.peer].take(event.number)
        message = event.message
        if isinstance(message, Done):
            self._remember(message.operation, answer_to(message.operation))
        elif isinstance(message, (Launch, Pass)):
            self._handle(message.operation)
        else:
            self.committing.handle(message)


def _publication(ask: PublishAsk, now: float) -> Publication:
    return Publication(
        ask.topic,
        ask.count,
        now,
        is_kept=ask.is_kept,
        chunks=ask.chunks,
        pieces=ask.pieces,
        digests=ask.digests,
        publisher=ask.publisher,
    )


def taken_at(topology: Topology, request: Request) -> int:
    """The rank of the stage that takes a request: the changed subscription's registrar, else the lowest owner.

    Of a transaction, it is the first registrar among those of the subscriptions that it changes.
    """
    lowest, registrars = 0, list[int]()
    for part in request.parts:
        if isinstance(part, ChangeAsk):
            registrars.append(topology.registrar(part.subscription))
        else:
            lowest = max(lowest, topology.owner(part.topic))
    if registrars:
        return min(registrars) if request.is_transaction else registrars[0]
    return lowest


def _bare_parts(topology: Topology, request: Request, rank: int) -> tuple[PublishAsk | ChangeAsk, ...]:
    """As much of a request that is to be refused as says which stage has to refuse it."""
    for part in request.parts:
        bare = _bare(part)
        if taken_at(topology, replace(request, parts=(bare,))) == rank:
            return (bare,)
    raise AssertionError(f"no part of a request is for stage {rank}, which takes it")


def _bare(part: PublishAsk | ChangeAsk) -> PublishAsk | ChangeAsk:
    """As much of what is to be refused as says who has to refuse it."""
    if isinstance(part, PublishAsk):
        return PublishAsk(part.topic, part.count)
    return ChangeAsk(part.subscription)


def _subject(part: PublishAsk | ChangeAsk) -> str:
    return f"topic {part.topic!r}" if isinstance(part, PublishAsk) else f"subscription {part.subscription!r}"


def answer_to(operation: Operation) -> Answer:
    """What the client is told about its complete operation."""
    transaction = transaction_of(operation) if operation.transaction else None
    return Answer(operation.client, operation.epoch, operation.sequence, operation.parts, transaction)


def transaction_of(operation: Operation) -> Transaction | None:
    """What takes its place together with a complete operation, if it is a transaction."""
    if not operation.transaction:
        return None
    ranges: dict[str, tuple[int, int]] = {}
    marks: list[ChangeMark] = []
    for part in operation.parts:
        if isinstance(part, Publication):
            first, _ = ranges.get(part.topic, (part.first, 0))
            ranges[part.topic] = (first, part.last)
        else:
            marks.append(ChangeMark(part.subscription, part.version))
    return Transaction(operation.transaction, ranges, marks if len(marks) <= MARKS_MAX else [EVERYBODY_LOOKS])
