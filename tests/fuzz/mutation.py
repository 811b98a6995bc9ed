"""Inputs for fuzzing, made of good ones: changed as bytes, as msgpack values, or as text. Each draw depends on its seed only."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

INTEGERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    65_535,
    100_000,
    100_001,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1e308, -1e308, float("inf"), float("nan"), 1.7e9)
TEXTS = (
    "",
    "a",
    "b",
    "a/b",
    "*",
    "**",
    "a\x00",
    "\n",
    "\u202e",
    "é" * 130,
    "x" * 255,
    "x" * 300,
    "/",
    "#",
    "session#0/1",
)
SCALARS: tuple[Any, ...] = (None, True, False, *INTEGERS, *FLOATS, *TEXTS, b"", b"\xff" * 20)
DEEP = 2_000
BYTES_MAX = 1 << 16


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Some bytes, changed in some places."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        random.choice(_BYTE_CHANGES)(random, changed)
    return bytes(changed[:BYTES_MAX])


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF))


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.choice((1, 2, 4, 30)))


def _delete(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.choice((1, 2, 4, 30))]


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    piece = data[at : at + random.choice((1, 4, 30, 300))]
    data[at:at] = piece * random.choice((1, 2, 50))


def _cut(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data) + 1) :]


_BYTE_CHANGES = (_flip, _flip, _set, _set, _insert, _delete, _repeat, _cut)


def mutate_value(random: Random, value: Any) -> Any:
    """A value of msgpack, changed somewhere in its inside."""
    if isinstance(value, list) and value and random.random() < 0.85:
        at = random.randrange(len(value))
        return [mutate_value(random, inner) if index == at else inner for index, inner in enumerate(value)]
    if isinstance(value, dict) and value and random.random() < 0.7:
        key = random.choice(list(value))
        return {**value, key: mutate_value(random, value[key])}
    return _replaced(random, value)


def _replaced(random: Random, value: Any) -> Any:
    draw = random.random()
    if draw < 0.25 and isinstance(value, list):
        return random.choice(
            (value[:-1], value[1:], [*value, *value], value[::-1], [*value, random.choice(SCALARS)], [])
        )
    if draw < 0.25 and isinstance(value, dict):
        return random.choice(({}, {**value, random.choice(TEXTS): random.choice(SCALARS)}))
    if draw < 0.5 and isinstance(value, int) and not isinstance(value, bool):
        return random.choice((*INTEGERS, value + 1, value - 1, -value))
    if draw < 0.5 and isinstance(value, str):
        return random.choice((*TEXTS, value + "x", value[:-1], value * 3, value.upper()))
    if draw < 0.9:
        return random.choice(SCALARS)
    if draw < 0.93:
        return nested(random)
    return random.choice(([value], {"a": value}, [random.choice(SCALARS) for _ in range(random.choice((3, 300)))]))


def nested(random: Random) -> Any:
    """Something deep."""
    value: Any = random.choice(SCALARS)
    for _ in range(random.choice((5, 200, DEEP))):
        value = [value] if random.random() < 0.8 else {"a": value}
    return value


def as_bytes(value: Any) -> bytes:
    """A value as msgpack; nothing, if it is too deep or too large to be written."""
    try:
        return msgspec.msgpack.encode(value)
    except (RecursionError, OverflowError):
        return b""


def mutated(random: Random, message: bytes) -> bytes:
    """A message of msgpack: as it is, or changed in its inside, or as bytes."""
    draw = random.random()
    if draw < 0.1:
        return message
    if draw < 0.4:
        return mutate_bytes(random, message)
    value = msgspec.msgpack.decode(message)
    for _ in range(random.choice((1, 1, 2, 5))):
        value = mutate_value(random, value)
    return as_bytes(value)


def mutate_text(random: Random, text: str, words: Sequence[str]) -> str:
    """A text, changed in some places; `words` are what it is made of."""
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        at, length = random.randrange(len(text) + 1), random.choice((0, 0, 1, 2, 10, 40))
        new = random.choice(
            (random.choice(words), random.choice(TEXTS), chr(random.randrange(1, 0x2FF)), "", text[at : at + 30])
        )
        text = text[:at] + new + text[at + length :]
    return text[:BYTES_MAX]


def split(random: Random, data: bytes) -> list[bytes]:
    """The pieces in which some bytes may come."""
    pieces = []
    while data:
        length = random.choice((1, 2, 3, 5, 17, 100, 1_000, len(data)))
        pieces.append(data[:length])
        data = data[length:]
    return pieces
