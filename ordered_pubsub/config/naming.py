"""Patterns of clients' names: `*` stands for any characters, also none; everything else stands for itself."""

from __future__ import annotations

import re
from functools import lru_cache


def is_named(pattern: str, name: str) -> bool:
    """Whether a name is one of those that a pattern stands for."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """`**` is the same as `*`, so that no name takes long."""
    return re.compile(".*".join(map(re.escape, re.sub(r"\*+", "*", pattern).split("*"))), re.DOTALL)
