"""The way of publications from any thread to the loop: written down here, numbered and sent there.

    publish, publish_nowait ──> put ──> waiting ── one wake-up for many ──> publisher (in the loop)
                                 ^                                              │
    future <── receipt ──────────┴──────────── room again <─────────────────────┘

Data becomes bytes in the thread that publishes, so that it may change afterwards. All publications of a client take this way, in
the order in which they were put; so the pipeline's limits (`pipeline_events_max`, `pipeline_bytes_max`) are kept here, where a
thread can wait for room or be told at once that there is none, and the publisher in the loop never lacks any. Threads that
wait for room get it in the order in which they came.
"""

from __future__ import annotations

import threading
import time
from asyncio import Future as LoopFuture
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import attrs

from ordered_pubsub.client.client import Client, _check_id
from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.frames import NO_HEADERS, check_headers
from ordered_pubsub.client.publisher import Outgoing, make_outgoing
from ordered_pubsub.client.serialization import dump
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import Closed, OrderedPubSubError, Timeout, WouldBlock
from ordered_pubsub.sync.loops import LoopThread


@attrs.define(eq=False)
class Outbox:
    """Publications of one client that have no receipt yet."""

    client: Client
    thread: LoopThread
    _room: threading.Condition = attrs.field(factory=threading.Condition)
    """guards all below; notified when there may be room"""
    _unfinished_events: int = 0
    _unfinished_bytes: int = 0
    _put: deque[tuple[Outgoing, Future[Receipt]]] = attrs.field(factory=deque)
    """not yet in the loop"""
    _queue: deque[object] = attrs.field(factory=deque)
    """threads that wait for room, in their order"""
    _is_woken: bool = False
    """whether the loop has been told that something was put"""
    _is_closed: bool = False

    def prepare(
        self, topic: str, data: Any, headers: Mapping[str, bytes | str] | None, identity: str | None
    ) -> Outgoing:
        """A publication, checked and written as bytes. May be called from any thread."""
        topic = check_topic(topic)
        payload, content_type = dump(data, self.client._settings.serializer)
        checked = NO_HEADERS if headers is None else check_headers(headers)
        self.client._check_size(topic, payload, checked)
        return make_outgoing(topic, payload, content_type, checked, "" if identity is None else _check_id(identity))

    @property
    def unfinished_events(self) -> int:
        """How many publications have no receipt yet."""
        return self._unfinished_events

    # -- in -----------------------------------------------------------------------------------------------------------

    def put_nowait(self, item: Outgoing) -> Future[Receipt]:
        """Take a publication, or raise `WouldBlock`."""
        self.thread.check_process()
        with self._room:
            self._check_open()
            if self._queue or not self._has_room(item):
                raise WouldBlock(
                    f"{self._unfinished_events} publications with {self._unfinished_bytes} bytes have no receipt yet; at most "
                    f"{self._settings.pipeline_events_max} (pipeline_events_max) and {self._settings.pipeline_bytes_max} "
                    "(pipeline_bytes_max) may be: wait for earlier ones first, or use publish(), which waits"
                )
            return self._take(item)

    def put(self, items: Sequence[Outgoing], give_up_at: float) -> list[Future[Receipt]]:
        """Take publications as soon as there is room, one after the other. Interrupted, the rest is not taken."""
        self.thread.check_process()
        with self._room:
            ticket = object()
            self._queue.append(ticket)
            try:
                return [self._take_in_turn(item, ticket, give_up_at) for item in items]
            finally:
                self._queue.remove(ticket)
                self._room.notify_all()

    def _take_in_turn(self, item: Outgoing, ticket: object, give_up_at: float) -> Future[Receipt]:
        def may_go() -> bool:
            return self._is_closed or (self._queue[0] is ticket and self._has_room(item))

        if not self._room.wait_for(may_go, max(give_up_at - time.monotonic(), 0.0)):
            raise Timeout(
                f"the event for {item.topic!r} was not published: the pipeline stayed full for as long as a call may take "
                f"({self._settings.timeout_s:g} s, timeout_s); {self._unfinished_events} earlier ones have no receipt"
            )
        self._check_open()
        return self._take(item)

    def _has_room(self, item: Outgoing) -> bool:
        settings = self._settings
        return not self._unfinished_events or (
            self._unfinished_events < settings.pipeline_events_max
            and self._unfinished_bytes + len(item.payload) <= settings.pipeline_bytes_max
        )

    def _take(self, item: Outgoing) -> Future[Receipt]:
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()  # what was put is not taken back
        self._unfinished_events += 1
        self._unfinished_bytes += len(item.payload)
        self._put.append((item, future))
        if not self._is_woken:
            self._is_woken = self.thread.post(self._send)
        return future

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Give what was put to the publisher."""
        with self._room:
            self._is_woken = False
            put, self._put = self._put, deque()
        publisher, ids = self.client._publisher, self.client._ids
        for item, future in put:
            item.id = item.id or next(ids)
            try:
                sent = publisher.put_nowait(item)
            except OrderedPubSubError as error:
                self._finish(item, partial(future.set_exception, error))
            else:
                sent.add_done_callback(partial(self._sent, item, future))

    def _sent(self, item: Outgoing, future: Future[Receipt], sent: LoopFuture[Receipt]) -> None:
        error = sent.exception()
        if error is None:
            self._finish(item, partial(future.set_result, sent.result()))
        else:
            self._finish(item, partial(future.set_exception, error))

    def _finish(self, item: Outgoing, tell: Callable[[], None]) -> None:
        with self._room:
            self._unfinished_events -= 1
            self._unfinished_bytes -= len(item.payload)
            if self._queue:
                self._room.notify_all()
        tell()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take nothing more; who waits for room is told."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"client {self.client.name!r} is closed and publishes nothing any more")

    @property
    def _settings(self) -> Any:
        return self.client._settings
