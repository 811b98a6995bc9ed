"""What the tests of the blocking client share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.threads import ours, until
from ordered_pubsub import sync


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Whatever a test does, the loop ends with its last client."""
    yield
    until(lambda: not ours())


@pytest.fixture
def client(url: str) -> Iterator[sync.Client]:
    with sync.connect(url) as client:
        yield client
