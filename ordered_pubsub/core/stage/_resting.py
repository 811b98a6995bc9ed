"""Topics that rest: of a topic that nobody holds or needs, and whose log is empty, a stage remembers its last number only.

That is not kept in memory but in a table beside the log, for a topic must never start again at 1. A topic of this stage may rest
when

- no subscription holds it here, and no change that concerns it is on its way further up (`Groups.held`, `Groups.reach`);
- its log is empty, and none of its numbers may turn out to be void;
- all registrars have said, since the last time that any of this changed, that no subscription needs anything of it, or is
  gaining it (`Floors`); and it was not used for a while, so that one that is used now and then is not put down and picked up
  again for each event;
- all of that is on disk.

Of a topic of a lower stage nothing is remembered but what is owed to other topics' next events, or in its own
(`core.order.groups`). That may go as well when no registrar names it.

The stage journals what rests (`Rested`); whatever concerns the topic later makes it look the number up and journal that first
(`Woken`), so a journal is read without the table. A row of the table may be older than what the stage knows, and never says more
than the journal: what rests was on disk before.

Looking for such topics is soft state and never a walk over all of them: some at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ordered_pubsub.core.liveness.voids import Voids
from ordered_pubsub.core.log.retention import LogTrimmer
from ordered_pubsub.core.log.shelf import Shelf
from ordered_pubsub.core.stage.stage import Stage

REST_AFTER_S = 60.0
LOOK_S = 5.0
"""So often a new look at all topics begins, at most."""
LOOKED_AT_ONCE = 250
RESTING_AT_ONCE = 250
ABOUT_MAX = 1_000
"""Topics of lower stages that registrars are asked about at once."""


@attrs.define(eq=False)
class LastNumbers:
    """The last numbers of topics that rest: on disk, or on their way there."""

    shelf: Shelf
    """what is on disk"""
    _fresh: dict[str, int] = attrs.field(factory=dict)

    def number(self, topic: str) -> int:
        """The last number of a topic that rests; 0 if it is not there."""
        return self._fresh.get(topic) or self.shelf.number(topic)

    def resting(self) -> Iterator[tuple[str, int]]:
        """The topics that are there, and their numbers."""
        return self.shelf.resting()

    def note(self, rested: Mapping[str, int]) -> None:
        """These are to be written."""
        self._fresh.update(rested)

    def written(self, rested: Iterable[str]) -> None:
        """They are on disk."""
        for topic in rested:
            self._fresh.pop(topic, None)


@attrs.define(slots=True)
class _Candidate:
    """A topic that nothing here speaks against."""

    number: int
    since: float
    round: int
    """the last round of asking the registrars that had begun; of a lower topic, the first in which it was asked about"""
    batch: int
    """the batch with which all that is known of it now is on disk"""


@attrs.define(eq=False)
class Resting:
    """Which topics may rest at one stage."""

    stage: Stage
    retention: LogTrimmer
    voids: Voids
    shelf: Shelf
    """what is on disk"""
    after_s: float = REST_AFTER_S
    look_s: float = LOOK_S
    taken: int = 0
    """how many batches were made of what the stage did"""
    safe: int = 0
    """… and are on disk"""
    _looked_at: float = float("-inf")
    _turn: deque[str] = attrs.field(factory=deque)
    _own: dict[str, _Candidate] = attrs.field(factory=dict)
    """the one that was found first comes first"""
    _lower: dict[str, _Candidate] = attrs.field(factory=dict)

    def find(self, now: float) -> list[str]:
        """Topics that are to rest now, a few at a time."""
        self._drop_touched()
        self._look(now)
        return self._take_due(self._own, now) + self._take_due(self._lower, now)

    def about(self, round: int) -> tuple[str, ...]:
        """Topics of lower stages that the registrars are to be asked about in this round."""
        asked: list[str] = []
        for topic, candidate in self._lower.items():
            if len(asked) == ABOUT_MAX:
                break
            candidate.round = candidate.round or round
            asked.append(topic)
        return tuple(asked)

    def _drop_touched(self) -> None:
        """What changes have concerned since it became a candidate is none any more."""
        for topic in self.stage.waking.touched:
            self._own.pop(topic, None)
            self._lower.pop(topic, None)
        self.stage.waking.touched.clear()

    def _look(self, now: float) -> None:
        """Look at some more topics."""
        state = self.stage.state
        if not self._turn and now >= self._looked_at + self.look_s:
            self._looked_at = now
            self._turn.extend(state.clocks.numbers)
            self._turn.extend(state.groups.owed)
            self._turn.extend(state.groups.owed_to)
        batch = self.taken + bool(self.stage.effects.journal)
        for _ in range(min(LOOKED_AT_ONCE, len(self._turn))):
            topic = self._turn.popleft()
            is_own = topic in state.clocks.numbers
            candidates = self._own if is_own else self._lower
            if topic not in candidates and self._may_rest(topic):
                round = self.retention.round if is_own else 0
                candidates[topic] = _Candidate(self._number(topic), now, round, batch)

    def _may_rest(self, topic: str) -> bool:
        """Whether nothing that is known here speaks against it."""
        state = self.stage.state
        groups = state.groups
        if topic in groups.due_about:
            return False
        if topic not in state.clocks.numbers:
            return topic not in groups.filled and (topic in groups.owed or topic in groups.owed_to)
        return not (
            topic in groups.held
            or topic in groups.reach
            or self.voids.has_pending(topic)
            or (topic in state.kept and self.shelf.floor(topic) < state.kept[topic])
        )

    def _number(self, topic: str) -> int:
        return self.stage.state.clocks.count(topic)

    def _take_due(self, candidates: dict[str, _Candidate], now: float) -> list[str]:
        """Those that were candidates for long enough; who is later in the row is so for a shorter time."""
        due: list[str] = []
        is_lower = candidates is self._lower
        for topic, candidate in candidates.items():
            is_asked = self.retention.has_answers(candidate.round - is_lower) and (candidate.round or not is_lower)
            is_old = now >= candidate.since + self.after_s and candidate.batch <= self.safe
            if not (is_asked and is_old) or len(due) == RESTING_AT_ONCE:
                break
            due.append(topic)
        found = [topic for topic in due if self._is_still_idle(topic, candidates[topic])]
        for topic in due:
            del candidates[topic]
        return found

    def _is_still_idle(self, topic: str, candidate: _Candidate) -> bool:
        return self._number(topic) == candidate.number and self._may_rest(topic) and not self.retention.is_named(topic)
