"""`ordered-pubsub bench` measures what it says: small, over a real broker, with real processes. How fast, is not asserted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest

from ordered_pubsub.bench.plan import DURABILITIES, LEVELS
from ordered_pubsub.bench.processes import bench_stage
from ordered_pubsub.bench.results import PROCESSES
from ordered_pubsub.cli import main
from ordered_pubsub.testing.brokers import Mosquitto, NatsServer, free_port

EVENTS = 60
SMALL = ["--rounds", "1", "--events", str(EVENTS), "--rate", "1000"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(["bench", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """One measurement of all variants: what was printed, and the file."""
    folder = tmp_path_factory.mktemp("bench")
    file = folder / "bench.json"
    with pytest.MonkeyPatch.context() as patch, (folder / "out").open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["bench", "--broker", "mqtt", "--packed", *SMALL, "--json", str(file)]) == 0
    (data,) = json.loads(file.read_text())
    return (folder / "out").read_text(), data


def test_the_table_has_a_row_for_each_variant(measured: tuple[str, dict[str, Any]]) -> None:
    text, _ = measured
    kinds = [f"{level}, {durability}" for level in LEVELS for durability in DURABILITIES]
    labels = ["plain", *(f"{name}, {kind}" for name in ("single", "packed") for kind in kinds)]
    lines = text.splitlines()
    assert [sum(line.startswith(f"  {label}  ") for line in lines) for label in labels] == [1] * len(labels)


def test_every_event_was_counted_at_both_subscribers(measured: tuple[str, dict[str, Any]]) -> None:
    """A count that is wrong ends the measurement; here we see that there was something to count."""
    _, data = measured
    for variant in data["variants"]:
        assert [one["events"] for one in variant["rushes"]] == [EVENTS]
        assert [one["events"] for one in variant["paces"]] == [EVENTS]
        assert variant["rushes"][0]["seconds"] > 0
        assert 0 < variant["paces"][0]["p50_us"] <= variant["paces"][0]["p99_us"]


def test_the_processor_time_of_every_process_is_known(measured: tuple[str, dict[str, Any]]) -> None:
    _, data = measured
    for variant in data["variants"]:
        has_stage = variant["variant"]["name"] != "plain"
        used = variant["cpu_us_per_event"]
        assert {name for name, value in used.items() if value is not None} == {
            name for name in PROCESSES if has_stage or name != "stage"
        }


def test_the_aims_are_judged_at_each_level_and_durability(measured: tuple[str, dict[str, Any]]) -> None:
    text, _ = measured
    verdicts = [line.strip() for line in text.splitlines() if line.strip().startswith(("met ", "MISSED "))]
    assert len(verdicts) == 12  # rate and p50 of `single`, rate of `packed`, at two levels and two durabilities


def test_publisher_subscriber_and_stage_are_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(
        capsys, "--broker", "mqtt", "--durability", "none", "--level", "ordered", *SMALL, "--profile", str(tmp_path)
    )
    sides = ("publisher", "subscriber", "stage")
    assert {path.name for path in tmp_path.iterdir()} == {f"mqtt-single-ordered-none-{side}.pstats" for side in sides}
    assert all(f"mqtt-single-ordered-none, {side}: {EVENTS} events" in text for side in sides)
    assert "stage/stage.py" in text


def test_a_stage_and_a_broker_that_run_already_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = bench_stage(tmp_path / "stage", "none", "exactly-once")
    with Mosquitto() as broker:
        stage.start()
        try:
            out = run(capsys, "--ens", broker.url, "--sequencer", stage.address, *SMALL, "--json", "-")
        finally:
            stage.stop()
    (data,) = json.loads(out)
    assert [variant["variant"]["durability"] for variant in data["variants"]] == ["", "its own"]
    assert [variant["cpu_us_per_event"]["stage"] for variant in data["variants"]] == [None, None]


def test_all_numbers_that_were_asked_for_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "numbers.json"
    out = run(capsys, "--numbers", "--rounds", "1", "--events", "1000", "--json", str(file))
    (data,) = json.loads(file.read_text())
    asked = [(durability, batch) for durability in ("none", "fsync") for batch in (1, 10, 100, 1000)]
    assert [(row["durability"], row["batch"]) for row in data["rows"]] == asked
    assert all(rate > 0 for row in data["rows"] for rate in row["rates"])
    assert out.count("numbers, ") == 2


def test_a_broker_that_is_not_there_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    ens = f"mqtt://127.0.0.1:{free_port()}"
    assert main(["bench", "--ens", ens, *SMALL]) == 1
    assert "the plain client cannot connect" in capsys.readouterr().err


def test_no_stream_that_was_made_for_a_measurement_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor one by which adapters took turns to make it; one that was there before stays."""

    async def streams(url: str, *made: str) -> list[str]:
        client = await nats.connect(url)
        for name in made:
            await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        names = [info.config.name for info in await client.jetstream().streams_info()]
        await client.close()
        return names

    with NatsServer(jetstream=True) as broker:
        assert asyncio.run(streams(broker.url, "mine")) == ["mine"]
        run(capsys, "--ens", f"{broker.url}?jetstream=EVENTS&create=true", "--durability", "none", *SMALL)
        assert asyncio.run(streams(broker.url)) == ["mine"]
