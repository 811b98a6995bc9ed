"""The example of docs/spark.md runs as it stands there, but for the place of the stages, and of the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.publishing import publish

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_example_reads_what_was_published(
    spark: SparkSession, sequencer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = publish(sequencer, ["trades", "quotes"], 20)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert "ops://127.0.0.1:7411" in code
    code = code.replace("ops://127.0.0.1:7411", sequencer)
    code = code.replace('"market.', f'"{tmp_path}/market.')
    exec(compile(code, "docs/spark.md", "exec"), {})
    rows = spark.read.parquet(f"{tmp_path}/market.parquet").orderBy("position").collect()

    assert [(row.position, row.topic, row.data.encode()) for row in rows] == [
        (event.position, event.topic, event.raw) for event in events
    ]
