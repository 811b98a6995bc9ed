"""The ENS in the process passes the suite that every other one has to pass, also while it misbehaves."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ordered_pubsub.adapter import Capabilities, load_adapter
from ordered_pubsub.testing.conformance import Subject, applicable, run_check


def subject(query: str = "", **claims: bool) -> Subject:
    """A system of its own, and what it is claimed to be."""
    url = f"memory://conformance-{uuid4().hex}{query}"
    honest = {"loses": False, "reorders": False, "duplicates": False, "keeps_while_away": False}
    capabilities = Capabilities(**{**honest, "carries_headers": True, "confirms": True, **claims})
    return Subject(make=lambda: load_adapter(url), capabilities=capabilities)


SUBJECTS = {
    "reliable": subject(),
    "reorders": subject("?reorder=0.4&seed=1", reorders=True),
    "repeats": subject("?duplicate=0.4&seed=2", duplicates=True),
    "slow": subject("?delay_s=0.01"),
    "loses": subject("?lose=0.2&reorder=0.2&duplicate=0.2&seed=3", loses=True, reorders=True, duplicates=True),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, one in SUBJECTS.items() for name in applicable(one)])
async def test_memory(kind: str, name: str) -> None:
    """Each check that applies to this kind."""
    await run_check(name, SUBJECTS[kind])
