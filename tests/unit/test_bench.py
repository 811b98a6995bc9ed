"""What `ordered-pubsub bench` makes of its figures: statistics, ratios, aims, tables; and what it refuses to believe."""

from __future__ import annotations

import os
import runpy
import sys
from cProfile import Profile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.bench.aims import Aim, judge
from ordered_pubsub.bench.numbers import NumbersRow, describe_numbers
from ordered_pubsub.bench.plan import KINDS, PLAIN, Amounts, BenchPlan, Variant, kind_of, variants_of
from ordered_pubsub.bench.processes import BenchError, CpuMeter
from ordered_pubsub.bench.profiles import Cost, describe_costs, is_waiting, read_costs
from ordered_pubsub.bench.report import describe, table
from ordered_pubsub.bench.results import BenchOutcome, Pace, Rush, Series, Spread, percentile
from ordered_pubsub.bench.rounds import Team
from ordered_pubsub.bench.sides import PAYLOAD_BYTES, BenchTally, make_payload, read_payload
from ordered_pubsub.cli import main
from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.testing.processes import cpu_ns

CPU = {"publisher": 10_000, "subscriber 1": 20_000, "subscriber 2": 40_000, "stage": None, "broker": 5_000}


def rush(rate: float) -> Rush:
    return Rush(events=10, seconds=10 / rate, cpu_ns=dict(CPU))


def pace(p50_us: float) -> Pace:
    return Pace(events=10, p50_us=p50_us, p99_us=2 * p50_us)


def outcome(kind: str, plain: list[float], ours: list[float], variant: Variant) -> BenchOutcome:
    """Rates and median latencies are the same numbers here."""
    return BenchOutcome(
        kind,
        KINDS[kind].title,
        [
            Series(PLAIN, [rush(rate) for rate in plain], [pace(rate) for rate in plain]),
            Series(variant, [rush(rate) for rate in ours], [pace(rate) for rate in ours]),
        ],
    )


def plan_of(kind: str, ens: str, **amounts: Any) -> BenchPlan:
    return BenchPlan(
        kind=KINDS[kind],
        ens=ens,
        variants=variants_of(("ordered",), ("none",), True),
        amounts=Amounts(**amounts),
        nonce="n",
    )


# -- statistics -------------------------------------------------------------------------------------------------------


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_such_value(values: list[int], percent: int) -> None:
    found = percentile(values, percent)
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100


def test_a_spread_is_median_least_and_most() -> None:
    assert Spread.of([5.0, 1.0, 3.0]) == Spread(3.0, 1.0, 5.0)


def test_there_is_no_spread_of_nothing() -> None:
    assert Spread.of([]) is None


def test_a_ratio_compares_neighbours_of_the_same_round() -> None:
    """The second round was disturbed, for both: that says nothing about the ratio."""
    found = outcome(
        "mqtt", plain=[100.0, 10.0, 100.0], ours=[50.0, 5.0, 60.0], variant=Variant("single", "ordered", "none")
    )
    assert found.rate_ratio(found.series[1]) == Spread(0.5, 0.5, 0.6)


def test_latencies_of_both_subscribers_are_one_distribution() -> None:
    assert Pace.of(3, [1_000, 3_000, 2_000, 9_000]) == Pace(events=3, p50_us=2.0, p99_us=9.0)


def test_processor_time_is_per_event_and_unknown_where_nobody_tells() -> None:
    series = Series(PLAIN, [rush(1.0)])
    assert [series.cpu_us(process) for process in ("publisher", "subscriber 2", "stage")] == [1.0, 4.0, None]


# -- aims -------------------------------------------------------------------------------------------------------------


def test_an_aim_for_a_rate_is_a_least_and_one_for_latency_a_most() -> None:
    assert Aim("mqtt", "single", "rate", 0.5).is_met(0.5)
    assert not Aim("mqtt", "single", "rate", 0.5).is_met(0.49)
    assert Aim("mqtt", "single", "p50", 4.0).is_met(4.0)
    assert not Aim("mqtt", "single", "p50", 4.0).is_met(4.01)


