"""What is told to one identity does not wait for what is told to another one, and is held only until all are told."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.messages import Chunk, LogReply, Nack, NackRange, PublishAsk, Recovered, Request
from ordered_pubsub.core.stage import _telling as module
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology

MANY, SIZE = 1_000, 1_000
IDENTITIES = {"e": "evil", "g": "good"}


@pytest.fixture
def driver() -> Driver:
    """Has an event on t and on u, and two clients of different identities."""
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    for number, topic in enumerate("tu", 1):
        ask = PublishAsk(topic, 1, True, (Chunk(1, bytes(SIZE)),))
        driver.handle_request(Request("p", 1, number, number - 1, 0, (ask,)), 0.0)
    driver.flush()
    driver.pacing.inline_load = 1 << 40
    for session, identity in IDENTITIES.items():
        driver.client_is_here(session, identity)
    return driver


def want(driver: Driver, session: str, count: int = 1, topic: str = "t", now: float = 0.0) -> None:
    """So many subscriptions of a client miss the event; the stage has taken note of that, and has read nothing yet."""
    for number in range(count):
        curious = Nack(f"{session}/{number}", [NackRange(topic, 1, 1)])
        driver.handle_subscriber(session, curious, now, IDENTITIES[session])


def take_told(driver: Driver) -> list[tuple[str, str]]:
    """Who was told of which topic since the last call: the session once for each of its subscriptions."""
    return [(session, said.reply.topic) for session, said in driver.flush().tells if isinstance(said, Recovered)]


def serve_all(driver: Driver) -> list[tuple[str, str]]:
    while driver.is_asked:
        driver.serve()
    return take_told(driver)


def test_who_misses_little_of_a_topic_does_not_wait_for_who_misses_much_of_it(driver: Driver) -> None:
    want(driver, "e", MANY)
    while driver.turns.has_work:
        driver.turns.step()
    want(driver, "g")
    steps = 0
    told: list[tuple[str, str]] = []
    while ("g", "t") not in told:
        driver.serve()
        told += take_told(driver)
        steps += 1

    assert steps <= 3
    assert sorted(told + serve_all(driver)) == [("e", "t")] * MANY + [("g", "t")]


def test_what_was_told_is_held_once_and_only_until_the_last_one_has_it(driver: Driver) -> None:
    want(driver, "e", 5)
    want(driver, "g", 3)
    driver.serve()
    held = [driver.telling.held_bytes]
    while driver.is_asked:
        driver.serve()
        held.append(driver.telling.held_bytes)

    assert held[0] > SIZE
    assert held == sorted(held, reverse=True)
    assert set(held) == {held[0], 0}


def test_what_is_forgotten_is_not_held_any_more(driver: Driver) -> None:
    for session in IDENTITIES:
        want(driver, session, 5)
    driver.serve()
    for identity in IDENTITIES.values():
        assert driver.telling.held_bytes > SIZE
        driver.turns.forget(("told", identity), "t")

    assert driver.telling.held_bytes == 0


def test_what_finds_no_room_is_dropped_and_asked_for_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_BYTES_MAX", 2 * SIZE)
    want(driver, "e", MANY)
    driver.serve()
    (piece,) = LogReader(driver.journal.read_shelf).read("u", 1, 1, 1 << 20).items
    want(driver, "g", topic="u")
    before = driver.turns.dropped
    driver.telling.tell(LogReply("u", 1, 1, 0, [piece]))

    assert driver.turns.dropped == before + 1
    assert ("g", "u") not in take_told(driver)
    assert ("g", "u") in serve_all(driver)


def test_an_identity_for_whom_too_much_waits_is_not_told_and_the_others_are(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again."""
    monkeypatch.setattr(module, "TOLD_ENOUGH", SIZE)
    want(driver, "e", MANY)
    driver.serve()
    take_told(driver)
    want(driver, "e", 2, "u")
    want(driver, "g", 2, "u")
    told = serve_all(driver)

    assert (told.count(("g", "u")), told.count(("e", "u")), driver.turns.dropped) == (2, 1, 1)
    want(driver, "e", 2, "u", now=1.0)
    assert serve_all(driver) == [("e", "u")] * 2


def test_of_a_topic_no_more_is_read_if_enough_waits_for_all_who_miss_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOLD_ENOUGH", SIZE)
    want(driver, "e", MANY)
    driver.serve()
    want(driver, "e", 1, "u")
    for _ in range(10):
        driver.serve()
    assert ("e", "u") not in take_told(driver)
    want(driver, "g", 1, "u")
    driver.serve()

    assert [told for told in take_told(driver) if "u" in told] == [("e", "u"), ("g", "u")]
    assert serve_all(driver) == [("e", "t")] * (MANY - 12)
