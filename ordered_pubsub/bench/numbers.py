"""How many numbers a stage gives in a second: requests and answers only, without a broker.

A client's way to its stage (`NetworkHome`) is used without the client above it: 64 requests are under way, each asks for a batch
of numbers, for one of two topics in turn, which a subscription holds together; so every answer has a timestamp. The topics give
"ordered": nothing is brought to be kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from ordered_pubsub.bench.aims import NUMBERS_PER_S
from ordered_pubsub.bench.plan import Amounts
from ordered_pubsub.bench.processes import BenchError, bench_stage
from ordered_pubsub.bench.report import table
from ordered_pubsub.bench.results import Spread
from ordered_pubsub.bench.rounds import Say
from ordered_pubsub.bench.sides import now_ns
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config.addresses import parse_address
from ordered_pubsub.core.messages import Answer, ChangeAsk, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.testing.processes import ANSWER_S, cpu_ns
from ordered_pubsub.wire.sessions import make_session

BATCHES = (1, 10, 100, 1_000)
IN_FLIGHT = 64
TOPICS = ("bench/a", "bench/b")
JUDGED = 100
"""The batch by which the aim is judged."""
NUMBERS_MAX = 10_000_000
WARM_REQUESTS = 200


@attrs.define(eq=False)
class Asking:
    """Asks a stage for numbers, and counts them."""

    home: NetworkHome
    session: str = ""
    _sequence: int = 0
    _answered: int = 0
    _left: int = 0
    _batch: int = 1
    _numbers: int = 0
    _error: str = ""
    _done: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def open(self) -> None:
        """Connect, and hold both topics together."""
        key = make_session(None)
        self.session = key.session
        await self.home.open(key, None, attrs.evolve(NOBODY, on_answers=self._take))
        self._begin(0, 0)
        self._send([self._request(ChangeAsk(f"{self.session}/1", TOPICS, (), WEIGHTS["total"]))])
        await self._wait()

    async def ask(self, batch: int, requests: int) -> int:
        """Ask so many times for a batch of numbers; return how many numbers were given."""
        self._begin(batch, requests)
        self._fill()
        await self._wait()
        return self._numbers

    def _begin(self, batch: int, requests: int) -> None:
        self._batch, self._left, self._numbers = batch, requests, 0
        self._done.clear()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._done.wait(), ANSWER_S)
        except asyncio.TimeoutError:
            raise BenchError(f"the stage did not answer within {ANSWER_S:g} s: {self.home.trouble}") from None
        if self._error:
            raise BenchError(f"the stage refused a request: {self._error}")

    def _request(self, part: PublishAsk | ChangeAsk) -> Request:
        self._sequence += 1
        return Request(self.session, 1, self._sequence, self._sequence - 1, self._answered, (part,))

    def _fill(self) -> None:
        """Send what may be under way, in one go."""
        count = min(self._left, IN_FLIGHT - (self._sequence - self._answered))
        self._left -= count
        asks = (PublishAsk(TOPICS[(self._sequence + n) % 2], self._batch) for n in range(count))
        self._send([self._request(ask) for ask in asks])

    def _send(self, requests: Sequence[Request]) -> None:
        if requests:
            self.home.send(requests)

    def _take(self, answers: Sequence[Answer | Refusal]) -> None:
        for answer in answers:
            self._answered += 1
            if isinstance(answer, Refusal):
                self._error = answer.reason
                continue
            self._numbers += sum(part.last - part.first + 1 for part in answer.parts if isinstance(part, Publication))
        self._fill()
        if self._answered == self._sequence or self._error:
            self._done.set()


@attrs.define
class NumbersRow:
    """One size of batch at one durability."""

    durability: str
    batch: int
    rates: list[float] = attrs.field(factory=list)
    cpu_us: list[float] = attrs.field(factory=list)
    """the stage's processor time for each number"""

    @property
    def rate(self) -> Spread:
        """Numbers per second."""
        spread = Spread.of(self.rates)
        assert spread is not None
        return spread


async def measure_numbers(amounts: Amounts, durabilities: Sequence[str], say: Say) -> list[NumbersRow]:
    """All batches at each durability, round by round."""
    rows = [NumbersRow(durability, batch) for durability in durabilities for batch in BATCHES]
    with TemporaryDirectory(prefix="ordered-pubsub-bench-") as folder:
        stages = {
            durability: bench_stage(Path(folder) / durability, durability, "ordered") for durability in durabilities
        }
        askings: dict[str, Asking] = {}
        try:
            for durability, stage in stages.items():
                stage.start()
                askings[durability] = Asking(NetworkHome([parse_address(stage.address)]))
                await askings[durability].open()
            for number in range(amounts.rounds):
                for row in rows if number % 2 == 0 else reversed(rows):
                    say(f"numbers: round {number + 1} of {amounts.rounds}, {row.durability}, batches of {row.batch}")
                    await _measure_row(row, askings[row.durability], stages[row.durability].pid, amounts)
        finally:
            for asking in askings.values():
                await asking.home.close()
            for stage in stages.values():
                stage.stop()
    return rows


async def _measure_row(row: NumbersRow, asking: Asking, pid: int | None, amounts: Amounts) -> None:
    requests = await _requests(row, asking, amounts)
    cpu_before, began_ns = cpu_ns(pid), now_ns()
    numbers = await asking.ask(row.batch, requests)
    seconds, cpu_after = (now_ns() - began_ns) / 1e9, cpu_ns(pid)
    if numbers != requests * row.batch:
        raise BenchError(f"the stage gave {numbers} numbers, and {requests * row.batch} were asked for")
    row.rates.append(numbers / seconds)
    if cpu_before is not None and cpu_after is not None:
        row.cpu_us.append((cpu_after - cpu_before) / numbers / 1e3)


async def _requests(row: NumbersRow, asking: Asking, amounts: Amounts) -> int:
    """How many fit into the time, after a few that are not counted."""
    most = NUMBERS_MAX // row.batch
    if amounts.events is not None:
        return max(1, min(amounts.events // row.batch, most))
    began_ns = now_ns()
    await asking.ask(row.batch, WARM_REQUESTS)
    rate = WARM_REQUESTS / ((now_ns() - began_ns) / 1e9)
    return max(WARM_REQUESTS, min(int(rate * amounts.seconds), most))


def describe_numbers(rows: Sequence[NumbersRow]) -> str:
    """A table, and the aim."""
    cells = [("durability", "batch", "numbers/s", "min..max", "stage us/number")]
    for row in rows:
        cpu = Spread.of(row.cpu_us)
        cells.append(
            (
                row.durability,
                f"{row.batch:,}",
                f"{row.rate.middle:,.0f}",
                f"{row.rate.least:,.0f}..{row.rate.most:,.0f}",
                "-" if cpu is None else f"{cpu.middle:.2f}",
            )
        )
    lines = [f"numbers: one stage, {IN_FLIGHT} requests under way, two topics in turn, no broker"]
    lines += ["  " + line for line in table(cells)]
    return "\n".join([*lines, *(f"  {_judged(row)}" for row in rows if row.batch == JUDGED)])


def _judged(row: NumbersRow) -> str:
    verdict = "met" if row.rate.middle >= NUMBERS_PER_S else "MISSED"
    return (
        f"{verdict:7}numbers, {row.durability}: at least {NUMBERS_PER_S:,} a second in batches: {row.rate.middle:,.0f}"
    )


def numbers_data(rows: Sequence[NumbersRow]) -> list[dict[str, Any]]:
    """Everything, as plain data."""
    return [attrs.asdict(row) for row in rows]
