"""What can be written in the file and is not offered by this release yet.

All of it is read and checked, so that a file is right or wrong today as it will be then. When a release brings one of these,
its lines here go; nothing else in the configuration knows of it.
"""

from __future__ import annotations

from ordered_pubsub.config.kinds import Path, spell
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.errors import NotOffered

_GROUP = (
    "histories are not kept yet; leave it out (subscriptions that hold several topics have them in one order anyway)"
)


def find_what_comes_later(configuration: Configuration) -> tuple[Path, str] | None:
    """The first key that asks for something that is not offered, and what to do instead."""
    return (("group", 0), _GROUP) if configuration.group else None


def refuse_what_comes_later(configuration: Configuration, where: str = "") -> None:
    """Raise `NotOffered` if the configuration asks for what a later release brings."""
    found = find_what_comes_later(configuration)
    if found is not None:
        path, instead = found
        raise NotOffered(f"{where}{spell(path)} is not available yet: it comes with a later release; {instead}")
