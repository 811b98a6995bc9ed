"""What is wrong is said where the user is, in words, without the way that it took through Java and this library."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import ordered_pubsub.spark
from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.errors import NotOffered
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.reading.stages import StageLines
from ordered_pubsub.spark.source import HAS_LIMITS
from ordered_pubsub.testing.stages import StageProcesses
from spark.publishing import publish

TIMEOUT_S = 120.0
GUARDED = '[[identity]]\nname = "job"\ntoken_sha256 = "{}"\nallow = {{ subscribe = ["**"], publish = ["mine"] }}\n'
SHORT = '[[topic]]\npattern = "**"\nretention = {{ keep_age = "{0}", max_age = "{0}" }}\n'


def load(spark: SparkSession, options: dict[str, str], is_stream: bool) -> DataFrame:
    return (spark.readStream if is_stream else spark.read).format("ordered_pubsub").options(**options).load()


def take(spark: SparkSession, options: dict[str, str], checkpoint: Path | None) -> None:
    """All that there is, as a table, or as a stream from its checkpoint on."""
    frame = load(spark, options, checkpoint is not None)
    if checkpoint is None:
        frame.collect()
        return
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert query.start().awaitTermination(TIMEOUT_S)


def said(error: pytest.ExceptionInfo[Exception]) -> str:
    """What a user reads: nothing of it is about Py4J, or shows the way that it took through this library."""
    text = str(error.value)
    assert "py4j" not in text.lower()
    assert text.count("/ordered_pubsub/") <= 1, text  # the line that raises it: Spark shows that much
    return text


def stages_with(folder: Path, more: str) -> Iterator[StageProcesses]:
    system = StageProcesses(folder, [["**"]], more=more)
    system.start()
    yield system
    system.kill()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[StageProcesses]:
    """Stages that ask who it is."""
    token = make_token()
    (tmp_path / "token").write_text(token)
    (tmp_path / "wrong").write_text(make_token())
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "wrong").chmod(0o600)
    yield from stages_with(tmp_path, GUARDED.format(hash_token(token)))


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("token", ["wrong", None])
def test_a_token_that_is_wrong_or_missing(
    spark: SparkSession, guarded: StageProcesses, tmp_path: Path, token: str | None, is_stream: bool
) -> None:
    options = {"sequencer": ",".join(guarded.addresses), "topics": "mine", "timeoutSeconds": "5"}
    if token is not None:
        options["tokenFile"] = str(tmp_path / token)
    with pytest.raises(Exception, match="token") as error:
        take(spark, options, tmp_path / "checkpoint" if is_stream else None)
    assert "stage ops://" in said(error)


def test_a_topic_on_which_one_may_not_publish(spark: SparkSession, guarded: StageProcesses, tmp_path: Path) -> None:
    """The rest of the rows stays unpublished, and the task that says so has the reason."""
    options = {"sequencer": ",".join(guarded.addresses), "topic": "theirs", "tokenFile": str(tmp_path / "token")}
    with pytest.raises(Exception, match="identity 'job' may not publish on 'theirs'"):
        spark.range(3).selectExpr("'1' AS data").write.format("ordered_pubsub").options(**options).mode("append").save()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[StageProcesses]:
    """Stages that keep nothing for longer than two seconds."""
    yield from stages_with(tmp_path, SHORT.format("2s"))


def test_history_that_is_lost(spark: SparkSession, forgetful: StageProcesses, tmp_path: Path) -> None:
    """Between two runs of a stream: topic, numbers, and what can be done; with failOnDataLoss=false it goes on."""
    sequencer = ",".join(forgetful.addresses)
    options = {"sequencer": sequencer, "topics": "eu/a,us/a"}
    checkpoint = tmp_path / "checkpoint"
    publish(sequencer, ["eu/a", "us/a"], 10)
    take(spark, options, checkpoint)
    publish(sequencer, ["eu/a", "us/a"], 10)
    give_up_at = time.monotonic() + TIMEOUT_S
    with StageLines(ReaderAccess.of(None, {"sequencer": forgetful.addresses})) as stages:
        while any(extent.floor < extent.last for extent in stages.find(["**"]).values()):
            assert time.monotonic() < give_up_at

    with pytest.raises(Exception, match=r"needs number \d+ of topic 'eu/a', but the log begins at number \d+") as error:
        take(spark, options, checkpoint)
    for remedy in (
        "retention (max_age, max_bytes)",
        "failOnDataLoss=false",
        "startingOffsets=earliest",
        "option reader",
    ):
        assert remedy in said(error)
    take(spark, {**options, "failOnDataLoss": "false"}, checkpoint)


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_topic_and_a_stage_that_is_not_there(
    spark: SparkSession, sequencer: str, unused_tcp_port: int, tmp_path: Path, is_stream: bool
) -> None:
    checkpoint = tmp_path / "checkpoint" if is_stream else None
    with pytest.raises(Exception, match="nothing was ever published on topic 'no/such'") as unknown:
        take(spark, {"sequencer": sequencer, "topics": "no/such"}, checkpoint)
    assert "failOnUnknownTopic=false" in said(unknown)
    nobody = {"sequencer": f"ops://127.0.0.1:{unused_tcp_port}", "topics": "a", "timeoutSeconds": "1"}
    with pytest.raises(Exception, match="check that it runs there") as unreachable:
        take(spark, nobody, checkpoint)
    assert "cannot be reached" in said(unreachable)


@pytest.mark.parametrize("there", ["3.5.4", "4.0.0"])
def test_an_unsupported_version_of_pyspark(spark: SparkSession, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", there)
    if there == "4.0.0":
        ordered_pubsub.spark.register(spark)
        return
    with pytest.raises(
        NotOffered, match=r"needs PySpark 4\.0 or later, and there is 3\.5\.4: pip install 'pyspark>=4\.0'"
    ):
        ordered_pubsub.spark.register(spark)


def test_packages_that_are_missing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_pubsub.spark, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(
        NotOffered, match=r"needs pyarrow, which is not installed here: pip install 'ordered-pubsub\[spark\]'"
    ):
        ordered_pubsub.spark.register(spark)


def test_limits_and_filters_need_a_later_version(spark: SparkSession, sequencer: str, tmp_path: Path) -> None:
    """Where they are not there, they are refused, and not left out without a word."""
    publish(sequencer, ["limited"], 5)
    options = {"sequencer": sequencer, "topics": "limited", "maxRecordsPerTrigger": "10"}
    if HAS_LIMITS:
        take(spark, options, tmp_path / "checkpoint")
        return
    with pytest.raises(Exception, match=r"maxRecordsPerTrigger needs PySpark 4\.2 or later"):
        take(spark, options, tmp_path / "checkpoint")
