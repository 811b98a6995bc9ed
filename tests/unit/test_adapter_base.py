"""What adapters to brokers have in common: the window of what is published, and a client that keeps itself connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_pubsub.adapter import Capabilities, Frame
from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters import base
from ordered_pubsub_adapters.base import BrokerAdapter, Connection, NamedFrames, Window, in_time
from ordered_pubsub_adapters.names import NameRules
from ordered_pubsub_adapters.urls import UrlRules

PATIENCE_S = 10.0


# -- the window ---------------------------------------------------------------------------------------------------------


class Sent:
    """The broker behind a window: numbers what it gets from 1 on."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def send(self, frames: NamedFrames) -> list[int]:
        for _, frame in frames:
            if frame.payload == b"unfit":
                raise AdapterError("it does not fit")
            self.payloads.append(frame.payload)
        return list(range(len(self.payloads) - len(frames) + 1, len(self.payloads) + 1))


def named(topic: str, number: int, size: int = 0) -> NamedFrames:
    """Frames that can be told apart."""
    return [(topic, Frame(topic, b"%b%d" % (topic.encode(), n) + bytes(size))) for n in range(number)]


def confirm(window: Window, *tags: int) -> None:
    """The broker has taken these."""
    for tag in tags:
        window.confirm(tag)
    window.fill()


async def begun(*work: Awaitable[None]) -> list[asyncio.Future[None]]:
    """Calls that were made and have not returned."""
    futures = [asyncio.ensure_future(one) for one in work]
    for _ in range(3):
        await asyncio.sleep(0)
    return futures


async def test_no_more_than_the_window_is_sent_unconfirmed() -> None:
    """Each confirmation makes room."""
    sent = Sent()
    window = Window(sent.send, frames_max=10)
    (done,) = await begun(window.publish(named("t", 13)))
    assert len(sent.payloads) == 10
    confirm(window, 1, 2)
    assert len(sent.payloads) == 12
    confirm(window, *range(3, 13))
    assert not done.done()
    confirm(window, 13)
    await done
    assert sent.payloads == [frame.payload for _, frame in named("t", 13)]


async def test_what_many_confirmations_make_room_for_is_sent_at_once() -> None:
    """At the end of the turn of the loop in which they came."""
    sent, sizes = Sent(), list[int]()
    window = Window(lambda frames: (sizes.append(len(frames)), sent.send(frames))[1], frames_max=10)
    (done,) = await begun(window.publish(named("t", 15)))
    for tag in range(1, 6):
        window.confirm(tag)
        window.fill_soon()
    assert sizes == [10]
    await begun()
    assert sizes == [10, 5]
    confirm(window, *range(6, 16))
    await done


async def test_the_window_is_bounded_in_bytes_too_and_lets_one_large_frame_through() -> None:
    """A frame beyond the bound waits until there is room again."""
    sent = Sent()
    window = Window(sent.send, bytes_max=1_000)
    frames = [("t", Frame("t", b"small")), ("t", Frame("t", bytes(1_000))), ("t", Frame("t", b"next"))]
    (done,) = await begun(window.publish(frames))
    assert sum(map(len, sent.payloads)) == 1_005
    confirm(window, 1)
    assert sent.payloads[-1] != b"next"
    confirm(window, 2)
    assert sent.payloads[-1] == b"next"
    confirm(window, 3)
    await done


async def test_calls_take_turns() -> None:
    """A short one does not wait until a long one is through."""
    sent = Sent()
    window = Window(sent.send, frames_max=20, turn_frames=5)
    long, short = await begun(window.publish(named("long", 100)), window.publish(named("short", 3)))
    confirm(window, *range(1, 21))
    assert {b"short0", b"short1", b"short2"} <= set(sent.payloads)
    confirm(window, *range(21, 41))
    await short
    assert not long.done()
    long.cancel()


async def test_what_the_broker_refuses_fails_its_call_only() -> None:
    window = Window(Sent().send)
    first, second = await begun(window.publish(named("a", 2)), window.publish(named("b", 2)))
    window.refuse(2, lambda topic: AdapterError(f"no {topic}"))
    confirm(window, 1, 3, 4)
    with pytest.raises(AdapterError, match="no a"):
        await first
    await second


async def test_what_cannot_be_sent_fails_its_call_only() -> None:
    sent = Sent()
    window = Window(sent.send)
    bad, good = await begun(window.publish([("t", Frame("t", b"unfit"))]), window.publish(named("a", 1)))
    confirm(window, 1)
    with pytest.raises(AdapterError, match="it does not fit"):
        await bad
    await good


