"""One stage on one loop: what it sends when, on good disks, slow ones and bad ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from ordered_pubsub.core.levels import ORDERED, Levels
from ordered_pubsub.core.messages import (
    Answer,
    Chunk,
    Hello,
    LinkAck,
    Nack,
    NackRange,
    PeerMessage,
    PublishAsk,
    Refusal,
    Request,
    Secrets,
    TopicRange,
    ToSubscriber,
    VoidAsk,
)
from ordered_pubsub.core.stage.snapshots import AFTER_RECORDS
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.storage import Journal, MemoryJournal
from ordered_pubsub.core.stage.turns import Work
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.core.trust.keys import founded
from ordered_pubsub.errors import JournalDamaged, JournalError, OrderedPubSubError, ProtocolError
from ordered_pubsub.server.stage.node import INLINE_COMMIT_S, Node
from ordered_pubsub.server.store.store import PIECE_BYTES, SqliteJournal, Store, open_store
from ordered_pubsub.supervision import Supervisor
from server.waiting import soon, until

ONE = Topology((StageSpec("main"),))
SYSTEM = Secrets(founded(b"system-1", bytes(32), 0.0))
TWO = Topology((StageSpec("high", ("a",)), StageSpec("low", ("b",))))


@attrs.define(eq=False)
class Disk(MemoryJournal):
    """A journal that notes what happens, and that can be slow, or break."""

    events: list[str] = attrs.field(factory=list)
    threads: set[int] = attrs.field(factory=set)
    may_sync: threading.Event = attrs.field(factory=threading.Event)
    delay_s: float = 0.0
    """how long a write takes, by the time that passes here and nowhere else"""
    now: float = 0.0
    failure: Exception | None = None

    def __attrs_post_init__(self) -> None:
        self.may_sync.set()

    def append(self, records: list[bytes], given: int = 0) -> None:
        self.events.append(f"append {len(records)}")
        super().append(records, given)

    def sync(self) -> None:
        self.threads.add(threading.get_ident())
        assert self.may_sync.wait(30)
        self.now += self.delay_s
        if self.failure is not None:
            raise self.failure
        self.events.append("sync")

    def replace(self, snapshot: bytes) -> None:
        self.threads.add(threading.get_ident())
        self.events.append("replace")
        super().replace(snapshot)


@attrs.define(eq=False)
class Asker:
    """A client that notes its answers."""

    events: list[str]
    answers: list[Answer | Refusal] = attrs.field(factory=list)

    def send_answers(self, answers: list[Answer | Refusal]) -> None:
        self.events.append(f"tell {len(answers)}")
        self.answers += answers

    def send_messages(self, messages: list[ToSubscriber]) -> None:
        self.events.append(f"inform {len(messages)}")

    @property
    def numbers(self) -> list[int]:
        return [answer.parts[0].first for answer in self.answers]  # type: ignore[union-attr]  # they are publications


@attrs.define(eq=False)
class Neighbour:
    """A stage that notes what it is told."""

    events: list[str]
    messages: list[PeerMessage] = attrs.field(factory=list)

    def say(self, messages: Sequence[PeerMessage]) -> None:
        self.events.append(f"say {len(messages)}")
        self.messages += messages

    def go_on(self) -> None:
        self.events.append("go on")


def ask(*topics: str, sequence: int = 1, client: str = "c") -> Request:
    return Request(client, 1, sequence, sequence - 1, 0, tuple(PublishAsk(topic) for topic in topics or ("a",)))


def make(journal: Journal, topology: Topology = ONE, rank: int = 0) -> Node:
    timer = (lambda: journal.now) if isinstance(journal, Disk) else time.perf_counter
    return Node(rank, topology, Store(journal, "test", "fsync"), levels=Levels((("**", ORDERED),)), timer=timer)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


@pytest.fixture
async def node(disk: Disk) -> AsyncIterator[Node]:
    node = make(disk)
    await until(lambda: disk.events and not node.driver.has_work)
    disk.events.clear()
    yield node
    disk.may_sync.set()
    disk.failure = None
    await node.close()


@pytest.fixture
def asker(node: Node, disk: Disk) -> Asker:
    asker = Asker(disk.events)
    node.askers["c"] = asker
    return asker


# -- whose turn it is ---------------------------------------------------------------------------------------------------


async def test_what_waits_for_its_turn_is_served_by_one_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    soon_, later = Supervisor.soon, Supervisor.later

    def noted(step: Callable[..., None]) -> Callable[..., None]:
        if getattr(step, "__name__", "") != "_serve":
            return step
        planned.append("serve")

        def run(*arguments: Any) -> None:
            planned.pop()
            step(*arguments)

        return run

    monkeypatch.setattr(Supervisor, "soon", lambda self, step, *rest: soon_(self, noted(step), *rest))
    monkeypatch.setattr(Supervisor, "later", lambda self, s, step, *rest: later(self, s, noted(step), *rest))
    steps = 0

    def waits() -> Work:
        nonlocal steps
        while True:
            steps += 1
            node.handle_requests([])  # as a client's word does, and then it waits for the answer
            yield False

    node.turns.put("evil", "c", waits())
    node.handle_requests([])
    for _ in range(20):
        before = steps
        await until(lambda before=before: steps > before)
        assert len(planned) <= 1
    node.turns.forget("evil", "c")


async def test_a_link_is_read_no_faster_than_what_it_brings_is_handled(disk: Disk) -> None:
    node = make(disk, TWO, rank=0)
    peer = node.neighbours[1] = Neighbour(disk.events)
    node.connected(1)
    node.handle_peer(1, [VoidAsk("c", [TopicRange("t", 1, 1)])] * 20_000)

    assert node.is_behind(1)
    await until(lambda: "go on" in peer.events)
    assert not node.is_behind(1)
    disk.may_sync.set()
    await node.close()


# -- the order of duties ----------------------------------------------------------------------------------------------


async def test_an_answer_is_told_when_it_is_on_disk(node: Node, disk: Disk, asker: Asker) -> None:
    node.handle_requests([ask()])

    await until(lambda: asker.answers)

    assert disk.events == ["append 1", "sync", "tell 1"]


async def test_what_comes_in_one_turn_of_the_loop_is_one_commit_and_one_telling(
    node: Node, disk: Disk, asker: Asker
) -> None:
    for sequence in range(1, 51):
        node.handle_requests([ask(sequence=sequence)])

    await until(lambda: asker.answers)

    assert disk.events == ["append 50", "sync", "tell 50"]
    assert asker.numbers == list(range(1, 51))


async def test_peers_hear_of_it_when_it_is_on_disk(disk: Disk) -> None:
    node = make(disk, TWO, rank=1)
    high = Neighbour(disk.events)
    node.neighbours[0] = high
    node.connected(0)
    node.handle_peer(0, [Hello(TWO.fingerprint, 0), SYSTEM])
    await until(lambda: node.status()["ready"] and not node.driver.has_work)
    disk.events.clear()
    high.messages.clear()

    node.handle_requests([ask("a", "b")])
    await until(lambda: high.messages)

    assert disk.events == ["append 1", "sync", "say 1"]
    await node.close()


async def test_a_request_that_is_asked_again_is_answered_again_without_a_commit(
    node: Node, disk: Disk, asker: Asker
) -> None:
    node.handle_requests([ask()])
    await until(lambda: asker.answers)
    node.handle_requests([ask()])

    await until(lambda: len(asker.answers) == 2)

    assert disk.events == ["append 1", "sync", "tell 1", "tell 1"]
    assert asker.answers[0] == asker.answers[1]


async def test_an_answer_to_a_client_that_has_gone_is_for_nobody(node: Node, disk: Disk) -> None:
    node.handle_requests([ask()])

    await until(lambda: disk.events)

    assert disk.events == ["append 1", "sync"]


# -- slow disks -------------------------------------------------------------------------------------------------------


async def test_a_quick_disk_is_written_by_the_loop_itself(node: Node, disk: Disk, asker: Asker) -> None:
    disk.threads.clear()
    node.handle_requests([ask()])

    await until(lambda: asker.answers)

    assert disk.threads == {threading.get_ident()}


async def publish_until_a_thread_writes(node: Node, disk: Disk, asker: Asker) -> int:
    """How many requests that took."""
    disk.threads.clear()
    for sequence in range(1, 1000):
        node.handle_requests([ask(sequence=sequence)])
        await until(lambda: len(asker.answers) == sequence)  # noqa: B023 - it is awaited here
        if disk.threads - {threading.get_ident()}:
            return sequence
    raise AssertionError("it was never left to a thread")


async def test_a_slow_disk_is_left_to_a_thread(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 20 * INLINE_COMMIT_S

    assert await publish_until_a_thread_writes(node, disk, asker) < 50


async def test_the_loop_goes_on_while_a_slow_disk_writes(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 20 * INLINE_COMMIT_S
    asked = await publish_until_a_thread_writes(node, disk, asker)
    disk.may_sync.clear()
    node.handle_requests([ask(sequence=asked + 1)])
    turns = 0
    while turns < 1000:
        await asyncio.sleep(0)
        turns += 1
    told = len(asker.answers)
    disk.may_sync.set()

    await until(lambda: len(asker.answers) == asked + 1)

    assert told == asked  # nothing was said before it was on disk


async def test_what_comes_while_a_slow_disk_writes_is_the_next_commit(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 20 * INLINE_COMMIT_S
    asked = await publish_until_a_thread_writes(node, disk, asker)
    disk.events.clear()
    disk.may_sync.clear()
    node.handle_requests([ask(sequence=asked + 1)])
    await until(lambda: disk.events == ["append 1"])
    for more in range(2, 12):
        node.handle_requests([ask(sequence=asked + more)])
    disk.may_sync.set()

    await until(lambda: len(asker.answers) == asked + 11)

    assert disk.events == ["append 1", "sync", "tell 1", "append 10", "sync", "tell 10"]


async def test_a_disk_that_is_quick_again_is_written_by_the_loop_again(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 20 * INLINE_COMMIT_S
    asked = await publish_until_a_thread_writes(node, disk, asker)
    disk.delay_s = 0.0
    for sequence in range(asked + 1, asked + 300):
        disk.threads.clear()
        node.handle_requests([ask(sequence=sequence)])
        await until(lambda: len(asker.answers) == sequence)  # noqa: B023 - it is awaited here
        if disk.threads == {threading.get_ident()}:
            return
    raise AssertionError("it was left to a thread for ever")


def enough_for_a_snapshot() -> list[Request]:
    each = AFTER_RECORDS // 10
    clients = ("c", *(f"c{number}" for number in range(9)))
    return [ask(client=client, sequence=sequence) for client in clients for sequence in range(1, each + 1)]


async def test_a_snapshot_takes_the_place_of_its_batch(node: Node, disk: Disk, asker: Asker) -> None:
    node.handle_requests(enough_for_a_snapshot())

    await until(lambda: asker.answers)

    assert disk.events == [f"append {AFTER_RECORDS}", "sync", "replace", "tell 1000"]
    assert disk.records == []


async def test_a_snapshot_is_written_to_its_end_though_nobody_asks_for_anything(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "main.db"), "os", "main")
    node = Node(0, ONE, store)
    store.journal.replace(bytes(5 * PIECE_BYTES))

    node._plan_flush()
    await until(lambda: not store.journal.has_more)

    found, _ = store.journal.load()
    assert found == bytes(5 * PIECE_BYTES)
    await node.close()


async def test_a_snapshot_that_was_due_before_the_stop_is_written_after_the_start() -> None:
    disk = Disk()
    first = make(disk)
    for request in enough_for_a_snapshot():
        first.driver.handle_request(request, 1.0)
    disk.append(first.driver.take().effects.journal)  # and then it was killed
    await first.close()

    second = make(disk)
    disk.events.clear()
    second.askers["c"] = asker = Asker(disk.events)
    second.handle_requests([ask()])

    await until(lambda: asker.answers)
    assert disk.events == ["replace", "tell 1"]
    await second.close()


# -- bad disks --------------------------------------------------------------------------------------------------------


async def test_a_sync_that_fails_stops_the_stage_and_answers_nothing(node: Node, disk: Disk, asker: Asker) -> None:
    disk.failure = OSError(5, "Input/output error")
    node.handle_requests([ask()])

    with pytest.raises(JournalError, match=r"the journal failed: .*Input/output error"):
        await soon(node.failed)

    disk.failure = None
    node.handle_requests([ask(), ask(sequence=2)])
    await asyncio.sleep(0)
    assert asker.answers == []
    assert disk.events == ["append 1"]
    assert not node.status()["ready"]


async def test_a_sync_that_fails_in_a_thread_stops_the_stage_as_well(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 20 * INLINE_COMMIT_S
    asked = await publish_until_a_thread_writes(node, disk, asker)
    disk.failure = OSError(28, "No space left on device")
    node.handle_requests([ask(sequence=asked + 1)])

    with pytest.raises(JournalError, match="No space left on device"):
        await soon(node.failed)

    assert len(asker.answers) == asked


async def test_a_store_is_let_go_also_if_whoever_closes_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a stage is told to stop while it closes a store that has failed; who closes it next waits until that is done."""
    file = str(tmp_path / "main.db")
    node = Node(0, ONE, open_store(file, "fsync", "main"))
    is_free, shutdown = threading.Event(), node._pool.shutdown
    node._pool.submit(is_free.wait)

    def shut_down(wait: bool) -> None:
        is_free.set()
        shutdown(wait=wait)

    monkeypatch.setattr(node._pool, "shutdown", shut_down)
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await soon(node.close())

    open_store(file, "fsync", "main").close(None)


