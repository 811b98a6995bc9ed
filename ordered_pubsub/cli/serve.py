"""`ordered-pubsub serve`: run stages."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from ordered_pubsub.cli.logs import add_log_options, start_logging
from ordered_pubsub.config.reading import Loaded, load
from ordered_pubsub.errors import ConfigurationError
from ordered_pubsub.server.serving import Serving, chosen_stages

_EXAMPLES = """\
examples:
  ordered-pubsub serve
      one stage with defaults, at 127.0.0.1:7411, with its store in the current folder
  ordered-pubsub serve --config ordered_pubsub.toml --stage eu
      the stage 'eu' of a file; without --stage all of the file's stages, in one process
"""


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="run a stage: give numbers to events, over the network",
        description="Runs one stage, or all stages of a configuration. SIGTERM drains and stops; SIGHUP reads identities, limits "
        "and certificates again.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration (default: ordered_pubsub.toml, if it is there)")
    parser.add_argument("--stage", metavar="NAME", help="run this stage of the configuration only")
    parser.add_argument("--listen", metavar="HOST:PORT", help="listen here instead (one stage only)")
    add_log_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    start_logging(arguments)

    def read() -> Loaded:
        return _with_listen(load(arguments.config), arguments)

    loaded = read()
    for note in loaded.notes:
        logging.getLogger(__name__).warning("%s", note)
    serving = Serving(read, loaded, chosen_stages(loaded, arguments.stage))
    run_on_fastest_loop(serving.run(_say_ready))
    return 0


def _with_listen(loaded: Loaded, arguments: argparse.Namespace) -> Loaded:
    """The configuration, with the address of the command line in the place of the stage's own."""
    if arguments.listen is None:
        return loaded
    sections = chosen_stages(loaded, arguments.stage)
    if len(sections) != 1:
        raise ConfigurationError("--listen goes with one stage: name it with --stage")
    stages = tuple(
        attrs.evolve(stage, listen=arguments.listen) if stage.name == sections[0].name else stage
        for stage in loaded.configuration.stages
    )
    return attrs.evolve(loaded, configuration=attrs.evolve(loaded.configuration, stage=stages))


def _say_ready(serving: Serving) -> None:
    """For whoever has started this and waits for it."""
    for server in serving.servers:
        address = attrs.evolve(server.section.address, port=server.port)
        print(f"stage {server.section.name} is ready at {address}", flush=True)


def run_on_fastest_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, on uvloop if it is installed."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop

        make = uvloop.new_event_loop
    except ImportError:
        pass
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(work)
        return
    loop = make()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
