"""The keeper of names: one client of a system has a name at a time.

Every name has a keeper, the stage that the name's hash chooses. The home stage of a client that comes with a name claims it
there, and gives it back when the client is gone. What a keeper knows is in its memory only: when it starts again, and when a
link is there again, every home stage tells it which names its clients have.

A client whose home stage was lost goes on at another one under the same session: the claim of a session that has the name
already is granted, and the home it was at before loses it.
"""

from __future__ import annotations

import attrs


@attrs.define
class Holder:
    """Who has a name, and at which home stage."""

    session: str
    identity: str
    home: int


@attrs.define
class Names:
    """The names that one stage keeps."""

    holders: dict[str, Holder] = attrs.field(factory=dict)

    def claim(self, name: str, session: str, identity: str, home: int) -> str:
        """Give a name to a session; return why not, if not."""
        holder = self.holders.get(name)
        if holder is not None and holder.session != session:
            return (
                f"the name {name!r} is in use by another client"
                + (f" of identity {identity!r}" if holder.identity == identity else "")
                + "; close that one, or take another name"
            )
        self.holders[name] = Holder(session, identity, home)
        return ""

    def release(self, name: str, session: str, home: int) -> None:
        """Take a name back from a session that left this home."""
        holder = self.holders.get(name)
        if holder is not None and (holder.session, holder.home) == (session, home):
            del self.holders[name]

    def forget(self, home: int) -> None:
        """A home stage is gone from sight; those of its clients that are still there will come back with their names."""
        for name in [name for name, holder in self.holders.items() if holder.home == home]:
            del self.holders[name]
