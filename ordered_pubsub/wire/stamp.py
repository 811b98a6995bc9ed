"""The order's metadata of one event, as it travels over the ENS beside the application's own payload.

A stamp is one byte of version, 16 bytes of tag, and a msgpack array (`core.trust.authenticity.Stamp`). The version says how to
read the rest: a form with bounded entries is to come for systems with very large groups. A reader that meets a version that it
does not know says so, and does not guess.
"""

from __future__ import annotations

from functools import partial

import msgspec

from ordered_pubsub.core.trust.authenticity import TAG_BYTES, Stamp
from ordered_pubsub.errors import ProtocolError, UnknownVersion
from ordered_pubsub.wire.framing import read

VERSION = 2
BODY_AT = 1 + TAG_BYTES

_decoder = msgspec.msgpack.Decoder(Stamp)
_prefix = bytes([VERSION])


decode_body = partial(read, _decoder, f"an event's stamp of version {VERSION}")
"""What a stamp's body says; raises a `ProtocolError` that says what is wrong with it."""


def encode_stamp(tag: bytes, body: bytes) -> bytes:
    """A stamp's tag and its body as bytes."""
    return _prefix + tag + body


def decode_stamp(data: bytes) -> tuple[bytes, bytes, Stamp]:
    """The tag, the body as it was written, and what it says; raises a `ProtocolError` that says what is wrong with it."""
    if not data:
        raise ProtocolError("an event's stamp is empty: expected a byte of version, a tag and a msgpack array")
    if data[0] != VERSION:
        raise UnknownVersion(
            f"an event's stamp has version {data[0]}, and this release reads version {VERSION}: its publisher runs another "
            "release of ordered_pubsub; install the same one on both sides"
        )
    body = data[BODY_AT:]
    return data[1:BODY_AT], body, decode_body(body)
