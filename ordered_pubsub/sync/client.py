"""The blocking client: what `ordered_pubsub.sync.connect` returns.

Each method hands on what it is given to the asynchronous client, in its loop, and waits for the outcome; so what is checked and
what is raised is the same. Publications take a way of their own (`outbox`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent import futures
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from ordered_pubsub import connecting
from ordered_pubsub.adapter import Adapter
from ordered_pubsub.client.client import Client as AsyncClient
from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.client.subscription import Subscription as AsyncSubscription
from ordered_pubsub.client.transaction import Part
from ordered_pubsub.errors import OrderedPubSubError, Timeout, TransactionUnknown, UsageError
from ordered_pubsub.sync.handlers import Handler, HandlerThread, check_plain
from ordered_pubsub.sync.loops import GRACE_S, LoopThread, check_may_block, enter, is_late, outcome
from ordered_pubsub.sync.outbox import BlockingOutbox, Receipts
from ordered_pubsub.sync.subscription import Subscription
from ordered_pubsub.sync.transaction import StaticTransaction

_Result = TypeVar("_Result")


def connect(
    ens: str | Adapter | None = None,
    *,
    sequencer: str | list[str] | None = None,
    name: str | None = None,
    delivery: str | None = None,
    config: str | None = None,
    **settings: Any,
) -> Client:
    """Connect to a system: `client = connect(...)`, or `with connect(...) as client:`.

    The arguments are those of `ordered_pubsub.connect`. Interrupted, nothing stays open.
    """
    check_may_block()
    connection = connecting.connect(ens, sequencer=sequencer, name=name, delivery=delivery, config=config, **settings)

    async def start() -> AsyncClient:
        return await connection

    user = object()
    thread = enter(user)
    try:
        inner = thread.call(start())
    except BaseException:
        thread.leave(user)
        thread.join()
        raise
    thread.clients[user] = inner
    return Client(inner, thread, user)


class Client:
    """A user of the system: publishes, and holds subscriptions. Made by `connect`; for any thread, and several at once."""

    def __init__(self, inner: AsyncClient, thread: LoopThread, user: object) -> None:
        self._inner = inner
        self._thread = thread
        self._user = user
        self._timeout_s: float = inner._settings.timeout_s
        self._outbox = BlockingOutbox(inner, thread)
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        """changed and read in the loop only"""
        self._handlers: WeakSet[HandlerThread] = WeakSet()
        self._gate = threading.Lock()
        self._closing: futures.Future[None] | None = None

    @property
    def name(self) -> str:
        """The name that its events carry as their `publisher`."""
        return self._inner.name

    def __repr__(self) -> str:
        return f"<sync.{repr(self._inner)[1:]}"

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, data: Any, *, headers: Mapping[str, bytes | str] | None = None, id: str | None = None
    ) -> Receipt:
        """Publish an event; return when it has its place in the order and the ENS has taken it.

        Waits while the pipeline is full. `id` is the caller's own, and then unique by the caller's care. Interrupted, or out
        of time, the event may still be published.
        """
        check_may_block()
        item = self._inner.prepare(topic, data, headers, id)
        give_up_at = time.monotonic() + self._timeout_s
        future: futures.Future[Receipt] = futures.Future()
        self._outbox.put([item], future, give_up_at)
        return self._outcome(future, give_up_at)

    def publish_nowait(
        self, topic: str, data: Any, *, headers: Mapping[str, bytes | str] | None = None, id: str | None = None
    ) -> futures.Future[Receipt]:
        """Publish an event without waiting; the future's result is its receipt.

        Raises `WouldBlock` when the pipeline is full. Events keep the order in which they were published. The future cannot
        be cancelled. Its callbacks are called in the library's thread: they must not wait for anything.
        """
        return self._outbox.put_nowait(self._inner.prepare(topic, data, headers, id))

    def publish_many(self, topic: str, items: Iterable[Any]) -> list[Receipt]:
        """Publish events on one topic, in their order; return when the ENS has taken all of them.

        If one of them cannot be written, none is published. Interrupted, or out of time, some or all of them may still be.
        """
        check_may_block()
        if isinstance(items, (str, bytes)):
            raise UsageError(
                f"publish_many() takes a list of events, not one {type(items).__name__}; use publish() for one"
            )
        prepared = [self._inner.prepare(topic, data, None, None) for data in items]
        if not prepared:
            return []
        give_up_at = time.monotonic() + self._timeout_s
        receipts = Receipts(len(prepared))
        self._outbox.put(prepared, receipts, give_up_at)
        return self._outcome(receipts.future, give_up_at)

    def publish_batch(self, items: Iterable[tuple[str, Any]]) -> list[Receipt]:
        """Publish events, each on a topic, as one: all of them or none, in one place in the order, and subscribers with
        order="total" are notified of all of them in one go, one right after the other. Their `tx` is the same.

        All topics must be "exactly-once". Interrupted, or out of time, all of them may still be published, or none.
        """
        check_may_block()
        prepared = self._inner.prepare_batch(items)
        give_up_at = time.monotonic() + self._timeout_s
        outcomes: list[futures.Future[Receipt]] = [futures.Future() for _ in prepared]
        if prepared:
            self._outbox.put_together(prepared, outcomes, give_up_at)
        return [self._outcome(outcome, give_up_at) for outcome in outcomes]

    def static_transaction(self, *, strict: bool = True) -> StaticTransaction:
        """A transaction that needs nobody else, as in `ordered_pubsub.client.Client.static_transaction`; `commit()` waits."""
        inner = self._inner
        return StaticTransaction(self._commit, inner.prepare, inner.check_gained, strict)

    def _commit(self, parts: list[Part]) -> tuple[str, list[Receipt]]:
        check_may_block()
        outgoing = [part for part in parts if isinstance(part, Outgoing)]
        with self._outbox.room_for(outgoing, time.monotonic() + self._timeout_s):
            try:
                return self._call(self._inner.commit_parts(parts))
            except TransactionUnknown as error:
                going_on = error.outcome

                async def outcome() -> str:
                    name: str = await going_on()
                    return name

                raise TransactionUnknown(str(error), lambda: self._thread.call(outcome(), None)) from None

    def _outcome(self, future: futures.Future[_Result], give_up_at: float) -> _Result:
        try:
            return future.result(max(give_up_at - time.monotonic(), 0.0))
        except futures.TimeoutError as error:
            if not is_late(future, error):
                raise
        waiting_for = self._thread.look(self._inner._engine.waiting_for)
        raise Timeout(
            f"no outcome within {self._timeout_s:g} s (timeout_s): waited for {waiting_for}. The outcome is unknown"
        )

    # -- subscribing --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        *topics: str,
        where: str | None = None,
        order: str = "total",
        start: object = "new",
        name: str | None = None,
        empty: bool = False,
        delivery: str | None = None,
        notify: Handler | None = None,
        ack: str = "auto",
        ttl_s: float | None = None,
        buffer_events_max: int | None = None,
        on_bad_event: Handler | None = None,
        retry: object = None,
        dead_letter: str | None = None,
    ) -> Subscription:
        """Hold topics together, in one order; return when that has its place: what is published afterwards is notified.

        The arguments are those of the asynchronous `subscribe`, but for `notify` and `on_bad_event`: these are plain functions,
        which are called in a thread of the subscription, one event at a time, and may block. Interrupted, or out of time,
        it is closed.
        """
        return self._call(
            self._subscribe(
                topics,
                where=where,
                order=order,
                start=start,
                name=name,
                empty=empty,
                delivery=delivery,
                notify=self._in_thread("notify", notify),
                ack=ack,
                ttl_s=ttl_s,
                buffer_events_max=buffer_events_max,
                on_bad_event=self._in_thread("on_bad_event", on_bad_event),
                retry=retry,
                dead_letter=dead_letter,
            )
        )

    async def _subscribe(self, topics: tuple[str, ...], **options: Any) -> Subscription:
        inner: AsyncSubscription = await self._inner.subscribe(*topics, **options)
        subscription = Subscription(inner, self._thread, 2 * self._timeout_s + GRACE_S)
        self._subscriptions.add(subscription)
        return subscription

    def _in_thread(self, key: str, handler: Any) -> Any:
        """The handler, so that it runs in a thread of its own; what is none is left to the asynchronous client."""
        if not callable(handler):
            return handler
        check_plain(key, handler)
        threaded = HandlerThread(handler, f"ordered-pubsub {key} of {self.name}")
        self._handlers.add(threaded)
        return threaded

    def require(self, *, order: str | None = None, delivery: str | None = None) -> None:
        """Raise, with the reason, if subscriptions of this order or delivery cannot be given here."""
        self._inner.require(order=order, delivery=delivery)

    # -- to look at ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What this client is doing, as plain data."""
        return self._thread.look(self._status)

    def _status(self) -> dict[str, Any]:
        theirs = {subscription.identity: subscription for subscription in self._subscriptions}
        status = self._inner.status()
        known = [theirs[one["id"]].status_in_loop() if one["id"] in theirs else one for one in status["subscriptions"]]
        return {**status, "unfinished": self._outbox.unfinished_events, "subscriptions": known}

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self._thread.call(work, self._timeout_s + GRACE_S)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End its subscriptions at once, wait until what was published has its receipts, and disconnect.

        Says what it had to leave: raises a `Timeout` if publications had no receipt after `timeout_s`. Raises what stopped
        a subscription if nobody was told before. Interrupted, it goes on closing.
        """
        self._shut(self._inner.close)

    def _shut(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        check_may_block()
        self._thread.check_process()
        with self._gate:
            if self._closing is None:
                self._closing = self._thread.submit(self._close(close))
                self._closing.add_done_callback(lambda _: self._thread.leave(self._user))
        try:
            outcome(self._closing)
        finally:
            if self._closing.done():
                self._thread.leave(self._user)
                self._thread.join()

    async def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        for subscription in self._subscriptions:
            subscription.drop()
        self._outbox.close()
        try:
            await close()
        finally:
            for handler in self._handlers:
                handler.end()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. If the block failed, that is what is raised; what closing had to say is logged."""
        if self._thread.is_elsewhere:
            return  # the block was left by a fork's child, and it is not the child's
        try:
            self._shut(lambda: self._inner.__aexit__(kind, error, traceback))
        except OrderedPubSubError:
            if error is None:
                raise
