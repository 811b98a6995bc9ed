"""Whether events are kept is said by what their topic gives, never by who publishes them; and a log has no holes."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.levels import EXACTLY_ONCE, ORDERED, Levels
from ordered_pubsub.core.log.reader import LogReader
from ordered_pubsub.core.log.shelf import NEVER_KEPT
from ordered_pubsub.core.messages import (
    Answer,
    ChangeAsk,
    Chunk,
    Done,
    Hello,
    LinkFrame,
    Operation,
    Pass,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Reply,
    Request,
)
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.gatekeeper import WRONG_LEVEL
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology

ALONE = Topology((StageSpec("only"),))
TWO = Topology((StageSpec("high", ("h/**",)), StageSpec("low", ("**",))))
KEEPS, KEEPS_NOT = Levels((("h/**", ORDERED), ("**", EXACTLY_ONCE))), Levels((("**", ORDERED),))
MUCH = 1 << 20


def publish(sequence: int, is_kept: bool, topic: str = "t", client: str = "c") -> Request:
    chunks = (Chunk(1, b"event"),) if is_kept else ()
    return Request(client, 1, sequence, sequence - 1, sequence - 1, (PublishAsk(topic, 1, is_kept, chunks),))


def run(driver: Driver, *requests: Request) -> list[Answer | Refusal]:
    for request in requests:
        driver.handle_request(request, 0.0)
    return list(driver.flush().replies)


def codes(answers: list[Answer | Refusal]) -> list[str]:
    return [answer.code if isinstance(answer, Refusal) else "" for answer in answers]


def in_log(journal: MemoryJournal, topic: str = "t") -> tuple[int, list[tuple[int, bytes]]]:
    """The floor, and what is above it."""
    reading = LogReader(journal.shelf).read(topic, 1, 100, MUCH)
    return reading.floor, [(item.first, chunk.data) for item in reading.items for chunk in item.chunks]


def test_a_number_without_its_event_is_refused_on_a_topic_that_is_kept() -> None:
    journal = MemoryJournal()
    driver = Driver.open(0, ALONE, journal, levels=KEEPS)
    answers = run(driver, publish(1, True), publish(2, False), publish(3, True))
    assert codes(answers) == ["", WRONG_LEVEL, ""]
    assert in_log(journal) == (0, [(1, b"event"), (2, b"event")])


def test_an_event_that_is_to_be_kept_is_refused_on_a_topic_that_is_not() -> None:
    driver = Driver.open(0, ALONE, MemoryJournal(), levels=KEEPS)
    (refusal,) = run(driver, publish(1, True, "h/a"))
    assert isinstance(refusal, Refusal)
    assert refusal.taken
    assert refusal.reason.startswith("the events of topic 'h/a' are not kept by its stage, and these were brought")


def test_the_refusal_is_the_same_for_who_asks_again_also_after_a_restart_with_other_levels() -> None:
    """It is journalled: what was decided once is decided."""
    journal = MemoryJournal()
    (refusal,) = run(Driver.open(0, ALONE, journal, levels=KEEPS), publish(1, False))
    again = Driver.open(0, ALONE, journal, levels=KEEPS_NOT)
    assert run(again, publish(1, False)) == [refusal]


def test_what_was_answered_before_a_change_of_levels_is_answered_the_same_after_it() -> None:
    journal = MemoryJournal()
    (answer,) = run(Driver.open(0, ALONE, journal, levels=KEEPS_NOT), publish(1, False))
    assert run(Driver.open(0, ALONE, journal, levels=KEEPS), publish(1, False)) == [answer]


@pytest.mark.parametrize("is_owner", [True, False])
def test_both_the_home_and_who_takes_it_refuse(is_owner: bool) -> None:
    """The home says so along with the request; and who takes it does not believe a home that did not."""
    stage = Stage.restore(1 if is_owner else 0, TWO, None, [], KEEPS)
    peer = 0 if is_owner else 1
    stage.connected(peer)
    stage.handle_peer(peer, Hello(TWO.fingerprint, 0), 0.0)
    stage.take_effects()
    if is_owner:
        stage.handle_peer(0, Relay(0, publish(1, False)), 0.0)
        (said,) = (message.answer for _, message in stage.take_effects().sends if isinstance(message, Reply))
    else:
        stage.handle_request(publish(1, False), 0.0)
        (said,) = (message.refusal for _, message in stage.take_effects().sends if isinstance(message, Relay))
    assert isinstance(said, Refusal)
    assert said.code == WRONG_LEVEL


def test_a_topic_that_is_kept_from_now_on_has_a_log_that_begins_now() -> None:
    """Only here rows are dropped for another reason than retention, and it is said for which topics."""
    journal = MemoryJournal()
    run(Driver.open(0, ALONE, journal, levels=KEEPS), publish(1, True))
    run(Driver.open(0, ALONE, journal, levels=KEEPS_NOT), publish(2, False), publish(3, False))
    assert in_log(journal) == (0, [(1, b"event")])  # who still needs what was kept before has it

    driver = Driver.open(0, ALONE, journal, levels=KEEPS)
    assert driver.begun == {"t": 3}
    (answer,) = run(driver, publish(4, True))
    assert isinstance(answer, Answer)
    assert isinstance(answer.parts[0], Publication)
    assert answer.parts[0].full  # nobody finds in the log what a delta would leave out
    assert in_log(journal) == (3, [(4, b"event")])
    assert Driver.open(0, ALONE, journal, levels=KEEPS).begun == {}


def test_a_restart_without_a_change_of_levels_drops_nothing() -> None:
    journal = MemoryJournal()
    for number in range(1, 4):
        driver = Driver.open(0, ALONE, journal, levels=KEEPS)
        assert driver.begun == {}
        run(driver, publish(number, True))
    assert in_log(journal) == (0, [(number, b"event") for number in (1, 2, 3)])


def taken_from_below(is_kept: bool, levels: Levels) -> tuple[MemoryJournal, Publication]:
    """A publication that another stage had taken before the levels were changed comes to its owner."""
    journal = MemoryJournal()
    driver = Driver.open(0, TWO, journal, levels=levels)
    driver.stage.connected(1)
    driver.handle_peer(1, Hello(TWO.fingerprint, 0), 0.0)
    part = Publication("h/a", 2, 1.0, is_kept=is_kept, chunks=(Chunk(2, b"event"),) if is_kept else ())
    driver.handle_peer(1, LinkFrame(1, Pass(Operation("c", 1, 1, 1, 1, 1, 0, [part]))), 0.0)
    (done,) = (
        message.message.operation.parts[0]
        for _, message in driver.flush().sends
        if isinstance(message, LinkFrame) and isinstance(message.message, Done)
    )
    assert isinstance(done, Publication)
    return journal, done


def test_what_was_on_its_way_when_its_topic_became_a_kept_one_leaves_no_hole_in_the_log() -> None:
    journal, done = taken_from_below(False, Levels())
    assert done.is_kept
    assert in_log(journal, "h/a") == (0, [(1, NEVER_KEPT)])


def test_what_was_on_its_way_when_its_topic_ceased_to_be_kept_is_for_the_broker_again() -> None:
    journal, done = taken_from_below(True, KEEPS)
    assert not done.is_kept
    assert in_log(journal, "h/a") == (0, [])


def test_what_waited_for_its_turn_when_the_levels_were_changed_is_as_they_are_now() -> None:
    """A publication together with a change waits for the change before it, perhaps for longer than a stage runs."""
    journal = MemoryJournal()
    low = Driver.open(1, TWO, journal, levels=Levels())
    low.stage.connected(0)
    low.handle_peer(0, Hello(TWO.fingerprint, 0), 0.0)
    name = next(f"s{n}" for n in range(99) if TWO.registrar(f"s{n}") == 1)
    low.handle_request(Request("c", 1, 1, 0, 0, (ChangeAsk(name, ("t", "h/a")),)), 0.0)
    together = (PublishAsk("t", 1, True, (Chunk(1, b"event"),)), ChangeAsk(name, ("u",)))
    low.handle_request(Request("c", 1, 2, 1, 0, together), 0.0)
    (frame,) = (message for _, message in low.flush().sends if isinstance(message, LinkFrame))
    assert isinstance(frame.message, Pass)

    low = Driver.open(1, TWO, journal, levels=KEEPS_NOT)
    low.stage.connected(0)
    low.handle_peer(0, Hello(TWO.fingerprint, 0), 0.0)
    low.handle_peer(0, LinkFrame(1, Done(frame.message.operation)), 0.0)
    (passed,) = (
        message.message.operation.parts[0]
        for _, message in low.flush().sends
        if isinstance(message, LinkFrame)
        and isinstance(message.message, Pass)
        and len(message.message.operation.parts) == 2
    )
    assert isinstance(passed, Publication)
    assert (passed.is_kept, passed.chunks) == (False, ())
    assert in_log(journal) == (0, [])


@pytest.mark.parametrize("snapshot_after_records", [1, 1000])
def test_levels_survive_a_restart_with_the_rest_of_the_state(snapshot_after_records: int) -> None:
    journal = MemoryJournal()
    before = Driver.open(0, ALONE, journal, levels=KEEPS, snapshots=SnapshotPolicy(snapshot_after_records, growth=0))
    run(before, publish(1, True))
    after = Driver.open(0, ALONE, journal)
    assert after.stage.snapshot() == before.stage.snapshot()
    assert after.stage.context.levels == KEEPS
