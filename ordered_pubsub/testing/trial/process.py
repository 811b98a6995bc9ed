"""The process of a publisher or a subscriber, as the trial sees it: started, told things, heard, killed, and gone in the end.

It is spoken to by lines: words to it, JSON from it. Every wait for an answer has an end, and so has every process: a trial that
hangs would say nothing about what hangs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.processes import SpokenLines
from ordered_pubsub.testing.trial.judge import KILLED

START_S = 20.0
"""How long something may take to start, or to end."""
CALL_S = 120.0
"""How long a call of a client's may take (`timeout_s`)."""


class TrialError(OrderedPubSubError):
    """A trial could not be held: something did not start, did not answer, or did not end."""


def _popen(module: str, plan: dict[str, Any], errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"ordered_pubsub.testing.{module}", json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it is gone already
        process.stdin.close()
    process.stdout.close()


@attrs.define(eq=False)
class TrialWorkerProcess:
    """A publisher or a subscriber."""

    plan: dict[str, Any]
    process: subprocess.Popen[bytes]
    lines: SpokenLines
    _errors: Path | None = None
    _is_ready: bool = False

    @classmethod
    def start(cls, plan: dict[str, Any], errors: Path) -> TrialWorkerProcess:
        """Start one; it says when it is ready."""
        process = _popen("trial.part", plan, errors)
        assert process.stdout is not None
        return cls(plan, process, SpokenLines(process.stdout), errors)

    def await_ready(self) -> None:
        """Return when it has said so."""
        if not self._is_ready:
            self.hear(START_S + 2 * CALL_S)
            self._is_ready = True

    def kill(self) -> None:
        """As `kill -9`; what it was writing at that moment is no line of its files."""
        self.process.kill()
        _close_pipes(self.process)
        self.process.wait()
        for path in (Path(self.plan["log"]), Path(self.plan["raw"])):
            if path.exists():  # it may not have come that far
                whole, newline, _ = path.read_bytes().rpartition(b"\n")
                path.write_bytes(whole + newline)

    def start_again(self) -> None:
        """Another life, in which it knows what its files say."""
        assert self._errors is not None
        self.plan["life"] += 1
        if self.plan["role"] == "subscriber":
            with Path(self.plan["log"]).open("a") as log:
                log.write(f"{KILLED}\n")
        self.process = _popen("trial.part", self.plan, self._errors)
        assert self.process.stdout is not None
        self.lines = SpokenLines(self.process.stdout)
        self._is_ready = False

    def tell(self, line: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """What it says next, within this time."""
        try:
            said: dict[str, Any] = json.loads(self.lines.next(timeout_s))
        except EOFError:
            raise self._gone() from None
        except TimeoutError:
            raise TrialError(
                f"{self.plan['name']} said nothing within {timeout_s:g} s; expected that it does what it was told, or says "
                "what it lacks. Its errors are in the trial's folder; is the broker overloaded, or does it hang?"
            ) from None
        return said

    def _gone(self) -> TrialError:
        """What to say of one that has closed its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(START_S)
        return TrialError(
            f"{self.plan['name']} ended with {self.process.returncode}; its errors are in the trial's folder"
        )

    def end(self) -> None:
        """Let it go."""
        _close_pipes(self.process)
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@attrs.define(eq=False)
class LineProcess:
    """A bad line to the broker, for all subscribers (`ordered_pubsub.testing.lossy`)."""

    process: subprocess.Popen[bytes]
    lines: SpokenLines
    address: str

    @classmethod
    def start(cls, ens: str, loss: Loss, seed: int, errors: Path) -> LineProcess:
        """Start one to the broker with this URL."""
        parts = urlsplit(ens)
        plan = {"target": f"{parts.hostname}:{parts.port}", "kind": parts.scheme, "seed": seed, **attrs.asdict(loss)}
        process = _popen("lossy", plan, errors)
        assert process.stdout is not None
        line = cls(process, SpokenLines(process.stdout), "")
        try:
            line.address = line.lines.next(START_S).decode()
        except (EOFError, TimeoutError):
            line._close()
            raise TrialError(
                f"the bad line to {parts.scheme}://{parts.hostname}:{parts.port} did not start: {errors.read_text()[-500:]}"
            ) from None
        return line

    def url(self, ens: str) -> str:
        """The broker's URL by way of this line."""
        parts = urlsplit(ens)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self.address}").geturl()

    def end(self) -> dict[str, int]:
        """Let it go; say what it has done."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            done: dict[str, int] = json.loads(self.lines.next(START_S))
        except (EOFError, TimeoutError):
            raise TrialError(
                "the bad line did not say what it has done; its errors are in the trial's folder"
            ) from None
        finally:
            self._close()
        return done

    def _close(self) -> None:
        self.process.kill()
        self.process.wait()
        _close_pipes(self.process)
