"""TLS in memory: bytes of the network in, bytes that were said out, and the other way round.

asyncio's own TLS sets 256 KiB aside for each connection from its first byte on, which a stage would spend on everybody who
just knocks. This holds what has come, and no more: OpenSSL gets whole records only, for it makes room for the largest one as
soon as one begins.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

HANDSHAKE_BYTES_MAX = 1 << 14
"""What a stranger may send before it has shown who it is; a chain of certificates has a few thousand bytes."""
HANDSHAKE_RECORD_BYTES_MAX = 1 << 13
_PIECE_BYTES = 1 << 16
_HEAD_BYTES = 5
_KINDS = range(20, 24)
"""The first byte of a record."""
_MAJOR = 3
"""The second one, of all versions of TLS."""
_RECORD_BYTES_MAX = (1 << 14) + (1 << 11)


class TlsLayer:
    """One connection's TLS."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        self.is_established = False
        """whether the handshake is done, and the other side's certificate verified if that was asked for"""
        self.is_ended = False
        """whether the other side says no more"""
        self._is_server = is_server
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self._shaken_bytes = 0
        self._unfinished = bytearray()
        """the beginning of a record"""

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of an unfinished record are held."""
        return len(self._unfinished)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the other side has shown, verified; None if it has shown nothing."""
        return self._object.getpeercert() if self.is_established else None

    def start(self) -> None:
        """Begin, if it is this side that does."""
        if not self._is_server:
            self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """What the other side has said. Raises an `SSLError` if it must not; `to_write` then has the reason for it."""
        self._unfinished += data
        said: list[bytes] = []
        while records := self._take_records():
            self._incoming.write(records)
            if not self.is_established:
                self._shake_hands()
            if self.is_established:
                said.append(self._read())
        return b"".join(said)

    def _take_records(self) -> bytes:
        """The records that are complete now; of a handshake one after the other, for nobody knows where it ends."""
        data = self._unfinished
        at = 0
        while len(data) - at >= _HEAD_BYTES and (self.is_established or not at):
            length = int.from_bytes(data[at + 3 : at + _HEAD_BYTES], "big")
            if data[at] not in _KINDS or data[at + 1] != _MAJOR or length > _RECORD_BYTES_MAX:
                at = len(data)  # no record: OpenSSL knows best what is wrong
                break
            if self._is_server and not self.is_established:
                if length > HANDSHAKE_RECORD_BYTES_MAX:
                    raise ssl.SSLError(
                        f"a handshake with a record of {length} bytes; at most {HANDSHAKE_RECORD_BYTES_MAX}"
                    )
                if self._shaken_bytes + length > HANDSHAKE_BYTES_MAX:
                    raise ssl.SSLError(f"the handshake has more than {HANDSHAKE_BYTES_MAX} bytes")
            if len(data) - at - _HEAD_BYTES < length:
                break
            at += _HEAD_BYTES + length
        if not self.is_established:
            self._shaken_bytes += at
        records = bytes(data[:at])
        del data[:at]
        return records

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
    words = (getattr(error, "reason", None) or str(error.args[0])).replace("_", " ").lower()
    return f"TLS failed ({words}); TLS is spoken exactly where the stage has tls: opss:// there, and ops:// elsewhere"
