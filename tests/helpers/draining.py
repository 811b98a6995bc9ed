"""What the core does in small steps, done at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


def drain(steps: Iterable[object]) -> None:
    """Do all of them."""
    deque(steps, maxlen=0)
