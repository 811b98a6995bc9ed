"""Rows of a task on their way to stages, published once however often the task is run: what is said, and what ends a run."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import attrs
import pytest

from ordered_pubsub.core.client import writer as writer_module
from ordered_pubsub.core.client.session import REQUEST_BYTES_MAX
from ordered_pubsub.core.client.writer import (
    APART,
    READY,
    REQUEST_PARTS_MAX,
    TRIES_MAX,
    Reach,
    StageWriter,
    Steps,
    TaskWriter,
)
from ordered_pubsub.core.log.questions import Trace, Traced
from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Request
from ordered_pubsub.errors import AccessDenied, SessionExpired, UsageError

DIFFERS = "not those of the run before"
PARTS = (PublishAsk("a", 2),)


def writer(epoch: int = 1) -> StageWriter:
    return StageWriter("eu", "a", "session", epoch)


def connected(epoch: int = 1, traced: Traced | None = None) -> StageWriter:
    """One whose stage has said how far an earlier run has come: nowhere, unless told otherwise."""
    made = writer(epoch)
    made.connected()
    assert said(made) == [Trace(1)]
    made.traced(traced or Traced(1, 0, []))
    return made


def said(one: StageWriter) -> list[Trace | Request]:
    found, one.says = one.says, []
    return found


def request_of(one: StageWriter) -> Request:
    (found,) = said(one)
    assert isinstance(found, Request)
    return found


def answer(request: Request) -> Answer:
    parts = tuple(Publication(part.topic, part.count, 1.0) for part in request.parts if isinstance(part, PublishAsk))
    return Answer(request.client, request.epoch, request.sequence, parts)


def begin(one: StageWriter, row: int, digest: int = 7, is_last: bool = False) -> Request:
    one.begin(PARTS, row, digest, is_last)
    return request_of(one)


def test_each_request_comes_after_the_one_that_the_stage_took_before_it() -> None:
    one = connected()
    first = begin(one, 2)
    assert (first.sequence, first.after, first.done) == (Reach(2, 7).sequence, 0, 0)
    assert one.is_waiting

    one.answered(answer(first))
    assert not one.is_waiting
    assert [part.count for part in one.take_outcome()] == [2]
    second = begin(one, 4, 9, is_last=True)
    assert (second.after, second.done) == (first.sequence, first.sequence - 1)
    assert Reach.of(second.sequence) == Reach(4, 9, is_last=True)


def test_what_an_earlier_run_has_published_is_asked_for_again_and_is_no_news() -> None:
    one = connected(traced=Traced(1, 1, [Reach(4, 9).sequence, Reach(2, 7).sequence]))
    again = request_of(one)
    assert (again.sequence, again.after) == (Reach(4, 9).sequence, Reach(4, 9).sequence - 1)
    assert one.is_waiting

    one.answered(answer(again))
    assert not one.is_waiting
    assert [one.is_news(row) for row in (1, 4, 5)] == [False, False, True]


def test_what_was_refused_is_passed_and_asked_for_under_a_higher_sequence() -> None:
    published, refused = Reach(2, 7).sequence, Reach(4, 9).sequence
    one = connected(traced=Traced(1, 1, [published, refused]))
    last = request_of(one)
    assert last.sequence == refused
    one.answered(last.refused("forbidden", "no", taken=True))
    before = request_of(one)
    assert before.sequence == published
    one.answered(answer(before))

    request = begin(one, 4, 9)
    assert request.after == refused
    assert Reach.of(request.sequence) == Reach(4, 9, tries=1)
    with pytest.raises(AccessDenied, match=r"no \(forbidden\)"):
        one.answered(request.refused("forbidden", "no", taken=True))


def test_what_was_refused_too_often_is_not_asked_for_any_more() -> None:
    refused = Reach(4, 9, tries=TRIES_MAX).sequence
    one = connected(traced=Traced(1, 1, [refused]))
    one.answered(request_of(one).refused("forbidden", "no", taken=True))

    with pytest.raises(UsageError, match=f"refused {TRIES_MAX + 1} times"):
        one.begin(PARTS, 4, 9, False)


def test_a_line_that_is_lost_before_all_is_known_is_asked_everything_again() -> None:
    sequences = [Reach(2, 7).sequence, Reach(4, 9).sequence]
    one = connected(traced=Traced(1, 1, sequences))
    one.answered(request_of(one).refused("forbidden", "no", taken=True))
    one.lost()
    assert (one.state, said(one)) == (APART, [])

    one.connected()
    assert said(one) == [Trace(1)]
    one.traced(Traced(1, 1, sequences))
    assert request_of(one).sequence == sequences[-1]


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_has_no_answer_is_asked_for_again_on_the_next_line_the_same(is_taken: bool) -> None:
    one = connected()
    request = begin(one, 2)
    one.lost()
    one.connected()
    assert said(one) == [Trace(1)]
    one.traced(Traced(1, 1, [request.sequence] if is_taken else []))

    assert request_of(one) == request


def test_what_is_begun_without_a_line_is_asked_for_when_there_is_one() -> None:
    one = connected()
    one.lost()
    one.begin(PARTS, 2, 7, False)
    assert said(one) == []
    one.connected()
    said(one)
    one.traced(Traced(1, 0, []))

    assert request_of(one).sequence == Reach(2, 7).sequence


def test_without_anything_to_ask_for_another_line_is_enough() -> None:
    one = connected()
    one.lost()
    one.connected()
    said(one)
    one.traced(Traced(1, 0, []))

    assert (one.state, said(one), one.is_waiting) == (READY, [], False)


def test_a_run_ends_when_a_later_batch_was_written() -> None:
    one = writer(epoch=3)
    one.connected()
    with pytest.raises(SessionExpired, match="batch 2 is over: batch 4 was written already"):
        one.traced(Traced(1, 5, []))


def test_a_run_that_asks_when_a_later_batch_was_begun_ends_as_an_old_one() -> None:
    """Nothing was wrong with what it asked; another run of its session, in the next epoch, has come between."""
    one = connected()
    request = begin(one, 1)
    with pytest.raises(SessionExpired, match="was replaced"):
        one.answered(request.refused("session-replaced", "session 1 was replaced by session 2"))


def test_what_an_earlier_batch_has_published_is_not_this_one() -> None:
    one = connected(epoch=3, traced=Traced(1, 2, [Reach(4, 9).sequence]))

    assert (one.state, one.is_news(1)) == (READY, True)


def test_a_run_ends_when_another_one_of_its_task_has_gone_on() -> None:
    one = connected()
    begin(one, 2)
    one.lost()
    one.connected()
    with pytest.raises(SessionExpired, match="another run of it goes on"):
        one.traced(Traced(1, 1, [Reach(3, 1).sequence]))


def test_answers_to_something_else_change_nothing() -> None:
    one = connected(epoch=2)
    request = begin(one, 2)
    one.traced(Traced(1, 9, []))
    one.answered(Answer("session", 1, request.sequence, ()))
    one.answered(Answer("session", 2, request.sequence + 1, ()))

    assert one.is_waiting


@pytest.mark.parametrize(
    ("row", "digest", "is_here"), [(4, 8, True), (4, 9, False)], ids=["other rows", "on another stage"]
)
def test_rows_that_are_not_those_of_the_run_before_end_it(row: int, digest: int, is_here: bool) -> None:
    one = connected(traced=Traced(1, 1, [Reach(4, 9).sequence]))
    one.answered(answer(request_of(one)))
    one.check(4, 9, True)
    one.check(3, 1, True)
    with pytest.raises(UsageError, match=DIFFERS):
        one.check(row, digest, is_here)


def test_less_rows_or_more_than_were_published_end_a_run() -> None:
    one = connected(traced=Traced(1, 1, [Reach(4, 9, is_last=True).sequence]))
    one.answered(answer(request_of(one)))
    one.check_begin(4)
    one.check_end(4)
    for check in (lambda: one.is_news(5), lambda: one.check_end(3), lambda: one.check_begin(5)):
        with pytest.raises(UsageError, match=DIFFERS):
            check()


# -- a whole task ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class OneRow:
    topic: str
    size: int = 1


@attrs.define(eq=False)
class Stages:
    """Stages that answer at once, and note what they were asked for."""

    asked: list[list[tuple[str, int]]] = attrs.field(factory=list)
    task: TaskWriter = attrs.field(init=False)

    def name(self, row: OneRow, number: int, rank: int) -> None:
        pass

    def ask(self, rank: int, topic: str, rows: Sequence[OneRow]) -> PublishAsk:
        return PublishAsk(topic, len(rows))

    def serve(self, steps: Steps) -> None:
        for one in steps:
            if one.state == APART:
                one.connected()
            while one.is_waiting:
                for message in said(one):
                    if isinstance(message, Trace):
                        one.traced(Traced(1, 0, []))
                    else:
                        self.asked.append(
                            [(part.topic, part.count) for part in message.parts if isinstance(part, PublishAsk)]
                        )
                        one.answered(answer(message))

    def publish(self, rows: Sequence[OneRow]) -> list[list[tuple[str, int]]]:
        for row in rows:
            self.serve(self.task.put(row, zlib.crc32(row.topic.encode(), self.task.digest)))
        self.serve(self.task.finish())
        return self.asked


def stages(is_in_one_order: bool = False, events_max: int = 100) -> Stages:
    made = Stages()
    owners = {"a": 0, "b": 0, "c": 1}
    made.task = TaskWriter(
        lambda topic: owners.get(topic, 0),
        lambda rank, topic: StageWriter(str(rank), topic, f"session@{rank}", 1),
        made,
        is_in_one_order,
        events_max,
    )
    return made


def test_each_stage_gets_its_rows_together_each_topics_in_their_order() -> None:
    made = stages()
    rows = [OneRow(topic) for topic in "abcab"]

    assert made.publish(rows) == [[("a", 2), ("b", 2)], [("c", 1)]]
    assert [(part.topic, some) for part, some in made.task.published] == [
        ("a", [rows[0], rows[3]]),
        ("b", [rows[1], rows[4]]),
        ("c", [rows[2]]),
    ]


def test_in_one_order_what_goes_to_another_stage_waits_until_what_comes_before_has_its_place() -> None:
    asked = stages(is_in_one_order=True).publish([OneRow(topic) for topic in "aabcab"])

    assert asked == [[("a", 2), ("b", 1)], [("c", 1)], [("a", 1), ("b", 1)]]


def test_a_request_has_so_many_rows_parts_and_bytes_at_the_most() -> None:
    assert stages(events_max=2).publish([OneRow("a")] * 5) == [[("a", 2)], [("a", 2)], [("a", 1)]]
    parts = [
        len(parts) for parts in stages().publish([OneRow(f"t{number}") for number in range(REQUEST_PARTS_MAX + 1)])
    ]
    assert parts == [REQUEST_PARTS_MAX, 1]
    large = OneRow("a", REQUEST_BYTES_MAX // 2 + 1)
    assert stages().publish([large, large, OneRow("a", 2 * REQUEST_BYTES_MAX)]) == [[("a", 1)]] * 3


def test_a_task_has_so_many_rows_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "ROWS_MAX", 2)
    made = stages()
    with pytest.raises(UsageError, match="more than 2 rows: divide the batch into more parts"):
        made.publish([OneRow("a")] * 3)
