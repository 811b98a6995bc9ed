"""`ordered-pubsub store`: look at a stage's store, and copy what is good of a damaged one."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from ordered_pubsub.cli.clients import whole
from ordered_pubsub.core.checking import COUNT_MAX
from ordered_pubsub.server.store.salvage import check, salvage

DESCRIPTION = "Says whether a store is whole, and what is damaged; copies what is good into a new one."
EPILOG = """\
examples:
  ordered-pubsub store check ordered_pubsub-main.db
  ordered-pubsub store salvage ordered_pubsub-main.db --to new.db

Neither changes anything in the store that is named; no stage may be running on it.

exit code: 0 if it is whole, or all of it was copied; 1 if something is damaged, or lost; 2 if the call does not fit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    checking = verbs.add_parser("check", help="read all of it, and say what is in it")
    checking.add_argument("store", metavar="STORE", help="the file that is the stage's `store`")
    checking.set_defaults(run=_check)
    salvaging = verbs.add_parser("salvage", help="copy what is good into a new store, and say what is lost")
    salvaging.add_argument("store", metavar="STORE", help="the damaged one; it is left as it is")
    salvaging.add_argument("--to", metavar="NEW", required=True, help="a file that is not there yet")
    salvaging.add_argument(
        "--leave-out",
        metavar="N",
        type=whole(1, COUNT_MAX),
        help="how many numbers may have been given after what is good, beyond those that the mark tells of (1000000; without a "
        "mark it must be said)",
    )
    salvaging.set_defaults(run=_salvage)


def _file(path: str) -> Path:
    return Path(os.path.realpath(path))


def _check(arguments: argparse.Namespace) -> int:
    is_whole = check(_file(arguments.store), print)
    print("the store is whole" if is_whole else "the store is damaged")
    return 0 if is_whole else 1


def _salvage(arguments: argparse.Namespace) -> int:
    is_all = salvage(_file(arguments.store), _file(arguments.to), time.time(), print, arguments.leave_out)
    print("nothing is lost" if is_all else "what is good was copied")
    return 0 if is_all else 1
