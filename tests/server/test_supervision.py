"""An error that nobody has thought of, planted into each task and timer: it is healed, or the owner fails and says so.

docs/operations.md lists them; `tests/unit/test_supervision.py` finds those that are on no list.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pytest

import ordered_pubsub
from helpers.clients import PATIENCE_S, until
from ordered_pubsub import embedded
from ordered_pubsub.cli import serve as serve_module
from ordered_pubsub.client import engine
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.engine import Engine
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.client.incoming.reception import Reception
from ordered_pubsub.config.reading import Loaded
from ordered_pubsub.core.client.session import Session
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.lease import Lease
from ordered_pubsub.core.liveness.lifeline import Lifeline
from ordered_pubsub.core.log.questions import Find
from ordered_pubsub.core.messages import ChangeAsk, Progress
from ordered_pubsub.core.recovery.hosting import Hosting
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.core.stage.gatekeeper import Gatekeeper
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.subscriber.best_effort import BestEffort
from ordered_pubsub.core.subscriber.subscriber_log import SubscriberLog
from ordered_pubsub.embedded import EmbeddedHome
from ordered_pubsub.errors import JournalError, OrderedPubSubError
from ordered_pubsub.server import server as server_module
from ordered_pubsub.server import serving as serving_module
from ordered_pubsub.server.doors.claims import Claims
from ordered_pubsub.server.doors.clients import ClientConnection
from ordered_pubsub.server.links.peers import PeerLink
from ordered_pubsub.server.monitoring import metrics
from ordered_pubsub.server.server import Server
from ordered_pubsub.server.serving import Serving
from ordered_pubsub.server.stage import node as node_module
from ordered_pubsub.server.stage._bulk import Bulk
from ordered_pubsub.supervision import Supervisor, Unexpected
from ordered_pubsub.wire.protocol import Ask
from ordered_pubsub.wire.sessions import make_session
from ordered_pubsub_adapters import memory
from server.messages import greeting, request
from server.systems import System, connect, one_stage, raw, serving

SHORT_S = 0.01


@attrs.define
class Plant:
    """An error that is raised once."""

    error: Exception = attrs.field(factory=lambda: KeyError("planted"))
    was_raised: bool = False

    def into(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Plant:
        """Let a method raise it the next time."""
        good = getattr(owner, name)

        def planted(*arguments: Any, **named: Any) -> Any:
            if not self.was_raised:
                self.was_raised = True
                raise self.error
            return good(*arguments, **named)

        monkeypatch.setattr(owner, name, planted)
        return self


@pytest.fixture
def url() -> str:
    return f"memory://test-{uuid4().hex}"


@pytest.fixture
def ordered_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded stage keeps no events."""
    monkeypatch.setattr(EmbeddedHome, "levels", Levels((("**", "ordered"),)))


