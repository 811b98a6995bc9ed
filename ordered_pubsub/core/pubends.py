"""The owner's side of knowledge: answers home stages from the log, a small piece at a time.

What is asked for waits in a queue. `serve` answers the next piece of it and, if there is more, puts the rest at the end: so who
asks for much does not delay who asks for little, and nobody delays the stage. The queue is bounded; what finds it full is
asked again.

What was lost last is missed by nobody who looks at numbers only. So home stages say up to where their clients have acknowledged
each topic, and where acknowledgements are missing `aet_s` after a topic's last event, the owner says how far it is; again and
again, less and less often, for as long as they are missing.
"""

from __future__ import annotations

from collections import deque

import attrs

from ordered_pubsub.core.log import LogReader
from ordered_pubsub.core.messages import AckExpected, Hosts, Told, Want

AET_S = 2.0
"""Ack expected threshold: so long after a topic's last event everybody should have acknowledged it."""
AET_MOST_S = 10.0
PIECE_BYTES = 64 * 1024
"""About so much is read at a time."""
WANTS_MAX = 10_000
"""Pieces of the log that may be waited for."""


@attrs.define(slots=True)
class _Restless:
    """A topic whose last events somebody may miss."""

    due_at: float
    interval_s: float


@attrs.define(eq=False)
class Pubends:
    """The topics' ends where events are published, of one stage."""

    reader: LogReader
    aet_s: float = AET_S
    _last: dict[str, int] = attrs.field(factory=dict)
    """topic → its last complete number"""
    _homes: dict[str, dict[int, int]] = attrs.field(factory=dict)
    """topic → home stages that have subscribers of it → up to where all of them have acknowledged it"""
    _stirred: dict[str, bool] = attrs.field(factory=dict)
    """topics of which something has changed since the last tick"""
    _restless: dict[str, _Restless] = attrs.field(factory=dict)
    _queue: deque[tuple[int, Want]] = attrs.field(factory=deque)
    recalls: int = 0
    """how often home stages have asked for what their clients miss"""
    recalled_numbers: int = 0
    """… and for how many numbers"""

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def published(self, topic: str, last: int) -> None:
        """An event is complete, and on disk."""
        if last > self._last.get(topic, 0):
            self._last[topic] = last
            self._stirred[topic] = True

    def hosts(self, home: int, hosts: Hosts) -> None:
        """A home stage says up to where its clients have acknowledged some topics."""
        if hosts.is_all:
            self.home_is_gone(home)
        for topic, acked in hosts.acked.items():
            if acked is None:
                self._leave(topic, home)
            else:
                self._homes.setdefault(topic, {})[home] = acked
                if acked < self._last.get(topic, 0) and topic not in self._restless:
                    self._stirred[topic] = True

    def home_is_gone(self, home: int) -> None:
        """Nothing is known of the clients of a stage any more."""
        for topic in [topic for topic, homes in self._homes.items() if home in homes]:
            self._leave(topic, home)

    def _leave(self, topic: str, home: int) -> None:
        homes = self._homes.get(topic, {})
        homes.pop(home, None)
        if not homes:
            self._homes.pop(topic, None)

    def tick(self, now: float) -> list[tuple[int, AckExpected]]:
        """Time passes: which home stages to tell how far some topics are."""
        for topic in self._stirred:
            self._restless[topic] = _Restless(now + self.aet_s, self.aet_s)
        self._stirred.clear()
        expected: dict[int, dict[str, int]] = {}
        for topic in [topic for topic, restless in self._restless.items() if restless.due_at <= now]:
            last = self._last[topic]
            behind = [home for home, acked in self._homes.get(topic, {}).items() if acked < last]
            for home in behind:
                expected.setdefault(home, {})[topic] = last
            if behind:
                restless = self._restless[topic]
                restless.due_at, restless.interval_s = (
                    now + restless.interval_s,
                    min(2 * restless.interval_s, AET_MOST_S),
                )
            else:
                del self._restless[topic]
        return [(home, AckExpected(counts)) for home, counts in expected.items()]

    # -- recalling ----------------------------------------------------------------------------------------------------

    def recall(self, home: int, wants: list[Want]) -> None:
        """A home stage asks for parts of the log."""
        self.recalls += 1
        self.recalled_numbers += sum(want.last - want.first + 1 for want in wants)
        self._queue.extend((home, want) for want in wants[: WANTS_MAX - len(self._queue)])

    @property
    def has_work(self) -> bool:
        """Whether anybody waits for an answer."""
        return bool(self._queue)

    def serve(self) -> tuple[int, Told]:
        """Read one piece; return it, and for which home stage it is."""
        home, want = self._queue.popleft()
        reading = self.reader.read(want.topic, want.first, want.last, PIECE_BYTES, want.full)
        if reading.read_to < want.last:
            self._queue.append((home, Want(want.topic, reading.read_to + 1, want.last)))
        return home, Told(want.topic, want.first, reading.read_to, reading.floor, reading.items)
