"""Whose a name is: the identity's that took it first, and the session's that has it, or had it last.

One stage keeps a name, the one that its hash chooses, and has this in its journal. So after a restart it still knows who may
go on under which name, and nobody gets one by being quick, or by saying that he had it. Only a name that the configuration gives
to an identity is taken from another one that was there first. An identity has no more than it may have; beyond that it loses
those that it has not used for long. A name that some client has now is in use, for however long it has had it.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from ordered_pubsub.core.messages import ANYBODY, Named

RENEWALS = 8
"""So often, in the time after which a name is unused, it is written down that it is used, if it is."""
LIMIT, IN_USE = "limit", "name-in-use"
"""Codes of refusals of a name."""


class Owned(msgspec.Struct):
    """Whose a name is."""

    identity: str
    session: str
    at: float
    """when that session was last known to use it, by the wall clock: at least to a `RENEWALS`th of what makes it unused"""


class NameTable(msgspec.Struct):
    """The names that one stage keeps.

    INVARIANT: `counts` says of each identity how many of `names` are its own.
    """

    names: dict[str, Owned] = msgspec.field(default_factory=dict)
    """the one that is not known to be used for longest comes first"""
    counts: dict[str, int] = msgspec.field(default_factory=dict)

    def is_of(self, name: str, identity: str, session: str) -> bool:
        """Whether this session of this identity has the name, or had it last."""
        owned = self.names.get(name)
        return owned is not None and (owned.identity, owned.session) == (identity, session)

    def is_anothers(self, name: str, identity: str) -> bool:
        """Whether a name was taken by another identity before."""
        owned = self.names.get(name)
        return owned is not None and owned.identity not in (identity, ANYBODY)

    def make_room(
        self, name: str, identity: str, most: int, unused_since: float, in_use: Container[str]
    ) -> tuple[bool, tuple[str, ...]]:
        """Whether an identity may have one more name, and which it loses for that: those that were not used since a time."""
        owned = self.names.get(name)
        if owned is not None and owned.identity == identity:
            return True, ()
        if self.counts.get(identity, 0) < most:
            return True, ()
        mine = ((known, owned) for known, owned in self.names.items() if owned.identity == identity)
        unused = tuple(known for known, owned in mine if owned.at < unused_since and known not in in_use)
        return bool(unused), unused

    def take(self, named: Named) -> None:
        """A session gets a name, or goes on under it, and others are given up."""
        for name in (*named.forgets, named.name):
            owned = self.names.pop(name, None)
            if owned is not None:
                self._count(owned.identity, -1)
        self.names[named.name] = Owned(named.identity, named.session, named.at)
        self._count(named.identity, 1)

    def _count(self, identity: str, step: int) -> None:
        self.counts[identity] = self.counts.get(identity, 0) + step
        if not self.counts[identity]:
            del self.counts[identity]
