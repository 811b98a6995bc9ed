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
    demo.add_command(commands)
    serve.add_command(commands)
    pub.add_command(commands)
    sub.add_command(commands)
    status.add_command(commands)
    store.add_command(commands)
    bench.add_command(commands)
    audit.add_command(commands)
    group_sizes.add_command(commands)
    config.add_command(commands)
    keys.add_command(commands)
    return parser
