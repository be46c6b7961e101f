"""Simulations on many cores, with results that do not depend on the number of processes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
SHOWN = 30.0  # seconds between two lines of progress


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `Cores` takes."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")


class Cores:
    """Processes that share the work; every piece draws from a generator of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed = options.seed
        # a process that ends by SIGTERM, as at a time limit, ends its workers too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        # more threads than one a process would wait for one another; read where numpy is imported
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.pool = multiprocessing.get_context("spawn").Pool(options.processes)

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self.pool.close()
        else:
            self.pool.terminate()
        self.pool.join()

    def each(
        self, work: Callable[..., T], cases: Sequence[tuple[Any, ...]], count: int = 1
    ) -> Iterator[list[T]]:
        """Yield for every case, in order, what `count` calls of work(rng, *case) return.

        A case is yielded as soon as its calls are done. Progress is printed to stderr.
        """
        pieces = [
            (work, (self.seed, at, turn), case)
            for at, case in enumerate(cases)
            for turn in range(count)
        ]
        begun = shown = time.monotonic()
        found: list[T] = []
        for done, one in enumerate(self.pool.imap(_piece, pieces), 1):
            found.append(one)
            if time.monotonic() - shown > SHOWN:
                shown = time.monotonic()
                text = f"{done:,} of {len(pieces):,} pieces, {shown - begun:.0f} s"
                print(text, file=sys.stderr, flush=True)
            if len(found) == count:
                yield found
                found = []


def _piece(piece: tuple[Callable[..., T], tuple[int, ...], tuple[Any, ...]]) -> T:
    work, seeds, case = piece
    return work(np.random.default_rng(seeds), *case)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
