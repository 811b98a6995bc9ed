"""The ENS in the process: reliable and in order, unless it is asked not to be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import uuid4

import pytest

from ordered_pubsub.adapter import Adapter, Frame, load_adapter, redacted
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub_adapters import memory
from ordered_pubsub_adapters.memory import Faults, MemoryAdapter, parse_url

PATIENCE_S = 30.0
"""A test that waits longer than this hangs."""


class Peer:
    """A user of an adapter, who remembers what came."""

    def __init__(self, url: str) -> None:
        self.adapter = load_adapter(url)
        self.received: list[bytes] = []
        self.batches: list[int] = []
        self.may_receive = asyncio.Event()
        self.may_receive.set()

    async def open(self) -> Peer:
        await self.adapter.open(self.on_frames, lambda is_connected, reason: None)
        return self

    async def on_frames(self, frames: Sequence[Frame]) -> None:
        self.received.extend(frame.payload for frame in frames)
        self.batches.append(len(frames))
        await self.may_receive.wait()

    async def publish(self, topic: str, *payloads: bytes) -> None:
        await self.adapter.publish([Frame(topic, payload) for payload in payloads])

    async def receives(self, count: int) -> list[bytes]:
        """What came, as soon as it is so many."""
        give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
        while len(self.received) < count:
            assert asyncio.get_running_loop().time() < give_up_at, f"only {len(self.received)} of {count} came"
            await asyncio.sleep(0)
        return self.received


@pytest.fixture
def url() -> str:
    """A system of its own."""
    return f"memory://test-{uuid4().hex}"


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Awaitable[Peer]]]:
    """Connect, and disconnect in the end."""
    peers: list[Peer] = []

    async def connect(url: str) -> Peer:
        peers.append(await Peer(url).open())
        return peers[-1]

    yield connect
    for peer in peers:
        await peer.adapter.close()


Connect = Callable[[str], Awaitable[Peer]]

MANY = [b"%d" % number for number in range(500)]


async def test_what_is_published_comes_to_its_subscribers_in_order(url: str, connect: Connect) -> None:
    """To all of them, and to nobody else."""
    one, two, three = [await connect(url) for _ in range(3)]
    await one.adapter.subscribe(["a", "b"])
    await two.adapter.subscribe(["a"])
    await three.adapter.subscribe(["c"])
    await two.publish("a", *MANY)
    await two.publish("b", b"last")

    assert await one.receives(501) == [*MANY, b"last"]
    assert await two.receives(500) == MANY
    assert three.received == []


async def test_what_comes_at_once_is_given_at_once(url: str, connect: Connect) -> None:
    """One call for many frames."""
    one = await connect(url)
    await one.adapter.subscribe(["a"])
    await one.publish("a", *MANY)
    await one.receives(500)

    assert one.batches == [500]


async def test_after_unsubscribing_nothing_more_is_put_on_the_way(url: str, connect: Connect) -> None:
    """And subscribing again goes on with what is published then."""
    one = await connect(url)
    await one.adapter.subscribe(["a"])
    await one.publish("a", b"1")
    await one.adapter.unsubscribe(["a", "never held"])
    await one.publish("a", b"2")
    await one.adapter.subscribe(["a"])
    await one.publish("a", b"3")

    assert await one.receives(2) == [b"1", b"3"]


async def test_other_names_are_other_systems(url: str, connect: Connect) -> None:
    """Nothing passes between them."""
    one, other = await connect(url), await connect(f"{url}-other")
    for peer in (one, other):
        await peer.adapter.subscribe(["a"])
    await other.publish("a", b"other")
    await one.publish("a", b"one")

    assert (await one.receives(1), await other.receives(1)) == ([b"one"], [b"other"])


async def order_of(url: str, connect: Connect, subscribers: int = 1) -> list[list[bytes]]:
    """What subscribers are given if `MANY` is published at once."""
    peers = [await connect(url) for _ in range(subscribers)]
    for peer in peers:
        await peer.adapter.subscribe(["a"])
    await peers[0].publish("a", *MANY)
    given = [list(await peer.receives(500)) for peer in peers]
    for peer in peers:
        await peer.adapter.close()
    return given


async def test_reordering_gives_each_subscriber_an_order_of_its_own(url: str, connect: Connect) -> None:
    """Nothing is lost or repeated."""
    one, two = await order_of(f"{url}?reorder=0.3", connect, 2)

    assert MANY not in (one, two)
    assert one != two
    assert sorted(one) == sorted(two) == sorted(MANY)


async def test_the_same_seed_gives_the_same_order(url: str, connect: Connect) -> None:
    """And another seed another one."""
    first, again, other = [
        await order_of(f"{url}?reorder=0.3&delay_s=0.001&seed={seed}", connect) for seed in (7, 7, 8)
    ]

    assert first == again != other


async def test_a_frame_that_nothing_overtakes_comes_all_the_same(url: str, connect: Connect) -> None:
    """It waits for a moment only."""
    one = await connect(f"{url}?reorder=1")
    await one.adapter.subscribe(["a"])
    await one.publish("a", b"alone")

    assert await one.receives(1) == [b"alone"]


async def test_duplicates_come_more_than_once(url: str, connect: Connect) -> None:
    """With the chance that was asked for."""
    one = await connect(f"{url}?duplicate=0.5")
    await one.adapter.subscribe(["a", "end"])
    await one.publish("a", *MANY)
    await one.publish("end", b"end")
    await one.receives(600)

    assert set(MANY) <= set(one.received)
    assert 650 < len(one.received) < 850


async def test_lost_frames_do_not_come(url: str, connect: Connect) -> None:
    """Each subscriber loses others."""
    one, two = await connect(f"{url}?lose=0.5&seed=1"), await connect(url)
    for peer in (one, two):
        await peer.adapter.subscribe(["a"])
    await one.publish("a", *MANY)
    await one.receives(200)
    await two.receives(200)

    assert len(one.received) < 300
    assert len(two.received) < 300
    assert one.received != two.received


async def test_a_delay_keeps_the_order(url: str, connect: Connect) -> None:
    """Everything comes later, and nothing is lost."""
    one = await connect(f"{url}?delay_s=0.001")
    await one.adapter.subscribe(["a"])
    await one.publish("a", *MANY)

    assert await one.receives(500) == MANY


async def test_nothing_comes_before_its_delay_has_passed(url: str, connect: Connect) -> None:
    """However many turns the event loop takes."""
    one = await connect(f"{url}?delay_s=60")
    await one.adapter.subscribe(["a"])
    await one.publish("a", *MANY)
    for _ in range(200):
        await asyncio.sleep(0)

    assert one.received == []


async def test_publishing_waits_for_a_subscriber_that_is_full(
    url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other topics go on, and nothing is lost."""
    monkeypatch.setattr(memory, "LANE_FRAMES_MAX", 10)
    monkeypatch.setattr(memory, "BATCH_FRAMES_MAX", 5)
    slow, fast = await connect(url), await connect(url)
    await slow.adapter.subscribe(["a"])
    await fast.adapter.subscribe(["b"])
    slow.may_receive.clear()
    await slow.publish("a", *MANY[:5])
    await slow.receives(5)
    publishing = asyncio.create_task(slow.publish("a", *MANY[5:20]))
    await fast.publish("b", b"not held up")
    await fast.receives(1)
    assert not publishing.done()
    slow.may_receive.set()
    await publishing

    assert await slow.receives(20) == MANY[:20]


