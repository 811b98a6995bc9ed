"""How long a system waits for those it does not hear of: the same at every stage, and at every client.

A registrar at one stage and an owner at another give somebody up by these times, and clients stop by themselves by the same ones,
before that happens. So stages that differ do not link, and a stage tells its clients.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import attrs

from ordered_pubsub.core.liveness.expiry import NAMED_TTL_S
from ordered_pubsub.core.liveness.lease import LEASE_S
from ordered_pubsub.core.liveness.lifeline import SESSION_TTL_S


def _is_time(times: Times, attribute: attrs.Attribute[Any], value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{attribute.name}={value!r} does not fit; {attribute.name} is a number of seconds above 0")


@attrs.frozen
class Times:
    """What holds in one system."""

    session_ttl_s: float = attrs.field(default=SESSION_TTL_S, validator=_is_time)
    """a subscription without a name ends when its client was silent for so long"""
    named_ttl_s: float = attrs.field(default=NAMED_TTL_S, validator=_is_time)
    """the same of one with a name"""
    lease_s: float = attrs.field(default=LEASE_S, validator=_is_time)
    """so long after a publisher was last heard of, its numbers without an event may become void"""
