"""What a broker says to a client, cut into frames: of MQTT (3.1.1 and 5) and of NATS.

A splitter is fed with bytes as they come from a connection, in whatever pieces, and gives back all of them in the same order:
what carries an event as one whole frame, and everything else as it came, as early as possible. Whoever leaves out, repeats or
moves whole frames never hurts the stream. An event is

- with MQTT a PUBLISH of QoS 0. Those of QoS 1 and 2 are not: the protocol makes up for their loss only when a connection breaks,
  so that leaving one out would be a broker's fault that no broker has;
- with NATS a MSG or HMSG.

Memory is bounded: a frame of more than `FRAME_BYTES_MAX` is passed on as it comes, and counts as no event. So is everything from
where a stream is not what it should be (encrypted, for one).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

FRAME_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 4_096
"""A line that announces a message of NATS has no more; the server's own limit is the same."""

Piece = tuple[bytes, bool]
"""Some bytes, and whether they are a whole frame with an event."""

_EVENTS = (b"MSG ", b"MSG\t", b"HMSG ", b"HMSG\t")
_PUBLISH_QOS_0 = 0x30
_KIND_AND_QOS = 0xF6
"""The bits of a packet's first byte that say so; the others are DUP and RETAIN."""


class FrameSplitter(ABC):
    """Cuts one direction of one connection."""

    def __init__(self) -> None:
        self._held = bytearray()
        """the beginning of a frame that is not whole"""
        self._through = 0
        """so many bytes of a frame that has begun are passed on as they come"""
        self._is_lost = False
        """whether nothing is understood any more"""

    @property
    def is_between(self) -> bool:
        """Whether all that was given back ends with a frame, so that another one may follow."""
        return not self._through and not self._is_lost

    def feed(self, data: bytes) -> list[Piece]:
        """Take bytes; return those that go on now."""
        held, at = self._held, 0
        held += data
        pieces: list[Piece] = []
        while at < len(held):
            size, is_event = self._next(held, at)
            if not size:
                break
            pieces.append((bytes(held[at : at + size]), is_event))
            at += size
        del held[:at]
        return pieces

    def _next(self, held: bytearray, at: int) -> tuple[int, bool]:
        """How many bytes go on now, and whether they are an event; 0 if more must come first."""
        here = len(held) - at
        if self._is_lost:
            return here, False
        if not self._through:
            size, is_event = self._look(held, at)
            if is_event and size <= FRAME_BYTES_MAX:
                return (size, True) if size <= here else (0, False)
            self._through = size
        size = min(self._through, here)
        self._through -= size
        return size, False

    @abstractmethod
    def _look(self, held: bytearray, at: int) -> tuple[int, bool]:
        """How many bytes the frame has that begins here, and whether it is an event; 0 if that is not known yet."""


class MqttSplitter(FrameSplitter):
    """MQTT: a byte with the kind, the length in 1 to 4 bytes of 7 bits, the lowest first, and the rest."""

    def _look(self, held: bytearray, at: int) -> tuple[int, bool]:
        rest = 0
        for place in range(4):
            if at + 1 + place >= len(held):
                return 0, False
            byte = held[at + 1 + place]
            rest |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return 2 + place + rest, held[at] & _KIND_AND_QOS == _PUBLISH_QOS_0
        self._is_lost = True
        return len(held) - at, False


class NatsSplitter(FrameSplitter):
    """NATS: lines; after one with MSG or HMSG as many bytes as its last word says, and the end of a line."""

    def __init__(self) -> None:
        super().__init__()
        self._is_in_line = False
        """whether a line without an event has begun and not ended"""

    @property
    def is_between(self) -> bool:
        """Whether all that was given back ends with a frame, so that another one may follow."""
        return super().is_between and not self._is_in_line

    def _look(self, held: bytearray, at: int) -> tuple[int, bool]:
        begins = bytes(held[at : at + 5]).upper()
        if self._is_in_line or not any(begins[: len(word)] == word[: len(begins)] for word in _EVENTS):
            end = held.find(b"\n", at)
            self._is_in_line = end < 0
            return (len(held) if end < 0 else end + 1) - at, False
        end = held.find(b"\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            self._is_lost = len(held) - at >= LINE_BYTES_MAX
            return (len(held) - at if self._is_lost else 0), False
        size = held[at:end].split()[-1]
        if not size.isdigit():
            self._is_lost = True
            return len(held) - at, False
        return end + 1 - at + int(size) + 2, True


SPLITTERS: dict[str, type[FrameSplitter]] = {"mqtt": MqttSplitter, "nats": NatsSplitter}
"""By the scheme of a broker's URL."""
