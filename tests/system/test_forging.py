"""The proofs of authentic events in small: somebody forges on real brokers, and two systems share one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its programs can be imported."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield
    for name in ("forging", "two_systems"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("broker", ["mqtt", "nats", "jetstream", "rabbitmq"])
def test_nothing_that_is_forged_on_a_broker_is_notified_and_nothing_is_lost(broker: str) -> None:
    import forging

    assert forging.main(["--brokers", broker, "--events", "2000"]) == 0


def test_two_systems_on_one_broker_and_the_same_topics_do_not_notice_each_other() -> None:
    import two_systems

    assert two_systems.main(["--events", "1000", "--kills", "1"]) == 0
