"""One connection of a reader to a stage: blocking, for one thread, and soon closed again."""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from typing import Any

from ordered_pubsub.config.addresses import Address
from ordered_pubsub.errors import ProtocolError, UnavailableError
from ordered_pubsub.reading.access import ReaderAccess
from ordered_pubsub.wire.framing import Deframer
from ordered_pubsub.wire.protocol import (
    VERSION,
    ClientGreeting,
    Ping,
    Pong,
    Rejected,
    Welcome,
    decode,
    encode,
    to_client,
)
from ordered_pubsub.wire.rejection import FRAME_BYTES_MAX, rejection_error
from ordered_pubsub.wire.sessions import SessionKey, make_session
from ordered_pubsub.wire.tls import describe

DIAL_S, SEND_S = 5.0, 5.0
RECEIVE_BYTES = 1 << 18
_PONG = encode(Pong())


class NothingHeard(UnavailableError):
    """Nothing has come in time; the line itself may be good."""


class StageLine:
    """A connection that was welcomed. Everything raises `UnavailableError` once it is lost."""

    def __init__(
        self,
        address: Address,
        access: ReaderAccess,
        name: str | None = None,
        key: SessionKey | None = None,
        resumes: bool = False,
    ) -> None:
        """Connect and greet, or raise what is the matter."""
        access.check_token(address)
        self.address = address
        self.session = key or make_session(name)
        self._deframer = Deframer(FRAME_BYTES_MAX)
        self._heard: deque[Any] = deque()
        self._socket = _connect(address, access)
        try:
            self._greet(access, name, resumes)
        except BaseException:
            self.close()
            raise

    def _greet(self, access: ReaderAccess, name: str | None, resumes: bool) -> None:
        key = self.session
        self.say(ClientGreeting(VERSION, key.session, key.secret, name, access.token(), resumes))
        try:
            welcome = self.hear(DIAL_S)
        except ProtocolError as error:
            raise UnavailableError(
                f"{self.address} does not answer like a stage: {error}; check host, port and ops:// or opss://"
            ) from error
        if not isinstance(welcome, Welcome):
            raise UnavailableError(f"{self.address} does not answer like a stage: it said {type(welcome).__name__}")
        self.welcome = welcome

    def say(self, *messages: Any) -> None:
        """Send messages."""
        self._send(b"".join(map(encode, messages)))

    def _send(self, frames: bytes) -> None:
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(frames)
        except OSError as error:
            raise self._lost(error) from error

    def hear(self, timeout_s: float) -> Any:
        """The next message; a `NothingHeard` if none comes in time."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            while self._heard:
                message = self._heard.popleft()
                if isinstance(message, Rejected):
                    raise rejection_error(message, self.address)
                if isinstance(message, Ping):
                    self._send(_PONG)
                elif not isinstance(message, Pong):
                    return message
            self._receive(give_up_at - time.monotonic(), timeout_s)

    def _receive(self, left_s: float, timeout_s: float) -> None:
        try:
            self._socket.settimeout(max(left_s, 0.001))
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise NothingHeard(f"stage {self.address} has not answered for {timeout_s:g} s") from error
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise UnavailableError(f"stage {self.address} has closed the connection")
        payloads = self._deframer.feed(data)
        self._heard += [decode(to_client, payload, f"stage {self.address}") for payload in payloads]

    def _lost(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"the connection to stage {self.address} is lost: {error}")

    def close(self) -> None:
        """Let it go."""
        self._socket.close()


def _connect(address: Address, access: ReaderAccess) -> socket.socket:
    """Connect, or raise what is the matter; nothing stays open then."""
    context = access.tls() if address.tls else None
    try:
        made = socket.create_connection((address.host, address.port), DIAL_S)
    except OSError as error:
        raise UnavailableError(f"stage {address} cannot be reached: {error}; check that it runs there") from error
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made if context is None else context.wrap_socket(made, server_hostname=address.host)
    except BaseException as error:
        made.close()
        if isinstance(error, ssl.SSLError):
            raise UnavailableError(f"stage {address}: {describe(error)}") from error
        if isinstance(error, OSError):
            raise UnavailableError(f"the connection to stage {address} is lost: {error}") from error
        raise
