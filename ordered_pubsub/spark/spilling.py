"""Rows in order, however many: sorted runs in temporary files, merged."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from operator import itemgetter
from typing import IO, Any

RUN_BYTES = 64 * 1024 * 1024
"""So much is sorted at a time, in memory."""
PIECE_ROWS = 500
"""So many are written, and read again, at a time."""

_Keyed = tuple[Any, Any]
_key = itemgetter(0)


def in_order(rows: Iterable[Any], key: Callable[[Any], Any], size: Callable[[Any], int]) -> Iterator[Any]:
    """The rows by their keys; rows with equal keys are alike."""
    with ExitStack() as files:
        runs: list[Iterator[_Keyed]] = []
        run: list[_Keyed] = []
        held_bytes = 0
        for row in rows:
            run.append((key(row), row))
            held_bytes += size(row)
            if held_bytes >= RUN_BYTES:
                run.sort(key=_key)
                runs.append(_read(_written(run, files.enter_context(tempfile.TemporaryFile()))))
                run, held_bytes = [], 0
        run.sort(key=_key)
        for _, row in heapq.merge(*runs, run, key=_key):
            yield row


def _written(run: list[_Keyed], file: IO[bytes]) -> IO[bytes]:
    for first in range(0, len(run), PIECE_ROWS):
        pickle.dump(run[first : first + PIECE_ROWS], file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    return file


def _read(file: IO[bytes]) -> Iterator[_Keyed]:
    return chain.from_iterable(_pieces(file))


def _pieces(file: IO[bytes]) -> Iterator[list[_Keyed]]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
