"""`connect`: finds the adapter, finds the stage, and puts a client together.

A system that lives in this process (`memory://`) has its stage in the process as well, and all its clients share it. That
stage is put into the client here, from outside: nothing else in the client knows what kind of stage it talks to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import attrs

from ordered_pubsub.adapter import Adapter, load_adapter, redacted
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.home.home import Home
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.client.settings import Settings, check_level
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.files import check_files, token_of
from ordered_pubsub.config.reading import load
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.config.tls import client_context
from ordered_pubsub.embedded import EmbeddedHome
from ordered_pubsub.errors import ConfigurationError, UsageError

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

    What is not given here is taken from the environment (ORDERED_PUBSUB_ENS, …) and from the configuration file, `config` or
    `ordered_pubsub.toml`. `ens` is the URL of the event notification service, or an adapter; `memory://`, the default, needs
    nothing besides. `sequencer` is the address of a stage, or a list of them: any will do. `name` is what the client's events
    carry as their publisher; one client of a system has it at a time. `delivery` is the level that subscriptions have unless
    they say otherwise: "exactly-once", "ordered" or "best-effort". For the settings see
    `ordered_pubsub.client.settings.Settings`.
    """
    given_adapter = ens if isinstance(ens, Adapter) else None
    serializer = settings.pop("serializer", None)
    arguments = {"ens": None if given_adapter else ens, "sequencer": sequencer, "name": name, "delivery": delivery}
    client = load(config, arguments={**arguments, **_known(settings)}).configuration.client
    level = None if client.delivery is None else check_level(client.delivery)
    read = Settings.of(client, serializer)
    adapter = given_adapter or load_adapter(client.ens or DEFAULT_ENS)
    home = _home_of(adapter, client)

    async def start() -> Client:
        engine = Engine(client.name, adapter, home, read)
        await engine.open()
        connected = Client(engine, level)
        try:
            if not adapter.capabilities.carries_headers:
                raise ConfigurationError(
                    f"{redacted(adapter.url)} does not carry headers, and an event's place in the order travels in them"
                )
            if level is not None:
                connected.require(delivery=level)
        except BaseException:
            await connected.close()
            raise
        return connected

    return Connecting(start)


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given to `connect`, if there are all of them."""
    names = [field.name for field in attrs.fields(Settings)]
    for key in settings:
        if key not in names and key not in ("token_file", "tls"):
            raise ConfigurationError(
                f"connect() has no setting {key!r}; there are {', '.join(names)}, token_file and tls"
            )
    return settings


def _home_of(adapter: Adapter, client: ClientSection) -> Home:
    if client.sequencer:
        return stage_home(client, client.addresses, client.connect_timeout_s)
    if adapter.local_system is None:
        raise ConfigurationError(
            f"{redacted(adapter.url)} needs a stage that numbers its events: start one with 'ordered-pubsub serve' and name it, "
            "as in sequencer='ops://127.0.0.1:7411' (or [client] sequencer in the configuration); only memory:// embeds one"
        )
    return EmbeddedHome(adapter.local_system)


def stage_home(client: ClientSection, addresses: Sequence[Address], connect_timeout_s: float = 0.0) -> NetworkHome:
    """The way to the stages at these addresses, with the token and the certificates that the configuration names."""
    check_files(client)
    tls = partial(client_context, client.tls)
    if token_of(client) is None:
        return NetworkHome(addresses, "", tls, connect_timeout_s)
    return NetworkHome(addresses, lambda: token_of(client) or "", tls, connect_timeout_s)