@pytest.mark.parametrize(
    ("kind", "name", "ratio", "verdicts"),
    [
        ("mqtt", "single", 0.6, {"rate": True, "p50": True}),
        ("mqtt", "single", 0.4, {"rate": False, "p50": True}),
        ("mqtt", "single", 4.5, {"rate": True, "p50": False}),
        ("mqtt", "packed", 3.9, {"rate": False}),
        ("jetstream", "packed", 4.1, {"rate": True}),
        ("rabbitmq", "packed", 9.9, {"rate": False}),
        ("nats", "packed", 0.41, {"rate": True}),
        ("nats", "single", 0.1, {"p50": True}),
    ],
)
def test_aims_are_judged_by_the_median_of_the_ratios(
    kind: str, name: str, ratio: float, verdicts: dict[str, bool]
) -> None:
    found = outcome(
        kind, plain=[10.0, 10.0, 10.0], ours=[10 * ratio, 1.0, 1000.0], variant=Variant(name, "exactly-once", "fsync")
    )
    assert {judgement.aim.figure: judgement.is_met for judgement in judge(found)} == verdicts


def test_a_missed_aim_says_so_with_its_figures() -> None:
    found = outcome("mqtt", plain=[10.0], ours=[20.0], variant=Variant("packed", "exactly-once", "none"))
    assert [str(judgement) for judgement in judge(found)] == [
        "MISSED mqtt, packed, exactly-once, none: at least 4 times the plain client's rate: 2.00 [2.00..2.00]"
    ]


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_has_its_first_column_to_the_left_and_the_others_to_the_right() -> None:
    assert table([("a", "bbb"), ("aaaa", "1")]) == ["a     bbb", "aaaa    1"]


def test_a_set_up_is_described_by_a_row_for_each_variant() -> None:
    found = outcome("mqtt", plain=[1000.0], ours=[500.0], variant=Variant("single", "ordered", "fsync"))
    lines = describe(found, plan_of("mqtt", "mqtt://broker")).splitlines()
    rows = [line.split() for line in lines if line.startswith(("  plain  ", "  single, ordered, fsync"))]
    assert rows == [
        ["plain", "1,000", "1,000..1,000", "1.00", "1,000", "2,000", "1.00", "1.0", "2.0", "+", "4.0", "-", "0.5"],
        [
            "single,",
            "ordered,",
            "fsync",
            "500",
            "500..500",
            "0.50",
            "500",
            "1,000",
            "0.50",
            "1.0",
            "2.0",
            "+",
            "4.0",
            "-",
            "0.5",
        ],
    ]


@pytest.mark.parametrize(("others", "is_named"), [([0.0, 0.9, 1.2], True), ([0.0, 0.1, 1.2], False), ([None], False)])
def test_a_machine_that_was_busy_with_something_else_is_named(others: list[float | None], is_named: bool) -> None:
    found = outcome("mqtt", plain=[10.0], ours=[10.0], variant=Variant("single", "ordered", "none"))
    found.series[0].rushes = [attrs.evolve(rush(10.0), others=value) for value in others]
    text = describe(found, plan_of("mqtt", "mqtt://b"))
    assert ("processors were busy with something else meanwhile" in text) == is_named


def test_what_others_took_is_not_guessed_when_a_process_is_not_seen() -> None:
    meter = CpuMeter({"broker": None}, sees_all=False)
    meter.begin()
    assert meter.read_others(meter.read_ns()) is None


def test_numbers_are_judged_by_their_batches_of_100() -> None:
    rows = [NumbersRow("none", 1, [5.0], [1.0]), NumbersRow("none", 100, [99_999.0, 5.0, 100_000.0], [1.0])]
    assert "MISSED numbers, none: at least 100,000 a second in batches: 99,999" in describe_numbers(rows)


PRINTED = """\
mqtt: MQTT, Mosquitto; 200 bytes
  variant         events/s
  plain              1,000
  met    mqtt, single, ordered, none: at least 0.5 times the plain client's rate: 0.70 [0.60..0.80]
  MISSED mqtt, packed, none: at least 4 times the plain client's rate: 2.00 [1.90..2.10]
"""


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `make prove-02` runs."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return runpy.run_path(str(folder / "prove_02.py"))


def test_a_proof_counts_the_aims_and_names_those_that_are_missed(prove: dict[str, Any]) -> None:
    aims = prove["Aims"]()
    aims.note(PRINTED, ["mqtt, "], " (--run 1)")
    aims.note(PRINTED.replace("MISSED", "met   "), ["mqtt, "], " (--run 100)")
    assert str(aims).splitlines() == [
        "3 of 4 aims met; missed:",
        "    mqtt, packed, none: at least 4 times the plain client's rate: 2.00 [1.90..2.10] (--run 1)",
    ]


