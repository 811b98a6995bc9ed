"""How many files this process may have open: each connection is one.

A listener that has none left can take nobody in, not even to send them away, and a store may fail to open its own. So the
limit is raised at the start as far as this process may, and compared with what is configured: what does not fit is said, with
what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ordered_pubsub.errors import ConfigurationError

try:
    import resource
except ImportError:  # where there is no such limit
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

RESERVED_FOR_STAGE = 512
"""Files of a stage beside its clients' connections: its store, links, health checks, and who is just being sent away."""
CONNECTIONS_LEAST = 64


def raise_limit() -> int | None:
    """Raise the limit of files as far as this process may; return it, or None if there is none."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems allow less than they say
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def room_for_connections(wanted: int, stages: int, files: Callable[[], int | None] = raise_limit) -> int:
    """How many connections each stage of this process may take, of those that are wanted."""
    found = files()
    if found is None:
        return wanted
    room = found // stages - RESERVED_FOR_STAGE
    if room >= wanted:
        return wanted
    needed = stages * (wanted + RESERVED_FOR_STAGE)
    advice = f"allow {needed} (ulimit -n, or LimitNOFILE= in systemd), or lower limits.connections_max"
    if room < CONNECTIONS_LEAST:
        raise ConfigurationError(
            f"this process may have {found} files open, which is too few for {stages} stages: {advice}"
        )
    _log.warning(
        "this process may have %d files open, so each stage takes %d connections, and not limits.connections_max = %d: %s",
        found, room, wanted, advice,
    )  # fmt: skip
    return room
