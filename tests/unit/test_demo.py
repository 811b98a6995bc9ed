"""The command line, and the demonstration that it shows."""

from __future__ import annotations

import argparse
import json
import random
import re
from itertools import combinations

import attrs
import pytest

from ordered_pubsub import __version__
from ordered_pubsub.cli import demo, main
from ordered_pubsub.cli.demonstration import DemoPlan, Result, count_disagreements


def by_hand(one: list[str], two: list[str]) -> int:
    """Disagreeing pairs, counted one by one."""
    return sum(
        (one.index(a) < one.index(b)) != (two.index(a) < two.index(b))
        for a, b in combinations(one, 2)
        if {a, b} <= {*two}
    )


def test_equal_orders_do_not_disagree() -> None:
    """Whatever is in them."""
    assert count_disagreements([], []) == 0
    assert count_disagreements(list("abc"), list("abc")) == 0


def test_a_planted_swap_is_found() -> None:
    """Wherever it is: one swap of neighbours is one pair."""
    order = [str(number) for number in range(50)]
    for place in range(49):
        swapped = order.copy()
        swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
        assert count_disagreements(order, swapped) == count_disagreements(swapped, order) == 1


def test_the_reverse_order_disagrees_in_all_pairs() -> None:
    """There cannot be more."""
    order = [str(number) for number in range(100)]

    assert count_disagreements(order, order[::-1]) == 100 * 99 // 2


@pytest.mark.parametrize("seed", range(20))
def test_disagreements_are_those_that_are_found_by_hand(seed: int) -> None:
    """Also if some elements are in one of the two only."""
    draw = random.Random(seed)
    one, two = list("abcdefghijkl"), list("cdefghijklmn")
    draw.shuffle(one)
    draw.shuffle(two)

    assert count_disagreements(one, two) == by_hand(one, two)


