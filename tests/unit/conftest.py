"""What tests of several modules share."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ordered_pubsub.core.levels import ORDERED, Levels
from ordered_pubsub.embedded import EmbeddedHome


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell of whoever runs the tests has set does not matter."""
    for name in ("ORDERED_PUBSUB_ENS", "ORDERED_PUBSUB_SEQUENCER", "ORDERED_PUBSUB_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url() -> str:
    """A system of its own."""
    return f"memory://test-{uuid4().hex}"


@pytest.fixture
def ordered_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """All topics of embedded stages give "ordered": nobody keeps their events, as with stages whose configuration says so."""
    monkeypatch.setattr(EmbeddedHome, "levels", Levels((("**", ORDERED),)))
