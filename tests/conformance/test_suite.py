"""The suite itself: each check can fail, for the reason that it is there for, and quotes what really was promised."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import attrs
import pytest

import ordered_pubsub.adapter
from conformance.faulty import FAULTS
from conformance.hub import Hub
from ordered_pubsub.errors import UsageError
from ordered_pubsub.testing.brokers import Broker, Mosquitto
from ordered_pubsub.testing.conformance import CHECKS, ConformanceError, Subject, applicable, run_check
from ordered_pubsub.testing.conformance.content import LARGEST_HEADERS, Headers
from ordered_pubsub.wire.event_frames import check_headers
from ordered_pubsub_adapters.mqtt import MqttAdapter
from ordered_pubsub_hub.adapter import CAPABILITIES, HubAdapter

ROOT = Path(__file__).resolve().parents[2]
HUB = Hub()
MOSQUITTO = Mosquitto()


@pytest.fixture(scope="module", autouse=True)
def _brokers() -> Iterator[None]:
    with HUB, MOSQUITTO:
        yield


def subject_of(fault: str) -> Subject:
    """A faulty adapter, which claims whatever lets the check apply."""
    adapter, check, patience_s = FAULTS[fault].adapter, FAULTS[fault].check, FAULTS[fault].patience_s
    memory = f"memory://{uuid4().hex}"
    subject = Subject(make=lambda: adapter(memory), capabilities=CAPABILITIES, patience_s=patience_s)
    if issubclass(adapter, (HubAdapter, MqttAdapter)):
        broker: Broker = HUB if issubclass(adapter, HubAdapter) else MOSQUITTO
        subject = Subject(
            make=lambda: adapter(broker.url),
            capabilities=CAPABILITIES,
            kill=broker.kill,
            start=broker.start,
            make_at=lambda host, port: adapter(broker.url_at(host, port)),
            address=lambda: broker.address,
            patience_s=patience_s,
            silence_s=patience_s,
        )
    if not CHECKS[check].applies(subject):
        keeps = attrs.evolve(CAPABILITIES, keeps_while_away=True)
        subject = attrs.evolve(subject, capabilities=keeps, keeps_when_killed=True)
    return subject


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_found(fault: str) -> None:
    """By its check, and for its reason."""
    with pytest.raises(ConformanceError, match=re.escape(FAULTS[fault].because)):
        await run_check(FAULTS[fault].check, subject_of(fault))


def test_every_check_has_a_fault_that_it_finds() -> None:
    """A check that cannot fail says nothing."""
    assert set(CHECKS) - {fault.check for fault in FAULTS.values()} == set()


@pytest.mark.parametrize("headers", LARGEST_HEADERS)
def test_the_largest_headers_are_the_largest_that_a_client_lets_through(headers: Headers) -> None:
    """Whoever lets more through has to have it tried."""
    assert check_headers(headers) == headers
    with pytest.raises(UsageError, match="at most 32768 are allowed"):
        check_headers({**headers, "y": "y" * 64})


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_check_quotes_was_promised(name: str) -> None:
    """By the interface, or by the page that tells how to write an adapter."""
    page = (ROOT / "docs" / "write-an-adapter.md").read_text(encoding="utf-8")
    promised = " ".join((inspect.getsource(ordered_pubsub.adapter) + page).split())
    assert CHECKS[name].promise in promised


async def test_a_check_that_does_not_apply_is_not_passed() -> None:
    """It is refused, and is not among the applicable ones."""
    subject = Subject(make=lambda: HubAdapter(HUB.url), capabilities=CAPABILITIES)
    assert "what_is_missed_is_kept" not in applicable(subject)
    with pytest.raises(UsageError, match="does not apply"):
        await run_check("what_is_missed_is_kept", subject)


async def test_an_unknown_check_is_refused() -> None:
    """With the names of those that there are."""
    with pytest.raises(UsageError, match="close_is_final"):
        await run_check("no such check", Subject(make=lambda: HubAdapter(HUB.url), capabilities=CAPABILITIES))
