"""Clients at home at this stage.

A client's requests are checked against what its identity may do, for every topic that they name, and go to the stage in the
order in which they came. A client that does not read its answers is not waited for: when more is waiting than is allowed, it
is disconnected with the reason. Nothing is lost by that, since it asks again what it has no answer to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ordered_pubsub.config.schema import IdentitySection, LimitsSection
from ordered_pubsub.core.messages import Answer, ChangeAsk, PublishAsk, Refusal, Request
from ordered_pubsub.errors import ProtocolError
from ordered_pubsub.server.node import Node
from ordered_pubsub.wire.channel import Channel
from ordered_pubsub.wire.protocol import (
    Ask,
    Inquire,
    Ping,
    Pong,
    Rejected,
    Report,
    Tell,
    decode,
    encode,
    from_client,
)

JUDGED_MAX = 20_000

_FINE = ("", "")
_PONG = encode(Pong())


@attrs.define(eq=False)
class Rules:
    """What holds for every client of this stage."""

    limits: LimitsSection
    is_listed: Callable[[str], bool]
    """whether a topic may exist"""
    report: Callable[[], dict[str, Any]]


@attrs.define(eq=False)
class ClientConnection:
    """One client's connection, once it has been let in."""

    channel: Channel
    session: str
    name: str | None
    identity: IdentitySection
    node: Node
    rules: Rules
    on_gone: Callable[[ClientConnection], None]
    _held: dict[str, set[str]] = attrs.field(factory=dict)
    """the topics of its subscriptions, as far as they were asked for on this connection"""
    _judged: dict[tuple[str, str], tuple[str, str]] = attrs.field(factory=dict)
    """(right, topic) → why not: a code and a reason"""

    def opened(self, channel: Channel) -> None:
        """Never called: this owner comes later."""

    def received(self, payloads: list[bytes]) -> None:
        """The client says something."""
        requests: list[Request] = []
        for payload in payloads:
            message = decode(from_client, payload, f"client {self.session}")
            if isinstance(message, Ask):
                requests += message.requests
            elif isinstance(message, Inquire):
                self._inform(message.number)
            elif isinstance(message, Ping):
                self.channel.send(_PONG)
        if requests:
            self._ask(requests)

    def _ask(self, requests: list[Request]) -> None:
        allowed: list[Request] = []
        refusals: list[Answer | Refusal] = []
        for request in requests:
            if request.client != self.session:
                raise ProtocolError(f"a request of {request.client!r} came on the connection of {self.session!r}")
            refusal = self._refusal(request)
            if refusal is None:
                allowed.append(request)
            else:
                refusals.append(refusal)
        if refusals:
            self.node.counters.refusals += len(refusals)
            self.tell(refusals)
        if allowed:
            self.node.handle_requests(allowed)

    def _refusal(self, request: Request) -> Refusal | None:
        """Why a request is not passed on, if it is not. What is said depends on the rules, never on what exists."""
        for part in request.parts:
            is_publication = isinstance(part, PublishAsk)
            right = "publish" if is_publication else "subscribe"
            for topic in (part.topic,) if is_publication else part.add:
                verdict = self._judged.get((right, topic)) or self._judge(right, topic)
                if verdict is not _FINE:
                    return request.refused(*verdict)
            if isinstance(part, ChangeAsk):
                excess = self._excess(part)
                if excess:
                    return request.refused("limit", excess)
        return None

    def _judge(self, right: str, topic: str) -> tuple[str, str]:
        verdict = _FINE
        if not self.identity.may(right, topic):
            verb = "publish on" if right == "publish" else "subscribe to"
            verdict = ("forbidden", f"identity {self.identity.name!r} may not {verb} {topic!r}")
        elif not self.rules.is_listed(topic):
            verdict = ("unknown-topic", f"there is no topic {topic!r}: no [[topic]] of the configuration lists it")
        if len(self._judged) >= JUDGED_MAX:
            self._judged.clear()
        self._judged[right, topic] = verdict
        return verdict

    def become(self, identity: IdentitySection) -> None:
        """Go on under the rights that its identity has now."""
        self.identity = identity
        self._judged.clear()

    def _excess(self, ask: ChangeAsk) -> str:
        limits = self.rules.limits
        if ask.ends:
            self._held.pop(ask.subscription, None)
            return ""
        held = self._held.get(ask.subscription)
        if held is None and len(self._held) >= limits.subscriptions_per_client_max:
            return (
                f"a client may have {limits.subscriptions_per_client_max} subscriptions "
                "(limits.subscriptions_per_client_max): close one, or hold more topics in one"
            )
        then = (held or set()).difference(ask.remove).union(ask.add)
        if len(then) > limits.topics_per_subscription_max:
            return (
                f"a subscription may hold {limits.topics_per_subscription_max} topics "
                f"(limits.topics_per_subscription_max), not {len(then)}"
            )
        self._held[ask.subscription] = then
        return ""

    def _inform(self, number: int) -> None:
        if self.identity.administer:
            self.channel.send(encode(Report(number, self.rules.report())))
        else:
            reason = f"identity {self.identity.name!r} may not see how the stage is: it needs the right 'administer'"
            self.channel.send(encode(Report(number, {}, reason)))

    def tell(self, answers: list[Answer | Refusal]) -> None:
        """Bring answers."""
        self.channel.send(encode(Tell(answers)))
        if self.channel.is_clogged:
            self.leave(
                "slow",
                f"more than {self.channel.buffered_bytes_max} bytes (limits.buffered_bytes_max) waited for this client to "
                "read them; nothing is lost, it asks again",
            )

    def leave(self, code: str, reason: str) -> None:
        """Disconnect the client, with the reason."""
        if code == "slow":
            self.channel.abort(reason)  # what it does not read it would not read now
        else:
            self.channel.close(reason, encode(Rejected(code, reason)))

    def broken(self, error: ProtocolError) -> None:
        """The client sent what it must not."""
        self.leave("bad-frame", str(error))

    def lost(self, reason: str) -> None:
        """The client is gone."""
        self.on_gone(self)
