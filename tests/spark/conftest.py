"""A real Spark in this process, and real stages as processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ordered_pubsub.spark
from ordered_pubsub.testing.stages import StageProcesses

# PySpark 4.0 leaves sockets of its own to the garbage collector. (Ours are watched by tests/server/test_reading.py.)
SOCKETS_OF_SPARK = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket:ResourceWarning",
)

# A Java of the tests lives for a minute at most: to compile much for it, on many threads, costs more than it gains.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(SOCKETS_OF_SPARK)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: it takes seconds to start."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    ordered_pubsub.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcesses]:
    """Two stages: the first owns what is on eu/, the second the rest."""
    system = StageProcesses(tmp_path_factory.mktemp("stages"), [["eu/**"], ["**"]])
    system.start()
    yield system
    system.kill()


@pytest.fixture
def sequencer(stages: StageProcesses) -> str:
    """Where they are."""
    return ",".join(stages.addresses)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a query writes how far it is."""
    return str(tmp_path / "checkpoint")