def test_the_demo_shows_that_the_ens_disagrees_and_the_notifications_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    """As one JSON object, all of it counted."""
    assert main(["demo", "--json", "--events", "400"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert (shown["events"], shown["subscribers"], shown["topics"], shown["publishers"]) == (400, 2, 4, 3)
    assert shown["ens_disagreements"] > 0
    assert (shown["ordered_disagreements"], shown["missing"]) == (0, 0)
    assert shown["pairs"] == 400 * 399 // 2


def test_the_table_shows_both_orders_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Fifteen rows within 100 columns, without colours in a pipe."""
    assert main(["demo"]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.match(r" +\d+  ", line)]
    assert len(rows) == 15
    assert all(row.endswith("same") for row in rows)
    assert any("differ" in row for row in rows)
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() and line.isprintable() for line in lines)
    counts = dict(re.findall(r"^([a-z][A-Za-z ]+?)  +([\d,]+)$", "\n".join(lines), re.MULTILINE))
    assert counts["events"] == "1,000"
    assert counts["pairs notified in different order"] == "0"
    assert counts["pairs that the ENS gave in different order"] != "0"


def test_the_same_seed_shows_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    """And another seed something else."""

    def show(seed: str) -> str:
        main(["demo", "--events", "100", "--seed", seed])
        return capsys.readouterr().out.partition("took")[0]

    assert show("1") == show("1") != show("2")


@pytest.mark.parametrize("arguments", [["--topics", "1"], ["--topics", "7"], ["--events", "1"], ["--publishers", "9"]])
def test_the_demo_can_be_made_bigger_and_smaller(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By each of its numbers."""
    assert main(["demo", "--events", "50", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ordered_disagreements"] == 0


@pytest.mark.parametrize(
    ("environment", "is_terminal", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"NO_COLOR": ""}, True, True), ({}, False, False)],
)
def test_colours_are_for_terminals_that_want_them(
    environment: dict[str, str],
    is_terminal: bool,
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """NO_COLOR turns them off, unless it is empty."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    main(["demo", "--events", "50"])

    assert ("\x1b[" in capsys.readouterr().out) == coloured


def planted(swap: bool = False, lose: bool = False, twice: bool = False) -> Result:
    """A result with something wrong."""
    order = ["x", "y", "z"]
    other = ["y", "x", "z"] if swap else ["x", "z"] if lose else ["x", "x", "y", "z"] if twice else order
    return Result([order, order[::-1]], [order, other], {key: f"topic {key}" for key in order}, 0.1)


@pytest.mark.parametrize("wrong", ["swap", "lose", "twice"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_what_is_wrong_is_seen(
    wrong: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the exit code and in what is printed."""

    async def run(plan: DemoPlan) -> Result:
        return planted(**{wrong: True})

    monkeypatch.setattr(demo, "run", run)

    assert main(["demo", *arguments]) == 1
    out = capsys.readouterr().out
    if arguments:
        shown = json.loads(out)
        assert (shown["ordered_disagreements"], shown["missing"]) == ((1, 0) if wrong == "swap" else (0, 1))
    else:
        assert re.search(r"(different order|notified twice) +1$", out, re.MULTILINE)


def test_a_good_result_is_good() -> None:
    """So that the one above means something."""
    assert planted().is_good
    assert planted().ens_disagreements == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--events", "0"], "argument --events: '0' does not fit; expected a whole number from 1 to 100000"),
        (["demo", "--topics", "x"], "argument --topics: 'x' does not fit"),
        (["demo", "--publishers", "101"], "argument --publishers: '101' does not fit"),
        (["demo", "--seed", "-1"], "argument --seed"),
        (["demo", "--colour"], "unrecognized arguments: --colour"),
        (["perform"], "invalid choice: 'perform'"),
        ([], "arguments are required: COMMAND"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code that says so."""
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        ([], {"ORDERED_PUBSUB_TIMEOUT_S": "soon"}, "ORDERED_PUBSUB_TIMEOUT_S: client.timeout_s='soon' does not fit"),
        (["--sequencer", "ops://x"], {}, "--sequencer goes with --ens"),
        (["--ens", "gopher://x"], {}, "ens='gopher://x': no adapter for gopher://"),
        (
            ["--ens", "memory://x", "--sequencer", "x:1"],
            {},
            "argument sequencer: client.sequencer[0]='x:1' does not fit",
        ),
    ],
)
def test_what_cannot_be_given_is_said_in_a_line(
    arguments: list[str],
    environment: dict[str, str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a traceback."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert main(["demo", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ordered-pubsub demo: {complaint}")


def test_the_ens_may_lose_what_it_likes(capsys: pytest.CaptureFixture[str]) -> None:
    """The stage of the demonstration keeps all events: everybody sees them, in one order."""
    assert main(["demo", "--ens", "memory://x?lose=0.3&seed=1", "--events", "50", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["missing"], shown["ordered_disagreements"]) == (0, 0)


def test_the_demo_itself_needs_no_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the environment names for other clients."""
    monkeypatch.setenv("ORDERED_PUBSUB_SEQUENCER", "ops://127.0.0.1:9")
    monkeypatch.setenv("ORDERED_PUBSUB_ENS", "mqtt://127.0.0.1:9")

    assert main(["demo", "--events", "50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ens"].startswith("memory://demo-")


def test_another_ens_is_shown_with_a_stage_in_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    """What it gave is counted against the order of the numbers as well."""
    assert main(["demo", "--ens", "memory://other?reorder=0.5", "--events", "200", "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["ens"] == "memory://other?reorder=0.5"
    assert (shown["events"], shown["ordered_disagreements"], shown["missing"]) == (200, 0, 0)
    assert shown["ens_disagreements"] > 0
    assert min(shown["ens_against_order"]) > 0


def test_an_ens_without_disorder_is_said_to_have_shown_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is made up."""
    assert main(["demo", "--ens", "memory://tidy", "--events", "200"]) == 0

    out = capsys.readouterr().out
    assert "the ENS: memory://tidy; the stage: in this process" in out
    assert re.search(r"^pairs that the ENS gave in different order +0$", out, re.MULTILINE)
    assert "This time the ENS gave both subscribers the same order" in out
    assert "ordered-pubsub-demo/" not in out  # topics are shown without what keeps them apart from others


def test_disorder_is_not_explained_away(capsys: pytest.CaptureFixture[str]) -> None:
    """The remark is for an ENS that has shown none."""
    assert main(["demo", "--ens", "memory://other?reorder=0.5", "--events", "200"]) == 0
    assert "This time" not in capsys.readouterr().out


def test_pairs_against_the_order_are_counted_for_each_subscriber() -> None:
    """By what the ENS gave to it, and what it was notified of."""
    result = Result([["x", "y", "z"], ["z", "y", "x"]], [["x", "y", "z"]] * 2, {}, 0.1)
    assert result.against_order == [0, 3]


def test_topics_on_a_broker_are_the_demos_own() -> None:
    """A broker may have others of these names."""
    first, second = (
        demo._plan(
            argparse.Namespace(seed=1, topics=2, publishers=1, events=1, ens="x", sequencer=None, token_file=None)
        )
        for _ in range(2)
    )
    assert all(name.startswith("ordered-pubsub-demo/") for name in first.topic_names)
    assert not {*first.topic_names} & {*second.topic_names}


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """For the whole and for the command."""
    for arguments in (["--help"], ["demo", "--help"]):
        assert main(arguments) == 0
        assert "  ordered-pubsub demo\n" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """On one line."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ordered-pubsub {__version__}\n"


def test_the_plan_names_its_topics() -> None:
    """As many as asked for, all different."""
    plan = DemoPlan(seed=1, topics=100, publishers=1, events=1)

    assert len(set(plan.topic_names)) == 100
    assert attrs.evolve(plan, topics=2).topic_names == ["trades", "quotes"]
