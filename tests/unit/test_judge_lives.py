"""The judge of trials in which everybody is killed: what may be missing then, and what may not."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub import Receipt
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.processes import ProcessError, Starter
from ordered_pubsub.testing.trial.judge import Verdict, judge
from ordered_pubsub.testing.trial.process import LineProcess, TrialWorkerProcess
from ordered_pubsub.testing.trial.results import Results, lines_of
from ordered_pubsub.testing.trial.surviving import PublishingOn

SENT = "? a p-1\n? b p-2\n? a p-3\n? a p-4\n"
RECEIPTS = "a 1 p-1\nb 1 p-2\na 2 p-3\n"
GOOD = "@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\na 2 p-3 3\n"


def judged(folder: Path, *logs: str, receipts: str = SENT + RECEIPTS) -> Verdict:
    (folder / "receipts").write_text(receipts)
    for number, text in enumerate(logs):
        (folder / f"log{number}").write_text(text)
    return judge([folder / "receipts"], [folder / f"log{number}" for number in range(len(logs))], [])


# -- publishers -----------------------------------------------------------------------------------------------------------


def test_what_has_no_receipt_need_not_be_notified(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD)

    assert verdict.is_good
    assert (verdict.published, verdict.without_receipt) == (3, 0)


def test_what_has_no_receipt_may_be_notified_of_whoever_holds_the_topic(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD + "a 3 p-4 4\n", GOOD + "a 3 p-4 4\n", GOOD)

    assert verdict.is_good
    assert (verdict.published, verdict.without_receipt) == (3, 1)


@pytest.mark.parametrize(
    ("logs", "fault"),
    [
        (["@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\n"], "notified 1, differing from place 2"),
        ([GOOD + "a 3 p-4 4\na 4 p-4 5\n"], "p-4 was notified after p-4"),
        ([GOOD + "a 3 p-4 4\n", "@ a 3\na 4 p-4 1\n"], "p-4 was notified as a 4, and its receipt says ('a', 3)"),
        ([GOOD + "a 3 p-5 4\n"], "p-5 was notified as a 3, and its receipt says None"),
        ([GOOD + "b 2 p-4 4\n"], "p-4 was notified as b 2, and its receipt says None"),
        ([GOOD + "a 4 p-4 4\n"], "differing from place 3"),
        (["@ a 1\na 2 p-4 1\n"], "number 2 of a was given to p-3 and to p-4"),
    ],
)
def test_a_fault_of_what_was_published_is_named(tmp_path: Path, logs: list[str], fault: str) -> None:
    faults = judged(tmp_path, *logs).faults

    assert any(fault in found for found in faults), faults


def test_a_number_may_have_gone_to_what_nobody_has_heard_of_and_no_further_one(tmp_path: Path) -> None:
    one = judged(tmp_path, receipts="? a p-1\n? a p-2\na 2 p-2\n")
    two = judged(tmp_path, receipts="? a p-1\n? a p-2\na 3 p-2\n")

    assert one.is_good
    assert two.faults == ["number 2 of a was skipped"]


# -- subscribers without a name -------------------------------------------------------------------------------------------


def test_a_life_ends_anywhere_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "@ a 0\n@ b 0\na 1 p-1 1\n=\n=\n@ a 1\na 2 p-3 1\n", GOOD)

    assert verdict.is_good
    assert (verdict.notified, verdict.compared_pairs) == (5, 1)


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("@ a 0\na 2 p-3 1\n=\n", "differing from place 1 on: [2] instead of [1, 2]"),
        ("@ a 0\na 1 p-1 1\na 1 p-1 2\n=\n", "differing from place 2"),
        ("@ a 0\na 1 p-1 1\n=\n@ a 1\na 2 p-3 2\n", "p-3 was notified in position 2, and it was notification 1"),
        ("@ a 0\na 1 p-1 1\n=\n@ a 0\na 1 p-1 1\na 2 p-3 2\n", "p-1 was notified after p-1"),
        ("@ a 0\na 1 p-1 1\n=\n@ a 1\n", "1 notifications; notified 0"),
    ],
)
def test_a_fault_of_a_life_is_named(tmp_path: Path, log: str, fault: str) -> None:
    faults = judged(tmp_path, log).faults

    assert any(fault in found for found in faults), faults


# -- subscribers with a name ----------------------------------------------------------------------------------------------


class Said:
    """An event, as far as an application looks at it."""

    def __init__(self, topic: str, number: int, id: str, position: int) -> None:
        self.topic, self.number, self.id, self.position = topic, number, id, position


EVENTS = [Said("a", 1, "p-1", 1), Said("b", 1, "p-2", 2), Said("a", 2, "p-3", 3)]


def take(results: Results, *events: Said) -> None:
    results.take(events, [7] * len(events))  # type: ignore[arg-type]


def judged_results(folder: Path) -> Verdict:
    (folder / "receipts").write_text(RECEIPTS)
    return judge([folder / "receipts"], [folder / "s0.db"], [])


def test_what_comes_again_in_another_life_has_its_effect_once(tmp_path: Path) -> None:
    results = Results(tmp_path / "s0.db")
    results.begin({"a": 0, "b": 0})
    take(results, *EVENTS[:2])
    results.close()
    again = Results(tmp_path / "s0.db")
    take(again, *EVENTS)
    again.close()
    verdict = judged_results(tmp_path)

    assert again.clock == {"a": 2, "b": 1}
    assert verdict.is_good
    assert (verdict.notified, verdict.again, list(verdict.latencies_us)) == (3, 2, [7, 7, 7])


@pytest.mark.parametrize(
    ("lives", "fault"),
    [
        ([EVENTS[:2]], "notified 1, differing from place 2"),
        ([EVENTS[:1], EVENTS[2:]], "p-3 was notified in position 3, and it was notification 2"),
        ([EVENTS[:2], [Said("b", 1, "p-9", 2), EVENTS[2]]], "p-9 came again as b 1, and was something else before"),
        ([EVENTS[:2], [Said("b", 1, "p-2", 3), EVENTS[2]]], "p-2 came again as b 1, and was something else before"),
        ([[EVENTS[0], EVENTS[2], EVENTS[1]]], "p-3 was notified in position 3, and it was notification 2"),
    ],
)
def test_a_fault_over_all_lives_is_named(tmp_path: Path, lives: list[list[Said]], fault: str) -> None:
    for events in lives:
        results = Results(tmp_path / "s0.db")
        if not results.clock:
            results.begin({"a": 0, "b": 0})
        take(results, *events)
        results.close()

    faults = judged_results(tmp_path).faults
    assert any(fault in found for found in faults), faults


def test_events_have_their_effect_together_or_not_at_all(tmp_path: Path) -> None:
    results = Results(tmp_path / "s0.db")
    results.begin({"a": 0})
    with pytest.raises(sqlite3.Error):
        take(results, EVENTS[0], Said("a", 2, object(), 2))  # type: ignore[arg-type]
    results.close()

    assert list(lines_of(tmp_path / "s0.db")) == ["@ a 0"]
    again = Results(tmp_path / "s0.db")
    assert again.clock == {"a": 0}
    again.close()


# -- processes ------------------------------------------------------------------------------------------------------------


def test_who_is_killed_leaves_whole_lines_and_begins_another_life(tmp_path: Path) -> None:
    code = 'import json\nprint(json.dumps({"life": json.loads(input())["life"]}), flush=True)\ninput()'
    plan: dict[str, Any] = {"name": "s4", "role": "subscriber", "life": 1}
    plan |= {"log": str(tmp_path / "log"), "raw": str(tmp_path / "raw")}
    worker = TrialWorkerProcess("s4", [sys.executable, "-c", code], tmp_path / "errors", plan=plan)
    worker.begin()
    assert worker.hear(60.0) == {"life": 1}
    (tmp_path / "log").write_text("@ a 0\na 1 p-1 1\na 2 p")
    worker.kill()
    worker.start_again()

    assert worker.hear(60.0) == {"life": 2}
    assert (tmp_path / "log").read_text() == "@ a 0\na 1 p-1 1\n=\n"
    worker.end()


def test_a_bad_line_says_where_it_is_and_what_it_has_done(tmp_path: Path) -> None:
    line = LineProcess.start("nats://user:word@127.0.0.1:4222?x=1", Loss(drop=0.1), 1, tmp_path / "errors")

    assert line.url("nats://user:word@127.0.0.1:4222?x=1") == f"nats://user:word@{line.address}?x=1"
    assert line.finish() == {"events": 0, "dropped": 0, "repeated": 0, "delayed": 0}


def test_a_bad_line_to_what_it_does_not_understand_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="kind='amqp' does not fit"):
        LineProcess.start("amqp://127.0.0.1:5672", Loss(), 1, tmp_path / "errors")


class Publishing:
    """A client that publishes nothing. `outcome` says what becomes of an event; a `ConnectionError` goes into the future."""

    def __init__(self, outcome: Callable[[str, str], Receipt]) -> None:
        self.outcome = outcome

    def publish_nowait(self, topic: str, data: Any, id: str) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self.outcome(topic, id))
        except ConnectionError as error:
            future.set_exception(UnavailableError(str(error)))
        return future


async def publish_on(path: Path, outcome: Callable[[str, str], Receipt], **plan: Any) -> None:
    """A publisher in a trial that tells it to go and to stop at once; what it writes down is in `path` then."""
    lines = asyncio.StreamReader()
    lines.feed_data(b'{"do": "go"}\n{"do": "stop"}\n')
    whole = {"name": "p0", "seed": 1, "topics": ["t"], "filler": 1, "rate": 1e9, **plan}
    with path.open("w") as log:
        await PublishingOn(whole, Starter(lines)).work(Publishing(outcome), log)  # type: ignore[arg-type]


async def test_a_publisher_notes_what_it_sends_before_and_what_it_has_receipts_for_after_and_goes_on_when_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def outcome(topic: str, identity: str) -> Receipt:
        if identity == "p0.2-1":
            raise UnavailableError("everything is down")
        if identity == "p0.2-2":
            raise ConnectionError("the stage is gone")
        return Receipt(topic, int(identity[-1]), identity)

    path = tmp_path / "receipts"
    await publish_on(path, outcome, life=2, events=2, receipts_s=60)
    written = path.read_text().splitlines()

    assert json.loads(capsys.readouterr().out.splitlines()[-1])["published"] >= 2
    assert written[:2] == ["? t p0.2-1", "? t p0.2-2"]
    for identity in ("p0.2-3", "p0.2-4"):
        assert written.index(f"? t {identity}") < written.index(f"t {identity[-1]} {identity}")
    assert not any(line.startswith("!") for line in written)


async def test_a_publisher_that_has_no_receipt_for_too_long_says_so(tmp_path: Path) -> None:
    def outcome(topic: str, identity: str) -> Receipt:
        raise UnavailableError("everything is down")

    path = tmp_path / "receipts"
    await publish_on(path, outcome, life=1, events=1, receipts_s=0.0)

    (fault,) = judge([path], [], []).faults
    assert fault == "p0 had no receipt within 0 s: UnavailableError('everything is down')"
