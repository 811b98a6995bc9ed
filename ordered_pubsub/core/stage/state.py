"""What a stage must not forget: what a snapshot holds, and what the records that follow it in the journal change."""

from __future__ import annotations

import msgspec

from ordered_pubsub.core.messages import Change, ChangeAsk, ChangeMark, SystemKeys
from ordered_pubsub.core.order.clocks import Clocks
from ordered_pubsub.core.order.groups import Groups
from ordered_pubsub.core.order.registered import WaitingChange
from ordered_pubsub.core.order.registrar import Registrar
from ordered_pubsub.core.stage._links import Link
from ordered_pubsub.core.stage._requests import Requests
from ordered_pubsub.core.stage.naming import NameTable
from ordered_pubsub.core.stage.quotas import Ledger
from ordered_pubsub.core.stage.sharing import share_texts
from ordered_pubsub.errors import JournalDamaged


class Commit(msgspec.Struct):
    """A transaction that changes subscriptions, at the stage that carries it out (`core.stage._committing`)."""

    transaction: str
    waiting: WaitingChange
    """who has asked for it"""
    asks: list[tuple[int, list[tuple[int, ChangeAsk]]]]
    """the ranks of the registrars, rising → its changes there, each with its place among all parts"""
    asked: int = 0
    """how many of them were asked for turns"""
    changes: dict[int, Change] = msgspec.field(default_factory=dict)
    """what was granted: place among the parts → the change"""
    meets: list[int] = msgspec.field(default_factory=list)
    """stages that it has to visit, so that it meets what came before"""
    is_launched: bool = False
    """whether it has entered the line: it cannot fail any more"""


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
    transactions: int = 0
    """how many were begun here: each has a name of its own"""
    marked_by_others: dict[str, bool] = msgspec.field(default_factory=dict)
    """own topics whose next event is to have a mark of a change that was made by others than its subscription's client"""
    commits: dict[str, Commit] = msgspec.field(default_factory=dict)
    """transactions that change subscriptions, and are under way"""


def empty_state(rank: int, topology: list[list[object]], stages: int) -> StageState:
    """What a stage remembers that has never done anything."""
    return StageState(rank, topology, Groups(rank), {peer: Link() for peer in range(stages) if peer != rank})


def write_snapshot(state: StageState) -> bytes:
    """The state, as it stands in the journal."""
    return _encoder.encode(state)


def read_snapshot(snapshot: bytes) -> StageState:
    """The state of which this is the snapshot."""
    try:
        state: StageState = _decoder.decode(snapshot)
    except msgspec.MsgspecError as error:
        raise JournalDamaged(
            f"the snapshot in the journal cannot be read ({error}): it is damaged, or was written by a newer version; restore "
            "it from a copy, or start the stage with that version"
        ) from error
    return share_texts(state, {})


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StageState)
