"""`python -m ordered_pubsub.testing.characteristics`: the table of docs/adapters.md, from what the adapters say of themselves.

The page has the table between two lines that name this module; a test compares it with what is printed here.
"""

from __future__ import annotations

import attrs

from ordered_pubsub.adapter import Capabilities, load_adapter

MODES = {
    "memory://name": "in the process",
    "memory://name?reorder=0.3": "… that reorders",
    "memory://name?duplicate=0.1": "… that repeats",
    "memory://name?lose=0.1": "… that loses",
    "mqtt://host?qos=0": "MQTT 5, at most once",
    "mqtt://host": "… at least once (`qos=1`)",
    "mqtt://host?qos=2": "… exactly once",
    "mqtt://host?session_s=0": "… without a session",
    "nats://host": "core NATS, one server",
    "nats://host?jetstream=STREAM": "… with a stream",
    "amqp://host": "RabbitMQ, durable",
    "amqp://host?durable=false": "… in its memory",
}
"""URLs, and what they stand for."""

COLUMNS = {
    "loses": "loses",
    "reorders": "reorders",
    "duplicates": "repeats",
    "keeps_while_away": "keeps while away",
    "carries_headers": "headers beside the payload",
    "confirms": "confirms",
}
"""The fields of `Capabilities`, and what they are called in the table."""

HEAD = f"| URL | ENS | {' | '.join(COLUMNS.values())} |"


def row(url: str, what: str, capabilities: Capabilities) -> str:
    """One line of the table."""
    said = attrs.asdict(capabilities)
    return f"| `{url}` | {what} | {' | '.join('yes' if said[name] else 'no' for name in COLUMNS)} |"


def table() -> str:
    """The whole table."""
    rule = "|" + " --- |" * (2 + len(COLUMNS))
    return "\n".join((HEAD, rule, *(row(url, what, load_adapter(url).capabilities) for url, what in MODES.items())))


if __name__ == "__main__":
    print(table())
