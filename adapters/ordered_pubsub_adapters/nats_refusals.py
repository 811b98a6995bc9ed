"""What a NATS server did not permit.

The server says so in the stream, before the answer to the PING behind it, and names the subject alone: who asked for it has to
look for it. Several may have, so what was found stays; but each looks only at what was refused since the turn in which it
asked (turns are counted in PINGs), and is not told of what was refused before and may be granted now.

A server writes the subject as Go quotes text (`%q`), and nats-py makes all letters small. So it is read back, and compared
without regard to case: at worst somebody is told of a subject that differs in nothing else.

What cannot be kept, or names nothing, may be anybody's: so everybody who asked by then is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

REFUSALS_MAX = 4_096
"""More than there are subjects in what is written at once, by several publishers."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u(000[0-9a-f]{5}|0010[0-9a-f]{4}|[0-9a-f]{4})|(.))")
"""Go's `\\U` has eight digits. Here it is small as well, and told apart by its beginning: what `\\u000f` would stand for is
written with `\\x`."""
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(found: re.Match[str]) -> str:
    low, high, short = found.groups()
    if short is not None:
        return _SHORT.get(short, short)
    return chr(int(low or high, 16))


def refused_subject(text: str) -> str | None:
    """The subject that a refusal names, as it can be compared; None if it names none."""
    found = _QUOTED.search(text)
    return _ESCAPED.sub(_unescaped, found[1]).casefold() if found else None


@attrs.define(eq=False)
class Refusals:
    """What was refused lately on one connection."""

    _said: dict[str, tuple[int, str]] = attrs.field(factory=dict)
    """by subject: the turn, and the server's words; what was refused last is at the end"""
    _last: int = -1
    """the turn in which something was refused last"""
    _forgotten: int = -1
    """the last turn of which something is not kept"""

    def add(self, text: str, turn: int) -> None:
        """The server has refused something. Turns never decrease."""
        self._last = turn
        subject = refused_subject(text)
        if subject is None:
            self._forgotten = turn
            return
        self._said.pop(subject, None)
        if len(self._said) >= REFUSALS_MAX:
            oldest, _ = self._said.pop(next(iter(self._said)))
            self._forgotten = max(self._forgotten, oldest)
        self._said[subject] = (turn, text)

    def on(self, subjects: Iterable[str], since: int) -> str:
        """What the server refused on one of these subjects since a turn, in its words; empty if it refused none of them."""
        if self._last < since:
            return ""
        for subject in subjects:
            turn, text = self._said.get(subject.casefold(), (-1, ""))
            if turn >= since:
                return text
        if self._forgotten >= since:
            return f"this may be among it: more was refused at once than can be told apart, {REFUSALS_MAX} subjects; see the log"
        return ""
