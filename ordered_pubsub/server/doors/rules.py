"""What holds for every client of a stage, and what is known of each identity for all its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ordered_pubsub.config.schema import LimitsSection
from ordered_pubsub.wire.channel import Channel


@attrs.define(eq=False)
class Rules:
    """What holds for every client of this stage."""

    limits: LimitsSection
    is_listed: Callable[[str], bool]
    """whether a topic may exist"""
    report: Callable[[], dict[str, Any]]
    sent: Callable[[str, Channel], None]
    """something was sent to somebody of an identity, who may not read it"""
    judged: dict[str, dict[tuple[str, str], tuple[str, str]]] = attrs.field(factory=dict)
    """identity → (right, topic) → why not: a code and a reason"""
    held: dict[str, int] = attrs.field(factory=dict)
    """identity → how many topics its clients have asked for on their connections"""
