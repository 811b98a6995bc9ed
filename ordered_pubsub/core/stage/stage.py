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
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain
from typing import Protocol, TypeVar

import attrs
import msgspec
from msgspec.structs import replace

from ordered_pubsub.core.checking import check_record, check_request
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log.log import NEVER_KEPT, Decision, Kept
from ordered_pubsub.core.messages import (
    EVERYBODY_ASKS,
    LOAD_BYTES,
    MARKS_MAX,
    Acked,
    AckSaved,
    AckTaken,
    Answer,
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
    Hello,
    Input,
    Launch,
    Leveled,
    LinkAck,
    LinkFrame,
    Named,
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
    Rested,
    Rotated,
    Secrets,
    SystemKeys,
    TopicsReleased,
    TopologyOffered,
    ToSession,
    Woken,
    find_change,
)
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import PAIRS_AT_ONCE, Groups, cells
from ordered_pubsub.core.order.registrar import EXPIRING, Registrar, WaitingChange
from ordered_pubsub.core.stage._links import FRAMES_UNDER_WAY_MAX, Link
from ordered_pubsub.core.stage._requests import Requests, RequestVerdict
from ordered_pubsub.core.stage.journal import decode_input, encode_input
from ordered_pubsub.core.stage.naming import IN_USE, LIMIT, RENEWALS, NameTable
from ordered_pubsub.core.stage.quotas import ENDLESS, Ledger, Quota, Quotas
from ordered_pubsub.core.stage.sharing import share_texts
from ordered_pubsub.core.topology import Topology
from ordered_pubsub.errors import JournalDamaged, JournalError, NotOwner, ProtocolError, SystemMismatch, UsageError

_P = TypeVar("_P", bound="Part | PublishAsk | ChangeAsk")

RESEND_AFTER_S = 1.0
REFUSED_MAX, REFUSED_S = 4_096, 60.0
"""Of so many sessions that did not begin it is remembered what was refused, for as long as it may be on its way once more."""
REPLAYED_AT_ONCE = 256
"""What so many records did is handed on at once when a journal is read again."""
WRONG_LEVEL = "level"
"""The code of a refusal of events that were not brought to be kept, on a topic whose events are, or the other way round."""


