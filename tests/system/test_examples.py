"""The examples run as their users run them, and show what they say: disorder without the order, and none with it."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoServersError

import ordered_pubsub
from ordered_pubsub.errors import UnavailableError
from ordered_pubsub.testing.brokers import Mosquitto, free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
SURROUNDINGS = "surroundings.py"
"""What the others share; nothing to run."""
SCHEMES = {
    "stock_ticker.py": "mqtt",
    "chat_rooms.py": "nats",
    "command_and_control.py": "amqp",
    "exactly_once_sqlite.py": "mqtt",
}
PROGRAMS = {"mqtt": "mosquitto", "nats": "nats-server", "amqp": "rabbitmq-server"}
PATIENCE_S = 240.0

WITHOUT_A_BROKER = """
import runpy, sys
from ordered_pubsub.testing import brokers
brokers.FOLDERS = ()
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a file on a machine where no broker is found."""


def execute(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python with nothing in its environment that chooses a broker, but what is said here."""
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith("ORDERED_PUBSUB_")}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**cleaned, **environment},
    )


def run(name: str, *arguments: str, **environment: str) -> str:
    """What an example prints that ends well."""
    done = execute(str(EXAMPLES / name), *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def last_counts(pattern: str, output: str) -> list[tuple[str, int]]:
    """Of each kind of run (`without the order, round 2`, `with the order`), what was counted; the last of each."""
    found = re.findall(rf"^(with(?:out)? the order)(?:, round \d+)?: {pattern}", output, re.MULTILINE)
    return [(kind, int(count.replace(",", ""))) for kind, count in dict(found).items()]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an example defines."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return runpy.run_path(str(EXAMPLES / name))


def test_two_desks_agree_on_every_spread() -> None:
    assert "the desks agree on every spread: True" in run("two_desks.py")


def test_trading_desks_in_two_cities_agree_with_the_order_only() -> None:
    output = run("stock_ticker.py")

    (without, disagreed), (with_it, disagreements) = last_counts(r"the desks disagree on (\d+) of 400 trades", output)
    assert (without, with_it) == ("without the order", "with the order")
    assert disagreed > 0
    assert disagreements == 0
    assert "the ledgers are the same, line by line: True" in output


def test_trading_desks_agree_over_one_broker_that_runs_already() -> None:
    with Mosquitto() as broker:
        output = run("stock_ticker.py", ORDERED_PUBSUB_ENS=broker.url)

    assert last_counts(r"the desks disagree on (\d+) of 400 trades", output)[-1] == ("with the order", 0)


def test_no_answer_is_read_before_its_question_with_the_order_only() -> None:
    output = run("chat_rooms.py")

    (without, early), (with_it, none) = last_counts(r"(\d+) answers were read before their questions", output)
    differing = re.findall(r"([\d,]+) times two members read two messages in different order", output)
    assert (without, with_it) == ("without the order", "with the order")
    assert early > 0
    assert none == 0
    assert differing[-2] != "0"
    assert differing[-1] == "0"


def test_all_units_decide_as_headquarters_with_the_order_only() -> None:
    output = run("command_and_control.py")

    pattern = r"(\d+) of [\d,]+ decisions are not those of headquarters"
    (without, differed), (with_it, differing) = last_counts(pattern, output)
    missing = re.findall(r"(\d+) are missing", output)
    assert (without, with_it) == ("without the order", "with the order")
    assert differed > 0
    assert (differing, missing[-1]) == (0, "0")
    assert re.search(r"decided on the last [1-9]\d* of its 180 targets", output)


def test_payments_are_booked_exactly_once_by_their_numbers_only() -> None:
    output = run("exactly_once_sqlite.py")

    found = re.findall(
        r"^(.*): (\d+) bookings of 600 payments, ([\d,]+) in all; published were ([\d,]+)$", output, re.MULTILINE
    )
    (careless, too_many, _, published), (careful, bookings, booked, expected) = found
    again = re.search(
        r"^killed 4 times each; ([1-9]\d*) payments came again and were recognised$", output, re.MULTILINE
    )
    assert (careless, careful) == ("without looking at the numbers", "looking at the numbers")
    assert int(too_many) > 600
    assert (bookings, booked) == ("600", expected)
    assert expected == published
    assert again


def test_payments_are_booked_over_one_broker_that_runs_already() -> None:
    with Mosquitto() as broker:
        output = run("exactly_once_sqlite.py", "--ens", broker.url)

    assert "\nlooking at the numbers: 600 bookings of 600 payments" in output


def test_what_is_encrypted_is_read_by_subscribers_only() -> None:
    on_the_broker, at_the_subscriber = run("encrypted.py").splitlines()

    assert re.fullmatch(r"on the broker:  gAAAAA[\w-]{18} \.\.\.", on_the_broker)
    assert at_the_subscriber == "the subscriber: {'name': 'Ada', 'amount': 1815}"


def test_books_that_are_not_exact_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("exactly_once_sqlite.py", monkeypatch)
    published = sum(amount for _, amount in example["PAYMENTS"])

    def judge(bookings: int, booked: int) -> bool:
        return bool(example["judge"]("a test", example["Total"](booked, bookings, again=3)))

    assert judge(600, published)
    assert not judge(601, published)
    assert not judge(600, published - 1)


@pytest.mark.parametrize(("dies", "expected"), [("never", 0), ("before commit", 17)])
def test_a_process_that_keeps_no_books_is_named(dies: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("exactly_once_sqlite.py", monkeypatch)

    with pytest.raises(UnavailableError, match=rf"expected the process .* to end with {expected}, and it did with 1;"):
        asyncio.run(example["live"]({"dies": dies}))


@pytest.mark.parametrize("name", SCHEMES)
def test_an_example_says_which_broker_is_missing_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    done = execute("-c", WITHOUT_A_BROKER, str(EXAMPLES), str(EXAMPLES / name), PATH=str(tmp_path))

    program = PROGRAMS[SCHEMES[name]]
    assert done.returncode == 1
    assert f"expected {program} on PATH" in done.stderr
    assert f"apt-get install -y {program}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "scheme"), SCHEMES.items())
def test_an_example_says_which_broker_cannot_be_reached(name: str, scheme: str) -> None:
    address = f"127.0.0.1:{free_port()}"

    done = execute(str(EXAMPLES / name), "--ens", f"{scheme}://{address}")

    assert done.returncode == 1
    assert address in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "scheme"), SCHEMES.items())
