"""`ordered-pubsub status`: who is asked, and what is shown of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest

import ordered_pubsub
from ordered_pubsub.cli import main, status
from ordered_pubsub.cli.status import Overview, _behind, look
from ordered_pubsub.config.addresses import Address, parse_address
from ordered_pubsub.config.files import hash_token, make_token
from ordered_pubsub.config.schema import ClientSection, Configuration, IdentitySection, Rights, StageSection
from ordered_pubsub.server.server import Server
from ordered_pubsub.testing.processes import free_port

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_found_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder without a configuration, and no environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ORDERED_PUBSUB_"):
            monkeypatch.delenv(name)


@attrs.define
class System:
    """Stages in this process."""

    configuration: Configuration
    servers: list[Server]

    @property
    def addresses(self) -> list[Address]:
        return [server.section.address for server in self.servers]

    async def look(self, *ranks: int, token: str | None = None, timeout_s: float = PATIENCE_S) -> Overview:
        addresses = [self.configuration.stages[rank].address for rank in ranks]
        return await look(ClientSection(token=token), addresses, timeout_s)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., object]]:
    """Starts the stages of these names; those in `absent` are configured and not there."""
    stack = AsyncExitStack()

    async def start(*names: str, absent: str = "", **more: object) -> System:
        stages = tuple(StageSection(name=name, listen=f"127.0.0.1:{free_port()}", store="memory") for name in names)
        configuration = Configuration(stage=stages, **more)  # type: ignore[arg-type]  # whatever the test wants
        servers = []
        for rank, stage in enumerate(stages):
            if stage.name != absent:
                server = Server(configuration, rank, "")
                await server.open()
                stack.push_async_callback(server.close)
                servers.append(server)
        return System(configuration, servers)

    async with stack:
        yield start


async def until_linked(system: System) -> None:
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while not all(link.is_up for server in system.servers for link in server.links.values()):
        assert asyncio.get_running_loop().time() < give_up_at
        await asyncio.sleep(0.01)


async def test_it_shows_how_far_subscriptions_with_a_name_are(start: Callable[..., System]) -> None:
    """By what the owners of their topics say, wherever they are kept."""
    system = await start("eu", "us")
    await until_linked(system)
    sequencer = [f"ops://{address.host_and_port}" for address in system.addresses]
    async with ordered_pubsub.connect("memory://status-named", sequencer=sequencer, name="desk") as client:
        book = await client.subscribe("trades", "quotes", name="book", ack="manual")
        for number in range(5):
            await client.publish("trades", number)
        await client.publish("quotes", 1)
        events = [await asyncio.wait_for(book.__anext__(), PATIENCE_S) for _ in range(6)]
        await events[3].ack()
        overview = await system.look(0, 1)

    named = [line.split() for line in overview.as_text() if "desk//book" in line]
    assert named == [["desk//book", "2", "4", "2"]]
    assert "named subscription  topics  acknowledged  behind" in overview.as_text()


async def test_one_that_has_acknowledged_nothing_is_not_said_to_be_behind_by_nothing(
    start: Callable[..., System],
) -> None:
    """It is counted from where it begins."""
    system = await start("eu")
    sequencer = [f"ops://{address.host_and_port}" for address in system.addresses]
    async with ordered_pubsub.connect("memory://status-never", sequencer=sequencer, name="desk") as client:
        await client.publish("trades", 0)
        await client.subscribe("trades", name="new", ack="manual")
        await client.subscribe("trades", name="all", ack="manual", start="earliest")
        for number in range(4):
            await client.publish("trades", number)
        overview = await system.look(0)

    named = [line.split() for line in overview.as_text() if "desk//" in line]
    assert named == [["desk//all", "1", "never", "5"], ["desk//new", "1", "never", "4"]]


def test_what_is_unknown_is_not_zero() -> None:
    """The owner of a topic has not answered."""
    assert _behind({"a": 3, "b": 4}, {"a": 5}) == "2 or more"
    assert _behind({"a": 3}, {}) == "?"


async def test_one_address_leads_to_all_stages(start: Callable[..., object]) -> None:
    """In the order of their ranks, each once."""
    system: System = await start("eu", "us", "asia")  # type: ignore[misc]  # a fixture's coroutine function
    await until_linked(system)
    overview = await system.look(1)

    assert [report["stage"] for _, report in overview.reports] == ["eu", "us", "asia"]
    assert [address for address, _ in overview.reports] == system.addresses
    assert overview.is_well
    assert [(await system.look(0, 1, 2, 2)).reports[rank][1]["stage"] for rank in range(3)] == ["eu", "us", "asia"]


async def test_a_stage_that_is_not_there_is_listed_with_the_reason(start: Callable[..., object]) -> None:
    """Though nobody named it."""
    system: System = await start("eu", "us", absent="us")  # type: ignore[misc]  # as above
    overview = await system.look(0)

    assert [report["stage"] for _, report in overview.reports] == ["eu"]
    ((address, reason),) = overview.troubles
    assert address == str(system.configuration.stages[1].address)
    assert "nobody listens there" in reason
    assert not overview.is_well
    assert reason in overview.as_text()[-1]


async def test_the_table_shows_what_each_stage_does(start: Callable[..., object]) -> None:
    """A line for each, in columns, and what it waits for."""
    system: System = await start("eu", "us", absent="us")  # type: ignore[misc]  # as above
    alone: System = await start("main")  # type: ignore[misc]  # as above
    async with ordered_pubsub.connect("memory://x", sequencer=str(alone.addresses[0])) as client:
        await client.subscribe("a", "b")
        await client.publish_many("a", range(1_234))
        head, row = (await alone.look(0)).as_text()

    assert head.split()[:4] == ["stage", "ready", "waiting", "for"]
    assert head.split()[4:] == ["clients", "subscriptions", "topics", "events", "pending", "links"]
    assert row.split() == ["main", "yes", "-", "2", "1", "2", "1,234", "0", "-"]
    assert row.index("1,234") + len("1,234") == head.index("events") + len("events")

    head, row, trouble = (await system.look(0)).as_text()
    assert row.split()[:3] == ["eu", "no", "us"]
    assert row[head.index("links") :].startswith("us: ")
    assert trouble.startswith("no stage can be reached: ")


async def test_who_may_not_see_it_is_told_so(start: Callable[..., object]) -> None:
    """The right is 'administer'."""
    tokens = {name: make_token() for name in ("operator", "desk")}
    identities = tuple(
        IdentitySection(name=name, token_sha256=hash_token(token), allow=Rights(administer=name == "operator"))  # type: ignore[arg-type]  # the field's converter takes it
        for name, token in tokens.items()
    )
    system: System = await start("main", identity=identities)  # type: ignore[misc]  # as above

    assert (await system.look(0, token=tokens["operator"])).is_well
    for token, reason in (
        (tokens["desk"], "needs the right 'administer'"),
        (make_token(), "token"),
        (None, "token_file"),
    ):
        overview = await system.look(0, token=token)
        assert not overview.reports
        ((address, trouble),) = overview.troubles
        assert reason in trouble
        assert address in overview.as_text()[0]


async def test_whoever_says_nothing_is_not_waited_for(start: Callable[..., object]) -> None:
    """Not for ever."""
    system: System = await start("main")  # type: ignore[misc]  # as above
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # what it is greeted with, to the end
        writer.close()
        gone.set()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = Address("127.0.0.1", mute.sockets[0].getsockname()[1])
    overview = await look(ClientSection(), [address, *system.addresses], 0.2)
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    mute.close()

    assert overview.troubles == [(str(address), "it did not answer within 0.2 s")]
    assert [report["stage"] for _, report in overview.reports] == ["main"]


async def test_the_object_for_machines_holds_all_of_it(start: Callable[..., object]) -> None:
    """Each stage's report, and who did not answer."""
    system: System = await start("eu", "us", absent="us")  # type: ignore[misc]  # as above
    found = json.loads(json.dumps((await system.look(0)).as_json()))

    assert not found["is_well"]
    assert [(stage["stage"], stage["waiting_for_stages"]) for stage in found["stages"]] == [("eu", ["us"])]
    assert [one["stage"] for one in found["unreachable"]] == [str(system.configuration.stages[1].address)]


