"""Topic names and topic patterns.

A name has 1 to 255 characters in levels separated by `/`; no level is empty, and no control character may appear, so
that no name can smuggle syntax into a broker's protocol. In a pattern, `*` stands for exactly one level and `**` for
any number of levels, also none. Matching walks both once and never backtracks over more than one `**`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ordered_pubsub.errors import TopicError

TOPIC_LENGTH_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_topic(topic: object) -> str:
    """Return `topic` if it is a valid name, or raise a `TopicError` that says what is wrong with it."""
    name = _check_levels(topic, "topic")
    if "*" in name:
        raise TopicError(
            f"topic {name!r} contains '*': patterns are not accepted here yet; name each topic, as in "
            "subscribe('eu/trades', 'eu/quotes')"
        )
    return name


def check_pattern(pattern: object) -> str:
    """Return `pattern` if it is a valid topic pattern, or raise a `TopicError`."""
    text = _check_levels(pattern, "topic pattern")
    for level in text.split("/"):
        if "*" in level and level not in ("*", "**"):
            raise TopicError(
                f"topic pattern {text!r}: level {level!r} mixes '*' with other characters; '*' (one level) and '**' "
                "(any number of levels) stand alone between slashes"
            )
    return text


def _check_levels(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise TopicError(f"a {kind} is a text, not {type(value).__name__}: {value!r}")
    if not value:
        raise TopicError(f"a {kind} must not be empty; it has 1 to {TOPIC_LENGTH_MAX} characters")
    if len(value) > TOPIC_LENGTH_MAX:
        raise TopicError(
            f"{kind} {value[:40]!r}... has {len(value)} characters; at most {TOPIC_LENGTH_MAX} are allowed"
        )
    control = _CONTROL.search(value)
    if control:
        raise TopicError(f"{kind} {value!r} has a control character ({control[0]!r}) at place {control.start() + 1}")
    if "//" in value or value[0] == "/" or value[-1] == "/":
        raise TopicError(
            f"{kind} {value!r} has an empty level; levels are separated by single slashes, as in 'eu/trades'"
        )
    return value


@lru_cache(maxsize=65536)
def matches(pattern: str, topic: str) -> bool:
    """Say whether the valid `pattern` covers the valid `topic`."""
    wanted, given = pattern.split("/"), topic.split("/")
    at_wanted = at_given = 0
    retry_wanted, retry_given = -1, -1
    while at_given < len(given):
        if at_wanted < len(wanted) and wanted[at_wanted] == "**":
            retry_wanted, retry_given = at_wanted, at_given
            at_wanted += 1
        elif at_wanted < len(wanted) and wanted[at_wanted] in ("*", given[at_given]):
            at_wanted += 1
            at_given += 1
        elif retry_wanted >= 0:
            retry_given += 1
            at_wanted, at_given = retry_wanted + 1, retry_given
        else:
            return False
    return all(level == "**" for level in wanted[at_wanted:])
