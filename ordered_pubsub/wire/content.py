"""The content types that every release can read: what is neither was made by a serializer of the application."""

from __future__ import annotations

BYTES = "application/octet-stream"
JSON = "application/json"
