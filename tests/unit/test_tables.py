"""The command that measures and writes the tables of benchmarks/README.md: it finds them, and writes nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ordered_pubsub.bench.plan import KINDS, PLAIN, Variant
from ordered_pubsub.bench.results import BenchOutcome, Pace, Rush, Series

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import stage_time  # noqa: E402  # it is no package: whoever runs it has this folder in the path
import tables  # noqa: E402  # likewise
import timestamps  # noqa: E402  # likewise

PAGE = "before\n\n<!-- table one -->\n\nold\n\n<!-- end of one -->\n\nbetween\n\n<!-- table two -->\n<!-- end of two -->\nafter\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with two tables, and a command that knows them; the second one cannot be measured."""

    def one(share: float) -> str:
        """The first one."""
        return tables.markdown([("of", "figure"), ("this", f"{share:g}")])

    def two(share: float) -> str:
        """The second one."""
        raise RuntimeError("the broker is gone")

    path = tmp_path / "README.md"
    path.write_text(PAGE)
    monkeypatch.setattr(tables, "PAGE", path)
    monkeypatch.setattr(tables, "TABLES", {"one": tables.Table(one, "level ordered"), "two": tables.Table(two)})
    monkeypatch.setattr(tables, "commit", lambda: "`abc1234`")
    return path


def test_the_page_has_the_tables_that_the_command_knows_in_their_order() -> None:
    tables.check_page((BENCHMARKS / "README.md").read_text(encoding="utf-8"))


def test_each_table_says_of_which_commit_it_is_or_that_it_was_not_measured() -> None:
    for found in tables.MARKED.finditer((BENCHMARKS / "README.md").read_text(encoding="utf-8")):
        assert re.match(r"\s*\*(Commit `\w{7,}`|Not measured yet)", found[2]), found[1]


def test_each_table_says_in_a_line_what_it_is() -> None:
    assert {name for name, table in tables.TABLES.items() if not table.what.endswith(".")} == set()


def test_figures_are_a_table_of_markdown() -> None:
    assert (
        tables.markdown([("of", "a", "b"), ("this", "1", "2")])
        == "| of | a | b |\n| --- | ---: | ---: |\n| this | 1 | 2 |"
    )


