"""What tests of several modules share."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.levels import ORDERED, Levels
from ordered_pubsub.embedded import EmbeddedHome


@pytest.fixture
def ordered_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """All topics of embedded stages give "ordered": nobody keeps their events, as with stages whose configuration says so."""
    monkeypatch.setattr(EmbeddedHome, "levels", Levels((("**", ORDERED),)))
