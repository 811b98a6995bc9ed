"""Processes as the system shows them in /proc: who belongs to whom, what they hold in memory, and to whom they speak."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ordered_pubsub.testing.processes import memory_bytes

GONE = (FileNotFoundError, ProcessLookupError)
"""Whoever is looked at may have ended meanwhile."""
ESTABLISHED = "01"


def command_of(pid: int) -> str:
    """Its command line, or nothing if it is gone."""
    with suppress(*GONE):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def is_jvm(command: str) -> bool:
    """Whether it is a Java program, and not what one starts others with."""
    return command.partition(" ")[0].endswith("/java")


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, whichever of its threads did."""
    with suppress(*GONE):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def descendants_of(pid: int) -> list[int]:
    """Its children, their children, and so on."""
    return [found for child in children_of(pid) for found in (child, *descendants_of(child))]


def sockets_to(ports: set[int]) -> set[str]:
    """The sockets of this machine that are connected to a port over IPv4, by what they are called in /proc/PID/fd."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        (
            _,
            _,
            remote,
            state,
            *_,
        ) = fields = line.split()
        if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) in ports:
            found.add(f"socket:[{fields[9]}]")
    return found


def speaks_to(pid: int, ports: set[int]) -> bool:
    """Whether a process has a connection to one of these ports of this machine."""
    sockets = sockets_to(ports)
    with suppress(*GONE):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(*GONE):
                if str(descriptor.readlink()) in sockets:
                    return True
    return False


def memory_of_all_mb(pids: list[int]) -> float:
    """What these processes hold, those that are still there; pages that they share count for each."""
    return sum(map(memory_bytes, pids)) / 1e6
