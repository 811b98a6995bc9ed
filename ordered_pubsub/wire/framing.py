"""Frames on a connection: four bytes of length, most significant first, then so many bytes of msgpack.

The `Deframer` is fed with whatever arrives, in pieces of any size, and holds no more of an unfinished frame than has come.
A length over the limit is refused when it is announced, before anything of the frame is kept.
"""

from __future__ import annotations

from typing import TypeVar

import attrs
import msgspec

from ordered_pubsub.errors import ProtocolError

HEAD_BYTES = 4


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises of bytes that are not what it reads."""
_Read = TypeVar("_Read")


def read(decoder: msgspec.msgpack.Decoder[_Read], what: str, data: bytes | memoryview | msgspec.Raw) -> _Read:
    """What bytes say; raises a `ProtocolError` that says what is wrong with them."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise ProtocolError(f"{what} cannot be read: {error}") from error


def frame(payload: bytes) -> bytes:
    """A payload as it stands on the connection."""
    return len(payload).to_bytes(HEAD_BYTES, "big") + payload


@attrs.define(eq=False)
class Deframer:
    """Finds the frames in a stream of bytes."""

    frame_bytes_max: int
    _buffer: bytearray = attrs.field(factory=bytearray)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now. Raises a `ProtocolError` for a frame over the limit, or an empty one."""
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        at, size = 0, len(buffer)
        while size - at >= HEAD_BYTES:
            start = at + HEAD_BYTES
            length = int.from_bytes(buffer[at:start], "big")
            if not 0 < length <= self.frame_bytes_max:
                self.forget()
                raise ProtocolError(
                    f"a frame of {length} bytes was announced; expected 1 to {self.frame_bytes_max}: the other side does not "
                    "speak this protocol, or its limits are wider than here"
                )
            if size - start < length:
                break
            at = start + length
            with memoryview(buffer) as view:
                payloads.append(bytes(view[start:at]))
        del buffer[:at]
        return payloads

    def forget(self) -> None:
        """Keep nothing of what has come: no more is wanted."""
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._buffer)