def test_a_proof_fails_where_nothing_was_measured(prove: dict[str, Any]) -> None:
    with pytest.raises(sys.modules["proving"].Failed, match="no figure for nats: expected a line 'met' or 'MISSED'"):
        prove["Aims"]().note(PRINTED, ["mqtt, ", "nats, "])


def test_a_proof_reads_what_is_printed_of_numbers(prove: dict[str, Any]) -> None:
    rows = [NumbersRow("none", 100, [200_000.0], [1.0]), NumbersRow("fsync", 100, [5.0], [1.0])]
    aims = prove["Aims"]()
    aims.note(describe_numbers(rows), ["numbers, none: ", "numbers, fsync: "])
    assert aims.judged == 2
    assert aims.missed == ["numbers, fsync: at least 100,000 a second in batches: 5"]


@pytest.fixture
def prove_03(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `make prove-03` runs."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return runpy.run_path(str(folder / "prove_03.py"))


def overhead_point(count: int, percent: float = 0.0, later_ms: float = 0.0) -> Any:
    best = {"subscribers": 5.0, "home": 1.0, "p50_ms": 1.0, "commit_ms": 0.2}
    exactly = {"subscribers": 5.0, "home": 1.0 + percent, "p50_ms": 1.0 + later_ms, "commit_ms": 0.2}
    return sys.modules["overhead"].Point(count, best, exactly)


def test_a_proof_takes_an_overhead_that_the_disk_explains(prove_03: dict[str, Any]) -> None:
    prove_03["check_overhead"]([overhead_point(1, 1.0, 0.4), overhead_point(200, 4.5, 0.6)])


@pytest.mark.parametrize(
    ("percent", "later_ms", "why"),
    [
        (10.5, 0.0, "200 subscriptions: 10.5 percentage points more CPU, and at most 10 were expected"),
        (4.5, 0.0, "grows by 4.5 percentage points from 1 to 200 subscriptions"),
        (0.0, 0.8, "p50 is 0.80 ms later; the disk explains 0.70 ms"),
    ],
)
def test_a_proof_fails_with_the_overhead(prove_03: dict[str, Any], percent: float, later_ms: float, why: str) -> None:
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_03["check_overhead"]([overhead_point(1), overhead_point(200, percent, later_ms)])


def failure_run(
    count: int, nacks: int = 4, off_path_s: float = 0.012, late_s: float = 2.0, faults: int = 0, home: str = "home"
) -> Any:
    """Ten seconds on the path and off it, of which the last seven are the failure."""
    times = [number / 10 for number in range(-25, 70)]
    calm = [(at, 0.004) for at in times if at < 0]
    return sys.modules["failures"].Run(
        failure="link",
        count=count,
        path=[*calm, (0.0, late_s)],
        beside=[*calm, *((at, off_path_s) for at in times if at >= 0)],
        apart=[],
        nacks=[(2.2, home, 20)] * nacks,
        dropped=80 * count,
        faults=["subscriber 0: 1 events came twice"] * faults,
    )


def test_a_proof_takes_a_failure_that_only_those_on_the_path_notice(prove_03: dict[str, Any]) -> None:
    prove_03["check_failures"]([failure_run(1), failure_run(10), failure_run(100, nacks=8)])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"faults": 1}, "link fails, 100 subscribers: subscriber 0: 1 events came twice"),
        ({"late_s": 0.2}, "nothing failed: 8000 events dropped, 4 nacks, at most 0.2 s late"),
        ({"home": "other"}, "the owner was asked by \\['other'\\], not by their home alone"),
        ({"nacks": 0}, "nothing failed: 8000 events dropped, 0 nacks"),
        ({"off_path_s": 0.019}, "p99 off the path was 19.0 ms, and at most 18.0 ms were expected"),
        ({"nacks": 13}, "13.0 nacks at the owner with 100 subscribers, and at most 12.0 were expected"),
        ({"nacks": 9}, "180.0 numbers asked for at the owner with 100 subscribers, and at most 160.0 were expected"),
    ],
)
def test_a_proof_fails_with_a_failure(prove_03: dict[str, Any], given: dict[str, Any], why: str) -> None:
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_03["check_failures"]([failure_run(1), failure_run(100, **given)])


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([1, 2, 4], "1 of 4 events did not come"),
        ([1, 2, 3], "1 of 4 events did not come"),
        ([1, 2, 2, 3, 4], "1 events came twice"),
        ([1, 3, 2, 4], "the numbers of a are not in order"),
        ([1, 3, 2, 4], "in another order than subscriber 0"),
    ],
)
def test_what_subscribers_saw_of_a_failure_is_judged(prove_03: dict[str, Any], seen: list[int], why: str) -> None:
    good, bad = ([("a", number, at) for at, number in enumerate(some, 1)] for some in ([1, 2, 3, 4], seen))
    judge_failure = sys.modules["failures"].judge

    assert judge_failure([good, good], {"a": 4}, ["a"]) == []
    assert why in " ".join(judge_failure([good, bad], {"a": 4}, ["a"]))


