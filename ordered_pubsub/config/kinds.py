"""What fits a key of the configuration, and how it is said when something does not.

Theory of operation
===================
A `Kind` is a validator of attrs that also knows how to describe what fits, how to read a text of the environment, and whether
a value may be shown. The records of `schema` use kinds as validators, so that a record fits wherever it was made; `reading`
finds the same kinds there to turn texts and tables into values. What does not fit raises `Unfit`, which knows the way to the
value within its record; whoever reads a whole file puts the rest of the way, and the line, before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from reprlib import Repr
from typing import Any

import attrs

from ordered_pubsub.core.topics import check_pattern, check_topic
from ordered_pubsub.errors import ConfigurationError, UsageError

Path = tuple[str | int, ...]
"""The way to a value: ("stage", 2, "durability")."""

WHOLE_MAX = 2**63 - 1
TEXT_LENGTH_MAX = 8_192
SHOWN_LENGTH_MAX = 1_000
"""Looking for passwords in longer texts than anybody writes could take long."""
ELEMENTS_SHOWN_MAX = 6

_STAGE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HASH = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_AGE = re.compile(r"([0-9]{1,9})(s|min|h|d|w)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12})(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)", re.ASCII)
_SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|token|secret|key|cred|jwt)[^=&]*=)[^&]*", re.IGNORECASE)
_AGE_UNITS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SIZE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip

_short = Repr()
_short.maxstring = _short.maxother = 80


class Unfit(ConfigurationError):
    """A value does not fit its key."""

    def __init__(self, path: Path, value: object, fits: str, detail: str = "", *, is_secret: bool = False) -> None:
        self.path, self.value, self.fits, self.detail, self.is_secret = path, value, fits, detail, is_secret
        super().__init__(self.say())

    def say(self, before: Path = ()) -> str:
        """The message, with the way to the record that the value is in."""
        came = f"={shown(self.value)}"
        if self.is_secret:
            size = f"{len(self.value)} characters" if isinstance(self.value, str) else type(self.value).__name__
            came = f" ({size}, not shown)"
        tail = f" ({self.detail})" if self.detail else ""
        name = next((part for part in reversed(self.path) if isinstance(part, str)), "it")
        return f"{spell((*before, *self.path))}{came} does not fit; {name} is {self.fits}{tail}"


def spell(path: Path) -> str:
    """A way as it is shown: `stage[2].durability`; what is not a plain key is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + (part if _PLAIN_KEY.fullmatch(part) else shown(part))
    return text


