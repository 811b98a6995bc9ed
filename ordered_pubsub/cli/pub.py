"""`ordered-pubsub pub`: publish events on a topic, from arguments or from lines.

Lines are published as fast as the client's pipeline takes them; while that is full nothing is read, so a pipe waits. Receipts
are awaited beside that, in the order of the lines. A line that cannot be an event is skipped, and said; what the stage or the
broker refuses would be refused again, so nothing more is read then. Every event that was not published is counted, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import attrs

from ordered_pubsub.cli.clients import add_client_options, client_section, connect, note_wildcards, run
from ordered_pubsub.cli.lines import TextLine, read_lines
from ordered_pubsub.cli.output import Output
from ordered_pubsub.client.client import Client
from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.waiting import within
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.errors import (
    Closed,
    OrderedPubSubError,
    SessionExpired,
    Timeout,
    UnavailableError,
    UsageError,
    WouldBlock,
)
from ordered_pubsub.wire.event_frames import check_headers

FAILURES_SHOWN_MAX = 10
PROGRESS_AFTER_S = 1.0
PROGRESS_EVERY_S = 0.5

DESCRIPTION = "Publishes each DATA as an event, or each line of standard input."
EPILOG = """\
examples:
  ordered-pubsub pub trades '{"symbol": "ACME", "price": 101.5}' --ens mqtt://127.0.0.1:1883 --sequencer ops://127.0.0.1:7411
  ordered-pubsub pub news 'plain text' --header language=en
  tail -f events.log | ordered-pubsub pub log - --quiet

DATA that is JSON is published as JSON, other DATA as text. For each event that has its place, its receipt is printed: topic,
number, id.

exit code: 0 if all events were published, 1 if one was not, 2 if the call does not fit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="what to publish on")
    add("data", metavar="DATA", nargs="+", help="an event; a single '-' is standard input, an event a line")
    add("--raw", action="store_true", help="publish DATA as the bytes that they are, not as JSON or text")
    add("--header", metavar="NAME=VALUE", action="append", type=_header, default=[], help="a header of each event")
    add("--quiet", action="store_true", help="print no receipts and no summary")
    add_client_options(parser)
    parser.set_defaults(run=command)


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} does not fit; expected NAME=VALUE")
    return name, value


def command(arguments: argparse.Namespace) -> int:
    """Publish, print, and say by the exit code whether all was published."""
    check_topic(arguments.topic)
    note_wildcards([arguments.topic])
    check_headers(dict(arguments.header))
    return run(lambda: _publish(arguments), "pub")


async def _publish(arguments: argparse.Namespace) -> int:
    section = client_section(arguments)
    is_piped = arguments.data == ["-"]
    lines = read_lines(section.payload_bytes_max + 2) if is_piped else _arguments_as_lines(arguments.data)
    async with connect(arguments) as client:
        publishing = PublishCommand(client, arguments.topic, dict(arguments.header), section.timeout_s, arguments.quiet)
        publishing.word = "line" if is_piped else "event"
        try:
            await publishing.run(lines, arguments.raw)
        finally:
            with suppress(Timeout):  # which is said of each event
                await client.close()  # ended by a signal, it still waits for receipts
            await publishing.conclude()
            if not publishing.is_good or (is_piped and not arguments.quiet):
                print(publishing.summary(), file=sys.stderr)
    return 0 if publishing.is_good else 1


async def _arguments_as_lines(data: list[str]) -> AsyncIterator[list[TextLine]]:
    encoded = [os.fsencode(text) for text in data]
    yield [TextLine(number, text, len(text)) for number, text in enumerate(encoded, 1)]


