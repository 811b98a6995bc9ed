"""Rows of a task that is run again are published once: broken off anywhere, stages restarted, refused, overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.core.client.writer import DIGEST_BITS, ROWS_MAX, TRIES_MAX, Reach
from ordered_pubsub.core.log.range_reader import raise_lost
from ordered_pubsub.errors import AccessDenied, NotOffered, SessionExpired, UnavailableError, UsageError
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.merging import merged
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark import publishing
from ordered_pubsub.spark.progress import ReaderProgress
from ordered_pubsub.spark.publishing import Identity, TaskPublishing
from ordered_pubsub.testing.processes import HOST
from ordered_pubsub.wire.pack import NO_HEADERS, decode_logged
from ordered_pubsub.wire.sessions import derive_session
from server.systems import System
from server.waiting import until

TOPICS = ("a", "b", "c", "d")
Row = tuple[str, int]


def access(*ports: int, timeout_s: float = 30.0, token_file: str | None = None) -> ReaderAccess:
    addresses = tuple(f"ops://{HOST}:{port}" for port in ports)
    return ReaderAccess(ClientSection(sequencer=addresses, timeout_s=timeout_s, token_file=token_file))


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """Three stages that own two topics, one, and one."""
    async with System(tmp_path, [["a", "b"], ["c"], ["d"]]) as system:
        await until(lambda: system.is_linked)
        yield system


def rows_of(seed: int, count: int) -> list[Row]:
    random = Random(seed)
    return [(random.choice(TOPICS), number) for number in range(count)]


def outgoing(row: Row) -> Outgoing:
    topic, number = row
    return Outgoing(topic, "", str(number).encode(), "application/json", NO_HEADERS, 100)


def publish(
    through: ReaderAccess,
    rows: Sequence[Row],
    identity: Identity,
    is_in_one_order: bool = False,
    finishes: bool = True,
    is_whole: bool = True,
) -> None:
    """What a task does; one that is killed does not finish, and one whose rows break off does not have all of them."""
    with StageLines(through) as stages:
        task = TaskPublishing(stages, identity, "spark", is_in_one_order)
        try:
            for row in rows:
                task.put(outgoing(row))
            if finishes:
                task.finish(is_whole)
        finally:
            task.close()


def published(through: ReaderAccess) -> list[Row]:
    """What is there, in the one order."""
    found: list[Row] = []
    with StageLines(through) as stages:
        end = stages.cut(TOPICS)
        for batch in merged(stages, {}, end, raise_lost("test")):
            for first, last, data in batch.chunks:
                found += [(batch.topic, int(event.payload)) for event in decode_logged(data, last - first + 1).events]
    return found


def by_topic(rows: Sequence[Row]) -> dict[str, list[int]]:
    return {topic: [number for name, number in rows if name == topic] for topic in TOPICS}


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred rows are many."""
    monkeypatch.setattr(publishing, "REQUEST_EVENTS_MAX", 7)


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("is_in_one_order", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_a_task_that_is_broken_off_anywhere_and_run_again_publishes_each_row_once(
    system: System, seed: int, is_in_one_order: bool
) -> None:
    random, rows, through = Random(seed), rows_of(seed, 300), access(*system.ports)
    identity = Identity("query", 3, 0)

    def run() -> list[Row]:
        with StageLines(through) as stages:
            ReaderProgress("holder").cut(stages, TOPICS, {})
        for count in sorted(random.sample(range(300), 4)):
            publish(through, rows[:count], identity, is_in_one_order, random.random() < 0.5, is_whole=False)
        publish(through, rows, identity, is_in_one_order)
        publish(through, rows, identity, is_in_one_order)
        return published(through)

    found = await asyncio.to_thread(run)
    assert by_topic(found) == by_topic(rows)
    if is_in_one_order:
        assert found == rows


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("is_in_one_order", [False, True])
async def test_stages_that_are_killed_meanwhile_are_waited_for(system: System, is_in_one_order: bool) -> None:
    rows, through = rows_of(5, 300), access(*system.ports)
    loop = asyncio.get_running_loop()

    def run() -> list[Row]:
        with StageLines(through) as stages:
            task = TaskPublishing(stages, Identity("query", 0, 0), "spark", is_in_one_order)
            for at, row in enumerate(rows):
                if at % 50 == 49:
                    asyncio.run_coroutine_threadsafe(system.restart(at // 50 % 3), loop).result()
                task.put(outgoing(row))
            task.finish()
            task.close()
        return published(through)

    assert by_topic(await asyncio.to_thread(run)) == by_topic(rows)


@pytest.mark.usefixtures("small_requests")
async def test_what_was_asked_and_not_heard_of_is_found_by_the_next_run(system: System) -> None:
    """The stage has taken it, and nobody was there to be told."""
    rows, through = [("a", number) for number in range(40)], access(*system.ports)

    def run() -> list[Row]:
        with StageLines(through) as stages:
            task = TaskPublishing(stages, Identity("query", 0, 0), "spark")
            for row in rows[:21]:
                task.put(outgoing(row))  # the third request is under way
            task.close()
        publish(through, rows, Identity("query", 0, 0))
        return published(through)

    assert await asyncio.to_thread(run) == rows


@pytest.mark.parametrize("other", [[*range(9), 10], [1, 0, *range(2, 10)], [*range(6)]])
async def test_other_rows_than_before_are_not_published(system: System, other: list[int]) -> None:
    """Others, in another order, or fewer."""
    rows, through = [("a", number) for number in range(10)], access(*system.ports)
    changed = [("a", number) for number in other]

    def run() -> list[Row]:
        publish(through, rows, Identity("query", 0, 0))
        with pytest.raises(UsageError, match="not those of the run before, or not in the same order"):
            publish(through, changed, Identity("query", 0, 0))
        return published(through)

    assert await asyncio.to_thread(run) == rows


@pytest.mark.usefixtures("small_requests")
async def test_parts_that_were_others_before_are_not_published(system: System) -> None:
    """A part that was complete has no more rows now; and a row that went elsewhere is missed."""
    through = access(*system.ports)
    rows = [("a", number) for number in range(40)]

    def run() -> list[Row]:
        publish(through, rows[:21], Identity("query", 0, 0))
        publish(through, rows[21:], Identity("query", 1, 0))
        with pytest.raises(UsageError, match="not those of the run before"):
            publish(through, rows, Identity("query", 0, 0))
        publish(through, [("a", 50), ("c", 51)], Identity("another", 0, 0))
        with pytest.raises(UsageError, match="not those of the run before"):
            publish(through, [("a", 50), ("a", 51), ("c", 51)], Identity("another", 0, 0))
        return published(through)

    assert by_topic(await asyncio.to_thread(run)) == by_topic([*rows, ("a", 50), ("c", 51)])


async def test_other_parts_batches_and_queries_are_others(system: System) -> None:
    through = access(*system.ports)
    identities = [Identity("query", 0, 0), Identity("query", 1, 0), Identity("query", 0, 1), Identity("another", 0, 0)]

    def run() -> list[Row]:
        for identity in identities:
            publish(through, [("a", 1)], identity)
        return published(through)

    assert await asyncio.to_thread(run) == 4 * [("a", 1)]


async def test_a_task_of_a_batch_that_is_over_publishes_nothing(system: System) -> None:
    through = access(*system.ports)

    def run() -> list[Row]:
        with StageLines(through) as stages:
            late = TaskPublishing(stages, Identity("query", 0, 4), "spark")
            late.put(outgoing(("a", 1)))
            publish(through, [("a", 2)], Identity("query", 0, 5))
            with pytest.raises(SessionExpired, match="batch 4 is over: batch 5 was written already"):
                late.finish()
            late.close()
        with pytest.raises(SessionExpired, match="batch 4 is over: batch 5 was written already"):
            publish(through, [("a", 1)], Identity("query", 0, 4))
        return published(through)

    assert await asyncio.to_thread(run) == [("a", 2)]


async def test_a_task_of_which_another_run_goes_on_ends(system: System) -> None:
    """Both would have the same rows; but one of them is enough."""
    through = access(*system.ports)

    def run() -> None:
        with StageLines(through) as stages:
            one = TaskPublishing(stages, Identity("query", 0, 0), "spark")
            one.put(outgoing(("a", 1)))
            publish(through, [("a", 1), ("a", 2)], Identity("query", 0, 0))
            one.put(outgoing(("a", 2)))
            one.put(outgoing(("a", 3)))
            with pytest.raises((SessionExpired, UnavailableError), match=r"another run of it goes on|no answer within"):
                one.finish()
            one.close()

    await asyncio.to_thread(run)


async def test_what_was_refused_is_published_when_it_is_allowed(tmp_path: Path) -> None:
    """By the next run: the stage remembers the refusal, and what came before."""
    token = make_token()
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)

    def allowing(*topics: str) -> str:
        names = ", ".join(f'"{topic}"' for topic in topics)
        allow = f'{{ publish = [{names}], subscribe = ["**"] }}'
        return f'[[identity]]\nname = "job"\nnames = ["spark"]\ntoken_sha256 = "{hash_token(token)}"\nallow = {allow}\n'

    rows = [("a", number) for number in range(5)] + [("b", number) for number in range(5)]
    identity = Identity("query", 0, 0)
    async with System(tmp_path, [["**"]], allowing("a")) as system:
        through = access(*system.ports, token_file=str(tmp_path / "token"))
        await until(lambda: system.is_linked)

        def refused() -> None:
            with pytest.raises(AccessDenied, match="may not publish on 'b'"):
                publish(through, rows, identity, is_in_one_order=True)

        def flushed() -> None:
            publish(through, rows[:5], identity, is_whole=False)

        def refused_at_once() -> None:
            with pytest.raises(AccessDenied, match="may not publish on 'b'"):
                publish(through, rows[5:], Identity("another", 0, 0))

        for _ in range(2):
            await asyncio.to_thread(refused_at_once)
        await asyncio.to_thread(flushed)
        for _ in range(2):
            await asyncio.to_thread(refused)
        system.before = allowing("a", "b")
        await system.restart(0)
        await until(lambda: system.is_linked)
        await asyncio.to_thread(publish, through, rows, identity, True)
        await asyncio.to_thread(publish, through, rows, identity, True)
        assert await asyncio.to_thread(published, through) == rows


async def test_topics_that_nobody_keeps_are_refused(tmp_path: Path) -> None:
    """What is published there twice could not be told."""
    async with System(tmp_path, [["**"]], '[[topic]]\npattern = "a"\ndelivery = "ordered"\n') as system:
        await until(lambda: system.is_linked)
        with pytest.raises(NotOffered, match="its events are kept nowhere"):
            await asyncio.to_thread(publish, access(*system.ports), [("b", 1), ("a", 1)], Identity("query", 0, 0))


def test_a_sequence_says_how_far_a_run_has_come() -> None:
    """The later it is, the higher."""
    reaches = [
        Reach(),
        Reach(1, 7),
        Reach(1, 2, is_last=True),
        Reach(2, 0),
        Reach(1, 0, tries=1),
        Reach(ROWS_MAX, (1 << DIGEST_BITS) - 1, True, TRIES_MAX),
    ]
    sequences = [reach.sequence for reach in reaches]
    assert [Reach.of(sequence) for sequence in sequences] == reaches
    assert sequences == sorted(sequences)
    assert sequences[0] == 0
    assert sequences[-1] < 1 << 63


def test_a_session_is_derived_from_all_that_it_is_given() -> None:
    assert derive_session("a", "b") == derive_session("a", "b")
    assert len({derive_session(*what).session for what in (("a", "b"), ("ab",), ("a", "c"), ("a", "b", ""))}) == 4