@pytest.mark.parametrize("source", ["--ens", "ORDERED_PUBSUB_ENS"])
def test_an_example_refuses_the_url_of_another_kind_of_broker(name: str, scheme: str, source: str) -> None:
    """Such as one that is still exported from the steps of README.md; its password is not shown."""
    url = next(f"{other}://user:secret@127.0.0.1:1883" for other in SCHEMES.values() if other != scheme)
    is_option = source == "--ens"

    done = execute(str(EXAMPLES / name), *(["--ens", url] if is_option else []), **({} if is_option else {source: url}))

    assert done.returncode == 2
    assert f"{source}: expected the URL of a broker that this example is about ({scheme}://host:port)" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_that_lets_only_our_adapter_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain client of the chat rooms fails with an error of nats-py's."""
    example = load("chat_rooms.py", monkeypatch)

    class Nats:
        @staticmethod
        async def connect(url: str, **options: Any) -> None:
            raise NoServersError

    async def joining(join: Any) -> None:
        async with AsyncExitStack() as stack:
            await join(stack, (), None)

    monkeypatch.setitem(example["show"].__globals__, "nats", Nats)
    monkeypatch.setitem(example["show"].__globals__, "talk", joining)
    monkeypatch.setattr(ordered_pubsub, "connect", lambda *_, **__: AsyncExitStack())
    with pytest.raises(UnavailableError, match=r"expected nats://b to let nats-py in; it does not: NoServersError"):
        asyncio.run(example["show"](["nats://b"], []))


def test_pairs_in_different_order_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    count = load(SURROUNDINGS, monkeypatch)["count_differing_pairs"]

    assert count("abcde", "abcde") == 0
    assert count("abcde", "bacxe") == 1
    assert count("abcd", "dcba") == 6


def test_headquarters_notice_other_decisions_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("command_and_control.py", monkeypatch)
    units, alpha = example["UNITS"], example["ALPHA"]

    def judge(**reported: dict[str, bool]) -> bool:
        headquarters = example["Headquarters"]()
        headquarters.see(alpha, {"target": "one"})
        headquarters.see(example["RULES"], {"rule": "open fire"})
        headquarters.see(alpha, {"target": "two"})
        for unit, group in units.items():
            for target, has_fired in reported.get(
                unit[-1:], {"one": False, "two": True} if group == alpha else {}
            ).items():
                headquarters.hear(unit, target, has_fired)
        return bool(headquarters.judge("a test"))

    assert not judge()
    assert judge(**{"2": {"one": True, "two": True}})
    assert judge(**{"2": {"two": True}})
    assert judge(**{"2": {"one": False}})
    assert not judge(**{"4": {"two": True}}), "somebody who joined misses nothing from then on"
    assert judge(**{"4": {"one": False}})


def test_every_example_is_run_and_described() -> None:
    source, page = Path(__file__).read_text(), (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")} - {SURROUNDINGS}
    assert len(names) >= 5
    with_spark = (
        Path(__file__).parents[2] / "benchmarks" / "pipeline_kills.py"
    ).read_text()  # tests/spark/test_proofs.py
    assert {name for name in names if f'run("{name}"' not in source and f'/ "{name}"' not in with_spark} == set()
    assert {name for name in names if f"[{name}]({name})" not in page} == set()
