"""The judge of trials sees what is wrong: a swapped pair, a gap, a repetition, a wrong number, a number used twice.

And it always gets to judge: whoever takes part in a trial waits for nothing without end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub import Receipt
from ordered_pubsub.errors import Closed, UnavailableError
from ordered_pubsub.testing.processes import ProcessError, Starter, WorkerProcess
from ordered_pubsub.testing.trial import worker
from ordered_pubsub.testing.trial.judge import Verdict, compare, judge
from ordered_pubsub.testing.trial.results import Results
from ordered_pubsub.testing.trial.surviving import SubscribingOn
from ordered_pubsub.testing.trial.worker import PIPELINE, TrialPublishing

RECEIPTS = "a 1 p-1\nb 1 p-2\na 2 p-3\n"
GOOD = "@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\na 2 p-3 3\n"
RAW = "a p-1\nb p-2\na p-3\n"


def judged(folder: Path, *logs: str, receipts: str = RECEIPTS, raws: tuple[str, ...] = (RAW,)) -> Verdict:
    (folder / "receipts").write_text(receipts)
    for name, texts in (("log", logs), ("raw", raws)):
        for number, text in enumerate(texts):
            (folder / f"{name}{number}").write_text(text)
    return judge(
        [folder / "receipts"],
        [folder / f"log{number}" for number in range(len(logs))],
        [folder / f"raw{number}" for number in range(len(raws))],
    )


def test_a_good_trial_is_good(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD, GOOD)

    assert verdict.is_good
    assert (verdict.published, verdict.notified, verdict.compared_pairs) == (3, 6, 3)


def test_what_was_not_held_need_not_be_notified(tmp_path: Path) -> None:
    assert judged(tmp_path, "@ a 0\n@ b 1\na 1 p-1 1\n/ a 1\n").is_good


def test_a_swapped_pair_is_counted(tmp_path: Path) -> None:
    swapped = "@ a 0\n@ b 0\nb 1 p-2 1\na 1 p-1 2\na 2 p-3 3\n"
    verdict = judged(tmp_path, GOOD, swapped)

    assert verdict.disagreeing_pairs == 1
    assert not verdict.is_good


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("@ a 0\n@ b 0\nb 1 p-2 1\na 2 p-3 2\n", "notified 1, differing from place 1"),
        ("@ a 0\n@ b 0\na 1 p-1 1\na 1 p-1 2\nb 1 p-2 3\na 2 p-3 4\n", "notified 3, differing from place 2"),
        ("@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\n", "notified 1, differing from place 2"),
        ("@ a 0\na 1 p-1 1\n/ a 1\na 2 p-3 2\n", "notified 2, differing from place 2"),
        ("@ a 0\n@ b 0\na 1 p-3 1\nb 1 p-2 2\na 2 p-1 3\n", "its receipt says"),
        ("@ a 0\n@ b 0\nb 1 p-2 1\na 1 p-1 2\na 2 p-3 3\n", "was notified after p-2"),
        (
            "@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 3\na 2 p-3 4\n",
            "p-2 was notified in position 3, and it was notification 2",
        ),
        ("@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\na 2 p-3 2\n", "p-3 was notified in position 2"),
        ("@ a 0\n@ b 0\na 1 p-1 1\nb 1 p-2 2\na 2 p-3 None\n", "p-3 was notified in position None"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, log: str, fault: str) -> None:
    assert any(fault in found for found in judged(tmp_path, log).faults)


@pytest.mark.parametrize(
    ("receipts", "fault"),
    [
        ("a 1 p-1\na 1 p-2\n", "was given to"),
        ("a 1 p-1\na 3 p-2\n", "number 2 of a was skipped"),
        ("a 1 p-1\n! p-2 has no receipt within 9 s\n", "p-2 has no receipt within 9 s"),
    ],
)
def test_numbers_are_used_once_and_not_skipped_and_everything_has_one(
    tmp_path: Path, receipts: str, fault: str
) -> None:
    assert any(fault in found for found in judged(tmp_path, "", receipts=receipts).faults)


def test_raw_arrivals_are_compared_each_once(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD, raws=(RAW, "b p-2\na p-1\nb p-2\na p-3\n"))

    assert (verdict.raw_compared_pairs, verdict.raw_disagreeing_pairs) == (3, 1)


def test_disagreements_are_counted_exactly() -> None:
    assert compare("abcd", "dcba") == (6, 6)
    assert compare("abcd", "abdc") == (6, 1)
    assert compare("abxcd", "aybcd") == (6, 0)


# -- nobody waits for ever --------------------------------------------------------------------------------------------


def process_of(code: str, folder: Path) -> WorkerProcess:
    """A process that runs some Python in the place of a publisher."""
    worker = WorkerProcess("p0", [sys.executable, "-c", code], folder / "p0.errors")
    worker.begin()
    return worker


def test_a_worker_that_says_nothing_ends_the_trial_and_is_named(tmp_path: Path) -> None:
    worker = process_of("input(); input()", tmp_path)
    with pytest.raises(ProcessError, match=r"p0 said nothing within 0\.05 s"):
        worker.hear(0.05)
    worker.end()
    assert worker.exit_code is not None


def test_a_worker_that_is_gone_is_named_with_its_exit_code(tmp_path: Path) -> None:
    worker = process_of("input(); raise SystemExit(7)", tmp_path)
    with pytest.raises(ProcessError, match="p0 ended with 7"):
        worker.hear(60.0)
    with pytest.raises(ProcessError, match="p0 ended with 7"):
        worker.tell(do="go")
    worker.end()


def test_a_worker_may_say_two_things_at_once_and_one_thing_in_two_pieces(tmp_path: Path) -> None:
    worker = process_of(
        "print('{\"n\": 1}\\n{\"n\":', end='', flush=True); input(); input(); print(' 2}', flush=True); input()",
        tmp_path,
    )
    assert worker.hear(60.0) == {"n": 1}
    worker.tell(do="go")
    assert worker.hear(60.0) == {"n": 2}
    worker.end()


async def test_a_publisher_that_gets_no_receipt_stops_and_says_for_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One has its receipt, one an error, and all others never anything: it waits once, for as many as may be under way."""
    loop = asyncio.get_running_loop()

    class Client:
        def publish_nowait(self, topic: str, data: Any, id: str) -> asyncio.Future[Receipt]:
            future: asyncio.Future[Receipt] = loop.create_future()
            if id == "p0-1":
                future.set_result(Receipt(topic, 1, id))
            elif id == "p0-2":
                future.set_exception(UnavailableError("the stage is gone"))
            return future

    lines, log, client = asyncio.StreamReader(), StringIO(), Client()
    lines.feed_data(b'{"do": "go"}\n{"do": "stop"}\n')
    plan = {"name": "p0", "seed": 1, "topics": ["t"], "events": 3, "filler": 1, "rate": 1e9, "receipts_s": 0.05}
    await TrialPublishing(plan, Starter(lines)).work(client, log)  # type: ignore[arg-type]

    assert json.loads(capsys.readouterr().out.splitlines()[-1])["published"] == PIPELINE
    (tmp_path / "receipts").write_text(log.getvalue())
    faults = judge([tmp_path / "receipts"], [], []).faults
    assert faults[0] == "p0-2 has no receipt: UnavailableError('the stage is gone')"
    assert faults[1:] == [f"p0-{number} has no receipt within 0.05 s" for number in range(3, PIPELINE + 1)]


