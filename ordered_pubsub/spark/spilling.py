"""Rows in order, however many: sorted runs in temporary files, merged."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import IO, Any

RUN_BYTES = 64 * 1024 * 1024
"""So much is sorted at a time, in memory."""
PIECE_BYTES = 256 * 1024
"""Of each run, about so much is read at a time."""
RUNS_MAX = 64
"""So many are merged at a time; more become one."""
ROW_BYTES = 300
"""What a row takes besides what its size says."""


def in_order(rows: Iterable[Any], key: Callable[[Any], Any], size: Callable[[Any], int]) -> Iterator[Any]:
    """The rows by their keys; rows with equal keys are alike."""
    with ExitStack() as files:
        runs: list[IO[bytes]] = []
        run: list[Any] = []
        held_bytes = 0
        for row in rows:
            run.append(row)
            held_bytes += size(row) + ROW_BYTES
            if held_bytes >= RUN_BYTES:
                run.sort(key=key)
                runs.append(_written(run, size, files))
                run, held_bytes = [], 0
            if len(runs) >= RUNS_MAX:
                merged = _written(heapq.merge(*map(_read, runs), key=key), size, files)
                for file in runs:
                    file.close()
                runs = [merged]
        run.sort(key=key)
        yield from heapq.merge(*map(_read, runs), run, key=key)


def _written(run: Iterable[Any], size: Callable[[Any], int], files: ExitStack) -> IO[bytes]:
    """A file with these rows, piece by piece."""
    file = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the others
    piece: list[Any] = []
    piece_bytes = 0
    for row in run:
        piece.append(row)
        piece_bytes += size(row) + ROW_BYTES
        if piece_bytes >= PIECE_BYTES:
            pickle.dump(piece, file, pickle.HIGHEST_PROTOCOL)
            piece, piece_bytes = [], 0
    pickle.dump(piece, file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    return file


def _read(file: IO[bytes]) -> Iterator[Any]:
    while True:
        try:
            piece = pickle.load(file)
        except EOFError:
            return
        yield from piece
