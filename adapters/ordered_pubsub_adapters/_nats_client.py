"""Connecting with nats-py: who we are, what went wrong, and no password without encryption.

Each connection is a client of nats-py of its own, which never connects again. nats-py encrypts only if the server demands it,
and would send a password in the clear to one that does not. So for `tls://` its reading of the server's greeting is wrapped; that
is not part of its interface, so `_nats_fast` tries it once before any password is given to it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nats import errors
from nats.aio.client import Client

from ordered_pubsub.errors import AdapterError, ConfigurationError, OrderedPubSubError
from ordered_pubsub_adapters.base import CLOSE_S, in_time
from ordered_pubsub_adapters.urls import BrokerUrl

NEVER_S = 10**9


class NatsClient(Client):
    """A connection of nats-py's, from its beginning to its end."""

    def __init__(self, is_encrypted: bool) -> None:
        super().__init__()
        self._is_encrypted = is_encrypted
        self.greeting: dict[str, Any] = {}
        """what the server says of itself, if nats-py shows it"""
        self.heard = 0
        """how many messages have come"""

    def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> Any:
        """Whether it is a coroutine function depends on the release; what it returns is what its caller expects."""
        self.greeting = info
        if initial_connection and self._is_encrypted:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.SecureConnWantedError
            info["tls_required"] = True  # also where the server only offers it
        return super()._process_info(info, initial_connection)

    async def finish(self) -> None:
        """Close it, whatever state it is in; a server that does not listen any more is not waited for."""
        with suppress(Exception):  # whatever it meets: nobody uses it any more
            await in_time(self.close(), CLOSE_S, "it does not close")
        # Before 2.15 nats-py leaves all this if its reading task has met the end; what a release does not have it cannot leave.
        tasks = [getattr(self, name, None) for name in ("_reading_task", "_ping_interval_task", "_flusher_task")]
        tasks += [getattr(one, "_wait_for_msgs_task", None) for one in getattr(self, "_subs", {}).values()]
        for task in filter(None, tasks):
            task.cancel()
        if (transport := getattr(self, "_transport", None)) is not None:
            with suppress(Exception):  # it may have no socket
                transport.close()


@contextmanager
def ours(shown: str, what: str) -> Iterator[None]:
    """What nats-py raises is an error of ours."""
    try:
        yield
    except (errors.Error, OSError, asyncio.TimeoutError) as error:
        raise AdapterError(f"{shown}: {what} failed: {str(error) or type(error).__name__}") from error


def login_of(url: BrokerUrl) -> dict[str, Any]:
    """How nats-py is told who we are. A user without a password is a token, as in nats-py's own URLs."""
    password = url.read_password()
    login: dict[str, Any] = {}
    if password is None:
        login["token"] = url.user
    elif url.user is None:
        login["token"] = password
    else:
        login["user"], login["password"] = url.user, password
    return {**login, "user_credentials": url.get("creds"), "nkeys_seed": url.get("nkey")}


async def dial(client: NatsClient, url: BrokerUrl, host: str, port: int, **callbacks: Any) -> None:
    """Connect a client, or raise an error of ours."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        await client.connect(
            servers=[f"{'tls' if url.is_encrypted else 'nats'}://{address}"],
            name="ordered_pubsub",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=url.connect_timeout_s,  # type: ignore[arg-type]  # a number of seconds, whole or not
            ping_interval=NEVER_S,  # a connection that is not read for a while is not dead
            tls=url.tls_context(),
            **callbacks,
            **login_of(url),
        )
    except Exception as error:
        if isinstance(error, OrderedPubSubError):
            raise
        raise explain(error, url, address) from error


def explain(error: Exception, url: BrokerUrl, address: str) -> OrderedPubSubError:
    """What to tell the user of an error that came while connecting."""
    text = str(error).lower()
    where = f"{url.shown}: cannot connect to the NATS server at {address}"
    is_of_connection = isinstance(error, (OSError, errors.Error, asyncio.TimeoutError))
    is_of_file = isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError))
    if isinstance(error, ImportError):
        return ConfigurationError(f"{where}: creds and nkey need a library ({error}); try: pip install nkeys")
    if (url.get("creds") or url.get("nkey")) and (is_of_file or not is_of_connection):
        return ConfigurationError(
            f"{where}: creds={url.get('creds')!r} or nkey={url.get('nkey')!r} cannot be used: {error}; expected the file with "
            "the user's JWT and seed (creds), or with the seed alone (nkey)"
        )
    if "authorization" in text or "authentication" in text:
        return AdapterError(
            f"{where}: it refuses who we say we are ({error}); check user and password, or the token, in "
            "nats://user:password@host or nats://token@host, or in password_file"
        )
    if isinstance(error, ssl.SSLError):
        return AdapterError(
            f"{where}: encryption failed: {error}; expected a certificate for this very host that the system trusts: name "
            "the file of its authority with tls://...?ca=FILE"
        )
    if isinstance(error, errors.SecureConnWantedError):
        return AdapterError(
            f"{where}: it does not offer encryption; switch that on there, or take nats:// instead of tls://"
        )
    if isinstance(error, asyncio.TimeoutError):
        limit = f"{url.connect_timeout_s:g} s (connect_timeout_s)"
        return AdapterError(f"{where}: no answer within {limit}; check host, port and firewalls")
    return AdapterError(f"{where}: {str(error) or type(error).__name__}; is it running, and are host and port right?")
