"""A filter's text, cut into tokens; and errors that point at a place in it.

One regular expression that has a match at every character other than white space, so it is read once from the left to the
right. What is no token of the language still is one here: the parser knows better what it expected instead.
"""

from __future__ import annotations

import re

import attrs

from ordered_pubsub.errors import FilterError

TEXT_LENGTH_MAX = 4096
KEYWORDS = ("and", "between", "exists", "false", "in", "not", "or", "prefix", "true")
WORD = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    rf"""
      (?P<word> {WORD.pattern})
    | (?P<number> -?[0-9](?:[eE][+-]|[\w.])*)
    | (?P<text> '[^']*(?:''[^']*)*'?)
    | (?P<name> "[^"]*(?:""[^"]*)*"?)
    | (?P<sign> <=|>=|!=|<>|==|&&|\|\||\S)
    """,
    re.VERBOSE,
)
_FORBIDDEN = re.compile("[\0\ud7ff-\udfff]")
"""Surrogates have no UTF-8. Without U+0000 there is a text between any two cuts, and without U+D7FF none of them is before a
surrogate (`values.after_prefix`), so that what filters come to can be written as a filter again."""

_SHOWN_LENGTH_MAX = 100
_QUOTED_LENGTH_MAX = 60


@attrs.frozen
class Token:
    """A piece of a filter's text."""

    kind: str
    """word, number, text, name (a word in double quotes), sign, or end"""
    text: str
    start: int

    @property
    def end(self) -> int:
        """Where the next one may begin."""
        return self.start + len(self.text)

    @property
    def keyword(self) -> str:
        """The keyword or sign that it is, in small letters, or nothing."""
        lower = self.text.lower()
        return lower if self.kind == "sign" or lower in KEYWORDS else ""


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, and one for its end."""
    _check_characters(text)
    tokens = [Token(str(found.lastgroup), found[0], found.start()) for found in _TOKEN.finditer(text)]
    for token in tokens:
        quote = token.text[0]
        if token.kind in ("text", "name") and token.text.count(quote) % 2:
            what = "a text" if quote == "'" else "a name"
            raise pointed(f"expected {quote} at the end of {what}, and there is none", text, token.start)
    return [*tokens, Token("end", "", len(text))]


def _check_characters(text: str) -> None:
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterError(
            f"the filter {quoted(text)} has {len(text):,} characters; at most {TEXT_LENGTH_MAX:,} are allowed: compare fewer "
            "values, or choose in the application"
        )
    if found := _FORBIDDEN.search(text):
        message = (
            f"U+{ord(found[0]):04X} cannot be written in a filter (nor can U+0000, U+D7FF and surrogates); take it out"
        )
        raise pointed(message, text, found.start())


def quoted(text: str) -> str:
    """A text as messages show it: in quotes, and shortened."""
    return repr(text if len(text) <= _QUOTED_LENGTH_MAX else f"{text[: _QUOTED_LENGTH_MAX - 3]}...")


def pointed(message: str, text: str, place: int) -> FilterError:
    """An error with the text, or as much of it as fits into a line, and a caret under the place."""
    first = max(0, min(place - _SHOWN_LENGTH_MAX // 2, len(text) - _SHOWN_LENGTH_MAX))
    last = first + _SHOWN_LENGTH_MAX
    shown = "".join(character if character.isprintable() else " " for character in text[first:last])
    lead, tail = "..." if first else "", "..." if last < len(text) else ""
    return FilterError(f"{message}\n    {lead}{shown}{tail}\n    {' ' * (len(lead) + place - first)}^")
