"""What the commands have in common that are clients of a system: their options, their connection, and how they end.

Whatever is not given on the command line comes from the environment and the configuration file, as for every other client.
SIGTERM and Ctrl-C cancel what is going on, so that the client is closed and says what it had to leave; a second one does not
wait for that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ordered_pubsub
from ordered_pubsub.adapter import scheme_of
from ordered_pubsub.config.addresses import LOOPBACK, Address
from ordered_pubsub.config.reading import load
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.connecting import Connecting
from ordered_pubsub.errors import ConfigurationError

PATIENCE_S = 2.0
"""How long closing may take before it is said that it does."""
ENDED_BY = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""What shells expect of a process that a signal ended."""


def add_client_options(parser: argparse.ArgumentParser, has_ens: bool = True) -> None:
    """Let the user say what to connect to, and as whom."""
    group = parser.add_argument_group(
        "connection", "what is not given is taken from the environment (ORDERED_PUBSUB_ENS, ...) and the configuration"
    )
    add = group.add_argument
    add("--config", metavar="FILE", help="the configuration (default: ordered_pubsub.toml, if it is there)")
    if has_ens:
        add("--ens", metavar="URL", help="the broker, such as mqtt://127.0.0.1:1883")
    add(
        "--sequencer",
        metavar="ADDRESS",
        action="append",
        help="a stage, such as ops://127.0.0.1:7411; several are separated by commas, or given one by one",
    )
    add("--token-file", metavar="FILE", help="the file that holds the token to show to the stages")
    if has_ens:
        add("--name", help="the name of this client, which its events carry as their publisher")
        add("--delivery", metavar="LEVEL", help="'exactly-once' (the default), 'ordered' or 'best-effort'")
    add(
        "--call-timeout",
        type=seconds,
        metavar="S",
        help="how long to wait for an outcome (default: 60, or timeout_s of the configuration)",
    )


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options say, as arguments of `connect`."""
    options = vars(arguments)
    sequencer = None if arguments.sequencer is None else named_stages(arguments)
    found = {key: options.get(key) for key in ("ens", "name", "delivery", "token_file")}
    found |= {"sequencer": sequencer, "timeout_s": arguments.call_timeout}
    return {key: value for key, value in found.items() if value is not None}


def named_stages(arguments: argparse.Namespace) -> list[str]:
    """The addresses of `--sequencer`."""
    return [part.strip() for text in arguments.sequencer or () for part in text.split(",")]


def stages_to_ask(arguments: argparse.Namespace, client: ClientSection) -> list[Address]:
    """Where the stages are: as is said of the client; or those of the configuration, or one of this machine."""
    if client.addresses:
        return list(client.addresses)
    stages = load(arguments.config).configuration.stage
    return [stage.advertised for stage in stages if stage.advertised is not None] or [Address(LOOPBACK)]


def client_section(arguments: argparse.Namespace) -> ClientSection:
    """What options, environment and configuration say of the client together."""
    return load(arguments.config, arguments=given(arguments)).configuration.client


def connect(arguments: argparse.Namespace, **settings: Any) -> Connecting:
    """The client that the options ask for; they must name a broker that others reach."""
    ens = client_section(arguments).ens
    if ens is None:
        raise ConfigurationError(
            "no broker is named: give --ens mqtt://127.0.0.1:1883 (or nats://, amqp://), set ORDERED_PUBSUB_ENS, or write ens "
            "into [client] of ordered_pubsub.toml"
        )
    if scheme_of(ens) == "memory":
        print(
            f"note: {ens} lives in this process alone: no other one sends anything there, or sees what is sent",
            file=sys.stderr,
        )
    return ordered_pubsub.connect(config=arguments.config, **given(arguments), **settings)


def seconds(text: str) -> float:
    """A number of seconds above 0, for argparse."""
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} does not fit; expected a number of seconds above 0")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers, for argparse."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if least <= (value := int(text)) and (most is None or value <= most):
                return value
        reach = "on" if most is None else f"to {most}"
        raise argparse.ArgumentTypeError(f"{text!r} does not fit; expected a whole number from {least} {reach}")

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """A reader of numbers, for argparse."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= float(text) <= most:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} does not fit; expected a number from {least:g} to {most:g}")

    return read


def note_wildcards(topics: Sequence[str]) -> None:
    """Say that what stands for more in some brokers' topics is just a sign here."""
    signs = sorted({sign for topic in topics for sign in "#+>" if sign in topic.split("/")})
    if signs:
        print(
            f"note: {' and '.join(map(repr, signs))} stand for themselves in a topic here, and for nothing else",
            file=sys.stderr,
        )


# -- running ----------------------------------------------------------------------------------------------------------


def run(work: Callable[[], Coroutine[Any, Any, int]], command: str) -> int:
    """Run a command's coroutine; return its exit code, or what shells expect if a signal ended it."""
    report_trouble(command)
    return asyncio.run(_run_until_signal(work()))


async def _run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    ended_by: list[signal.Signals] = []
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        ended_by.append(number)
        advice = "ordered-pubsub: closing takes a while; once more ends it at once"
        loop.call_later(PATIENCE_S, partial(print, advice, file=sys.stderr, flush=True))
        for one in ENDED_BY:  # the second one is not ours
            loop.remove_signal_handler(one)
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        for number in ENDED_BY:
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return ENDED_BY[ended_by[0]]


class OneLine(logging.Formatter):
    """What the library logs, as a person at a terminal wants it: one line, without a stack trace."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._prefix = f"ordered-pubsub {command}: "

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        error = record.exc_info[1] if record.exc_info else None
        detail = f" ({type(error).__name__}: {error})" if error is not None else ""
        return self._prefix + record.getMessage() + detail


def report_trouble(command: str) -> None:
    """Show warnings on standard error: our own, since what a broker's library has to say comes as an error of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(command))
    handler.addFilter(lambda record: record.name.startswith(("ordered_pubsub", "asyncio")))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
