"""What it means for who greets a stage that this turns him away."""

from __future__ import annotations

from ordered_pubsub.errors import (
    AccessDenied,
    NameInUse,
    OrderedPubSubError,
    ProtocolError,
    UnavailableError,
    UnknownVersion,
)
from ordered_pubsub.wire.protocol import Rejected

FRAME_BYTES_MAX = 1 << 28
"""Answers are not bounded by a client's own limits: a stage that it has chosen may send what belongs to its requests."""

_FINAL: dict[str, type[OrderedPubSubError]] = {
    "denied": AccessDenied,
    "name-in-use": NameInUse,
    "version": UnknownVersion,
    "bad-greeting": ProtocolError,
    "bad-frame": ProtocolError,
}
"""Rejections that trying elsewhere does not change."""


def rejection_error(rejected: Rejected, address: object) -> OrderedPubSubError:
    """What a stage's rejection is for who was rejected."""
    return _FINAL.get(rejected.code, UnavailableError)(f"stage {address}: {rejected.reason}")
