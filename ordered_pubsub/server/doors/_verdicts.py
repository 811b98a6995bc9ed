"""What a connected client may, topic by topic, by the rights that its identity has now.

A verdict is a code and a reason, or `FINE`; it is remembered for all connections of an identity, as long as the rights are the
same. What a client says is cut down to what it may say now, and what it is brought to what it may read now, whatever it might do
when it asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import attrs
from msgspec.structs import replace

from ordered_pubsub.config.schema import IdentitySection
from ordered_pubsub.core.checking import PARTS_MAX
from ordered_pubsub.core.messages import (
    AskKeys,
    ChangeAsk,
    Ended,
    FromSubscriber,
    Keys,
    LeaseRenewal,
    Locate,
    Located,
    Nack,
    Progress,
    PublishAsk,
    Recovered,
    Refusal,
    Request,
    SeenAsk,
    TopicHeads,
    ToSession,
    VoidAsk,
    VoidDecision,
)
from ordered_pubsub.core.order.registrar import TOPICS_MAX
from ordered_pubsub.core.stage.turns import Work
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import TopicError
from ordered_pubsub.server.doors.rules import Rules

JUDGED_MAX, JUDGED_AT_ONCE = 20_000, 250
"""Of so many topics it is known what an identity may; so many are found out about in one step."""
FORBIDDEN = "forbidden"
"""The code of what an identity has no right to."""
Verdict = tuple[str, str]
"""Why not: a code and a reason."""
FINE: Verdict = ("", "")


@attrs.define(eq=False)
class Verdicts:
    """What one client may."""

    session: str
    identity: IdentitySection
    rules: Rules
    _judged: dict[tuple[str, str], Verdict] = attrs.field(init=False)
    """(right, topic) → the verdict; the same for all connections of its identity"""

    def __attrs_post_init__(self) -> None:
        self.become(self.identity)

    def become(self, identity: IdentitySection) -> None:
        """These are the rights now."""
        self.identity = identity
        self._judged = self.rules.judged.setdefault(identity.name, {})

    # -- topics -------------------------------------------------------------------------------------------------------

    def of(self, right: str, topic: str) -> Verdict:
        """Whether it has a right on a topic."""
        return self._judged.get((right, topic)) or self._judge(right, topic)

    def may_read(self, topic: str) -> bool:
        """Whether it may know of this topic at all."""
        return self.of("subscribe", topic) is FINE

    def denial(self, topics: Iterable[str]) -> str:
        """Why it may not read one of these topics; empty if it may read all."""
        for topic in topics:
            verdict = self.of("subscribe", topic)
            if verdict is not FINE:
                return verdict[1]
        return ""

    def _judge(self, right: str, topic: str) -> tuple[str, str]:
        try:
            check_topic(topic)
        except TopicError as error:
            return ("bad-request", str(error))  # not remembered, for it may be long
        verdict = FINE
        if not self.identity.may(right, topic):
            verb = "publish on" if right == "publish" else "subscribe to"
            verdict = (FORBIDDEN, f"identity {self.identity.name!r} may not {verb} {topic!r}")
        elif not self.rules.is_listed(topic):
            verdict = ("unknown-topic", f"there is no topic {topic!r}: no [[topic]] of the configuration lists it")
        if len(self._judged) >= JUDGED_MAX:
            for oldest in list(islice(self._judged, JUDGED_MAX // 2)):
                del self._judged[oldest]
        self._judged[right, topic] = verdict
        return verdict

    def judging(self, message: FromSubscriber | ChangeAsk) -> Work:
        """Find out what it may of what a message names: some topics at each step, for there may be thousands."""
        right, topics = _named(message)
        if len(topics) > JUDGED_AT_ONCE:
            for at, topic in enumerate(topics[:TOPICS_MAX]):
                self.of(right, topic)
                if at % JUDGED_AT_ONCE == JUDGED_AT_ONCE - 1:
                    yield True

    # -- messages -----------------------------------------------------------------------------------------------------

    def refuse(self, request: Request) -> Refusal | None:
        """Why a request may not be asked, if so. What is said depends on the rules, never on what exists.

        It goes along with the request: a stage that has taken it already, when it was allowed, answers as it did then.
        """
        if len(request.parts) > PARTS_MAX:
            return None  # the stage refuses it, and nothing is spent on it here
        if request.is_transaction and not self.identity.may("transact"):
            return request.refused(
                FORBIDDEN, f"identity {self.identity.name!r} may not use transactions (allow.transact)"
            )
        topics: tuple[str, ...]
        for part in request.parts:
            if isinstance(part, PublishAsk):
                right, topics = "publish", (part.topic,)
            else:
                right, topics = "subscribe", part.add[: TOPICS_MAX + 1]
            for topic in topics:
                verdict = self.of(right, topic)
                if verdict is not FINE:
                    return request.refused(*verdict)
        return None

    def sayable(self, message: FromSubscriber) -> FromSubscriber:
        """As much of a message as it may say."""
        if isinstance(message, LeaseRenewal):
            asks = [
                span for span in message.asks if self.of("publish", span.topic) is FINE or self.may_read(span.topic)
            ]
            return replace(message, asks=asks)
        if isinstance(message, AskKeys):
            return replace(message, topics=[topic for topic in message.topics if self.may_read(topic)])
        if isinstance(message, VoidAsk):
            return replace(message, spans=[span for span in message.spans if self.may_read(span.topic)])
        return message

    def readable(self, message: ToSession) -> ToSession | None:
        """As much of a message as it may read; None if that is nothing."""
        if isinstance(message, Recovered):
            denial = self.denial((message.reply.topic,))
            return Ended(message.subscription, self.session, FORBIDDEN, denial) if denial else message
        if isinstance(message, TopicHeads):
            counts = {topic: count for topic, count in message.counts.items() if self.may_read(topic)}
            return replace(message, counts=counts) if counts else None
        if isinstance(message, Located):
            return replace(message, numbers={t: number for t, number in message.numbers.items() if self.may_read(t)})
        if isinstance(message, Keys):
            return replace(message, keys={topic: keys for topic, keys in message.keys.items() if self.may_read(topic)})
        if isinstance(message, (SeenAsk, VoidDecision)):
            return message if self.may_read(message.topic) else None
        return message


def _named(message: FromSubscriber | ChangeAsk) -> tuple[str, Sequence[str]]:
    """The topics that a message names, and the right that it needs for them."""
    if isinstance(message, ChangeAsk):
        return "subscribe", message.add
    if isinstance(message, (Locate, AskKeys)):
        return "subscribe", message.topics
    if isinstance(message, Progress):
        return "subscribe", list(message.acked)
    if isinstance(message, Nack):
        return "subscribe", [want.topic for want in message.wants]
    if isinstance(message, LeaseRenewal):
        return "publish", [span.topic for span in message.asks]
    return "subscribe", [span.topic for span in message.spans] if isinstance(message, VoidAsk) else ()
