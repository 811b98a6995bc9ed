"""The content types that every release can read: what is neither was made by a serializer of the application."""

from __future__ import annotations

import json
from typing import Any

BYTES = "application/octet-stream"
JSON = "application/json"


def fields_of(payload: bytes, content_type: str) -> Any:
    """What a filter sees of a payload, without a serializer of the application: None if that is nothing."""
    if content_type != JSON:
        return None
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None
