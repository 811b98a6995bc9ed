"""How much work something is, counted in lines of the core and not in seconds, so that it is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ordered_pubsub import core

CORE = str(Path(core.__file__).parent)


def steps(work: Callable[[], object]) -> int:
    """How many lines of the core `work` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(CORE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
