"""`ordered-pubsub serve`: run stages."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import platform
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from ordered_pubsub.cli.logs import add_log_options, start_logging
from ordered_pubsub.config.checks import stages_to_serve
from ordered_pubsub.config.reading import Loaded, load
from ordered_pubsub.server.serving import Serving
from ordered_pubsub.supervision import Repeated, Supervisor

GARBAGE_AFTER, GARBAGE_FULLY_AFTER = 20_000, 6_000
"""Python looks for cycles after so many new objects, and after so many looks among all of them. There are hardly any cycles."""
GARBAGE_EVERY_S = 0.1
"""So often it looks among what is new. By itself it would count what is new less what was freed, however old that was: where
caches are full, it would look once in a while among hundreds of thousands of objects, and the stage would stand still."""
TRIM_BYTES, APART_BYTES = 1 << 20, 1 << 18
"""The C library gives memory back to the system as soon as so much is free at its end, and has what is larger than the other
apart. By itself it raises both up to 64 and 32 MiB when something large is freed, and a stage keeps that for good."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""What glibc's `mallopt` calls them."""
HAND_OVER_S = 0.0005
"""So soon the loop lets the thread go on that has waited for the disk: answers wait for it."""
DESCRIPTION = (
    "Runs one stage, or all stages of a configuration. SIGTERM drains and stops; SIGHUP reads identities, limits "
    "and certificates again."
)
EPILOG = """\
examples:
  ordered-pubsub serve
      one stage with defaults, at 127.0.0.1:7411, with its store in the current folder
  ordered-pubsub serve --config ordered_pubsub.toml --stage eu
      the stage 'eu' of a file; without --stage all of the file's stages, in one process
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--config", metavar="FILE", help="the configuration (default: ordered_pubsub.toml, if it is there)"
    )
    parser.add_argument("--stage", metavar="NAME", help="run this stage of the configuration only")
    parser.add_argument("--listen", metavar="HOST:PORT", help="listen here instead (one stage only)")
    add_log_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    start_logging(arguments)

    def read() -> Loaded:
        """The configuration, with the address of the command line in the place of the stage's own."""
        loaded = load(arguments.config)
        configuration = loaded.configuration
        chosen = {stage.name: stage for stage in stages_to_serve(configuration, arguments.stage, arguments.listen)}
        stages = tuple(chosen.get(stage.name, stage) for stage in configuration.stages)
        return attrs.evolve(loaded, configuration=attrs.evolve(configuration, stage=stages))

    loaded = read()
    for note in loaded.notes:
        logging.getLogger(__name__).warning("%s", note)
    serving = Serving(read, loaded, stages_to_serve(loaded.configuration, arguments.stage))
    gc.set_threshold(GARBAGE_AFTER, GARBAGE_FULLY_AFTER, GARBAGE_FULLY_AFTER)
    sys.setswitchinterval(HAND_OVER_S)
    give_memory_back()
    run_on_fastest_loop(serving.run(_ready))
    return 0


def _ready(serving: Serving) -> None:
    """Say so to whoever has started this and waits for it."""
    begin_to_collect(serving.supervisor)
    for server in serving.servers:
        address = attrs.evolve(server.section.address, port=server.port)
        print(f"stage {server.section.name} is ready at {address}", flush=True)


def give_memory_back() -> bool:
    """Have the C library keep little that is free; return whether it does that. Only glibc is asked."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(
        library.mallopt(what, size) for what, size in ((M_TRIM_THRESHOLD, TRIM_BYTES), (M_MMAP_THRESHOLD, APART_BYTES))
    )


def begin_to_collect(supervisor: Supervisor) -> Repeated:
    """Look for cycles often and little, from now on; what was read at the start stays."""
    gc.freeze()
    return supervisor.every(GARBAGE_EVERY_S, _collect, "looking for cycles")


def _collect() -> None:
    gc.collect(1)


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