@pytest.fixture
def plant() -> Plant:
    return Plant()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers come soon."""
    for module, name in (
        (engine, "TICK_S"),
        (embedded, "TICK_S"),
        (node_module, "TICK_S"),
        (server_module, "SWEEP_S"),
        (serving_module, "WATCH_S"),
    ):
        monkeypatch.setattr(module, name, SHORT_S)


async def works(client: Client) -> None:
    """Events get through."""
    subscription = await client.subscribe("works")
    await client.publish("works", "well")
    event = await asyncio.wait_for(subscription.__anext__(), PATIENCE_S)
    assert event.data == "well"
    await subscription.close()


# -- a client ---------------------------------------------------------------------------------------------------------


async def has_failed(client: Client, subscription: ordered_pubsub.Subscription) -> None:
    """It says so wherever it is asked."""
    await until(lambda: client.status()["error"])
    status = client.status()
    assert "planted" in status["error"]
    assert status["connected"] is False
    with pytest.raises(Unexpected, match="planted"):
        await asyncio.wait_for(subscription.__anext__(), PATIENCE_S)
    with pytest.raises(Unexpected, match="planted"):
        await client.publish("a", 1)
    with pytest.raises(Unexpected, match="planted"):
        await client.subscribe("b")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Session, "tick"),
        (Engine, "_say_what_starves"),
        (Session, "handle_answer"),
        (Engine, "_take_told"),
        (Reception, "take_frames"),
        (Session, "publish_runs"),
        (Driver, "tick"),
        (Driver, "flush"),
        (memory._Lane, "take"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_client_fails_by_what_it_cannot_go_on_after(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant, owner: Any, name: str
) -> None:
    async with ordered_pubsub.connect(url, name="desk") as client:
        subscription = await client.subscribe("a", name="book", ack="manual")
        plant.into(monkeypatch, owner, name)
        outcome = client.publish_nowait("a", 1)
        outcome.add_done_callback(lambda done: done.exception())
        acking = asyncio.ensure_future(_acknowledge(subscription))

        await has_failed(client, subscription)
        await asyncio.wait((acking,), timeout=PATIENCE_S)
        assert acking.done()


async def _acknowledge(subscription: ordered_pubsub.Subscription) -> None:
    """Have the stage tell something."""
    try:
        await (await subscription.__anext__()).ack()
    except (OrderedPubSubError, StopAsyncIteration, asyncio.CancelledError):
        return


async def test_a_client_fails_that_cannot_see_whether_it_is_cut_off(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    async with ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        plant.into(monkeypatch, Lifeline, "find_cut")

        await has_failed(client, subscription)


async def test_a_client_fails_whose_lease_cannot_be_renewed(
    url: str, ordered_topics: None, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    async with ordered_pubsub.connect(url, delivery="ordered") as client:
        subscription = await client.subscribe("a")
        await client.publish("a", 1)
        await asyncio.wait_for(subscription.__anext__(), PATIENCE_S)
        plant.into(monkeypatch, Lease, "take_due")

        await has_failed(client, subscription)


async def test_a_client_fails_though_what_has_failed_goes_on_failing(
    url: str, ordered_topics: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that ends it asks again what it could not do without."""

    def broken(*_: object) -> None:
        raise KeyError("planted")

    async with ordered_pubsub.connect(url, delivery="ordered") as client:
        subscription = await client.subscribe("a")
        monkeypatch.setattr(Lease, "take_due", broken)

        await has_failed(client, subscription)
        monkeypatch.undo()


async def test_who_waits_for_a_receipt_or_for_room_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    async with ordered_pubsub.connect(url, pipeline_events_max=1) as client:
        plant.into(monkeypatch, Session, "publish_runs")
        outcomes = await asyncio.wait_for(
            asyncio.gather(*(client.publish("a", n) for n in range(3)), return_exceptions=True), PATIENCE_S
        )

        assert [type(outcome) for outcome in outcomes] == [Unexpected] * 3


@pytest.mark.parametrize(("owner", "name"), [(SubscriberLog, "take_due"), (SubscriberLog, "take_ready")])
async def test_a_subscription_ends_by_an_error_of_its_own_and_its_client_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant, owner: Any, name: str
) -> None:
    async with ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        with monkeypatch.context() as patch:
            plant.into(patch, owner, name)
            await client.publish("a", 1)
            await until(lambda: client.status()["error"] or subscription.error)

        await asyncio.wait_for(_read_on(subscription), PATIENCE_S)


async def _read_on(subscription: ordered_pubsub.Subscription) -> None:
    with pytest.raises((KeyError, Unexpected)):
        async for _ in subscription:
            pass