def read_data(data: bytes) -> Any:
    """What bytes stand for: JSON if they are, else text. Raises `UsageError` if they are neither."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8, so neither JSON nor text; --raw publishes it as it is") from None
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and its kin are no JSON, though Python reads them


def _finite(text: str) -> float:
    value = float(text)
    return value if abs(value) != float("inf") else _refuse(text)


@attrs.define(eq=False)
class PublishCommand:
    """Events on their way, and what became of them."""

    client: Client
    topic: str
    headers: Mapping[str, str]
    timeout_s: float
    is_quiet: bool
    word: str = "event"
    """what is counted, for people"""
    published: int = 0
    failed: int = 0
    unknown: int = 0
    """those that may have been published, or may still be"""
    _receipts: list[str] = attrs.field(factory=list)
    """to be printed"""
    _output: Output = attrs.field(factory=Output)
    _waiting: deque[tuple[int, asyncio.Future[Receipt]]] = attrs.field(factory=deque)
    """without a receipt, in their order"""
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set when something is waiting, or nothing will"""
    _room: asyncio.Event = attrs.field(factory=asyncio.Event)
    """set when something has its receipt, or nothing more is to be published"""
    _give_up_at: float | None = None
    """set when something was refused: then this is how long the rest is waited for"""
    _is_complete: bool = False
    """whether nothing more will be waiting"""
    _started_at: float = attrs.field(factory=time.monotonic)

    async def run(self, lines: AsyncIterator[list[TextLine]], is_raw: bool) -> None:
        """Publish them all, or up to the first that is refused."""
        settling = asyncio.ensure_future(self._settle_all())
        progress = asyncio.ensure_future(self._show_progress())
        reading = asyncio.ensure_future(self._read(lines, is_raw))
        try:
            await asyncio.wait((settling, reading), return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                reading.cancel()  # something was refused; it may be waiting for input that nobody needs
            else:
                await reading
            await settling
        finally:
            for task in (settling, reading, progress):
                task.cancel()
            await asyncio.wait((settling, reading, progress))

    @property
    def is_good(self) -> bool:
        """Whether all were published."""
        return not self.failed and not self.unknown

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _read(self, lines: AsyncIterator[list[TextLine]], is_raw: bool) -> None:
        try:
            async for some in lines:
                for line in some:
                    if self._give_up_at is not None:
                        return
                    await self._publish(line, is_raw)
                await asyncio.sleep(0)
        finally:
            self._is_complete = True
            self._news.set()

    async def _publish(self, line: TextLine, is_raw: bool) -> None:
        try:
            if not line.is_whole:
                raise UsageError(f"it has {line.size} bytes, more than an event may have (payload_bytes_max)")
            data = line.data if is_raw else read_data(line.data)
            while (future := self._put(data)) is None:
                self._room.clear()
                await self._room.wait()
                if self._give_up_at is not None:
                    return
        except Closed:
            raise
        except UsageError as error:
            self._fail(line.number, error)
        else:
            self._waiting.append((line.number, future))
            self._news.set()

    def _put(self, data: Any) -> asyncio.Future[Receipt] | None:
        try:
            return self.client.publish_nowait(self.topic, data, headers=self.headers or None)
        except WouldBlock:
            return None

    # -- out ----------------------------------------------------------------------------------------------------------

    async def _settle_all(self) -> None:
        """Await receipts, in their order, and print them together as far as they come together."""
        while self._waiting or not self._is_complete:
            if not (self._waiting and self._waiting[0][1].done()):
                await self._print()
            if not self._waiting:
                if not self._is_complete:  # it may have become so while receipts were printed
                    self._news.clear()
                    await self._news.wait()
                continue
            await self._settle(*self._waiting[0])
            self._waiting.popleft()
            self._room.set()
            if self._give_up_at is not None and not self._waiting:
                break  # nothing more will come

    async def conclude(self) -> None:
        """The client is closed, so everything has its outcome: take what was not taken."""
        while self._waiting:
            await self._settle(*self._waiting.popleft())
        await self._print()

    async def _print(self) -> None:
        text = "".join(self._receipts)
        self._receipts.clear()
        await self._output.write(text)

    async def _settle(self, number: int, future: asyncio.Future[Receipt]) -> None:
        try:
            receipt = await within(
                self.timeout_s, future, lambda: str(self.client.status()["waiting_for"]), self._give_up_at
            )
        except OrderedPubSubError as error:
            self._fail(number, error)
            if self._give_up_at is None:
                now = asyncio.get_running_loop().time()
                self._give_up_at = now if isinstance(error, Timeout) else now + self.timeout_s
            return
        self.published += 1
        if not self.is_quiet:
            self._receipts.append(f"{receipt.topic} {receipt.number} {receipt.id}\n")

    def _fail(self, number: int, error: Exception) -> None:
        if isinstance(error, (UnavailableError, SessionExpired)):
            self.unknown += 1
        else:
            self.failed += 1
        if self.failed + self.unknown <= FAILURES_SHOWN_MAX:
            print(f"ordered-pubsub pub: {self.word} {number}: {error}", file=sys.stderr)

    # -- for people ---------------------------------------------------------------------------------------------------

    async def _show_progress(self) -> None:
        """Say how far it is, on a terminal, if that takes long and no receipts are printed there."""
        if not sys.stderr.isatty() or (sys.stdout.isatty() and not self.is_quiet):
            return
        await asyncio.sleep(PROGRESS_AFTER_S)
        try:
            while True:
                print(f"\r{self._count()}\x1b[K", end="", file=sys.stderr, flush=True)
                await asyncio.sleep(PROGRESS_EVERY_S)
        finally:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _count(self) -> str:
        duration_s = time.monotonic() - self._started_at
        rate = f"{self.published / duration_s:,.0f}/s" if duration_s else "at once"
        return f"{self.published:,} events published on {self.topic!r} in {duration_s:.1f} s, {rate}"

    def summary(self) -> str:
        """What became of the events, in a line."""
        text = f"ordered-pubsub pub: {self._count()}"
        if self.failed:
            text += f"; {self.failed:,} not published"
        if self.unknown:
            text += f"; {self.unknown:,} perhaps"
        if self._give_up_at is not None:
            text += "; what came after that was not published"
        return text
