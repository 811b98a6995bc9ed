"""Whose session it is: a session's id holds the digest of a secret that only its client knows.

A session's id is seen by others: it is part of what marks on the broker say. Whoever greets a stage under it shows the
secret, too, so nobody can go on with, or ask in the name of, somebody else's session; and no stage needs to remember
anything for that.
"""

from __future__ import annotations

from hashlib import blake2b
from secrets import token_bytes

import attrs

from ordered_pubsub.core.messages import SystemKeys
from ordered_pubsub.core.trust.authenticity import SECRET_BYTES as SYSTEM_SECRET_BYTES
from ordered_pubsub.core.trust.authenticity import SYSTEM_BYTES
from ordered_pubsub.core.trust.keys import founded

SECRET_BYTES = 16
DIGEST_BYTES = 10
NAMELESS = "anonymous-"
"""So begins what clients without a name are called. No client may take a name that does."""


@attrs.frozen
class SessionKey:
    """A session's id, and the secret that proves it."""

    session: str
    secret: bytes = attrs.field(repr=False)

    @property
    def nonce(self) -> str:
        """The part of the id that no other session has."""
        return _digest(self.secret)


def make_session(name: str | None) -> SessionKey:
    """A new session for a client of that name."""
    secret = token_bytes(SECRET_BYTES)
    return SessionKey(f"{name or 'anonymous'}#{_digest(secret)}", secret)


def draw_system(wall_s: float) -> SystemKeys:
    """What a system would be founded on, drawn anew each time."""
    return founded(token_bytes(SYSTEM_BYTES), token_bytes(SYSTEM_SECRET_BYTES), wall_s)


def derive_session(*what: str) -> SessionKey:
    """The session that belongs to these texts, the same each time. Whoever knows all of them can go on with it."""
    secret = blake2b("\0".join(what).encode(), digest_size=SECRET_BYTES).digest()
    return SessionKey(f"anonymous#{_digest(secret)}", secret)


def publisher_of(session: str, name: str | None) -> str:
    """What a session's events carry as their publisher: its name, or one that no other session has."""
    return name or NAMELESS + session.rpartition("#")[2]


def is_proven(session: str, secret: bytes, name: str | None) -> bool:
    """Whether a secret is the one of a session that belongs to a client of that name."""
    return session == f"{name or 'anonymous'}#{_digest(secret)}"


def _digest(secret: bytes) -> str:
    return blake2b(secret, digest_size=DIGEST_BYTES).hexdigest()
