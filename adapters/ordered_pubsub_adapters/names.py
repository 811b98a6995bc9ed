"""Topics under a broker's rules: names that no two topics share.

A broker gives some characters a meaning (wildcards, separators), refuses others, and bounds the length of a name. What does
not fit is written as `%` and the hexadecimal digits of its UTF-8 bytes, `%` itself too, so ordinary topics look the same on
the broker and no two topics ever meet. A name that would be too long is cut, and ends with `%~` and a digest of the whole
topic.

A subscriber names its topics one by one, so the way back is a look-up in what it has subscribed to (`NameTable`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

import attrs

CUT = "%~"
DIGEST_BYTES = 16
_NO_CHARACTERS = "\ufdd0-\ufdef" + "".join(
    f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
)
"""Code points that Unicode keeps free: a broker that validates text (Mosquitto) cuts the connection of who sends one."""
_NOWHERE = rf"%\s\x00-\x1f\x7f-\x9f{_NO_CHARACTERS}"
"""What no broker gets: our own mark, white space, control characters."""


@attrs.frozen
class NameRules:
    """What a broker makes of names."""

    separator: str
    """stands between levels, where our topics have a slash"""
    special: str
    """characters that must not appear in a name"""
    bytes_max: int
    """how long a name may be"""
    reserved: tuple[str, ...] = ()
    """beginnings of names that the broker keeps for itself; their first character is written as digits"""

    def name_of(self, topic: str) -> str:
        """The broker's name of a valid topic."""
        name = self._pattern.sub(lambda match: _digits(match[0]), topic).replace("/", self.separator)
        if name.startswith(self.reserved):
            name = _digits(name[0]) + name[1:]
        if len(encoded := name.encode()) > self.bytes_max:
            digest = blake2b(topic.encode(), digest_size=DIGEST_BYTES).hexdigest()
            head = encoded[: self.bytes_max - len(CUT) - len(digest)].decode(errors="ignore")
            name = head + CUT + digest
        return name

    @property
    def _pattern(self) -> re.Pattern[str]:
        separator = "" if self.separator == "/" else self.separator
        return re.compile(f"[{re.escape(self.special + separator)}{_NOWHERE}]")


def _digits(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


@attrs.define
class NameTable:
    """The names of the topics that one connection uses, and the topics of those names."""

    rules: NameRules
    names_max: int = 65_536
    """names of topics that are only published on are kept up to this number"""
    name_of: Callable[[str], str] = attrs.field(init=False)
    """the broker's name of a topic"""
    _topics: dict[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.name_of = lru_cache(self.names_max)(self.rules.name_of)

    def subscribe(self, topic: str) -> str:
        """The name of a topic whose messages will come."""
        name = self.name_of(topic)
        self._topics[name] = topic
        return name

    def unsubscribe(self, topic: str) -> str:
        """The name of a topic whose messages need not be known any more."""
        name = self.name_of(topic)
        self._topics.pop(name, None)
        return name

    def topic_of(self, name: str) -> str | None:
        """The topic of a message that came, None if nobody subscribed to it."""
        return self._topics.get(name)

    @property
    def subscribed(self) -> list[str]:
        """The names that are subscribed to."""
        return list(self._topics)
