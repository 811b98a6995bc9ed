"""What runs as a process of a trial: one of its parts, as its plan says."""

from __future__ import annotations

from typing import Any

from ordered_pubsub.testing.processes import Starter
from ordered_pubsub.testing.trial.surviving import PublishingOn, SubscribingOn
from ordered_pubsub.testing.trial.worker import TrialPublishing, TrialSubscribing, TrialWorker

PARTS: dict[str, type[TrialWorker]] = {
    "publisher": TrialPublishing,
    "subscriber": TrialSubscribing,
    "surviving publisher": PublishingOn,
    "subscriber with a name": SubscribingOn,
}


async def take_part(starter: Starter, **plan: Any) -> None:
    """Be one of them."""
    await PARTS[plan["role"]](plan, starter).run()
