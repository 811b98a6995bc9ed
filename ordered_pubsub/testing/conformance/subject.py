"""What is examined, and how a check is written down, found and run.

A `Subject` knows how to make adapters to one ENS; what else it knows (how to crash the ENS, how to reach it by another
address) decides with its capabilities which checks apply. A check is a coroutine function that raises `ConformanceError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs

from ordered_pubsub.adapter import Adapter, Capabilities
from ordered_pubsub.errors import UsageError
from ordered_pubsub.wire.tasks import in_time

PATIENCE_S = 60.0
WAITS_MAX = 5
"""So many times that long, a check may take in all."""
SILENCE_S = 120.0

T = TypeVar("T")


class ConformanceError(AssertionError):
    """An adapter does not do what the interface promises."""


def expect(is_so: bool, otherwise: str) -> None:
    """Raise unless it is so."""
    if not is_so:
        raise ConformanceError(otherwise)


async def bounded(work: Awaitable[T], seconds: float, otherwise: str) -> T:
    """The outcome of some work; if it takes longer, it is cancelled, and that is an error."""
    return await in_time(work, seconds, ConformanceError(f"{otherwise} within {seconds:g} s"), seconds)


@attrs.frozen
class Subject:
    """An adapter to be examined, and the ENS that it is examined with."""

    make: Callable[[], Adapter]
    """a new adapter, not opened, to the same ENS each time"""
    capabilities: Capabilities
    """what it must say of itself, and is held to"""
    kill: Callable[[], object] | None = None
    """crashes the ENS; may block (it is called in a thread)"""
    start: Callable[[], object] | None = None
    """starts it again at the same address; may block"""
    make_at: Callable[[str, int], Adapter] | None = None
    """an adapter that reaches the ENS by this host and port, behind which a line is cut"""
    address: Callable[[], tuple[str, int]] | None = None
    """the ENS's own host and port; needed for `make_at`"""
    keeps_when_killed: bool = False
    """a crash of the ENS loses nothing that it took responsibility for: its disk has it"""
    payload_bytes_max: int = 2**20
    """the largest payload that it has to carry"""
    patience_s: float = PATIENCE_S
    """what has not happened by then will not"""
    silence_s: float = SILENCE_S
    """how soon it notices that nothing comes through a line any more, and has another connection"""

    @property
    def can_crash(self) -> bool:
        """Whether the ENS can be killed and started again."""
        return self.kill is not None and self.start is not None

    @property
    def can_be_cut(self) -> bool:
        """Whether a line can be put between an adapter and the ENS."""
        return self.make_at is not None and self.address is not None


Condition = Callable[[Subject], bool]


@attrs.frozen
class Check:
    """One claim."""

    claim: str
    promise: str
    """the words of ordered_pubsub/adapter.py (or of docs/write-an-adapter.md) that it follows from"""
    run: Callable[[Subject], Awaitable[None]]
    applies: Condition


CHECKS: dict[str, Check] = {}
"""All checks by their names, in the order in which a failure says most."""

Run = Callable[[Subject], Awaitable[None]]


def check(claim: str, *, promise: str, when: Condition = lambda subject: True) -> Callable[[Run], Run]:
    """Register a check under the name of its function."""

    def register(run: Run) -> Run:
        CHECKS[run.__name__] = Check(claim, promise, run, when)
        return run

    return register


def applicable(subject: Subject) -> list[str]:
    """The names of the checks that this subject has to pass."""
    return [name for name, one in CHECKS.items() if one.applies(subject)]


async def run_check(name: str, subject: Subject) -> None:
    """Run one check; raises a `ConformanceError` that names the claim, the promise and what happened instead."""
    one = CHECKS.get(name)
    if one is None:
        raise UsageError(f"there is no check {name!r}; there are {', '.join(CHECKS)}")
    if not one.applies(subject):
        raise UsageError(f"the check {name!r} does not apply to this subject: see applicable(subject)")
    try:
        await bounded(one.run(subject), WAITS_MAX * (subject.patience_s + subject.silence_s), "the check did not end")
    except Exception as error:
        happened = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
        raise ConformanceError(
            f"{name}: expected that {one.claim}, because the interface says:\n    {one.promise!r}\nbut: {happened}"
        ) from error
