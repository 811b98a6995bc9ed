"""The language of filters: a conjunction of predicates on fields.

    filter     = predicate { "and" predicate } ;
    predicate  = field ( comparison | "in" list | "between" literal "and" literal | "prefix" text | "exists" ) ;
    comparison = ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) literal ;
    list       = "(" literal { "," literal } ")" ;
    field      = "headers" "." part | part { "." part } ;
    part       = word | name ;
    literal    = text | number | "true" | "false" ;
    word       = letter or "_", then letters, digits and "_", and no keyword ;
    name       = '"', any characters with '""' for a '"', '"' ;
    text       = "'", any characters with "''" for a "'", "'" ;
    number     = [ "-" ] digits [ "." digits ] [ ( "e" | "E" ) [ "+" | "-" ] digits ] ;

Keywords (and between exists false in not or prefix true) may be in capital letters; a field of that name is written in
double quotes, and so is a field of the payload that is called headers. Headers have text, so they compare with text only.
The ends of `between`, and what `< <= > >=` compare with, are text or numbers, which have an order.

There is no recursion: one token after the other is taken, and each of them once. That only `and` joins predicates is what
makes filters comparable (see `conditions`); what others would write there is refused with what to do instead.
"""

from __future__ import annotations

import math
import re

import attrs

from ordered_pubsub.core.filters._conditions import HEADERS, Field, Predicate
from ordered_pubsub.core.filters._tokens import Token, pointed, quoted, tokenize
from ordered_pubsub.core.filters._values import (
    EVERYTHING,
    Literal,
    Values,
    after,
    after_prefix,
    all_but,
    before,
    between,
    one_of,
    plain,
)
from ordered_pubsub.errors import FilterError

PREDICATES_MAX = 64
LITERALS_MAX = 1000
DEPTH_MAX = 16
DIGITS_MAX = 640
"""The least to which a process can restrict how many digits Python reads."""

COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "in", "between", "prefix", "exists")
_MORE_THAN_AND = ("or", "not", "(", ")", "||", "!")
_ONLY_AND = (
    "predicates are joined by 'and' only, without 'or', 'not', functions, and parentheses around them; use in (...) for "
    "several values of one field, != to leave a value out, or two subscriptions"
)
_IN_DOUBLE_QUOTES = 'what is no plain word is written in double quotes, as in "last-name"'
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def parse(text: str) -> list[Predicate]:
    """The predicates of a filter, or a `FilterError` that points at the place where it cannot be read."""
    return _Parser(text, tokenize(text)).predicates()