async def test_a_connection_that_is_gone_fails_what_was_not_confirmed() -> None:
    """What waited for room as well."""
    window = Window(Sent().send, frames_max=10)
    confirmed, half, waiting = await begun(
        window.publish(named("a", 1)), window.publish(named("b", 40)), window.publish(named("c", 1))
    )
    confirm(window, 1)
    window.fail("somebody pulled the plug")
    await confirmed
    with pytest.raises(AdapterError, match="40 events on 'b' were not confirmed: somebody pulled the plug"):
        await half
    with pytest.raises(AdapterError, match="1 events on 'c' were not confirmed"):
        await waiting


async def test_a_call_that_was_cancelled_gives_its_place_to_others() -> None:
    """What it has sent is still counted until it is confirmed."""
    sent = Sent()
    window = Window(sent.send, frames_max=10)
    given_up, other = await begun(window.publish(named("a", 100)), window.publish(named("b", 1)))
    given_up.cancel()
    await begun()
    confirm(window, *range(1, 11))
    assert sent.payloads[10:] == [b"b0"]
    confirm(window, 11)
    await other
    assert len(window) == 0


@pytest.mark.heavy
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_call_is_done_exactly_when_all_its_frames_are_confirmed(counts: list[int], random: Any) -> None:
    """In whatever order the confirmations come."""

    async def run() -> None:
        sent = Sent()
        window = Window(sent.send, frames_max=20, turn_frames=4)
        calls = await begun(*(window.publish(named(f"t{at}/", count)) for at, count in enumerate(counts)))
        confirmed: set[int] = set()
        while len(confirmed) < sum(counts):
            tag = random.choice([tag for tag in range(1, len(sent.payloads) + 1) if tag not in confirmed])
            confirmed.add(tag)
            confirm(window, tag)
            await asyncio.sleep(0)
            for at, (call, size) in enumerate(zip(calls, counts, strict=True)):
                own = [n for n, payload in enumerate(sent.payloads, 1) if payload.startswith(b"t%d/" % at)]
                assert call.done() == (len(own) == size and confirmed.issuperset(own))

    asyncio.run(run())


# -- a client that keeps itself connected -------------------------------------------------------------------------------


class FakeConnection(Connection):
    """One that does as a test says."""

    adapter: FakeAdapter

    def __init__(self, adapter: FakeAdapter) -> None:
        super().__init__(adapter)
        self.number = next(adapter.numbers)
        self.acts: list[tuple[Any, ...]] = []
        self.may_subscribe = asyncio.Event()
        self.may_subscribe.set()
        adapter.connections.append(self)

    async def open(self, host: str, port: int) -> None:
        self.acts.append(("open", host))
        if host.startswith("away"):
            raise AdapterError(f"{host}:{port} is away")
        if host.startswith("mute"):
            await asyncio.Event().wait()

    async def publish(self, frames: NamedFrames) -> None:
        with self.expecting("published") as done:
            self.acts.append(("publish", [frame.payload for _, frame in frames]))
            await done

    async def subscribe(self, names: Sequence[str]) -> None:
        await self.may_subscribe.wait()
        if self.ended.done():
            raise AdapterError("the connection is over")
        if "forbidden" in names:
            raise AdapterError("you may not")
        self.acts.append(("subscribe", *names))

    async def unsubscribe(self, names: Sequence[str]) -> None:
        self.acts.append(("unsubscribe", *names))

    def taken(self, tokens: Sequence[Any]) -> None:
        if tokens:
            self.acts.append(("taken", *tokens))

    async def close(self, is_last: bool) -> None:
        self.acts.append(("close", is_last))


class FakeAdapter(BrokerAdapter):
    """An adapter over such connections."""

    url_rules = UrlRules(ports={"fake": 1})
    name_rules = NameRules(separator="/", special="", bytes_max=100)
    capabilities = Capabilities(
        loses=False, reorders=False, duplicates=True, keeps_while_away=False, carries_headers=True, confirms=True
    )
    connection_class = FakeConnection

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connections: list[FakeConnection] = []
        self.numbers = count()
        self.given: list[bytes] = []
        self.states: list[tuple[bool, str]] = []
        self.may_return = asyncio.Event()
        self.may_return.set()

    def make_connection(self) -> FakeConnection:
        return self.connection_class(self)

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        self.given += [frame.payload for frame in frames]
        await self.may_return.wait()

    def on_state(self, is_connected: bool, reason: str) -> None:
        self.states.append((is_connected, reason))

    async def told(self, *states: bool) -> None:
        """Wait until it has said this."""
        await until(lambda: [one for one, _ in self.states] == list(states))


