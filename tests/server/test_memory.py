"""What the ledger says of an identity is not less than what it really takes in memory, also after a restart."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.log import writer as writer_module
from ordered_pubsub.core.log.retention import Policies
from ordered_pubsub.core.messages import Answer, ChangeAsk, Chunk, LeaseRenewal, Progress, PublishAsk, Request
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.server.store.store import Store, open_store

ONE = Topology((StageSpec("only"),))
WHO = "somebody"
COUNT = 2_800
"""A little more than fits into tables of one size, so that these have just grown."""
AT_ONCE = 100
SLACK = 300_000
"""What a stage has that does not grow with the topics."""


@attrs.define(eq=False)
class Running:
    """A stage on a file, as a process has it, but for its connections."""

    file: Path
    levels: Levels = attrs.field(factory=Levels)
    driver: Driver = attrs.field(init=False)
    store: Store = attrs.field(init=False)
    now: float = 0.0
    sequences: dict[str, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start from what the file holds."""
        self.store = open_store(str(self.file), "os", "only")
        self.driver = Driver.open(0, ONE, self.store.journal, policies=Policies(), levels=self.levels)
        self.store.share_names(self.driver.stage.state.clocks.numbers)
        self.driver.flush()

    def stop(self, with_snapshot: bool) -> None:
        """Let the file go."""
        self.store.close(self.driver.stage.snapshot() if with_snapshot else None)

    def ask(self, *parts: PublishAsk | ChangeAsk, client: str = "c") -> None:
        """Ask for something, and say in the next request that the answer has come."""
        sequence = self.sequences[client] = self.sequences.get(client, 0) + 1
        self.driver.handle_request(Request(client, 1, sequence, sequence - 1, sequence - 1, parts, WHO), self.now)
        self.finish()

    def finish(self) -> None:
        """Do all that waits for its turn."""
        while self.driver.is_asked and self.driver.serve():
            pass
        assert all(isinstance(reply, Answer) for reply in self.driver.flush().replies)

    def tick_for(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.driver.tick(self.now, self.now)
            self.finish()

    @property
    def counted(self) -> int:
        """What the identity takes up, as the ledger has it."""
        return self.driver.stage.state.ledger.used[WHO].size


def names(first: int, count: int, length: int) -> tuple[str, ...]:
    return tuple(f"topic/{number:06}".ljust(length, "y") for number in range(first, first + count))


def publish(running: Running, length: int, is_kept: bool) -> None:
    """On very many topics, once on each."""
    for first in range(0, COUNT, AT_ONCE):
        chunks = (Chunk(1, b"x"),) if is_kept else ()
        running.ask(*(PublishAsk(name, 1, is_kept, chunks) for name in names(first, AT_ONCE, length)))
        handed = LeaseRenewal("c", running.sequences["c"], running.sequences["c"], [0], [])
        running.driver.handle_subscriber("c", handed, running.now, WHO)
        running.finish()


def hold(running: Running, length: int) -> None:
    """Very many topics, which nobody has published on."""
    for first in range(0, COUNT, AT_ONCE):
        client = f"c{first}"
        running.driver.client_is_here(client, WHO)
        running.ask(ChangeAsk(f"{client}/s", names(first, AT_ONCE, length), weight=0), client=client)
        follows = Progress(f"{client}/s", dict.fromkeys(names(first, AT_ONCE, length), 0), is_all=True, version=1)
        running.driver.handle_subscriber(client, follows, running.now, WHO)
        running.tick_for(0.5)


@pytest.fixture(autouse=True)
def _only_what_grows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is kept of so many topics, of however many there are, does not count: full timestamps, good names and owners."""
    monkeypatch.setattr(writer_module, "RUNNING_MAX", 10)
    for length in (20, 200):
        for name in names(0, COUNT, length):
            ONE.owner(check_topic(name))
    yield
    tracemalloc.stop()


def traced(do: Callable[[], Any]) -> int:
    """What is in memory after something that was not before."""
    gc.collect()
    tracemalloc.start()
    do()
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken


@pytest.mark.parametrize("length", [20, 200])
@pytest.mark.parametrize("is_kept", [True, False])
def test_topics_take_no_more_than_is_counted(tmp_path: Path, is_kept: bool, length: int) -> None:
    levels = Levels() if is_kept else Levels((("**", "ordered"),))
    running = Running(tmp_path / "s.db", levels)

    def live() -> None:
        publish(running, length, is_kept)
        running.tick_for(3.0)

    assert traced(live) <= running.counted + SLACK
    for with_snapshot in (False, True):
        running.stop(with_snapshot)

        def again() -> None:
            running.start()
            running.tick_for(3.0)

        assert traced(again) <= running.counted + SLACK
    running.stop(with_snapshot=False)


@pytest.mark.parametrize("length", [20, 200])
def test_topics_that_are_held_take_no_more_than_twice_what_is_counted(tmp_path: Path, length: int) -> None:
    """What nobody else has: its own place in the tables of numbers and marks, of the home stage, the owner and the registrar."""
    running = Running(tmp_path / "s.db")

    def live() -> None:
        hold(running, length)
        running.tick_for(3.0)

    assert traced(live) <= 2 * running.counted
    for with_snapshot in (False, True):
        running.stop(with_snapshot)
        assert traced(running.start) <= running.counted + SLACK
    running.stop(with_snapshot=False)
