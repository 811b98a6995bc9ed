"""`connect`: finds the adapter, finds the stage, and puts a client together.

A system that lives in this process (`memory://`) has its stage in the process as well, and all its clients share it. That
stage is put into the client here, from outside: nothing else in the client knows what kind of stage it talks to.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

import attrs

from ordered_pubsub.adapter import Adapter, load_adapter, redacted
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.home import Home
from ordered_pubsub.client.settings import Settings, check_level, check_name
from ordered_pubsub.embedded import EmbeddedHome
from ordered_pubsub.errors import ConfigurationError, NotOffered, UsageError

ENS_VARIABLE = "ORDERED_PUBSUB_ENS"
DEFAULT_ENS = "memory://"


@attrs.define(eq=False)
class Connecting:
    """A client to be: await it, or use it as an async context manager."""

    _start: Callable[[], Awaitable[Client]]
    _is_started: bool = False
    _client: Client | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"connect() has no {name!r} before it is awaited: client = await connect(...), or async with connect(...) as client"
        )

    def __enter__(self) -> Any:
        raise UsageError("connect() needs `async with`, or `client = await connect(...)`")

    def __exit__(self, *_: object) -> None:
        """Never reached."""

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def _open(self) -> Client:
        if self._is_started:
            raise UsageError("this connect() was awaited before; call connect() again for another client")
        self._is_started = True
        return await self._start()

    async def __aenter__(self) -> Client:
        """Connect. Cancelled, nothing stays open."""
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        assert self._client is not None
        await self._client.__aexit__(kind, error, traceback)


def connect(
    ens: str | Adapter | None = None,
    *,
    sequencer: str | list[str] | None = None,
    name: str | None = None,
    delivery: str | None = None,
    config: str | None = None,
    **settings: Any,
) -> Connecting:
    """Connect to a system: `client = await connect(...)`, or `async with connect(...) as client:`.

    `ens` is the URL of the event notification service, or an adapter; left out, it is what ORDERED_PUBSUB_ENS says, or else
    `memory://`, which needs nothing besides. `name` is what the client's events carry as their publisher; one client of a
    system has it at a time. `delivery` is the level that subscriptions have unless they say otherwise: "ordered" or
    "best-effort". For the settings see `ordered_pubsub.client.settings.Settings`.
    """
    _refuse_what_comes_later(sequencer, config)
    level = None if delivery is None else check_level(delivery)
    if name is not None:
        check_name(name)
    read = Settings.read(settings)
    adapter = ens if isinstance(ens, Adapter) else load_adapter(_ens_url(ens))
    home = _home_of(adapter)

    async def start() -> Client:
        engine = Engine(name, adapter, home, read)
        await engine.open()
        client = Client(engine, level)
        try:
            _check_fitness(adapter)
            if level is not None:
                client.require(delivery=level)
        except BaseException:
            await client.close()
            raise
        return client

    return Connecting(start)


def _refuse_what_comes_later(sequencer: object, config: object) -> None:
    for given, what in (
        (sequencer, "sequencer="),
        (os.environ.get("ORDERED_PUBSUB_SEQUENCER"), "ORDERED_PUBSUB_SEQUENCER="),
    ):
        if given:
            raise NotOffered(
                f"{what}{given!r}: stages over the network come with the next release; memory:// embeds one"
            )
    for given, what in ((config, "config="), (os.environ.get("ORDERED_PUBSUB_CONFIG"), "ORDERED_PUBSUB_CONFIG=")):
        if given:
            raise NotOffered(
                f"{what}{given!r}: configuration files come with the next release; pass settings to connect()"
            )


def _ens_url(ens: str | None) -> str:
    if ens is None:
        return os.environ.get(ENS_VARIABLE) or DEFAULT_ENS
    return ens


def _home_of(adapter: Adapter) -> Home:
    if adapter.local_system is None:
        raise NotOffered(
            f"{redacted(adapter.url)} needs a stage that numbers its events (sequencer=), and stages over the network come "
            "with the next release; memory:// embeds one"
        )
    return EmbeddedHome(adapter.local_system)


def _check_fitness(adapter: Adapter) -> None:
    if not adapter.capabilities.carries_headers:
        raise ConfigurationError(
            f"{redacted(adapter.url)} does not carry headers, and an event's place in the order travels in them"
        )
