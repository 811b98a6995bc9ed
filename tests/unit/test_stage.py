"""One stage: what it takes, what it refuses, and that a refused input changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ordered_pubsub.core.checking import BATCH_EVENTS_MAX
from ordered_pubsub.core.messages import (
    EVERYBODY_ASKS,
    MARKS_MAX,
    Answer,
    ChangeAsk,
    Done,
    FrameTaken,
    Hello,
    Launch,
    LinkAck,
    LinkFrame,
    Operation,
    Pass,
    Publication,
    PublishAsk,
    Refusal,
    Relay,
    Request,
    RequestTaken,
    TopicsReleased,
    TopologyOffered,
)
from ordered_pubsub.core.order.registrar import ORDERED_TOPICS_MAX, SUBSCRIPTIONS_MAX, TOPICS_MAX
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.journal import decode_input
from ordered_pubsub.core.stage.snapshots import SnapshotPolicy
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import JournalDamaged, JournalError, NotOwner, ProtocolError, TopologyMismatch

ALONE = Topology((StageSpec("only"),))
THREE = Topology((StageSpec("high", ("h",)), StageSpec("middle", ("m",)), StageSpec("low", ("l",))))


def alone() -> Stage:
    stage = Stage.restore(0, ALONE, None, [])
    stage.take_effects()
    return stage


def in_the_middle() -> Stage:
    """The middle one of three, greeted by its peers."""
    stage = Stage.restore(1, THREE, None, [])
    for peer in (0, 2):
        stage.connected(peer)
        stage.handle_peer(peer, Hello(THREE.fingerprint, 0), 0.0)
    stage.take_effects()
    return stage


def publish(sequence: int, topic: str = "t", count: int = 1, client: str = "c", **others: Any) -> Request:
    fields = {"epoch": 1, "after": sequence - 1, "done": 0, **others}
    return Request(client=client, sequence=sequence, parts=(PublishAsk(topic, count),), **fields)


def ask(stage: Stage, request: Request) -> list[Answer | Refusal]:
    stage.handle_request(request, 1.0)
    return stage.take_effects().replies


def first_numbers(answers: list[Answer | Refusal]) -> list[int]:
    return [part.first for a in answers if isinstance(a, Answer) for part in a.parts if isinstance(part, Publication)]


def operation(topic: str, bottom: int, top: int, first: int = 0) -> Operation:
    return Operation("c", 1, 1, 0, bottom, bottom, top, [Publication(topic, 1, 0.0, first)])


# -- requests -------------------------------------------------------------------------------------------------------------


def test_numbers_of_a_topic_have_no_holes() -> None:
    stage = alone()
    answers = [answer for n, count in enumerate((1, 3, 1), start=1) for answer in ask(stage, publish(n, count=count))]
    assert first_numbers(answers) == [1, 2, 5]


def test_a_request_that_is_asked_again_gets_the_first_answer() -> None:
    stage = alone()
    first = ask(stage, publish(1))
    assert ask(stage, publish(1)) == first
    assert first_numbers(ask(stage, publish(2))) == [2]


def test_a_request_that_overtakes_an_earlier_one_waits_for_it() -> None:
    stage = alone()
    assert ask(stage, publish(2)) == []
    assert first_numbers(ask(stage, publish(1))) == [1]
    assert first_numbers(ask(stage, publish(2))) == [2]


def test_an_answer_that_the_client_is_done_with_is_forgotten() -> None:
    stage = alone()
    ask(stage, publish(1))
    ask(stage, publish(2, done=1))
    assert list(stage.state.requests.sessions["c"].answers) == [2]
    assert ask(stage, publish(1)) == []


def test_a_request_of_a_replaced_session_is_refused() -> None:
    stage = alone()
    ask(stage, publish(1))
    ask(stage, publish(1, epoch=2))
    (refusal,) = ask(stage, publish(2, after=1))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "session-replaced"
    assert "session 1 of client 'c' was replaced by session 2" in refusal.reason


def test_a_request_that_continues_a_forgotten_session_is_refused_as_expired() -> None:
    (refusal,) = ask(alone(), publish(5, after=4, done=4))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "session-expired"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "has 1 to 256 parts, not 0"),
        ((PublishAsk("", 1),), "must not be empty"),
        ((PublishAsk("x" * 256, 1),), "at most 255"),
        ((PublishAsk("a\tb", 1),), "control character"),
        ((PublishAsk("a", 0),), f"1 to {BATCH_EVENTS_MAX} events, not 0"),
        ((PublishAsk("a", BATCH_EVENTS_MAX + 1),), "events, not 100001"),
        ((ChangeAsk("s", ("a/*",)),), "patterns are not accepted here yet"),
        ((ChangeAsk("s", ("a",), weight=7),), "is 0, 1 or 2, not 7"),
        ((ChangeAsk("s", ("a",)), ChangeAsk("r", ("a",))), "changes at most one subscription"),
    ],
)
def test_a_bad_request_is_refused_with_what_is_wrong_and_changes_nothing(parts: Any, says: str) -> None:
    stage = alone()
    before = stage.snapshot()
    (refusal,) = ask(stage, Request("c", 1, 1, 0, 0, parts))
    assert isinstance(refusal, Refusal)
    assert says in refusal.reason
    assert stage.snapshot() == before
    assert first_numbers(ask(stage, publish(1))) == [1]


def test_somebody_elses_subscription_cannot_be_changed() -> None:
    stage = alone()
    ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("a",)),)))
    before = [stage.state.registrar.subscriptions["s"].topics, dict(stage.state.groups.holdings)]
    (refusal,) = ask(stage, Request("thief", 1, 1, 0, 0, (ChangeAsk("s", (), ("a",)),)))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "not-yours"
    assert [stage.state.registrar.subscriptions["s"].topics, dict(stage.state.groups.holdings)] == before


def test_what_was_refused_once_is_refused_again_whatever_has_happened_since() -> None:
    stage = alone()
    ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("a",)),)))
    refused = ask(stage, Request("d", 1, 1, 0, 0, (ChangeAsk("s", ("b",)),)))
    ask(stage, Request("c", 1, 2, 1, 0, (ChangeAsk("s", ends=True),)))
    assert ask(stage, Request("d", 1, 1, 0, 0, (ChangeAsk("s", ("b",)),))) == refused
    assert first_numbers(ask(stage, publish(2, client="d"))) == [1]


def test_nothing_comes_behind_the_end_of_a_subscription() -> None:
    stage = in_the_middle()
    name = next(f"s{n}" for n in range(99) if THREE.registrar(f"s{n}") == 1)
    asks = [ChangeAsk(name, ("h", "m")), ChangeAsk(name, ends=True), ChangeAsk(name, ("m",))]
    for number, change in enumerate(asks, start=1):
        stage.handle_request(Request("c", 1, number, number - 1, 0, (change,)), 0.0)
    (refusal,) = stage.take_effects().replies
    assert isinstance(refusal, Refusal)
    assert refusal.code == "ended"


@pytest.mark.parametrize(("weight", "topics_max"), [(0, TOPICS_MAX), (2, ORDERED_TOPICS_MAX)])
def test_a_subscription_cannot_hold_more_topics_than_it_may(weight: int, topics_max: int) -> None:
    stage = alone()
    first = ChangeAsk("s", tuple(f"t{n}" for n in range(topics_max // 2)), weight=weight)
    ask(stage, Request("c", 1, 1, 0, 0, (first,)))
    second = ChangeAsk("s", tuple(f"u{n}" for n in range(topics_max // 2 + 1)), weight=weight)
    (refusal,) = ask(stage, Request("c", 1, 2, 1, 0, (second,)))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "too-many-topics"
    assert f"more than {topics_max} topics" in refusal.reason


def test_changes_that_wait_for_their_turn_count() -> None:
    """Asked while another one is under way, each by itself would fit."""
    stage = in_the_middle()
    name = next(f"s{n}" for n in range(99) if THREE.registrar(f"s{n}") == 1)
    half = ORDERED_TOPICS_MAX // 2
    asks = [ChangeAsk(name, tuple(f"{letter}{n}" for n in range(half))) for letter in "xyz"]
    for number, change in enumerate(asks, start=1):
        stage.handle_request(Request("c", 1, number, number - 1, 0, (change,)), 0.0)
    exchange = ChangeAsk(name, tuple(f"z{n}" for n in range(half)), tuple(f"x{n}" for n in range(half)))
    stage.handle_request(Request("c", 1, 4, 3, 0, (exchange,)), 0.0)
    (refusal,) = stage.take_effects().replies
    assert isinstance(refusal, Refusal)
    assert (refusal.sequence, refusal.code) == (3, "too-many-topics")
    assert len(stage.state.registrar.subscriptions[name].waiting) == 2


def test_what_is_removed_and_added_at_once_is_held_and_counts() -> None:
    stage = alone()
    topics = tuple(f"t{n}" for n in range(ORDERED_TOPICS_MAX + 1))
    (refusal,) = ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", topics, topics),)))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "too-many-topics"


def test_the_end_of_a_subscription_leaves_nothing_whatever_it_would_add() -> None:
    stage = alone()
    ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("a",)),)))
    (answer,) = ask(stage, Request("c", 1, 2, 1, 0, (ChangeAsk("s", ("b",), ends=True),)))
    assert isinstance(answer, Answer)
    assert stage.state.groups.holdings == {}
    assert stage.state.registrar.subscriptions["s"].leaving == {"a": (0, 2)}  # it may still need what came before

    stage.handle_passed(TopicsReleased("s", ("a",)))
    assert stage.state.registrar.subscriptions == {}


def test_a_client_has_so_many_subscriptions_at_a_stage_also_after_a_crash_and_room_again_when_one_ends() -> None:
    journal = MemoryJournal()
    driver = Driver.open(0, ALONE, journal)
    for number in range(1, SUBSCRIPTIONS_MAX + 1):
        change = ChangeAsk(f"s{number}", ("a",), weight=0)
        driver.handle_request(Request("c", 1, number, number - 1, number - 1, (change,)), 0.0)
    driver.flush()
    stage = Driver.open(0, ALONE, journal).stage
    last = SUBSCRIPTIONS_MAX
    (refusal,) = ask(stage, Request("c", 1, last + 1, last, last, (ChangeAsk("more", ("a",)),)))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, f"may have {SUBSCRIPTIONS_MAX} subscriptions" in refusal.reason) == ("limit", True)
    asks = [ChangeAsk("s1", ("b",)), ChangeAsk("s1", ends=True), ChangeAsk("another", ("a",))]
    answers = [ask(stage, Request("c", 1, last + n, last + n - 1, last, (a,))) for n, a in enumerate(asks, start=2)]
    others = ask(stage, Request("d", 1, 1, 0, 0, (ChangeAsk("d1", ("a",)),)))
    assert [type(answer) for (answer,) in [*answers, others]] == [Answer] * 4


def test_what_a_stage_remembers_of_subscriptions_goes_with_them() -> None:
    stage = alone()
    ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("a",)),)))
    assert stage.state.registrar.subscriptions["s"].planned is None
    ask(stage, Request("c", 1, 2, 1, 0, (ChangeAsk("s", ends=True),)))
    stage.handle_passed(TopicsReleased("s", ("a",)))
    assert (stage.state.registrar.held, stage.state.registrar.lingering) == ({}, {})


def test_thousands_of_changes_that_waited_for_their_turn_start_one_after_the_other() -> None:
    """They wait for one that travels elsewhere, then each is complete here at once."""
    stage = in_the_middle()
    name = next(f"s{n}" for n in range(99) if THREE.registrar(f"s{n}") == 1)
    asks = [ChangeAsk(name, ("h", "m")), *[ChangeAsk(name, ("m",), ("h",))] * 2000]
    for number, change in enumerate(asks, start=1):
        stage.handle_request(Request("c", 1, number, number - 1, 0, (change,)), 0.0)
    (passed,) = [message.message for _, message in stage.take_effects().sends if isinstance(message, LinkFrame)]
    stage.handle_peer(0, LinkFrame(1, Done(passed.operation)), 0.0)
    (removal,) = [message.message for _, message in stage.take_effects().sends if isinstance(message, LinkFrame)]
    stage.handle_peer(0, LinkFrame(2, Done(removal.operation)), 0.0)
    answers = [reply for reply in stage.take_effects().replies if isinstance(reply, Answer)]
    assert [answer.sequence for answer in answers] == list(range(3, 2002))


# -- peers ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "message", "error", "says"),
    [
        (7, LinkAck(1), ProtocolError, "has no peer of rank 7"),
        (2, Relay(2, publish(1, "h")), NotOwner, "came to stage 'middle', but stage 'high' takes it"),
        (2, LinkAck(9), ProtocolError, "stage 'low' acknowledges frame 9; 0 were sent to it"),
        (0, LinkFrame(1, Pass(operation("l", 2, 0))), ProtocolError, "only the neighbour below, 2, does that"),
        (2, LinkFrame(1, Launch(operation("l", 2, 2))), NotOwner, "ends at stage 2, below stage 1"),
        (2, LinkFrame(1, Pass(operation("l", 2, 0))), NotOwner, "publishes on 'l' without a number"),
        (2, Hello(THREE.fingerprint, 3), JournalDamaged, "has 3 frames of this stage, .*an older copy of its journal"),
        (
            2,
            Hello(THREE.fingerprint, 0, b"", 1),
            JournalDamaged,
            "told that 1 of its frames .* there are only 0: .*older copy",
        ),
        (2, Hello("another", 0), TopologyMismatch, "stage 'low' has another topology"),
    ],
)
def test_what_a_peer_must_not_say_is_refused_and_changes_nothing(
    peer: int, message: Any, error: type[Exception], says: str
) -> None:
    stage = in_the_middle()
    before = stage.snapshot()
    with pytest.raises(error, match=says):
        stage.handle_peer(peer, message, 0.0)
    assert stage.snapshot() == before
    assert not stage.has_effects


def test_frames_are_taken_in_their_order_and_once() -> None:
    stage = in_the_middle()
    frames = [LinkFrame(n, Pass(operation("l", 2, 1, first=n))) for n in (1, 2)]
    for frame in (frames[1], frames[0], frames[0], frames[1]):
        stage.handle_peer(2, frame, 0.0)
    assert [op.parts[0].first for op in stage.take_effects().handled] == [1, 2]  # type: ignore[union-attr]


def test_what_is_not_acknowledged_is_sent_again_after_a_while_and_at_a_greeting() -> None:
    stage = in_the_middle()
    stage.handle_peer(2, LinkFrame(1, Pass(operation("l", 2, 0, first=1))), 0.0)
    (passed,) = [send for send in stage.take_effects().sends if isinstance(send[1], LinkFrame)]
    stage.tick(0.0)
    assert stage.take_effects().sends == []
    stage.tick(10.0)
    assert stage.take_effects().sends == [passed]
    stage.connected(0)
    stage.handle_peer(0, Hello(THREE.fingerprint, 0), 11.0)
    assert passed in stage.take_effects().sends
    stage.handle_peer(0, LinkAck(1), 12.0)
    stage.tick(30.0)
    assert stage.take_effects().sends == []


def test_a_peer_that_has_forgotten_what_it_acknowledged_is_refused() -> None:
    stage = in_the_middle()
    stage.handle_peer(2, LinkFrame(1, Pass(operation("l", 2, 0, first=1))), 0.0)
    stage.handle_peer(0, LinkAck(1), 0.0)
    with pytest.raises(ProtocolError, match="its journal was lost"):
        stage.handle_peer(0, Hello(THREE.fingerprint, 0), 0.0)


def test_a_stage_that_has_offered_a_topology_cannot_go_back_without_its_peers() -> None:
    """Its peer may have opened under the offer; both would begin the numbers of a topic that moved."""
    before = Topology((StageSpec("high", ("t",)), StageSpec("low")))
    after = Topology((StageSpec("high"), StageSpec("low", ("t",))))
    records: list[bytes] = []

    def start(topology: Topology) -> Stage:
        stage = Stage.restore(0, topology, None, records)
        records.extend(stage.take_effects().journal)
        return stage

    stage = start(before)
    stage.handle_peer(1, Hello(before.fingerprint, 0), 0.0)
    records.extend(stage.take_effects().journal)
    assert stage.is_open
    assert start(before).is_open
    assert not start(after).is_open
    assert not start(before).is_open


def test_nothing_is_taken_before_all_peers_were_seen_with_the_same_topology() -> None:
    stage = Stage.restore(1, THREE, None, [])
    stage.connected(2)
    stage.handle_peer(2, Hello(THREE.fingerprint, 0), 0.0)
    assert not stage.is_open
    assert ask(stage, publish(1, "m")) == []
    stage.connected(0)
    stage.handle_peer(0, Hello(THREE.fingerprint, 0), 0.0)
    assert stage.is_open
    assert first_numbers(ask(stage, publish(1, "m"))) == [1]


# -- marks ----------------------------------------------------------------------------------------------------------------


def test_the_next_event_of_a_changed_subscriptions_topics_carries_its_mark_once() -> None:
    stage = alone()
    ask(stage, Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("t",)),)))
    answers = ask(stage, publish(2)) + ask(stage, publish(3))
    marks = [part.marks for a in answers if isinstance(a, Answer) for part in a.parts if isinstance(part, Publication)]
    assert [[(mark.subscription, mark.version) for mark in found] for found in marks] == [[("s", 1)], []]


def test_too_many_marks_become_one_that_asks_everybody() -> None:
    stage = alone()
    for n in range(1, MARKS_MAX + 3):
        ask(stage, Request(f"c{n}", 1, 1, 0, 0, (ChangeAsk(f"s{n}", ("t",)),)))
    (answer,) = ask(stage, publish(1))
    assert isinstance(answer, Answer)
    part = answer.parts[0]
    assert isinstance(part, Publication)
    assert part.marks == [EVERYBODY_ASKS]


# -- restart --------------------------------------------------------------------------------------------------------------


def busy(journal: MemoryJournal, snapshot_after_records: int) -> Driver:
    driver = Driver.open(0, ALONE, journal, snapshots=SnapshotPolicy(snapshot_after_records, growth=0))
    driver.handle_request(Request("c", 1, 1, 0, 0, (ChangeAsk("s", ("t", "u")),)), 0.0)
    for n in range(2, 9):
        driver.handle_request(publish(n, "tu"[n % 2]), float(n))
        driver.flush()
    return driver


@pytest.mark.parametrize("snapshot_after_records", [1, 3, 1000])
def test_a_stage_that_starts_again_is_the_one_that_stopped(snapshot_after_records: int) -> None:
    journal = MemoryJournal()
    before = busy(journal, snapshot_after_records).stage
    after = Driver.open(0, ALONE, journal).stage
    assert after.snapshot() == before.snapshot()
    assert ask(after, publish(8, "t")) == ask(before, publish(8, "t"))


def test_a_journal_of_another_stage_is_refused() -> None:
    with pytest.raises(JournalError, match="belongs to the stage of rank 1, not 0"):
        Stage.restore(0, THREE, in_the_middle().snapshot(), [])


def test_a_journal_that_does_not_begin_at_its_beginning_is_refused() -> None:
    journal = MemoryJournal()
    busy(journal, 1000)
    assert isinstance(decode_input(journal.records[0]), TopologyOffered)
    assert isinstance(decode_input(journal.records[2]), RequestTaken)
    with pytest.raises(JournalError, match="must begin with the record that opened it"):
        Stage.restore(0, ALONE, None, journal.records[2:])


def test_a_snapshot_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(JournalDamaged, match="snapshot"):
        Stage.restore(0, ALONE, b"\x93nonsense", [])


def test_what_a_stage_took_is_journalled_before_it_is_answered() -> None:
    stage = in_the_middle()
    stage.handle_peer(2, LinkFrame(1, Pass(operation("l", 2, 0, first=1))), 0.0)
    effects = stage.take_effects()
    assert [type(decode_input(record)) for record in effects.journal] == [FrameTaken]
    assert [type(message) for _, message in effects.sends] == [LinkFrame, LinkAck]
