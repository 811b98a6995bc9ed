"""Makes the records of `schema` from the tables of a file.

Each key is read by the kind of its field. What is unknown, missing or unfit is said with the place where it was written, the
whole way to it, and the nearest that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import attrs

from ordered_pubsub.config.kinds import Kind, Path, Unfit, did_you_mean, spell
from ordered_pubsub.config.lines import line_of
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.errors import ConfigurationError

Record = TypeVar("Record")

NOT_IN_FILES = ("client", "token")
"""The key that only the environment can give."""


@attrs.frozen
class Source:
    """Where tables come from, for messages and for relative paths."""

    name: str = ""
    folder: str = ""
    lines: Mapping[Path, int] = attrs.field(factory=dict)
    origins: Mapping[Path, str] = attrs.field(factory=dict)
    """what does not come from the file, and from where it comes"""

    def place(self, path: Path) -> str:
        """What a message begins with."""
        if origin := self._origin(path):
            return f"{origin}: "
        line = line_of(self.lines, path)
        parts = [self.name] * bool(self.name) + [f"line {line}"] * (line is not None)
        return f"{', '.join(parts)}: " if parts else ""

    def folder_of(self, path: Path) -> str:
        """Where relative paths begin; outside of the file, wherever the process is."""
        return "" if self._origin(path) else self.folder

    def _origin(self, path: Path) -> str:
        ways = (path[:length] for length in range(len(path), 0, -1))
        return next((self.origins[way] for way in ways if way in self.origins), "")

    def error(self, path: Path, what: str) -> ConfigurationError:
        """An error about a key."""
        return ConfigurationError(f"{self.place(path)}{what}")


def keys_of(record: type) -> dict[str, Kind]:
    """The keys of a record's table, and what fits each."""
    return {field.name: field.validator for field in attrs.fields(record) if isinstance(field.validator, Kind)}


def read_record(record: type[Record], table: object, path: Path, source: Source) -> Record:
    """The record of one table."""
    kinds = keys_of(record)
    if not isinstance(table, dict):
        raise source.error(path, str(Unfit(path, table, "a table")) + _bracket_hint(path, table))
    for key in table:
        if key not in kinds:
            raise source.error((*path, key), _unknown(path, key, list(kinds)))
    for field in attrs.fields(record):  # type: ignore[arg-type]  # a record is an attrs class
        if field.default is attrs.NOTHING and field.name not in table:
            raise source.error(path, f"{spell(path)} has no {field.name!r}; {field.name} is {kinds[field.name].fits}")
    values = {key: _read_value(kinds[key], value, (*path, key), source) for key, value in table.items()}
    try:
        return _located(record(**values), kinds, path, source)
    except Unfit as error:
        raise source.error((*path, *error.path), error.say(path)) from None


def _read_value(kind: Kind, value: object, path: Path, source: Source) -> object:
    if kind.section is None or (value is None and kind.is_optional):
        return value
    if not kind.is_list:
        return read_record(kind.section, value, path, source)
    if not isinstance(value, list):
        raise source.error(path, str(Unfit(path, value, kind.fits)) + _bracket_hint(path, value))
    return [read_record(kind.section, element, (*path, index), source) for index, element in enumerate(value)]


def _located(made: Record, kinds: Mapping[str, Kind], path: Path, source: Source) -> Record:
    """Relative paths, also those of defaults, begin at the folder of the file."""
    changes = {}
    for key, kind in kinds.items():
        value, folder = getattr(made, key), source.folder_of((*path, key))
        if kind.locate is not None and value is not None and folder:
            changes[key] = kind.locate(value, folder)
    return attrs.evolve(made, **changes) if changes else made  # type: ignore[misc]  # a record is an attrs class


def _bracket_hint(path: Path, value: object) -> str:
    if len(path) == 1 and isinstance(value, dict):
        return f" (each begins with [[{path[0]}]], in two brackets)"
    if len(path) == 1 and isinstance(value, list):
        return f" (it begins with [{path[0]}], in one bracket)"
    return ""


def _unknown(path: Path, key: object, known: list[str]) -> str:
    here = spell((*path, key if isinstance(key, str) else str(key)))
    known = [key for key in known if (*path, key) != NOT_IN_FILES]
    homes = [home for home, keys in _homes().items() if key in keys]
    hint = did_you_mean(key, known) or (f"{key!r} belongs into {' or '.join(homes)}" if homes else "")
    return f"{here} is unknown{'; ' * bool(hint)}{hint}; known here: {', '.join(known)}"


def _homes(record: type = Configuration, name: str = "the top of the file, before any table") -> dict[str, list[str]]:
    """Each table, and its keys."""
    kinds = keys_of(record)
    homes = {name: list(kinds)}
    for key, kind in kinds.items():
        if kind.section is not None:
            table = f"{name[1:-1]}.{key}" if name.startswith("[") else key
            homes |= _homes(kind.section, f"[[{table}]]" if kind.is_list else f"[{table}]")
    return homes