async def test_a_full_subscriber_that_leaves_holds_nobody_up(
    url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing goes on."""
    monkeypatch.setattr(memory, "LANE_FRAMES_MAX", 2)
    slow, publisher = await connect(url), await connect(url)
    await slow.adapter.subscribe(["a"])
    slow.may_receive.clear()
    await publisher.publish("a", b"1")
    await slow.receives(1)
    publishing = asyncio.create_task(publisher.publish("a", b"2", b"3", b"4"))
    await asyncio.sleep(0)
    assert not publishing.done()
    await slow.adapter.close()

    await publishing


async def test_the_first_to_open_fixes_the_faults(url: str, connect: Connect) -> None:
    """Others name the same, or none; the error shows both."""
    faulty = f"{url}?reorder=0.3&seed=7"
    await connect(faulty)
    assert (await connect(url)).adapter.capabilities.reorders
    await connect(faulty)
    for other in (f"{url}?reorder=0.4&seed=7", f"{url}?lose=0.1"):
        with pytest.raises(ConfigurationError, match=r"reorder=0\.3.*first to open"):
            await connect(other)


async def test_faults_cannot_be_added_to_a_system_that_has_none(url: str, connect: Connect) -> None:
    """Whoever opened it relies on that."""
    await connect(url)

    with pytest.raises(ConfigurationError, match="first to open"):
        await connect(f"{url}?lose=0.1")


async def test_the_last_to_close_takes_the_system_down(url: str, connect: Connect) -> None:
    """Then its name is free for other faults; closing twice counts once."""
    one, two = await connect(f"{url}?lose=0.1"), await connect(url)
    await one.adapter.close()
    await one.adapter.close()
    assert (await connect(url)).adapter.capabilities.loses
    await two.adapter.close()
    with pytest.raises(ConfigurationError):
        await connect(f"{url}?lose=0.2")


async def test_capabilities_say_what_the_faults_do(url: str, connect: Connect) -> None:
    """From the moment on at which it is open, for the system as it is."""
    assert load_adapter(f"{url}?lose=0.1").capabilities.loses
    one = await connect(f"{url}?reorder=0.1&duplicate=0.1")
    two = await connect(url)

    assert one.adapter.capabilities == two.adapter.capabilities
    assert (two.adapter.capabilities.reorders, two.adapter.capabilities.duplicates) == (True, True)
    assert (two.adapter.capabilities.loses, two.adapter.capabilities.carries_headers) == (False, True)


async def test_what_is_not_open_cannot_be_used(url: str) -> None:
    """Nor opened twice."""
    adapter = load_adapter(url)
    peer = Peer(url)
    with pytest.raises(AdapterError, match="not open"):
        await adapter.publish([Frame("a", b"")])
    await adapter.open(peer.on_frames, lambda is_connected, reason: None)
    with pytest.raises(AdapterError, match="open already"):
        await adapter.open(peer.on_frames, lambda is_connected, reason: None)
    await adapter.close()
    with pytest.raises(AdapterError, match="not open"):
        await adapter.subscribe(["a"])


def test_a_system_belongs_to_one_event_loop(url: str) -> None:
    """Another loop is refused; a loop that was closed without goodbye does not count."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    peer = Peer(url)
    first.run_until_complete(peer.open())
    with pytest.raises(ConfigurationError, match="another event loop"):
        second.run_until_complete(Peer(url).open())
    for task in asyncio.all_tasks(first):
        task.cancel()
        first.run_until_complete(asyncio.wait((task,)))
    first.close()
    later = Peer(url)
    second.run_until_complete(later.open())
    second.run_until_complete(later.adapter.close())
    second.close()


# -- the URL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "system"),
    [
        ("memory://", ("", None)),
        ("memory://name", ("name", None)),
        ("memory://name/", ("name", None)),
        ("memory://Name?", ("Name", None)),
        ("memory://n?reorder=0.3&duplicate=0.1&lose=1&delay_s=0.02&seed=-7", ("n", Faults(0.3, 0.1, 1.0, 0.02, -7))),
        ("memory://n?seed=7", ("n", Faults(seed=7))),
    ],
)
def test_a_url_names_a_system_and_its_faults(url: str, system: tuple[str, Faults | None]) -> None:
    """All of them may be left out."""
    assert parse_url(url) == system


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("reodrer=0.3", "no parameter 'reodrer'; there are reorder, duplicate, lose, delay_s, seed"),
        ("reorder=1.5", "reorder='1.5' does not fit; reorder is a probability from 0 to 1"),
        ("duplicate=-0.1", "duplicate='-0.1' does not fit"),
        ("lose=nan", "lose='nan' does not fit"),
        ("lose", "lose='' does not fit"),
        ("delay_s=fast", "delay_s='fast' does not fit; delay_s is seconds from 0 to 60"),
        ("delay_s=inf", "delay_s='inf' does not fit"),
        ("seed=1.5", "seed='1.5' does not fit; seed is a whole number"),
        ("seed=1&seed=2", "seed is given twice"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(query: str, complaint: str) -> None:
    """With what would fit."""
    with pytest.raises(ConfigurationError, match=complaint):
        load_adapter(f"memory://name?{query}")


@pytest.mark.parametrize("url", ["memory://name/path", "memory://name#x", "memory://user@name", "memory://[name"])
def test_a_url_with_more_than_a_name_is_refused(url: str) -> None:
    """It would mean nothing."""
    with pytest.raises(ConfigurationError):
        load_adapter(url)


# -- finding an adapter -----------------------------------------------------------------------------------------------


class Entry:
    """An entry point of somebody's package."""

    def __init__(self, name: str, found: object) -> None:
        self.name = name
        self.value = "package.module:Thing"
        self.found = found

    def load(self) -> object:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def register(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    monkeypatch.setattr("ordered_pubsub.adapter.entry_points", lambda group: list(entries))


def test_the_scheme_chooses_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever package; upper and lower case are the same."""

    class Theirs(MemoryAdapter):
        pass

    register(monkeypatch, Entry("memory", MemoryAdapter), Entry("theirs", Theirs))

    assert type(load_adapter("Theirs://host")) is Theirs


def test_what_is_installed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whoever asked for something else."""
    register(monkeypatch, Entry("memory", MemoryAdapter), Entry("theirs", MemoryAdapter))
    with pytest.raises(ConfigurationError, match=r"no adapter for x:// is installed\. Installed: memory://, theirs://"):
        load_adapter("x://host")
    register(monkeypatch)
    with pytest.raises(ConfigurationError, match="Installed: none"):
        load_adapter("x://host")


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (ImportError("no module named theirs"), "no module named theirs"),
        (dict, "not a subclass"),
        (7, "not a subclass"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_said_to(
    found: object, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With where it is registered."""
    register(monkeypatch, Entry("theirs", found))

    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load_adapter("theirs://host")
    assert "package.module:Thing" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://user:secret@host:4222/x?y=1", "nats://user:***@host:4222/x?y=1"),
        ("nats://user@host", "nats://***@host"),
        ("memory://", "memory://"),
        ("nats://user:secret@[host", "nats://user:***@[host"),
        ("amqp:?//user:secret@1://2@host/x", "***@host/x"),
        ("my-broker://user:secret@host", "my-broker://user:***@host"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """And else as it is."""
    assert redacted(url) == shown


def test_the_interface_has_five_methods_to_write() -> None:
    """And says of itself what it can do."""
    assert Adapter.__abstractmethods__ == {"open", "publish", "subscribe", "unsubscribe", "close", "capabilities"}
