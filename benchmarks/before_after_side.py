"""One line of `before_after.py`, on whichever library can be imported: prints figures as JSON, of which more is better.

    python benchmarks/before_after_side.py LINE FOLDER [SHARE]

FOLDER is the tree that the library is of; SHARE is how much is measured, 1 being all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

Figures = dict[str, float]

BROKERS = ("mqtt", "nats", "jetstream", "rabbitmq")
REQUESTS = 4_000
BATCH = 100
ROUNDS = 5
REPLAYED = 200_000
SPARK_ROWS = 500_000
BENCH_S = 2.0
PAYLOAD = b"x" * 200


def either(*names: str) -> Any:
    """The first of these modules that the library has: older ones have other rooms."""
    for name in names:
        with suppress(ModuleNotFoundError):
            return import_module(f"ordered_pubsub.{name}")
    raise ModuleNotFoundError(f"ordered_pubsub has none of {', '.join(names)}")


def core(folder: Path, share: float) -> Figures:
    """Events a second at a stage without sockets and disk, single and in batches, in groups of 1 and 10; and changes."""
    from ordered_pubsub.core.messages import ChangeAsk, PublishAsk, Request
    from ordered_pubsub.core.topology import StageSpec, Topology

    module = either("core.stage.stage", "core.stage")

    count = max(100, int(REQUESTS * share))
    found: Figures = {}
    for group in (1, 10):
        for name, size in (("single events", 1), ("events in batches", BATCH)):
            stage = module.Stage.restore(0, Topology((StageSpec("only"),)), None, [])
            sequence = 0

            def ask(part: Any, stage: Any = stage) -> None:
                nonlocal sequence
                sequence += 1
                stage.handle_request(Request("c", 1, sequence, sequence - 1, max(0, sequence - 65), (part,)), 0.0)
                stage.take_effects()

            topics = [f"market/{number}/trades" for number in range(group)]
            ask(ChangeAsk("reader", add=tuple(topics)))
            parts = [PublishAsk(topics[number % group], size) for number in range(count)]
            found[f"{name}, group of {group}"] = size * _best(count, parts, ask)
            if size == 1:
                adds = [ChangeAsk(f"s{number}", add=tuple(topics)) for number in range(count // 4)]
                found[f"changes, group of {group}"] = _best(len(adds), adds, ask, rounds=1)
    return found


def _best(count: int, parts: list[Any], work: Callable[[Any], None], rounds: int = ROUNDS) -> float:
    """How many a second of this process's time, at best."""
    best = 0.0
    for _ in range(rounds):
        begin = process_time()
        for part in parts:
            work(part)
        best = max(best, count / (process_time() - begin))
    return best


def log(folder: Path, share: float) -> Figures:
    """Kept events a second through a stage onto its disk, without waiting for it; and read again."""
    from ordered_pubsub.core.messages import Chunk, PublishAsk, Request
    from ordered_pubsub.core.topology import StageSpec, Topology

    driving, logs = either("core.stage.driver", "core.driver"), either("core.log.reader", "core.log.log", "core.log")
    open_store = either("server.store.store", "server.store").open_store

    count, topics = max(100, int(REQUESTS * share)), [f"market/{number}/trades" for number in range(50)]
    written = read = started = 0.0
    for _ in range(ROUNDS):
        with TemporaryDirectory() as name:
            store = open_store(str(Path(name) / "stage.db"), "os", "only")
            driver = driving.Driver.open(0, Topology((StageSpec("only"),)), store.journal)
            begin = process_time()
            for number in range(1, count + 1):
                part = PublishAsk(topics[number % len(topics)], 10, True, (Chunk(10, 10 * PAYLOAD),))
                driver.handle_request(Request("c", 1, number, number - 1, number - 1, (part,)), 0.0)
                driver.flush()
            written = max(written, 10 * count / (process_time() - begin))
            reader, begin = logs.LogReader(store.journal.read_shelf), process_time()
            for topic in topics:
                for first in range(1, 10 * count // len(topics), 50):
                    reader.read(topic, first, first + 49, 1 << 20)
            read = max(read, 10 * count / (process_time() - begin))
            store.close(None)
            begin = process_time()
            store = open_store(str(Path(name) / "stage.db"), "os", "only")
            driving.Driver.open(0, Topology((StageSpec("only"),)), store.journal)
            started = max(started, 1 / (process_time() - begin))
            store.close(None)
    return {"events written": written, "events read": read, "starts": started}


def numbers(folder: Path, share: float) -> Figures:
    """Numbers a second from a stage that runs as a process, by a client."""
    given = _bench(share, "--numbers")
    return {
        f"{row['durability']}, batches of {row['batch']}": median(row["rates"])
        for setup in given
        for row in setup["rows"]
    }


def broker(kind: str) -> Callable[[Path, float], Figures]:
    """Events a second over a broker. (Not as a share of what the plain client does, whose own rate varies by a tenth: it is the
    same on both sides, which are measured in turns.)"""

    def measure(folder: Path, share: float) -> Figures:
        level = ("--level", "exactly-once") if hasattr(either("bench.plan"), "LEVELS") else ()
        (found,) = _bench(share, "--broker", kind, "--packed", "--durability", "fsync", *level)
        return {
            f"events, {'packed' if one['variant']['name'] == 'packed' else 'single'}": one["events_per_s"]["middle"]
            for one in found["variants"]
            if one["variant"]["name"] != "plain"
        }

    return measure


def _bench(share: float, *what: str) -> list[dict[str, Any]]:
    amounts = ["--rounds", "2" if share >= 1 else "1", "--seconds", str(max(0.2, BENCH_S * share))]
    command = [sys.executable, "-m", "ordered_pubsub", "bench", *what, *amounts, "--json", "-"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {found.returncode}: {found.stderr[-2_000:]}")
    given: list[dict[str, Any]] = json.loads(found.stdout)
    return given


def replay(folder: Path, share: float) -> Figures:
    """Events a second from the log to a durable subscription that comes back."""
    sys.path.insert(0, str(folder / "benchmarks"))
    import replay as measured

    measured.ROUNDS, measured.CALM_S = 2, 1.0
    found = measured.run(max(2_000, int(REPLAYED * share)))
    return {"events": found["events_per_s"]}


def spark(folder: Path, share: float) -> Figures:
    """Rows a second that Spark reads as a stream."""
    sys.path.insert(0, str(folder / "benchmarks"))
    import spark_rate as measured

    rows = max(4_000, int(SPARK_ROWS * share) // 4_000 * 4_000)
    found = measured.run(rows, 3, rows, rows)
    return {"rows": found.rates.median("topics")}


LINES: dict[str, Callable[[Path, float], Figures]] = {
    "core": core,
    "log": log,
    "numbers": numbers,
    **{kind: broker(kind) for kind in BROKERS},
    "replay": replay,
    "spark": spark,
}


if __name__ == "__main__":
    line, tree, share = sys.argv[1], Path(sys.argv[2]), float((*sys.argv[3:], "1")[0])
    started = perf_counter()
    print(json.dumps({"figures": LINES[line](tree, share), "took_s": perf_counter() - started}))
