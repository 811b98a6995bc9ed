"""Topic names and topic patterns.

A name has 1 to 255 characters in levels separated by `/`; no level is empty, and no control character may appear, so
that no name can smuggle syntax into a broker's protocol. In a pattern, `*` stands for exactly one level and `**` for
any number of levels, also none. What stands between two `**` is looked for once, from left to right: the work is that of
looking for a text in another, whatever the pattern.
"""

from __future__ import annotations

import re
from functools import lru_cache

import attrs

from ordered_pubsub.errors import TopicError

TOPIC_LENGTH_MAX = 255
COMPILED_MAX = 4_096
"""So many patterns are kept compiled."""
NAMES_REMEMBERED_MAX = 10_000
"""So many names are known to be good."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_topic(topic: object) -> str:
    """Return `topic` if it is a valid name, or raise a `TopicError` that says what is wrong with it."""
    return _checked(topic) if isinstance(topic, str) else _check_levels(topic, "topic")


@lru_cache(maxsize=NAMES_REMEMBERED_MAX)
def _checked(name: str) -> str:
    _check_levels(name, "topic")
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


def matches(pattern: str, topic: str) -> bool:
    """Say whether the valid `pattern` covers the valid `topic`."""
    if "*" not in pattern:
        return pattern == topic
    return pattern == "**" or _compiled(pattern).covers(topic)


@attrs.frozen
class _Pattern:
    """A pattern between its `**`: stretches of levels, of which the first begins the topic and the last one ends it."""

    first: _Stretch
    middle: tuple[_Stretch, ...]
    """each is found behind the one before, as early as it is there: later would leave less for those that follow"""
    last: _Stretch | None
    """None: there is no `**`, and the first one is all"""

    def covers(self, topic: str) -> bool:
        text = f"/{topic}/"  # a stretch begins and ends with a slash, which it shares with its neighbours
        at = self.first.ends_at(text, 0)
        if self.last is None:
            return at == len(text) - 1
        for stretch in self.middle:
            if at < 0:
                return False
            at = stretch.find(text, at)
        start = self.last.start_at_end_of(text)
        return at >= 0 and start >= at


@attrs.frozen
class _Stretch:
    """Consecutive levels without `**`."""

    levels: int
    text: str
    """the levels between slashes; empty if there is none"""
    expression: re.Pattern[str] | None
    """finds it, if there is a `*`. What it stands for has no slash, so nothing is tried twice at one place"""

    @classmethod
    def of(cls, levels: list[str]) -> _Stretch:
        """The stretch of these levels."""
        if not levels:
            return cls(0, "", None)
        text = f"/{'/'.join(levels)}/"
        if "*" not in levels:
            return cls(len(levels), text, None)
        inner = "/".join("[^/]+" if level == "*" else re.escape(level) for level in levels)
        return cls(len(levels), text, re.compile(f"/{inner}(?=/)"))

    def ends_at(self, text: str, at: int) -> int:
        """Where it ends if it begins at this slash; -1 if it does not."""
        if not self.levels:
            return at
        if self.expression is None:
            return at + len(self.text) - 1 if text.startswith(self.text, at) else -1
        found = self.expression.match(text, at)
        return -1 if found is None else found.end()

    def find(self, text: str, at: int) -> int:
        """Where it ends, from this slash on; -1 if it is not there."""
        if self.expression is None:
            found = text.find(self.text, at)
            return -1 if found < 0 else found + len(self.text) - 1
        match = self.expression.search(text, at)
        return -1 if match is None else match.end()

    def start_at_end_of(self, text: str) -> int:
        """The slash with which it begins if it ends the topic; -1 if it does not end it."""
        if not self.levels:
            return len(text) - 1
        if self.expression is None:
            return len(text) - len(self.text) if text.endswith(self.text) else -1
        at = len(text) - 1
        for _ in range(self.levels):
            at = text.rfind("/", 0, at)
            if at < 0:
                return -1
        return at if self.ends_at(text, at) == len(text) - 1 else -1


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(pattern: str) -> _Pattern:
    stretches: list[list[str]] = [[]]
    for level in pattern.split("/"):
        if level == "**":
            stretches.append([])
        else:
            stretches[-1].append(level)
    first, *rest = map(_Stretch.of, stretches)
    middle = tuple(stretch for stretch in rest[:-1] if stretch.levels)
    return _Pattern(first, middle, rest[-1] if rest else None)
