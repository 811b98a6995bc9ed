"""Data as bytes: JSON for mappings, lists, numbers and text; bytes stay bytes; a serializer for everything else.

The content type travels with the payload, so a subscriber knows how to read it, also if it uses another serializer itself.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Protocol

import attrs

from ordered_pubsub.client.remembering import Remembered
from ordered_pubsub.errors import ConfigurationError, ProtocolError, UsageError
from ordered_pubsub.wire.content import BYTES, JSON
from ordered_pubsub.wire.pack import Unreadable

_log = logging.getLogger(__name__)
_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class Serializer(Protocol):
    """Turns data into bytes and back. `bytes` are never given to it: they travel as they are."""

    content_type: str

    def dumps(self, data: Any) -> bytes:
        """The data as bytes; raises if it cannot."""

    def loads(self, payload: bytes) -> Any:
        """The data that `dumps` was given; raises if these bytes are not what it writes."""


def check_serializer(serializer: object) -> None:
    """Raise a `ConfigurationError` unless this can be used as a serializer."""
    for name in ("dumps", "loads"):
        if not callable(getattr(serializer, name, None)):
            raise ConfigurationError(f"serializer={serializer!r} does not fit: it has no method {name}()")
    content_type = getattr(serializer, "content_type", None)
    if not isinstance(content_type, str) or not content_type or content_type == BYTES:
        raise ConfigurationError(
            f"serializer={serializer!r} does not fit: its content_type is a text such as 'application/msgpack' and not "
            f"{BYTES!r}; it is {content_type!r}"
        )


def dump(data: Any, serializer: Serializer | None) -> tuple[bytes, str]:
    """The data as bytes, and their content type."""
    if type(data) is bytes:
        return data, BYTES
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), BYTES
    if serializer is not None:
        try:
            payload = serializer.dumps(data)
        except Exception as error:
            raise UsageError(
                f"the serializer for {serializer.content_type} refused data of type {type(data).__name__}: {error}"
            ) from error
        if not isinstance(payload, bytes):
            raise UsageError(
                f"the serializer for {serializer.content_type} returned {type(payload).__name__}; expected bytes"
            )
        return payload, serializer.content_type
    try:
        return _json.encode(data).encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"data of type {type(data).__name__} cannot be written as JSON: {error}. Publish mappings, lists, numbers and "
            "text, or bytes, or connect with serializer="
        ) from error


def load(payload: bytes, content_type: object, serializer: Serializer | None) -> Any:
    """The data that a payload holds, or a `ProtocolError` that says why it cannot be read."""
    if content_type == BYTES:
        return payload
    if isinstance(content_type, Unreadable):
        raise ProtocolError(content_type)
    try:
        if serializer is not None and content_type == serializer.content_type:
            return serializer.loads(payload)
        if content_type == JSON:
            return json.loads(payload)
    except Exception as error:  # whatever a serializer raises on somebody else's bytes
        raise ProtocolError(f"a payload of {len(payload)} bytes is not {content_type}: {error}") from error
    raise ProtocolError(
        f"a payload has the content type {content_type!r}, which is not known here; connect with a serializer= that has it"
    )


@attrs.define(eq=False)
class Decoder:
    """Reads the payloads of one subscription. What cannot be read is not an exception but an outcome."""

    serializer: Serializer | None
    _complained: dict[str, bool] = attrs.field(factory=Remembered)
    """topics of which it was logged that something could not be read"""

    def decode(self, topic: str, payload: bytes, content_type: object) -> tuple[Any, ProtocolError | None]:
        """The data, or None and the reason."""
        try:
            return load(payload, content_type, self.serializer), None
        except ProtocolError as error:
            if topic not in self._complained:
                self._complained[topic] = True
                _log.warning(
                    "an event on %r cannot be decoded: its `data` is None, and `error` says why; no more is logged of this "
                    "topic here: %s",
                    topic,
                    error,
                )
            return None, error
