"""What can be set per client, what fits, and what is said when something does not."""

from __future__ import annotations

from typing import Any

import attrs

from ordered_pubsub.client.serialization import Serializer, check_serializer
from ordered_pubsub.config.schema import ClientSettings
from ordered_pubsub.core.levels import LEVELS
from ordered_pubsub.errors import ConfigurationError, Timeout, UsageError, WouldBlock
from ordered_pubsub.wire.event_frames import content_type_bytes


def _serializer(_: Any, __: Any, value: Any) -> None:
    if value is not None:
        check_serializer(value)
        try:
            content_type_bytes(value.content_type)
        except UsageError as error:
            raise ConfigurationError(f"serializer={value!r} does not fit: {error}") from None


@attrs.frozen(kw_only=True)
class Settings(ClientSettings):
    """The settings of one client: those of its configuration, and what only `connect` can be given."""

    serializer: Serializer | None = attrs.field(default=None, validator=_serializer)
    """what turns data into bytes and back, instead of JSON"""

    @classmethod
    def of(cls, section: ClientSettings, serializer: Serializer | None) -> Settings:
        """Those of a configuration, with a serializer."""
        names = [field.name for field in attrs.fields(ClientSettings)]
        return cls(**{name: getattr(section, name) for name in names}, serializer=serializer)

    def has_room(self, events: int, size: int, more: int, count: int = 1) -> bool:
        """Whether so many publications of so many bytes may be unfinished beside these; where there are none, any may."""
        return not events or (events + count <= self.pipeline_events_max and size + more <= self.pipeline_bytes_max)

    def full(self, events: int, size: int) -> WouldBlock:
        """Of a publication for which there is no room."""
        return WouldBlock(
            f"{events} publications with {size} bytes have no receipt yet; at most {self.pipeline_events_max} "
            f"(pipeline_events_max) and {self.pipeline_bytes_max} (pipeline_bytes_max) may be: wait for earlier ones first, or "
            "use publish(), which waits"
        )

    def stayed_full(self, topic: str, waited_for: str) -> Timeout:
        """Of a publication for which there was no room for too long."""
        return Timeout(
            f"the event for {topic!r} was not published: the pipeline stayed full for as long as a call may take "
            f"({self.timeout_s:g} s, timeout_s); waited for {waited_for}"
        )

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