@attrs.define
class _Parser:
    """Takes one token after the other. What has a name of the grammar reads just that."""

    text: str
    tokens: list[Token]
    at: int = 0
    literals: int = 0

    @property
    def token(self) -> Token:
        """The next one."""
        return self.tokens[self.at]

    def predicates(self) -> list[Predicate]:
        found = [self.predicate()]
        while self.token.kind != "end":
            if self.token.keyword != "and":
                raise self.only_and() or self.expected("'and' or the end of the filter")
            self.at += 1
            if len(found) == PREDICATES_MAX:
                raise self.error(f"a filter has at most {PREDICATES_MAX} predicates; use in (...) for several values")
            found.append(self.predicate())
        return found

    def predicate(self) -> Predicate:
        start = self.token.start
        field = self.field()
        values = self.values(field)
        return Predicate(field, values, start, self.tokens[self.at - 1].end)

    def field(self) -> Field:
        if self.token.kind == "word" and self.token.text == HEADERS:
            return self.header()
        path = [self.part("a field")]
        while self.took("."):
            if len(path) == DEPTH_MAX:
                raise self.error(f"a field has at most {DEPTH_MAX} parts")
            path.append(self.part("a part of a field"))
        return Field(False, tuple(path))

    def header(self) -> Field:
        self.at += 1
        if not self.took("."):
            raise self.expected(f"'.' and the name of a header (a field of the payload is written \"{HEADERS}\")")
        field = Field(True, (self.part("the name of a header"),))
        if self.token.text == ".":
            raise self.error('the name of a header has no parts; one with a dot is written as headers."x.y"')
        return field

    def part(self, what: str) -> str:
        token = self.token
        if token.kind == "name":
            self.at += 1
            return token.text[1:-1].replace('""', '"')
        if token.kind != "word" or token.keyword:
            raise self.only_and() or self.expected(f"{what} ({_IN_DOUBLE_QUOTES})")
        self.at += 1
        return token.text

    def values(self, field: Field) -> Values:
        """What follows a field: how it is compared, and with what."""
        comparison = self.token.keyword
        if comparison not in COMPARISONS:
            hint = f"; {_IN_DOUBLE_QUOTES}" if self.token.text[:1] == "-" else ""
            raise self.only_and() or self.expected(f"a comparison ({' '.join(COMPARISONS)})", str(field), hint)
        self.at += 1
        if comparison == "exists":
            return EVERYTHING
        if comparison == "in":
            return one_of(*self.list_of_literals(field))
        if comparison == "=":
            return one_of(self.literal(field))
        if comparison == "!=":
            return all_but(self.literal(field))
        if comparison == "prefix":
            prefix = self.text_literal(field)
            return between(before(prefix), after_prefix(prefix), like=prefix)
        return self.range_of_values(comparison, field)

    def range_of_values(self, comparison: str, field: Field) -> Values:
        value = self.ordered_literal(field)
        if comparison == "between":
            if not self.took("and"):
                raise self.expected("'and' and the upper end")
            upper = self.text_literal(field) if isinstance(value, str) else self.number_literal(field)
            return between(before(value), after(upper), like=value)
        cut = before(value) if comparison in ("<", ">=") else after(value)
        return between(None, cut, like=value) if comparison in ("<", "<=") else between(cut, None, like=value)

    def list_of_literals(self, field: Field) -> list[Literal]:
        if not self.took("("):
            raise self.expected("'('")
        literals = [self.literal(field)]
        while self.took(","):
            literals.append(self.literal(field))
        if not self.took(")"):
            raise self.expected("',' or ')'")
        return literals

    def literal(self, field: Field) -> Literal:
        if self.token.keyword in ("true", "false") and not field.is_header:
            self.count_literal()
            self.at += 1
            return self.tokens[self.at - 1].keyword == "true"
        return self.ordered_literal(field, "a literal (a text in single quotes, a number, true or false)")

    def ordered_literal(self, field: Field, what: str = "a text in single quotes, or a number") -> str | float:
        is_number = self.token.kind == "number" and not field.is_header
        return self.number_literal(field) if is_number else self.text_literal(field, what)

    def text_literal(self, field: Field, what: str = "a text in single quotes") -> str:
        if self.token.kind != "text":
            raise self.expected("a text in single quotes, which is what headers have" if field.is_header else what)
        self.count_literal()
        self.at += 1
        return self.tokens[self.at - 1].text[1:-1].replace("''", "'")

    def number_literal(self, field: Field) -> float:
        text = self.token.text
        if not _NUMBER.fullmatch(text):
            raise self.expected("a number such as 1, -2.5 or 1e3")
        if len(text) > DIGITS_MAX:
            raise self.error(f"a number has at most {DIGITS_MAX} characters; write it with an exponent")
        number = float(text) if set(".eE") & set(text) else int(text)
        if number in (math.inf, -math.inf):
            raise self.error(f"{quoted(text)} is too large: expected a number within ±1.8e308, or a whole one")
        self.count_literal()
        self.at += 1
        return plain(number)

    def count_literal(self) -> None:
        if self.literals == LITERALS_MAX:
            raise self.error(f"a filter has at most {LITERALS_MAX:,} literals; choose in the application, too")
        self.literals += 1

    def took(self, keyword: str) -> bool:
        """Whether the next token is this one; then it is taken."""
        is_next = self.token.keyword == keyword
        self.at += is_next
        return is_next

    def expected(self, what: str, after_what: str = "", hint: str = "") -> FilterError:
        before_it = after_what or (self.tokens[self.at - 1].text if self.at else "")
        place = f"after {quoted(before_it)}" if before_it else "at the beginning"
        found = "and the filter ends there" if self.token.kind == "end" else f"not {quoted(self.token.text)}"
        return self.error(f"expected {what} {place}, {found}{hint}")

    def only_and(self) -> FilterError | None:
        """The error for what joins predicates in other languages, if it comes next."""
        if self.token.keyword in _MORE_THAN_AND:
            return self.error(f"{quoted(self.token.text)} cannot stand here: {_ONLY_AND}")
        return None

    def error(self, message: str) -> FilterError:
        return pointed(message, self.text, self.token.start)
