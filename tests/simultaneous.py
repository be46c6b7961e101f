"""Functions called in several processes at the same moment."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from multiprocessing.pool import AsyncResult
from typing import Any

CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "ablate.store.runs", "ablate.plan", "alembic.command", "sqlalchemy.dialects.sqlite"]
)


def together(
    function: Callable[..., Any], arguments: list[tuple[Any, ...]], timeout: float = 60
) -> list[Any]:
    """Call `function` in one process each at the same moment; return results or an error."""
    with CONTEXT.Pool(len(arguments)) as pool:
        start = time.time() + 0.5
        waiting: list[AsyncResult[Any]] = [
            pool.apply_async(_at, (start, function, each)) for each in arguments
        ]
        return [each.get(timeout) for each in waiting]


def _at(start: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    time.sleep(max(0.0, start - time.time()))
    return function(*arguments)
