"""Who writes batches in a simulation, as tasks that are run again: drives the very machines that `ordered_pubsub.spark` drives.

A run is killed at any point, or is given up and goes on all the same; then another one has the same rows, and publishes what is
left of them. Now and then one has other rows, which must be noticed. All that is drawn for it has a chance of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import attrs
import msgspec

from ordered_pubsub.core.client.writer import StageWriter, TaskWriter
from ordered_pubsub.core.log.questions import Trace, Traced
from ordered_pubsub.core.log.shelf import ENDLESS
from ordered_pubsub.core.messages import Answer, Operation, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.errors import AccessDenied, SessionExpired, UsageError
from ordered_pubsub.testing.record import EventRecord, TaskRecord
from ordered_pubsub.testing.world import FAULTS_END_S, Write

if TYPE_CHECKING:
    from ordered_pubsub.testing.simulation import Simulation
    from ordered_pubsub.testing.stage_host import StageHost

IDENTITY = "tasks"
AGAIN_S, AGAIN_MOST_S = 0.1, 10.0
"""So soon a line is made again when it is lost, and so late if it is lost again and again."""
ASK_AGAIN_S = 5.0
"""So long an answer is waited for before the same is asked on another line."""
NEXT_RUN_S, NEXT_ROWS_S, LATE_S = 1.0, 0.3, 4.0
KILLED, GIVEN_UP, WRONG, REPEATED = 0.3, 0.3, 0.5, 0.5
"""How likely a run is killed, or given up and not killed; and how likely a batch that was written is written again with other
rows, or with the same ones."""
PATIENCE = 5
"""So often the next run waits twice as long when one has ended by itself."""
RUNS_MAX = 6
"""So many runs of a batch are killed or given up at the most."""

_request_encoder, _request_decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Request)
_indices = msgspec.msgpack.Decoder(list[int])
_answers = msgspec.msgpack.Decoder(Answer | Refusal)


@attrs.frozen(eq=False)
class TaskRow:
    """A row of a task."""

    event: EventRecord
    content: int
    """what is written: the index of the event, or of another one"""

    @property
    def topic(self) -> str:
        """On which topic it is published."""
        return self.event.topic

    @property
    def size(self) -> int:
        """As good as nothing."""
        return 1


@attrs.define(eq=False)
class TaskHost:
    """One who writes batches, one after the other: decides which run there is next."""

    simulation: Simulation
    action: Write
    random: Random = attrs.field(init=False)
    record: TaskRecord = attrs.field(init=False)
    batch: int = -1
    rows: list[TaskRow] = attrs.field(factory=list)
    """of this batch"""
    runs: list[TaskRun] = attrs.field(factory=list)
    """those that go on"""
    started: int = 0
    """how many runs of this batch there were"""
    is_written: bool = False
    is_over: bool = False

    def __attrs_post_init__(self) -> None:
        simulation, world = self.simulation, self.simulation.world
        self.random = Random(f"task {world.seed} {world.chance} {self.action.writer}")
        self.record = TaskRecord(self.action.writer, self.action.is_in_one_order)
        simulation.record.tasks.append(self.record)

    def session(self, topic: str) -> str:
        """In whose name it publishes on a topic."""
        session = f"{self.action.writer}@{self.simulation.world.owners[topic]}"
        self.simulation.task_sessions[session] = True
        return session

    @property
    def hands_over(self) -> bool:
        """Whether subscribers hear of events from the ENS as well."""
        return self.action.hands_over

    def begin_batch(self) -> None:
        """The next batch, or the end."""
        self.batch += 1
        if self.batch >= len(self.action.batches):
            self.is_over = True
            return
        record, known = self.simulation.record, tuple[EventRecord, ...]()
        self.rows, self.started, self.is_written = [], 0, False
        for _ in range(self.action.batches[self.batch]):
            topic = self.random.choice(self.action.topics)
            event = record.new_event(topic, self.session(topic), {}, known)
            event.epoch = self.batch + 1
            self.rows.append(TaskRow(event, event.index))
            known = (event,) if self.action.is_in_one_order else ()
        self.record.batches.append([row.event for row in self.rows])
        self._start(self.batch, self.rows)

    def _start(self, batch: int, rows: Sequence[TaskRow], is_wrong: bool = False) -> None:
        self.started += 1
        run = TaskRun(self, list(rows), batch + 1, is_wrong)
        self.runs.append(run)
        self.record.runs += 1
        self.simulation.trace("%s begins a run of batch %d", self.action.writer, batch)
        self.simulation.after(self.random.uniform(0.0, NEXT_ROWS_S), run.go_on)
        if self.simulation.now < FAULTS_END_S and self.started <= RUNS_MAX and not is_wrong:
            self.simulation.after(self.random.expovariate(1 / NEXT_RUN_S), self._maybe_end, run)

    def _maybe_end(self, run: TaskRun) -> None:
        """A run may be killed; or it is only believed to be dead."""
        if run.is_over or run.epoch != self.batch + 1 or self.is_written:
            return
        drawn, is_alone = self.random.random(), sum(not other.is_wrong for other in self.runs) == 1
        if drawn < KILLED:
            self.simulation.trace("%s: a run of batch %d is killed", self.action.writer, self.batch)
            self.record.killed += 1
            run.kill()
            self.ended(run)
        elif drawn < KILLED + GIVEN_UP and is_alone:
            self.simulation.trace("%s: a run of batch %d is given up", self.action.writer, self.batch)
            self.record.given_up += 1
            self.simulation.after(self.random.uniform(0.0, NEXT_RUN_S), self._start_again, self.batch)
        else:
            self.simulation.after(self.random.expovariate(1 / NEXT_RUN_S), self._maybe_end, run)

    def _start_again(self, batch: int) -> None:
        if batch == self.batch and not self.is_written:
            self._start(batch, self.rows)

    def ended(self, run: TaskRun, is_written: bool = False) -> None:
        """A run is over."""
        self.runs.remove(run)
        if run.epoch != self.batch + 1 or self.is_written:
            return
        if is_written:
            self._written()
        else:
            # What was refused as the very first request of a session stays refused for a while.
            most_s = NEXT_RUN_S * 2 ** min(self.started, PATIENCE)
            self.simulation.after(self.random.uniform(0.0, most_s), self._start_if_none, self.batch)

    def _start_if_none(self, batch: int) -> None:
        if not any(run.epoch == batch + 1 for run in self.runs):
            self._start_again(batch)

    def _written(self) -> None:
        """A run has come to its end: all rows must be published; then the batch may come once more, or with other rows."""
        self.is_written = True
        simulation, writer = self.simulation, self.action.writer
        simulation.trace("%s has written batch %d", writer, self.batch)
        for row in self.rows:
            if not row.event.number and not self._is_on_disk(row.event):
                simulation.record.violation(
                    "I15", f"{writer}: batch {self.batch} is written, and {row.event.index} is not"
                )
        if self.random.random() < REPEATED:
            simulation.after(self.random.uniform(0.0, LATE_S), self._start, self.batch, self.rows)
        if self.random.random() < WRONG:
            simulation.after(self.random.uniform(0.0, LATE_S), self._start, self.batch, self._other_rows(), True)
        simulation.after(self.random.uniform(0.0, NEXT_RUN_S), self.begin_batch)

    def _is_on_disk(self, event: EventRecord) -> bool:
        """Whether the owner of its topic has an event that is not complete yet."""
        shelf = self.simulation.stages[self.simulation.world.owners[event.topic]].disk.read_shelf
        rows = shelf.get("events", event.topic, 1, ENDLESS)
        return any(event.index in _indices.decode(row.data) for row in rows)

    def _other_rows(self) -> list[TaskRow]:
        """One less, or another one among them."""
        at, last = self.random.randrange(len(self.rows)), self.rows[-1].event.publisher
        if self.random.random() < 0.3 and any(row.event.publisher == last for row in self.rows[:-1]):
            return self.rows[:-1]  # a stage at which there is none any more is not asked
        row = self.rows[at]
        other = self.simulation.record.new_event(row.topic, row.event.publisher, {}, ())
        other.is_refused = True
        self.record.wrong.append(other)
        return [*self.rows[:at], TaskRow(other, other.index), *self.rows[at + 1 :]]


@attrs.define(eq=False)
class TaskRun:
    """One run of a task: what `ordered_pubsub.spark.publishing` is, in a simulation."""

    host: TaskHost
    rows: list[TaskRow]
    epoch: int
    is_wrong: bool
    is_over: bool = False
    _task: TaskWriter = attrs.field(init=False)
    _steps: Iterator[StageWriter] = attrs.field(factory=lambda: iter(()))
    _waiting: StageWriter | None = None
    _lines: dict[StageWriter, TaskLine] = attrs.field(factory=dict)
    _put: int = 0
    """how many rows were put"""
    _is_finishing: bool = False

    def __attrs_post_init__(self) -> None:
        owners, action = self.host.simulation.world.owners, self.host.action
        self._task = TaskWriter(owners.__getitem__, self._begin, self, action.is_in_one_order, action.events_max)

    def _begin(self, rank: int, topic: str) -> StageWriter:
        writer = StageWriter(f"stage-{rank}", topic, self.host.session(topic), self.epoch)
        self._lines[writer] = TaskLine(self, rank, writer)
        return writer

    def name(self, row: TaskRow, number: int, rank: int) -> None:
        """Rows have their names."""

    def ask(self, rank: int, topic: str, rows: Sequence[TaskRow]) -> PublishAsk:
        """Ask for numbers for all these rows."""
        return self.host.simulation.packer.ask(topic, [row.event for row in rows])

    def waits_for(self, writer: StageWriter) -> bool:
        """Whether it goes on when this one does not wait any more."""
        return self._waiting is writer

    def go_on(self) -> None:
        """Put rows, a few at a time, and wait where a stage has to answer first."""
        try:
            self._go_on()
        except (UsageError, SessionExpired) as error:
            self._fail(error)

    def _go_on(self) -> None:
        room = self.host.random.choice((1, 3, 50))
        while not self.is_over and not (self._waiting is not None and self._waiting.is_waiting):
            self._waiting = next(self._steps, None)
            self._carry()
            if self._waiting is not None:
                self._lines[self._waiting].need()
            elif self._is_finishing:
                self._finish()
            elif self._put == len(self.rows):
                self._is_finishing, self._steps = True, iter(self._task.finish())
            elif room:
                room -= 1
                row = self.rows[self._put]
                self._put += 1
                self._steps = iter(self._task.put(row, zlib.crc32(str(row.content).encode(), self._task.digest)))
            else:
                simulation, random = self.host.simulation, self.host.random
                simulation.after(random.uniform(0.0, NEXT_ROWS_S), self.go_on)
                return

    def _carry(self) -> None:
        """Say what is to be said; let the ENS have what has its place."""
        asking, self._task.asking = self._task.asking, []
        for writer in asking:
            self._lines[writer].say()
        published, self._task.published = self._task.published, []
        simulation = self.host.simulation
        for part, rows in published if self.host.hands_over else ():
            events = [row.event for row in rows]
            for carried in simulation.packer.frames(part, events):
                simulation.ens.publish(carried)
            for event in events:
                event.handed_over_at = simulation.now

    def _finish(self) -> None:
        """It has come to its end."""
        self.close()
        if self.is_wrong:
            self.host.simulation.record.violation(
                "I15", f"other rows of batch {self.epoch - 1} were taken for the same"
            )
        self.host.ended(self, is_written=not self.is_wrong)

    def _fail(self, error: UsageError | SessionExpired) -> None:
        simulation = self.host.simulation
        simulation.trace("%s: a run of batch %d ends: %s", self.host.action.writer, self.epoch - 1, error)
        self.close()
        if self.is_wrong and isinstance(error, UsageError) and not isinstance(error, AccessDenied):
            self.host.record.noticed += 1
        elif isinstance(error, UsageError) and not isinstance(error, AccessDenied):
            simulation.record.violation("I15", f"{self.host.action.writer}: a run ended, and should not: {error}")
        else:
            self.host.record.ended += 1
        self.host.ended(self)

    def kill(self) -> None:
        """It dies; what it has said may still arrive."""
        self.close()

    def close(self) -> None:
        """Nothing more comes of it."""
        self.is_over = True
        for line in self._lines.values():
            line.leave()


@attrs.define(eq=False)
class TaskLine:
    """The line of one writer to its stage, which brings everything in its order, until it is lost."""

    run: TaskRun
    rank: int
    writer: StageWriter
    is_open: bool = False
    _connection: int = 0
    _losses: int = 0
    """how often it was lost since the writer had what it waited for"""
    _is_wanted: bool = False
    """whether it is being made"""
    _latest: float = 0.0

    def need(self) -> None:
        """Something is waited for from the stage."""
        if not self.is_open and not self._is_wanted:
            self._is_wanted = True
            self._simulation.after(self._pause(), self._connect)
        self.say()

    @property
    def _simulation(self) -> Simulation:
        return self.run.host.simulation

    def _pause(self) -> float:
        most = min(AGAIN_S * 2**self._losses, AGAIN_MOST_S)
        return self.run.host.random.uniform(0.0, most)

    def _connect(self) -> None:
        """Make it; another one of the same session is lost by that."""
        simulation, session = self._simulation, self.writer.session
        self._is_wanted = False
        if self.run.is_over:
            return
        host, other = simulation.stages[self.rank], simulation.task_lines.get(session)
        if host.driver is not None:
            if other is not None:
                other.lost()
            host.handle("hello", lambda driver: driver.client_is_here(session, IDENTITY))
        if host.driver is None:
            self._losses += 1
            self.need()
            return
        simulation.task_lines[session] = self
        self.is_open = True
        self._connection += 1
        self.writer.connected()
        simulation.after(ASK_AGAIN_S, self._lose_patience, self._connection)
        self.say()

    def lost(self) -> None:
        """It is lost."""
        self.leave()
        self._losses += 1
        if not self.run.is_over:
            self.writer.lost()
            if self.writer.is_waiting:
                self.need()

    def leave(self) -> None:
        """Let it go."""
        if self.is_open:
            self.is_open = False
            self._connection += 1
            self._simulation.task_lines.pop(self.writer.session, None)
            host, session = self._simulation.stages[self.rank], self.writer.session
            if host.driver is not None:
                host.driver.client_is_gone(session)

    def _lose_patience(self, connection: int) -> None:
        """Nothing may have come for long."""
        if connection == self._connection and not self.run.is_over:
            if self.writer.is_waiting:
                self._simulation.trace("%s has no answer for long", self.writer.session)
                self.lost()
            else:
                self._simulation.after(ASK_AGAIN_S, self._lose_patience, connection)

    def _arrival(self) -> float:
        delay_s = self._simulation.weather.client_delay_s
        self._latest = max(self._simulation.now + delay_s * self.run.host.random.uniform(0.5, 2.0), self._latest)
        return self._latest

    def say(self) -> None:
        """Say what the writer has to say, if there is a line."""
        if not self.is_open:
            return
        said, self.writer.says = self.writer.says, []
        for message in said:
            self._simulation.trace("%s says %s", self.writer.session, message)
            if isinstance(message, Trace):
                self._simulation.at(self._arrival(), self._trace, self._connection)
            else:
                self._simulation.at(self._arrival(), self._at_stage, _request_encoder.encode(message))

    def _trace(self, connection: int) -> None:
        host, session = self._simulation.stages[self.rank], self.writer.session
        if connection == self._connection and host.driver is not None:
            traced = Traced(1, *host.driver.stage.state.requests.traced(session))
            self._simulation.at(self._arrival(), self._hear, connection, partial(self.writer.traced, traced))

    def _at_stage(self, data: bytes) -> None:
        """A request arrives, though its line may be gone by now."""
        host = self._simulation.stages[self.rank]
        request = host.taken_in(host.known(_request_decoder.decode(data), IDENTITY))
        refusal = host.refusal_of(request)
        host.handle("asked", lambda driver: driver.handle_request(request, host.wall_clock, refusal))

    def answered(self, rank: int, answer: Answer | Refusal) -> None:
        """The stage answers."""
        if rank == self.rank:
            decoded = _answers.decode(msgspec.msgpack.encode(answer))
            step = partial(self.writer.answered, decoded)
            self._simulation.at(self._arrival(), self._hear, self._connection, step)

    def _hear(self, connection: int, step: partial[None]) -> None:
        if connection != self._connection or self.run.is_over:
            return
        try:
            step()
        except (UsageError, SessionExpired) as error:
            self.run._fail(error)
            return
        if not self.writer.is_waiting:
            self._losses = 0
            self._simulation.record.progress += 1
        self.say()
        if self.run.waits_for(self.writer):
            self.run.go_on()


def number_rows(simulation: Simulation, host: StageHost, operation: Operation) -> None:
    """An operation is complete and on disk at an owner: if it is a task's, the log says which rows have its numbers."""
    if operation.client not in simulation.task_sessions:
        return
    written = 0
    for part in operation.parts:
        if not isinstance(part, Publication) or simulation.world.owners[part.topic] != host.rank:
            continue
        for row in host.disk.shelf.get("events", part.topic, part.first, part.last):
            for number, index in enumerate(_indices.decode(row.data), row.first):
                event = simulation.record.events[index]
                if event.number not in (0, number):
                    simulation.record.violation(
                        "I15", f"row {index} was published as {part.topic} {event.number}, and again as {number}"
                    )
                event.numbered(number, operation.sequence)
                event.written, written = written, written + 1
