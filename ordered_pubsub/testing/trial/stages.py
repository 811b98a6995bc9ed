"""The stages of a trial: each a process with its store, killed and started again on what its disk has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from ordered_pubsub.testing.processes import HOST, free_port, kill, launch
from ordered_pubsub.testing.trial.process import START_S, TrialError


@attrs.define(eq=False)
class StageProcess:
    """A stage that can be killed and started again on its store."""

    name: str
    config: Path
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    _said_before: int = attrs.field(default=0, init=False)
    """how long its log was when it was started"""

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Start."""
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "ordered_pubsub", "serve", "--config", str(self.config), "--stage", self.name]
        self.process = launch([*command, "--log-level", "warning"], self.log)

    def wait_until_ready(self) -> None:
        """Return when it says that it is."""
        assert self.process is not None
        give_up_at = time.monotonic() + START_S
        while b" is ready at " not in self._said():
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise TrialError(f"stage {self.name} did not start: {self._said().decode()[-2000:]}")
            time.sleep(0.01)

    def _said(self) -> bytes:
        with self.log.open("rb") as file:
            file.seek(self._said_before)
            return file.read()

    def kill(self) -> None:
        """As `kill -9`."""
        if self.process is not None:
            kill(self.process)

    def stop(self) -> int:
        """As SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(START_S)


@attrs.define(eq=False)
class TrialStages:
    """The stages of one system, each a process with its store."""

    folder: Path
    patterns: Sequence[Sequence[str]]
    """for each stage, in the order of their ranks, the topics that it owns"""
    durability: str = "fsync"
    more: str = ""
    """more of the configuration"""
    processes: list[StageProcess] = attrs.field(factory=list)

    def start(self) -> None:
        """Write the configuration, and start them all."""
        config = self.folder / "ordered_pubsub.toml"
        ports = [free_port() for _ in self.patterns]
        parts = [self.more]
        for rank, topics in enumerate(self.patterns):
            parts.append(
                f'[[stage]]\nname = "s{rank}"\nlisten = "{HOST}:{ports[rank]}"\ntopics = {json.dumps(list(topics))}\n'
                f'store = "sqlite:s{rank}.db"\ndurability = "{self.durability}"\n'
            )
        config.write_text("\n".join(parts))
        self.processes = [
            StageProcess(f"s{rank}", config, self.folder / f"s{rank}.log", port) for rank, port in enumerate(ports)
        ]
        for stage in self.processes:
            stage.start()

    @property
    def addresses(self) -> list[str]:
        """Where clients reach them."""
        return [f"ops://{HOST}:{stage.port}" for stage in self.processes]

    def kill(self) -> None:
        """All of them, at once."""
        for stage in self.processes:
            stage.kill()
