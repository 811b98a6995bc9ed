"""The house keeps its order: imports point one way, and the core knows nothing of the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ordered_pubsub.core
from helpers.unordered import set_orders

ROOT = Path(ordered_pubsub.core.__file__).parents[1]
NOT_IN_CORE = {
    "asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "paho", "pathlib", "pika", "nats", "random",
    "secrets", "select", "selectors", "signal", "socket", "sqlite3", "ssl", "subprocess", "threading", "time", "uuid",
}  # fmt: skip
BELOW = {"errors"}
SHARED = BELOW | {"core", "wire"}
MAY_IMPORT = {
    "errors": set(),
    "adapter": BELOW,
    "supervision": BELOW,
    "core": BELOW,
    "wire": BELOW | {"adapter", "core"},
    "config": BELOW | {"core"},
    "client": SHARED | {"adapter", "config", "supervision"},
    "server": SHARED | {"config", "supervision"},
    "embedded": SHARED | {"client", "supervision"},
    "connecting": BELOW | {"adapter", "client", "config", "embedded"},
    "sync": BELOW | {"adapter", "client", "connecting"},
    "reading": SHARED | {"config"},
    "spark": SHARED | {"adapter", "client", "config", "reading", "sync"},
    "testing": SHARED | {"adapter", "client", "config", "connecting"},
    "bench": SHARED | {"adapter", "client", "config", "testing"},
    "cli": SHARED | {"adapter", "bench", "client", "config", "connecting", "server", "spark", "supervision"},
}
"""Rooms, and modules that are one, each with those that it may use. Only the command runs everything else."""
CORE = ("topics", "topology", "levels", "messages", "ranges", "states", "filters", "order", "log", "transactions", "trust",
        "checking", "liveness", "recovery", "subscriber", "client", "stage")  # fmt: skip
"""The core, each using only what is before it."""
ON_THEIR_OWN = {("stage", "subscriber"), ("stage", "client")}
"""A stage knows nothing of how a client works, though it comes after it."""
FLOWS = {"client": ("home", "incoming", "outgoing"), "server": ("doors", "links", "stage", "store")}
MAY_FLOW = {
    ("client.home", "client.home"), ("client.incoming", "client.incoming"), ("client.outgoing", "client.outgoing"),
    ("server.store", "server.store"), ("server.stage", "server.stage"), ("server.stage", "server.store"),
    ("server.doors", "server.doors"), ("server.doors", "server.stage"), ("server.links", "server.links"),
    ("server.links", "server.doors"), ("server.links", "server.stage"),
}  # fmt: skip


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_core_imports_no_clock_no_chance_and_no_io() -> None:
    for path in (ROOT / "core").rglob("*.py"):
        assert {name.split(".")[0] for name in imports_of(path)} & NOT_IN_CORE == set(), path.name


def test_the_core_does_not_wait() -> None:
    for path in (ROOT / "core").rglob("*.py"):
        waiting = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.Await, ast.AsyncFunctionDef))]
        assert waiting == [], path.name


def test_every_room_is_listed() -> None:
    rooms = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}

    assert rooms - {"__init__", "__main__"} == set(MAY_IMPORT)


def files_of(room: str) -> list[Path]:
    """The modules of a room."""
    return sorted((ROOT / room).rglob("*.py")) or [ROOT / f"{room}.py"]


def ours(path: Path) -> list[list[str]]:
    """What it imports of the library, in parts; of `from ordered_pubsub import x`, that."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ordered_pubsub":
            inside = str(node.module).split(".")[1:]
            found += [[*inside, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [name.name.split(".")[1:] for name in node.names if name.name.startswith("ordered_pubsub.")]
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    rooms = set(MAY_IMPORT)
    for path in files_of(room):
        used = {parts[0] for parts in ours(path)} & rooms
        assert used <= MAY_IMPORT[room] | {room}, path


def test_each_idea_of_the_core_uses_only_those_before_it() -> None:
    rank = {idea: place for place, idea in enumerate(CORE)}
    for path in files_of("core"):
        idea = path.relative_to(ROOT / "core").parts[0].removesuffix(".py")
        for parts in ours(path):
            if parts[0] == "core" and idea != "__init__":
                assert rank[parts[1]] <= rank[idea], f"{path} uses {parts[1]}"
                assert (idea, parts[1]) not in ON_THEIR_OWN, path


def test_what_flows_one_way_does_not_know_the_other_one() -> None:
    for room, flows in FLOWS.items():
        for flow in flows:
            for path in files_of(f"{room}/{flow}"):
                used = {f"{room}.{parts[1]}" for parts in ours(path) if parts[0] == room and parts[1] in flows}
                assert {(f"{room}.{flow}", other) for other in used} <= MAY_FLOW, path


def test_what_is_private_is_used_by_its_own_package_only() -> None:
    for path in ROOT.rglob("*.py"):
        package = list(path.relative_to(ROOT).parts[:-1])
        for parts in ours(path):
            private = next(
                (place for place, part in enumerate(parts) if part.startswith("_") and part[1:2] != "_"), None
            )
            if private is not None and (ROOT.joinpath(*parts[: private + 1]).with_suffix(".py")).exists():
                assert parts[:private] == package, f"{path} uses {'.'.join(parts)}"


def test_processes_are_started_in_one_place() -> None:
    """What is ready, how long that may take, and that nothing is left behind is decided there."""
    users = [path for path in ROOT.rglob("*.py") if {"subprocess", "multiprocessing"} & {*imports_of(path)}]
    assert users == [ROOT / "testing" / "processes.py"]


def test_no_order_of_a_set_comes_out_of_the_core() -> None:
    """Sets have no order that two processes share; dictionaries have."""
    assert set_orders((path.name, path.read_text()) for path in (ROOT / "core").rglob("*.py")) == []


@pytest.mark.parametrize(
    "line",
    [
        "for topic in {1, 2}: ...",
        "[topic for topic in set(topics)]",
        "list({topic for topic in topics})",
        "dict(clock.items() - said.items())",
        "for topic in clock.keys() | said.keys(): ...",
        "found = set(topics); list(found)",
        "found: set[str] = make(); tuple(found)",
        "found = frozenset(topics) if topics else None; send(found)",
        "both, other = set(topics), 1; dict.fromkeys(both)",
        "if found := set(topics): topics.extend(found)",
        "', '.join(set(topics))",
        "send(*set(topics))",
        "first, *others = set(topics)",
        "set(topics).pop()",
        "next(iter(set(topics)))",
        "sorted(topics, key=lambda topic: [one for one in set(topics)])",
        "max(set(topics), key=len)",
        "any(list(set(topic)) for topic in topics)",
        "for topic in set(topics).union(clock): ...",
        "for topic in queue.seen: ...",
        "for topic in queue.ready: ...",
        "for topic in queue.by_owner[1]: ...",
        "for some in queue.by_owner.values(): list(some)",
        "list(wanted())",
        "def tell(topics: set[str]):\n        yield from topics",
    ],
)
def test_an_order_of_a_set_is_found(line: str) -> None:
    text = f"""
class Queue:
    seen: set[str]
    by_owner: dict[int, set[str]]
    @property
    def ready(self) -> set[str]: ...
def wanted() -> "set[str] | None": ...
def work(queue, topics, clock, said, send, make):
    {line}
"""
    assert set_orders([("planted", text)])


@pytest.mark.parametrize(
    "line",
    [
        "held = set(topics); return [topic for topic in clock if topic in held]",
        "return sorted(set(topics))",
        "return len(set(topics)) == len(topics) and set(topics) == set(clock)",
        "return any(topic in said for topic in clock)",
        "return {topic for topic in topics} - set(clock)",
        "seen = set(topics); seen.add('t'); seen.update(set(clock)); return seen",
        "for topic, count in clock.items(): send(topic, count)",
        "return [*clock, *topics]",
    ],
)
def test_what_is_only_asked_of_a_set_is_none(line: str) -> None:
    assert set_orders([("planted", f"def work(topics, clock, said, send):\n    {line}")]) == []
