"""Adapters that break one promise each, and the check that has to notice.

Most are made from `memory://`; what needs a connection, from the example's hub, and what needs an ENS that keeps what is not
acknowledged, from the adapter to MQTT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import attrs

from ordered_pubsub.adapter import Adapter, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.base import Connection
from ordered_pubsub_adapters.memory import MemoryAdapter
from ordered_pubsub_adapters.mqtt import MqttAdapter
from ordered_pubsub_hub.adapter import HubAdapter, HubConnection
from ordered_pubsub_hub.wire import Ask, Publish, encode


@attrs.frozen
class Fault:
    """A faulty adapter, the check that it must not pass, and words of what that check has to say."""

    adapter: type[Adapter]
    check: str
    because: str
    patience_s: float


FAULTS: dict[str, Fault] = {}
"""By the name of the class."""

A = TypeVar("A", bound=Adapter)


def fails(check: str, because: str, patience_s: float = 1.0) -> Callable[[type[A]], type[A]]:
    """Say which check a faulty adapter must not pass; the check waits so long for what will not come, and for what will."""

    def register(adapter: type[A]) -> type[A]:
        FAULTS[adapter.__name__] = Fault(adapter, check, because, patience_s)
        return adapter

    return register


class FaultyHub(HubAdapter):
    """One whose connections are faulty."""

    connection_class: type[HubConnection] = HubConnection

    def make_connection(self) -> HubConnection:
        return self.connection_class(self)


class Changing(MemoryAdapter):
    """Changes frames on their way in."""

    def change(self, frame: Frame) -> Frame:
        return frame

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        async def changed(frames: Sequence[Frame]) -> None:
            await on_frames([self.change(frame) for frame in frames])

        await super().open(changed, on_state)

    def with_headers(self, frame: Frame, change: Callable[[Any], Any]) -> Frame:
        return Frame(frame.topic, frame.payload, {name: change(value) for name, value in frame.headers.items()})


@fails("payloads_arrive_unchanged", because="payload was published")
class TextMode(Changing):
    def change(self, frame: Frame) -> Frame:
        return Frame(frame.topic, frame.payload.replace(b"\r\n", b"\n"), frame.headers)


@fails("large_payloads_arrive_unchanged", because="(of 65535)")
class SixteenBits(Changing):
    def change(self, frame: Frame) -> Frame:
        return Frame(frame.topic, frame.payload[:65_535], frame.headers)


@fails("text_headers_arrive_unchanged", because="came as ''")
class Strips(Changing):
    def change(self, frame: Frame) -> Frame:
        return self.with_headers(frame, lambda value: value.strip(" ") if isinstance(value, str) else value)


@fails("bytes_headers_arrive_unchanged", because="came as '")
class Latin(Changing):
    def change(self, frame: Frame) -> Frame:
        return self.with_headers(frame, lambda value: value.decode("latin-1") if isinstance(value, bytes) else value)


@fails("the_largest_headers_arrive_unchanged", because="header 'x' was published as 'éé")
class CutsLongText(Changing):
    def change(self, frame: Frame) -> Frame:
        return (
            self.with_headers(
                frame,
                lambda value: value if isinstance(value, bytes) else value.encode()[:16_384].decode(errors="ignore"),
            )
            if "é" in str(frame.headers.get("x"))
            else frame
        )


@fails("the_largest_frame_is_taken", because="AdapterError: 61440 bytes of payload are too many")
class NamesMoreThanItTakes(MemoryAdapter):
    frame_bytes_max = 65_536

    async def publish(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if len(frame.payload) > 60_000:
                raise AdapterError(f"{len(frame.payload)} bytes of payload are too many")
        await super().publish(frames)


@fails("header_names_arrive_unchanged", because="as 'of x' and came as 'of X'")
class Lowers(Changing):
    def change(self, frame: Frame) -> Frame:
        return Frame(frame.topic, frame.payload, {name.lower(): value for name, value in frame.headers.items()})


@fails("header_names_arrive_unchanged", because="came with {'hop': '1'}")
class AddsItsOwn(Changing):
    def change(self, frame: Frame) -> Frame:
        return Frame(frame.topic, frame.payload, {**frame.headers, "hop": "1"})


@fails("topics_never_meet", because="did not come")
class CutsTopics(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        await super().publish([Frame(frame.topic[:254], frame.payload, frame.headers) for frame in frames])

    async def subscribe(self, topics: Sequence[str]) -> None:
        await super().subscribe([topic[:254] for topic in topics])


@fails("topics_never_meet", because="did not come")
class FoldsTopics(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        await super().publish([Frame(frame.topic.replace(".", "/"), frame.payload, frame.headers) for frame in frames])

    async def subscribe(self, topics: Sequence[str]) -> None:
        await super().subscribe([topic.replace(".", "/") for topic in topics])


@fails("subscribe_returns_when_active", because="did not come")
class SubscribesSoon(MemoryAdapter):
    async def subscribe(self, topics: Sequence[str]) -> None:
        self.soon = asyncio.ensure_future(self.subscribe_soon(topics))

    async def subscribe_soon(self, topics: Sequence[str]) -> None:
        await asyncio.sleep(0.01)
        await super().subscribe(topics)


@fails("every_subscriber_gets_every_frame", because="did not come")
class NotToItself(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        held = [topic for topic, lanes in self._opened().subscribers.items() if self._lane in lanes]
        await self.unsubscribe(held)
        await super().publish(frames)
        await self.subscribe(held)


@fails("topics_add_up", because="did not come")
class OneCallOnly(MemoryAdapter):
    async def subscribe(self, topics: Sequence[str]) -> None:
        held = [topic for topic, lanes in self._opened().subscribers.items() if self._lane in lanes]
        await self.unsubscribe(held)
        await super().subscribe(topics)


class Repeats(MemoryAdapter):
    """Says every so many frames twice."""

    every = 0

    async def publish(self, frames: Sequence[Frame]) -> None:
        twice = [(frame,) * (1 + (number % self.every == self.every - 1)) for number, frame in enumerate(frames)]
        await super().publish([frame for pair in twice for frame in pair])


@fails("nothing_is_repeated", because="came 2 times")
class RepeatsSome(Repeats):
    every = 100


@fails("subscribing_twice_is_subscribing_once", because="came 2 times")
class CountsSubscriptions(Changing):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.counts: dict[str, int] = {}

        async def repeated(frames: Sequence[Frame]) -> None:
            await on_frames([frame for frame in frames for _ in range(self.counts[frame.topic])])

        await super().open(repeated, on_state)

    async def subscribe(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self.counts[topic] = self.counts.get(topic, 0) + 1
        await super().subscribe(topics)


@fails("unsubscribe_stops", because="unsubscribed from")
class NeverLetsGo(MemoryAdapter):
    async def unsubscribe(self, topics: Sequence[str]) -> None:
        self._opened()


@fails("a_topic_is_fifo", because="in place")
class LastFirst(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        await super().publish([*reversed(frames)])


@fails("many_frames_at_once", because="4000 of 5000 frames did not come")
class ThousandAtMost(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        await super().publish(frames[:1_000])


@fails("topics_are_published_side_by_side", because="something else is being published")
class OneAtATime(MemoryAdapter):
    is_busy = False

    async def publish(self, frames: Sequence[Frame]) -> None:
        if self.is_busy:
            raise AdapterError("something else is being published")
        self.is_busy = True
        await asyncio.sleep(0)
        await super().publish(frames)
        self.is_busy = False


@fails("a_slow_consumer_is_felt_by_the_ens", because="did not come")
class DropsWhenBusy(MemoryAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.calls: set[asyncio.Future[None]] = set()

        async def without_waiting(frames: Sequence[Frame]) -> None:
            if not self.calls:
                call = asyncio.ensure_future(on_frames(frames))
                self.calls.add(call)
                call.add_done_callback(self.calls.discard)

        await super().open(without_waiting, on_state)


@fails("publishing_goes_on_while_frames_wait", because="was called again")
class CallsAgain(MemoryAdapter):
    """It does go on, and so does everything else."""

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.calls: list[asyncio.Future[None]] = []

        async def without_waiting(frames: Sequence[Frame]) -> None:
            self.calls.extend(asyncio.ensure_future(on_frames([frame])) for frame in frames)

        await super().open(without_waiting, on_state)


@fails("a_slow_consumer_is_felt_by_the_ens", because="bytes were held in memory")
class TakesEverything(HubAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        pile: asyncio.Queue[list[Frame]] = asyncio.Queue()

        async def heap(frames: Sequence[Frame]) -> None:
            pile.put_nowait([*frames])

        async def give() -> None:
            while True:
                await on_frames(await pile.get())

        await super().open(heap, on_state)
        self._tasks.append(asyncio.create_task(give()))


class WaitsForTheReader(HubConnection):
    async def _ask(self, ask: Ask) -> None:
        await super()._ask(ask)
        assert isinstance(self.adapter, ReadsInOneTask)
        await self.adapter.reads_on.wait()


class ReadsInOneTask(FaultyHub):
    """Nothing is answered while the application takes nothing."""

    connection_class = WaitsForTheReader

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.reads_on = asyncio.Event()
        self.reads_on.set()

        async def blocking(frames: Sequence[Frame]) -> None:
            self.reads_on.clear()
            await on_frames(frames)
            self.reads_on.set()

        await super().open(blocking, on_state)


@fails("publishing_goes_on_while_frames_wait", because="publish() of 100 frames did not return")
class DoesNotHearOfPublishing(ReadsInOneTask):
    pass


@fails("subscribing_goes_on_while_frames_wait", because="subscribe() to 2 topics did not return")
class DoesNotHearOfSubscribing(ReadsInOneTask):
    pass


@fails("many_topics", because="did not come")
class HasSixtyFour(MemoryAdapter):
    async def subscribe(self, topics: Sequence[str]) -> None:
        await super().subscribe(topics[:64])


@fails("empty_calls_do_nothing", because="IndexError")
class LooksAtTheFirst(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        assert frames[0].topic
        await super().publish(frames)


@fails("a_topic_that_is_held_up_holds_up_no_other", because="did not return")
class OneQueue(MemoryAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.turn = asyncio.Lock()
        await super().open(on_frames, on_state)

    async def publish(self, frames: Sequence[Frame]) -> None:
        async with self.turn:
            await super().publish(frames)


@fails("capabilities_are_as_claimed", because="and the subject claims")
class Boasts(MemoryAdapter):
    @property
    def capabilities(self) -> Any:
        return attrs.evolve(super().capabilities, keeps_while_away=True)


@fails("what_is_not_open_refuses", because="raised nothing")
class NeedsNoOpening(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        if self._ens is not None:
            await super().publish(frames)


@fails("what_is_closed_refuses", because="RuntimeError")
class ClosesOnce(MemoryAdapter):
    is_closed = False

    async def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed")
        self.is_closed = self._ens is not None
        await super().close()


@fails("close_is_final", because="after close() had returned")
class LivesOn(MemoryAdapter):
    async def close(self) -> None:
        self.left, self._task = self._task, None


@fails("close_does_not_wait_for_a_slow_consumer", because="close() did not return")
class Finishes(MemoryAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.idle = asyncio.Event()
        self.idle.set()

        async def noted(frames: Sequence[Frame]) -> None:
            self.idle.clear()
            await on_frames(frames)
            self.idle.set()

        await super().open(noted, on_state)

    async def close(self) -> None:
        if self._ens is not None:
            await self.idle.wait()
        await super().close()


@fails("close_takes_nothing_back", because="did not come")
class SendsSoon(MemoryAdapter):
    async def publish(self, frames: Sequence[Frame]) -> None:
        self._opened()
        asyncio.get_running_loop().call_later(0.01, self.send, frames)

    def send(self, frames: Sequence[Frame]) -> None:
        if self._ens is not None:
            for frame in frames:
                self._ens.publish(frame, 0.0)


@fails("a_cancelled_open_leaves_nothing", because="it left the tasks")
class LeavesATask(MemoryAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.beat = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await super().open(on_frames, on_state)

    async def close(self) -> None:
        if self._ens is not None:
            self.beat.cancel()
        await super().close()


class Forgetful(MemoryAdapter):
    """Takes a lock, and keeps it if it is cancelled then."""

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.turn = asyncio.Lock()
        await super().open(on_frames, on_state)

    async def lock(self) -> None:
        await self.turn.acquire()
        await asyncio.sleep(0)
        self.turn.release()


@fails("a_cancelled_publish_harms_nothing", because="did not return")
class PublishesUnderLock(Forgetful):
    async def publish(self, frames: Sequence[Frame]) -> None:
        await self.lock()
        await super().publish(frames)


@fails("a_cancelled_subscribe_harms_nothing", because="did not return")
class SubscribesUnderLock(Forgetful):
    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.lock()
        await super().subscribe(topics)


@fails("a_cancelled_unsubscribe_harms_nothing", because="did not return")
class UnsubscribesUnderLock(Forgetful):
    async def unsubscribe(self, topics: Sequence[str]) -> None:
        await self.lock()
        await super().unsubscribe(topics)


# -- over a connection ----------------------------------------------------------------------------------------------------


class SubscribesLater(HubConnection):
    async def subscribe(self, names: Sequence[str]) -> None:
        is_new = self.adapter._connection is None
        await super().subscribe([] if is_new else names)


class ForgetsTopics(FaultyHub):
    connection_class = SubscribesLater


@fails("a_broken_connection_comes_back", because="did not come")
class ForgetsTopicsOnTheLine(ForgetsTopics):
    pass


@fails("subscriptions_come_back", because="did not come")
class ForgetsTopicsInACrash(ForgetsTopics):
    pass


@fails("a_broken_connection_comes_back", because="on_state was not told of the break")
class TellsNothing(HubAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        await super().open(on_frames, lambda is_connected, reason: None)


@fails("a_broken_connection_comes_back", because="no reason")
class TellsNoReason(HubAdapter):
    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        await super().open(on_frames, lambda is_connected, reason: on_state(is_connected, ""))


@fails("what_is_missed_is_kept", because="did not come")
class ClaimsToKeep(HubAdapter):
    pass


@fails("a_broken_line_takes_nothing_away", because="did not come")
class ClaimsToKeepEverything(HubAdapter):
    pass


@fails("a_crash_loses_nothing", because="did not come")
class ClaimsToHaveADisk(HubAdapter):
    pass


@fails("nothing_confirmed_is_lost_on_the_way", because="did not come")
class DoesNotWaitForTheAnswer(FaultyHub):
    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        async def _ask(self, ask: Ask) -> None:
            if isinstance(ask, Publish):
                assert self._writer is not None
                self._writer.write(encode(ask))
            else:
                await super()._ask(ask)


@fails("a_mute_ens_is_given_up", because="open() raised nothing")
class TakesSilenceForConsent(FaultyHub):
    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        async def subscribe(self, names: Sequence[str]) -> None:
            if names:
                await super().subscribe(names)


@fails("a_cancelled_open_leaves_no_connection", because="the connection was not closed")
class KeepsAConnection(FaultyHub):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: list[asyncio.StreamWriter] = []

    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        async def close(self, is_last: bool) -> None:
            assert isinstance(self.adapter, KeepsAConnection)
            if self._writer is not None:
                self.adapter.kept.append(self._writer)
                self._writer = None
            await super().close(is_last)

    async def close(self) -> None:
        await super().close()
        for writer in self.kept:
            writer.close()


@fails("an_absent_ens_is_named", because="ConnectionRefusedError")
class RaisesWhatItGot(FaultyHub):
    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        async def open(self, host: str, port: int) -> None:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await super().open(host, port)


@fails("an_absent_ens_is_named", because="does not name")
class SaysNothing(HubAdapter):
    async def _connect(self) -> Any:
        try:
            return await super()._connect()
        except AdapterError:
            raise AdapterError(
                "connection failed, as so often; try again at some other time, or ask somebody"
            ) from None


@fails("a_silent_line_is_left", because="publish() neither returned nor raised")
class NeverAsks(FaultyHub):
    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        async def _beat(self) -> None:
            pass


@fails("a_silent_line_is_left", because="on_state was not told of the break")
class GivesUpCallsOnly(FaultyHub):
    """publish() does not hang; but nothing else notices, and nothing comes any more."""

    class connection_class(NeverAsks.connection_class):  # noqa: N801  # it is an attribute
        async def _ask(self, ask: Ask) -> None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(super()._ask(ask), 0.1)


@fails("a_silent_line_is_left", because="on_state was not told of the break")
class NoticesWhenItPublishes(FaultyHub):
    class connection_class(NeverAsks.connection_class):  # noqa: N801  # it is an attribute
        async def _ask(self, ask: Ask) -> None:
            assert self._writer is not None
            timer = asyncio.get_running_loop().call_later(0.1, self._writer.transport.abort)
            try:
                await super()._ask(ask)
            finally:
                timer.cancel()


@fails("closing_while_subscribing_leaves_nothing", because="it left a connection open")
class ConnectsToSubscribe(HubAdapter):
    """Forgets a connection that is not there yet when it is closed."""

    second: asyncio.Task[None] | None = None

    async def subscribe(self, topics: Sequence[str]) -> None:
        if self.second is None:
            reader, writer = await asyncio.open_connection(*self.parsed.hosts[0])
            self.second = asyncio.create_task(self.listen(reader, writer))
        await super().subscribe(topics)

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    async def close(self) -> None:
        if self.second is not None:
            self.second.cancel()
        await super().close()


@fails("closing_while_subscribing_leaves_nothing", because="subscribe() neither returned nor raised")
class LetsThemWait(FaultyHub):
    class connection_class(HubConnection):  # noqa: N801  # it is an attribute
        def end(self, reason: str) -> None:
            self._asked.clear()
            super().end(reason)

    async def close(self) -> None:
        if self._tasks:
            self._changes.clear()
        await super().close()


@fails("publishing_survives_an_outage", because="RuntimeError")
class RaisesWhatItLikes(HubAdapter):
    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.ended.done():
            raise RuntimeError("not connected")
        return await super()._connected()


# -- over a broker that keeps ---------------------------------------------------------------------------------------------


@fails(
    "what_is_not_handled_comes_again",
    because="on_frames was not called again",
    patience_s=10.0,  # before that, thousands of frames come
)
class AcknowledgesOnArrival(MqttAdapter):
    """What arrives waits in memory, is acknowledged, and is thrown away with the connection."""

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        self.waiting: asyncio.Queue[Sequence[Frame]] = asyncio.Queue()

        def forgetting(is_connected: bool, reason: str) -> None:
            while not is_connected and not self.waiting.empty():
                self.waiting.get_nowait()
            on_state(is_connected, reason)

        async def give() -> None:
            while True:
                await on_frames(await self.waiting.get())

        await super().open(self.waiting.put, forgetting)
        self.giving = asyncio.create_task(give())

    async def close(self) -> None:
        self.giving.cancel()
        await super().close()