async def test_a_stage_whose_disk_has_failed_writes_nothing_when_it_is_closed(disk: Disk) -> None:
    node = make(disk)
    await until(lambda: disk.events)
    disk.failure = OSError("gone")
    node.handle_requests([ask()])
    with pytest.raises(JournalError):
        await soon(node.failed)
    disk.events.clear()

    await node.close()

    assert disk.events == []


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Node]:
    """A stage on a file, with one event in its log."""
    node = Node(0, ONE, open_store(str(tmp_path / "stage.db"), "os", "main"))
    asker = node.askers["c"] = Asker([])
    node.handle_requests([Request("c", 1, 1, 0, 0, (PublishAsk("a", 1, True, (Chunk(1, b"event"),)),))])
    await until(lambda: asker.answers)
    yield node
    await node.close()


def break_in(node: Node, statement: str) -> None:
    """Do something to its store behind its back."""
    assert isinstance(node.store.journal, SqliteJournal)
    node.store.journal._connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE events SET data = x'00'", "fail their checksum"),
        ("UPDATE events SET key = key + 1", "lacks the events of topic 'a' from number 1 on"),
        ("DELETE FROM events", "lacks the events of topic 'a' from number 1 on"),
        ("DELETE FROM stamps", "lacks the timestamps of numbers 1 of topic 'a'"),
        ("DROP TABLE events", "no such table"),
    ],
)
async def test_a_stage_that_cannot_read_its_log_says_so_and_is_not_ready(
    stored: Node, statement: str, what: str
) -> None:
    break_in(stored, statement)
    stored.handle_subscriber("c", Nack("c/1", [NackRange("a", 1, 1)]))

    with pytest.raises(JournalDamaged, match=rf"the store .*stage.db is damaged: .*({what}).*store check"):
        await soon(stored.failed)

    assert not stored.status()["ready"]


