"""The house keeps its order: imports point one way, and the core knows nothing of the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ordered_pubsub.core

ROOT = Path(ordered_pubsub.core.__file__).parents[1]
NOT_IN_CORE = {
    "asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "paho", "pathlib", "pika", "nats", "random",
    "secrets", "select", "selectors", "signal", "socket", "sqlite3", "ssl", "subprocess", "threading", "time", "uuid",
}  # fmt: skip
MAY_IMPORT = {
    "core": {"core", "errors"},
    "wire": {"core", "errors", "wire"},
    "client": {"adapter", "client", "config", "core", "errors", "supervision", "wire"},
    "config": {"config", "core", "errors"},
    "server": {"config", "core", "errors", "server", "supervision", "wire"},
    "reading": {"client", "config", "core", "errors", "reading", "wire"},
    "testing": {"adapter", "core", "errors", "testing", "wire"},
}


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


def test_imports_point_one_way() -> None:
    for room, allowed in MAY_IMPORT.items():
        for path in (ROOT / room).rglob("*.py"):
            ours = [name.split(".") for name in imports_of(path) if name.startswith("ordered_pubsub.")]
            assert {parts[1] for parts in ours} <= allowed, f"{room}/{path.name}"


def test_nothing_in_the_core_iterates_over_a_set() -> None:
    """Sets have no order that two processes share; dictionaries have."""
    for path in (ROOT / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            looped = node.iter if isinstance(node, (ast.For, ast.comprehension)) else None
            is_set = isinstance(looped, (ast.Set, ast.SetComp)) or (
                isinstance(looped, ast.Call)
                and isinstance(looped.func, ast.Name)
                and looped.func.id in ("set", "frozenset")
            )
            assert not is_set, f"{path.name}:{getattr(looped, 'lineno', 0)}"
