"""`ordered-pubsub serve` as operators run it: a process that is started, told, killed, and started again."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import ordered_pubsub
from ordered_pubsub.config.files import hash_token, make_token, write_token
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.core.messages import PublishAsk, Request
from ordered_pubsub.errors import AccessDenied, ConfigurationError
from ordered_pubsub.testing.processes import HOST, Process, free_port
from ordered_pubsub.testing.stages import StageProcess, StageProcesses, stage_section
from ordered_pubsub.wire.protocol import VERSION, Ask, ClientGreeting, Ping, encode
from ordered_pubsub.wire.sessions import make_session

PATIENCE_S = 30.0
STOP_S = 5.0
"""A stage that is told to stop is gone after this, whatever it has to do."""
COMMAND = [sys.executable, "-m", "ordered_pubsub", "serve"]


class Stage:
    """One process that serves a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""
        """what the file says besides"""
        self.more = ""
        """what it says of the stage"""
        self.options: tuple[str, ...] = ()
        self.port = free_port()
        self.process: StageProcess | None = None

    def write(self, text: str) -> None:
        """The file."""
        self.text = text
        (self.folder / "stage.toml").write_text(f"{text}\n{stage_section('main', self.port)}{self.more}\n")

    def start(self) -> None:
        """Start it, and return when it is ready."""
        self.write(self.text)
        self.process = StageProcess.of(self.folder / "stage.toml", "main", self.port, options=self.options)
        self.process.start()

    @property
    def said(self) -> str:
        """All that it has written since it was started."""
        assert self.process is not None
        return self.process.said

    def wait_until_it_says(self, words: str) -> None:
        assert self.process is not None
        self.process.wait_until(lambda: words in self.said, f"so far that it says {words!r}")

    def tell(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Tell it to stop; its exit code."""
        assert self.process is not None
        return self.process.stop(number, STOP_S)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def connect(self, name: str | None = None, **settings: object) -> Connecting:
        return ordered_pubsub.connect(
            f"memory://{uuid4().hex}", sequencer=f"ops://{HOST}:{self.port}", name=name, **settings
        )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.kill()


@pytest.fixture
def running(stage: Stage) -> Stage:
    stage.start()
    return stage


def refused(*options: str, folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and the words of a stage that does not start."""
    process = subprocess.run(
        [*COMMAND, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode, process.stderr


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_that_is_told_to_stop_does_and_says_that_all_is_well(running: Stage, number: signal.Signals) -> None:
    assert running.stop(number) == 0
    assert "Traceback" not in running.said


async def test_a_stage_stops_in_time_in_the_middle_of_traffic(running: Stage) -> None:
    async with running.connect() as client:
        futures = [client.publish_nowait("a", number) for number in range(5_000)]
        await futures[100]
        assert await asyncio.to_thread(running.stop) == 0
        await asyncio.to_thread(running.start)
        receipts = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)

    assert [receipt.number for receipt in receipts] == list(range(1, 5_001))


def test_a_stage_stops_in_time_although_somebody_neither_reads_nor_goes(running: Stage) -> None:
    with socket.create_connection((HOST, running.port)) as silent:
        silent.sendall(b"\x00\x00")
        assert running.stop() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Here it would wait for an answer from a stage that is not there."""
    stages = StageProcesses(tmp_path, [["a"], ["b"]])
    stages.start()
    high, low = stages.processes
    key = make_session(None)
    try:
        with socket.create_connection((HOST, low.port)) as client:
            client.sendall(encode(ClientGreeting(VERSION, key.session, key.secret, None, "", resumes=False)))
            client.recv(1_000)
            high.kill()
            low.wait_until(lambda: "no link to stage s0" in low.said)
            both = (PublishAsk("b"), PublishAsk("a"))
            client.sendall(encode(Ask([Request(key.session, 1, 1, 0, 0, both)])) + encode(Ping()))
            client.recv(1_000)
            low.send(signal.SIGTERM)
            while _is_open(low.port):
                time.sleep(0.01)
            low.send(signal.SIGTERM)
            assert low.wait(STOP_S) == -signal.SIGTERM
    finally:
        stages.kill()


# -- coming back ------------------------------------------------------------------------------------------------------


async def test_after_a_kill_the_numbers_go_on(running: Stage) -> None:
    async with running.connect() as client:
        for _ in range(3):
            receipts = await client.publish_many("a", range(100))
            await asyncio.to_thread(running.kill)
            await asyncio.to_thread(running.start)
        last = await client.publish("a", "last")

    assert [receipt.number for receipt in receipts] == list(range(201, 301))
    assert last.number == 301


async def test_kills_in_the_middle_of_traffic_lose_nothing_and_give_no_number_twice(running: Stage) -> None:
    async with running.connect() as client:
        subscription = await client.subscribe("a", "b")
        futures = []
        for number in range(3_000):
            futures.append(client.publish_nowait("ab"[number % 2], number))
            if number % 1_000 == 500:
                await futures[-50]
                await asyncio.to_thread(running.kill)
                await asyncio.to_thread(running.start)
        await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        events = [await subscription.__anext__() for _ in range(3_000)]

    assert [event.data for event in events] == list(range(3_000))
    assert [event.number for event in events if event.topic == "a"] == list(range(1, 1_501))


def test_a_stage_that_wrote_nothing_does_not_start_after_a_kill(stage: Stage) -> None:
    stage.more = 'durability = "none"'
    stage.start()
    stage.kill()

    code, words = refused("--config", "stage.toml", folder=stage.folder)

    assert code == 1
    assert "durability='none', and it was not stopped cleanly" in words


def test_a_stage_that_wrote_nothing_starts_after_a_stop(stage: Stage) -> None:
    stage.more = 'durability = "none"'
    for _ in range(2):
        stage.start()
        assert stage.stop() == 0


async def test_a_client_keeps_its_name_when_its_home_is_killed(tmp_path: Path) -> None:
    stages = StageProcesses(tmp_path, [["a"], ["b"]])
    await asyncio.to_thread(stages.start)
    ens = f"memory://{uuid4().hex}"
    high, low = (f"ops://{HOST}:{stage.port}" for stage in stages.processes)
    try:
        async with ordered_pubsub.connect(ens, sequencer=[low, high], name="desk") as client:
            await client.publish("a", 1)
            await asyncio.to_thread(stages.processes[1].kill)
            assert (await asyncio.wait_for(client.publish("a", 2), PATIENCE_S)).number == 2
            await asyncio.to_thread(stages.processes[1].start)
            with pytest.raises(ConfigurationError, match="in use"):
                await ordered_pubsub.connect(ens, sequencer=low, name="desk")
            assert (await client.publish("b", 3)).number == 1
    finally:
        await asyncio.to_thread(stages.kill)


# -- not starting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[stage", "is not valid TOML"),
        ('[[stage]]\nname = "a b"\n', "1 to 64 letters"),
        ('[[stage]]\nname = "a"\nlisten = "0.0.0.0:7411"\n', "can be reached from other machines"),
        ('[[stage]]\nname = "a"\ndurability = "perhaps"\n', 'one of "fsync", "os", "none"'),
        ('[[stage]]\nname = "a"\ntls = { cert = "no.pem", key = "no.key" }\n', "the certificate"),
        ('[[stage]]\nname = "a"\ntoken_file = "no.token"\n', "the token file"),
        ("nonsense = 1\n", "nonsense is unknown"),
        ("identity = 3\n", "identity"),
    ],
)
def test_a_configuration_that_does_not_fit_is_said_in_a_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "ordered_pubsub.toml").write_text(text)

    code, said = refused(folder=tmp_path)

    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_a_stage_that_is_not_in_the_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "ordered_pubsub.toml").write_text('[[stage]]\nname = "eu"\n')

    code, said = refused("--stage", "us", folder=tmp_path)

    assert (code, "there is no stage 'us'" in said) == (2, True)


def test_an_address_of_the_command_line_is_checked_like_one_of_the_file(tmp_path: Path) -> None:
    code, said = refused("--listen", f"0.0.0.0:{free_port()}", folder=tmp_path)

    assert (code, "no [[identity]] says who may connect" in said) == (2, True)


def test_a_port_that_is_taken_is_said(running: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()

    code, said = refused("--listen", f"{HOST}:{running.port}", folder=folder)

    assert code == 1
    assert f"stage 'main' cannot listen at {HOST}:{running.port}" in said
    assert "is another one running there?" in said


def test_a_store_that_is_in_use_is_said(running: Stage) -> None:
    code, said = refused("--config", "stage.toml", "--listen", f"{HOST}:{free_port()}", folder=running.folder)

    assert (code, "probably another stage runs on it" in said) == (1, True)


def test_a_port_for_http_that_is_taken_is_said(running: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    text = f'[[stage]]\nname = "main"\nlisten = "{HOST}:0"\nhttp = "{HOST}:{running.port}"\n'
    (folder / "ordered_pubsub.toml").write_text(text)

    code, said = refused(folder=folder)

    assert (code, "health and metrics cannot be served" in said) == (1, True)


# -- while it runs ----------------------------------------------------------------------------------------------------


async def test_a_hangup_makes_it_read_rights_again(stage: Stage) -> None:
    token = make_token()
    write_token(str(stage.folder / "token"), token)
    rights = f'[[identity]]\nname = "desk"\ntoken_sha256 = "{hash_token(token)}"\nallow = {{ publish = ["%s"] }}\n'
    stage.text = rights % "a"
    await asyncio.to_thread(stage.start)
    async with stage.connect(token_file=str(stage.folder / "token")) as client:
        await client.publish("a", 1)
        stage.write(rights % "b")
        stage.tell(signal.SIGHUP)
        await asyncio.to_thread(stage.wait_until_it_says, "were read again")
        with pytest.raises(AccessDenied):
            await client.publish("a", 2)
        await client.publish("b", 1)

    assert token not in stage.said


async def test_health_and_metrics_are_served(stage: Stage) -> None:
    http = free_port()
    stage.more = f'http = "{HOST}:{http}"'
    await asyncio.to_thread(stage.start)
    async with stage.connect() as client:
        await client.publish_many("a", range(11))
        metrics, health = await asyncio.to_thread(_read, f"http://{HOST}:{http}", "/metrics", "/healthz")

    assert 'ordered_pubsub_events_total{stage="main"} 11' in metrics
    assert json.loads(health)["ready"] is True


def test_what_it_keeps_is_its_owners_only(running: Stage) -> None:
    stores = list(running.folder.glob("main.db*"))

    assert {file.name.removeprefix("main.db") for file in stores} >= {"", ".mark", "-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in stores} == {0o600}


def test_logs_can_be_read_by_machines(stage: Stage) -> None:
    stage.options = ("--log-format", "json", "--log-level", "debug")
    stage.start()
    with socket.create_connection((HOST, stage.port)) as stranger:
        stranger.sendall(b"\xff\xff\xff\xff")
        stranger.recv(1_000)
    stage.stop()

    lines = [line for line in stage.said.splitlines() if not line.startswith("stage main is ready")]

    entries = [json.loads(line) for line in lines]
    assert any("is not let in (bad-greeting)" in entry["message"] for entry in entries)
    assert {"time", "level", "logger", "message"} <= set(entries[0])


def test_without_a_file_it_listens_at_loopback_only(tmp_path: Path) -> None:
    port = free_port()
    process = Process("a stage", [*COMMAND, "--listen", f":{port}"], tmp_path / "log", folder=tmp_path)
    try:
        process.begin()
        process.wait_until(lambda: "is ready at" in process.said)
        assert re.search(rf"ready at ops://127\.0\.0\.1:{port}$", process.said, re.MULTILINE)
    finally:
        process.kill()


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((HOST, port)).close()
    except OSError:
        return False
    return True


def _read(url: str, *paths: str) -> list[str]:
    found = []
    for path in paths:
        with urllib.request.urlopen(url + path, timeout=PATIENCE_S) as answer:
            found.append(answer.read().decode())
    return found