def shown(value: object, depth: int = 2) -> str:
    """A value in an error message: short, whatever it is, and without a password."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "(a table)"
    if isinstance(value, (list, tuple)):
        inner = [shown(element, depth - 1) for element in value[:ELEMENTS_SHOWN_MAX]] if depth else []
        return f"[{', '.join(inner)}{', ...' * (len(value) > len(inner))}]"
    if isinstance(value, str) and len(value) > SHOWN_LENGTH_MAX:
        return f"(a text of {len(value)} characters)"
    try:
        return _short.repr(redacted(value) if isinstance(value, str) else value)
    except ValueError:  # Python refuses to write integers with thousands of digits
        return "(a number that is too large to be shown)"


def redacted(text: str) -> str:
    """A text without what may be a user's name and password, or a token, in a URL."""
    head, separator, tail = text.rpartition("@")
    if separator and "://" in head:
        text = f"{head.partition('://')[0]}://***@{tail}"
    return _SECRET_PARAMETER.sub(r"\1***", text)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The nearest known word as a question, or nothing."""
    near = get_close_matches(str(word)[:80], list(known), 1) if isinstance(word, str) else []
    return f"did you mean {near[0]!r}" if near else ""


@attrs.frozen
class Kind:
    """What fits a key."""

    fits: str
    """as in "timeout_s is ..." """
    test: Callable[[Any], bool]
    """whether a value fits; may raise a `UsageError` that says more"""
    parse: Callable[[str], object] = str
    """what a text of the environment stands for; raises `ValueError` if for nothing"""
    hint: Callable[[Any], str] = attrs.field(default=lambda _: "")
    """what else can be said about a value that does not fit"""
    is_optional: bool = False
    """None fits as well, and means that the key was left out"""
    is_list: bool = False
    """each element of a tuple is tested"""
    is_secret: bool = False
    """a value that does not fit is not shown"""
    locate: Callable[[str, str], str] | None = None
    """what a relative path becomes that is written in a file of this folder"""
    section: type | None = None
    """the record of a table; with `is_list` of each table of a list"""
    elements_min: int = 0

    def __call__(self, _: object, attribute: Any, value: Any) -> None:
        """Raise `Unfit` unless the value fits."""
        if value is None and self.is_optional:
            return
        if not self.is_list:
            self._check((attribute.name,), value)
            return
        if not isinstance(value, tuple) or len(value) < self.elements_min:
            raise Unfit((attribute.name,), value, self.fits, is_secret=self.is_secret)
        for index, element in enumerate(value):
            self._check((attribute.name, index), element)

    def _check(self, path: Path, value: object) -> None:
        try:
            is_fit, detail = self.test(value), ""
        except UsageError as error:
            is_fit, detail = False, str(error)
        if not is_fit:
            raise Unfit(path, value, self.fits, detail or self.hint(value), is_secret=self.is_secret)


def as_tuple(value: Sequence[Any] | None) -> tuple[Any, ...]:
    """Lists, as TOML has them, become tuples. What is no list stays as it is, for the kind to refuse."""
    return tuple(value) if isinstance(value, list) else value  # type: ignore[return-value]  # the kind refuses it


def one_or_more(value: str | Sequence[str]) -> tuple[str, ...]:
    """As `as_tuple`, and one text is a list of one."""
    return (value,) if isinstance(value, str) else as_tuple(value)


def hashes_as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    """As `one_or_more`, in small letters: two that differ in nothing else are the same."""
    found: Any = one_or_more(value)
    if not isinstance(found, tuple):
        return found  # type: ignore[no-any-return]  # the kind refuses it
    return tuple(text.lower() if isinstance(text, str) else text for text in found)


def setting(kind: Kind, default: Any = attrs.NOTHING, **options: Any) -> Any:
    """A field of a record, for a key that a kind fits. If None is what it is when it is left out, that fits as well."""
    if kind.is_list:
        options.setdefault("converter", as_tuple)
    return attrs.field(
        default=default, validator=attrs.evolve(kind, is_optional=True) if default is None else kind, **options
    )


# -- numbers and switches ---------------------------------------------------------------------------------------------


def whole(least: int, most: int = WHOLE_MAX) -> Kind:
    """A whole number from `least` to `most`."""

    def test(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    reach = "on" if most == WHOLE_MAX else f"to {most}"
    return Kind(f"a whole number from {least} {reach}", test, parse=int)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= WHOLE_MAX if isinstance(value, int) else isfinite(value)


SECONDS = Kind("a number of seconds above 0", lambda value: _is_number(value) and value > 0, parse=float)
SECONDS_OR_NONE_AT_ALL = Kind(
    "a number of seconds from 0 on", lambda value: _is_number(value) and value >= 0, parse=float
)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))


def names_or_switch(value: Any) -> Any:
    """As `one_or_more`, but true and false stay what they are."""
    return value if isinstance(value, bool) else one_or_more(value)


def choice(*words: str) -> Kind:
    """One of some words."""
    return Kind(
        "one of " + ", ".join(f'"{word}"' for word in words),
        lambda value: isinstance(value, str) and value in words,
        hint=lambda value: did_you_mean(value, words),
    )


# -- texts ------------------------------------------------------------------------------------------------------------


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 128 and value.isprintable() and value == value.strip()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= TEXT_LENGTH_MAX and not _CONTROL.search(value)


def text_kind(fits: str, test: Callable[[str], bool] = lambda _: True, **options: Any) -> Kind:
    """A text without control characters that passes a test."""
    return Kind(fits, lambda value: _is_text(value) and test(value), **options)


NAME = Kind("1 to 128 printable characters without space around them", _is_name)
STAGE_NAME = Kind(
    "1 to 64 letters, digits, '-', '_' and '.', not beginning with '-' or '.'",
    lambda value: isinstance(value, str) and _STAGE_NAME.fullmatch(value) is not None,
)
STAGES = Kind(
    "true, false, the name of a stage, or a list of them",
    lambda value: isinstance(value, bool) or (isinstance(value, tuple) and all(map(STAGE_NAME.test, value))),
)
FILE = text_kind("the path of a file", locate=lambda path, folder: os.path.join(folder, path))
NAMES = Kind(
    "a list of names of clients, such as ['desk-*'], where '*' stands for any characters", _is_name, is_list=True
)
HASHES = Kind(
    'the SHA-256 of a token in 64 hexadecimal digits, or a list of them; "ordered-pubsub config token NAME" makes a token '
    "and this line",
    lambda value: isinstance(value, str) and _HASH.fullmatch(value) is not None,
    is_list=True,
    is_secret=True,  # somebody may have written the token itself
)
CERTIFICATE = attrs.evolve(NAME, fits="the common name or alternative name of a client's certificate, exactly")


def is_named(pattern: str, name: str) -> bool:
    """Whether a client's name is one of those that a pattern stands for: `*` is any characters, also none."""
    first, *others = pattern.split("*")
    if not others:
        return name == first
    *middle, last = others
    if not name.startswith(first):
        return False
    at = len(first)
    for text in middle:
        # As early as it is there: later would leave less for those that follow, so nothing is tried twice.
        found = name.find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return len(name) - len(last) >= at and name.endswith(last)


