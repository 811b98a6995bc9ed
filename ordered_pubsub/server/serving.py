"""`ordered-pubsub serve`: one or several stages of a configuration in this process, until it is told to stop.

SIGTERM and SIGINT drain and stop; a second one stops at once. SIGHUP reads identities, limits, certificates and the stages'
own tokens again, which also happens by itself when one of their files has changed. A stage whose store fails lets nobody in and
starts again from it when it can be used; one whose store is damaged stops the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs

from ordered_pubsub.config.files import check_files, token_of
from ordered_pubsub.config.reading import Loaded
from ordered_pubsub.config.schema import Configuration, StageSection
from ordered_pubsub.errors import OrderedPubSubError
from ordered_pubsub.server._files import room_for_connections
from ordered_pubsub.server.monitoring import Monitoring
from ordered_pubsub.server.server import Server
from ordered_pubsub.supervision import Supervisor

_log = logging.getLogger(__name__)

WATCH_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@attrs.define(eq=False)
class Serving:
    """The stages of this process."""

    load: Callable[[], Loaded]
    """reads the configuration"""
    loaded: Loaded
    stages: Sequence[StageSection]
    servers: list[Server] = attrs.field(factory=list)
    _monitors: list[Monitoring] = attrs.field(factory=list)
    _stop: asyncio.Event = attrs.field(factory=asyncio.Event)
    _seen: dict[str, tuple[float, int]] = attrs.field(factory=dict)
    supervisor: Supervisor = attrs.field(init=False)
    """looks after what concerns the process"""

    def __attrs_post_init__(self) -> None:
        self.supervisor = Supervisor("this process", lambda error: self._stop.set())

    async def run(self, on_ready: Callable[[Serving], None]) -> None:
        """Serve until told to stop. Raises what made a stage fail."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        self._seen = self._stamps()
        watching = self.supervisor.keep(self._watch, "watching the configuration's files")
        try:
            await self._open()
            on_ready(self)
            await self._wait()
        finally:
            watching.cancel()
            await self._close()

    async def _open(self) -> None:
        every = self.loaded.configuration.stages
        room = room_for_connections(self.loaded.configuration.limits.connections_max, len(self.stages))
        for section in self.stages:
            check_files(section)
            server = Server(self.loaded.configuration, every.index(section), token_of(section) or "", room)
            await server.open()
            self.servers.append(server)
            _log.info("stage %s listens at %s", section.name, attrs.evolve(section.address, port=server.port))
            if section.http_address is not None:
                monitor = Monitoring(server.status, server.health, server.may_administer)
                self._monitors.append(monitor)
                port = await monitor.open(section.http_address.host, section.http_address.port)
                _log.info("stage %s: http://%s:%d/healthz and /metrics", section.name, section.http_address.host, port)

    async def _wait(self) -> None:
        stopping = asyncio.ensure_future(self._stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, *(server.failed for server in self.servers)]
        await asyncio.wait(ends, return_when="FIRST_COMPLETED")
        stopping.cancel()
        for server in self.servers:
            if server.failed.done():
                server.failed.result()

    def _told_to_stop(self) -> None:
        _log.info("told to stop: taking nothing new; once more stops at once")
        self._stop.set()
        for number in STOP_SIGNALS:  # the second one is not ours
            asyncio.get_running_loop().remove_signal_handler(number)

    async def _close(self) -> None:
        """Close everything, whatever goes wrong with some of it."""
        closing = [server.close() for server in self.servers]
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        for monitor in self._monitors:
            await monitor.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Read again what has changed on disk."""
        while True:
            await asyncio.sleep(WATCH_S)
            stamps = self._stamps()
            if stamps != self._seen:
                self._seen = stamps
                self.reload()

    def _stamps(self) -> dict[str, tuple[float, int]]:
        files = [self.loaded.path]
        for section in self.stages:
            files.append(section.token_file)
            if section.tls is not None:
                files += [section.tls.cert, section.tls.key, section.tls.client_ca]
        stamps = {}
        for file in files:
            if file is not None:
                with suppress(OSError):
                    found = os.stat(file)
                    stamps[file] = (found.st_mtime, found.st_ino)
        return stamps

    def reload(self) -> None:
        """Take over identities, limits, certificates and tokens as they are now; as they were, if they do not fit."""
        try:
            loaded = self.load()
            prepared = [server.prepare(loaded.configuration) for server in self.servers]
        except Exception as error:
            unexpected = None if isinstance(error, OrderedPubSubError) else error
            _log.error(
                "the configuration was not taken over, everything goes on as before: %s", error, exc_info=unexpected
            )
            return
        if _rest_of(loaded.configuration) != _rest_of(self.loaded.configuration):
            _log.warning("what else has changed in the configuration holds from the next start on")
        for server, renewal in zip(self.servers, prepared, strict=True):
            server.renew(renewal)
        _log.info("identities, limits, certificates and tokens were read again")


def _rest_of(configuration: Configuration) -> Configuration:
    """What cannot be changed while a stage runs."""
    plain = Configuration()
    stages = tuple(attrs.evolve(stage, tls=None, token_file=None) for stage in configuration.stages)
    return attrs.evolve(configuration, stage=stages, client=plain.client, identity=plain.identity, limits=plain.limits)