async def test_a_subscription_ends_whose_timer_fails(url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    async with ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a")
        following = subscription._intake._following
        assert following is not None
        plant.into(monkeypatch, SubscriberLog, "take_due")
        following._set_timer(client._engine.loop.time())
        await until(lambda: subscription.error)

        assert isinstance(subscription.error, KeyError)
        await works(client)
        with pytest.raises(KeyError):
            await subscription.close()


async def test_a_best_effort_subscription_ends_whose_timer_fails(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    async with ordered_pubsub.connect(url) as client:
        subscription = await client.subscribe("a", delivery="best-effort", ttl_s=SHORT_S)
        plant.into(monkeypatch, BestEffort, "tick")
        taking = subscription._intake
        client._engine.supervisor.soon(taking._tick, "the end of patience")
        await until(lambda: subscription.error)

        assert isinstance(subscription.error, KeyError)
        with pytest.raises(KeyError):
            await subscription.close()


@pytest.mark.parametrize("name", ["_connect_to_any", "_connect"])
async def test_a_client_comes_back_whatever_it_meets_on_its_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant, name: str
) -> None:
    async with serving(one_stage()) as server, connect(server) as client:
        plant.into(monkeypatch, NetworkHome, name)
        home = client._engine.home
        assert isinstance(home, NetworkHome)
        assert home._talk is not None
        home._talk.abort("planted")
        await until(lambda: plant.was_raised and client.status()["connected"])

        await works(client)
        assert "staying connected met KeyError('planted'), and goes on" in caplog.text


async def test_a_client_goes_on_looking_whether_its_stage_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    plant.into(monkeypatch, NetworkHome, "_watch")
    async with serving(one_stage()) as server, connect(server) as client:
        await until(lambda: "asking whether the stage is there met KeyError" in caplog.text)
        await works(client)


async def test_what_a_resumed_subscription_holds_is_asked_of_the_ens_again(
    url: str, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    async with ordered_pubsub.connect(url) as market:
        async with ordered_pubsub.connect(url, name="desk") as client:
            await client.subscribe("a", name="book")
        async with ordered_pubsub.connect(url, name="desk") as client:
            plant.into(monkeypatch, type(client._engine.adapter), "subscribe")
            book = await client.subscribe(name="book")
            await until(lambda: "a" in client._engine.machine.holding._active)
            await market.publish("a", 1)

            assert (await asyncio.wait_for(book.__anext__(), PATIENCE_S)).data == 1


# -- a stage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(one_stage()) as server:
        yield server


async def stage_has_failed(server: Server, what: str) -> None:
    """It is ready no more, and says why to whoever runs it."""
    error = None
    await until(server.failed.done)
    error = server.failed.exception()
    assert what in str(error)
    status = server.node.status()
    assert status["ready"] is False
    assert what in status["failed"]
    assert server.node.why_not_ready.startswith("it has stopped")


@pytest.mark.parametrize(
    "error", [KeyError("planted"), sqlite3.DatabaseError("planted: malformed")], ids=["bug", "sqlite"]
)
@pytest.mark.parametrize("name", ["tick", "take", "release", "serve"])
async def test_a_stage_fails_by_what_it_cannot_go_on_after(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    plant = Plant(error)
    async with connect(server, timeout_s=1.0) as client:
        await client.publish("a", 1)
        plant.into(monkeypatch, Driver, name)
        asking = asyncio.ensure_future(client.subscribe("a", start="earliest"))
        await stage_has_failed(server, "planted")
        asking.cancel()
        await asyncio.wait((asking,))


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ClientConnection, "_look_at"),
        (ClientConnection, "_asking"),
        (Driver, "handle_request"),
        (Driver, "handle_subscriber"),
        (Hosting, "note_progress"),
        (Bulk, "ask"),
        (Gatekeeper, "give_name"),
        (Driver, "client_is_here"),
        (Driver, "client_is_gone"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_stage_fails_by_what_it_meets_when_a_client_is_heard_as_it_does_later(
    server: Server, monkeypatch: pytest.MonkeyPatch, plant: Plant, owner: Any, name: str
) -> None:
    """What is done as it comes, and not by turns, is half done as well; and no connection is to blame."""
    plant.into(monkeypatch, owner, name)
    async with raw(server.port) as line:
        key = make_session("desk")
        line.send(greeting(key, "desk"))
        await until(lambda: plant.was_raised or any(client.is_in for client in server._clients))
        line.send(Ask([request(ChangeAsk(f"{key.session}/1", ("a",)), client=key.session)]))
        line.send(Progress(f"{key.session}/1", {"a": 0}, True, 1))
        line.send(Find(1, ["**"]))
    await stage_has_failed(server, "planted")


@pytest.mark.parametrize(("owner", "name"), [(Driver, "handle_peer"), (Stage, "_handle_frame")])
async def test_a_stage_fails_by_what_it_meets_when_another_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, owner: Any, name: str
) -> None:
    async with System(tmp_path, [["a"], ["**"]]) as system:
        await until(lambda: system.is_linked)
        async with raw(system.ports[1]) as line:
            key = make_session(None)
            line.send(greeting(key, None))
            await line.receive()
            plant.into(monkeypatch, owner, name)
            line.send(Ask([request(ChangeAsk(f"{key.session}/1", ("a", "b")), client=key.session)]))
            await until(lambda: any(server.failed.done() for server in system.servers.values()))


async def test_what_another_stage_says_of_names_is_said_again_on_a_new_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    async with System(tmp_path, [["a"], ["**"]]) as system:
        await until(lambda: system.is_linked)
        plant.into(monkeypatch, Claims, "handle_claim")
        for name in ("n0", "n1", "n2", "n3"):
            async with system.connect(name=name) as client:
                await works(client)

        assert sum(server.status()["healed"] for server in system.servers.values()) == 1
        assert any('ordered_pubsub_healed_total{stage="s0"}' in metrics(s.status()) for s in system.servers.values())
    assert plant.was_raised
    assert "hearing it met KeyError('planted'), and goes on" in caplog.text


async def test_a_stage_fails_whose_store_cannot_be_mended(
    server: Server, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    plant.into(monkeypatch, Server, "_mend")
    server.node._fail(JournalError("the disk is full"))
    await until(server.failed.done)

    assert "planted" in str(server.failed.exception())
    assert server.node.status()["ready"] is False


async def test_a_stage_goes_on_looking_who_is_there(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    plant.into(monkeypatch, Claims, "sweep")
    await until(lambda: "looking who is still there met KeyError('planted'), and goes on" in caplog.text)

    assert server.node.status()["ready"] is True
    async with connect(server) as client:
        await works(client)


async def test_a_link_is_dialled_again_whatever_was_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    plant.into(monkeypatch, PeerLink, "_dial")
    async with System(tmp_path, [["a"], ["**"]]) as system, system.connect() as client:
        await works(client)

    assert "dialling met KeyError('planted'), and goes on" in caplog.text


async def test_the_files_of_the_configuration_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    configuration = one_stage()
    reloads: list[int] = []
    serving_now = Serving(lambda: Loaded(configuration, None), Loaded(configuration, None), configuration.stages)
    monkeypatch.setattr(Serving, "reload", lambda self: reloads.append(1))
    stamps: list[dict[str, Any]] = [{}]
    monkeypatch.setattr(Serving, "_stamps", lambda self: dict(stamps[-1]))
    plant.into(monkeypatch, Serving, "_stamps")
    watching = serving_now.supervisor.keep(serving_now._watch, "watching the configuration's files")
    await until(lambda: plant.was_raised)
    stamps.append({"a": (1.0, 1)})
    await until(lambda: reloads)
    watching.cancel()

    assert "watching the configuration's files met KeyError('planted'), and goes on" in caplog.text


async def test_cycles_are_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: Plant
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(serve_module, "_collect", lambda: looks.append(1))
    monkeypatch.setattr(serve_module, "GARBAGE_EVERY_S", 0.001)
    monkeypatch.setattr(serve_module.gc, "freeze", looks.clear)  # of all the tests' objects, for good
    plant.into(monkeypatch, serve_module, "_collect")
    looking = serve_module.begin_to_collect(Supervisor("this process", lambda error: None))
    await until(lambda: looks)
    looking.cancel()

    assert "looking for cycles met KeyError('planted'), and goes on" in caplog.text
