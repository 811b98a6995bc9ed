"""The embedded stage: one stage inside the process, for the clients of a `memory://` system.

It runs the same state machine as any other stage, through the same `Driver`, on a journal in memory. What its clients ask
in one turn of the event loop is taken as one batch: one flush, and one callback per client with all its answers. The stage
begins with the first client of the system and ends with the last; its numbers then begin anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import attrs

from ordered_pubsub.client.home.home import NOBODY, Home, Listener
from ordered_pubsub.core.levels import Levels
from ordered_pubsub.core.liveness.times import Times
from ordered_pubsub.core.log.retention import Policies, Policy
from ordered_pubsub.core.messages import Answer, FromSubscriber, Refusal, Request, ToSession
from ordered_pubsub.core.stage.driver import USUAL, Driver
from ordered_pubsub.core.stage.storage import MemoryJournal
from ordered_pubsub.core.topology import StageSpec, Topology
from ordered_pubsub.errors import ConfigurationError, ProtocolError
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub.wire.pack import signed_request
from ordered_pubsub.wire.sessions import SessionKey, draw_system, publisher_of

STAGE_NAME = "embedded"
TICK_S = 0.5
STEPS_MAX = 100
"""So many small steps of what clients have caused are done before whatever else there is to do comes again."""
KEPT = Policies(default=Policy(keep_age_s=0.0, keep_bytes=1 << 20, max_bytes=64 << 20))
"""Events are kept in memory until everybody has acknowledged them, and the last MiB of each topic for who comes late."""


@attrs.define(eq=False)
class EmbeddedStage:
    """One stage on one event loop."""

    system: str
    loop: asyncio.AbstractEventLoop
    topology: Topology = attrs.field(factory=lambda: Topology((StageSpec(STAGE_NAME),)))
    times: Times = USUAL
    levels: Levels = attrs.field(factory=Levels)
    driver: Driver = attrs.field(init=False)
    _homes: dict[str, EmbeddedHome] = attrs.field(factory=dict)
    _flush_planned: bool = False
    _tick_handle: asyncio.TimerHandle | None = None
    _failure: Exception | None = None
    _supervisor: Supervisor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._supervisor = Supervisor(f"the embedded stage of memory://{self.system}", self._fail)
        self.driver = Driver.open(
            0,
            self.topology,
            MemoryJournal(),
            policies=KEPT,
            times=self.times,
            levels=self.levels,
            founding=draw_system(time.time()),
        )
        self.driver.flush()
        self._tick()

    def _tick(self) -> None:
        self.driver.tick(self.loop.time(), time.time())
        self._plan_flush()
        self._tick_handle = self._supervisor.later(TICK_S, self._tick, "the tick")

    def _fail(self, error: Exception) -> None:
        """Nobody knows what is in its memory: all its clients fail, and the next one begins anew."""
        self._failure = error
        if _stages.get(self.system) is self:
            del _stages[self.system]
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        for home in list(self._homes.values()):
            home.listener.on_failure(error)

    def enter(self, session: str, home: EmbeddedHome) -> None:
        """A client is at home here now; raises if another one has its name."""
        if home.name is not None and any(home.name == other.name for other in self._homes.values()):
            raise ConfigurationError(
                f"name={home.name!r} is in use by another client of memory://{self.system}; close that one, or take another name"
            )
        self._homes[session] = home
        self.driver.client_is_here(session)

    def leave(self, session: str) -> bool:
        """A client is gone; say whether it was the last."""
        self._homes.pop(session, None)
        self.driver.client_is_gone(session)
        if not self._homes and self._tick_handle is not None:
            self._tick_handle.cancel()
        return not self._homes

    def handle_requests(self, requests: Sequence[Request], publisher: str) -> None:
        """Take requests now, and answer them together with whatever else comes in this turn of the loop."""
        if self._failure is not None:
            return
        self._supervisor.guarded(self._take, "taking requests", requests, publisher)

    def _take(self, requests: Sequence[Request], publisher: str) -> None:
        now = time.time()
        for request in requests:
            signed, refusal = signed_request(request, publisher, lambda _: False)  # they sign by their own names
            self.driver.handle_request(signed, now, refusal)
        self._plan_flush()

    def handle_subscriber(self, session: str, message: FromSubscriber) -> None:
        """A subscription says how far it is, or what it misses. A client that says what it must not ends by that, alone."""
        if self._failure is None:
            self._supervisor.guarded(self._hear, "hearing a subscription", session, message)

    def _hear(self, session: str, message: FromSubscriber) -> None:
        try:
            self.driver.handle_subscriber(session, message, self.loop.time())
        except ProtocolError as error:
            self._homes[session].listener.on_failure(error)
        else:
            self._plan_flush()

    def _plan_flush(self) -> None:
        if not self._flush_planned and self._failure is None and (self.driver.has_work or self.driver.is_asked):
            self._flush_planned = True
            self._supervisor.soon(self._flush, "answering")

    def _flush(self) -> None:
        self._flush_planned = False
        for _ in range(STEPS_MAX):
            if not self.driver.is_asked:
                break
            self.driver.serve()
        effects = self.driver.flush()
        answers: dict[str, list[Answer | Refusal]] = {}
        for answer in effects.replies:
            answers.setdefault(answer.client, []).append(answer)
        for session, theirs in answers.items():
            if (home := self._homes.get(session)) is not None:
                home.listener.on_answers(theirs)
        told: dict[str, list[ToSession]] = {}
        for session, message in effects.tells:
            told.setdefault(session, []).append(message)
        for session, messages in told.items():
            if (home := self._homes.get(session)) is not None:
                home.listener.on_told(messages)
        self._plan_flush()


_stages: dict[str, EmbeddedStage] = {}
"""The embedded stages of the systems of this process that have clients now."""


class EmbeddedHome(Home):
    """One client's way to the embedded stage of its system. All topics give the most: the stage keeps their events, in memory."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.name: str | None = None
        self._session = ""
        self._stage: EmbeddedStage | None = None
        self.listener = NOBODY

    @property
    def where(self) -> str:
        """The one in this process."""
        return f"the embedded stage of memory://{self.system}"

    async def open(self, key: SessionKey, name: str | None, listener: Listener) -> Topology:
        """Find the system's stage, or start it. It is never disconnected, so `on_state` is told nothing."""
        loop = asyncio.get_running_loop()
        stage = _stages.get(self.system)
        if stage is None or stage.loop.is_closed():  # clients that never closed went down with their loop
            stage = _stages[self.system] = EmbeddedStage(self.system, loop, levels=self.levels)
        if stage.loop is not loop:
            raise ConfigurationError(
                f"memory://{self.system} is in use in another event loop of this process: take another name here"
            )
        self.name, self._session, self.times = name, key.session, stage.times
        stage.enter(key.session, self)
        self._stage, self.listener = stage, listener
        return stage.topology

    def send(self, requests: Sequence[Request]) -> None:
        """Give requests to the stage."""
        if self._stage is not None:
            self._stage.handle_requests(requests, publisher_of(self._session, self.name))

    def say(self, message: FromSubscriber) -> None:
        """Give the stage what a subscription says."""
        if self._stage is not None:
            self._stage.handle_subscriber(self._session, message)

    async def close(self) -> None:
        """Leave the stage; the last one to leave ends it."""
        stage, self._stage, self.listener = self._stage, None, NOBODY
        if stage is not None and stage.leave(self._session) and _stages.get(self.system) is stage:
            del _stages[self.system]