@pytest.mark.parametrize("call_s", [30.0, -1.0])
async def test_a_call_is_tried_again_while_the_broker_is_down_but_not_for_ever(
    call_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PAUSE_S", 0.0)
    failures = [UnavailableError("the broker is down")] * 3

    async def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    calling = TrialPublishing({"seed": 1, "call_s": call_s}, Starter(asyncio.StreamReader())).patiently(call)
    if call_s > 0:
        assert await calling == "done"
    else:
        with pytest.raises(UnavailableError):
            await calling
        assert len(failures) == 2


class Ending:
    """A subscription, and the client that has it: nothing comes."""

    def __init__(self) -> None:
        self.clock: dict[str, int] = {}
        self.is_over = asyncio.Event()

    async def subscribe(self, *topics: str, **settings: object) -> Ending:
        return self

    async def close(self) -> None:
        self.is_over.set()


class Acknowledges(SubscribingOn):
    """It is still acknowledging when its subscription is closed."""

    async def _handle(self, subscription: Any, results: Results) -> None:
        await subscription.is_over.wait()
        raise Closed("it has ended before it was known whether what was acknowledged is on disk")


async def test_who_still_acknowledges_when_all_is_there_has_done_what_it_was_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = asyncio.StreamReader()
    lines.feed_data(b'{"do": "finish", "totals": {}}\n')
    plan = {"seed": 1, "results": str(tmp_path / "results"), "is_brief": False, "topics": ["a"], "patience_s": 30.0}
    await Acknowledges(plan, Starter(lines)).work(Ending(), StringIO())  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "done"