async def until(is_so: Any) -> None:
    """Wait for a condition, with a deadline."""

    async def wait() -> None:
        while not is_so():  # noqa: ASYNC110  # there is nothing to wait for but turns of the loop, and short pauses
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE_S)


@asynccontextmanager
async def using(url: str = "fake://one", adapter_class: type[FakeAdapter] = FakeAdapter) -> AsyncIterator[FakeAdapter]:
    adapter = adapter_class(url)
    await adapter.open(adapter.on_frames, adapter.on_state)
    try:
        yield adapter
    finally:
        adapter.may_return.set()
        await adapter.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts are short."""
    monkeypatch.setattr(base, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(base, "RETRY_MOST_S", 0.002)


async def test_all_hosts_are_tried_in_turn_and_named() -> None:
    """A cluster is reached by any of its nodes."""
    adapter = FakeAdapter("fake://away1,away2:5")
    with pytest.raises(AdapterError, match="away1:1 is away; away2:5 is away"):
        await adapter.open(adapter.on_frames, adapter.on_state)
    assert [one.acts[-1] for one in adapter.connections] == [("close", False)] * 2
    async with using("fake://away1,one") as other:
        assert [one.acts[0] for one in other.connections] == [("open", "away1"), ("open", "one")]


async def test_a_host_that_says_nothing_is_given_up() -> None:
    adapter = FakeAdapter("fake://mute?connect_timeout_s=0.1")
    with pytest.raises(AdapterError, match=r"mute:1 did not answer within 0.1 s \(connect_timeout_s\)"):
        await adapter.open(adapter.on_frames, adapter.on_state)
    assert adapter.connections[0].acts[-1] == ("close", False)


async def test_a_connection_that_ends_is_followed_by_another_with_all_subscriptions() -> None:
    async with using() as adapter:
        await adapter.subscribe(["a", "b"])
        await adapter.unsubscribe(["a"])
        adapter.connections[0].end("cut")
        await adapter.told(False, True)
        assert adapter.connections[0].acts[-1] == ("close", False)
        assert ("subscribe", "b") in adapter.connections[1].acts
        assert adapter.states == [
            (False, "fake://one: the connection broke: cut"),
            (True, "fake://one: connected again"),
        ]


async def test_what_was_left_without_a_connection_is_told_to_the_next_one() -> None:
    async with using() as adapter:
        await adapter.subscribe(["a", "b"])
        adapter.connections[0].end("cut")
        await adapter.unsubscribe(["a"])
        await adapter.told(False, True)
        assert adapter.connections[1].acts[1:3] == [("subscribe", "b"), ("unsubscribe", "a")]


async def test_whoever_waits_for_an_answer_gets_an_error_when_the_connection_ends() -> None:
    async with using() as adapter:
        (work,) = await begun(adapter.publish([Frame("a", b"1")]))
        adapter.connections[0].end("cut")
        with pytest.raises(AdapterError, match="fake://one: no answer: cut"):
            await work
        (later,) = await begun(adapter.publish([Frame("a", b"2")]))
        await until(lambda: len(adapter.connections) == 2 and ("publish", [b"2"]) in adapter.connections[1].acts)
        adapter.connections[1].answer("published")
        await later


async def test_a_subscription_whose_connection_breaks_is_made_over_the_next_one() -> None:
    async with using() as adapter:
        adapter.connections[0].may_subscribe.clear()
        (work,) = await begun(adapter.subscribe(["a"]))
        adapter.connections[0].end("cut")
        adapter.connections[0].may_subscribe.set()
        await work
        assert ("subscribe", "a") in adapter.connections[1].acts


class Refusal(AdapterError):
    """An adapter's own kind of error: the broker will say the same again."""


async def test_a_subscription_whose_refusal_ends_the_connection_is_not_tried_again() -> None:
    async with using() as adapter:

        async def refuse(names: Sequence[str]) -> None:
            adapter.connections[0].end("the broker hung up on it")
            raise Refusal("not so many")

        adapter.connections[0].subscribe = refuse  # type: ignore[method-assign]  # of this one connection
        with pytest.raises(Refusal, match="not so many"):
            await adapter.subscribe(["a"])
        await adapter.told(False, True)
        assert ("subscribe",) in adapter.connections[1].acts


