"""Subjects of the suite that are adapters to brokers of our own."""

from __future__ import annotations

from ordered_pubsub.adapter import Adapter, Capabilities, load_adapter
from ordered_pubsub.testing.brokers import Broker
from ordered_pubsub.testing.conformance import Subject, applicable

RELIABLE = Capabilities(
    loses=False, reorders=False, duplicates=False, keeps_while_away=False, carries_headers=True, confirms=True
)


CONNECT_S = 3
"""How long a check waits for an ENS that never answers."""
KEEPALIVE = "&keepalive_s=2"
"""How soon a line that falls silent is noticed, where that can be chosen."""


def subject_of(broker: Broker, query: str, capabilities: Capabilities, keeps_when_killed: bool = False) -> Subject:
    """A broker as it is used with these parameters in its URL."""

    impatient = f"connect_timeout_s={CONNECT_S}" + (KEEPALIVE if broker.url.startswith("mqtt") else "")

    def make_at(host: str, port: int) -> Adapter:
        return load_adapter(f"{broker.url_at(host, port)}{query}{'&' if query else '?'}{impatient}")

    return Subject(
        make=lambda: load_adapter(broker.url + query),
        capabilities=capabilities,
        kill=broker.kill,
        start=broker.start,
        make_at=make_at,
        address=lambda: broker.address,
        keeps_when_killed=keeps_when_killed,
    )


def checks_of(subjects: dict[str, Subject]) -> list[tuple[str, str]]:
    """Each kind with each check that applies to it."""
    return [(kind, name) for kind, subject in subjects.items() for name in applicable(subject)]
