"""`ordered-pubsub pub`, `sub`, `status` and `demo` as processes, over a real broker and real stages."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.config.files import hash_token, make_token, write_token
from ordered_pubsub.testing.brokers import Mosquitto
from ordered_pubsub.testing.processes import HOST, plain_environment
from ordered_pubsub.testing.stages import StageProcess, StageProcesses

PATIENCE_S = 30.0
NOWHERE = f"{HOST}:9"
"""Nobody listens there."""


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.005)


# -- what runs --------------------------------------------------------------------------------------------------------


class Command:
    """A process of the command line, and what it has said so far."""

    def __init__(self, folder: Path, *arguments: str, program: tuple[str, ...] = ("-m", "ordered_pubsub")) -> None:
        given = dict(argument.split("=", 1) for argument in arguments if argument.startswith("ORDERED_PUBSUB_"))
        self.process = subprocess.Popen(
            [sys.executable, *program, *(argument for argument in arguments if argument.split("=")[0] not in given)],
            cwd=folder,
            env={**plain_environment(), **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.err = ""
        self.out = b""
        self._readers = [threading.Thread(target=self._read_err, daemon=True)]
        self._readers[0].start()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line.decode()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line

    def read(self) -> None:
        """Take what it prints, from now on."""
        self._readers.append(threading.Thread(target=self._read_out, daemon=True))
        self._readers[-1].start()

    def until_it_says(self, text: str) -> None:
        until(lambda: text in self.err or self.process.poll() is not None)
        assert text in self.err, self.err

    def give(self, text: str, ends: bool = True) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        if ends:
            self.process.stdin.close()

    def end(self, number: signal.Signals | None = None) -> int:
        """Wait until it has ended, perhaps by a signal; return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        if len(self._readers) == 1:
            self.read()
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert "Traceback" not in self.err, self.err
        return code

    def close(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


@attrs.frozen
class System:
    """A broker, stages, and a folder from which commands are run."""

    folder: Path
    ens: str
    stages: list[StageProcess]
    commands: list[Command] = attrs.field(factory=list)

    @property
    def addresses(self) -> list[str]:
        return [stage.address for stage in self.stages]

    def start(self, command: str, *arguments: str) -> Command:
        """With this system's broker and stages."""
        connection = [] if command == "status" else ["--ens", self.ens]
        return self.run_alone(command, *arguments, *connection, "--sequencer", ",".join(self.addresses))

    def run_alone(self, *arguments: str) -> Command:
        """With nothing that it is not given here."""
        started = Command(self.folder, *arguments)
        self.commands.append(started)
        return started

    def run(self, command: str, *arguments: str, code: int = 0) -> Command:
        """Run it to its end."""
        started = self.start(command, *arguments)
        assert started.end() == code, started.err
        return started

    def events(self) -> int:
        """How many have numbers."""
        return int(json.loads(self.run("status", "--json").out)["stages"][0]["events"])

    def subscribe(self, *arguments: str) -> Command:
        """Start `sub`, and return when it is subscribed."""
        started = self.start("sub", *arguments)
        started.until_it_says("subscribed to")
        return started

    def end(self) -> None:
        for command in self.commands:
            command.close()


def start_stages(folder: Path, text: str, *names: str) -> list[StageProcess]:
    settings = [{"name": name, "store": "memory", "durability": "none", "token_file": "stage.token"} for name in names]
    stages = StageProcesses(folder, [[f"{name}/**"] for name in names], more=text, settings=settings)
    stages.start()
    return stages.processes


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as mosquitto:
        yield mosquitto


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    """One that lets everybody in, takes no large events, and keeps none whose topics begin with "ticks"."""
    folder = tmp_path_factory.mktemp("stage")
    write_token(str(folder / "stage.token"), make_token())
    topics = '[[topic]]\npattern = "ticks/**"\ndelivery = "ordered"\n'
    (stage,) = start_stages(folder, f"[limits]\npayload_bytes_max = 5000\n{topics}", "main")
    yield stage
    stage.kill()


@pytest.fixture
def system(broker: Mosquitto, stage: StageProcess, tmp_path: Path) -> Iterator[System]:
    found = System(tmp_path, broker.url, [stage])
    yield found
    found.end()


@pytest.fixture
def topic() -> str:
    """One that no other test uses."""
    return f"t{time.monotonic_ns()}"


GUARDED = """\
topics = "listed"
[[topic]]
pattern = "market/**"
[[identity]]
name = "operator"
token_sha256 = "{operator}"
allow = {{ publish = ["**"], subscribe = ["**"], administer = true }}
[[identity]]
name = "desk"
token_sha256 = "{desk}"
allow = {{ publish = ["market/orders", "elsewhere"], subscribe = ["market/**"] }}
[[identity]]
name = "stages"
token_sha256 = "{stage}"
allow = {{ stage = true }}
"""


@pytest.fixture
def guarded(broker: Mosquitto, tmp_path: Path) -> Iterator[System]:
    """Two stages that want to know who somebody is; the tokens are in files named after the identities."""
    tokens = {name: make_token() for name in ("operator", "desk", "stage", "stranger")}
    for name, token in tokens.items():
        write_token(str(tmp_path / f"{name}.token"), token)
    text = GUARDED.format(**{name: hash_token(token) for name, token in tokens.items()})
    found = System(tmp_path, broker.url, start_stages(tmp_path, text, "eu", "us"))
    yield found
    found.end()
    for stage in found.stages:
        stage.kill()


# -- pub and sub ------------------------------------------------------------------------------------------------------


def test_what_is_published_is_printed(system: System, topic: str) -> None:
    """With the number that the receipt has."""
    sub = system.subscribe(topic, "other", "--count", "4")
    pub = system.run("pub", topic, '{"price": 101.50}', "two words", "--name", "desk-1")
    system.run("pub", topic, "3", "--raw", "--name", "desk-2")
    system.run("pub", topic, "ü")
    assert sub.end() == 0

    assert [line.rpartition(" ")[0] for line in pub.lines] == [f"{topic} 1", f"{topic} 2"]
    assert sub.lines[:3] == [
        f'1 {topic} 1 desk-1 {{"price":101.5}}',
        f'2 {topic} 2 desk-1 "two words"',
        f"3 {topic} 3 desk-2 b'3'",
    ]
    assert sub.lines[3].endswith(' "ü"')


def test_machines_get_objects(system: System, topic: str) -> None:
    """A line for each event."""
    sub = system.subscribe(topic, "--json", "--count", "2", "--order", "topic")
    pub = system.run("pub", topic, '{"x": [1]}', "--header", "kind=test", "--header", "a=b=c", "--name", "desk-1")
    system.run("pub", topic, "--raw", "bytes")
    assert sub.end() == 0

    first, second = map(json.loads, sub.lines)
    assert first.pop("published_at") == pytest.approx(time.time(), abs=PATIENCE_S)
    assert first == {
        "position": None, "topic": topic, "number": 1, "id": pub.lines[0].split()[-1], "publisher": "desk-1",
        "out_of_order": False, "headers": {"kind": "test", "a": "b=c"}, "data": {"x": [1]},
    }  # fmt: skip
    assert second["data_base64"] == "Ynl0ZXM="


def test_thousands_of_lines_are_published_in_their_order(system: System, topic: str) -> None:
    """Without progress in a pipe, and with a summary."""
    count = 20_000
    sub = system.subscribe(topic, "--count", str(count))
    sub.read()
    pub = system.start("pub", topic, "-")
    pub.read()
    pub.give("".join(f"{number}\n" for number in range(count)))

    assert (pub.end(), sub.end()) == (0, 0)
    assert [int(line.split()[-1]) for line in sub.lines] == list(range(count))
    assert [line.split()[1] for line in pub.lines] == [str(number) for number in range(1, count + 1)]
    assert re.fullmatch(rf"ordered-pubsub pub: 20,000 events published on '{topic}' in [^\r\n]*/s\n", pub.err)


def test_a_line_is_published_when_it_is_written(system: System, topic: str) -> None:
    """And its receipt printed, though the input goes on."""
    pub = system.start("pub", topic, "-")
    pub.read()
    for number in range(1, 4):
        pub.give("x\n", ends=False)
        until(lambda: len(pub.lines) == number)  # noqa: B023  (it is called in this turn of the loop)
    pub.give("last")
    assert pub.end() == 0
    assert len(pub.lines) == 4


def test_subscribers_print_the_same_order(system: System, topic: str) -> None:
    """Whoever publishes what at the same time."""
    topics = [f"{topic}/{name}" for name in "abc"]
    subs = [system.subscribe(*topics, "--count", "3000") for _ in range(2)]
    pubs = [system.start("pub", one, "-", "--quiet") for one in topics]
    for sub in subs:
        sub.read()
    for pub in pubs:
        pub.give("".join(f"{number}\n" for number in range(1_000)))

    assert [command.end() for command in (*pubs, *subs)] == [0] * 5
    assert subs[0].lines == subs[1].lines
    assert [line.split()[0] for line in subs[0].lines] == [str(number) for number in range(1, 3_001)]


def test_messages_of_plain_clients_are_shown_if_that_is_wanted(system: System, topic: str) -> None:
    """They have no place in the order."""
    sub = system.subscribe(topic, "--unordered", "deliver", "--count", "1")
    asyncio.run(publish_plainly(system.ens, topic, b"plain"))
    assert sub.end() == 0
    assert sub.lines[0].startswith(f"! {topic} 0 - ")


async def publish_plainly(ens: str, topic: str, payload: bytes) -> None:
    async def ignore(frames: object) -> None:
        """Nothing is subscribed to."""

    adapter = load_adapter(ens)
    await adapter.open(ignore, lambda is_connected, reason: None)
    await adapter.publish([Frame(topic, payload, {})])
    await adapter.close()


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_it_cleanly(system: System, topic: str, number: signal.Signals, code: int) -> None:
    """Both commands, with nothing on standard error but what was there before."""
    sub = system.subscribe(topic)
    assert sub.end(number) == code
    assert sub.err == f"subscribed to {topic}\n"

    pub = system.start("pub", topic, "-")
    pub.read()
    pub.give("1\n", ends=False)
    until(lambda: pub.lines)
    assert pub.end(number) == code
    assert pub.err.startswith("ordered-pubsub pub: 1 events published")


def test_a_signal_does_not_lose_what_was_read(system: System, topic: str) -> None:
    """It has its receipts, or it is said that it has none. Nobody but the broker has these events."""
    with Mosquitto() as own:
        stuck, before = attrs.evolve(system, ens=own.url), system.events()
        arguments = ("pub", f"ticks/{topic}", "-", "--delivery", "ordered", "--call-timeout")
        pubs = [stuck.start(*arguments, timeout) for timeout in ("0.5", "60")]
        for pub in pubs:
            pub.read()
            pub.give("1\n", ends=False)
            until(lambda: pub.lines)  # noqa: B023  (it is called in this turn of the loop)
        assert own.pid is not None
        os.kill(own.pid, signal.SIGSTOP)
        for pub in pubs:
            pub.give("2\n3\n", ends=False)
        until(lambda: stuck.events() == before + 6)
        assert pubs[0].end() == 1
        pubs[1].process.send_signal(signal.SIGTERM)
        os.kill(own.pid, signal.SIGCONT)
        assert pubs[1].end() == 143

    assert len(pubs[0].lines) == 1
    assert re.search(r"line 2: no outcome within 0.5 s .* outcome is unknown\n", pubs[0].err)
    assert re.search(r" 1 events published .*; 2 perhaps", pubs[0].err)
    assert len(pubs[1].lines) == 3
    assert re.search(r" 3 events published [^;]*\n$", pubs[1].err)


def test_a_reader_that_has_seen_enough_ends_it(system: System, topic: str) -> None:
    """Without a word."""
    sub = system.subscribe(topic)
    system.run("pub", topic, "1")
    assert sub.process.stdout is not None
    assert sub.process.stdout.readline().startswith(b"1 ")
    sub.process.stdout.close()
    system.run("pub", topic, "2")

    until(lambda: sub.process.poll() is not None)
    assert (sub.process.returncode, sub.err) == (1, f"subscribed to {topic}\n")


def test_a_reader_that_does_not_read_is_no_reason_to_hang(system: System, topic: str) -> None:
    """A pager, for one: SIGTERM ends it all the same."""
    sub = system.subscribe(topic)
    pub = system.start("pub", topic, "-", "--quiet")
    pub.give(f"{'x' * 1_000}\n" * 1_000)
    assert pub.end() == 0
    sub.process.send_signal(signal.SIGTERM)
    assert sub.process.wait(PATIENCE_S) == 143
    assert sub.err == f"subscribed to {topic}\n"


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ("pub t 1 --sequencer {stage}", 2, "no broker is named: give --ens"),
        ("sub t --ens mqtt://" + NOWHERE + " --sequencer {stage}", 1, "cannot connect .*is the broker running"),
        ("sub t --ens mqtt://{host} --sequencer {stage}", 1, "is it an MQTT broker"),
        ("pub t 1 --ens {ens}", 2, "needs a stage .*ordered-pubsub serve"),
        ("pub t 1 --ens {ens} --sequencer ops://" + NOWHERE, 1, "no stage can be reached: .*nobody listens there"),
        ("pub t 1 --ens {ens} --sequencer ops://{broker}", 1, "did not welcome this client"),
        ("pub t 1 --ens {ens} --sequencer {ens}", 2, "mqtt:// is not a stage's scheme"),
        ("pub t 1 --ens gopher://x --sequencer {stage}", 2, "no adapter for gopher:// is installed. Installed: .*mqtt://"),
        ("pub t 1 --ens {ens} --sequencer {stage} --config nothere", 2, "'nothere' cannot be read: No such file"),
        ("pub t 1 --ens {ens} --sequencer {stage} --config bad.toml", 2, "bad.toml, line 2: client.enz is unknown.*'ens'"),
        ("pub t 1 --ens {ens} --sequencer {stage} --token-file nothere", 2, "token file 'nothere' cannot be used"),
        ("ORDERED_PUBSUB_NAEM=x sub t --ens {ens} --sequencer {stage}", 2, "did you mean 'ORDERED_PUBSUB_NAME'"),
        ("status --sequencer {host}", 2, "has no scheme; write ops://"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(system: System, arguments: str, code: int, complaint: str) -> None:
    """That says what is wrong, and an exit code that says by whose fault; before it at most that a stage is waited for."""
    (system.folder / "bad.toml").write_text('[client]\nenz = "mqtt://x"\n')
    stage = system.addresses[0]
    host, broker = stage.removeprefix("ops://"), system.ens.removeprefix("mqtt://")
    filled = arguments.format(stage=stage, host=host, broker=broker, ens=system.ens).split()
    command = system.run_alone(*filled)

    assert command.end() == code
    *waits, line = command.err.splitlines()
    assert re.search(complaint, line), line
    assert all("no stage can be reached yet, trying again for" in wait for wait in waits), waits
    assert command.lines == []


def test_a_missing_extra_is_named(system: System) -> None:
    """With the line that installs it."""
    hidden = "import sys; sys.modules['paho'] = None; from ordered_pubsub.cli import main; sys.exit(main())"
    pub = Command(system.folder, "pub", "t", "1", "--ens", system.ens, program=("-c", hidden))
    system.commands.append(pub)

    assert pub.end() == 2
    (line,) = pub.err.splitlines()
    assert line.endswith("Try: pip install 'ordered-pubsub[mqtt]'")


def test_an_event_over_the_limit_is_named(system: System, topic: str) -> None:
    """That of the stage, or of the client; the others are published."""
    pub = system.start("pub", topic, "-")
    pub.give(f"1\n{'x' * 6_000}\n3\n{'x' * 2_000_000}\n5\n")
    assert pub.end() == 1
    assert len(pub.lines) == 3
    said = pub.err.splitlines()
    assert re.search(r"line 2: an event for .* has 6002 bytes; at most 5000 \(payload_bytes_max", said[0])
    assert re.search(r"line 4: it has 2000000 bytes, more than an event may have", said[1])
    assert re.search(r"3 events published .*; 2 not published$", said[2])


def test_a_name_in_use_is_said(system: System, topic: str) -> None:
    """A client of a system has its name alone."""
    system.subscribe(topic, "--name", f"desk-{topic}")
    pub = system.run("pub", topic, "1", "--name", f"desk-{topic}", code=2)
    (line,) = pub.err.splitlines()
    assert re.search(f"desk-{topic}.* in use", line), line


def test_what_an_identity_may_not_do_is_said(guarded: System) -> None:
    """At the door, for a topic, and for one that does not exist."""
    token = ["--token-file", "desk.token"]
    cases = [
        (guarded.run("pub", "market/orders", "1", code=2), "wants to know who you are: set token_file"),
        (guarded.run("sub", "market/orders", "--token-file", "stranger.token", code=2), "is not one of this stage's"),
        (guarded.run("pub", "market/prices", "1", *token, code=1), "may not publish on 'market/prices'"),
        (guarded.run("pub", "elsewhere", "1", *token, code=1), "there is no topic 'elsewhere'"),
        (guarded.run("sub", "elsewhere", *token, code=2), "may not subscribe to 'elsewhere'"),
        (guarded.run("status", *token, code=1), "needs the right 'administer'"),
        (guarded.run("status", "--token-file", "stranger.token", code=1), "is not one of this stage's"),
    ]
    for command, complaint in cases:
        assert complaint in command.err + command.out.decode()
    assert len(guarded.run("pub", "market/orders", "1", *token).lines) == 1


def test_nothing_more_is_read_after_a_refusal(guarded: System) -> None:
    """An input without an end ends there."""
    pub = guarded.start("pub", "market/prices", "-", "--token-file", "desk.token")
    pub.give("1\n", ends=False)
    assert pub.end() == 1
    assert "line 1: " in pub.err
    assert pub.err.splitlines()[-1].endswith("; 1 not published; what came after that was not published")


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_shows_all_stages(guarded: System) -> None:
    """One address leads to the others, and one that is down is listed with the reason."""
    asking = ["--token-file", "operator.token"]
    until(lambda: guarded.start("status", *asking).end() == 0)
    guarded.run("pub", "market/orders", "1", "2", "--token-file", "operator.token")
    one = Command(guarded.folder, "status", *asking, "--json", "--sequencer", guarded.addresses[1])
    guarded.commands.append(one)
    assert one.end() == 0
    found = json.loads(one.out)
    assert [(stage["stage"], stage["links"]) for stage in found["stages"]] == [
        ("eu", {"us": "up"}),
        ("us", {"eu": "up"}),
    ]
    assert sum(stage["events"] for stage in found["stages"]) == 2

    guarded.stages[0].kill()
    table = guarded.run("status", *asking, code=1).lines
    assert table[0].startswith("stage  ready  waiting for  clients")
    assert table[1].startswith("us ")
    assert re.search(r"  eu: \S", table[1])
    assert table[2] == (
        f"no stage can be reached: {guarded.addresses[0]}: nobody listens there. Is it running (ordered-pubsub serve), and is "
        "sequencer= right?"
    )


def test_status_can_be_watched(system: System) -> None:
    """Until Ctrl-C."""
    watching = system.start("status", "--watch", "0.05", "--json")
    watching.read()
    until(lambda: len(watching.lines) >= 3)

    assert watching.end(signal.SIGINT) == 130
    assert all(json.loads(line)["is_well"] for line in watching.lines)
    assert watching.err == ""


# -- demo -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_stage", [True, False])
def test_the_demo_runs_over_a_broker(system: System, has_stage: bool) -> None:
    """With a stage in its process, or a real one; what it counts is what it shows."""
    sequencer = ["--sequencer", system.addresses[0]] if has_stage else []
    demo = system.run_alone("demo", "--ens", system.ens, "--events", "300", "--publishers", "5", "--json", *sequencer)
    assert demo.end() == 0

    shown = json.loads(demo.out)
    assert (shown["ens"], shown["events"]) == (system.ens, 300)
    assert (shown["ordered_disagreements"], shown["missing"]) == (0, 0)


def test_the_demo_says_what_it_does_not_reach(system: System) -> None:
    """In a line."""
    demo = system.run_alone("demo", "--ens", f"mqtt://{NOWHERE}")
    assert demo.end() == 1
    (line,) = demo.err.splitlines()
    assert line.startswith(f"ordered-pubsub demo: mqtt://{NOWHERE}: cannot connect")