async def test_a_tick_that_cannot_read_the_log_stops_the_stage(stored: Node) -> None:
    break_in(stored, "UPDATE stamps SET checksum = 0")

    with pytest.raises(JournalDamaged, match="stamps of topic 'a' from number 1 on fail their checksum"):
        await soon(stored.failed)


async def test_closing_while_a_slow_disk_writes_waits_for_it(disk: Disk) -> None:
    node = make(disk)
    asker = node.askers["c"] = Asker(disk.events)
    await until(lambda: disk.events)
    disk.delay_s = 20 * INLINE_COMMIT_S
    asked = await publish_until_a_thread_writes(node, disk, asker)
    disk.may_sync.clear()
    disk.events.clear()
    node.handle_requests([ask(sequence=asked + 1)])
    await until(lambda: disk.events == ["append 1"])
    node.handle_requests([ask(sequence=asked + 2)])
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    assert not closing.done()
    disk.may_sync.set()

    await soon(closing)

    again = make(disk)
    assert again.driver.stage.statistics()["events"] == asked + 2
    await again.close()


# -- bugs -------------------------------------------------------------------------------------------------------------


async def test_a_bug_in_the_state_machine_stops_the_stage_before_it_is_written(
    node: Node, disk: Disk, asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What its memory holds then may be anything; what its disk holds is good."""
    good = Stage._handle

    def half_done(self: Stage, operation: Any) -> None:
        good(self, operation)
        raise KeyError("a bug")

    monkeypatch.setattr(Stage, "_handle", half_done)
    node.handle_requests([ask()])

    with pytest.raises(
        OrderedPubSubError, match=r"met what it cannot handle \(.*KeyError: 'a bug'\). Its store is as it was"
    ):
        await soon(node.failed)

    assert (disk.events, asker.answers) == ([], [])
    assert "Traceback" in caplog.text


async def test_a_bug_in_telling_stops_the_stage(node: Node, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would stand still, and look as if it were well."""

    def broken(self: Asker, answers: list[Answer | Refusal]) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Asker, "send_answers", broken)
    node.handle_requests([ask()])

    with pytest.raises(OrderedPubSubError, match=r"RuntimeError: a bug"):
        await soon(node.failed)


