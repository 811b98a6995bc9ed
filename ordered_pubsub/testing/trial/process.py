"""The process of a publisher or a subscriber, as the trial sees it: started, told things, heard, and gone in the end.

It is spoken to by lines: words to it, JSON from it. Every wait for an answer has an end, and so has every process: a trial that
hangs would say nothing about what hangs.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from ordered_pubsub.errors import OrderedPubSubError

START_S = 20.0
"""How long something may take to start, or to end."""


class TrialError(OrderedPubSubError):
    """A trial could not be held: something did not start, did not answer, or did not end."""


@attrs.define(eq=False)
class WorkerProcess:
    """A publisher or a subscriber."""

    plan: dict[str, Any]
    process: subprocess.Popen[bytes]
    _unread: bytes = b""

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
        return cls(plan, process)

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
        assert self.process.stdout is not None
        give_up_at = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(give_up_at - time.monotonic(), 0.0)
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                raise TrialError(
                    f"{self.plan['name']} said nothing within {timeout_s:g} s; expected that it does what it was told, or says "
                    "what it lacks. Its errors are in the trial's folder; is the broker overloaded, or does it hang?"
                )
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._gone()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
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
