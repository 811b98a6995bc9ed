"""RabbitMQ, with durable queues and without."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from conformance.brokered import RELIABLE, checks_of, subject_of
from ordered_pubsub.testing.brokers import RabbitMq
from ordered_pubsub.testing.conformance import run_check
from ordered_pubsub_adapters import rabbitmq

BROKER = RabbitMq()
SHOWN = attrs.evolve(RELIABLE, reorders=True, duplicates=True, keeps_while_away=True)
SUBJECTS = {
    "durable": subject_of(BROKER, "", SHOWN, keeps_when_killed=True),
    "transient": subject_of(BROKER, "?durable=false", attrs.evolve(SHOWN, loses=True)),
}


@pytest.fixture(scope="module", autouse=True)
def _broker() -> Iterator[None]:
    with BROKER:
        yield


@pytest.mark.parametrize(("kind", "name"), checks_of(SUBJECTS))
async def test_rabbitmq(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check that applies to this kind."""
    if name == "a_silent_line_is_left":
        monkeypatch.setattr(rabbitmq, "HEARTBEAT_S", 2)  # it is left as surely after 20 seconds, only later
    await run_check(name, SUBJECTS[kind])
