"""Stages as processes: each with a configuration and a store, started, killed, and started again on what its disk has.

    stages = StageProcesses(folder, [["eu/**"], ["**"]])
    stages.start()
    client = await connect(ens, sequencer=stages.addresses)

They are ready when `start` returns, and do not outlive this process (`ordered_pubsub.testing.processes`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ordered_pubsub.testing.processes import HOST, Process, free_port, plain_environment

OURS = ("-m", "ordered_pubsub")
QUIET = ("--log-level", "warning")


def stage_section(name: str, port: int, **settings: Any) -> str:
    """The section of a stage in a configuration, with a store beside the file if the settings name no other."""
    lines = {"name": name, "listen": f"{HOST}:{port}", "store": f"sqlite:{name}.db", **settings}
    return "".join(["[[stage]]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())])


@attrs.define(eq=False)
class StageProcess(Process):
    """A stage that can be killed and started again on its store."""

    port: int = attrs.field(kw_only=True)

    @classmethod
    def of(
        cls, config: Path, name: str, port: int, *, program: Sequence[str] = OURS, options: Sequence[str] = QUIET
    ) -> StageProcess:
        """The stage of this name in a configuration; `program` is what Python is told to run in the place of the command."""
        command = [sys.executable, *program, "serve", "--config", str(config.resolve()), "--stage", name, *options]
        log = config.with_name(f"{name}.log")
        return cls(name, command, log, plain_environment(), config.parent, port=port)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"ops://{HOST}:{self.port}"

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        self.begin()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when it says that it is."""
        self.wait_until(lambda: " is ready at " in self.said)


@attrs.define(eq=False)
class StageProcesses:
    """The stages of one system."""

    folder: Path
    topics: Sequence[Sequence[str]]
    """for each stage, in the order of their ranks, the topics that it owns"""
    durability: str = "fsync"
    more: str = ""
    """more of the configuration"""
    settings: Sequence[Mapping[str, Any]] = ()
    """for each stage, more of its section: a name, if it is not to be s0, s1, …"""
    program: Sequence[str] = OURS
    processes: list[StageProcess] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.settings = self.settings or [{} for _ in self.topics]
        names = [str(more.get("name", f"s{rank}")) for rank, more in enumerate(self.settings)]
        self.processes = [StageProcess.of(self.config, name, free_port(), program=self.program) for name in names]

    @property
    def config(self) -> Path:
        """The file of all of them."""
        return self.folder / "ordered_pubsub.toml"

    def write(self) -> None:
        """Write the configuration, which may have secrets."""
        parts = [self.more]
        for stage, topics, more in zip(self.processes, self.topics, self.settings, strict=True):
            own = {"topics": list(topics), "durability": self.durability, **more}
            own.pop("name", None)
            parts.append(stage_section(stage.name, stage.port, **own))
        self.folder.mkdir(exist_ok=True)
        self.config.touch(mode=0o600)
        self.config.write_text("\n".join(parts))

    def start(self) -> None:
        """Write the configuration, and start them all."""
        self.write()
        for stage in self.processes:
            stage.start()

    @property
    def addresses(self) -> list[str]:
        """Where clients reach them."""
        return [stage.address for stage in self.processes]

    def stop(self) -> None:
        """All of them, as their operator would: the lowest first, for it may wait for the others."""
        for stage in reversed(self.processes):
            stage.stop()

    def kill(self) -> None:
        """All of them, at once."""
        for stage in self.processes:
            stage.kill()
