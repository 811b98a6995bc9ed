"""Mosquitto, with each quality of service; and with paho alone, as with a release that ours does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import pytest

from conformance.brokered import RELIABLE, checks_of, subject_of
from ordered_pubsub.adapter import Frame
from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.testing.brokers import Mosquitto
from ordered_pubsub.testing.conformance import run_check
from ordered_pubsub.testing.conformance.peers import opened
from ordered_pubsub_adapters import _mqtt_fast

BROKER = Mosquitto()
SUBJECTS = {
    "qos0": subject_of(BROKER, "?qos=0", attrs.evolve(RELIABLE, loses=True, confirms=False)),
    "qos1": subject_of(BROKER, "?qos=1", attrs.evolve(RELIABLE, duplicates=True, keeps_while_away=True)),
    "sessionless": subject_of(BROKER, "?qos=1&session_s=0", attrs.evolve(RELIABLE, duplicates=True)),
    "qos2": subject_of(BROKER, "?qos=2", attrs.evolve(RELIABLE, keeps_while_away=True)),
    "qos0-alone": subject_of(BROKER, "?qos=0", attrs.evolve(RELIABLE, loses=True, confirms=False)),
    "qos1-alone": subject_of(BROKER, "?qos=1", attrs.evolve(RELIABLE, duplicates=True, keeps_while_away=True)),
}


@pytest.fixture(scope="module", autouse=True)
def _broker() -> Iterator[None]:
    with BROKER:
        yield


async def test_a_broker_that_takes_little_takes_as_much_as_it_names() -> None:
    """Mosquitto's own limit is far beyond what anybody would publish."""
    with Mosquitto(max_packet_size=100_000) as broker:
        small = subject_of(broker, "?qos=1", SUBJECTS["qos1"].capabilities)
        async with opened(small) as (peer,):
            assert peer.adapter.frame_bytes_max == 100_000
        await run_check("the_largest_frame_is_taken", small)


async def ignore(frames: Sequence[Frame]) -> None:
    """Take them."""


@pytest.mark.parametrize(("kind", "name"), checks_of(SUBJECTS))
async def test_mqtt(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check that applies to this quality of service."""
    if kind.endswith("-alone"):
        monkeypatch.setattr(_mqtt_fast, "_found", [False])
    elif kind == "qos2" and not _mqtt_fast.is_fit():
        adapter = SUBJECTS[kind].make()
        with pytest.raises(ConfigurationError, match="does not do QoS 2"):
            await adapter.open(ignore, lambda is_connected, reason: None)
        return
    await run_check(name, SUBJECTS[kind])
