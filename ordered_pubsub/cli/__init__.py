"""The command line: `ordered-pubsub COMMAND`.

Exit codes: 0 if all is well, 1 if what was asked for failed, 2 if it was asked for in a way that does not fit.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ordered_pubsub import __version__
from ordered_pubsub.cli import audit, bench, config, demo, group_sizes, keys, pub, serve, status, store, sub
from ordered_pubsub.errors import OrderedPubSubError, UsageError

INTERRUPTED = 130
"""What shells expect of a process that Ctrl-C ended."""
COMMANDS = {
    "demo": (demo, "show total order across topics on this machine"),
    "serve": (serve, "run a stage: give numbers to events, over the network"),
    "pub": (pub, "publish events on a topic"),
    "sub": (sub, "print the events of topics in one order"),
    "status": (status, "show how the stages are"),
    "store": (store, "look at a stage's store, and copy what is good of a damaged one"),
    "bench": (bench, "measure this library against the plain client library"),
    "audit": (audit, "judge what subscribers were notified of"),
    "group-sizes": (group_sizes, "say how big timestamps are"),
    "config": (config, "check a configuration, or make a token"),
    "keys": (keys, "change the keys by which events are tagged"),
}
"""Each module says what its command is in full (`DESCRIPTION`, `EPILOG`), and adds its options, with what runs it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 2
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except OrderedPubSubError as error:
        print(f"ordered-pubsub {arguments.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ordered-pubsub",
        description="Total order across topics over any pub/sub broker.",
        epilog="example:\n  ordered-pubsub demo\n\n'ordered-pubsub COMMAND --help' says more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ordered-pubsub {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, words) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=words,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
    return parser
