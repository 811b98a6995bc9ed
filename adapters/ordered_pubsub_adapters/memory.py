"""`memory://`: an ENS inside the process, which misbehaves only if asked to.

    memory://name?reorder=0.3&duplicate=0.1&lose=0.1&delay_s=0.02&seed=7

Clients of one event loop that name the same system share one ENS, until the last of them closes. The first to open it fixes
its faults; whoever comes later names the same ones, or none. Each subscriber has a lane, into which every frame of its topics
is put. A frame that is to be reordered is let past only when up to `OVERTAKERS_MAX` later ones have gone before, or after a
moment in which none came: so the order in which each lane delivers depends on the seed and on what was published, and not on
how busy the machine is.

A lane that holds `LANE_FRAMES_MAX` frames is full: `publish` on its topics waits, since nothing is ever dropped but by `lose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random
from urllib.parse import urlsplit

import attrs

from ordered_pubsub.adapter import Adapter, Capabilities, Frame, FramesHandler, StateHandler
from ordered_pubsub.errors import AdapterError, ConfigurationError
from ordered_pubsub.supervision import Supervisor
from ordered_pubsub_adapters.urls import Reader, number, read_parameters, seconds

LANE_FRAMES_MAX = 10_000
BATCH_FRAMES_MAX = 1_000
OVERTAKERS_MAX = 16
HOLD_S = 0.005
"""For so long nothing must have come before a frame goes that waits to be overtaken."""
QUIET_TURNS = 50
"""And for so many turns of the event loop."""
DELAY_MAX_S = 60.0


@attrs.frozen
class Faults:
    """How the ENS misbehaves: the chances of a frame's each copy, and how long all of them take."""

    reorder: float = 0.0
    duplicate: float = 0.0
    lose: float = 0.0
    delay_s: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        given = [f"{key}={value}" for key, value in attrs.asdict(self).items() if value]
        return "with ?" + "&".join(given) if given else "without faults"


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


_CHANCE = number(0.0, 1.0, "a probability from 0 to 1, such as 0.3")
_READERS: dict[str, Reader] = {
    "reorder": _CHANCE,
    "duplicate": _CHANCE,
    "lose": _CHANCE,
    "delay_s": seconds(0.0, DELAY_MAX_S),
    "seed": _seed,
}