# -- the command ------------------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[Address]:
    """Which addresses the command asks."""
    found: list[Address] = []

    async def see(client: object, addresses: list[Address], timeout_s: float) -> Overview:
        found.extend(addresses)
        return Overview([], [])

    monkeypatch.setattr(status, "look", see)
    assert main(["status", *arguments]) == 0
    return found


def test_it_knows_whom_to_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The addresses that are given, else those of the configuration, else the default."""
    assert asked(monkeypatch) == [Address("127.0.0.1", 7411)]
    file = tmp_path / "ordered_pubsub.toml"
    file.write_text('[[stage]]\nname = "eu"\nlisten = ":1"\n[[stage]]\nname = "us"\nlisten = ":2"\n')
    assert asked(monkeypatch) == [Address("127.0.0.1", 1), Address("127.0.0.1", 2)]
    file.write_text('[client]\nsequencer = "ops://a"\n' + file.read_text())
    assert asked(monkeypatch) == [parse_address("ops://a")]
    assert asked(monkeypatch, "--sequencer", "ops://b, ops://c", "--sequencer", "ops://d") == [
        parse_address(f"ops://{host}") for host in "bcd"
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sequencer", "127.0.0.1:1"], "it has no scheme; write ops://127.0.0.1:1"),
        (["--sequencer", "ops://10.0.0.1", "--token-file", "desk.token"], "'desk.token' cannot be used"),
        (["--watch", "0"], "expected a number of seconds above 0"),
        (["--ens", "memory://x"], "unrecognized arguments: --ens"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nobody is asked."""
    assert main(["status", *arguments]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err.splitlines()[-1]


def test_a_token_is_not_sent_for_everybody_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for every other client."""
    file = tmp_path / "desk.token"
    file.write_text(make_token())
    file.chmod(0o600)

    assert main(["status", "--sequencer", "ops://10.0.0.1", "--token-file", str(file)]) == 2
    assert "use opss:// (TLS)" in capsys.readouterr().err
