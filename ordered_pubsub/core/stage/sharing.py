"""Each text in memory once: what is decoded has a name anew wherever it stands, and a topic's name stands in many tables."""

from __future__ import annotations

from types import NoneType
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

_T = TypeVar("_T")
_PLAIN = (int, bool, float, bytes, NoneType)
"""What has no texts in it."""


def share_texts(thing: _T, known: dict[str, str]) -> _T:
    """The same thing, in which texts that are equal are one: what was decoded, and nobody else has yet.

    `known` gets them, from one call to the next. What the first value of a table is decides how its values are looked at.
    """
    return _share(thing, known)  # type: ignore[no-any-return]


def _share(thing: Any, known: dict[str, str]) -> Any:
    kind = type(thing)
    if kind is str:
        return known.setdefault(thing, thing)
    if kind is tuple:
        return tuple([_share(part, known) for part in thing])
    if kind is list:
        thing[:] = [_share(part, known) for part in thing]
    elif isinstance(thing, dict):
        _share_table(thing, known)
    elif isinstance(thing, msgspec.Struct):
        for field in thing.__struct_fields__:
            value = getattr(thing, field)
            if type(value) not in _PLAIN:
                force_setattr(thing, field, _share(value, known))
    return thing


def _share_table(table: dict[Any, Any], known: dict[str, str]) -> None:
    """The keys stay in their order."""
    for key, value in table.items():
        has_names, is_plain = type(key) is str, type(value) in _PLAIN
        break
    else:
        return
    share = known.setdefault
    if not has_names:
        shared = table if is_plain else {key: _share(value, known) for key, value in table.items()}
    elif is_plain:
        shared = {share(key, key): value for key, value in table.items()}
    else:
        shared = {share(key, key): _share(value, known) for key, value in table.items()}
    if shared is not table:
        table.clear()
        table.update(shared)
