"""Transactions that one client writes down and commits: what it publishes, and changes of named subscriptions, also of others.

All of it takes its place in the order at once, in the order in which it was written, or nothing of it happens. Nobody else has
to be there: the client of a subscription that is changed is told when it can be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.client.subscription import check_topics
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.messages import ChangeAsk
from ordered_pubsub.errors import UsageError

Part = Outgoing | ChangeAsk
Commit = Callable[[list[Part]], Awaitable[tuple[str, list[Receipt]]]]


@attrs.frozen(eq=False)
class Participant:
    """The subscriptions of one client, in a transaction."""

    _parts: TransactionParts
    name: str

    def subscribe(self, subscription: str, *topics: str, where: str | None = None) -> Participant:
        """Let a named subscription gain topics; strict, it must not hold any of them. `where` is a filter for what it gains."""
        if where is not None:
            Filter.parse(where)
        gained = tuple(self._parts.check(topics))
        self._add(subscription, add=gained, where={} if where is None else dict.fromkeys(gained, where))
        return self

    def unsubscribe(self, subscription: str, *topics: str) -> Participant:
        """Let a named subscription lose topics; strict, it must hold all of them."""
        self._add(subscription, remove=tuple(check_topics(topics)))
        return self

    def _add(self, subscription: str, **change: Any) -> None:
        if type(subscription) is not str or not subscription:
            raise UsageError(f"a subscription is named by a text that is not empty, not {subscription!r:.80}")
        self._parts.add(ChangeAsk(f"{self.name}//{subscription}", strict=self._parts.is_strict, **change))


class TransactionParts:
    """What a transaction consists of, in the order in which it is written."""

    def __init__(
        self, prepare: Callable[..., Outgoing], check: Callable[[Sequence[str]], list[str]], strict: bool = True
    ) -> None:
        self._prepare, self.check, self.is_strict = prepare, check, strict
        self._parts: list[Part] = []
        self._is_committed = False
        self.id: str | None = None
        """what it is called, once it has happened: the `tx` of its events"""

    def publish(
        self, topic: str, data: Any, *, headers: Mapping[str, bytes | str] | None = None, id: str | None = None
    ) -> None:
        """Publish an event with it. Its topic must be "exactly-once"."""
        self.add(self._prepare(topic, data, headers, id))

    def publish_many(self, topic: str, items: Iterable[Any]) -> None:
        """Publish events on one topic with it, in their order."""
        for data in items:
            self.publish(topic, data)

    def at(self, client: str) -> Participant:
        """The named subscriptions of a client, which need not be there."""
        if type(client) is not str or not client or "/" in client:
            raise UsageError(f"a client is named as in connect(name=...), not {client!r:.80}")
        return Participant(self, client)

    def add(self, part: Part) -> None:
        """One more part."""
        if self._is_committed:
            raise UsageError("this transaction was committed: begin another one")
        self._parts.append(part)

    def take(self) -> list[Part]:
        """All of it, to be committed, which happens once."""
        if self._is_committed:
            raise UsageError("this transaction was committed: begin another one")
        if not self._parts:
            raise UsageError(
                "nothing is in this transaction: publish something, or change a subscription, before commit()"
            )
        self._is_committed = True
        return self._parts


class StaticTransaction(TransactionParts):
    """A transaction of one client; made by `Client.static_transaction`."""

    def __init__(self, commit: Commit, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._commit = commit

    async def commit(self) -> list[Receipt]:
        """Let all of it happen, at one place in the order, or nothing; return the receipts of what it has published.

        Raises `TransactionConflict` if a subscription was not as it has to be, and `TransactionAborted` if it did not get its
        turn in time: nothing has happened then. `TransactionUnknown` says that there is no answer yet. What was published
        before by the same client comes before it; what is published afterwards does not wait for it, unless this is waited for.
        """
        self.id, receipts = await self._commit(self.take())
        return receipts
