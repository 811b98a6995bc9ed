"""`python -m ordered_pubsub.testing.trial`: put a broker on trial."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import attrs

from ordered_pubsub.testing.lossy import Loss
from ordered_pubsub.testing.trial.system import Trial, TrialOutcome, TrialPlan

NUMBERS = (
    *("seed", "stages", "publishers", "subscribers", "topics", "events"),
    *("kills", "durable", "subscriber_kills"),
)
SHARES = [field.name for field in attrs.fields(Loss)]


def main() -> int:
    """Hold one trial, say what came out; the exit code is 0 if everything was as promised."""
    parser = argparse.ArgumentParser(prog="python -m ordered_pubsub.testing.trial", description=__doc__)
    parser.add_argument("--ens", required=True, help="the broker's URL")
    for name in NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(TrialPlan(ens=""), name))
    for name in SHARES:
        parser.add_argument(f"--{name}", type=float, default=0.0, help="of the events that the broker sends, a share")
    parser.add_argument(
        "--rate", type=float, default=TrialPlan(ens="").rate, help="events of each publisher in a second"
    )
    parser.add_argument("--durability", default="fsync")
    given: dict[str, Any] = vars(parser.parse_args())
    shares = {name: given.pop(name) for name in SHARES}
    loss = Loss(**shares) if any(shares.values()) else None
    outcome = Trial(TrialPlan(loss=loss, **given), say=lambda line: print(line, flush=True)).run()
    print(describe(outcome))
    return 0 if outcome.is_good else 1


def describe(outcome: TrialOutcome) -> str:
    """What came out, in words."""
    verdict = outcome.verdict
    lines = [
        f"{verdict.published} events, {verdict.notified} notifications, {outcome.changes} changes of subscriptions, "
        f"{outcome.kills} kills, {outcome.seconds:.1f} s",
        f"as the broker delivered: {verdict.raw_disagreeing_pairs} of {verdict.raw_compared_pairs} pairs in different order",
        f"as notified:             {verdict.disagreeing_pairs} of {verdict.compared_pairs}",
        f"publication to notification: p50 {verdict.latency_ms(0.5):.1f} ms, p99 {verdict.latency_ms(0.99):.1f} ms",
    ]
    if outcome.losses is not None:
        lost = outcome.losses
        lines.append(
            f"of {lost.events} events from the broker {lost.dropped} were dropped, {lost.repeated} repeated, "
            f"{lost.delayed} delayed"
        )
    if verdict.again or verdict.without_receipt:
        lines.append(
            f"{verdict.again} came again after a kill, and had their effect once; "
            f"{verdict.without_receipt} notified ones had no receipt when their publisher was killed"
        )
    lines += [f"FAULT {fault}" for fault in verdict.faults[:20]]
    lines += [f"STILL WAITING {one}" for one in outcome.waiting]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