def replayed(**given: float) -> dict[str, float]:
    found = {"stage_mb_first": 100.0, "stage_mb": 110.0, "client_mb_first": 50.0, "client_mb": 51.0}
    return {**found, "calm_p99_s": 0.002, "busy_p99_s": 0.003, **given}


def test_a_proof_takes_a_replay_that_costs_others_little(prove_03: dict[str, Any]) -> None:
    prove_03["check_replay"](replayed())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"stage_mb": 120.0}, "the stage had 120 MB later, and at most 115 were expected"),
        ({"client_mb": 120.0}, "the client had 120 MB later, and at most 60 were expected"),
        ({"busy_p99_s": 0.005}, "live p99 of another subscriber is 2.5 times what it is without the replay"),
    ],
)
def test_a_proof_fails_with_a_replay(prove_03: dict[str, Any], given: dict[str, float], why: str) -> None:
    with pytest.raises(sys.modules["proving"].Failed, match=why):
        prove_03["check_replay"](replayed(**given))


def test_a_proof_fails_if_somebody_was_not_told_of_a_full_disk(prove_03: dict[str, Any]) -> None:
    found = sys.modules["full_disk"].Outcome("full", "tmpfs")
    prove_03["check_full_disk"]([found])
    found.faults.append("the subscriber was not told")
    with pytest.raises(sys.modules["proving"].Failed, match="full: the subscriber was not told"):
        prove_03["check_full_disk"]([found])


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ens", "kind"),
    [
        ("mqtts://broker", "mqtt"),
        ("nats://broker", "nats"),
        ("tls://broker?jetstream=EVENTS", "jetstream"),
        ("amqp://broker/vhost", "rabbitmq"),
    ],
)
def test_a_url_says_what_is_measured(ens: str, kind: str) -> None:
    assert kind_of(ens).name == kind


def test_a_broker_without_a_plain_client_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="there is no plain client to compare kafka:// with") as caught:
        kind_of("kafka://user:secret@broker")
    assert "secret" not in str(caught.value)


def test_variants_have_topics_of_their_own() -> None:
    plan = plan_of("mqtt", "mqtt://broker")
    topics = [topic for variant in plan.variants for topic in plan.topics_of(variant)]
    assert len(set(topics)) == 2 * len(plan.variants)
    assert plan.topics_of(PLAIN) == ("ordered-pubsub-bench/n/plain/a", "ordered-pubsub-bench/n/plain/b")


def test_variants_have_streams_of_their_own_if_streams_may_be_made() -> None:
    plan = plan_of("jetstream", "nats://broker?jetstream=EVENTS&create=true&connect_timeout_s=5")
    assert plan.ens_of(Variant("packed", "exactly-once", "none")) == (
        "nats://broker?jetstream=EVENTS-n-packed-exactly-once-none&create=true&connect_timeout_s=5"
    )


def test_a_stream_that_is_there_is_used_by_all_variants() -> None:
    plan = plan_of("jetstream", "nats://broker?jetstream=EVENTS")
    assert plan.ens_of(PLAIN) == plan.ens


def test_packed_variants_are_measured_if_they_are_wanted() -> None:
    assert [v.label for v in variants_of(("ordered",), ("none", "fsync"), False)] == [
        "plain",
        "single, ordered, none",
        "single, ordered, fsync",
    ]
    assert [v.label for v in variants_of(("ordered", "exactly-once"), ("none",), True)] == [
        "plain",
        "single, ordered, none",
        "single, exactly-once, none",
        "packed, ordered, none",
        "packed, exactly-once, none",
    ]


