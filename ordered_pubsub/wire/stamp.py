"""The order's metadata of one event, as it travels over the ENS beside the application's own payload.

A stamp is one byte of version and a msgpack array. The version says how to read the rest: a form with bounded entries is to
come for systems with very large groups. A reader that meets a version that it does not know says so, and does not guess.
"""

from __future__ import annotations

import msgspec

from ordered_pubsub.core.messages import Mark
from ordered_pubsub.errors import ProtocolError, UnknownVersion

VERSION = 1


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the order knows of one event."""

    number: int
    entries: dict[str, int]
    full: bool
    marks: list[Mark]
    publisher: str
    id: str
    published_at: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stamp)
_prefix = bytes([VERSION])


def encode_stamp(stamp: Stamp) -> bytes:
    """The stamp as bytes."""
    return _prefix + _encoder.encode(stamp)


def decode_stamp(data: bytes) -> Stamp:
    """The stamp that was written; raises a `ProtocolError` that says what is wrong with it."""
    if not data:
        raise ProtocolError("an event's stamp is empty: expected a byte of version and a msgpack array")
    if data[0] != VERSION:
        raise UnknownVersion(
            f"an event's stamp has version {data[0]}, and this release reads version {VERSION}: its publisher runs another "
            "release of ordered_pubsub; install the newer one here"
        )
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"an event's stamp of version {VERSION} cannot be read: {error}") from error
