"""What a source or a sink is told by its options: read in the driver, with errors that name the option and say what fits."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal

import attrs

from ordered_pubsub.config.kinds import redacted
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.topics import check_pattern, check_topic
from ordered_pubsub.errors import ConfigurationError, FilterError, NotOffered, TopicError
from ordered_pubsub.reading.access import ReaderAccess

Clock = dict[str, int]
Place = Literal["earliest", "latest"] | Clock | datetime
"""Where something begins or ends: at the first event there is, now, at a clock, or at a time."""

NAMES = (
    "sequencer", "config", "tokenFile", "tlsCa", "tlsCert", "tlsKey", "timeoutSeconds",
    "topics", "topicsPattern", "startingOffsets", "endingOffsets", "startingTime", "endingTime", "startingTimeStrategy",
    "maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "numPartitions",
    "where", "failOnDataLoss", "failOnUnknownTopic", "reader", "respectTransactions", "includeHeaders", "pushFilters",
)  # fmt: skip
ONLY_BATCH = ("endingOffsets", "endingTime", "pushFilters")
ONLY_STREAM = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "reader")
PARTITIONS_MAX = 10_000
SINK_NAMES = (
    "sequencer", "config", "tokenFile", "tlsCa", "tlsCert", "tlsKey", "timeoutSeconds",
    "topic", "sort", "ens", "publisher", "writeId", "transaction",
)  # fmt: skip
_FORWARDED = ("path", "checkpointlocation", "queryname")
"""Spark adds these by itself."""
PUBLISHER_LENGTH_MAX = 255


@attrs.frozen
class Options:
    """One source's."""

    access: ReaderAccess
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Place | None = None
    ending: Place = "latest"
    starting_time_strategy: str = "error"
    records_max: int | None = None
    bytes_max: int | None = None
    records_min: int | None = None
    delay_max_s: float = 900.0
    partitions: int | None = None
    where: str | None = None
    fail_on_data_loss: bool = True
    fail_on_unknown_topic: bool = True
    reader: str | None = None
    with_headers: bool = True
    push_filters: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """All that were given."""
        found = {key.lower(): value for key, value in given.items()}
        _check_names(given, NAMES, "source")
        read = _Reader(found)
        topics, pattern = _topics_of(read)
        starting = read.place("startingOffsets", ("earliest", "latest"), topics)
        starting_time, ending_time = read.time("startingTime"), read.time("endingTime")
        _check_one(starting, starting_time, "startingOffsets", "startingTime")
        read.switch("respectTransactions", True)  # there are none yet, so either is given
        ending = read.place("endingOffsets", ("latest",), topics)
        _check_one(ending, ending_time, "endingOffsets", "endingTime")
        return cls(
            access=_access_of(read),
            topics=topics,
            pattern=pattern,
            starting=starting_time if starting is None else starting,
            ending=ending or ending_time or "latest",
            starting_time_strategy=read.choice("startingTimeStrategy", ("error", "latest"), "error"),
            records_max=read.whole("maxRecordsPerTrigger"),
            bytes_max=read.whole("maxBytesPerTrigger"),
            records_min=read.whole("minRecordsPerTrigger"),
            delay_max_s=read.seconds("maxTriggerDelay", 900.0),
            partitions=read.whole("numPartitions", PARTITIONS_MAX),
            where=_filter_of(read),
            fail_on_data_loss=read.switch("failOnDataLoss", True),
            fail_on_unknown_topic=read.switch("failOnUnknownTopic", True),
            reader=_reader_of(read),
            with_headers=read.switch("includeHeaders", True),
            push_filters=read.switch("pushFilters", False),
        )


@attrs.frozen
class SinkOptions:
    """One sink's."""

    access: ReaderAccess
    topic: str | None = None
    sort: str | None = None
    ens: str | None = attrs.field(default=None, repr=lambda text: repr(None if text is None else redacted(text)))
    publisher: str | None = None
    """None: each task's session signs its own"""
    write_id: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SinkOptions:
        """All that were given."""
        _check_names(given, SINK_NAMES, "sink")
        read = _Reader({key.lower(): value for key, value in given.items()})
        if read.switch("transaction", False):
            raise NotOffered(
                "option transaction=true: a batch as one transaction is not there yet, and comes with a later release. Leave it "
                "out: each row is published exactly once without it"
            )
        topic, publisher = read.text("topic"), read.text("publisher")
        if publisher is not None and (not publisher.isprintable() or len(publisher) > PUBLISHER_LENGTH_MAX):
            raise ConfigurationError(
                f"option publisher={publisher!r:.80} does not fit; expected up to {PUBLISHER_LENGTH_MAX} printable characters"
            )
        return cls(
            access=_access_of(read),
            topic=None if topic is None else read.checked("topic", topic, check_topic),
            sort=read.text("sort"),
            ens=read.text("ens"),
            publisher=publisher,
            write_id=read.text("writeId"),
        )


