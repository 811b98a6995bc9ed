"""Payloads that the broker, and whoever reads there, cannot read: a serializer that encrypts.

    pip install . cryptography
    python examples/encrypted.py                  # ORDERED_PUBSUB_ENS and ORDERED_PUBSUB_SEQUENCER say where, if not in memory

Everybody who has the key can read and write; tags see to it that nobody else can change anything. Filters (`where=`) on payloads
are judged by the subscriber then, since no stage can read them either. Ids, headers and stamps are not encrypted.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cryptography.fernet import Fernet

import ordered_pubsub


class Encrypted:
    """JSON, encrypted by a key that publishers and subscribers share."""

    content_type = "application/vnd.example.fernet"

    def __init__(self, key: bytes) -> None:
        self._fernet = Fernet(key)

    def dumps(self, data: Any) -> bytes:
        """What travels."""
        return self._fernet.encrypt(json.dumps(data).encode())

    def loads(self, payload: bytes) -> Any:
        """What was published."""
        return json.loads(self._fernet.decrypt(payload))


async def main() -> None:
    """Publish something, and show what the broker sees of it, and what a subscriber does."""
    key = Fernet.generate_key()  # give it to those who may read, and to nobody else
    async with ordered_pubsub.connect(serializer=Encrypted(key)) as client:
        subscription = await client.subscribe("salaries")
        await client.publish("salaries", {"name": "Ada", "amount": 1815})
        event = await anext(subscription)
        print("on the broker: ", event.raw[:24].decode(), "...")
        print("the subscriber:", event.data)


if __name__ == "__main__":
    asyncio.run(main())
