"""Damaged stores: each bit of a small store flipped, one at a time, and a stage started on it.

    python benchmarks/damaged_stores.py [--starts N] [--pages BYTES] [--processes N] [--folder FOLDER]

A stage runs for a while on a new store: two topics whose events are kept, one whose events nobody keeps, a snapshot in between.
Its files are taken as a killed process leaves them (the database, the write-ahead log, the mark), and as a clean stop does (the
database, the mark). Then a stage is started on them

- with each bit of each file flipped;
- with each file cut off at each byte, but for the database, which is cut off at each page;
- with each file missing;
- as they are at any time: after each commit, with the write-ahead log up to each byte of the next one (a process that is killed),
  also while a snapshot is being written, and what it replaces removed.

What it says is compared with what clients were told: it must refuse with a reason, or have all acknowledged events, also after it
has published once more on each topic, and give no number twice. The last part must start. Prints how often there was which
verdict, by file; the exit code is 0 if all were good.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.damage import (
    GOOD,
    RIGHT,
    Acknowledged,
    Files,
    every_bit,
    every_prefix,
    files_of,
    make_store,
    run,
    start,
    without,
)
from ordered_pubsub.server.store import store as stores

DATABASE, LOG, MARK = "stage.db", "stage.db-wal", "stage.db.mark"
EVENTS, SNAPSHOT_AT = 16, 6
stores.PIECE_BYTES, stores.CLEARED_ROWS = 512, 2  # so that a small snapshot has several pieces
SHOWN_MAX = 10
Case = tuple[str, Files, Acknowledged]
Part = tuple[str, str, int, int, str]
"""What is damaged, how, each so manieth, the size of a page, and where stages are started."""


def taken(page_bytes: int) -> dict[str, tuple[Files, Acknowledged]]:
    """A store as a kill leaves it, and as a stop does."""
    with tempfile.TemporaryDirectory() as folder:
        stage = make_store(Path(folder), EVENTS, page_bytes, snapshot_at=SNAPSHOT_AT)
        known = stage.acknowledged.copy()
        killed = files_of(Path(folder))
        stage.journal.close(stage.driver.stage.snapshot())
        return {"killed": (killed, known), "stopped": (files_of(Path(folder)), known)}


def cases(part: Part) -> Iterator[Case]:
    """What is done to the files."""
    state, what, step, page_bytes, _ = part
    if what == "killed between two writes":
        yield from kills(page_bytes, step)
        return
    files, known = taken(page_bytes)[state]
    how, _, name = what.rpartition(" of ")
    if how == "bits":
        found: Iterable[tuple[str, Files]] = every_bit(files, name, step)
    elif how == "prefixes":
        found = every_prefix(files, name, page_bytes if name == DATABASE else step)
    else:
        found = [(f"without {name}", without(files, name)) for name in files]
    for place, changed in found:
        yield place, changed, known


def kills(page_bytes: int, step: int) -> Iterator[Case]:
    """The log up to any byte of a commit, with the mark of the one before."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage = make_store(folder, 4, page_bytes)
        before = files_of(folder)
        for number in range(4, EVENTS):
            known = stage.acknowledged.copy()
            if number == SNAPSHOT_AT:
                stage.journal.replace(stage.driver.stage.snapshot())
            run(stage, number)
            after = files_of(folder)
            for size in range(len(before[LOG]), len(after[LOG]) + 1, step):
                yield f"commit {number} up to byte {size}", {**before, LOG: after[LOG][:size]}, known
            before = after
        stage.journal.close(None)


def examine(part: Part) -> tuple[Part, Counter[str], list[str], float]:
    """Start a stage on each case of a part; how often there was which verdict, and what was not good."""
    verdicts: Counter[str] = Counter()
    bad: list[str] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=part[4]) as folder:
        for place, files, known in cases(part):
            verdict, reason = start(Path(folder), files, known)
            verdicts[verdict] += 1
            must_start = part[1] == "killed between two writes"
            if verdict not in GOOD or (must_start and verdict != RIGHT):
                bad.append(f"{place}: {verdict} ({reason})")
    return part, verdicts, bad, time.perf_counter() - began


def parts(page_bytes: int, starts: int, place: str) -> list[Part]:
    """All that is to be done; with fewer starts than there are bits, each so manieth."""
    stores = taken(page_bytes)
    bits = sum(8 * len(data) for files, _ in stores.values() for data in files.values())
    step = max(1, bits // starts) | 1 if starts else 1
    found: list[Part] = []
    for state, (files, _) in stores.items():
        found += [(state, f"bits of {name}", step, page_bytes, place) for name in files]
        found += [(state, f"prefixes of {name}", 1 if step == 1 else 8 * step, page_bytes, place) for name in files]
        found.append((state, "files missing", 1, page_bytes, place))
    return [*found, ("running", "killed between two writes", min(step, 8), page_bytes, place)]


def main() -> int:
    """Do it, and say how it went."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--starts", type=int, default=0, help="about so many starts with flipped bits (default: every bit)"
    )
    parser.add_argument(
        "--pages", type=int, default=512, help="the size of SQLite's pages: small ones make a small store"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where stages start; one in memory is faster")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    all_bad: list[str] = []
    print(f"| {'files':8} | {'damage':26} | {'starts':>7} | " + " | ".join(GOOD) + " | bad | seconds |")
    print("| --- | --- | --- | " + " | ".join("---" for _ in GOOD) + " | --- | --- |")
    with ProcessPoolExecutor(arguments.processes) as pool:
        for part, verdicts, bad, took_s in pool.map(
            examine, parts(arguments.pages, arguments.starts, arguments.folder)
        ):
            total += verdicts
            all_bad += [f"{part[0]}, {part[1]}, {line}" for line in bad]
            columns = [f"{part[0]:8}", f"{part[1]:26}", f"{sum(verdicts.values()):7}"]
            columns += [f"{verdicts[verdict]:{len(verdict)}}" for verdict in GOOD]
            print(f"| {' | '.join(columns)} | {len(bad):3} | {took_s:7.1f} |", flush=True)
    print(f"\n{sum(total.values()):,} starts: " + ", ".join(f"{count:,} {verdict}" for verdict, count in total.items()))
    for line in islice(all_bad, SHOWN_MAX):
        print(f"BAD: {line}")
    print("every start was refused with a reason, or right" if not all_bad else f"{len(all_bad):,} starts were bad")
    return 1 if all_bad else 0


if __name__ == "__main__":
    sys.exit(main())
