"""The hub of the example, started like any other broker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ordered_pubsub.testing.brokers import Broker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_adapter"


class Hub(Broker):
    """It is not installed: it runs from where it is."""

    program = "ordered_pubsub_hub.hub"
    schemes = ("hub", "hub")

    def _find(self) -> str:
        return sys.executable

    def _configure(self, folder: Path, executable: str) -> list[str]:
        os.symlink(EXAMPLE / "ordered_pubsub_hub", folder / "ordered_pubsub_hub")
        return [executable, "-m", self.program, "--port", str(self.port)]
