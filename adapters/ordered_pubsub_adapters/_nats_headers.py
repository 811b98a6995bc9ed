"""Headers over NATS, which are text.

Values are text that no server or client changes (`headers.py`). Names are written as they are if they are what HTTP allows,
and otherwise percent-encoded, so that nothing can end its line. `Nats-` begins names that mean something to the server
(`Nats-Msg-Id` makes it drop what it takes for a duplicate): in ours its first letter is percent-encoded as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

from ordered_pubsub_adapters.headers import header_from_text, header_to_text

BEGIN = "NATS/1.0"
STATUS = "Status"
"""The header, to nats-py, of what the server itself says: `503`, `100`."""
_PLAIN_NAME = re.compile(r"(?!nats-)[!#$&'*+\-.^_`|~0-9A-Za-z]+", re.IGNORECASE)


@lru_cache(maxsize=1_024)
def write_name(name: str) -> str:
    """A header's name as it is written."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    text = quote(name, safe="!#$&'*+^`|")
    return f"%{ord(text[0]):02X}{text[1:]}" if text[:5].lower() == "nats-" else text


def write_headers(headers: Mapping[str, bytes | str]) -> dict[str, str] | None:
    """A frame's headers as nats-py takes them."""
    return {write_name(name): header_to_text(value) for name, value in headers.items()} or None


def read_headers(headers: Mapping[str, str] | None) -> dict[str, bytes | str]:
    """A frame's headers as nats-py has read them."""
    return {unquote(name): header_from_text(value) for name, value in (headers or {}).items()}


@lru_cache(maxsize=1_024)
def _beginning(name: str) -> str:
    """A header's line up to its value."""
    return f"\r\n{write_name(name)}: "


def header_block(headers: Mapping[str, bytes | str]) -> str:
    """A frame's headers as they are written: ASCII, whatever is in them."""
    lines = "".join([_beginning(name) + header_to_text(value) for name, value in headers.items()])
    return f"{BEGIN}{lines}\r\n\r\n"
