"""What can be set per client, what fits, and what is said when something does not."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import attrs

from ordered_pubsub.client.serialization import Serializer, check_serializer
from ordered_pubsub.core.levels import LEVELS
from ordered_pubsub.errors import ConfigurationError, UsageError
from ordered_pubsub.wire.frames import content_type_bytes

MEBIBYTE = 1 << 20

UNORDERED = ("refuse", "deliver")


def _whole(least: int) -> Callable[[Any, Any, object], None]:
    def check(_: Any, attribute: Any, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _unfit(attribute.name, value, f"a whole number from {least} on")

    return check


def _seconds(_: Any, attribute: Any, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not isfinite(value) or value <= 0:
        raise _unfit(attribute.name, value, "a number of seconds above 0")


def _unfit(key: str, value: object, fits: str) -> ConfigurationError:
    return ConfigurationError(f"{key}={value!r} does not fit; {key} is {fits}")


def _serializer(_: Any, __: Any, value: object) -> None:
    if value is not None:
        check_serializer(value)
        _check_content_type(value)


def _check_content_type(serializer: Any) -> None:
    try:
        content_type_bytes(serializer.content_type)
    except UsageError as error:
        raise ConfigurationError(f"serializer={serializer!r} does not fit: {error}") from None


def _not_negative(_: Any, attribute: Any, value: object) -> None:
    if value != 0:
        _seconds(_, attribute, value)


def _unordered(_: Any, attribute: Any, value: object) -> None:
    if value not in UNORDERED:
        raise _unfit(attribute.name, value, f"one of {', '.join(map(repr, UNORDERED))}")


def _whole_or_none(_: Any, attribute: Any, value: object) -> None:
    if value is not None:
        _whole(1)(_, attribute, value)


@attrs.frozen(kw_only=True)
class Settings:
    """The settings of one client, as given to `connect`."""

    timeout_s: float = attrs.field(default=60.0, validator=_seconds)
    """how long a call waits for its outcome"""
    connect_timeout_s: float = attrs.field(default=5.0, validator=_not_negative)
    """how long connecting is tried again while no stage can be reached: they may all be just starting"""
    pipeline_events_max: int = attrs.field(default=10_000, validator=_whole(1))
    """publications that may be unfinished at once"""
    pipeline_bytes_max: int = attrs.field(default=64 * MEBIBYTE, validator=_whole(1))
    """bytes of payload and headers that may be unfinished at once"""
    payload_bytes_max: int = attrs.field(default=MEBIBYTE, validator=_whole(1))
    """bytes that one event's payload and headers may have together"""
    queue_events_max: int = attrs.field(default=100_000, validator=_whole(1))
    """events of one subscription whose turn has come and that the application has not taken yet"""
    queue_bytes_max: int = attrs.field(default=64 * MEBIBYTE, validator=_whole(1))
    """the same in bytes of payload, headers and timestamps"""
    unacknowledged_events_max: int = attrs.field(default=100_000, validator=_whole(1))
    """events of one subscription with a name that the application has taken and that are not acknowledged, from the first on"""
    buffer_events_max: int | None = attrs.field(default=None, validator=_whole_or_none)
    """events of one subscription that wait for earlier ones; left out: 1,000,000, and 1,000 with best-effort delivery"""
    buffer_bytes_max: int = attrs.field(default=256 * MEBIBYTE, validator=_whole(1))
    """the same in bytes of payload, headers and timestamps"""
    ttl_s: float = attrs.field(default=1.0, validator=_seconds)
    """how long an event waits for earlier ones with best-effort delivery"""
    unordered: str = attrs.field(default="refuse", validator=_unordered)
    """what becomes of messages that a plain client published, which have no place in the order"""
    batch_events_max: int = attrs.field(default=1, validator=_whole(1))
    """events of one topic that may share a message of the ENS; 1: each has its own, and plain consumers can read it"""
    linger_s: float = attrs.field(default=0.0, validator=_not_negative)
    """how long a publication may wait for others to share its message"""
    serializer: Serializer | None = attrs.field(default=None, validator=_serializer)
    """what turns data into bytes and back, instead of JSON"""

    @classmethod
    def read(cls, given: dict[str, Any]) -> Settings:
        """The settings, or a `ConfigurationError` that names the key and says what fits."""
        names = [field.name for field in attrs.fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigurationError(f"connect() has no setting {key!r}; there are {', '.join(names)}")
        return cls(**given)

    def changed(self, **given: Any) -> Settings:
        """These settings, but for what is given and not None."""
        return attrs.evolve(self, **{key: value for key, value in given.items() if value is not None})


def check_level(delivery: object) -> str:
    """A level of delivery."""
    if delivery not in LEVELS:
        raise ConfigurationError(
            f"delivery={delivery!r} does not fit; delivery is one of {', '.join(map(repr, LEVELS))}"
        )
    return str(delivery)


def check_name(name: object) -> str:
    """A name for a client that is fit to be shown and sent."""
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or not name.isprintable() or name != name.strip():
        raise ConfigurationError(
            f"name={name!r} does not fit; a client's name is 1 to 128 printable characters without space around them"
        )
    return name
