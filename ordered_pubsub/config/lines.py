"""The line of each key of a TOML text, for messages.

Python's TOML reader tells no lines. So a text that it has read is given to it once more, statement by statement: a line alone
if that can be read, else with the next lines, since an array or a long text goes on. The reader itself so says where a
statement ends and what it holds, and nothing of TOML's syntax is repeated here but that a table's header begins with a bracket.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import attrs

from ordered_pubsub.config.kinds import Path

# By its name, since mypy checks for Python 3.10, for which only tomli is known, and may run where only tomllib is there.
toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

STATEMENT_LINES_MAX = 100
"""After a statement that is longer no lines are known: to try so often would take too long."""
DEPTH_MAX = 6
"""No key lies deeper."""


def find_lines(text: str) -> dict[Path, int]:
    """The way to each table and key → its line, for a valid TOML text."""
    finder = _Finder()
    statement, begins = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not statement:
            if line.strip(" \t") == "" or line.lstrip(" \t").startswith("#"):
                continue
            begins = number
        statement += line + "\n"
        try:
            table = toml.loads(statement)
        except ValueError:
            if number - begins >= STATEMENT_LINES_MAX:
                break
            continue
        finder.take(statement.lstrip(" \t"), table, begins)
        statement = ""
    return finder.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a key, or of the nearest table around it that is in the text."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


@attrs.define(eq=False)
class _Finder:
    """What was found so far, and the table that keys belong to now."""

    lines: dict[Path, int] = attrs.field(factory=dict)
    here: Path = ()
    last: dict[Path, int] = attrs.field(factory=dict)
    """a list of tables → the index of its last one"""

    def take(self, statement: str, table: dict[str, Any], line: int) -> None:
        """Note where a statement's keys are."""
        if statement.startswith("["):
            self._enter(_keys_of_header(table), statement.startswith("[["))
            for length in range(1, len(self.here) + 1):
                self.lines.setdefault(self.here[:length], line)
        else:
            self._note(self.here, table, line)

    def _enter(self, keys: list[str], is_list: bool) -> None:
        here: Path = ()
        for number, key in enumerate(keys, 1):
            here = (*here, key)
            if is_list and number == len(keys):
                self.last[here] = self.last.get(here, -1) + 1
            if here in self.last:
                here = (*here, self.last[here])
        self.here = here

    def _note(self, here: Path, value: object, line: int) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            path = (*here, key)
            self.lines.setdefault(path, line)
            if len(path) < DEPTH_MAX:
                self._note(path, inner, line)


def _keys_of_header(table: dict[str, Any]) -> list[str]:
    """The keys of `[a.b]` or `[[a.b]]`, from what the reader made of it alone."""
    keys: list[str] = []
    while table:
        key, inner = next(iter(table.items()))
        keys.append(key)
        table = inner[0] if isinstance(inner, list) else inner
    return keys
