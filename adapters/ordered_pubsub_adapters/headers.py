"""Headers for brokers whose headers are text: bytes, and text that a broker would not leave as it is.

Plain text travels as it is, so that plain consumers and publishers see what they expect. Bytes travel as `b64:` and their
base64 digits, text that might be changed on the way as `u64:` and those of its UTF-8 bytes. What was not written by this
module, and only looks like it, is read as plain text.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

BYTES_MARK = "b64:"
TEXT_MARK = "u64:"


def header_to_text(value: bytes | str) -> str:
    """A header's value as text that any broker leaves as it is."""
    if isinstance(value, bytes):
        return BYTES_MARK + b64encode(value).decode()
    if (
        value.isascii()
        and value.isprintable()
        and value == value.strip()
        and not value.startswith((BYTES_MARK, TEXT_MARK))
    ):
        return value
    return TEXT_MARK + b64encode(value.encode()).decode()


def header_from_text(text: str) -> bytes | str:
    """The value that a text stands for."""
    mark = text[:4]
    if (mark != BYTES_MARK and mark != TEXT_MARK) or len(text) % 4:  # Python 3.10 decodes "=" alone
        return text
    try:
        value = b64decode(text[4:], validate=True)
        return value if mark == BYTES_MARK else value.decode()
    except ValueError:
        return text
