"""What a named subscription has acknowledged, on its way to the registrar's disk.

Acknowledgements are cumulative, so only the last one counts: they are sent now and then, or at once if somebody waits for it, and
sent again until the registrar says that it has the last one on disk.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ordered_pubsub.core.messages import Acked, Saved

ACK_S = 0.5
"""An acknowledgement that nobody waits for may wait for so long for later ones."""
REPEAT_S = 1.0


@attrs.define(eq=False)
class Acknowledging:
    """The acknowledgements of one named subscription in one session."""

    subscription: str
    session: str
    serial: int = 0
    """of the last acknowledgement"""
    saved: int = 0
    """of the last one that is on disk"""
    _noted: tuple[int, Mapping[str, int], int] | None = None
    """version, clock and position of the last one"""
    _due_at: float | None = None

    def acknowledge(
        self, version: int, clock: Mapping[str, int], position: int, now: float, at_once: bool = False
    ) -> int:
        """Everything up to a clock was handled; return the serial by which this is known to be on disk."""
        if self._noted is None or self._noted[::2] != (version, position):
            self.serial += 1
            self._noted = (version, clock, position)
        if self.saved < self.serial:
            due = now if at_once else now + ACK_S
            self._due_at = due if self._due_at is None else min(self._due_at, due)
        return self.serial

    def take_due(self, now: float) -> Acked | None:
        """What to send now, if anything."""
        if self._due_at is None or self._due_at > now:
            return None
        self._due_at = now + REPEAT_S
        return self.last

    def handle_saved(self, saved: Saved) -> None:
        """The registrar has an acknowledgement on disk."""
        self.saved = max(self.saved, saved.serial)
        if self.saved >= self.serial:
            self._due_at = None

    @property
    def last(self) -> Acked | None:
        """The last acknowledgement."""
        if self._noted is None:
            return None
        version, clock, position = self._noted
        return Acked(self.subscription, self.session, self.serial, version, dict(clock), position)

    @property
    def next_due(self) -> float | None:
        """When `take_due` should be called; None if all is on disk."""
        return self._due_at
