"""The figures of a report: hung one by one, then drawn, side by side where there are processors for
it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_pdf  # noqa: F401  # here, or every process would import it, and all that it needs, anew
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablate import figures
from ablate.errors import AblateError
from ablate.launch.devices import cpu_threads
from ablate.report.document import Picture

SPAN = 1e100  # largest number that an axis can span
OPEN = 4  # strata whose figures are shown unasked
MOST = 16  # processes that draw, each with 40 MB of its own


class Gallery:
    """Takes figures for a folder; `draw` draws them all, and keeps none in memory."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.drawings: dict[str, _Drawing] = {}

    def hang(
        self,
        name: str,
        title: str,
        caption: str,
        draw: Callable[..., Axes],
        *frames: Any,
        stratum: int | None = None,
        **options: Any,
    ) -> Picture:
        """`draw(*frames, **options)`, to be saved as svg, pdf and png. stratum: its number, where
        each has such a figure.
        """
        name = name if stratum is None else f"{name}-{stratum}"
        assert name not in self.drawings, name
        self.drawings[name] = _Drawing(self.folder / name, draw, frames, options)
        return Picture(
            name, title, caption, self.folder / f"{name}.svg", folded=(stratum or 0) >= OPEN
        )

    def draw(self) -> None:
        """Draw what hangs here. Where a figure fails, its error is raised."""
        drawings = list(self.drawings.values())
        processes = (
            min(cpu_threads(), len(drawings), MOST) if sys.platform == "linux" else 1
        )  # elsewhere a fork is not safe
        if processes > 1:
            _side_by_side([drawings[first::processes] for first in range(processes)])
        else:
            for drawing in drawings:
                drawing.save()


@dataclass(frozen=True)
class _Drawing:
    stem: Path
    draw: Callable[..., Axes]
    frames: Sequence[Any]
    options: dict[str, Any]

    def save(self) -> None:
        figure = self.draw(*map(_drawable, self.frames), **self.options).figure
        assert isinstance(figure, Figure)
        figures.save(figure, self.stem)
        plt.close(figure)


def _drawable(frame: Any) -> Any:
    """A frame whose numbers an axis can span: those beyond are infinite, and drawn as what lies
    outside.
    """
    if not isinstance(frame, pd.DataFrame):
        return frame
    floats = frame.select_dtypes("float")
    return frame.assign(**floats.mask(floats.abs() > SPAN, floats * math.inf))


def _side_by_side(shares: Sequence[Sequence[_Drawing]]) -> None:
    """Draw each share in a process of its own. A fork has everything that is imported and read, and
    ends with its share.
    """
    context = multiprocessing.get_context("fork")
    started = []
    try:
        for share in shares:
            answer, said = context.Pipe(duplex=False)
            process = context.Process(
                target=_draw_apart, args=(share, said, os.getpid()), daemon=True
            )
            process.start()
            said.close()  # ours: the pipe ends with the process
            started.append((process, answer))
        for process, answer in started:
            try:
                error = answer.recv()
            except EOFError:
                process.join()
                raise AblateError(
                    f"a process that drew figures ended early (exit code {process.exitcode}), as"
                    " one does when memory runs out; with OMP_NUM_THREADS=1 they are drawn one"
                    " after the other"
                ) from None
            if error is not None:
                raise error
    finally:
        for process, answer in started:
            answer.close()
            process.terminate()
            process.join()


def _draw_apart(drawings: Sequence[_Drawing], said: Connection, parent: int) -> None:
    """Draw while the process `parent` lives, and say what went wrong or None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this
    plt.switch_backend("agg")  # a window of the parent's is not ours
    error = None
    try:
        for drawing in drawings:
            if os.getppid() != parent:
                return
            drawing.save()
    except Exception as failure:
        failure.add_note(traceback.format_exc())
        error = _portable(failure)
    said.send(error)


def _portable(error: Exception) -> Exception:
    """The error, or its words where another process could not make it again: not every class is
    made of its `args`.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception_only(error)))
    return error
