"""Processes that tests, trials and measurements start: on a port of their own, spoken to, killed for sure, and gone afterwards.

A `Process` is a command that can be started, killed and started again. What it says is in a file; whoever waits for it in vain
is told its last words. A `WorkerProcess` runs a function of a module (`command_of`) and is spoken to by lines of JSON, of which
`Starter` is the other end. The stages are in `ordered_pubsub.testing.stages`, the brokers in `ordered_pubsub.testing.brokers`.

Ports are taken from below the range that the kernel gives to outgoing connections: otherwise somebody's connection may sit
on the port of a broker that is down for a moment, and a client that tries to come back may even meet itself there.

On Linux a process does not outlive the one that started it, however that one ends: `setpriv --pdeathsig` asks the kernel to
kill it. The kernel takes the *thread* that started it for its parent, so one thread that stays until the end starts them all.
Where there is no setpriv, a process that is killed leaves its stages and brokers behind; workers notice it, and end.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from runpy import run_path
from typing import IO, Any, NoReturn

import attrs

from ordered_pubsub.errors import OrderedPubSubError

HOST = "127.0.0.1"
PORT_ATTEMPTS = 100
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
START_S, ANSWER_S, STOP_S = 30.0, 120.0, 20.0
"""How long a process may take to be ready, to answer, and to end when it is told to."""
POLL_S = 0.005
WORDS_SHOWN = 2_000
ORPHANED = 3
"""The exit code of a worker that nobody can speak to any more."""

_starter = ThreadPoolExecutor(1, thread_name_prefix="processes")
_given: deque[int] = deque(maxlen=1_000)


class ProcessError(OrderedPubSubError):
    """A process did not start, did not answer, or has ended."""


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
    raise ProcessError(
        f"none of {PORT_ATTEMPTS} ports below {lowest} of {HOST} was free; what listens there? (ss -ltn)"
    )


def plain_environment() -> dict[str, str]:
    """This process's environment, without what would configure the library."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ORDERED_PUBSUB_")}


def cpu_ns(pid: int | None) -> int | None:
    """The processor time that a process has used, all threads together; None where the system does not tell.

    On Linux each process has a clock of it (`clock_getcpuclockid(3)`), which is exact where /proc counts hundredths of seconds.
    """
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return None


def memory_bytes(pid: int | str) -> int:
    """What a process (`"self"`: this one) has in memory; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _spawn(processors: set[int] | None, command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start it in this thread, on the processors of whoever wants it."""
    if processors is not None:
        os.sched_setaffinity(0, processors)
    return subprocess.Popen(command, **how)


@attrs.define(eq=False)
class Process:
    """A command that runs as a process of our own, in a session of its own, which no Ctrl-C reaches."""

    name: str
    """as errors call it"""
    command: Sequence[str]
    log: Path
    """what it says, over all its starts"""
    environment: Mapping[str, str] | None = None
    """left out: this process's"""
    folder: Path | None = None
    """where it runs; left out: where this process does"""
    _popen: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    _said_before: int = attrs.field(default=0, init=False)
    """how long its log was when it was started"""

    def begin(self) -> None:
        """Start it."""
        setpriv = shutil.which("setpriv")
        guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._popen = _starter.submit(
                _spawn,
                os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
                [*guard, *self.command],
                **self._streams(log),
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            ).result()

    def _streams(self, log: IO[bytes]) -> dict[str, Any]:
        return {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        """None if it does not run."""
        return self._popen.pid if self._popen is not None and self.is_running else None

    @property
    def said(self) -> str:
        """What it has said since it was started."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._said_before)
            return file.read().decode(errors="replace")

    @property
    def last_words(self) -> str:
        """The end of that, for errors."""
        return f"The end of its log:\n{self.said.strip()[-WORDS_SHOWN:] or '(it said nothing)'}"

    def wait_until(self, is_so: Callable[[], object], what: str = "ready", timeout_s: float = START_S) -> None:
        """Wait until something is so, as long as it runs; otherwise it was not `what`."""
        give_up_at = time.monotonic() + timeout_s
        while not is_so():
            if not self.is_running:
                self.fail(f"was not {what} when it ended with {self.exit_code}")
            if time.monotonic() > give_up_at:
                self.fail(f"was not {what} within {timeout_s:g} s")
            time.sleep(POLL_S)

    def fail(self, how: str) -> NoReturn:
        """Raise an error that names it, with its last words."""
        raise ProcessError(f"{self.name} {how}. {self.last_words}")

    @property
    def exit_code(self) -> int | None:
        """None if it has not ended."""
        return None if self._popen is None else self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        if self._popen is not None:
            self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None if it has not ended within this time."""
        if self._popen is not None:
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout_s)
        return self.exit_code

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_S) -> int | None:
        """Tell it to end; it is killed if it does not. Returns its exit code."""
        self.send(number)
        self.wait(timeout_s)
        self.kill()
        return self.exit_code

    def kill(self) -> None:
        """As `kill -9`, with all its children; return when it is gone."""
        if self._popen is None:
            return
        with suppress(ProcessLookupError):
            if self._popen.poll() is None:
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()


