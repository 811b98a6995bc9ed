"""The keeper of names: one client of a system has a name at a time.

Every name has a keeper, the stage that the name's hash chooses. The home stage of a client that comes with a name claims it
there, and gives it back when the client is gone (`claims`). Whose a name is a keeper has on its disk (`core.stage.naming`); who
has it now is in its memory only: when it starts again, and when a link is there again, every home stage tells it which names it
has granted to the clients there.

A client whose home stage was lost goes on at another one under the same session: the claim of a session that has the name
already is granted, and the home it was at before loses it. The home itself need not be there for that. A name whose home
stage is out of sight stays with its client until that stage is back: the client may still be there.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ordered_pubsub.wire.protocol import Claim


@attrs.define
class Holder:
    """Who has a name, and at which home stage."""

    session: str
    identity: str
    home: int


@attrs.define
class NameKeeper:
    """The names that one stage keeps."""

    holders: dict[str, Holder] = attrs.field(factory=dict)

    def claim(self, claim: Claim, home: int) -> str:
        """Give a name to a session; return why not, if not."""
        refusal = self.refusal(claim)
        if not refusal:
            self.holders[claim.name] = Holder(claim.session, claim.identity, home)
        return refusal

    def refusal(self, claim: Claim) -> str:
        """Why a session cannot have a name now, if it cannot: another one has it."""
        holder = self.holders.get(claim.name)
        if holder is None or holder.session == claim.session:
            return ""
        whose = f" of identity {claim.identity!r}" if holder.identity == claim.identity else ""
        return f"the name {claim.name!r} is in use by another client{whose}; close that one, or take another name"

    def release(self, claim: Claim, home: int) -> bool:
        """Take a name back from a session that left this home; return whether it had it."""
        holder = self.holders.get(claim.name)
        if holder is None or (holder.session, holder.home) != (claim.session, home):
            return False
        del self.holders[claim.name]
        return True

    def restate(self, claims: Sequence[Claim], home: int) -> list[str]:
        """Take over what a home stage says that its clients have: no more than that; return for each why not, if not.

        A session that has come to another home since stays there: this one has not noticed yet.
        """
        stated = {(claim.name, claim.session) for claim in claims}
        for name in [name for name, holder in self.holders.items() if holder.home == home]:
            if (name, self.holders[name].session) not in stated:
                del self.holders[name]
        return [self.refusal(claim) if claim.name in self.holders else self.claim(claim, home) for claim in claims]
