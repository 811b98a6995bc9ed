"""Who follows topics under a name in a simulation, in batches: drives the very machines that Spark's source with a name drives.

It takes cuts, reads from one to the next, and goes on there when its process has died. What it has not committed must be kept for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import attrs
import msgspec

from ordered_pubsub.core.client.named_reader import NamedReader, Turn
from ordered_pubsub.core.client.session import Outcome, Session
from ordered_pubsub.core.log.cuts import Clock
from ordered_pubsub.core.messages import Acked, AckSaved, Answer, ChangeAsk, Refusal, Request, ToSession
from ordered_pubsub.core.stage.driver import Driver
from ordered_pubsub.errors import UsageError
from ordered_pubsub.testing.ranges import PartsReader
from ordered_pubsub.testing.world import FAULTS_END_S, Follow

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation

IDENTITY = "followers"
AGAIN_S, PAUSE_S, TICK_S = 0.5, 1.5, 0.5
ASK_AGAIN_S = 5.0
"""So long it is waited for that an acknowledgement is saved, before the turn is taken again."""
LIVES_S = 8.0
"""So long a process lives on average, while things break."""

_requests, _acked = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(Acked)


@attrs.define(eq=False)
class FollowerHost:
    """One of them, and where it stores how far it has come."""

    simulation: Simulation
    action: Follow
    random: Random = attrs.field(init=False)
    committed: Clock = attrs.field(factory=dict)
    """what survives its process"""
    reader: NamedReader = attrs.field(init=False)
    life: int = 0
    turn: int = 0
    home: int | None = None
    is_ending: bool = False
    is_over: bool = False
    _connection: int = 0
    _requests: Session = attrs.field(init=False)
    _steps: Turn | None = None
    _said: ChangeAsk | Acked | None = None
    """what has no outcome yet"""
    _said_at: float = 0.0
    _parts: PartsReader | None = None
    _is_new: dict[str, bool] = attrs.field(factory=dict)
    """topics that it has never read: what it finds of them may be gone already"""

    def __attrs_post_init__(self) -> None:
        world = self.simulation.world
        self.random = Random(f"follower {world.seed} {world.chance} {self.action.name}")

    @property
    def session(self) -> str:
        """The one of this process."""
        return f"{self.action.name}#{self.life}"

    def begin(self) -> None:
        """A process is started."""
        self.life += 1
        self.turn = 0
        self.reader = NamedReader(self.action.name, f"{self.action.name}//log")
        self.simulation.trace("%s is started, and goes on at %s", self.session, self.committed)
        self.simulation.followers[self.session] = self
        self._later(self._take_turn, PAUSE_S)
        if self.simulation.now < FAULTS_END_S:
            self._later(self._die, 2 * LIVES_S)

    def _later(self, step: Callable[[], None], most_s: float) -> None:
        self.simulation.after(self.random.uniform(0.0, most_s), self._if_alive, self.life, step)

    def _if_alive(self, life: int, step: Callable[[], None]) -> None:
        if life == self.life and not self.is_over:
            step()

    def _die(self) -> None:
        """The process ends, whatever it does."""
        if self.simulation.now < FAULTS_END_S:
            self.simulation.trace("%s dies", self.session)
            self._break_off()
            del self.simulation.followers[self.session]
            if self._parts is not None:
                self._parts.is_over, self._parts = True, None
            self.begin()

    # -- turns --------------------------------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Take a cut, if there is anything new."""
        topics = self.action.topics[: 1 + self.turn] if self.life == 1 else self.action.topics
        stages, world = self.simulation.stages, self.simulation.world
        rank = self.random.randrange(world.stages)
        if stages[rank].driver is None or any(stages[world.owners[topic]].driver is None for topic in topics):
            self._later(self._take_turn, AGAIN_S)
            return
        for topic in topics:
            if topic not in self.committed:
                self.committed[topic] = stages[world.owners[topic]].disk.read_shelf.floor(topic)
                self._is_new[topic] = True
        self.is_ending = self.simulation.is_closing
        if not self.is_ending and (self.simulation.is_probed or (not self.news and self.turn)):
            self._later(self._take_turn, PAUSE_S)
            return
        self.turn += 1
        self._connection += 1
        self.home = rank
        stages[rank].handle("hello", lambda driver: driver.client_is_here(self.session, IDENTITY))
        if self.home is None:
            return  # the stage died of it
        self._requests = Session(self.session, self.simulation.topology, self.turn, is_connected=True)
        self._steps = self._closing(topics) if self.is_ending else self._cut(topics)
        self._tick(self._connection)
        self._go_on(None)

    def _cut(self, topics: tuple[str, ...]) -> Turn:
        return self.reader.cut(
            self.session, topics, {topic: self.committed[topic] for topic in topics}, self.simulation.now
        )

    def _closing(self, topics: tuple[str, ...]) -> Turn:
        """The very last turn: the subscription ends."""
        yield from self._cut(topics)
        yield ChangeAsk(self.reader.subscription, remove=topics, ends=True)
        return {}

    @property
    def news(self) -> list[str]:
        """The topics of which it has not read all that there is."""
        stages, owners = self.simulation.stages, self.simulation.world.owners
        return [
            topic
            for topic in self.action.topics
            if stages[owners[topic]].disk.read_shelf.last(topic) > self.committed.get(topic, -1)
        ]

    def _go_on(self, outcome: Outcome | None) -> None:
        """A turn goes on with what it has heard."""
        assert self._steps is not None
        try:
            self._said = self._steps.send(outcome)
        except StopIteration as over:
            self._break_off()
            self._found(over.value)
        except UsageError as error:
            self.simulation.trace("%s is refused: %s", self.session, error)
            self._break_off()
            self.is_over = self.is_ending  # it had ended, and was not told
            self._later(self._take_turn, PAUSE_S)
        else:
            self._say(self._said)

    def _say(self, said: ChangeAsk | Acked) -> None:
        self._said_at = self.simulation.now
        if isinstance(said, ChangeAsk):
            self._requests.change(said, self.simulation.now)
            self._send()
        else:
            self.simulation.after(self._delay(), self._said_at_home, self._connection, msgspec.msgpack.encode(said))

    def _break_off(self) -> None:
        """The line is let go of, and the turn with it."""
        if self.home is not None:
            driver = self.simulation.stages[self.home].driver
            if driver is not None:
                driver.client_is_gone(self.session)
        self.home = self._steps = self._said = None
        self._connection += 1

    def lost(self) -> None:
        """The home is gone."""
        self._break_off()
        self._later(self._take_turn, AGAIN_S)

    def _tick(self, connection: int) -> None:
        """Ask again what has no answer for long; and take the turn again if an acknowledgement is not saved."""
        if connection != self._connection or self.is_over:
            return
        if isinstance(self._said, Acked) and self.simulation.now > self._said_at + ASK_AGAIN_S:
            self.lost()
            return
        self._requests.tick(self.simulation.now)
        self._send()
        self.simulation.after(TICK_S, self._tick, connection)

    # -- the line to the home -----------------------------------------------------------------------------------------

    def _send(self) -> None:
        for request in self._requests.sends:
            data = msgspec.msgpack.encode(request)
            self.simulation.after(self._delay(), self._at_home, self._connection, data)
        self._requests.sends.clear()

    def _delay(self) -> float:
        return self.simulation.weather.client_delay_s * self.random.uniform(0.5, 2.0)

    def _at_home(self, connection: int, data: bytes) -> None:
        if connection == self._connection and self.home is not None:
            host = self.simulation.stages[self.home]
            request = host.taken_in(host.known(_requests.decode(data), IDENTITY))
            refusal = host.refusal_of(request)
            host.handle("asked", lambda driver: driver.handle_request(request, host.wall_clock, refusal))

    def _said_at_home(self, connection: int, data: bytes) -> None:
        if connection == self._connection and self.home is not None:
            acked, now = _acked.decode(data), self.simulation.now

            def step(driver: Driver) -> None:
                driver.handle_subscriber(self.session, acked, now, IDENTITY)

            self.simulation.stages[self.home].handle("acked", step)

    def answered(self, rank: int, answer: Answer | Refusal) -> None:
        """The home stage brings an answer."""
        if rank == self.home:
            self.simulation.after(self._delay(), self._hear, self._connection, answer)

    def told(self, rank: int, message: ToSession) -> None:
        """The home stage says something else."""
        if rank == self.home and isinstance(message, AckSaved):
            self.simulation.after(self._delay(), self._saved, self._connection)

    def _hear(self, connection: int, answer: Answer | Refusal) -> None:
        if connection == self._connection:
            for outcome in self._requests.handle_answer(answer, self.simulation.now):
                self.simulation.record.progress += 1
                self._go_on(outcome)

    def _saved(self, connection: int) -> None:
        if connection == self._connection and isinstance(self._said, Acked):
            self._go_on(None)

    # -- what it reads ------------------------------------------------------------------------------------------------

    def _found(self, cut: Clock) -> None:
        """A turn is over: read up to its cut."""
        if self.is_ending:
            self.is_over = True
            return
        end = {topic: max(count, self.committed[topic]) for topic, count in cut.items()}
        start = {topic: self.committed[topic] for topic in cut}
        done = partial(self._commit, end)
        self._parts = PartsReader(self.simulation, self.random, start, [end], done, self._note_lost)
        self._parts.begin()

    def _commit(self, end: Clock) -> None:
        """It has read so far, and that survives."""
        self._parts = None
        self.committed.update(end)
        for topic in end:
            self._is_new.pop(topic, None)
        self.simulation.record.batches_followed += 1
        self._later(self._take_turn, PAUSE_S)

    def _note_lost(self, topic: str, first_lost: int, first_there: int) -> None:
        if topic not in self._is_new:
            self.simulation.record.violation(
                "I3", f"{self.action.name} has not read {topic} {first_lost}, and its log begins at {first_there}"
            )

    @property
    def unrest(self) -> list[str]:
        """What it has still to do."""
        if self.is_over or not self.life:
            return []
        if self.simulation.is_closing:
            return [f"{self.action.name} has not ended"]
        is_busy = self._steps is not None or self._parts is not None
        has_news = not self.simulation.is_probed and self.news
        return [f"{self.action.name} has not read {self.news}"] if is_busy or has_news else []