@attrs.define(eq=False)
class WorkerProcess(Process):
    """One that is spoken to by lines of JSON. It is told its plan first, and ends when nobody can speak to it any more."""

    plan: dict[str, Any] = attrs.field(factory=dict)
    _unread: bytes = attrs.field(default=b"", init=False)

    def begin(self) -> None:
        """Start it, and tell it its plan; as an argument, everybody could read the passwords in it."""
        super().begin()
        self._unread = b""
        try:
            self.tell(**self.plan)
        except ProcessError:
            self.kill()
            raise

    def _streams(self, log: IO[bytes]) -> dict[str, Any]:
        return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}

    def tell(self, **what: Any) -> None:
        """Tell it something."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(what).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            self._fail_as_gone()

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """What it says next."""
        said = self.hear_within(timeout_s)
        if said is None:
            self.fail(
                f"said nothing within {timeout_s:g} s; is the machine, or the broker, overloaded, or does it hang?"
            )
        return said

    def hear_within(self, timeout_s: float) -> dict[str, Any] | None:
        """The same; None if it says nothing within this time."""
        assert self._popen is not None
        assert self._popen.stdout is not None
        give_up_at = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(give_up_at - time.monotonic(), 0.0)
            if not select.select([self._popen.stdout], [], [], left_s)[0]:
                return None
            data = os.read(self._popen.stdout.fileno(), 1 << 20)
            if not data:
                self._fail_as_gone()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def ask(self, **what: Any) -> dict[str, Any]:
        """Tell it something that it answers."""
        self.tell(**what)
        return self.hear()

    def _fail_as_gone(self) -> NoReturn:
        """It has closed its end."""
        self.fail(f"ended with {self.wait(STOP_S)}")

    def end(self) -> None:
        """Let it go: nobody will speak to it any more. Return when it is gone."""
        if self._popen is not None and self._popen.stdin is not None:
            with suppress(BrokenPipeError):  # it is gone already
                self._popen.stdin.close()
            self.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """As `kill -9`."""
        super().kill()
        if self._popen is not None and self._popen.stdin is not None and self._popen.stdout is not None:
            with suppress(BrokenPipeError):  # what it was told last is still on its way
                self._popen.stdin.close()
            self._popen.stdout.close()


@attrs.define(eq=False)
class Starter:
    """In a worker: whoever has started it. When that one is gone, so is the worker."""

    lines: asyncio.StreamReader

    async def hear(self) -> dict[str, Any]:
        """What it is told next."""
        line = await self.lines.readline()
        if not line:
            os._exit(ORPHANED)
        said: dict[str, Any] = json.loads(line)
        return said

    def tell(self, **what: Any) -> None:
        """Tell who has started it."""
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def command_of(part: Callable[..., Coroutine[Any, Any, None]]) -> list[str]:
    """What runs a function of a module as a worker: it is given its starter, and the plan as arguments."""
    is_ours = part.__module__.startswith("ordered_pubsub.")
    module = part.__module__ if is_ours else str(Path(inspect.getfile(part)).resolve())
    return [sys.executable, "-m", "ordered_pubsub.testing.processes", module, part.__name__]


async def _work(part: Callable[..., Coroutine[Any, Any, None]]) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    starter = Starter(lines)
    await part(starter, **await starter.hear())


def _main(module: str, part: str) -> None:
    """Be a worker."""
    if module.endswith(".py"):
        sys.path[0] = str(Path(module).parent)  # as if Python had been given that file
        found = run_path(module)
    else:
        found = vars(import_module(module))
    asyncio.run(_work(found[part]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
