"""`ordered-pubsub sub`: print the events of topics in one order, one a line.

A batch of events is written at once, and the next one taken when it has been: so a reader that is slow, or a pager that
waits, is felt by the broker and not by the memory of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable

import attrs

from ordered_pubsub.cli.clients import add_client_options, connect, note_wildcards, run, seconds, whole
from ordered_pubsub.cli.output import Output
from ordered_pubsub.client.event import Event
from ordered_pubsub.client.subscription import Subscription
from ordered_pubsub.config.schema import UNORDERED
from ordered_pubsub.core.subscriber.delivery import WEIGHTS
from ordered_pubsub.core.topics import check_topic
from ordered_pubsub.wire.tasks import end_task

BATCH_EVENTS_MAX = 1_000
STALLED_AFTER_S = 5.0
"""When the same event has been waited for this long, the user is told; and again after twice as long."""

DESCRIPTION = "Prints the events that are published from now on, in one order over all the topics, one a line."
EPILOG = """\
examples:
  ordered-pubsub sub trades quotes --ens mqtt://127.0.0.1:1883 --sequencer ops://127.0.0.1:7411
  ordered-pubsub sub trades quotes --json --count 100 | jq .data.price
  ordered-pubsub sub sensors --order topic --timeout 60 > sensors.txt

A line holds the event's position, topic, number, publisher and data (as JSON; bytes as b'...'). '-' is a position that there is
none of (--order topic, best effort), '!' one that is out of order. With --json, a line is an object with the keys position,
topic, number, id, publisher, published_at, out_of_order, headers, and data; or data_base64, if that is no JSON.

exit code: 0 if it ended as asked for, 1 if fewer events came than asked for or it could not go on, 2 if the call does not fit,
130 after Ctrl-C, 143 after SIGTERM
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="+", help="what to subscribe to")
    add("--json", action="store_true", help="print one JSON object a line, for machines")
    add("--count", type=whole(1), metavar="N", help="end after so many events")
    add("--timeout", type=seconds, metavar="S", help="end after so many seconds")
    add("--order", choices=tuple(WEIGHTS), default="total", help="default: total, over all the topics")
    add(
        "--unordered",
        choices=UNORDERED,
        default=None,
        help="what becomes of messages of plain clients, which have no order",
    )
    add("--quiet", action="store_true", help="do not say on standard error when it begins")
    add_client_options(parser)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Subscribe and print, until it is enough."""
    for topic in arguments.topics:
        check_topic(topic)
    note_wildcards(arguments.topics)
    return run(lambda: _subscribe(arguments), "sub")


async def _subscribe(arguments: argparse.Namespace) -> int:
    settings = {} if arguments.unordered is None else {"unordered": arguments.unordered}
    async with connect(arguments, **settings) as client:
        subscription = await client.subscribe(*arguments.topics, order=arguments.order)
        if not arguments.quiet:
            print(f"subscribed to {', '.join(subscription.topics)}", file=sys.stderr, flush=True)
        printing = Printing(as_json if arguments.json else as_text, arguments.count)
        noticing = asyncio.ensure_future(notice_stalls(subscription))
        try:
            await asyncio.wait_for(printing.run(subscription.batches(BATCH_EVENTS_MAX, 0.0)), arguments.timeout)
        except asyncio.TimeoutError:
            if arguments.count is not None:
                print(
                    f"ordered-pubsub sub: {printing.printed} of {arguments.count} events came within {arguments.timeout:g} s",
                    file=sys.stderr,
                )
                return 1
        finally:
            await end_task(noticing)
        return 0


async def notice_stalls(subscription: Subscription) -> None:
    """Say it when events wait for one that does not come: a broker that forgets, or a publisher that is gone."""
    before = ""
    while True:
        await asyncio.sleep(STALLED_AFTER_S)
        lag = subscription.lag
        if lag.waiting and not lag.unread and lag.waiting_for == before:
            print(f"ordered-pubsub sub: {lag.waiting} events wait for one that has not come: {before}", file=sys.stderr)
            before = ""
        else:
            before = lag.waiting_for


@attrs.define(eq=False)
class Printing:
    """Events on their way to standard output."""

    form: Callable[[Event], str]
    """makes a line of an event"""
    count: int | None
    """how many are wanted; None: all"""
    printed: int = 0
    _output: Output = attrs.field(factory=Output)

    async def run(self, batches: AsyncIterator[list[Event]]) -> None:
        """Print until there are enough, or no more come."""
        async for batch in batches:
            wanted = batch if self.count is None else batch[: self.count - self.printed]
            await self._output.write("".join([self.form(event) + "\n" for event in wanted]))
            self.printed += len(wanted)
            if self.printed == self.count:
                return


# -- lines ------------------------------------------------------------------------------------------------------------


def as_text(event: Event) -> str:
    """An event for people. Nothing in it reaches a terminal as a command."""
    position = "!" if event.out_of_order else "-" if event.position is None else event.position
    return printable(f"{position} {event.topic} {event.number} {event.publisher or '-'} {_shown(event)}")


def _shown(event: Event) -> str:
    if event.error is not None:
        return f"({event.error})"
    if isinstance(event.data, bytes):
        return repr(event.data)
    return json.dumps(event.data, ensure_ascii=False, separators=(",", ":"))


def printable(text: str) -> str:
    """A text in which what cannot be printed is spelled, as in JSON."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


def as_json(event: Event) -> str:
    """An event for machines, in ASCII."""
    about = {
        "position": event.position,
        "topic": event.topic,
        "number": event.number,
        "id": event.id,
        "publisher": event.publisher,
        "published_at": event.published_at,
        "out_of_order": event.out_of_order,
        **({"tx": event.tx} if event.tx else {}),
        "headers": {
            name: {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in event.headers.items()
        },
    }
    try:
        if event.error is None and not isinstance(event.data, bytes):
            return json.dumps({**about, "data": event.data}, allow_nan=False, separators=(",", ":"))
    except ValueError:
        pass  # NaN and its kin, which Python reads and JSON does not have
    return json.dumps({**about, "data_base64": b64encode(event.raw).decode()}, separators=(",", ":"))