def _check_names(given: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    known = {name.lower(): name for name in names}
    for key in given:
        if key.lower() not in known and key.lower() not in _FORWARDED:
            close = difflib.get_close_matches(key.lower(), known, n=1)
            meant = f"; did you mean {known[close[0]]!r}?" if close else f"; there are {', '.join(names)}"
            raise ConfigurationError(f"the {what} ordered_pubsub has no option {key!r}{meant}")


def _check_one(first: object, second: object, one: str, other: str) -> None:
    if first is not None and second is not None:
        raise ConfigurationError(f"{one} and {other} say the same thing twice: give one of them")


def _topics_of(read: _Reader) -> tuple[tuple[str, ...], str | None]:
    named, pattern = read.text("topics"), read.text("topicsPattern")
    if (named is None) == (pattern is None):
        raise ConfigurationError(
            "which topics? Give either topics, as in topics=trades,quotes, or topicsPattern, as in topicsPattern=eu/**"
        )
    if pattern is not None:
        return (), read.checked("topicsPattern", pattern, check_pattern)
    assert named is not None
    topics = tuple(dict.fromkeys(topic.strip() for topic in named.split(",")))
    return tuple(read.checked("topics", topic, check_topic) for topic in topics), None


def _access_of(read: _Reader) -> ReaderAccess:
    sequencer = read.text("sequencer")
    tls = {
        key: value
        for key, option in (("ca", "tlsCa"), ("cert", "tlsCert"), ("key", "tlsKey"))
        if (value := read.text(option))
    }
    arguments: dict[str, Any] = {
        "sequencer": None if sequencer is None else [part.strip() for part in sequencer.split(",")],
        "token_file": read.text("tokenFile"),
        "tls": tls or None,
        "timeout_s": read.seconds("timeoutSeconds", None),
    }
    return ReaderAccess.of(read.text("config"), arguments)


def _filter_of(read: _Reader) -> str | None:
    where = read.text("where")
    if where is not None:
        try:
            Filter.parse(where)
        except FilterError as error:
            raise FilterError(f"option where: {error}") from error
    return where


def _reader_of(read: _Reader) -> str | None:
    name = read.text("reader")
    if (name is not None and not all(part.isalnum() or part in "._-" for part in name)) or name == "":
        raise ConfigurationError(f"option reader={name!r} does not fit; a name has letters, digits, dots, - and _")
    return name


@attrs.frozen
class _Reader:
    """Options by their names in small letters."""

    given: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        value = self.given.get(name.lower())
        return None if value is None else str(value)

    def checked(self, name: str, value: str, check: Any) -> str:
        try:
            check(value)
        except TopicError as error:
            raise TopicError(f"option {name}: {error}") from error
        return value

    def whole(self, name: str, most: int = 1 << 53) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not (text.strip().isdecimal() and 1 <= int(text) <= most):
            raise ConfigurationError(f"option {name}={text!r} does not fit; expected a whole number from 1 to {most}")
        return int(text)

    def seconds(self, name: str, default: Any) -> Any:
        text = self.text(name)
        if text is None:
            return default
        units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "": 1.0}
        digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text.strip()[len(digits) :].strip()
        try:
            value = float(digits) * units[unit]
        except (KeyError, ValueError):
            value = -1.0
        if not 0 < value < 1e9:
            raise ConfigurationError(
                f"option {name}={text!r} does not fit; expected seconds, or a text such as '500ms', '15m'"
            )
        return value

    def switch(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        return self.choice(name, ("true", "false"), "") == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise ConfigurationError(f"option {name}={text!r} does not fit; expected {' or '.join(choices)}")
        return text.lower()

    def place(self, name: str, words: tuple[str, ...], topics: tuple[str, ...]) -> Any:
        """A word, or a clock as JSON."""
        text = self.text(name)
        if text is None or text.lower() in words:
            return text and text.lower()
        try:
            clock = json.loads(text)
        except ValueError:
            clock = None
        fits = isinstance(clock, dict) and all(
            isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 39 for count in clock.values()
        )
        if not fits:
            expected = " or ".join([*words, 'a clock as JSON, as in {"trades": 17, "quotes": 4}'])
            raise ConfigurationError(f"option {name}={text!r} does not fit; expected {expected}")
        for topic in clock:
            if topics and topic not in topics:
                raise ConfigurationError(
                    f"option {name} names topic {topic!r}, which is not one of topics={','.join(topics)}"
                )
        return clock

    def time(self, name: str) -> datetime | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise ConfigurationError(
                f"option {name}={text!r} does not fit; expected a time such as 2026-03-01T09:00:00+01:00 (without an offset: UTC)"
            ) from None
        return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
