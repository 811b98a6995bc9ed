"""TLS in memory: bytes of the network in, bytes that were said out, and the other way round.

asyncio's own TLS sets 256 KiB aside for each connection from its first byte on, which a stage would spend on everybody who
just knocks. This holds what has come, and no more.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

HANDSHAKE_BYTES_MAX = 1 << 16
"""What the other side may send before it has shown who it is; a chain of certificates has a few thousand bytes."""
_PIECE_BYTES = 1 << 16


class TlsLayer:
    """One connection's TLS."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        self.is_established = False
        """whether the handshake is done, and the other side's certificate verified if that was asked for"""
        self.is_ended = False
        """whether the other side says no more"""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self._shaken_bytes = 0

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the other side has shown, verified; None if it has shown nothing."""
        return self._object.getpeercert() if self.is_established else None

    def start(self) -> None:
        """Begin the handshake."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """What the other side has said. Raises an `SSLError` if it must not; `to_write` then has the reason for it."""
        if not self.is_established:
            self._count(data)
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()
        return self._read() if self.is_established else b""

    def _count(self, data: bytes) -> None:
        self._shaken_bytes += len(data)
        if self._shaken_bytes > HANDSHAKE_BYTES_MAX:
            raise ssl.SSLError(f"the handshake has more than {HANDSHAKE_BYTES_MAX} bytes")

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_established = True

    def _read(self) -> bytes:
        said: list[bytes] = []
        try:
            while piece := self._object.read(_PIECE_BYTES):
                said.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(said)
        except ssl.SSLZeroReturnError:
            pass
        self.is_ended = True
        return b"".join(said)

    def send(self, data: bytes) -> None:
        """Say something. `to_write` has it then."""
        left = memoryview(data)
        while left:
            left = left[self._object.write(left) :]

    def end(self) -> None:
        """Say that this was all."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            return  # the other side has not said so yet, and is not waited for

    def to_write(self) -> bytes:
        """What is to be written to the network."""
        return self._outgoing.read()


def describe(error: ssl.SSLError) -> str:
    """Why TLS did not come about, for whoever has to do something about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or error}"
    words = (error.reason or str(error)).replace("_", " ").lower()
    return f"TLS failed ({words}); TLS is spoken exactly where the stage has tls: opss:// there, and ops:// elsewhere"
