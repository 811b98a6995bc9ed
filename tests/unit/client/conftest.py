"""What the tests of the asynchronous client share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

import ordered_pubsub
from helpers.clients import signed
from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.client.client import Client


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with ordered_pubsub.connect(url) as client:
        yield client


@pytest.fixture
async def ordered_client(url: str, ordered_topics: None) -> AsyncIterator[Client]:
    """A client of a system that keeps no events."""
    async with ordered_pubsub.connect(url, delivery="ordered") as client:
        yield client


@pytest.fixture
async def publish_frame(url: str) -> AsyncIterator[Callable[..., Any]]:
    """Publish on the ENS past the client."""
    adapter = load_adapter(url)

    async def nothing(frames: Sequence[Frame]) -> None:
        pass

    await adapter.open(nothing, lambda is_connected, reason: None)

    async def publish(topic: str, payload: bytes, headers: dict[str, Any] | None = None) -> None:
        await adapter.publish([signed(url, topic, payload, headers or {})])

    yield publish
    await adapter.close()
