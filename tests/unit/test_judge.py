"""The judge of trials sees what is wrong: a swapped pair, a gap, a repetition, a wrong number, a number used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from ordered_pubsub.testing.trial.judge import Verdict, compare, judge

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
    ],
)
def test_a_fault_is_named(tmp_path: Path, log: str, fault: str) -> None:
    assert any(fault in found for found in judged(tmp_path, log).faults)


@pytest.mark.parametrize(
    ("receipts", "fault"), [("a 1 p-1\na 1 p-2\n", "was given to"), ("a 1 p-1\na 3 p-2\n", "number 2 of a was skipped")]
)
def test_numbers_are_used_once_and_not_skipped(tmp_path: Path, receipts: str, fault: str) -> None:
    assert any(fault in found for found in judged(tmp_path, "", receipts=receipts).faults)


def test_raw_arrivals_are_compared_each_once(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD, raws=(RAW, "b p-2\na p-1\nb p-2\na p-3\n"))

    assert (verdict.raw_compared_pairs, verdict.raw_disagreeing_pairs) == (3, 1)


def test_disagreements_are_counted_exactly() -> None:
    assert compare("abcd", "dcba") == (6, 6)
    assert compare("abcd", "abdc") == (6, 1)
    assert compare("abxcd", "aybcd") == (6, 0)
