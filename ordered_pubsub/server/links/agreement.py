"""What the configurations of two stages must have in common, and what happens if they have not.

A greeting holds a digest only, for a long configuration would not fit into what a stranger may send. If the digests differ,
each stage tells the other what its configuration says, so that both can write into their logs in which line they differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import attrs

from ordered_pubsub.config.dumping import LINES, common, differences
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.wire.channel import Channel, Owner
from ordered_pubsub.wire.protocol import Differs, Rejected, decode, encode, from_peer

ANSWER_S = 5.0
_DIGEST_BYTES = 16


@attrs.frozen
class Common:
    """What one stage's configuration says that all must say."""

    plain: Mapping[str, Any]
    digest: str

    @classmethod
    def of(cls, configuration: Configuration) -> Common:
        """What a configuration says. In which lines makes no difference."""
        plain = common(configuration)
        text = json.dumps({key: plain[key] for key in sorted(plain) if key != LINES}, sort_keys=True)
        return cls(plain, blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())

    def message(self) -> bytes:
        """All of it, as a frame."""
        return encode(Differs(dict(self.plain)))

    def compared_with(self, theirs: Mapping[str, Any]) -> str:
        """In what the other stage's configuration differs, in words."""
        found = differences(self.plain, theirs)
        return f"the configurations of the two stages differ: {found or 'in what this release does not know'}"


@attrs.define(eq=False)
class Disagreement(Owner):
    """Owns the connection of a stage that has another configuration, until it is known in what they differ."""

    channel: Channel
    common: Common
    note: Callable[[str], None]
    _timer: asyncio.TimerHandle = attrs.field(init=False)

    def begin(self) -> None:
        """Say what is said here, and wait for what is said there."""
        self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self.channel.abort, "it does not say in what")
        self.channel.send(self.common.message())

    def received(self, payloads: list[bytes]) -> None:
        """The other stage says what its configuration says."""
        message = decode(from_peer, payloads[0], "a stage with another configuration")
        if not isinstance(message, Differs):
            raise ProtocolError(f"a stage with another configuration said {type(message).__name__}; expected Differs")
        self._end("mismatch", self.common.compared_with(message.common))

    def broken(self, error: ProtocolError) -> None:
        """It sent what it must not."""
        self._end("bad-frame", str(error))

    def _end(self, code: str, reason: str) -> None:
        self.note(reason)
        self.channel.close(reason, encode(Rejected(code, reason)))

    def lost(self, reason: str) -> None:
        """It is gone."""
        self._timer.cancel()
