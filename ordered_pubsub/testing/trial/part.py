"""What runs as a process of a trial: one of its parts, as the plan in its argument says."""

from __future__ import annotations

import asyncio
import json
import sys

from ordered_pubsub.testing.trial.surviving import PublishingOn, SubscribingOn
from ordered_pubsub.testing.trial.worker import TrialPublishing, TrialSubscribing, TrialWorker

PARTS: dict[str, type[TrialWorker]] = {
    "publisher": TrialPublishing,
    "subscriber": TrialSubscribing,
    "surviving publisher": PublishingOn,
    "subscriber with a name": SubscribingOn,
}


async def _main() -> None:
    plan = json.loads(sys.argv[1])
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await PARTS[plan["role"]](plan, lines).run()


if __name__ == "__main__":
    asyncio.run(_main())
