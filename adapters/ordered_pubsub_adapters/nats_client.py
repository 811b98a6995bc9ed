"""nats-py, and what this package changes about it: the only place where anything of its inside is used.

nats-py connects, greets, encrypts, authenticates and reads. What it does to each message is replaced: it costs as much as
everything else together, and drops messages that are not taken quickly. Each connection is a client of its own, which never
connects again. What is replaced is not part of nats-py's interface, so `check_nats` refuses a version that has it no more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from inspect import iscoroutinefunction, signature
from time import monotonic
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from ordered_pubsub.errors import AdapterError, ConfigurationError, OrderedPubSubError
from ordered_pubsub_adapters.nats_inbox import Inbox
from ordered_pubsub_adapters.nats_waiting import bounded, end, settle
from ordered_pubsub_adapters.urls import BrokerUrl

CLOSE_S = 0.2
NEVER_S = 10**9
SLOW_S = 0.3
"""A connection that was not read for so long may have been cut off for that,"""
RECENT_S = 30.0
"""if it was not longer ago than this."""

MessageHandler = Callable[[int, bytes, bytes, "bytes | None", bytes], None]
"""Takes a subscription's number, subject, reply, header block and payload."""


class NatsClient(Client):
    """A connection of nats-py's, from its beginning to its end."""

    def __init__(
        self, take: MessageHandler, inbox: Inbox, on_refusal: Callable[[str], None], is_encrypted: bool
    ) -> None:
        super().__init__()
        self._take = take
        self._inbox = inbox
        self._on_refusal = on_refusal
        self._is_encrypted = is_encrypted
        self.pongs: deque[asyncio.Future[str]] = deque()
        """who waits for the answers to the PINGs that were written"""
        self.heard = 0
        """how many messages have come"""
        self.trouble: Exception | None = None
        """the last one that nats-py reported"""
        self._held_up_s = 0.0
        """how long nothing was read, because the inbox was full, when that was long"""
        self._read_on_at = 0.0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """A message came. While this has not returned, nothing is read."""
        self.heard += 1
        self._take(sid, subject, reply, headers, data)
        if self._inbox.is_full:
            since = monotonic()
            await self._inbox.wait_for_room()
            self._read_on_at = monotonic()
            if self._read_on_at - since > SLOW_S:
                self._held_up_s = self._read_on_at - since

    async def _process_pong(self) -> None:
        if self.pongs:
            settle(self.pongs.popleft())

    def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> Any:
        """nats-py encrypts if the server demands it. We do as well, and never send a password without it.

        Whether it is a coroutine function depends on the release; what it returns is what its caller expects.
        """
        if initial_connection and self._is_encrypted:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.SecureConnWantedError
            info["tls_required"] = True  # also where the server only offers it
        return super()._process_info(info, initial_connection)

    async def report(self, error: Exception) -> None:
        """nats-py met an error. Of what the server refuses it goes on; whatever else it is ends the connection."""
        if "permissions violation" in str(error):
            self._on_refusal(str(error))
        else:
            self.trouble = error

    @property
    def reading(self) -> asyncio.Task[Any]:
        """Ends with the connection, whatever ends it."""
        task = self._reading_task
        assert task is not None
        return task

    @property
    def reason(self) -> str:
        """Why it is over, as far as that is known."""
        error = self.last_error or self.trouble
        is_cut = error is None or isinstance(error, errors.UnexpectedEOF)
        text = "the server closed the connection" if is_cut else str(error) or type(error).__name__
        if not self._held_up_s or monotonic() - self._read_on_at > RECENT_S:
            return text
        return (
            f"{text}; for {self._held_up_s:.3g} s nothing had been read, because the application did not take what had come: "
            "a server cuts off who reads too slowly (its write_deadline and max_pending)"
        )

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself."""
        return self._server_info

    def write(self, data: bytes) -> None:
        """Write, behind everything that was written before."""
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        """Drop the connection, and what was not sent yet."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def finish(self) -> None:
        """Drop the connection and all that belongs to it, whatever state it is in."""
        self.abort()
        await end(*(task for task in (self._reading_task, self._ping_interval_task, self._flusher_task) if task))
        if self._transport:
            with suppress(OSError, asyncio.TimeoutError):  # one whose encryption failed never says that it is closed
                await bounded(self._transport.wait_closed(), CLOSE_S)  # type: ignore[no-untyped-call]  # it has no types


_REPLACED = {"_process_msg": True, "_process_pong": True, "_process_info": False}
"""and whether it must be a coroutine function; that of the last one depends on the release"""
_HELD = ("_reading_task", "_ping_interval_task", "_flusher_task", "_transport", "_server_info")


def check_nats() -> None:
    """Raise a `ConfigurationError` if this version of nats-py is not one that this module fits."""
    for name, is_awaited in _REPLACED.items():
        ours = list(signature(getattr(NatsClient, name)).parameters)
        theirs = getattr(Client, name, None)
        fits = theirs is not None and list(signature(theirs).parameters) == ours
        if not fits or (is_awaited and not iscoroutinefunction(theirs)):
            raise _unfit(f"{'async ' if is_awaited else ''}{name}({', '.join(ours[1:])})")
    client = Client()
    missing = [name for name in _HELD if not hasattr(client, name)]
    if not hasattr(TcpTransport(), "_io_writer"):  # type: ignore[no-untyped-call]  # it has no types
        missing.append("TcpTransport._io_writer")
    if missing:
        raise _unfit(missing[0])


def _unfit(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"nats-py {version('nats-py')} does not have {name}, which the adapter for nats:// needs; install 'nats-py>=2.10,<3'"
    )


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


async def dial(client: NatsClient, url: BrokerUrl, host: str, port: int) -> None:
    """Connect a client, or raise an error of ours; then nothing of it is left."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        work = client.connect(
            servers=[f"{'tls' if url.is_encrypted else 'nats'}://{address}"],
            error_cb=client.report,
            name="ordered_pubsub",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=url.connect_timeout_s,  # type: ignore[arg-type]  # a number of seconds, whole or not
            ping_interval=NEVER_S,
            tls=url.tls_context(),
            **login_of(url),
        )
        await bounded(work, url.connect_timeout_s)
    except BaseException as error:
        await client.finish()
        if isinstance(error, Exception) and not isinstance(error, OrderedPubSubError):
            raise explain(client.trouble or error, url, address) from error
        raise


def explain(error: Exception, url: BrokerUrl, address: str) -> OrderedPubSubError:
    """What to tell the user of an error that came while connecting."""
    text = str(error).lower()
    where = f"{url.shown}: cannot connect to the NATS server at {address}"
    if isinstance(error, ImportError):
        return ConfigurationError(f"{where}: creds and nkey need a library ({error}); try: pip install nkeys")
    if _is_of_credentials(error, url):
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
        return AdapterError(
            f"{where}: no answer within {url.connect_timeout_s:g} s (connect_timeout_s); check host, port and firewalls"
        )
    return AdapterError(f"{where}: {str(error) or type(error).__name__}; is it running, and are host and port right?")


def _is_of_credentials(error: Exception, url: BrokerUrl) -> bool:
    if not (url.get("creds") or url.get("nkey")):
        return False
    is_of_connection = isinstance(error, (OSError, errors.Error, asyncio.TimeoutError))
    return not is_of_connection or isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError))
