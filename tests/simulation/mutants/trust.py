"""What nobody may say who has no right to: at the ENS without the keys, and to a stage."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from ordered_pubsub.core import checking
from ordered_pubsub.core.messages import ChangeAsk, FromSubscriber, Refusal, Request
from ordered_pubsub.core.order.registrar import Registrar
from ordered_pubsub.core.stage import stage
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.gatekeeper import Gatekeeper
from ordered_pubsub.core.subscriber.buffer import Arrival
from ordered_pubsub.core.subscriber.delivery import Delivery
from ordered_pubsub.core.trust.authenticity import Stamp
from ordered_pubsub.core.trust.inspection import ARRIVED, Inspection
from simulation.mutants.mutant import Mutant, nothing

_refuse = Registrar.refuse


def _refuse_nobody(registrar: Registrar, request: Request, ask: ChangeAsk) -> Refusal | None:
    found = registrar.subscriptions.get(ask.subscription)
    whose = request if found is None else replace(request, identity=found.owner)
    return _refuse(registrar, whose, ask)


def _refuse_no_later_epoch(registrar: Registrar, request: Request, ask: ChangeAsk) -> Refusal | None:
    found = registrar.subscriptions.get(ask.subscription)
    following = 1 if found is None else found.epoch + 1
    return _refuse(registrar, request, replace(ask, opens=min(ask.opens, following)))


_handle_subscriber = Driver.handle_subscriber


def _unchecked(driver: Driver, session: str, message: FromSubscriber, now: float, identity: str = "") -> None:
    with patch("ordered_pubsub.core.stage.driver.check_message", nothing):
        _handle_subscriber(driver, session, message, now, identity)


def _without_tags(judge: Inspection, topic: str, tag: bytes, stamp: Stamp, head: bytes, content: bytes) -> str:
    verdict = _judge(judge, topic, tag, stamp, head, content)
    return ARRIVED if verdict in ("tag", "untagged") else verdict


def _of_any_system(judge: Inspection, topic: str, tag: bytes, stamp: Stamp, head: bytes, content: bytes) -> str:
    own = msgspec.structs.replace(stamp, system=judge.system)
    return _judge(judge, topic, tag, own, head, content)


_judge = Inspection.judge


def _keep_the_last(delivery: Delivery, kept: dict[int, Arrival], arrival: Arrival) -> None:
    if arrival.number in kept and not arrival.last:
        arrival = msgspec.structs.replace(arrival, is_logged=True, full=True)
    _keep(delivery, kept, arrival)


_keep = Delivery._keep


def _never_doubted(delivery: Delivery, topic: str) -> None:
    """It waits."""


MUTANTS = (
    Mutant(
        "tag-unchecked",
        "what no stage has tagged has not arrived",
        ((Inspection, "judge", _without_tags),),
    ),
    Mutant(
        "system-unchecked",
        "what is of another system has not arrived",
        ((Inspection, "judge", _of_any_system),),
    ),
    Mutant(
        "replace",
        "what the ENS brings takes the place of nothing",
        ((Delivery, "_keep", _keep_the_last),),
    ),
    Mutant(
        "never-doubted",
        "what was made to wait by somebody who has the keys is asked for at its log",
        ((Delivery, "_doubt", _never_doubted),),
    ),
    Mutant(
        "level-unchecked",
        "whether events are kept is said by their topic, not by who publishes them",
        ((Gatekeeper, "refuse_level", nothing),),
    ),
    Mutant(
        "request-unchecked",
        "a request that cannot be is refused",
        ((stage, "check_request", nothing), (checking, "check_request", nothing)),
    ),
    Mutant(
        "owner-unchecked",
        "a subscription belongs to the identity that began it",
        ((Registrar, "refuse", _refuse_nobody),),
    ),
    Mutant(
        "any-epoch",
        "who opens a subscription names the epoch after the last",
        ((Registrar, "refuse", _refuse_no_later_epoch),),
    ),
    Mutant(
        "client-unchecked",
        "what a client may say, every stage takes from every other",
        ((Driver, "handle_subscriber", _unchecked),),
    ),
)
