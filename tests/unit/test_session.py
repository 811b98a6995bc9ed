"""The client's side of requests: pipelined, batched, asked again, and never out of the client's own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ordered_pubsub.core.checking import BATCH_EVENTS_MAX
from ordered_pubsub.core.client.session import (
    CHANGES_IN_FLIGHT_MAX,
    PARTS_MERGED_MAX,
    REQUEST_BYTES_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    RESEND_AFTER_S,
    NoLogs,
    Session,
)
from ordered_pubsub.core.messages import Answer, ChangeAsk, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import WouldBlock

TWO = Topology((StageSpec("high", ("a", "b")), StageSpec("low", ("x",))))


def session(**others: int) -> Session:
    made = Session("c", TWO, **others)
    made.connected(0.0)
    return made


def sent(made: Session) -> list[Request]:
    requests, made.sends = made.sends, []
    return requests


def accept(made: Session, *topics: str) -> None:
    """Let the session see that it may publish on these."""
    for topic in topics:
        made.publish(topic, [topic], 0.0)
        for request in sent(made):
            made.handle_answer(answer(request), 0.0)


def shape(requests: list[Request]) -> list[list[tuple[str, int]]]:
    return [[(p.topic, p.count) for p in request.parts if isinstance(p, PublishAsk)] for request in requests]


def answer(request: Request, first: int = 1) -> Answer:
    parts = [Publication(p.topic, p.count, 0.0, first) for p in request.parts if isinstance(p, PublishAsk)]
    return Answer("c", 1, request.sequence, list(parts))


def test_publications_that_one_stage_takes_are_pipelined() -> None:
    made = session()
    for topic in "aba":
        made.publish(topic, [1], 0.0)
    requests = sent(made)
    assert shape(requests) == [[("a", 1)], [("b", 1)], [("a", 1)]]
    assert [(r.sequence, r.after) for r in requests] == [(1, 0), (2, 1), (3, 2)]


def test_a_publication_for_another_stage_waits_until_those_before_it_are_complete() -> None:
    made = session()
    made.publish("a", [1], 0.0)
    made.publish("x", [2], 0.0)
    (first,) = sent(made)
    made.handle_answer(answer(first), 0.1)
    (second,) = sent(made)
    assert (shape([second]), second.sequence, second.after, second.done) == ([[("x", 1)]], 2, 0, 1)


def test_what_waits_is_merged_into_one_operation_with_a_batch_for_each_run() -> None:
    made = session()
    accept(made, "a", "x")
    made.publish("a", [0], 0.0)
    for number, topic in enumerate("xxxaax", start=1):
        made.publish(topic, [number], 0.0)
    (first,) = sent(made)
    made.handle_answer(answer(first), 0.0)
    (merged,) = sent(made)
    assert shape([merged]) == [[("x", 3), ("a", 2), ("x", 1)]]
    (outcome,) = made.handle_answer(answer(merged), 0.0)
    assert outcome.asked.items == [[1, 2, 3], [4, 5], [6]]


def test_runs_that_wait_are_merged_however_they_were_queued() -> None:
    made = session()
    accept(made, "a", "b", "x")
    made.publish("a", [0], 0.0)
    made.publish_runs([("x", [1]), ("a", [2]), ("b", [3])], 0.0)
    made.publish_runs([("b", [4, 5]), ("a", [6]), ("x", [7])], 0.0)
    (first,) = sent(made)
    made.handle_answer(answer(first), 0.0)
    (merged,) = sent(made)
    assert shape([merged]) == [[("x", 1), ("a", 1), ("b", 3), ("a", 1), ("x", 1)]]
    (outcome,) = made.handle_answer(answer(merged), 0.0)
    assert outcome.asked.items == [[1], [2], [3, 4, 5], [6], [7]]


def test_an_operation_has_so_many_parts_and_events_at_most() -> None:
    made = session()
    accept(made, "a", "b")
    made.publish_runs([("ab"[number % 2], [number]) for number in range(PARTS_MERGED_MAX + 2)], 0.0)
    assert [len(parts) for parts in shape(sent(made))] == [PARTS_MERGED_MAX, 2]
    made.publish_runs([("a", [0] * (BATCH_EVENTS_MAX - 1)), ("b", [1]), ("a", [2])], 0.0)
    assert shape(sent(made)) == [[("a", BATCH_EVENTS_MAX - 1), ("b", 1)], [("a", 1)]]


def test_what_may_be_refused_takes_nothing_else_with_it() -> None:
    made = session()
    accept(made, "a")
    made.publish_runs([("a", [1]), ("b", [2]), ("a", [3])], 0.0)
    allowed, unknown, more = sent(made)
    assert shape([allowed, unknown, more]) == [[("a", 1)], [("b", 1)], [("a", 1)]]
    made.handle_answer(answer(allowed), 0.0)
    (refused,) = made.handle_answer(unknown.refused("forbidden", "no", taken=True), 0.0)
    assert (refused.asked.items, refused.refusal is not None) == ([[2]], True)
    assert [outcome.asked.items for outcome in made.handle_answer(answer(more), 0.0)] == [[[3]]]
    assert sent(made) == []


def test_a_topic_that_was_refused_goes_alone_until_it_is_accepted() -> None:
    made = session()
    accept(made, "a", "b")
    made.publish_runs([("a", [1]), ("b", [2])], 0.0)
    (merged,) = sent(made)
    made.handle_answer(merged.refused("forbidden", "no more", taken=True), 0.0)
    made.publish_runs([("a", [3]), ("b", [4])], 0.0)
    assert shape(sent(made)) == [[("a", 1)], [("b", 1)]]


def test_so_many_changes_are_under_way_at_most_and_publications_do_not_wait_for_them() -> None:
    made = session()
    for number in range(CHANGES_IN_FLIGHT_MAX + 2):
        made.change(ChangeAsk(f"s{number}", ("a",)), 0.0)
    requests = sent(made)
    assert [request.parts[0].subscription for request in requests] == [f"s{n}" for n in range(CHANGES_IN_FLIGHT_MAX)]  # type: ignore[union-attr]
    made.handle_answer(Answer("c", 1, requests[5].sequence, []), 0.0)
    (next_one,) = sent(made)
    assert next_one.parts[0].subscription == f"s{CHANGES_IN_FLIGHT_MAX}"  # type: ignore[union-attr]


def test_what_is_done_at_one_stage_does_not_depend_on_another_one() -> None:
    made = session()
    made.change(ChangeAsk("s1", ("a",)), 0.0)
    (stuck,) = sent(made)
    other = "a" if TWO.registrar("s1") == 1 else "x"
    for sequence in (2, 3):
        made.publish(other, [sequence], 0.0)
        (request,) = sent(made)
        assert (request.sequence, request.done) == (sequence, sequence - 1)
        made.handle_answer(answer(request), 0.0)
    assert stuck.done == 0


def test_who_asks_again_says_what_is_done_by_now() -> None:
    made = session()
    for number in range(3):
        made.publish("a", [number], 0.0)
    first, second, third = sent(made)
    assert third.done == 0
    made.handle_answer(answer(first), 0.0)
    made.handle_answer(answer(second), 0.0)
    made.tick(RESEND_AFTER_S)
    (again,) = sent(made)
    assert (again.sequence, again.after, again.done) == (3, 2, 2)


def test_what_was_published_together_keeps_to_itself() -> None:
    made = session()
    made.publish("a", [0], 0.0)
    made.publish("x", [1], 0.0)
    made.publish_together([("x", [2]), ("a", [3])], 0.0)
    made.publish("x", [4], 0.0)
    (first,) = sent(made)
    made.handle_answer(answer(first), 0.0)
    assert shape(sent(made)) == [[("x", 1)], [("x", 1), ("a", 1)], [("x", 1)]]


def test_behind_unfinished_ones_only_what_the_same_stage_takes_is_merged() -> None:
    """A request that another stage takes could overtake them, if they have to be asked again."""
    made = session()
    for number in range(REQUESTS_IN_FLIGHT_MAX + 1):
        made.publish("a", [number], 0.0)
    made.publish("x", [0], 0.0)
    sends = sent(made)
    made.handle_answer(answer(sends[0]), 0.0)
    assert shape(sent(made)) == [[("a", 1)]]


def test_everything_unfinished_is_asked_again_unchanged_and_in_order() -> None:
    made = session()
    for topic in "ab":
        made.publish(topic, [1], 0.0)
    first = sent(made)
    made.tick(RESEND_AFTER_S - 0.1)
    assert sent(made) == []
    made.tick(RESEND_AFTER_S)
    assert sent(made) == first
    made.disconnected()
    made.publish("a", [1], 3.0)
    assert sent(made) == []
    made.connected(4.0)
    assert sent(made)[:2] == first


def test_an_answer_that_comes_twice_counts_once() -> None:
    made = session()
    made.publish("a", [1], 0.0)
    (request,) = sent(made)
    assert len(made.handle_answer(answer(request), 0.0)) == 1
    assert made.handle_answer(answer(request), 0.0) == []
    assert made.is_idle


def test_a_full_pipeline_says_so_and_takes_nothing() -> None:
    made = Session("c", TWO, pipeline_events_max=3)
    made.publish("a", [1, 2, 3], 0.0)
    with pytest.raises(WouldBlock, match="3 events wait to be numbered and 1 more would pass the limit of 3"):
        made.publish("a", [4], 0.0)
    assert made.unfinished_events == 3


def test_requests_in_flight_are_bounded() -> None:
    made = session()
    for number in range(REQUESTS_IN_FLIGHT_MAX + 20):
        made.publish("ab"[number % 2], [number], 0.0)
    assert len(sent(made)) == REQUESTS_IN_FLIGHT_MAX


def test_a_refused_request_leaves_no_gap_in_the_chain() -> None:
    made = session()
    for topic in "aba":
        made.publish(topic, [1], 0.0)
    sent_requests = sent(made)
    made.handle_answer(answer(sent_requests[0]), 0.0)
    (outcome,) = made.handle_answer(Refusal("c", 1, 2, "bad-request", "no"), 0.0)
    assert outcome.refusal is not None
    (again,) = sent(made)
    assert (again.sequence, again.after) == (3, 1)
    made.publish("b", [1], 0.0)
    (following,) = sent(made)
    assert (following.sequence, following.after) == (4, 3)


def test_what_follows_a_refused_request_is_sent_when_there_is_a_home_again() -> None:
    made = session()
    for topic in "ab":
        made.publish(topic, [1], 0.0)
    sent(made)
    made.disconnected()
    made.handle_answer(Refusal("c", 1, 1, "bad-request", "no"), 0.0)
    assert sent(made) == []

    made.connected(1.0)
    assert [(request.sequence, request.after) for request in sent(made)] == [(2, 0)]


@pytest.mark.parametrize(("client", "epoch"), [("d", 1), ("c", 2)])
def test_an_answer_to_another_session_is_none(client: str, epoch: int) -> None:
    made = session()
    made.publish("a", [1], 0.0)
    sent(made)
    assert made.handle_answer(Answer(client, epoch, 1, [Publication("a", 1, 0.0, 1)]), 0.0) == []
    assert made.unfinished_events == 1


def test_what_has_too_many_bytes_for_a_request_is_cut_into_halves_but_one_event_never() -> None:
    class Heavy(NoLogs):
        def weigh(self, topic: str, items: Sequence[Any]) -> int:
            return sum(items)

    made = Session("c", TWO, packer=Heavy())
    made.connected(0.0)
    half = REQUEST_BYTES_MAX // 2
    made.publish("a", [half, half, half, 4 * half], 0.0)

    assert shape(sent(made)) == [[("a", 2)], [("a", 1)], [("a", 1)]]


def test_of_very_many_topics_it_is_forgotten_which_were_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they go alone once more, and nothing is lost by that."""
    monkeypatch.setattr("ordered_pubsub.core.client.session.ACCEPTED_REMEMBERED_MAX", 2)
    made = session()
    accept(made, "a", "b", "x")
    made.publish_runs([("a", [1]), ("b", [2])], 0.0)
    assert shape(sent(made)) == [[("a", 1)], [("b", 1)]]