# -- topics -----------------------------------------------------------------------------------------------------------


PATTERN = Kind("a topic pattern, such as 'eu/**'", lambda value: bool(check_pattern(value)))
PATTERNS = Kind("a list of topic patterns, such as ['eu/**']", lambda value: bool(check_pattern(value)), is_list=True)
TOPICS = Kind(
    "a list of two or more topics, such as ['trades', 'quotes']",
    lambda value: bool(check_topic(value)),
    is_list=True,
    elements_min=2,
)


# -- how long, and how much -------------------------------------------------------------------------------------------


def age_s(value: object) -> float:
    """How many seconds "90s", "1d" or a number of seconds stand for; 0 if it is neither."""
    if _is_number(value):
        return float(value)  # type: ignore[arg-type]  # it is one
    found = _AGE.fullmatch(value) if isinstance(value, str) else None
    return float(int(found[1]) * _AGE_UNITS[found[2]]) if found else 0.0


def size_bytes(value: object) -> int:
    """How many bytes "10GB", "64MiB" or a number of bytes stand for; 0 if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool) and value <= WHOLE_MAX:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _SIZE_UNITS[found[2]] if found else 0


AGE = Kind("seconds above 0, or a text such as '90s', '30min', '12h', '1d', '2w'", lambda value: age_s(value) > 0)


def age(least: str, most: str) -> Kind:
    """An age from `least` to `most`, which are texts such as "30s"."""
    return Kind(
        f"seconds, or a text such as '90s', '30min', '12h', '1d', '2w', from {least} to {most}",
        lambda value: age_s(least) <= age_s(value) <= age_s(most),
    )


SIZE = Kind("a number of bytes above 0, or a text such as '10GB', '64MiB'", lambda value: size_bytes(value) > 0)


# -- tables -----------------------------------------------------------------------------------------------------------


def section(record: type) -> Kind:
    """A table."""
    return Kind("a table", lambda value: isinstance(value, record), section=record)


def sections(record: type) -> Kind:
    """A list of tables."""
    return Kind("a list of tables", lambda value: isinstance(value, record), section=record, is_list=True)
