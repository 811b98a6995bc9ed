"""The process of a publisher or a subscriber, as the trial sees it: started, told things, heard, and gone in the end.

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

import attrs

from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.testing.processes import SpokenLines

START_S = 20.0
"""How long something may take to start, or to end."""


class TrialError(OrderedPubSubError):
    """A trial could not be held: something did not start, did not answer, or did not end."""


@attrs.define(eq=False)
class WorkerProcess:
    """A publisher or a subscriber."""

    plan: dict[str, Any]
    process: subprocess.Popen[bytes]
    lines: SpokenLines

    @classmethod
    def start(cls, plan: dict[str, Any], errors: Path) -> WorkerProcess:
        """Start one; it says when it is ready."""
        with errors.open("a") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "ordered_pubsub.testing.trial.worker", json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        assert process.stdout is not None
        return cls(plan, process, SpokenLines(process.stdout))

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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it is gone already
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
