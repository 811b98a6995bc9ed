"""What the owners of topics tell: each identity at home here that misses it is told at its own turn, or now if nobody waits.

Clients here say what they miss, and `Curiosity` asks the owners for all of them at once, this stage itself among them. What comes
back is told to many. It is held until the last of them has it, within bounds: for who has enough waiting nothing more is read,
and what finds no room is dropped, since it is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from ordered_pubsub.core.messages import LogReply
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.recovery.owner_log import OwnerLogs
from ordered_pubsub.core.recovery.told import Chosen, size_of
from ordered_pubsub.core.stage._pacing import OVER, Pacing
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.stage.turns import Work

TOLD = "told"
"""Who causes work, with an identity: what that is told."""
TOLD_BYTES_MAX = 64 << 20
"""So much of what owners tell may wait for its turn."""
TOLD_ENOUGH = 8 << 20
"""If so much waits that is to be told to an identity, nothing is read for it alone; of twice that, it is not told."""
TOLD_BYTES, TOLD_LOAD, TOLD_INLINE = 2_048, 8, 4
"""What an owner tells holds so many bytes beside its events, costs so much, and is given to so many identities as it comes."""
CHOSEN_SHARE = 2
"""So many times as much as an owner has told is kept of what filters have left of it, until all were told."""


@attrs.define(slots=True)
class _Held:
    """What an owner has told, as long as works wait that give it to somebody."""

    size: int
    works: int = 0


def _is_free(peer: int) -> bool:
    """Nothing waits for it."""
    return False


@attrs.define(eq=False)
class Telling:
    """What is told to clients at home at one stage, and to other home stages."""

    stage: Stage
    hosting: Hosting
    owner_logs: OwnerLogs
    pacing: Pacing
    is_clogged: Callable[[int], bool] = _is_free
    """whether so much waits to be sent to a stage that nothing is read for it from the log"""
    held_bytes: int = 0
    """what owners have told, and waits for its turn"""

    def send_on(self) -> None:
        """Send on what `hosting` says: to owners what is missing here, to clients what they have missed."""
        for rank, recall in self.hosting.curiosity.take_log_requests():
            if rank == self.stage.rank:
                self.owner_logs.handle_request(rank, recall.wants)
            else:
                self.stage.effects.sends.append((rank, recall))
        self.stage.effects.tells += self.hosting.tells
        self.hosting.tells.clear()

    def serve(self) -> bool:
        """Read a piece of the log for a home stage whose turn it is; whether there was one."""
        home = self.owner_logs.next_home(self._has_enough)
        if home is None:
            return False
        if home != self.stage.rank:
            self.stage.effects.sends.append((home, self.owner_logs.serve_home(home)))
        elif self.owner_logs.turn_over(home, self._is_told_enough):
            self.tell(self.owner_logs.serve_home(home))
        else:
            return False
        return True

    def _has_enough(self, home: int) -> bool:
        """Whether a home stage has so much to do with what it was told that more of it may wait."""
        return self.held_bytes > TOLD_BYTES_MAX // 2 if home == self.stage.rank else self.is_clogged(home)

    def _is_told_enough(self, topic: str) -> bool:
        """Whether all who miss something of a topic have enough waiting that is to be told to them."""
        if self.held_bytes < TOLD_ENOUGH:
            return False
        identities = self.hosting.curiosity.curious_about(topic)
        return bool(identities) and all(self.pacing.turns.size((TOLD, one)) >= TOLD_ENOUGH for one in identities)

    def tell(self, told: LogReply) -> None:
        """An owner says what its log has."""
        turns, loads = self.pacing.turns, self.pacing.loads
        size = TOLD_BYTES + sum(map(size_of, told.items))
        if self.held_bytes + size > TOLD_BYTES_MAX and self.held_bytes:
            turns.dropped += 1  # it is asked for again
            return
        held, chosen = _Held(size), Chosen(CHOSEN_SHARE * size)
        key = (TOLD, told.topic)
        used = loads.get(key, 0)
        for at, identity in enumerate(self.hosting.curiosity.hear(told)):
            work, owner = self._telling(told, identity, chosen), (TOLD, identity)
            if at < TOLD_INLINE and used < self.pacing.inline_load and not turns.has(owner, told.topic):
                used = loads[key] = used + TOLD_LOAD
                if next(work, OVER) is OVER:
                    continue
            if turns.size(owner) >= 2 * TOLD_ENOUGH:
                turns.dropped += 1
            elif turns.put(owner, told.topic, work, size, partial(self._let_go, held)):
                self.held_bytes += 0 if held.works else size
                held.works += 1

    def _let_go(self, held: _Held) -> None:
        """One of the works that hold something is over, or forgotten."""
        held.works -= 1
        self.held_bytes -= 0 if held.works else held.size

    def _telling(self, told: LogReply, identity: str, chosen: Chosen) -> Work:
        for _ in self.hosting.curiosity.telling(told, identity, chosen):
            self.send_on()
            yield True
        self.send_on()