def parse_url(url: str) -> tuple[str, Faults | None]:
    """A system's name and the faults that the URL asks for, None if it asks for none."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}") from None
    if parts.path.strip("/") or parts.fragment or "@" in parts.netloc:
        raise ConfigurationError(
            f"{url!r}: expected memory://name, and nothing after the name but ?{'=…&'.join(_READERS)}=…"
        )
    values = read_parameters("memory://", parts.query, _READERS)
    return parts.netloc, Faults(**values) if values else None


@attrs.define(eq=False)
class _Lane:
    """What is on its way to one subscriber, in the order in which it will arrive."""

    on_frames: FramesHandler
    hold_s: float
    heap: list[tuple[int, int, float, Frame]] = attrs.field(factory=list)
    """(place, sequence, earliest arrival, frame)"""
    sequence: int = 0
    horizon: int = 0
    """frames up to this place may go; those beyond wait to be overtaken"""
    newest_at: float = 0.0
    """when the frame that came last may arrive"""
    news: asyncio.Event = attrs.field(factory=asyncio.Event)
    room: asyncio.Event = attrs.field(factory=asyncio.Event)

    def put(self, frame: Frame, behind: int, at: float) -> None:
        """Take a frame that `behind` later ones are to overtake."""
        self.sequence += 1
        self.horizon = self.sequence
        self.newest_at = at
        heappush(self.heap, (self.sequence + behind, self.sequence, at, frame))
        self.news.set()

    def take(self, now: float) -> list[Frame]:
        """The frames that arrive now."""
        frames: list[Frame] = []
        heap, horizon = self.heap, self.horizon
        while heap and len(frames) < BATCH_FRAMES_MAX and heap[0][0] <= horizon and heap[0][2] <= now:
            frames.append(heappop(heap)[3])
        return frames

    async def run(self) -> None:
        """Deliver, for as long as the subscriber is there."""
        loop = asyncio.get_running_loop()
        while True:
            self.news.clear()
            frames = self.take(loop.time())
            if len(self.heap) < LANE_FRAMES_MAX:
                self.room.set()
            if frames:
                await self.on_frames(frames)
                await asyncio.sleep(0)
            else:
                await self._wait(loop)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until something is put in, or may arrive."""
        if not self.heap:
            await self.news.wait()
            return
        is_held = self.heap[0][0] > self.horizon
        due_at = self.newest_at + self.hold_s if is_held else self.heap[0][2]
        timer = loop.call_at(due_at, self.news.set)
        await self.news.wait()
        timer.cancel()
        if is_held and await self._is_quiet(loop):
            self.horizon = self.sequence + OVERTAKERS_MAX

    async def _is_quiet(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether nothing has come for a while, though all who are ready had a turn: a busy machine is not a quiet one."""
        sequence = self.sequence
        if loop.time() < self.newest_at + self.hold_s:
            return False
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
            if self.sequence != sequence:
                return False
        return True


@attrs.define(eq=False)
class _Ens:
    """The event notification service of one system."""

    name: str
    faults: Faults
    loop: asyncio.AbstractEventLoop
    users: int = 0
    subscribers: dict[str, dict[_Lane, bool]] = attrs.field(factory=dict)
    random: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = Random(self.faults.seed)

    def publish(self, frame: Frame, now: float) -> None:
        """Put a frame into the lane of every subscriber, as badly as was asked for."""
        faults, draw = self.faults, self.random.random
        for lane in self.subscribers.get(frame.topic, ()):
            if faults.lose and draw() < faults.lose:
                continue
            copies = 2 if faults.duplicate and draw() < faults.duplicate else 1
            for _ in range(copies):
                overtaken = faults.reorder and draw() < faults.reorder
                behind = self.random.randint(1, OVERTAKERS_MAX) if overtaken else 0
                lane.put(frame, behind, now + faults.delay_s)


_systems: dict[str, _Ens] = {}
"""The systems of this process that have clients now."""


class MemoryAdapter(Adapter):
    """One client's connection to an ENS of this process."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._name, self._asked = parse_url(url)
        self._ens: _Ens | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def local_system(self) -> str:
        """The name in the URL."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Reliable, but for the faults that were asked for."""
        faults = self._ens.faults if self._ens else self._asked or Faults()
        return Capabilities(
            loses=faults.lose > 0,
            reorders=faults.reorder > 0,
            duplicates=faults.duplicate > 0,
            keeps_while_away=False,
            carries_headers=True,
            confirms=True,
        )

    async def open(self, on_frames: FramesHandler, on_state: StateHandler) -> None:
        """Join the system, or found it. It is never disconnected, so `on_state` is told nothing."""
        if self._ens is not None:
            raise AdapterError(f"this adapter for memory://{self._name} is open already; each client has its own")
        loop = asyncio.get_running_loop()
        ens = _systems.get(self._name)
        if ens is None or ens.loop.is_closed():  # clients that never closed went down with their loop
            ens = _systems[self._name] = _Ens(self._name, self._asked or Faults(), loop)
        if ens.loop is not loop:
            raise ConfigurationError(
                f"memory://{self._name} is in use in another event loop of this process: take another name here"
            )
        if self._asked is not None and self._asked != ens.faults:
            raise ConfigurationError(
                f"memory://{self._name} is open {ens.faults}, and was asked for {self._asked}: the first to open it fixes its "
                "faults; name the same ones, or none, or another system"
            )
        ens.users += 1
        self._ens = ens
        self._lane = _Lane(on_frames, max(ens.faults.delay_s, HOLD_S))
        self._task = Supervisor(f"memory://{self._name}", self.on_failure).must(
            self._lane.run(), "giving on what has come"
        )

    async def publish(self, frames: Sequence[Frame]) -> None:
        """Hand frames over. Waits, when they are taken, for subscribers whose lanes are full. Cancelled, they are taken."""
        ens = self._opened()
        now = ens.loop.time()
        lanes: dict[_Lane, bool] = {}
        for frame in frames:
            ens.publish(frame, now)
            lanes.update(ens.subscribers.get(frame.topic, {}))
        for lane in lanes:
            if len(lane.heap) >= LANE_FRAMES_MAX:
                lane.room.clear()
                await lane.room.wait()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Let the frames of these topics come, from now on."""
        for topic in topics:
            self._opened().subscribers.setdefault(topic, {})[self._lane] = True

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Let no more frames of these topics into the lane."""
        subscribers = self._opened().subscribers
        for topic in topics:
            lanes = subscribers.get(topic, {})
            lanes.pop(self._lane, None)
            if not lanes:
                subscribers.pop(topic, None)

    async def close(self) -> None:
        """Leave the system; the last one to leave takes it down."""
        if self._task is None or self._ens is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait((task,))
        await self.unsubscribe([topic for topic, lanes in self._ens.subscribers.items() if self._lane in lanes])
        self._lane.room.set()
        ens, self._ens = self._ens, None
        ens.users -= 1
        if not ens.users and _systems.get(ens.name) is ens:
            del _systems[ens.name]

    def _opened(self) -> _Ens:
        if self._ens is None:
            raise AdapterError(f"memory://{self._name} is not open")
        return self._ens
