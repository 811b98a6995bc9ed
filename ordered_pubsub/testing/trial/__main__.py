"""`python -m ordered_pubsub.testing.trial`: put a broker on trial."""

from __future__ import annotations

import argparse
import sys

from ordered_pubsub.testing.trial.system import Outcome, Plan, Trial


def main() -> int:
    """Hold one trial, say what came out; the exit code is 0 if everything was as promised."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub.testing.trial", description=__doc__)
    parser.add_argument("--ens", required=True, help="the broker's URL")
    for name in ("seed", "stages", "publishers", "subscribers", "topics", "events", "kills"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Plan(ens=""), name))
    parser.add_argument("--durability", default="fsync")
    arguments = parser.parse_args()
    outcome = Trial(Plan(**vars(arguments)), say=lambda line: print(line, flush=True)).run()
    print(describe(outcome))
    return 0 if outcome.is_good else 1


def describe(outcome: Outcome) -> str:
    """What came out, in words."""
    verdict = outcome.verdict
    lines = [
        f"{verdict.published} events, {verdict.notified} notifications, {outcome.changes} changes of subscriptions, "
        f"{outcome.kills} kills, {outcome.seconds:.1f} s",
        f"as the broker delivered: {verdict.raw_disagreeing_pairs} of {verdict.raw_compared_pairs} pairs in different order",
        f"as notified:             {verdict.disagreeing_pairs} of {verdict.compared_pairs}",
    ]
    lines += [f"FAULT {fault}" for fault in verdict.faults[:20]]
    lines += [f"STILL WAITING {one}" for one in outcome.waiting]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
