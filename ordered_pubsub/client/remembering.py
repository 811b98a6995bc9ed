"""What a client remembers of topics only to say things once, or better: of so many topics, however many it has to do with."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

REMEMBERED_MAX = 10_000


class Remembered(dict[_Key, _Value]):
    """A dict that forgets what was put into it first when something is set and it has as much as it may."""

    def __setitem__(self, key: _Key, value: _Value) -> None:
        """Remember this."""
        if key not in self and len(self) >= REMEMBERED_MAX:
            del self[next(iter(self))]
        super().__setitem__(key, value)
