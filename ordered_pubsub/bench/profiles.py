"""Where the time goes: one rush of each variant of this library under cProfile, and the functions that took most of it.

The profiler makes every call dearer, so its shares are too large for code with many small functions: it says what to look at,
and the table's processor times say how much there is to gain. Waiting is left out, and so is what uvloop does in its own loop.
"""

from __future__ import annotations

import pstats
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from ordered_pubsub.bench.plan import Variant
from ordered_pubsub.bench.processes import BEGIN_PROFILE, END_PROFILE, BenchWorkerProcess
from ordered_pubsub.bench.report import table
from ordered_pubsub.bench.rounds import Rig, Say

TOP = 15
WAITING = (
    "select.epoll",
    "select.poll",
    "select.select",
    "uvloop.Loop",
    "run_forever",
    "'select' of",
    "asyncio/runners.py",
    "profiled.py",
)
"""Parts of the names of what waits. The time of a loop that is not written in Python is with who started it."""

Place = tuple[str, int, str]


@attrs.frozen
class Cost:
    """What one function took, without those that it called."""

    where: str
    seconds: float
    calls: int


def read_costs(file: Path) -> list[Cost]:
    """All functions of a profile, the dearest first, without those that wait."""
    stats = pstats.Stats(str(file))
    entries = stats.stats  # type: ignore[attr-defined]  # it is what Stats is for, and its types do not have it
    costs = [Cost(name_of(place), seconds, calls) for place, (_, calls, seconds, *_) in entries.items()]
    return sorted((cost for cost in costs if not is_waiting(cost.where)), key=lambda cost: -cost.seconds)


def name_of(place: Place) -> str:
    """A function's place, with as much of its path as says which it is."""
    file, line, name = place
    if file == "~":
        return name
    return f"{'/'.join(Path(file).parts[-2:])}:{line}({name})"


def is_waiting(where: str) -> bool:
    """Whether a function waits for something to happen."""
    return any(part in where for part in WAITING)


def describe_costs(title: str, costs: Sequence[Cost], events: int) -> str:
    """The dearest functions as a table."""
    total = sum(cost.seconds for cost in costs) or 1.0
    rows = [("function", "share", "us/event", "calls/event")]
    for cost in costs[:TOP]:
        per_event = cost.seconds / events * 1e6
        rows.append((cost.where, f"{cost.seconds / total:.1%}", f"{per_event:.2f}", f"{cost.calls / events:.2f}"))
    return "\n".join([title, *("  " + line for line in table(rows))])


def profile_all(rig: Rig, events: Sequence[tuple[Variant, int]], folder: Path, say: Say) -> list[str]:
    """Profile each variant of this library; return what to print."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for variant, count in events:
        if not variant.is_plain:
            say(f"{rig.plan.kind.name}: profiling {variant.label}")
            texts += _profile(rig, variant, count, folder.resolve())
    return texts


def _profile(rig: Rig, variant: Variant, events: int, folder: Path) -> list[str]:
    stem = f"{rig.plan.kind.name}-{variant.slug}"
    files = {side: folder / f"{stem}-{side}.pstats" for side in ("publisher", "subscriber", "stage")}
    team = rig.team(variant, profile=files["stage"])
    team.rush(events)  # what is done once is not of interest
    with _profiling(rig, {team.publisher: files["publisher"], team.subscribers[0]: files["subscriber"]}):
        team.rush(events)
    team.finish()
    if rig.profiled is not None:
        rig.profiled.stop()
    return [
        describe_costs(f"{stem}, {side}: {events} events, waiting left out", read_costs(file), events)
        for side, file in files.items()
        if file.exists()  # a stage that runs already is not seen
    ]


@contextmanager
def _profiling(rig: Rig, workers: Mapping[BenchWorkerProcess, Path]) -> Iterator[None]:
    """Profile workers, and the stage if it is ours."""
    for worker in workers:
        worker.ask(do="profile")
    if rig.profiled is not None:
        rig.profiled.send(BEGIN_PROFILE)
    yield
    if rig.profiled is not None:
        rig.profiled.send(END_PROFILE)
    for worker, file in workers.items():
        worker.ask(do="profile", file=str(file))
