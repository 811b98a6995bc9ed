"""What is read from a snapshot has each name in memory once, and is otherwise what it was."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import attrs
import msgspec
import pytest

from ordered_pubsub.core.messages import Acked, ChangeAsk, Chunk, Publication, PublishAsk, Request
from ordered_pubsub.core.stage._replaying import REPLAYED_AT_ONCE
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.effects import Effects
from ordered_pubsub.core.stage.sharing import share_texts
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology

ONE = Topology((StageSpec("only"),))


class Inner(msgspec.Struct, frozen=True):
    """Something that does not change."""

    name: str
    names: tuple[str, ...]


class Outer(msgspec.Struct):
    """Something of everything that can be in a snapshot."""

    table: dict[str, int]
    rows: dict[str, dict[str, bool]]
    by_number: dict[int, Inner]
    counts: dict[int, int]
    texts: dict[str, str]
    several: list[Inner]
    nothing: dict[str, int] | None = None


def an_outer() -> Outer:
    inner = Inner("topic a", ("topic b", "topic a"))
    return Outer(
        {"topic b": 300, "topic a": 2},
        {"topic a": {"topic b": True}, "topic b": {}},
        {7: inner, 3: inner},
        {2: 1, 1: 2},
        {"topic a": "topic b"},
        [inner],
    )


def texts_in(thing: object) -> Iterator[str]:
    """All texts in something, as often as they stand there."""
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from texts_in(key)
            yield from texts_in(value)
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from texts_in(part)
    elif isinstance(thing, msgspec.Struct):
        for field in thing.__struct_fields__:
            yield from texts_in(getattr(thing, field))


def copies(thing: object) -> list[str]:
    """Texts of which there is more than one in memory."""
    objects: dict[str, set[int]] = {}
    for text in texts_in(thing):
        objects.setdefault(text, set()).add(id(text))
    return [text for text, those in objects.items() if len(those) > 1]


def decoded(outer: Outer) -> Outer:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(outer), type=Outer)


def test_each_text_is_there_once() -> None:
    found = decoded(an_outer())
    assert "topic a" in copies(found)
    known: dict[str, str] = {}
    shared = share_texts(found, known)

    assert copies(shared) == []
    assert sorted(known) == ["topic a", "topic b"]
    assert share_texts(decoded(an_outer()), known).several[0].name is shared.several[0].name


def test_nothing_is_changed_but_which_text_stands_where() -> None:
    found = share_texts(decoded(an_outer()), {})

    assert found == an_outer()
    assert [list(table) for table in (found.table, found.rows, found.by_number, found.counts)] == [
        ["topic b", "topic a"],
        ["topic a", "topic b"],
        [7, 3],
        [2, 1],
    ]


def test_a_text_by_itself_is_the_known_one() -> None:
    known = {"a b": "a b"}

    assert share_texts(" ".join("ab"), known) is known["a b"]


# -- a stage --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Busy:
    """A stage of which much is asked."""

    journal: MemoryJournal = attrs.field(factory=MemoryJournal)
    driver: Driver = attrs.field(init=False)
    sequence: int = 0

    def __attrs_post_init__(self) -> None:
        self.driver = Driver.open(0, ONE, self.journal, snapshots=SnapshotPolicy(growth=1 << 40))

    def ask(self, *parts: PublishAsk | ChangeAsk) -> None:
        """Ask for something."""
        self.sequence += 1
        request = Request("c", 1, self.sequence, self.sequence - 1, self.sequence - 1, parts, "who asks")
        self.driver.handle_request(request, 0.0)
        self.driver.flush()

    def do_much(self) -> None:
        """Some of everything that has names of topics."""
        topics = tuple(f"topic {n}" for n in range(5))
        for topic in topics:
            self.ask(PublishAsk(topic))
        self.ask(ChangeAsk("c/1", topics[:3], where={topics[0]: "a = 1"}))
        self.ask(ChangeAsk("c/2", topics[1:], best_effort=True))
        self.ask(ChangeAsk("c//named", topics, opens=1, where={topics[1]: "a = 1"}))
        self.ask(ChangeAsk("c//named", (), topics[:2]))
        self.driver.stage.handle_acked(0, Acked("c//named", "c", 1, 1, dict.fromkeys(topics, 1), 5, "who asks"))
        for topic in topics[:2]:
            self.ask(PublishAsk(topic), ChangeAsk("c/1", (), (topic,)))
        self.driver.flush()


def test_a_stage_that_starts_from_a_snapshot_has_each_name_once() -> None:
    busy = Busy()
    busy.do_much()
    snapshot = busy.driver.stage.snapshot()
    stage = Stage.replay(snapshot, [])

    assert {"topic 0", "topic 4", "who asks", "a = 1"} <= set(texts_in(stage.state))
    assert copies(stage.state) == []
    assert stage.snapshot() == snapshot
    assert list(stage.state.clocks.own_changed.items()) == list(busy.driver.stage.state.clocks.own_changed.items())
    assert type(stage.state.clocks.own_changed) is type(busy.driver.stage.state.clocks.own_changed)


# -- a journal that is read again -----------------------------------------------------------------------------------------


def numbers_of(effects: list[Effects]) -> list[int]:
    parts = [part for those in effects for operation in those.completed for part in operation.parts]
    return [part.first for part in parts if isinstance(part, Publication)]


def test_records_are_read_one_after_the_other_and_what_they_did_is_handed_on_in_pieces() -> None:
    busy = Busy()
    for _ in range(3 * REPLAYED_AT_ONCE):
        busy.ask(PublishAsk("a"))
    read = 0
    pieces: list[tuple[int, Effects]] = []

    def reading() -> Iterator[bytes]:
        nonlocal read
        for record in busy.journal.records:
            read += 1
            yield record

    stage = Stage.restore(0, ONE, None, reading(), on_replayed=lambda effects: pieces.append((read, effects)))

    assert [at for at, _ in pieces[:3]] == [REPLAYED_AT_ONCE, 2 * REPLAYED_AT_ONCE, 3 * REPLAYED_AT_ONCE]
    assert numbers_of([effects for _, effects in pieces]) == list(range(1, 3 * REPLAYED_AT_ONCE + 1))
    assert stage.snapshot() == busy.driver.stage.snapshot()
    assert not stage.has_effects


@pytest.mark.parametrize("opens", [Stage.restore, Driver.open])
def test_what_was_replayed_is_not_kept(opens: Callable[..., object]) -> None:
    """Neither what it did nor the records as they are read: a stage that starts needs not much more than when it runs."""
    busy = Busy()
    count = 20 * REPLAYED_AT_ONCE
    for _ in range(count):
        busy.ask(PublishAsk("a", 1, True, (Chunk(1, b"x"),)))
    gc.collect()
    tracemalloc.start()
    if opens == Driver.open:
        started: object = Driver.open(0, ONE, busy.journal)
    else:
        started = Stage.restore(0, ONE, None, busy.journal.records)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert started is not None
    assert peak < 200 * count
