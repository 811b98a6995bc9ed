"""A short run of each target, always the same one; `make fuzz` runs longer ones, always others."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec import MsgspecError

from fuzz import live, pure
from fuzz.live import Bench, LiveTarget
from fuzz.run import TARGETS, Cases, fuzz
from ordered_pubsub.core.filters._writing import write
from ordered_pubsub.errors import FilterError

pytestmark = pytest.mark.heavy

COUNTS = {"streams": 300, "configuration": 1_500, "arrivals": 1_000, "ens-urls": 1_500, "tls": 1_000}
COUNT = 3_000


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_what_is_documented_comes_of_anything(target: str) -> None:
    fuzz(Cases(target, seed=1, count=COUNTS.get(target, COUNT)))


@pytest.mark.parametrize("target", pure.TARGETS)
def test_the_same_seed_is_the_same_run(target: str) -> None:
    one, two = (list(Cases(target, seed=3, count=5)) for _ in range(2))

    assert [random.random() for random in one] == [random.random() for random in two]


# -- it would find something ------------------------------------------------------------------------------------------


def test_an_error_that_is_not_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.wire.framing.UNREADABLE", (MsgspecError, RecursionError))

    with pytest.raises(UnicodeDecodeError):
        fuzz(Cases("stamps", seed=1, count=COUNT))


def test_a_refusal_that_does_not_say_where_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ordered_pubsub.core.filters._grammar.pointed", lambda message, text, place: FilterError(message)
    )

    with pytest.raises(AssertionError):
        fuzz(Cases("filters", seed=1, count=COUNT))


def test_a_filter_that_is_written_as_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.core.filters.filter.write", lambda found: write(found).replace("<=", "<"))

    with pytest.raises(AssertionError):
        fuzz(Cases("filters", seed=1, count=COUNT))


def test_a_stage_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it did, when it took from other stages what goes to stages that do not exist."""
    monkeypatch.setattr("ordered_pubsub.core.stage.driver.check_durable", lambda message, stages: None)

    with pytest.raises(Exception, match="met what it cannot handle"):
        fuzz(Cases("peer-frames", seed=1, count=COUNT))


async def _leave_behind(bench: Bench, random: Random) -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await bench.check()


async def _grow(bench: Bench, random: Random) -> None:
    bench._began_bytes -= live.GROWTH_BYTES_MAX
    await bench.check()


@pytest.mark.parametrize(
    ("work", "message"),
    [(_leave_behind, "ZeroDivisionError"), (_grow, "grown too much")],
)
def test_what_a_case_leaves_behind_is_found(work: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(live.TARGETS, "broken", LiveTarget(work, live.TABLES))  # type: ignore[arg-type]

    with pytest.raises(AssertionError, match=message):
        fuzz(Cases("broken", seed=1, count=2 * live.CHECK_EVERY))


def test_a_stage_that_serves_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_pubsub.server.stage.node.Node.handle_requests", lambda self, requests, refusals: None)
    monkeypatch.setattr(live, "SERVE_S", 1.0)
    monkeypatch.setitem(live.TARGETS, "deaf", LiveTarget(live.first_frame, live.TABLES))  # type: ignore[index]

    with pytest.raises(AssertionError):
        fuzz(Cases("deaf", seed=1, count=2 * live.CHECK_EVERY))
