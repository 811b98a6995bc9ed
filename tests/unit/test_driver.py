"""Duties in their order, and what a failing journal does."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.log.retention import BUCKETS, LOOK_S, Policies, Policy
from ordered_pubsub.core.messages import (
    Acked,
    AckSaved,
    Answer,
    ChangeAsk,
    Chunk,
    LeaseRenewal,
    LeaseReply,
    LogRequest,
    Nack,
    NackRange,
    PublishAsk,
    Relay,
    Reply,
    Request,
    TopicRange,
    VoidAsk,
)
from ordered_pubsub.core.stage._pacing import CELLS_A_SECOND, CELLS_MAX, STAGE, WORKS_MAX
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalError, ProtocolError


class FullDisk(MemoryJournal):
    """Takes nothing any more from the moment it is full."""

    is_full = False

    def sync(self) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")


def test_a_stage_whose_journal_failed_answers_nothing_and_does_nothing_any_more() -> None:
    journal = FullDisk()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal)
    driver.flush()
    journal.is_full = True
    driver.handle_request(Request("c", 1, 1, 0, 0, (PublishAsk("t"),)), 0.0)
    with pytest.raises(JournalError, match=r"No space left on device.*Nothing of the last batch was answered"):
        driver.flush()
    journal.is_full = False
    with pytest.raises(JournalError, match="this stage stopped because its journal failed"):
        driver.flush()


def test_a_batch_that_cannot_be_written_down_is_not_answered() -> None:
    class Broken(MemoryJournal):
        def append(self, records: list[bytes], given: int = 0) -> None:
            raise OSError(5, "Input/output error")

    journal = MemoryJournal()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal)
    driver.flush()
    driver.journal = Broken()
    driver.handle_request(asks(1, PublishAsk("t")), 0.0)
    with pytest.raises(JournalError, match=r"Input/output error.*Nothing of the last batch was answered"):
        driver.flush()
    assert isinstance(driver.failure, OSError)


def test_what_comes_from_no_peer_is_not_taken() -> None:
    driver = Driver.open(1, TWO, MemoryJournal())
    with pytest.raises(ProtocolError, match="stage 1 has no peer of rank 1"):
        driver.handle_peer(1, AckSaved("s", "c", 1), 0.0)


def test_for_a_client_that_is_gone_nothing_more_is_asked() -> None:
    driver = Driver.open(0, TWO, MemoryJournal())
    driver.client_is_here("c", "somebody")
    missed = Nack("c/1", [NackRange(f"x{number}", 1, 1) for number in range(10)])
    driver.handle_subscriber("c", missed, 0.0, "somebody")
    driver.client_is_gone("c")
    while driver.serve():
        pass

    asked = [want for _, message in driver.flush().sends if isinstance(message, LogRequest) for want in message.wants]
    assert len(asked) < 3


def test_a_log_that_cannot_be_made_to_fit_the_journal_is_said_to_be_at_fault() -> None:
    journal = FullDisk()
    journal.is_full = True
    with pytest.raises(JournalError, match=r"the log cannot be made to fit the journal: .*No space left on device"):
        Driver.open(0, Topology((StageSpec("only"),)), journal)


def asks(number: int, *parts: PublishAsk | ChangeAsk, client: str = "c", who: str = "somebody") -> Request:
    return Request(client, 1, number, number - 1, number - 1, parts, who)


def test_a_snapshot_takes_the_place_of_the_records() -> None:
    journal = MemoryJournal()
    driver = Driver.open(
        0, Topology((StageSpec("only"),)), journal, snapshots=SnapshotPolicy(after_records=3, growth=0)
    )
    for number in range(1, 6):
        driver.handle_request(Request("c", 1, number, number - 1, 0, (PublishAsk("t"),)), 0.0)
        driver.flush()
    assert journal.snapshot is not None
    assert len(journal.records) < 3


def test_a_snapshot_is_due_after_so_many_parts_however_few_requests_bring_them() -> None:
    """At a start it is they that take the time: also those count that a journal held when its stage started."""
    journal = MemoryJournal()
    for start in range(3):
        driver = Driver.open(
            0, Topology((StageSpec("only"),)), journal, snapshots=SnapshotPolicy(after_parts=500, growth=0)
        )
        driver.handle_request(asks(start + 1, *(PublishAsk(f"t{number}") for number in range(200))), 0.0)
        driver.flush()
        assert (journal.snapshot is not None) == (start == 2)
    assert not journal.records


def test_a_snapshot_is_not_due_before_as_much_was_done_as_it_takes_to_write_it() -> None:
    journal = MemoryJournal()
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal, snapshots=SnapshotPolicy(after_parts=1))
    written = []
    for number in range(1, 200):
        snapshot = journal.snapshot
        driver.handle_request(asks(number, *(PublishAsk(f"t{number}/{at}" * 9) for at in range(50))), 0.0)
        driver.flush()
        if journal.snapshot is not snapshot:
            written.append(number)
    assert len(written) > 5
    assert written[-1] - written[-2] > written[1] - written[0] + 5, "it is as large as all topics by then"


# -- changes of very many topics --------------------------------------------------------------------------------------

MANY = tuple(f"t{number}" for number in range(1_000))
TWO = Topology((StageSpec("high", ("h",)), StageSpec("low", ("**",))))


def answered(driver: Driver) -> list[tuple[str, int]]:
    return [(answer.client, answer.sequence) for answer in driver.flush().replies if isinstance(answer, Answer)]


def test_what_a_large_change_leaves_to_do_is_done_a_little_at_a_time() -> None:
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    driver.handle_request(asks(1, ChangeAsk("s", MANY)), 0.0)
    assert answered(driver) == [("c", 1)]
    groups, steps = driver.stage.state.groups, 0
    assert len(groups.due_in) >= len(MANY) - 1

    while driver.is_asked:
        driver.serve()
        steps += 1

    assert steps >= len(MANY) - 1
    assert not groups.due
    assert all(len(groups.filled[topic]) == len(MANY) - 1 for topic in MANY)


def test_what_a_large_change_has_left_to_do_is_done_after_a_restart() -> None:
    journal, topology = MemoryJournal(), Topology((StageSpec("only"),))
    before = Driver.open(0, topology, journal)
    before.handle_request(asks(1, ChangeAsk("s", MANY)), 0.0)
    before.flush()
    journal.replace(before.stage.snapshot())

    driver = Driver.open(0, topology, journal)
    assert driver.stage.state.groups.due
    driver.flush()
    while driver.is_asked:
        driver.serve()

    assert len(driver.stage.state.groups.filled["t7"]) == len(MANY) - 1


@pytest.mark.heavy
def test_who_changes_very_many_pairs_again_and_again_waits_and_nobody_else_does() -> None:
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    driver.tick(0.0, 0.0)
    for number in range(1, 11):
        name = f"s{(number + 1) // 2}"
        part = ChangeAsk(name, MANY) if number % 2 else ChangeAsk(name, ends=True)
        driver.handle_request(asks(number, part), 0.0)
    driver.handle_request(asks(1, ChangeAsk("other", MANY), client="d", who="another"), 0.0)
    driver.handle_request(asks(1, PublishAsk("t1"), client="e"), 0.0)

    for _ in range(10 * len(MANY)):
        driver.serve()
    assert sorted(answered(driver)) == [("c", 1), ("c", 2), ("c", 3), ("d", 1), ("e", 1)]
    done, second = list[int](), 0
    while len(done) < 7:
        second += 1
        driver.tick(float(second), 0.0)
        for _ in range(10 * len(MANY)):
            driver.serve()
        done += [sequence for _, sequence in answered(driver)]
    assert done == [4, 5, 6, 7, 8, 9, 10]
    assert second >= 6 * len(MANY) ** 2 // CELLS_A_SECOND


def test_a_change_that_was_relayed_waits_as_well() -> None:
    driver = Driver.open(1, TWO, MemoryJournal())
    stage = driver.stage
    stage.peers.unconfirmed.clear()
    stage.peers.greeted[0] = True
    name = next(name for name in map(str, range(100)) if TWO.registrar(name) == 1)
    stage.gatekeeper.cells["somebody"] = CELLS_MAX + 1

    driver.handle_peer(0, Relay(0, asks(1, ChangeAsk(name, MANY))), 0.0)

    def replies() -> list[Reply]:
        return [message for _, message in driver.flush().sends if isinstance(message, Reply)]

    assert not driver.serve()
    assert not replies()
    driver.tick(1.0, 0.0)
    driver.serve()
    assert len(replies()) == 1


def test_a_change_waits_as_long_as_earlier_ones_of_its_identity_have_much_left_to_do() -> None:
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    driver.stage.gatekeeper.cells["somebody"] = CELLS_MAX + CELLS_A_SECOND
    driver.handle_request(asks(1, ChangeAsk("s", ("t",))), 0.0)
    driver.handle_request(asks(1, ChangeAsk("other", ("t",)), client="d", who="another"), 0.0)

    assert not driver.serve(), "it waits, so nothing was done"
    assert answered(driver) == [("d", 1)]
    driver.tick(1.0, 0.0)
    driver.serve()
    assert answered(driver) == [("c", 1)]


def test_a_change_that_waited_and_was_relayed_to_the_wrong_stage_is_dropped_and_counted() -> None:
    driver = Driver.open(1, TWO, MemoryJournal())
    driver.stage.peers.unconfirmed.clear()
    driver.stage.peers.greeted[0] = True
    name = next(name for name in map(str, range(100)) if TWO.registrar(name) == 0)
    driver.stage.gatekeeper.cells["somebody"] = CELLS_MAX + 1

    driver.handle_peer(0, Relay(0, asks(1, ChangeAsk(name, MANY))), 0.0)
    assert driver.unfit == {}
    driver.tick(1.0, 0.0)
    driver.serve()

    count, reason = driver.unfit[0]
    assert count == 1
    assert f"for subscription '{name}' came to stage 'low', but stage 'high' takes it" in reason


# -- what the log may forget ------------------------------------------------------------------------------------------


def test_what_is_written_counts_for_a_bound_in_bytes() -> None:
    journal, size, most = MemoryJournal(), 100, 64_000
    driver = Driver.open(0, Topology((StageSpec("only"),)), journal, policies=Policies(default=Policy(max_bytes=most)))
    given = 0

    def publish(count: int) -> int:
        """So many events are kept, and the log is looked at; up to which number it has forgotten then."""
        nonlocal given
        for _ in range(count):
            given += 1
            part = PublishAsk("t", 1, True, (Chunk(1, bytes(size)),))
            driver.handle_request(asks(given, part, who=""), 0.0)
            driver.flush()
        driver.tick(given * LOOK_S, 0.0)
        driver.flush()
        return journal.shelf.floor("t")

    assert publish(600) == 0
    for _ in range(10):
        kept = (given + 100 - publish(100)) * size
        assert most - most // BUCKETS <= kept <= most


# -- what is asked again and again ------------------------------------------------------------------------------------


def test_what_one_session_asks_of_a_stage_through_another_does_not_queue_up_there() -> None:
    driver = Driver.open(0, TWO, MemoryJournal())
    asked = VoidAsk("c", [TopicRange(f"h/{number}", 1, 10) for number in range(100)])
    for _ in range(1_000):
        driver.handle_peer(1, asked, 0.0)

    assert driver.turns.count((STAGE, 1), "c") == WORKS_MAX
    assert driver.turns.dropped >= 500


def test_of_a_publishers_leases_one_is_looked_up_at_a_time_and_the_next_after_it() -> None:
    """Else all of them wait behind each other, and what is answered is what it had asked so long ago that it helps nobody."""
    driver = Driver.open(0, TWO, MemoryJournal())
    asks = [TopicRange(f"h/{number}", 1, 10) for number in range(2_000)]

    def answers() -> list[int]:
        while driver.serve():
            pass
        return [message.serial for _, message in driver.flush().sends if isinstance(message, LeaseReply)]

    for serial in (1, 2, 3):
        driver.handle_peer(1, LeaseRenewal("c", serial, 0, [0], asks), 0.0)
    assert answers() == [1]
    driver.handle_peer(1, LeaseRenewal("c", 4, 0, [0], asks), 0.0)
    assert answers() == [4]


def test_what_a_client_asks_of_its_own_stage_is_done_at_the_turn_of_its_identity() -> None:
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    driver.client_is_here("c", "somebody")
    asked = VoidAsk("c", [TopicRange(f"t{number}", 1, 10) for number in range(100)])
    driver.handle_subscriber("c", asked, 0.0, "somebody")

    assert driver.is_busy_with("somebody", "c")
    while driver.is_busy_with("somebody", "c"):
        driver.serve()
    assert [message.topic for _, message in driver.flush().tells] == [span.topic for span in asked.spans]


def test_the_same_numbers_are_looked_at_once_however_often_they_are_named() -> None:
    driver = Driver.open(0, Topology((StageSpec("only"),)), MemoryJournal())
    driver.client_is_here("c", "somebody")
    driver.handle_subscriber("c", VoidAsk("c", [TopicRange("t", 1, 10)] * 1_000), 0.0, "somebody")
    while driver.is_busy_with("somebody", "c"):
        driver.serve()
    assert len(driver.flush().tells) == 1


def test_what_is_asked_of_another_stage_is_asked_when_the_same_was_answered_before() -> None:
    driver = Driver.open(0, TWO, MemoryJournal())
    driver.stage.peers.unconfirmed.clear()
    driver.stage.peers.greeted[1] = True
    driver.client_is_here("c", "somebody")
    name = next(name for name in map(str, range(100)) if TWO.registrar(name) == 1)

    def sent() -> list[int]:
        while driver.serve():
            pass
        return [message.serial for _, message in driver.flush().sends if isinstance(message, Acked)]

    for serial in (1, 2, 3):
        driver.handle_subscriber("c", Acked(name, "c", serial, 1, {"h": serial}, serial), 0.0, "somebody")
    assert sent() == [1]
    assert driver.is_busy_with("somebody", "c")
    driver.handle_peer(1, AckSaved(name, "c", 1), 0.0)
    assert sent() == [2]
    driver.tick(5.0, 0.0)
    assert sent() == [3], "an answer that is lost holds it up no longer than that"
