"""The audit finds each thing that can be wrong, planted in a log of many subscribers, and nothing in a clean one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ordered_pubsub.errors import UsageError
from ordered_pubsub.spark.jobs import Audit, audit

TOPICS = [f"t{at}" for at in range(6)]
Row = tuple[str, int, str, int, Any]
SCHEMA = "subscriber STRING, place BIGINT, topic STRING, number BIGINT, tx STRING"


def clean(subscribers: int = 8, events: int = 400) -> dict[str, list[Row]]:
    """One order, of which each subscriber is notified as far as it holds the topics, from some place on."""
    random = Random(3)
    numbers = dict.fromkeys(TOPICS, 0)
    order: list[tuple[str, int, str | None]] = []
    for at in range(events):
        tx = f"x{at}" if at % 20 == 0 else None
        for _ in range(3 if tx else 1):
            topic = random.choice(TOPICS)
            numbers[topic] += 1
            order.append((topic, numbers[topic], tx))
    logs: dict[str, list[Row]] = {}
    for number in range(subscribers):
        held, begin = random.sample(TOPICS, random.randint(2, 6)), 100 * (number % 3)
        while begin and order[begin][2] == order[begin - 1][2] is not None:
            begin += 1
        mine = [event for event in order[begin:] if event[0] in held]
        logs[f"s{number}"] = [(f"s{number}", place, *event) for place, event in enumerate(mine)]
    return logs


def judged(spark: SparkSession, logs: dict[str, list[Row]], **more: Any) -> Audit:
    rows = [row for log in logs.values() for row in log]
    Random(5).shuffle(rows)  # the order of the rows says nothing
    return audit(spark.createDataFrame(rows, SCHEMA), **more)


def renumbered(log: list[Row]) -> list[Row]:
    return [(row[0], place, *row[2:]) for place, row in enumerate(log)]


def kinds(found: Audit) -> list[str]:
    return [finding.kind for finding in found.findings]


def test_nothing_is_found_in_a_clean_log(spark: SparkSession) -> None:
    found = judged(spark, clean())
    assert found.is_clean
    assert (found.subscribers, found.topics) == (8, 6)
    assert found.notifications > 1_500


def test_a_swapped_pair_is_found(spark: SparkSession) -> None:
    logs = clean()
    log = logs["s2"]
    at = next(
        at
        for at in range(50, len(log))
        if log[at][2] != log[at + 1][2]
        and log[at][4] is None
        and log[at + 1][4] is None
        and held_by_others(logs, log, at)
    )
    log[at], log[at + 1] = log[at + 1], log[at]
    logs["s2"] = renumbered(log)
    found = judged(spark, logs)
    assert kinds(found) == ["order"]
    (finding,) = found.findings
    one, other = log[at], log[at + 1]
    assert any(f"{one[2]} {one[3]} came" in said and f" {other[2]} {other[3]} " in said for said in finding.examples)


def held_by_others(logs: dict[str, list[Row]], log: list[Row], at: int) -> bool:
    pair = {log[at][2:4], log[at + 1][2:4]}
    return any(pair <= {row[2:4] for row in other} for other in logs.values() if other is not log)


def test_numbers_of_a_topic_that_fall_are_found_though_nobody_else_has_them(spark: SparkSession) -> None:
    found = judged(spark, {"s": [("s", 0, "a", 1, None), ("s", 1, "a", 3, None), ("s", 2, "a", 2, None)]})
    assert kinds(found) == ["order"]


def test_a_gap_is_found(spark: SparkSession) -> None:
    logs = clean()
    lost = next(row for row in logs["s1"][60:] if row[4] is None)
    logs["s1"] = renumbered([row for row in logs["s1"] if row is not lost])
    found = judged(spark, logs)
    assert kinds(found) == ["gap"]
    assert found.findings[0].examples == (f"s1 has {lost[2]} {lost[3] - 1} and then {lost[3] + 1}: nothing between",)
    assert judged(spark, logs, are_filtered=True).is_clean


def test_a_duplicate_is_found(spark: SparkSession) -> None:
    logs = clean()
    twice = next(row for row in logs["s1"][60:] if row[4] is None)
    logs["s1"] = renumbered([again for row in logs["s1"] for again in ([row, row] if row is twice else [row])])
    found = judged(spark, logs)
    assert "duplicate" in kinds(found)
    assert found.findings[0].examples == (f"s1 was notified of {twice[2]} {twice[3]} 2 times",)


def test_a_torn_transaction_is_found(spark: SparkSession) -> None:
    rows = [("a", 1, None), ("a", 2, "x"), ("b", 1, None), ("b", 2, "x"), ("a", 3, None)]
    whole = [("a", 1, None), ("b", 1, None), ("a", 2, "x"), ("b", 2, "x"), ("a", 3, None)]
    assert judged(spark, {"s": [("s", at, *row) for at, row in enumerate(whole)]}).is_clean
    found = judged(spark, {"s": [("s", at, *row) for at, row in enumerate(rows)]})
    assert kinds(found) == ["torn"]
    assert found.findings[0].examples == ("s has the 2 events of transaction x spread over 3 notifications",)


def test_more_topics_than_fit_into_a_row_are_compared_in_turn(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_pubsub.spark.jobs.auditing.TOPICS_AT_ONCE", 2)
    one = [("one", at, topic, 1, None) for at, topic in enumerate("abcdef")]
    other = [("other", at, topic, 1, None) for at, topic in enumerate("abcdfe")]
    assert kinds(judged(spark, {"one": one, "other": other})) == ["order"]
    assert judged(spark, {"one": one, "other": one}).findings[0].kind == "duplicate"


def test_what_lacks_a_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="these lack place, number"):
        audit(spark.createDataFrame([("s", "a")], "subscriber STRING, topic STRING"))


# -- as a command -----------------------------------------------------------------------------------------------------------


def run(*paths: Path, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ordered_pubsub", "audit", *map(str, paths), "--master", "local[1]", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def write(path: Path, *events: tuple[str, int]) -> Path:
    path.write_text("".join(json.dumps({"position": 1, "topic": t, "number": n, "data": 1}) + "\n" for t, n in events))
    return path


def test_the_command_reads_what_sub_writes(tmp_path: Path) -> None:
    order = [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    one, other = write(tmp_path / "one.jsonl", *order), write(tmp_path / "other.jsonl", *order)
    good = run(one, other)
    assert (good.returncode, good.stdout) == (
        0, "8 notifications of 2 subscribers on 2 topics: one order, everything, once\n",
    )  # fmt: skip
    write(other, ("a", 1), ("a", 2), ("b", 1), ("b", 2))
    bad = run(one, other)
    assert bad.returncode == 1
    assert bad.stdout.splitlines()[:3] == [
        "8 notifications of 2 subscribers on 2 topics: not as promised",
        "order: 2",
        "    a 2 came after b 1 for one, and before b 1 for one",
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert "none.jsonl does not exist: expected a file that 'ordered-pubsub sub --json' wrote" in done.stderr
