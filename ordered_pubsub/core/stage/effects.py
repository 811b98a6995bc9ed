"""What a stage's caller must do about some inputs. `driver` says in which order."""

from __future__ import annotations

import msgspec

from ordered_pubsub.core.log.writer import Decision, Kept
from ordered_pubsub.core.messages import Answer, Operation, PeerMessage, Refusal, ToSession


class Effects(msgspec.Struct):
    """What the caller must do, in the order of the fields."""

    kept: list[Kept] = []
    """events that were numbered, for the log"""
    completed: list[Operation] = []
    """complete operations, whose publications on own topics have a place in the log as well"""
    journal: list[bytes] = []
    sends: list[tuple[int, PeerMessage]] = []
    replies: list[Answer | Refusal] = []
    tells: list[tuple[str, ToSession]] = []
    """what clients miss: for a session, what it is brought"""
    forget: list[tuple[str, int]] = []
    """topics, and up to which number the log may forget them"""
    rested: dict[str, int] | None = None
    """topics of which nothing but their last number is remembered any more"""
    woken: dict[str, int] | None = None
    """topics that rested and are used again, with their last numbers"""
    begun: dict[str, int] | None = None
    """… those of them that have a log: it begins behind these numbers"""
    awake: list[str] | None = None
    """topics that rested and are used again, and that is on disk"""
    cleared: list[str] | None = None
    """topics that rest, and that is on disk: what is left of their logs may go"""
    decided: list[Decision] = []
    """what has become of numbers whose publisher had vanished"""
    published: list[Decision] = []
    """what is pending no more"""
    named: list[tuple[str, str]] = []
    """names that belong to these sessions now"""
    changed: list[str] = []
    """subscriptions that others have changed, in transactions: their clients are to be told"""
    handled: list[Operation] = []
    """operations in the order in which this stage handled them, for those who watch"""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: what is not asked about comes only together with a record of the journal."""
        return not (
            self.journal
            or self.sends
            or self.replies
            or self.tells
            or self.forget
            or self.cleared
            or self.awake
            or self.decided
            or self.published
            or self.named
        )


def nobody(effects: Effects) -> None:
    """Nobody watches."""
