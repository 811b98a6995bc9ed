"""The client: what `connect` returns.

Its methods check what they are given, turn data into bytes, and hand both to the engine. What this release does not offer is
refused here, with the reason: nothing that was asked for is ever silently not given.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, NoReturn, cast

from ordered_pubsub.adapter import redacted
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.event import Event, Receipt
from ordered_pubsub.client.incoming.following import NOW, Beginning
from ordered_pubsub.client.incoming.handling import Handler, Handling, policy_of
from ordered_pubsub.client.incoming.intake import Intake
from ordered_pubsub.client.outgoing.publisher import Outgoing
from ordered_pubsub.client.serialization import dump
from ordered_pubsub.client.settings import check_level
from ordered_pubsub.client.subscription import Subscription, check_topics, is_interrupt
from ordered_pubsub.client.transaction import Part, StaticTransaction
from ordered_pubsub.client.waiting import forget_outcome, within
from ordered_pubsub.core.filters import Filter
from ordered_pubsub.core.levels import BEST_EFFORT, EXACTLY_ONCE, Levels
from ordered_pubsub.core.recovery.owner_log import AET_S
from ordered_pubsub.core.subscriber.delivery import WEIGHTS, Order
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.core.transactions import check_counts
from ordered_pubsub.errors import (
    Closed,
    ConfigurationError,
    NotOffered,
    OrderedPubSubError,
    Timeout,
    TransactionUnknown,
    UsageError,
)
from ordered_pubsub.wire.event_frames import EVENT_BYTES, check_headers, content_type_bytes, headers_bytes, held_bytes
from ordered_pubsub.wire.pack import NO_HEADERS

_log = logging.getLogger(__name__)

ID_LENGTH_MAX = 255
REASON_LENGTH_MAX = 500
SUBSCRIPTION_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
METADATA_BYTES = 16_384
METADATA_SHARE = 8
"""Of what an ENS takes in a message, an eighth, and so many bytes at least, is kept for what the order says of it."""

TOPICS_REMEMBERED_MAX = 65_536


def _later(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: Client, *_: object, **__: object) -> NoReturn:
        raise NotOffered(f"client.{name}() is not available yet: {what} come with a later release")

    refuse.__name__ = name
    refuse.__doc__ = f"Not offered in this release: {what} come with a later one."
    return refuse


class Client:
    """A user of the system: publishes, and holds subscriptions. Made by `connect`."""

    def __init__(self, engine: Engine, delivery: str | None) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._delivery = delivery
        frame_bytes_max = engine.adapter.frame_bytes_max or sys.maxsize
        self._payload_bytes_max = min(
            engine.settings.payload_bytes_max,
            engine.home.payload_bytes_max or sys.maxsize,
            max(frame_bytes_max - max(METADATA_BYTES, frame_bytes_max // METADATA_SHARE), 0),
        )
        self._publisher = engine.publisher
        prefix = engine.key.nonce + "-"
        self._ids = (f"{prefix}{number}" for number in count(1))
        self._subscriptions: dict[Subscription, bool] = {}
        self._subscription_count = 0
        self._may_publish: dict[str, bool] = {}
        """topics, valid ones, that give what this client demands"""
        self._opening: dict[str, bool] = {}
        """names of subscriptions that are being opened"""
        self._closing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name that its events carry as their `publisher`."""
        return self._engine.name

    def __repr__(self) -> str:
        ens = redacted(self._engine.adapter.url)
        return f"<Client {self.name} at {ens}; {self._publisher.unfinished_events} publications unfinished>"

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, data: Any, *, headers: Mapping[str, bytes | str] | None = None, id: str | None = None
    ) -> Receipt:
        """Publish an event; return when it has its place in the order and the ENS has taken it.

        Waits while the pipeline is full. `id` is the caller's own, and then unique by the caller's care. Cancelled, or out
        of time, the event may still be published.
        """
        item = self._outgoing(topic, data, headers, id)
        loop, timeout_s = self._engine.loop, self._settings.timeout_s
        give_up_at = loop.time() + timeout_s
        future = await self._publisher.put(item, give_up_at)
        return await within(timeout_s, future, self._engine.waiting_for, give_up_at)

    def publish_nowait(
        self, topic: str, data: Any, *, headers: Mapping[str, bytes | str] | None = None, id: str | None = None
    ) -> asyncio.Future[Receipt]:
        """Publish an event without waiting; the future's result is its receipt.

        Raises `WouldBlock` when the pipeline is full. Events keep the order in which they were published. Cancelling the
        future does not take the event back.
        """
        return self._publisher.put_nowait(self._outgoing(topic, data, headers, id))

    async def publish_many(self, topic: str, items: Iterable[Any]) -> list[Receipt]:
        """Publish events on one topic, in their order; return when the ENS has taken all of them.

        If one of them cannot be written, none is published. Cancelled, or out of time, some or all of them may still be.
        """
        if isinstance(items, (str, bytes)):
            raise UsageError(
                f"publish_many() takes a list of events, not one {type(items).__name__}; use publish() for one"
            )
        outgoing = [self._outgoing(topic, data, None, None) for data in items]
        loop, timeout_s = self._engine.loop, self._settings.timeout_s
        give_up_at = loop.time() + timeout_s
        futures: list[asyncio.Future[Receipt]] = []
        try:
            for item in outgoing:
                futures.append(await self._publisher.put(item, give_up_at))
            return [await within(timeout_s, future, self._engine.waiting_for, give_up_at) for future in futures]
        except BaseException:
            for future in futures:
                future.add_done_callback(forget_outcome)
            raise

    async def publish_batch(self, items: Iterable[tuple[str, Any]]) -> list[Receipt]:
        """Publish events, each on a topic, as one: all of them or none, in one place in the order, and subscribers with
        order="total" are notified of all of them in one go, one right after the other. Their `tx` is the same.

        All topics must be "exactly-once". Cancelled, or out of time, all of them may still be published, or none.
        """
        self._check_loop()
        outgoing = self.prepare_batch(items)
        for item in outgoing:
            item.id = next(self._ids)
        if not outgoing:
            return []
        timeout_s = self._settings.timeout_s
        give_up_at = self._engine.loop.time() + timeout_s
        try:
            await self._publisher.put(outgoing[0], give_up_at)
            waiting_for = self._engine.waiting_for
            return [await within(timeout_s, item.future, waiting_for, give_up_at) for item in outgoing]
        except BaseException:
            for item in outgoing:
                if item.serial:
                    item.future.add_done_callback(forget_outcome)
            raise

    def prepare_batch(self, items: Iterable[Any]) -> list[Outgoing]:
        """Publications that take their place together, checked and written as bytes. May be called from any thread."""
        outgoing: list[Outgoing] = []
        for item in items:
            if not isinstance(item, tuple) or len(item) != 2:
                raise UsageError(
                    f"publish_batch() takes pairs of a topic and what is published on it, not {item!r:.80}"
                )
            outgoing.append(self.prepare(*item, None, None))
        if outgoing:
            self._check_together(outgoing)
            outgoing[0].together = outgoing
        return outgoing

    def _check_together(self, outgoing: Sequence[Outgoing]) -> None:
        """Raise why these cannot be published together, if so."""
        counts: dict[str, int] = {}
        for item in outgoing:
            counts[item.topic] = counts.get(item.topic, 0) + 1
        unkept = self._engine.home.levels.lacking(list(counts), EXACTLY_ONCE)
        if unkept is not None:
            raise NotOffered(
                f"topic {unkept!r} gives delivery={self._engine.home.levels.of(unkept)!r}: its events may be void, so nothing "
                "can be published together with them. Let the stages give it 'exactly-once' ([[topic]] delivery)"
            )
        check_counts(counts)
        if (size := sum(item.size for item in outgoing)) > (most := 2 * self._payload_bytes_max):
            raise UsageError(
                f"{len(outgoing):,} events that are published together have {size:,} bytes; at most {most:,} may (twice what one "
                "event may have, payload_bytes_max): divide them"
            )

    def static_transaction(self, *, strict: bool = True) -> StaticTransaction:
        """A transaction that needs nobody else: write down what is published and how named subscriptions change, its own and
        others', then `commit()`. All of it happens at one place in the order, or nothing.

            tx = client.static_transaction()
            tx.at("agent-1").unsubscribe("work", "jobs/7")
            tx.at("agent-2").subscribe("work", "jobs/7")
            tx.publish("handed-over", {"job": 7})
            await tx.commit()

        With strict=False, what a subscription holds already is not gained, and what it does not hold is not lost; else that is
        a `TransactionConflict`.
        """
        return StaticTransaction(self.commit_parts, self.prepare, self.check_gained, strict)

    def check_gained(self, topics: Sequence[str]) -> list[str]:
        """Topics that a named subscription may gain in a transaction; raises why not."""
        checked = check_topics(topics)
        _check_given(self._engine.home.levels, checked, EXACTLY_ONCE)
        return checked

    async def commit_parts(self, parts: list[Part]) -> tuple[str, list[Receipt]]:
        """Let a transaction happen; return what it is called, and the receipts of what it has published."""
        self._check_loop()
        self._check_open()
        outgoing = [part for part in parts if isinstance(part, Outgoing)]
        if outgoing:
            self._check_together(outgoing)
        for item in outgoing:
            item.id = item.id or next(self._ids)
        timeout_s, waiting_for = self._settings.timeout_s, self._engine.waiting_for
        give_up_at = self._engine.loop.time() + timeout_s
        lead = Outgoing("", "", b"", "", NO_HEADERS, 0, 0, together=parts)
        try:
            await self._publisher.put(lead, give_up_at)
            try:
                name: str = await within(timeout_s, lead.future, waiting_for, give_up_at)
            except Timeout as error:
                going_on = lead.future
                raise TransactionUnknown(str(error), lambda: asyncio.shield(going_on)) from None
            return name, [await within(timeout_s, item.future, waiting_for, give_up_at) for item in outgoing]
        finally:
            for item in outgoing:
                if item.serial:
                    item.future.add_done_callback(forget_outcome)

    def _outgoing(
        self, topic: str, data: Any, headers: Mapping[str, bytes | str] | None, identity: str | None
    ) -> Outgoing:
        self._check_loop()
        item = self.prepare(topic, data, headers, identity)
        if identity is None:
            item.id = next(self._ids)
        return item

    def prepare(
        self, topic: str, data: Any, headers: Mapping[str, bytes | str] | None, identity: str | None
    ) -> Outgoing:
        """A publication, checked and written as bytes; without an id of ours. May be called from any thread."""
        if type(topic) is not str or topic not in self._may_publish:
            topic = check_topic(topic)
            if self._delivery != BEST_EFFORT:
                _check_given(self._engine.home.levels, [topic], self._delivery or EXACTLY_ONCE)
            if len(self._may_publish) >= TOPICS_REMEMBERED_MAX:
                self._may_publish.clear()
            self._may_publish[topic] = True
        payload, content_type = dump(data, self._settings.serializer)
        checked = NO_HEADERS if headers is None else check_headers(headers)
        size = held = len(payload)
        if checked:
            size, held = size + headers_bytes(checked), held + held_bytes(checked)
        if size > self._payload_bytes_max:
            raise UsageError(
                f"an event for {topic!r} has {size} bytes; at most {self._payload_bytes_max} (payload_bytes_max of this client "
                "or of its stages, or what the ENS takes) may be published: send less, or raise the limit"
            )
        size += EVENT_BYTES + content_type_bytes(content_type)
        if identity is None:
            return Outgoing(topic, "", payload, content_type, checked, size, held)
        identity = check_id(identity)
        return Outgoing(topic, identity, payload, content_type, checked, size + len(identity.encode()), held)

    def _check_loop(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._engine.loop:
            raise UsageError(
                "a client is used in the event loop in which it was connected; from threads, use ordered_pubsub.sync"
            )

    # -- subscribing --------------------------------------------------------------------------------------------------

    async def subscribe(
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

        `where` is a filter, as in "symbol = 'ACME' and price > 100" (docs/filters.md). `start` is "new", "earliest", a clock
        (topic → the number after which it begins), or a time, as a datetime or in seconds since 1970.

        A subscription with a `name` outlives its client: subscribing under the name again, with the same topics or none, goes on
        after the last event that was acknowledged; that is done by taking the next event, or, with ack="manual", by
        `event.ack()` or `subscription.commit()`. With `empty` it begins without a topic if it is not there: it gets some by
        `add()`, or by a transaction.

        `notify` and `on_bad_event` are plain or async functions that take an event: the first is called with each instead of
        iterating, the second with each that cannot be decoded (without it, those are notified with `data=None` and `error` set).
        A `notify` that raises is called again as `retry` says, how many times in all or a policy of tenacity; then the event
        goes to the topic `dead_letter` with the reason, or, without one, the subscription stops. `ttl_s` and
        `buffer_events_max` are those of `connect`, for this subscription. Cancelled, or out of time, it is closed.
        """
        self._check_loop()
        self._check_open()
        if empty and (name is None or topics):
            raise UsageError(
                "empty=True goes with name= and without topics: it is for a subscription that others give some"
            )
        checked = check_topics(topics) if topics or name is None else []
        if where is not None:
            Filter.parse(where)
        for key, handler in (("notify", notify), ("on_bad_event", on_bad_event)):
            if handler is not None and not callable(handler):
                raise UsageError(
                    f"{key}={handler!r} does not fit; {key} is a plain or async function that takes an event"
                )
        handling = self._handling(notify, retry, dead_letter)
        level = self._level(order, delivery)
        if ttl_s is not None and level != "best-effort":
            raise UsageError(
                f"ttl_s={ttl_s!r} goes with delivery='best-effort' only: with {level!r}, events wait for all earlier ones"
            )
        self._check_topics(checked, level)
        settings = self._settings.changed(ttl_s=ttl_s, buffer_events_max=buffer_events_max)
        self._subscription_count += 1
        identity = f"{self._engine.key.session}/{self._subscription_count}"
        if type(start) in (int, float, datetime):
            start = await self._engine.locate(checked, _seconds_of(start), settings.timeout_s)
        beginning = self._beginning(name, start, ack, checked, empty)
        if level == BEST_EFFORT and (beginning != NOW or where is not None):
            raise NotOffered("name=, start= and where= go with delivery='exactly-once', not with 'best-effort'")
        if name is not None:
            identity = f"{self._engine.given_name}//{name}"
            self._opening[name] = True
        try:
            intake = Intake(self._engine, identity, cast(Order, order), level, settings, beginning)
            try:
                await intake.open(checked, where)
                self._check_open()
            except BaseException:
                intake.stop()
                raise
        finally:
            if name is not None:
                del self._opening[name]
        subscription = Subscription(
            intake,
            handling,
            on_bad_event,
            self._forget,
            partial(self._check_topics, level=level if name is None else EXACTLY_ONCE),
        )
        self._subscriptions[subscription] = True
        return subscription

    def _beginning(self, name: str | None, start: object, ack: str, topics: list[str], empty: bool) -> Beginning:
        """Where a subscription begins, and whether it outlives this client."""
        if name is not None:
            self._check_subscription_name(name)
        if ack not in ("auto", "manual"):
            raise ConfigurationError(f"ack={ack!r} does not fit; ack is 'auto' or 'manual'")
        if ack == "manual" and name is None:
            raise UsageError(
                "ack='manual' goes with name=: without one nothing is remembered that could be acknowledged"
            )
        clock = _clock_of(start, topics)
        unkept = next((topic for topic in topics if not self._engine.home.levels.is_kept(topic)), None)
        if unkept is not None and (name is not None or clock is not None):
            raise NotOffered(
                f"topic {unkept!r} gives delivery='ordered': its events are not kept, so name= and start= cannot be given. Let "
                "the stages give it 'exactly-once' ([[topic]] delivery)"
            )
        return Beginning(name is not None, clock, ack == "manual", empty)

    def _handling(self, notify: Handler | None, retry: object, dead_letter: str | None) -> Handling | None:
        if notify is None:
            if retry is not None or dead_letter is not None:
                raise UsageError("retry= and dead_letter= go with a handler (notify=): who iterates decides himself")
            return None
        topic = None if dead_letter is None else check_topic(dead_letter)
        put_aside = None if topic is None else partial(self._put_aside, topic)
        return Handling(notify, policy_of(retry), put_aside)

    async def _put_aside(self, topic: str, event: Event, error: Exception) -> None:
        """Publish an event that could not be handled, as it was, with the reason in its headers."""
        reason = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()[:REASON_LENGTH_MAX]
        headers = {
            **event.headers,
            "dead-letter-topic": event.topic,
            "dead-letter-number": str(event.number),
            "dead-letter-id": event.id,
            "dead-letter-publisher": event.publisher,
            "dead-letter-by": self.name,
            "dead-letter-reason": reason.replace("\n", " "),
        }
        item = self.prepare(topic, event.raw, headers, None)
        # The same each time, also after a crash, so that who reads the topic can tell a second one.
        item.id, item.content_type = f"dead-letter-{event.id}"[:ID_LENGTH_MAX], str(event.content_type or "")
        give_up_at = self._engine.loop.time() + self._settings.timeout_s
        future = await self._publisher.put(item, give_up_at)
        await within(self._settings.timeout_s, future, self._engine.waiting_for, give_up_at)

    def _check_subscription_name(self, name: str) -> None:
        if self._engine.given_name is None:
            raise UsageError(
                f"a subscription with a name (name={name!r}) belongs to a client with one: connect(name=...), the same each time"
            )
        if not SUBSCRIPTION_NAME.fullmatch(name):
            raise ConfigurationError(
                f"name={name!r} does not fit; a subscription's name is 1 to 64 ASCII letters, digits, '-', '_' and '.'"
            )
        if name in self._opening:
            raise UsageError(
                f"this client is opening subscription {name!r} already: one call at a time, and use what it returns"
            )
        if any(one.name == name and not one.is_over for one in self._subscriptions):
            raise UsageError(f"this client has subscription {name!r} open already: use that one, or close it first")

    def _forget(self, subscription: Subscription) -> None:
        """A subscription is over; one that failed is kept until the end, so that somebody is told."""
        if subscription.error is None:
            self._subscriptions.pop(subscription, None)

    def require(self, *, order: str | None = None, delivery: str | None = None) -> None:
        """Raise, with the reason, if subscriptions of this order or delivery cannot be given here, whatever their topics."""
        self._level("total" if order is None else order, delivery)

    def _level(self, order: str, delivery: str | None) -> str:
        """The level of delivery for a subscription, if it can be given."""
        if order not in WEIGHTS:
            raise ConfigurationError(f"order={order!r} does not fit; order is one of {', '.join(map(repr, WEIGHTS))}")
        level = check_level(delivery or self._delivery or EXACTLY_ONCE)
        if level == "best-effort" and order == "topic":
            raise NotOffered(
                "order='topic' with delivery='best-effort' is not available yet; take 'total' or 'pairwise'"
            )
        return level

    def _check_topics(self, topics: list[str], level: str) -> None:
        """Raise if these topics give less than a subscription demands."""
        levels, adapter = self._engine.home.levels, self._engine.adapter
        _check_given(levels, topics, level)
        if level == BEST_EFFORT or not adapter.capabilities.loses:
            return
        unkept = next((topic for topic in topics if not levels.is_kept(topic)), None)
        if unkept is not None:
            raise NotOffered(
                f"topic {unkept!r} gives delivery='ordered', for which the ENS must lose nothing, and {redacted(adapter.url)} "
                "may: a subscription would wait for ever for what was lost. Let the stages give it 'exactly-once' ([[topic]] "
                "delivery), or take delivery='best-effort', or another ENS"
            )

    # -- what comes later ---------------------------------------------------------------------------------------------

    transaction = _later("transaction", "transactions")
    tx_begin = _later("tx_begin", "transactions")
    tx_commit = _later("tx_commit", "transactions")
    tx_abort = _later("tx_abort", "transactions")
    on_tcm = _later("on_tcm", "transactions")
    move = _later("move", "clients that move")
    advertise = _later("advertise", "advertisements")
    unadvertise = _later("unadvertise", "advertisements")
    on = _later("on", "decorators for handlers")
    run = _later("run", "decorators for handlers")
    ready = _later("ready", "decorators for handlers")

    # -- to look at ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What this client is doing, as plain data."""
        engine = self._engine
        subscriptions = [subscription.status() for subscription in self._subscriptions]
        waiting = [f"subscription {one['id']}: {one['waiting_for']}" for one in subscriptions if one["waiting"]]
        waiting += [starved] if (starved := engine.describe_starved()) else []
        calls, now = engine.waiting_for(), engine.loop.time()
        not_arrived = engine.reception.inspection.counts
        return {
            "name": self.name,
            "ens": redacted(engine.adapter.url),
            "stage": engine.home.where,
            "error": None if engine.failure is None else f"{type(engine.failure).__name__}: {engine.failure}",
            "connected": all(engine.state.values()) and engine.failure is None,
            "connected_to": dict(engine.state),
            "unfinished": self._publisher.unfinished_events,
            "waiting_for": "; ".join(waiting if waiting and calls == "nothing" else [calls, *waiting]),
            "subscriptions": subscriptions,
            "not_brought_by_ens": {topic: now - silence.since + AET_S for topic, silence in engine.starved.items()},
            "brought_by_stage": engine.brought_by_stage,
            "frames_unstamped": engine.reception.unstamped_frames,
            "not_arrived": dict(not_arrived),
        }

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End its subscriptions at once, wait until what was published has its receipts, and disconnect.

        Says what it had to leave: raises a `Timeout` if publications had no receipt after `timeout_s`. Raises what stopped
        a subscription if nobody was told before. Cancelled, it goes on closing.
        """
        await self._shut(give_up_handlers=False)

    async def _shut(self, give_up_handlers: bool) -> None:
        if self._closing is None:
            subscriptions = list(self._subscriptions)
            for subscription in subscriptions:
                subscription.end_now(give_up_handlers)
            self._closing = self._engine.loop.create_task(self._close(subscriptions), name=f"close {self.name}")
            self._closing.add_done_callback(forget_outcome)
        await asyncio.shield(self._closing)

    async def _close(self, subscriptions: list[Subscription]) -> None:
        outcomes = await asyncio.gather(*(s.close() for s in subscriptions), return_exceptions=True)
        left = await self._publisher.drain(self._settings.timeout_s)
        await self._engine.close()
        if left:
            raise Timeout(
                f"client {self.name!r} is closed, but had to leave what had no outcome after {self._settings.timeout_s:g} s "
                f"(timeout_s): {left}. Their outcome is unknown"
            )
        for trouble in outcomes:
            if trouble is not None:
                raise trouble

    def _check_open(self) -> None:
        if self._closing is not None:
            raise Closed(f"client {self.name!r} is closed; connect another one")

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. If the block failed, that is what is raised; what closing had to say is logged."""
        if error is None:
            await self.close()
            return
        try:
            await self._shut(give_up_handlers=is_interrupt(error))
        except OrderedPubSubError as trouble:
            _log.warning("while closing after %s: %s", type(error).__name__, trouble)
        except Exception:
            _log.warning("while closing after %s", type(error).__name__, exc_info=True)


def _clock_of(start: object, topics: list[str]) -> dict[str, int] | None:
    """The clock at which a subscription begins; None for its place in the order."""
    if start == "new":
        return None
    if start == "earliest":
        return {}
    if isinstance(start, Mapping) and all(type(n) is int and n >= 0 for n in start.values()):
        strangers = [topic for topic in start if topic not in topics]
        if not strangers:
            return dict(start)
        raise UsageError(f"start= has {', '.join(map(repr, strangers))}, which the subscription does not hold")
    raise ConfigurationError(
        f"start={start!r} does not fit; start is 'new', 'earliest', a time (a datetime, or seconds since 1970), or a clock: a "
        "mapping from topics to numbers, such as the vector of an event"
    )


def _seconds_of(start: object) -> float:
    """A time in seconds since 1970."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigurationError(
                f"start={start!r} has no time zone: say which, as in datetime.now(timezone.utc) - timedelta(hours=1)"
            )
        return start.timestamp()
    assert isinstance(start, (int, float))
    return float(start)


def check_id(identity: object) -> str:
    """An event's id that is the caller's own, or a `UsageError`."""
    if not isinstance(identity, str) or not 1 <= len(identity) <= ID_LENGTH_MAX or not identity.isprintable():
        raise UsageError(f"id={identity!r} does not fit; an event's id is 1 to {ID_LENGTH_MAX} printable characters")
    return identity


def _check_given(levels: Levels, topics: list[str], least: str) -> None:
    """Raise if one of these topics gives less than a level."""
    lacking = levels.lacking(topics, least)
    if lacking is not None:
        given = levels.of(lacking)
        raise NotOffered(
            f"topic {lacking!r} gives delivery={given!r}, which is less than the {least!r} that was asked for: take it with "
            f"delivery={given!r}, in connect() or in subscribe(), or let the stages give more ([[topic]] delivery)"
        )
