"""What failures cost while they last is measured, and judged: the benchmark, in short."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is on the path, as it is for whoever runs it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.usefixtures("benchmarks")
async def test_who_missed_events_asks_the_owner_for_them_and_has_all_of_them_in_order() -> None:
    import failures

    (run,) = await failures.measure(("link",), (1,), 1)

    assert run.faults == []
    assert run.dropped > 0
    assert {home for _, home, _ in run.nacks} == {"home"}
