"""Work that others cause, done a little at a time, by turns.

A message of a few kilobytes may ask for seconds of work: what a log has of a thousand stretches, for one. Such work is an
iterator whose steps are small, each bounded whatever was asked for; it waits here, and whoever runs the stage does a few
steps now and then, after everything that is waiting for an answer now. Those who cause work take turns, and among the work
of one of them its sessions do: so who asks for little waits for one step of everybody else, and not for all that they want.

    owner ──> session ──> work, work, …     (an owner is an identity, what is told to one, or another stage)

INVARIANT: no owner is without sessions, and no session without work.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator

import attrs

WORKS_MAX = 4_096
"""So many pieces of work of one session may wait."""
BYTES_MAX = 16 << 20
"""… and about so many bytes of one owner."""

Work = Iterator[bool | None]
"""A step that yields False has done nothing: it waits for something else."""


@attrs.define(slots=True)
class _Queue:
    """What one session waits for: work, about how many bytes it holds, and who is told when it does not any more."""

    works: deque[tuple[Work, int, Callable[[], None] | None]] = attrs.field(factory=deque)


@attrs.define(slots=True)
class _Owner:
    """Who has caused work."""

    sessions: OrderedDict[Hashable, _Queue] = attrs.field(factory=OrderedDict)
    """whose turn is next comes first"""
    size: int = 0


@attrs.define(eq=False)
class Turns:
    """What waits for its turn."""

    works_max: int = WORKS_MAX
    bytes_max: int = BYTES_MAX
    dropped: int = 0
    """how much was not taken, since its owner had too much waiting: it is asked for again"""
    _owners: OrderedDict[Hashable, _Owner] = attrs.field(factory=OrderedDict)
    """whose turn is next comes first"""

    def put(
        self,
        owner: Hashable,
        session: Hashable,
        work: Work,
        size: int = 0,
        let_go: Callable[[], None] | None = None,
    ) -> bool:
        """Let work wait for its turn; say whether there is room for it. If so, `let_go` is called when it waits no more."""
        found = self._owners.get(owner)
        if found is None:
            found = self._owners[owner] = _Owner()
        queue = found.sessions.get(session)
        if queue is None:
            queue = found.sessions[session] = _Queue()
        if queue.works and (len(queue.works) >= self.works_max or found.size + size > self.bytes_max):
            self.dropped += 1
            return False
        queue.works.append((work, size, let_go))
        found.size += size
        return True

    def size(self, owner: Hashable) -> int:
        """About how many bytes the work of an owner holds."""
        found = self._owners.get(owner)
        return 0 if found is None else found.size

    def count(self, owner: Hashable, session: Hashable) -> int:
        """How much of the work of a session waits."""
        found = self._owners.get(owner)
        queue = None if found is None else found.sessions.get(session)
        return 0 if queue is None else len(queue.works)

    def has(self, owner: Hashable, session: Hashable) -> bool:
        """Whether work of a session waits."""
        found = self._owners.get(owner)
        return found is not None and session in found.sessions

    def has_any(self, owner: Hashable) -> bool:
        """Whether any work of an owner waits."""
        return owner in self._owners

    @property
    def has_work(self) -> bool:
        """Whether anything waits."""
        return bool(self._owners)

    @property
    def is_shared(self) -> bool:
        """Whether there is work of more than one owner."""
        return len(self._owners) > 1

    def forget(self, owner: Hashable, session: Hashable) -> None:
        """Nobody wants any more what a session has caused."""
        found = self._owners.get(owner)
        queue = None if found is None else found.sessions.pop(session, None)
        if found is not None and queue is not None:
            if not found.sessions:
                del self._owners[owner]
            for _, size, let_go in queue.works:
                found.size -= size
                if let_go is not None:
                    let_go()

    def step(self) -> bool:
        """One step of the work whose turn it is; whether it has done something. If it raises, it is over."""
        if not self._owners:
            return False
        owner, found = next(iter(self._owners.items()))
        session, queue = next(iter(found.sessions.items()))
        work = queue.works[0][0]
        is_over, found_something = True, True
        try:
            outcome = next(work, _OVER)
            is_over, found_something = outcome is _OVER, outcome is not False
        finally:
            if self._owners.get(owner) is found and found.sessions.get(session) is queue:  # else it was forgotten
                self._pass_on(owner, found, session, queue, is_over)
        return found_something

    def _pass_on(self, owner: Hashable, found: _Owner, session: Hashable, queue: _Queue, is_over: bool) -> None:
        """The turn goes to the next one."""
        let_go = None
        if is_over:
            _, size, let_go = queue.works.popleft()
            found.size -= size
        if queue.works:
            found.sessions.move_to_end(session)
        else:
            del found.sessions[session]
        if found.sessions:
            self._owners.move_to_end(owner)
        else:
            del self._owners[owner]
        if let_go is not None:
            let_go()


_OVER = object()
