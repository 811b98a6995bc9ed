"""What time it was at the last tick, for what is done between two ticks."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Clock:
    """The time as a stage was told it last."""

    now: float = 0.0
    """by the clock that never jumps"""
    wall_s: float = 0.0
    """by the one on the wall"""