def test_a_table_is_written_where_it_belongs_and_what_cannot_be_measured_is_left(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.main([]) == 1

    text = page.read_text()
    said = capsys.readouterr()
    written = text[text.index("<!-- table one -->") : text.index("<!-- end of one -->")]
    assert re.search(
        r"\n\*Commit `abc1234`, \d{4}-\d\d-\d\d; \d+ processors.*; Python 3\..*; level ordered\.\*\n\n\| of \| figure \|\n",
        written.replace(", Python", "; Python"),
    )
    assert "| this | 1 |" in written
    assert "old" not in text
    assert text.replace(written, "<!-- table one -->\n\nold\n\n") == PAGE
    assert "the broker is gone" in said.err
    assert "left as they were: two" in said.out


def test_a_table_that_is_written_twice_is_there_once(page: Path) -> None:
    for _ in range(2):
        assert tables.main(["--only", "one"]) == 0
    assert page.read_text().count("| this | 1 |") == 1


def test_a_first_look_is_printed_and_never_written(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--only", "one", "--share", "0.5", "--print"]) == 0
    assert "| this | 0.5 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tables.main(["--only", "one", "--share", "0.5"])
    assert page.read_text() == PAGE


@pytest.mark.parametrize("text", ["no table", "<!-- end of one -->\n<!-- table one -->", 2 * PAGE])
def test_a_table_that_is_not_in_the_page_once_is_not_written(text: str) -> None:
    with pytest.raises(tables.NotInPage, match="expected one line '<!-- table one -->'"):
        tables.replaced(text, "one", "new")


def test_a_page_with_other_tables_is_refused_before_anything_is_measured(page: Path) -> None:
    page.write_text(PAGE.replace("one", "three"))
    with pytest.raises(tables.NotInPage, match=r"has the tables \['three', 'two'\]"):
        tables.main([])


def series(variant: Variant, rate: float) -> Series:
    """Rates and latencies are the same numbers here."""
    cpu = {"publisher": 10_000, "subscriber 1": 20_000, "subscriber 2": 30_000, "stage": None, "broker": 5_000}
    rush = Rush(events=10, seconds=10 / rate, cpu_ns=cpu)
    return Series(variant, [rush], [Pace(events=10, p50_us=rate, p99_us=2 * rate)])


def outcome(rate: float) -> BenchOutcome:
    """Of one variant beside the plain client."""
    ours = Variant("single", "exactly-once", "fsync")
    return BenchOutcome("mqtt", KINDS["mqtt"].title, [series(PLAIN, 100.0), series(ours, rate)])


def test_a_row_says_the_level_and_the_durability() -> None:
    assert tables._beside_plain([outcome(50.0)]).splitlines()[2:] == [
        "| MQTT, Mosquitto | plain | - | - | 100 | 1.00 | 100 | 1.00 | 200 | 1.0 | 2.0 + 3.0 | - | 0.5 |",
        "|  | single | exactly-once | fsync | 50 | 0.50 | 50 | 0.50 | 100 | 1.0 | 2.0 + 3.0 | - | 0.5 |",
    ]


def test_a_missed_aim_says_where_the_time_goes() -> None:
    assert tables._judged([("in turn", outcome(40.0))]).splitlines() == [
        "1 of 2 aims are met. Missed:",
        "",
        "- in turn: mqtt, single, exactly-once, fsync: at least 0.5 times the plain client's rate: 0.40 [0.40..0.40]; "
        "CPU µs: publisher 1.0, subscribers 2.0 + 3.0, stage -, broker 0.5",
    ]


def test_that_no_aim_is_missed_is_said() -> None:
    assert tables._judged([("in turn", outcome(60.0))]).splitlines() == ["2 of 2 aims are met. Missed:", "", "- none"]


# -- the parts of a stage's time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for names in stage_time.PARTS.values() for name in names])
def test_a_function_that_is_timed_is_there(name: str) -> None:
    place, last = stage_time.place_of(name)
    assert callable(getattr(place, last))


def test_a_part_is_counted_without_those_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0, 100, 130, 200])  # decide begins, write begins and ends, decide ends
    monkeypatch.setattr(stage_time, "perf_counter_ns", lambda: next(now))
    timers = stage_time.Timers()
    write = timers.around("write", lambda: None)
    timers.around("decide", write)()

    assert (timers.spent_ns["decide"], timers.spent_ns["write"]) == (170, 30)


def test_of_what_works_step_by_step_the_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0, 10, 50, 55, 90, 91])  # three steps, and what others do between them
    monkeypatch.setattr(stage_time, "perf_counter_ns", lambda: next(now))
    timers = stage_time.Timers()

    def steps():  # type: ignore[no-untyped-def]
        yield 1
        yield 2
        return 3

    assert list(timers.around("check", steps)()) == [1, 2]
    assert timers.spent_ns["check"] == 10 + 5 + 1


def test_the_rest_is_what_no_part_has_of_the_processor_time() -> None:
    parts = {**dict.fromkeys(stage_time.PARTS, 1.0), "sync": 100.0, stage_time.SYNC_CPU: 2.0}
    spent = stage_time.Spent("ordered", "single", "fsync", 1.0, 10.0, 20.0, parts)
    assert spent.rest_us == 20.0 - (len(stage_time.PARTS) - 1) - 2.0


# -- timestamps under a load ------------------------------------------------------------------------------------------------


def test_a_topic_that_shares_no_subscription_has_timestamps_without_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "CLIENTS", 20)
    monkeypatch.setattr(timestamps, "PUBLICATIONS", 200)
    (single, batch) = timestamps.measure(0.901, "total")

    assert 1.0 <= single["delta, topics"] < single["full, topics"] < 200
    assert batch["full, publications"] < single["full, publications"]