def test_what_has_no_answer_is_said_in_words() -> None:
    made = session()
    assert made.waiting_for() == "nothing"
    made.publish("a", [1, 2], 0.0)
    made.publish("x", [3], 0.0)
    assert made.waiting_for() == "1 requests at stage high, 1 events queued"


def test_a_refusal_that_has_its_place_in_the_chain_leaves_no_gap_to_close() -> None:
    made = session()
    for topic in "ab":
        made.publish(topic, [1], 0.0)
    sent(made)
    made.handle_answer(Refusal("c", 1, 1, "ended", "no", taken=True), 0.0)
    assert sent(made) == []


def test_outcomes_of_publications_come_in_the_order_of_their_requests() -> None:
    """Else a subscriber of b could know of it, and publish what follows, before a has its place."""
    made = session()
    for topic in "aba":
        made.publish(topic, [topic], 0.0)
    first, second, third = sent(made)
    assert made.handle_answer(answer(second), 0.0) == []
    assert [outcome.sequence for outcome in made.handle_answer(answer(first), 0.0)] == [1, 2]
    assert [outcome.sequence for outcome in made.handle_answer(answer(third), 0.0)] == [3]
    assert made.is_idle


def test_changes_are_sent_at_once_but_keep_their_own_order() -> None:
    made = session()
    made.publish("a", [1], 0.0)
    made.publish("x", [2], 0.0)
    made.change(ChangeAsk("s", ("a",)), 0.0)
    made.change(ChangeAsk("s", ("b",)), 0.0, together=[("a", [3])])
    made.change(ChangeAsk("s", (), ("a",)), 0.0)
    requests = sent(made)
    asks = [part for request in requests for part in request.parts if isinstance(part, ChangeAsk)]
    assert asks == [ChangeAsk("s", ("a",))]
    assert "2 requests" in made.waiting_for()


def test_publications_together_with_a_change_keep_to_themselves() -> None:
    made = session()
    made.change(ChangeAsk("s", ("b",)), 0.0, together=[("a", [3])])
    made.publish("a", [4], 0.0)
    assert len(sent(made)) == 1