# -- counting ---------------------------------------------------------------------------------------------------------


def test_a_payload_says_when_it_was_published_and_in_which_phase() -> None:
    payload = make_payload(7, 123_456_789_012)
    assert len(payload) == PAYLOAD_BYTES
    assert read_payload(payload) == (123_456_789_012, 7)


def test_a_tally_is_complete_with_its_last_event_and_knows_what_came_too_much() -> None:
    completed: list[int] = []
    tally = BenchTally(lambda: completed.append(tally.count))
    tally.begin(phase=3, expected=2, is_timed=True)
    for _ in range(3):
        tally.take(make_payload(3))
    assert (completed, tally.surplus, tally.last_phase, len(tally.latencies_ns)) == ([2], 1, 3, 3)


class Scripted:
    """A worker that says what a test wants."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self.name = "a subscriber"
        self._said = list(said)

    def ask(self, **what: Any) -> dict[str, Any]:
        return self._said.pop(0)

    hear = ask


def team_of(*said: dict[str, Any]) -> Team:
    publisher: Any = Scripted({"first_ns": 1_000, "confirmed_ns": 5_000})
    subscriber: Any = Scripted(*said)
    return Team(PLAIN, publisher, [subscriber], CpuMeter({}))


def test_a_rush_lasts_from_the_first_publication_to_the_last_notification() -> None:
    team = team_of({"surplus": 0}, {"phase": 1, "last_ns": 1_001_000, "latencies_ns": []})
    assert team.rush(10) == Rush(events=10, seconds=0.001, cpu_ns={})


def test_events_that_came_twice_are_not_taken_for_events() -> None:
    with pytest.raises(BenchError, match="was given 2 events more than were published"):
        team_of({"surplus": 2}).rush(10)


def test_an_event_of_an_earlier_phase_does_not_count_for_this_one() -> None:
    with pytest.raises(BenchError, match="is of phase 0, and phase 1 was measured"):
        team_of({"surplus": 0}, {"phase": 0, "last_ns": 9, "latencies_ns": []}).rush(10)


def test_processor_time_of_a_process_only_grows_where_it_can_be_seen() -> None:
    before = cpu_ns(os.getpid())
    sum(range(10_000))
    after = cpu_ns(os.getpid())
    if sys.platform == "linux":
        assert before is not None
        assert after is not None
        assert after > before
    else:
        assert (before, after) == (None, None)


def test_processor_time_of_nobody_is_not_known() -> None:
    assert cpu_ns(None) is None


# -- profiles ---------------------------------------------------------------------------------------------------------


def test_a_profile_names_functions_and_leaves_out_those_that_wait(tmp_path: Path) -> None:
    profile = Profile()
    profile.runcall(make_payload, 1)
    profile.dump_stats(str(tmp_path / "some.pstats"))
    costs = read_costs(tmp_path / "some.pstats")
    assert any("bench/sides.py" in cost.where and cost.calls == 1 for cost in costs)
    assert is_waiting("<method 'poll' of 'select.epoll' objects>")
    assert not is_waiting("client/outgoing/publisher.py:146(_put)")


def test_costs_are_shares_of_what_is_shown_and_times_per_event() -> None:
    text = describe_costs("title", [Cost("dear", 3e-3, 20), Cost("cheap", 1e-3, 10)], events=10)
    assert [line.split() for line in text.splitlines()[2:]] == [
        ["dear", "75.0%", "300.00", "2.00"],
        ["cheap", "25.0%", "100.00", "1.00"],
    ]


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of the arguments --ens --broker --all --numbers is required"),
        (["--ens", "memory://"], "memory:// has no broker that could be compared"),
        (["--ens", "mqtt://b", "--sequencer", "ops://s", "--durability", "none"], "--durability is for a stage"),
        (["--numbers", "--packed"], "--numbers measures a stage of its own"),
        (["--all", "--rounds", "0"], "'0' does not fit; expected a whole number from 1"),
        (["--all", "--seconds", "soon"], "'soon' does not fit; expected a number from 0.05"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_page_about_the_command_line_has_the_help_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option with its words."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    assert said[said.index("options:") : said.index("examples:")].strip() in page