async def test_what_a_peer_must_not_say_changes_nothing(disk: Disk) -> None:
    node = make(disk, TWO, rank=1)

    with pytest.raises(ProtocolError):
        node.handle_peer(0, [Hello("another topology", 0)])
    with pytest.raises(ProtocolError, match="no peer of rank 7"):
        node.handle_peer(7, [LinkAck(1)])

    assert not node.failed.done()
    await node.close()


# -- counting ---------------------------------------------------------------------------------------------------------


async def test_it_counts_what_it_does(node: Node, disk: Disk, asker: Asker) -> None:
    disk.delay_s = 0.5
    node.handle_requests([ask("a", "b"), ask(sequence=2)])
    await until(lambda: asker.answers)

    counted = node.status()["since_start"]

    assert (counted["requests"], counted["events"], counted["commits"]) == (2, 3, 2)  # its beginning is a commit, too
    assert counted["commit_s"] == 0.5


async def test_while_it_drains_it_takes_nothing_from_clients(node: Node, disk: Disk, asker: Asker) -> None:
    await node.answer_the_last(1.0)
    node.handle_requests([ask()])
    await asyncio.sleep(0)

    assert disk.events == []
    assert not node.status()["ready"]


async def test_draining_waits_for_what_was_asked(node: Node, disk: Disk, asker: Asker) -> None:
    node.handle_requests([ask()])
    await soon(node.answer_the_last(30.0))

    assert asker.numbers == [1]


async def test_draining_does_not_wait_for_ever(disk: Disk) -> None:
    """What has to go up the line may not come back: the other stage is not there."""
    node = make(disk, TWO, rank=1)
    node.connected(0)
    node.handle_peer(0, [Hello(TWO.fingerprint, 0), SYSTEM])
    node.handle_requests([ask("a", "b")])
    await until(lambda: node.driver.stage.statistics()["pending"])

    await soon(node.answer_the_last(0.01))

    assert node.driver.stage.statistics()["pending"] == 1
    await node.close()
