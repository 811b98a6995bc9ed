"""What is done as it comes, and what waits for its turn.

A few requests of each identity are handled as they come, until what came of them is taken for the disk (`INLINE_LOAD`); what is
more, and whatever grows with what is named in a message, waits in `turns`: who has caused work is served by turns, and so are
the sessions of each. What a session asks again and again does not queue up (`WORKS_MAX`).

A large change costs the owners of its topics much more than it costs whoever asks for it. What it leaves to do in the groups'
tables is done little by little, and changes of an identity that has caused very much of that wait to be taken (`CELLS_MAX`).
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from ordered_pubsub.core.messages import PublishAsk, Request, find_change
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.turns import Turns, Work

INLINE_LOAD = 256
"""So much of an identity is handled as it comes, until what came of it is on disk; what is more waits for its turn."""
CELLS_MAX, CELLS_A_SECOND = 2_000_000, 250_000
"""What changes of an identity do to the groups' tables is done little by little: so many cells may be waiting for that, and so
many are given time; what is more waits to be taken. A subscription to a thousand topics concerns a million."""
LOAD_BYTES = 4_096
"""So many bytes of events cost as much as a part of a request."""
WORKS_MAX = 16
"""So much of what one session has asked a stage may wait there."""
STAGE, CHORES = "stage", ("chores",)
"""Who causes work, beside identities: another stage, with its rank, and this one."""
OVER = object()
"""What there is after the last step of some work."""


def load_of(request: Request) -> int:
    """About what a request costs, in parts."""
    load = 0
    for part in request.parts:
        if isinstance(part, PublishAsk):
            load += 1
            for chunk in part.chunks:
                load += len(chunk.data) // LOAD_BYTES
        else:
            load += 1 + len(part.add) + len(part.remove)
    return load


@attrs.define(eq=False)
class Pacing:
    """Who is served when at one stage."""

    stage: Stage
    turns: Turns
    """what waits for its turn"""
    inline_load: int = INLINE_LOAD
    loads: dict[Hashable, int] = attrs.field(factory=dict)
    """who → how much of it was handled as it came since the last batch was taken"""

    def may_go_on(self, owner: Hashable, session: str, load: int) -> bool:
        """Whether something is handled as it comes: its session waits for nothing, its owner has not asked for much lately."""
        if owner == "":
            return True  # somebody in this process, who could do worse
        used = self.loads.get(owner, 0)
        if used >= self.inline_load or self.turns.has(owner, session):
            return False
        self.loads[owner] = used + load
        return True

    def begin(self, owner: Hashable, session: str, work: Work, load: int = 1) -> bool:
        """Do the first step of some work now, if its turn is now; what is left waits. Return whether there is room for it."""
        if self.may_go_on(owner, session, load) and next(work, OVER) is OVER:
            return True
        if self.turns.count(owner, session) >= WORKS_MAX:
            self.turns.dropped += 1  # it is asked for again
            return False
        return self.turns.put(owner, session, work)

    def begin_chore(self, name: str, work: Work) -> None:
        """Begin something that this stage does for itself, unless it is still at it."""
        if not self.turns.has(CHORES, name) and next(work, OVER) is not OVER:
            self.turns.put(CHORES, name, work)

    # -- changes of very many topics ----------------------------------------------------------------------------------

    def has_much_changed(self, request: Request) -> bool:
        """Whether a change has to wait until what earlier ones have left to do has had its time."""
        is_much = self.stage.gatekeeper.cells.get(request.identity, 0) > CELLS_MAX
        return is_much and find_change(request.parts) is not None

    def forget_cells(self, passed_s: float) -> None:
        """So much time has passed for what changes have left to do."""
        gatekeeper, forgotten = self.stage.gatekeeper, int(CELLS_A_SECOND * passed_s)
        if gatekeeper.cells and forgotten > 0:
            gatekeeper.cells = {who: count - forgotten for who, count in gatekeeper.cells.items() if count > forgotten}

    def settle_pairs(self) -> None:
        """Do what changes have left to do, a little at a time."""
        if self.stage.state.groups.due:
            self.begin_chore("pairs", self._settling_pairs())

    def _settling_pairs(self) -> Work:
        while self.stage.settle_pairs():
            yield True
