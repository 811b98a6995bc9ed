"""The processes of a trial besides its stages: publishers, subscribers, and a bad line to the broker.

Every wait for an answer has an end, and so has every process: a trial that hangs would say nothing about what hangs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.lossy import Loss, serve
from ordered_pubsub.testing.processes import START_S, WorkerProcess, command_of
from ordered_pubsub.testing.trial.judge import KILLED
from ordered_pubsub.testing.trial.part import take_part

CALL_S = 120.0
"""How long a call of a client's may take (`timeout_s`)."""


class TrialError(OrderedPubSubError):
    """A trial could not be held."""


@attrs.define(eq=False)
class TrialWorkerProcess(WorkerProcess):
    """A publisher or a subscriber."""

    _is_ready: bool = attrs.field(default=False, init=False)

    @classmethod
    def of(cls, plan: dict[str, Any], log: Path) -> TrialWorkerProcess:
        """The one of this plan; it says when it is ready."""
        return cls(plan["name"], command_of(take_part), log, plan=plan)

    def begin(self) -> None:
        """Start it."""
        super().begin()
        self._is_ready = False

    def await_ready(self) -> None:
        """Return when it has said so."""
        if not self._is_ready:
            self.hear(START_S + 2 * CALL_S)
            self._is_ready = True

    def start_again(self) -> None:
        """Another life, in which it knows what its files say. What it was writing when it was killed is no line of them."""
        for path in (Path(self.plan["log"]), Path(self.plan["raw"])):
            if path.exists():  # it may not have come that far
                whole, newline, _ = path.read_bytes().rpartition(b"\n")
                path.write_bytes(whole + newline)
        self.plan["life"] += 1
        if self.plan["role"] == "subscriber":
            with Path(self.plan["log"]).open("a") as log:
                log.write(f"{KILLED}\n")
        self.begin()


@attrs.define(eq=False)
class LineProcess(WorkerProcess):
    """A bad line to the broker, for all subscribers (`ordered_pubsub.testing.lossy`)."""

    address: str = attrs.field(default="", init=False)

    @classmethod
    def start(cls, ens: str, loss: Loss, seed: int, log: Path) -> LineProcess:
        """Start one to the broker with this URL."""
        parts = urlsplit(ens)
        target = f"{parts.hostname}:{parts.port}"
        plan = {"target": target, "kind": parts.scheme, "seed": seed, **attrs.asdict(loss)}
        line = cls(f"the bad line to {parts.scheme}://{target}", command_of(serve), log, plan=plan)
        try:
            line.begin()
            line.address = line.hear()["address"]
        except BaseException:
            line.kill()
            raise
        return line

    def url(self, ens: str) -> str:
        """The broker's URL by way of this line."""
        parts = urlsplit(ens)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self.address}").geturl()

    def finish(self) -> dict[str, int]:
        """Let it go; say what it has done."""
        done = self.ask(do="finish")
        self.end()
        return done