async def test_a_subscription_that_is_refused_is_an_error_and_is_not_made_later() -> None:
    async with using() as adapter:
        with pytest.raises(AdapterError, match="you may not"):
            await adapter.subscribe(["forbidden"])
        adapter.connections[0].end("cut")
        await adapter.told(False, True)
        assert ("subscribe",) in adapter.connections[1].acts


async def test_a_change_whose_caller_is_cancelled_goes_on_and_closing_ends_it() -> None:
    async with using() as adapter:
        connection = adapter.connections[0]
        connection.may_subscribe.clear()
        (given_up,) = await begun(adapter.subscribe(["a"]))
        given_up.cancel()
        (other,) = await begun(adapter.subscribe(["b"]))
        connection.may_subscribe.set()
        await other
        assert connection.acts[-2:] == [("subscribe", "a"), ("subscribe", "b")]
        connection.may_subscribe.clear()
        (work,) = await begun(adapter.subscribe(["c"]))
        await adapter.close()
        with pytest.raises(AdapterError, match="fake://one was closed meanwhile"):
            await work


async def test_what_came_is_given_on_at_once_and_its_tokens_when_it_was_taken() -> None:
    async with using() as adapter:
        connection = adapter.connections[0]
        adapter.may_return.clear()
        adapter.received(connection, Frame("a", b"1"), 1)
        await until(lambda: adapter.given == [b"1"])
        adapter.received(connection, Frame("a", b"2"), 2)
        adapter.received(connection, None, 3)
        adapter.received(connection, Frame("a", b"4"), 4)
        assert (adapter.held_frames, adapter.held_bytes) == (3, 3 * (base.FRAME_BYTES + 1))
        assert connection.acts[-1] == ("subscribe",)
        adapter.may_return.set()
        await until(lambda: connection.acts[-1] == ("taken", 2, 3, 4))
        assert adapter.given == [b"1", b"2", b"4"]
        assert (adapter.held_frames, adapter.held_bytes) == (0, 0)


@pytest.mark.parametrize("brings_again", [False, True])
async def test_what_an_earlier_connection_brought_is_not_acknowledged_and_dropped_if_it_comes_again(
    brings_again: bool,
) -> None:
    async with using() as adapter:
        adapter.may_return.clear()
        for payload in (b"1", b"2"):
            adapter.received(adapter.connections[0], Frame("a", payload), payload)
            await until(lambda: adapter.given == [b"1"])
        adapter.connections[0].end("cut")
        await adapter.told(False, True)
        adapter.connections[1].brings_again = brings_again
        adapter.received(adapter.connections[1], Frame("a", b"2"), "again")
        adapter.may_return.set()
        await until(lambda: adapter.connections[1].acts[-1] == ("taken", "again"))
        assert adapter.given == ([b"1", b"2"] if brings_again else [b"1", b"2", b"2"])
        assert (adapter.held_frames, adapter.held_bytes) == (0, 0)


class Hopeless(FakeConnection):
    """The second one meets an error that nobody has thought of."""

    async def open(self, host: str, port: int) -> None:
        if self.number == 1:
            raise ZeroDivisionError("a bug")
        await super().open(host, port)


async def test_whatever_goes_wrong_the_next_attempt_may_succeed(caplog: pytest.LogCaptureFixture) -> None:
    class Adapter(FakeAdapter):
        connection_class = Hopeless

    async with using(adapter_class=Adapter) as adapter:
        adapter.connections[0].end("cut")
        await adapter.told(False, True)
    assert "a bug; trying again, for as long as it takes" in caplog.text


async def test_a_connection_that_breaks_while_it_is_made_was_never_there() -> None:
    class Broken(FakeConnection):
        async def open(self, host: str, port: int) -> None:
            self.end("hung up")

    class Adapter(FakeAdapter):
        connection_class = Broken

    adapter = Adapter("fake://one")
    with pytest.raises(AdapterError, match="the connection broke at once: hung up"):
        await adapter.open(adapter.on_frames, adapter.on_state)
    with pytest.raises(AdapterError, match="is not open"):
        await adapter.publish([])


# -- waiting ------------------------------------------------------------------------------------------------------------


async def test_work_that_is_not_done_in_time_is_ended() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(AdapterError, match="too long"):
        await in_time(task, 0.01, "too long")
    assert task.cancelled()
