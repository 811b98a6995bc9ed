"""Conditions, compiled: a function that says whether an event matches.

Theory of operation
===================
Source text is written and compiled, in which each condition is a test on the type of the value and one or two comparisons
with constants; a loop over closures takes half as long again. The constants, names of fields among them, are handed over as
global names: nothing of what users wrote stands in the source.

What is not exactly of the types that decoders make (a subclass of str, a bool, a list) is left to `Values.contains`, which
is slower and means the same. Nothing is raised, whatever the data is: a value whose own methods raise is none that matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ordered_pubsub.core.filters._conditions import Conditions, Field
from ordered_pubsub.core.filters._values import NUMBERS, TEXTS, ValueRanges, Values

Matcher = Callable[[object, Mapping[str, bytes | str]], bool]
"""Takes the payload, decoded, and the headers of an event."""


def compile_matcher(conditions: Conditions) -> Matcher:
    """A function that says whether an event meets all conditions."""
    writer = _Writer()
    for field, values in conditions:
        writer.write_condition(field, values)
    source = "\n".join(["def matches(data, headers):", " try:", *writer.lines, "  return True", _ON_ERROR])
    exec(compile(source, "<filter>", "exec"), writer.names)
    matches: Matcher = writer.names.pop("matches")  # else it would hold itself, and stay until cycles are looked for
    return matches


_ON_ERROR = " except Exception:\n  return False"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _text_of(header: object) -> object:
    """The text of a header in bytes, if it is one."""
    if isinstance(header, bytes):
        try:
            return header.decode()
        except UnicodeDecodeError:
            return header
    return header


@attrs.define
class _Writer:
    """Writes the lines of the function; each leaves it if the event does not match."""

    lines: list[str] = attrs.field(factory=list)
    names: dict[str, Any] = attrs.field(factory=lambda: {"is_mapping": _is_mapping, "text_of": _text_of})
    mappings: dict[tuple[str, ...], str] = attrs.field(factory=dict)
    """the variable of each mapping of the payload that was looked into"""

    def write_condition(self, field: Field, values: Values) -> None:
        name = self.constant(field.path[-1])
        if field.is_header:
            self.lines += [f"  v = headers.get({name})", "  if type(v) is not str: v = text_of(v)"]
        else:
            self.write_mappings(field)
            self.lines.append(f"  v = {self.mappings[field.path[:-1]]}.get({name})")
        self.lines += [
            "  t = type(v)",
            "  if t is str:",
            f"   if not ({self.test(values.texts, TEXTS)}): return False",
            "  elif t is int or t is float:",
            f"   if not ({self.test(values.numbers, NUMBERS)}): return False",
            f"  elif v is None or not {self.constant(values.contains)}(v): return False",
        ]

    def write_mappings(self, field: Field) -> None:
        """Look into the mappings that the field lies in, as far as that was not done."""
        for length in range(len(field.path)):
            path = field.path[:length]
            if path in self.mappings:
                continue
            variable = self.mappings[path] = f"m{len(self.mappings)}"
            value = f"{self.mappings[path[:-1]]}.get({self.constant(path[-1])})" if path else "data"
            self.lines += [
                f"  {variable} = {value}",
                f"  if type({variable}) is not dict and not is_mapping({variable}): return False",
            ]

    def test(self, ranges: ValueRanges, whole: ValueRanges) -> str:
        """An expression that says whether `v`, of the right type, is in the ranges. It is false for NaN."""
        if not ranges.cuts:
            return "False"
        points = ranges.points()
        if points is not None:
            return self.equals(points)
        begin, end = ranges.cuts[0], ranges.cuts[-1]
        tests = [] if begin == whole.cuts[0] else [f"{self.constant(begin[1])} {'<' if begin[2] else '<='} v"]
        tests += [] if end == whole.cuts[1] else [f"v {'<=' if end[2] else '<'} {self.constant(end[1])}"]
        holes = ranges.holes(begin, end)
        return " and ".join([*(tests or ["v == v"]), *([f"not ({self.equals(holes)})"] if holes else [])])

    def equals(self, values: tuple[Any, ...]) -> str:
        if len(values) == 1:
            return f"v == {self.constant(values[0])}"
        return f"v in {self.constant(dict.fromkeys(values))}"

    def constant(self, value: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name