class Numbers(Protocol):
    """The last numbers of topics that rest: where nobody but who asks for them has to remember them."""

    def number(self, topic: str) -> int:
        """The last number of a topic that rests; 0 if it is not there."""

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics that are there, and their numbers."""


class _NoNumbers:
    """Nothing has ever rested."""

    def number(self, topic: str) -> int:
        return 0

    def resting(self) -> Iterator[tuple[str, int]]:
        return iter(())


class StageState(msgspec.Struct):
    """All that a stage must not forget: what a snapshot holds."""

    rank: int
    topology: list[list[object]]
    """the last topology that this stage has offered to its peers"""
    groups: Groups
    links: dict[int, Link]
    confirmed: bool = False
    """whether all peers were seen with that topology"""
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    requests: Requests = msgspec.field(default_factory=Requests)
    registrar: Registrar = msgspec.field(default_factory=Registrar)
    marks: dict[str, list[ChangeMark]] = msgspec.field(default_factory=dict)
    kept: dict[str, int] = msgspec.field(default_factory=dict)
    """own topic → its last number that is in the log"""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """what identities take up"""
    levels: list[list[str]] | None = None
    """what topics give, as this stage knew it when it was last started (`core.levels`); None: what is asked for"""
    names: NameTable = msgspec.field(default_factory=NameTable)
    keys: SystemKeys = msgspec.field(default_factory=SystemKeys)
    """which system this is, and its keys"""
    unfinished: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """own topic → first → last number of batches in the log whose operations are on their way further up the line"""
    resting: int = 0
    """own topics that rest, and have numbers"""
    resting_events: int = 0
    """… and how many events they had"""


class Effects(msgspec.Struct):
    """What the caller must do, in the order of the fields."""

    kept: list[Kept] = []
    """events that were numbered, for the log"""
    completed: list[Operation] = []
    """complete operations, whose publications on own topics have a place in the log as well"""
    journal: list[bytes] = []
    sends: list[tuple[int, PeerMessage]] = []
    replies: list[Answer | Refusal] = []
    tells: list[tuple[str, ToSession]] = []
    """what clients miss: for a session, what it is brought"""
    forget: list[tuple[str, int]] = []
    """topics, and up to which number the log may forget them"""
    rested: dict[str, int] | None = None
    """topics of which nothing but their last number is remembered any more"""
    woken: dict[str, int] | None = None
    """topics that rested and are used again, with their last numbers"""
    begun: dict[str, int] | None = None
    """… those of them that have a log: it begins behind these numbers"""
    awake: list[str] | None = None
    """topics that rested and are used again, and that is on disk"""
    cleared: list[str] | None = None
    """topics that rest, and that is on disk: what is left of their logs may go"""
    decided: list[Decision] = []
    """what has become of numbers whose publisher had vanished"""
    published: list[Decision] = []
    """what is pending no more"""
    named: list[tuple[str, str]] = []
    """names that belong to these sessions now"""
    handled: list[Operation] = []
    """operations in the order in which this stage handled them, for those who watch"""


def nobody(effects: Effects) -> None:
    """Nobody watches."""


@attrs.define(eq=False)
class Stage:
    """The state machine of one stage."""

    topology: Topology
    state: StageState
    rank: int = attrs.field(init=False)
    """this stage's place on the line, 0 the highest"""
    effects: Effects = attrs.field(factory=Effects)
    levels: Levels | None = attrs.field(init=False)
    """what topics give; None: what is asked for"""
    greeted: dict[int, bool] = attrs.field(factory=dict)
    """peers that are connected and have the same topology"""
    unconfirmed: dict[int, bool] = attrs.field(factory=dict)
    """peers that have not been seen with this topology since it was changed; nothing is taken before they were"""
    needs_system: bool = False
    """whether nothing is taken before it is known of which system this stage is a part"""
    numbers: Numbers = attrs.field(factory=_NoNumbers)
    """what is known of topics that rest"""
    touched: dict[str, bool] = attrs.field(factory=dict)
    """topics that changes have concerned since who watches for topics that may rest has looked"""
    quotas: Quotas = attrs.field(factory=Quotas)
    """what each identity may take up"""
    topics_max: int = ENDLESS
    """so many topics may be in use"""
    pairs_at_once: int = PAIRS_AT_ONCE
    """what a change does to more cells of the groups' tables than these is done a little at a time"""
    refused: OrderedDict[str, tuple[float, Refusal]] = attrs.field(factory=OrderedDict)
    """session that has not begun → when it was refused what last: on its way twice, that stays refused, whatever holds by then"""
    cells: dict[str, int] = attrs.field(factory=dict)
    """identity → how many cells of the groups' tables its changes concern that were taken lately; the caller forgets them"""
    parts_handled: int = 0
    """publications, and topics of changes, since the snapshot from which this stage was made; the caller begins anew"""
    _acks: dict[int, bool] = attrs.field(factory=dict)
    _turns: list[WaitingChange] = attrs.field(factory=list)
    """changes whose turn has come; empty between two inputs"""
    _resend_at: dict[int, float] = attrs.field(factory=dict)
    _said: dict[int, int] = attrs.field(factory=dict)
    """for each peer that is greeted, the last frame that was sent on this connection"""

    def __attrs_post_init__(self) -> None:
        self.rank = self.state.rank
        self._know_levels()

    def _know_levels(self) -> None:
        self.levels = None if self.state.levels is None else Levels.load(self.state.levels)

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
            stage = cls(topology, _empty_state(rank, [], len(topology.stages)))
        else:
            records = records if first is None else chain((first,), records)
            stage = cls.replay(snapshot, records, topology, on_replayed)
        if numbers is not None:
            stage.numbers = numbers
        stage._open(rank, topology)
        if levels is not None and levels.dump() != stage.state.levels:
            stage._take(Leveled(levels.dump()))
        stage.needs_system = founding is not None
        if founding is not None and rank == 0 and not stage.state.keys.epoch:
            stage._take(Founded(founding))
        return stage

    def _replay(self, event: Input, place: int) -> None:
        try:
            check_record(event, len(self.topology.stages))
            self._apply(event)
        except Exception as error:
            raise JournalDamaged(
                f"record {place} of the journal, {type(event).__name__}, cannot take effect ({type(error).__name__}: {error}): "
                "what came before it is not what came before it then, or it was taken by another release. Start the stage with "
                "that release, or restore its store from a copy"
            ) from error

    @classmethod
    def replay(
        cls,
        snapshot: bytes | None,
        records: Iterable[bytes],
        topology: Topology | None = None,
        on_replayed: Callable[[Effects], None] = nobody,
    ) -> Stage:
        """A stage as its journal has it, whoever runs it; under this topology if the journal has none."""
        inputs: Iterator[Input] = map(decode_input, records)
        if snapshot is not None:
            state = _read_snapshot(snapshot)
        elif isinstance(first := next(inputs, None), TopologyOffered):
            state = _empty_state(first.rank, first.topology, len(first.topology))
            inputs = chain((first,), inputs)
        else:
            raise JournalError("a journal without a snapshot must begin with the record that opened it")
        loaded = Topology.load(state.topology) if state.topology or topology is None else topology
        stage = cls(loaded, state)
        for place, event in enumerate(inputs, 1):
            stage._replay(event, place)
            if not place % REPLAYED_AT_ONCE:
                stage._hand_on(on_replayed)
        stage._hand_on(on_replayed)
        return stage

    def _hand_on(self, on_replayed: Callable[[Effects], None]) -> None:
        """What records did that were read again is to be done by nobody: all of that has happened."""
        effects, self.effects = self.effects, Effects()
        self._acks, self.touched, self.cells = {}, {}, {}
        on_replayed(effects)

    def go_on_beyond(self, count: int, now: float) -> list[Publication]:
        """Leave out so many numbers of each own topic, known or not, and forget what clients were answered.

        For a stage whose journal has lost its end: among these numbers are all that it had given and does not know of. Returns
        what is left out, which is to have a place in the log.
        """
        clocks = self.state.clocks
        clocks.base += count
        self.lose_resting()
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

    def lose_resting(self) -> None:
        """Nobody knows the last numbers of topics that rest: they go on like those that are new, behind all that they can be."""
        state = self.state
        state.clocks.base += state.resting_events
        state.resting = state.resting_events = 0

    def _open(self, rank: int, topology: Topology) -> None:
        """Start under this topology, at once if the journal has it already, else when all stages were seen to have it."""
        if rank != self.state.rank:
            raise JournalError(
                f"this journal belongs to the stage of rank {self.state.rank}, not {rank}: check `store`"
            )
        topology.check_still_owned(rank, self.topology, self._owned(topology))
        self.topology = topology
        if self.state.topology != topology.dump():
            self._take_opened(confirmed=False)
        if not self.state.confirmed:
            self.unconfirmed = dict.fromkeys(self.state.links, True)
            self._confirm(rank)

    def _owned(self, topology: Topology) -> Iterator[str]:
        """The topics that must stay here. Those that rest are looked at only if one may have moved: there may be very many."""
        yield from self.state.clocks.numbers
        if topology.dump() != self.topology.dump():
            yield from (topic for topic, _ in self.numbers.resting())

    def _confirm(self, peer: int) -> None:
        """A peer has this topology, too. When all do, no topic can have moved.

        Each has checked that it loses none, and has its offer in its journal: it cannot go back to another topology without
        having that one confirmed by all.
        """
        self.unconfirmed.pop(peer, None)
        if not self.unconfirmed and not self.state.confirmed:
            self._take_opened(confirmed=True)

    def _take_opened(self, confirmed: bool) -> None:
        self._take(TopologyOffered(self.rank, self.topology.dump(), confirmed))

    @property
    def unlogged(self) -> dict[str, int]:
        """Own topics whose events are kept, though their last number is one that was not: their levels were others before.

        Their logs begin behind these numbers: what comes before them is not to be had from there as a whole.
        """
        kept, levels = self.state.kept, self.levels
        return {
            topic: number
            for topic, number in self.state.clocks.numbers.items()
            if levels is not None and kept.get(topic, 0) < number and levels.is_kept(topic)
        }

    @property
    def is_open(self) -> bool:
        """Whether requests and frames are taken."""
        return not self.unconfirmed and (self.state.keys.epoch > 0 or not self.needs_system)

    def snapshot(self) -> bytes:
        """All that must not be forgotten, as bytes."""
        return _snapshot_encoder.encode(self.state)

    def take_effects(self) -> Effects:
        """What is to be done since the last call."""
        effects, self.effects = self.effects, Effects()
        for peer in self._acks:
            effects.sends.append((peer, LinkAck(self.state.links[peer].received)))
        self._acks = {}
        return effects

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` has something to do."""
        effects = self.effects
        return bool(
            self._acks
            or effects.journal
            or effects.sends
            or effects.replies
            or effects.tells
            or effects.forget
            or effects.cleared
            or effects.awake
            or effects.decided
            or effects.published
            or effects.named
        )

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
        }

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def handle_request(self, request: Request, now: float, refusal: Refusal | None = None) -> None:
        """A client at home here asks for something. With a refusal it may not; but the stage that takes it has the last word.

        Only that one knows whether it has taken the request already, when the client still might.
        """
        try:
            check_request(request)
        except UsageError as error:
            self.effects.replies.append(request.refused("bad-request", str(error)))
            return
        if not self.is_open:
            return  # asked again later
        refusal = refusal or self._refuse_level(request)
        rank = taken_at(self.topology, request)
        if rank == self.rank:
            self._consider(request, self.rank, now, refusal)
        elif rank in self.greeted:
            if refusal is not None:
                request = replace(request, parts=tuple(map(_bare, request.parts)))
            self.effects.sends.append((rank, Relay(self.rank, request, refusal)))

    def _refuse_level(self, request: Request) -> Refusal | None:
        """Why its events cannot be published as they are brought, if so: those of some topics are kept, and no others."""
        for part in () if self.levels is None else request.parts:
            if isinstance(part, PublishAsk) and self._is_misfit(part):
                kept, brought = ("not kept", "were") if part.is_kept else ("kept", "were not")
                reason = (
                    f"the events of topic {part.topic!r} are {kept} by its stage, and these {brought} brought to be kept: what "
                    "topics give was changed, or the client does not know it. Publish them again"
                )
                return request.refused(WRONG_LEVEL, reason)
        return None

    def _is_misfit(self, part: PublishAsk | Publication) -> bool:
        return self.levels is not None and part.is_kept != self.levels.is_kept(part.topic)

    def _consider(self, request: Request, home: int, now: float, refusal: Refusal | None) -> None:
        verdict = self.state.requests.judge(request, now)
        if verdict is RequestVerdict.TAKE:
            self._take_or_refuse(request, home, now, refusal)
        elif verdict is RequestVerdict.WAIT:
            self.state.requests.sessions[request.client].home = home
        elif isinstance(verdict, (Answer, Refusal)):
            self._reply(home, verdict)

    def _take_or_refuse(self, request: Request, home: int, now: float, refusal: Refusal | None) -> None:
        """Take a request, perhaps only to refuse it. Nothing but its place is then remembered of it.

        Of an identity's session that would begin with what is refused, nothing is written down: it does not begin.
        """
        requests, quota = self.state.requests, self.quotas.of(request.identity)
        begins = bool(request.identity) and request.client not in requests.sessions
        if (
            begins
            and (refusal := self._refused_before(request, now) or refusal or self._refusal(request, quota)) is not None
        ):
            self._refuse_first(request, home, now, refusal)
            return
        forgets = requests.room_for(request, quota.sessions, quota.state_bytes // LOAD_BYTES)
        if forgets is None:
            reason = (
                f"identity {request.identity!r} may have {quota.sessions} sessions at one stage "
                "(limits.sessions_per_identity_max), and something of each is under way: try again when some of it is done"
            )
            self._refuse_first(request, home, now, request.refused("limit", reason))
            return
        if not begins:
            refusal = refusal or self._refusal(request, quota)
        known = self.state.clocks.numbers
        if refusal is not None:
            request = replace(request, parts=())
        else:
            for part in request.parts:
                if not isinstance(part, PublishAsk) or part.topic not in known:
                    self._wake(request.parts)
                    break
        self._take(RequestTaken(request, home, now, refusal, tuple(forgets)))

    def _refuse_first(self, request: Request, home: int, now: float, refusal: Refusal) -> None:
        refusal = request.refused_as(refusal)
        self.refused.setdefault(request.client, (now, refusal))
        if len(self.refused) > REFUSED_MAX:
            self.refused.popitem(last=False)
        self._reply(home, refusal)

    def _refused_before(self, request: Request, now: float) -> Refusal | None:
        at, found = self.refused.get(request.client, (0.0, None))
        if found is None:
            return None
        if (found.epoch, found.sequence) == (request.epoch, request.sequence) and abs(now - at) < REFUSED_S:
            return found
        del self.refused[request.client]
        return None

    def _refusal(self, request: Request, quota: Quota) -> Refusal | None:
        """Why a request is not taken but to be refused, if so: by what is known of its subscription, or for its quota, or since
        there are so many topics that the log would have no room for another one.
        """
        if len(self.state.clocks.numbers) >= self.topics_max and (refusal := self._refuse_topics(request)) is not None:
            return refusal
        ledger, registrar = self.state.ledger, self.state.registrar
        ask = find_change(request.parts)
        if ask is not None and (refusal := registrar.refuse(request, ask)) is not None:
            return refusal
        if not request.identity:
            return None
        new = self._new_topics(request)
        excess = ledger.excess_of_topics(request.identity, new, quota) if new else ""
        if ask is not None and not excess:
            found = registrar.subscriptions.get(ask.subscription)
            excess = ledger.excess_of_change(request.identity, ask, found, quota)
        return request.refused("limit", excess, taken=True) if excess else None

    def _refuse_topics(self, request: Request) -> Refusal | None:
        known = self.state.clocks.numbers
        for part in request.parts:
            if isinstance(part, PublishAsk) and part.topic not in known and self.is_own(part.topic):
                reason = (
                    f"{self.topics_max} topics of stage {self.topology.stages[self.rank].name!r} are in use, as many as it can "
                    f"have, so nothing is published on another one, {part.topic!r}: try again when some of them rest"
                )
                return request.refused("limit", reason, taken=True)
        return None

    def _take_request(self, event: RequestTaken) -> None:
        request = event.request
        for client in event.forgets:
            self.state.requests.forget(client)
        self.state.requests.take(request, event.home, event.now)
        ask = find_change(request.parts)
        waiting = WaitingChange(request, event.home, event.now)
        if event.refusal is not None:
            refusal = request.refused_as(event.refusal, taken=True)
            self.state.requests.answered(refusal)
            self._reply(event.home, refusal)
            return
        if request.identity:
            self._count_topics(request)
        if ask is None:
            self._launch(self._operation(waiting, None))
        else:
            if request.identity:
                self._count_cells(request.identity, ask)
            turn = self.state.registrar.ask(ask, waiting)
            self._count(ask.subscription, request.identity)
            self._start_turn(turn)

    def _count_cells(self, identity: str, ask: ChangeAsk) -> None:
        """Take note of how much work a change is for the owners of its topics."""
        found = self.state.registrar.subscriptions.get(ask.subscription)
        held = 0 if found is None else len(found.held)
        if (ask.weight if found is None else found.weight) and (held or ask.add):
            count = cells(held, 0) if ask.ends else cells(len(ask.add) + len(ask.remove), held)
            self.cells[identity] = self.cells.get(identity, 0) + count

    def _count_topics(self, request: Request) -> None:
        """Take note of the topics that an identity is the first to publish on."""
        if new := self._new_topics(request):
            self.state.ledger.bring(request.identity, new)

    def _new_topics(self, request: Request) -> list[str]:
        """The topics of this stage that a request publishes on, and no identity has since they rested last."""
        brought = self.state.ledger.brought
        found = [part.topic for part in request.parts if isinstance(part, PublishAsk) and part.topic not in brought]
        return [topic for topic in dict.fromkeys(found) if self.topology.owner(topic) == self.rank] if found else found

    def _count(self, subscription: str, identity: str = "") -> None:
        """A subscription has changed: its identity may have more of it, or less."""
        self.state.ledger.count(subscription, self.state.registrar.subscriptions.get(subscription), identity)

    def expire(self, subscription: str, now: float) -> None:
        """Nothing was heard of a subscription's client for too long: end it, as if it had asked for that."""
        client = f"{EXPIRING}{self.rank}"
        before = self.state.requests.sessions.get(client)
        last = 0 if before is None else before.last
        ask = ChangeAsk(subscription, ends=True)
        self._consider(Request(client, 1, last + 1, last, last, (ask,)), self.rank, now, None)

    def give_name(
        self, named: Named, most: int, unused_s: float, in_use: Container[str] | None, is_given: bool = False
    ) -> tuple[str, str]:
        """Give a name that is kept here to a session that no other session has; return why not, if not: a code and a reason.

        It has it when `effects.named` says so. An identity that has as many as it may have (`most`) loses those that it has not
        used for `unused_s`, and that are not `in_use`; as long as nobody knows which are (None), nothing is said, and it has to
        be asked for again. What the configuration says `is_given` to it, it has whoever had it before.
        """
        names, name, identity = self.state.names, named.name, named.identity
        if names.is_anothers(name, identity) and not is_given:
            return IN_USE, f"the name {name!r} belongs to another identity; take another one"
        if names.is_of(name, identity, named.session):
            if named.at - names.names[name].at > unused_s / RENEWALS:
                self._take(named)
            else:
                self.effects.named.append((name, named.session))
            return "", ""
        has_room, forgets = names.make_room(name, identity, most, named.at - unused_s, in_use or ())
        if in_use is None and forgets:
            return "", ""
        if not has_room:
            return LIMIT, (
                f"identity {identity!r} has {most} names at one stage, as many as allowed (limits.names_per_identity_max): go on "
                "under one of these, or without a name"
            )
        self._take(replace(named, forgets=forgets))
        return "", ""

    def handle_passed(self, passed: TopicsReleased) -> None:
        """A subscription needs nothing any more of topics that it had left."""
        if self.is_open:
            self._take(passed)

    def handle_acked(self, home: int, acked: Acked) -> None:
        """A named subscription has acknowledged its events; who says so is told when it is on disk."""
        if not self.is_open:
            return  # said again later
        registrar = self.state.registrar
        ended = registrar.refuse_ack(acked)
        if ended is None and registrar.is_news(acked):
            excess = self.state.ledger.excess_of_clock(acked.subscription, acked.clock, self.quotas)
            if excess:
                ended = Ended(acked.subscription, acked.session, "limit", excess)
            else:
                self._take(AckTaken(acked))
        answer = ended or AckSaved(acked.subscription, acked.session, acked.serial)
        if home == self.rank:
            self.effects.tells.append((acked.session, answer))
        else:
            self.effects.sends.append((home, answer))

    def _start_turn(self, turn: WaitingChange | None) -> None:
        """Let a subscription's next change enter the line, if its turn has come and nothing else is being handled."""
        if turn is not None:
            self._turns.append(turn)

    def _start_turns(self) -> None:
        while self._turns:
            turn = self._turns.pop(0)
            ask = find_change(turn.request.parts)
            assert ask is not None
            self._launch(self._operation(turn, self.state.registrar.begin(ask)))

    def _operation(self, waiting: WaitingChange, change: Change | None) -> Operation:
        """The operation that a request asks for, before its journey."""
        request = waiting.request
        now, owner = waiting.now, self.topology.owner
        parts: list[Part] = []
        ranks: list[int] = []
        for ask in request.parts:
            if isinstance(ask, PublishAsk):
                parts.append(_publication(ask, now))
                ranks.append(owner(ask.topic))
            else:
                assert change is not None
                parts.append(change)
                ranks += map(owner, change.topics)
        if change is not None:
            ranks.append(self.state.registrar.meet(change.subscription, ranks, self.rank))
        return Operation(
            request.client, request.epoch, request.sequence, waiting.home, self.rank, max(ranks), min(ranks), parts
        )

    # -- the journey --------------------------------------------------------------------------------------------------

    def _launch(self, operation: Operation) -> None:
        if operation.bottom == self.rank:
            self._handle(operation)
        else:
            self._send(operation.bottom, Launch(operation))

    def _handle(self, operation: Operation) -> None:
        """Handle one operation, in one go, its parts in their written order."""
        for part in operation.parts:
            self.state.clocks.stamp += 1
            if isinstance(part, Publication):
                self.parts_handled += 1
                self._handle_publication(part, operation)
            else:
                self.parts_handled += len(part.old) + len(part.new)
                self._handle_change(part, operation.top)
        self.effects.handled.append(operation)
        if self.rank == operation.top:
            self._complete(operation)
        else:
            for part in self.kept_here(operation):
                self.state.unfinished.setdefault(part.topic, {})[part.first] = part.last
            self._send(self.next_stage(operation), Pass(operation))

    def kept_here(self, operation: Operation) -> list[Publication]:
        """The publications of an operation whose events are in the log of this stage."""
        owner = self.topology.owner
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
        clocks, groups = self.state.clocks, self.state.groups
        owner = self.topology.owner(part.topic)
        if owner < self.rank:
            return  # its turn comes further up
        if part.topic in groups.due_in:
            self._settle(part.topic)
        if owner == self.rank:
            operation.top = min(operation.top, groups.highest(part.topic))
            part.first = clocks.take_numbers(part.topic, part.count, groups)
            part.place = clocks.stamp
            part.full = part.topic in groups.full_wanted
            if self._is_misfit(part):
                self._change_level(part)
            if part.is_kept:
                self._keep(part)
            marks = self.state.marks.pop(part.topic, None)
            if marks:
                part.marks = marks
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

    @staticmethod
    def _change_level(part: Publication) -> None:
        """It was asked for when its topic gave something else. A log has no holes, and there is none where nobody looks."""
        part.is_kept = not part.is_kept
        part.chunks = (Chunk(part.count, NEVER_KEPT),) if part.is_kept else ()

    def _keep(self, part: Publication) -> None:
        """Its events are for the log here, and for nobody else; when the journal is read again, the log has them."""
        begins = self.state.kept.get(part.topic, 0) != part.first - 1
        part.full = part.full or begins  # nobody finds in the log what a delta would leave out
        self.state.kept[part.topic] = part.last
        if part.chunks:
            self.effects.kept.append(Kept(part.topic, part.first, part.chunks))
            part.chunks = ()

    def _handle_change(self, part: Change, top: int) -> None:
        clocks, groups = self.state.clocks, self.state.groups
        topics, own = part.topics, list[str]()
        self.touched.update(dict.fromkeys(topics, True))
        for topic in topics:
            owner = self.topology.owner(topic)
            if owner > self.rank:
                clocks.see(topic, part.entries.get(topic, 0))
            elif owner == self.rank:
                own.append(topic)
                clocks.numbers.setdefault(topic, clocks.base)
                if clocks.numbers[topic]:
                    part.entries[topic] = clocks.numbers[topic]
                self._mark(topic, ChangeMark(part.subscription, part.version))
        if own:
            groups.change(self.topology, part, self.pairs_at_once)
            if top < self.rank:
                groups.follow(part.identity, top, own)
        clocks.prune(topics, groups)

    def _mark(self, topic: str, mark: ChangeMark) -> None:
        """The next event says that this change was before it. Only the last one of a subscription counts.

        One with a name may be begun anew when it has ended, and its versions with it.
        """
        marks = self.state.marks.setdefault(topic, [])
        marks[:] = [known for known in marks if known.subscription != mark.subscription]
        if len(marks) >= MARKS_MAX:
            marks[:] = [EVERYBODY_ASKS]
        elif marks != [EVERYBODY_ASKS]:
            marks.append(mark)

    def _complete(self, operation: Operation) -> None:
        """The last stage: tell the client, and those who must remember."""
        answer = answer_to(operation)
        self._reply(operation.home, answer)
        remembering = {operation.asked: True}
        for part in operation.parts:
            if isinstance(part, Publication):
                remembering[self.topology.owner(part.topic)] = True
            else:
                remembering.update((self.topology.owner(topic), True) for topic in part.topics)
        for rank in remembering:
            if rank == self.rank:
                self._remember(operation, answer)
            else:
                self._send(rank, Done(operation))

    def _remember(self, operation: Operation, answer: Answer) -> None:
        """An operation is complete: keep its answer, log its events, let the subscription's next change start."""
        if operation.asked == self.rank:
            home = self.state.requests.answered(answer)
            if home is not None and home != operation.home:
                self._reply(home, answer)
        self.effects.completed.append(operation)
        if self.state.unfinished:
            for kept in self.kept_here(operation):
                self._finish(kept)
        for part in operation.parts:
            if isinstance(part, Change):
                self.state.groups.passed(part.identity)
                if self.topology.registrar(part.subscription) == self.rank:
                    turn = self.state.registrar.settle(part)
                    self._count(part.subscription)
                    self._start_turn(turn)

    def _finish(self, part: Publication) -> None:
        batches = self.state.unfinished.get(part.topic, {})
        batches.pop(part.first, None)
        if not batches:
            self.state.unfinished.pop(part.topic, None)

    # -- what peers say -----------------------------------------------------------------------------------------------

    def connected(self, peer: int) -> None:
        """A connection to a peer is there; nothing is taken from it before its greeting."""
        self.disconnected(peer)
        link = self.state.links[peer]
        hello = Hello(self.topology.fingerprint, link.received, self.state.keys.system, link.known_received)
        self.effects.sends.append((peer, hello))

    def disconnected(self, peer: int) -> None:
        """The connection to a peer is gone."""
        self.greeted.pop(peer, None)
        self._said.pop(peer, None)

    def handle_peer(self, peer: int, message: PeerMessage, now: float) -> None:
        """A peer says something. Raises a `ProtocolError`, and changes nothing, if it must not say it."""
        if peer not in self.state.links:
            raise ProtocolError(f"stage {self.rank} has no peer of rank {peer}")
        if isinstance(message, Hello):
            self._handle_hello(peer, message)
        elif isinstance(message, (Secrets, AskSecrets)):
            self._handle_secrets(peer, message)
        elif peer not in self.greeted or not self.is_open:
            return  # an old connection's words; whoever needs an answer asks again
        elif isinstance(message, LinkFrame):
            self._handle_frame(peer, message)
        elif isinstance(message, LinkAck):
            self._handle_ack(peer, message)
        elif isinstance(message, Relay):
            self._handle_relay(message, now)
        elif isinstance(message, Reply):
            self.effects.replies.append(message.answer)

    def _handle_hello(self, peer: int, hello: Hello) -> None:
        self.topology.check_same(hello.fingerprint, f"stage {self.topology.stages[peer].name!r}")
        self._check_system(peer, hello.system)
        link = self.state.links[peer]
        link.check(hello.received, hello.acknowledged, f"stage {self.topology.stages[peer].name!r}")
        self._confirm(peer)
        self.greeted[peer] = True
        link.acknowledged(hello.received)
        self._say_again(peer)

    def _check_system(self, peer: int, system: bytes) -> None:
        """Refuse a stage of another system: its store is not one of this line."""
        own = self.state.keys.system
        if own and system and own != system:
            raise SystemMismatch(
                f"stage {self.topology.stages[peer].name!r} is a part of system {system.hex()}, and stage "
                f"{self.topology.stages[self.rank].name!r} of system {own.hex()}: one of them runs on a store that was made in "
                "another system, or anew; give it its own"
            )

    def _handle_secrets(self, peer: int, message: Secrets | AskSecrets) -> None:
        """The highest stage says what the keys are made of, or is asked."""
        if peer not in self.greeted:
            return
        if isinstance(message, AskSecrets):
            if self.rank == 0 and self.state.keys.epoch:
                self.effects.sends.append((peer, Secrets(self.state.keys)))
            return
        if peer != 0:
            raise ProtocolError(f"stage {peer} gives keys: only the highest one does")
        self._check_system(peer, message.keys.system)
        if not self.state.keys.epoch:
            self._take(Founded(message.keys))
        elif message.keys.epoch >= self.state.keys.epoch and message.keys != self.state.keys:
            self._take(Rotated(message.keys))

    def rotate(self, keys: SystemKeys) -> None:
        """Begin another epoch of keys, or end earlier ones, and tell the others. Who does not hear of it asks."""
        self._take(Rotated(keys))
        self.effects.sends += [(peer, Secrets(keys)) for peer in self.greeted]

    def _handle_ack(self, peer: int, ack: LinkAck) -> None:
        link = self.state.links[peer]
        if ack.received > link.sent:
            raise ProtocolError(
                f"stage {self.topology.stages[peer].name!r} acknowledges frame {ack.received}; {link.sent} were sent to it"
            )
        link.acknowledged(ack.received)
        self._resend_at.pop(peer, None)
        self._say_on(peer)

    def _say_again(self, peer: int) -> None:
        """Send what the peer has not acknowledged once more, from the oldest on."""
        self._said[peer] = self.state.links[peer].known_received
        self._say_on(peer)

    def _say_on(self, peer: int) -> None:
        """Send what was not sent on this connection, as far as the window allows; acknowledgements make it go on."""
        link = self.state.links[peer]
        frames = link.window(max(self._said[peer], link.known_received))
        if frames:
            self._said[peer] = frames[-1].number
            self.effects.sends.extend((peer, frame) for frame in frames)

    def _handle_relay(self, relay: Relay, now: float) -> None:
        rank = taken_at(self.topology, relay.request)
        if rank != self.rank:
            raise NotOwner(
                f"a request of client {relay.request.client!r} for {', '.join(topics_of(relay.request.parts))} came to stage "
                f"{self.topology.stages[self.rank].name!r}, but stage {self.topology.stages[rank].name!r} takes it: the "
                "sender's topology differs"
            )
        self._consider(relay.request, relay.home, now, relay.refusal or self._refuse_level(relay.request))

    def _handle_frame(self, peer: int, frame: LinkFrame) -> None:
        link = self.state.links[peer]
        if link.is_next(frame.number):
            self._check_message(peer, frame.message)
            self._wake(self._concerned(frame.message))
            self._take(FrameTaken(peer, frame.number, frame.message))
        self._acks[peer] = True

    def _check_message(self, peer: int, message: Durable) -> None:
        operation = message.operation
        if isinstance(message, Done):
            return
        if isinstance(message, Pass) and peer != self.rank + 1:
            raise ProtocolError(
                f"stage {peer} passed an operation to stage {self.rank}: only the neighbour below, {self.rank + 1}, does that"
            )
        if operation.top > self.rank:
            raise NotOwner(
                f"operation {operation.identity} ends at stage {operation.top}, below stage {self.rank}: it does not belong here"
            )
        for part in operation.parts:
            if isinstance(part, Publication) and not part.first and self.topology.owner(part.topic) > self.rank:
                raise NotOwner(
                    f"operation {operation.identity} publishes on {part.topic!r} without a number, but its owner, stage "
                    f"{self.topology.stages[self.topology.owner(part.topic)].name!r}, is below this one"
                )

    def _take_frame(self, event: FrameTaken) -> None:
        self.state.links[event.peer].take(event.number)
        if isinstance(event.message, Done):
            self._remember(event.message.operation, answer_to(event.message.operation))
        else:
            self._handle(event.message.operation)

    # -- topics that rest ---------------------------------------------------------------------------------------------

    def rest(self, topics: Iterable[str]) -> None:
        """Nothing is to be remembered of these topics but their last numbers. `core.stage._resting` says which may rest."""
        self._take(Rested(tuple(topics)))

    def _take_rest(self, topics: tuple[str, ...]) -> None:
        state = self.state
        paid = state.groups.rest(topics)
        state.clocks.prune((*topics, *paid), state.groups)
        rested = self.effects.rested = self.effects.rested or {}
        for topic in topics:
            number = state.clocks.numbers.pop(topic, 0)
            state.kept.pop(topic, None)
            state.marks.pop(topic, None)
            state.ledger.rest(topic)
            if number:
                rested[topic] = number
                state.resting += 1
                state.resting_events += number

    def _concerned(self, message: Durable) -> Iterable[Part | PublishAsk | ChangeAsk]:
        """What may be handled because of a message: it itself, or changes that wait until one is done."""
        operation = message.operation
        if not isinstance(message, Done):
            return operation.parts
        subscriptions = self.state.registrar.subscriptions
        return [
            ask
            for part in operation.parts
            if isinstance(part, Change) and part.subscription in subscriptions
            for waiting in subscriptions[part.subscription].waiting
            for ask in waiting.request.parts
        ]

    def _wake(self, parts: Iterable[Part | PublishAsk | ChangeAsk]) -> None:
        """Remember what was in the table of numbers of topics that are to be used: the journal says so before they are.

        So the journal is read without the table, in which there may be later numbers by then.
        """
        known = self.state.clocks.numbers
        found: dict[str, int] = {}
        for part in parts:
            if isinstance(part, ChangeAsk):
                topics = (*part.add, *part.remove)
            elif isinstance(part, Change):
                topics = (*part.old, *part.new)
            elif part.topic in known:
                continue
            else:
                topics = (part.topic,)
            for topic in topics:
                if topic not in known and self.is_own(topic) and (number := self.numbers.number(topic)):
                    found[topic] = number
        if found:
            self._take(Woken(found))

    def given(self, topic: str) -> int:
        """The last number of an own topic that was given, complete or not; also of one that rests."""
        clocks = self.state.clocks
        return clocks.numbers.get(topic) or self.numbers.number(topic) or clocks.base

    def is_own(self, topic: str) -> bool:
        """Whether this stage gives the numbers of a topic."""
        return self.topology.owner(topic) == self.rank

    def _take_woken(self, numbers: dict[str, int]) -> None:
        """Nobody knows any more which marks the next events were to have: who has a change under way waits for its outcome."""
        state = self.state
        woken = self.effects.woken = self.effects.woken or {}
        begun = self.effects.begun = self.effects.begun or {}
        for topic, number in numbers.items():
            state.clocks.numbers[topic] = number
            state.marks[topic] = [EVERYBODY_ASKS]
            self.touched[topic] = True
            woken[topic] = number
            if self.levels is not None and self.levels.is_kept(topic):
                begun[topic] = number
            state.resting -= 1
            state.resting_events -= number

    def tick(self, now: float) -> None:
        """Send again what a connected peer has not acknowledged for a while."""
        for peer, link in self.state.links.items():
            if not link.outbox or peer not in self.greeted:
                self._resend_at.pop(peer, None)
            elif now >= self._resend_at.setdefault(peer, now + RESEND_AFTER_S):
                self._resend_at[peer] = now + RESEND_AFTER_S
                self._say_again(peer)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _take(self, event: Input) -> None:
        """An input happens: it is journalled, and takes effect."""
        self._journal(event)
        self._apply(event)

    def _journal(self, event: Input) -> None:
        self.effects.journal.append(encode_input(self._without_events(event)))

    def _without_events(self, event: Input) -> Input:
        """The input as the journal has it: without the events that are numbered here and now, for the log has those.

        A request that changes a subscription may have to wait for its turn, so its events stay with it.
        """
        if isinstance(event, RequestTaken):
            request = event.request
            if _have_events(request.parts) and find_change(request.parts) is None:
                parts = tuple(map(self._emptied, request.parts))
                return replace(event, request=replace(request, parts=parts))
        elif isinstance(event, FrameTaken) and not isinstance(event.message, Done):
            operation = event.message.operation
            if _have_events(operation.parts):
                emptied = replace(operation, parts=list(map(self._emptied, operation.parts)))
                return replace(event, message=replace(event.message, operation=emptied))
        return event

    def _emptied(self, part: _P) -> _P:
        if isinstance(part, (Publication, PublishAsk)) and self.topology.owner(part.topic) == self.rank:
            return replace(part, chunks=())
        return part

    def _apply(self, event: Input) -> None:
        """Let a journalled input take effect; the same code runs when it happens and when it is read again."""
        if isinstance(event, RequestTaken):
            self._take_request(event)
            self._start_turns()
        elif isinstance(event, FrameTaken):
            self._take_frame(event)
            self._start_turns()
        elif isinstance(event, AckTaken):
            self.state.registrar.acknowledged(event.acked)
            self._count(event.acked.subscription)
        elif isinstance(event, TopicsReleased):
            self.state.registrar.passed(event)
            self._count(event.subscription)
        elif isinstance(event, Leveled):
            self.state.levels = event.levels
            self._know_levels()
        elif isinstance(event, Named):
            self.state.names.take(event)
            self.effects.named.append((event.name, event.session))
        elif isinstance(event, (Founded, Rotated)):
            self.state.keys = event.keys
        elif isinstance(event, Rested):
            self._take_rest(event.topics)
        elif isinstance(event, Woken):
            self._take_woken(event.numbers)
        else:
            self.state.topology, self.state.confirmed = event.topology, event.confirmed
            if event.topology != self.topology.dump():
                self.topology = Topology.load(event.topology)

    def _send(self, peer: int, message: Durable) -> None:
        link = self.state.links[peer]
        frame = link.number(message)
        if self._said.get(peer) == frame.number - 1 and frame.number - link.known_received <= FRAMES_UNDER_WAY_MAX:
            self._said[peer] = frame.number
            self.effects.sends.append((peer, frame))

    def _reply(self, home: int, answer: Answer | Refusal) -> None:
        if home == self.rank:
            self.effects.replies.append(answer)
        else:
            self.effects.sends.append((home, Reply(answer)))

    def check_invariants(self) -> None:
        """Raise an `AssertionError` if its parts are not as they say that they are between two inputs."""
        state = self.state
        assert not self._turns, f"the turn of {self._turns} has come, and nobody has taken it"
        state.registrar.check_invariants()
        state.requests.check_invariants()
        for link in state.links.values():
            link.check_invariants()
        for topic, last in state.kept.items():
            assert self.is_own(topic), f"{topic} is kept here, and owned elsewhere"
            assert last <= self.given(topic), f"{topic} has {self.given(topic)} numbers, and {last} are kept"
        for topic, batches in state.unfinished.items():
            assert batches, f"nothing of {topic} is under way, and it is here"
            assert all(last <= state.kept.get(topic, 0) for last in batches.values()), f"{topic} {batches} is not kept"


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
    """The rank of the stage that takes a request: the changed subscription's registrar, else the lowest owner."""
    lowest = 0
    for part in request.parts:
        if isinstance(part, ChangeAsk):
            return topology.registrar(part.subscription)
        lowest = max(lowest, topology.owner(part.topic))
    return lowest


def _bare(part: PublishAsk | ChangeAsk) -> PublishAsk | ChangeAsk:
    """As much of what is to be refused as says who has to refuse it."""
    if isinstance(part, PublishAsk):
        return PublishAsk(part.topic, part.count)
    return ChangeAsk(part.subscription)


def _have_events(parts: Iterable[Part | PublishAsk | ChangeAsk]) -> bool:
    return any(isinstance(part, (Publication, PublishAsk)) and part.chunks for part in parts)


def topics_of(parts: Iterable[Part | PublishAsk | ChangeAsk]) -> list[str]:
    """All topics that some parts concern."""
    topics: list[str] = []
    for part in parts:
        if isinstance(part, (Publication, PublishAsk)):
            topics.append(part.topic)
        elif isinstance(part, Change):
            topics.extend(part.topics)
        else:
            topics.extend((*part.add, *part.remove))
    return topics


def answer_to(operation: Operation) -> Answer:
    """What the client is told about its complete operation."""
    return Answer(operation.client, operation.epoch, operation.sequence, operation.parts)


def _read_snapshot(snapshot: bytes) -> StageState:
    try:
        state: StageState = _snapshot_decoder.decode(snapshot)
    except msgspec.MsgspecError as error:
        raise JournalDamaged(
            f"the snapshot in the journal cannot be read ({error}): it is damaged, or was written by a newer version; restore "
            "it from a copy, or start the stage with that version"
        ) from error
    return share_texts(state, {})


def _empty_state(rank: int, topology: list[list[object]], stages: int) -> StageState:
    return StageState(rank, topology, Groups(rank), {peer: Link() for peer in range(stages) if peer != rank})


_snapshot_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder = msgspec.msgpack.Decoder(StageState)
