"""The figures of a report: added one by one, then drawn, in parallel if there are processors."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ablate import figures
from ablate.figures.style import drawable
from ablate.launch.devices import cpu_threads
from ablate.report.document import Figure
from ablate.report.labels import sentence

OPEN = 12  # panels of a figure that is open at first
MOST = 16  # processes that draw, each with 40 MB of its own


class FigureSet:
    """Takes figures for a folder; `draw` draws them all, and keeps none in memory.

    Args:
        folder: Where `draw` saves them.
        kinds: Files of each: "svg", which the page needs, and perhaps "pdf" and "png".
    """

    def __init__(self, folder: Path = Path(), kinds: Sequence[str] = ("svg",)):
        self.folder, self.kinds = folder, kinds
        self.drawings: dict[str, _Drawing] = {}

    def add(
        self,
        name: str,
        title: str,
        caption: str,
        draw: Callable[..., Axes],
        *frames: Any,
        **options: Any,
    ) -> Figure:
        """Add the figure that `draw(*frames, **options)` draws, to be saved in each kind of file.

        Args:
            name: Stem of its files.
            title: Heading in the report.
            caption: Text below it.
            draw: Function of `ablate.figures`.
            frames: Its data.
            options: Its keyword arguments.
        """
        return self.panels(name, title, caption, draw, [Panel("", *frames)], **options)[0]

    def panels(
        self,
        name: str,
        title: str,
        caption: str,
        draw: Callable[..., Axes],
        panels: Sequence[Panel],
        **options: Any,
    ) -> list[Figure]:
        """Add a figure with a panel for each stratum; return nothing if there is no panel.

        Args:
            name: Stem of its files.
            title: Heading in the report.
            caption: Text below it, which the notes of panels follow.
            draw: Function of `ablate.figures`.
            panels: The strata. A single one has its name in the title of the figure.
            options: Keyword arguments of `draw` for all panels.
        """
        if not panels:
            return []
        assert name not in self.drawings, name
        self.drawings[name] = _Drawing(self.folder / name, self.kinds, draw, tuple(panels), options)
        if len(panels) == 1 and panels[0].stratum:
            title += f" at {panels[0].stratum}"
        wide, folded = len(panels) > 1, len(panels) > OPEN
        file, kinds = self.folder / f"{name}.svg", tuple(self.kinds)
        text = " ".join(filter(None, (caption.strip(), *_notes(panels))))
        names = tuple(panel.stratum for panel in panels) if wide else ()
        return [Figure(name, title, text, file, folded, kinds, wide, names)]

    def draw(self) -> None:
        """Save all figures. Where one fails, its error is raised."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for kind in set(self.kinds) - {"png"}:  # here, or every process would import it anew
            importlib.import_module(f"matplotlib.backends.backend_{kind}")
        drawings = list(self.drawings.values())
        # elsewhere a fork is not safe
        processes = min(cpu_threads(), len(drawings), MOST) if sys.platform == "linux" else 1
        if processes > 1:
            _side_by_side([drawings[first::processes] for first in range(processes)])
        else:
            for drawing in drawings:
                drawing.save()

    def axes(self, name: str) -> Axes:
        """Draw the figure of this name, and return its first axes."""
        return self.drawings[name].axes()


class Panel:
    """The part of a figure for one stratum.

    Args:
        stratum: Its name; "" if the study has one only.
        frames: Data of the function that draws.
        note: What the caption says of this stratum; "" for nothing.
        options: Keyword arguments of the function for this stratum.
    """

    def __init__(self, stratum: str, *frames: Any, note: str = "", **options: Any):
        self.stratum, self.frames, self.note, self.options = stratum, frames, note.strip(), options


def _notes(panels: Sequence[Panel]) -> list[str]:
    """Return the notes of panels, with their stratum; one that all share stands alone."""
    notes = {panel.stratum: panel.note for panel in panels}
    if len(set(notes.values())) == 1:
        return [sentence(panels[0].note)]
    return [f"At {stratum}: {note}" for stratum, note in notes.items() if note]


@dataclass(frozen=True)
class _Drawing:
    stem: Path
    kinds: Sequence[str]
    draw: Callable[..., Axes]
    panels: Sequence[Panel]
    options: dict[str, Any]

    def axes(self) -> Axes:
        if len(self.panels) == 1:
            return self._drawn(self.panels[0])
        return figures.multiples(
            [(panel.stratum, partial(self._drawn, panel)) for panel in self.panels]
        )

    def save(self) -> None:
        figure = self.axes().figure
        assert isinstance(figure, Canvas)
        figures.save(figure, self.stem, self.kinds)
        plt.close(figure)

    def _drawn(self, panel: Panel, ax: Axes | None = None) -> Axes:
        on = {} if ax is None else {"ax": ax}
        frames = (
            drawable(frame) if isinstance(frame, pd.DataFrame) else frame for frame in panel.frames
        )
        return self.draw(*frames, **self.options, **panel.options, **on)


def _side_by_side(shares: Sequence[Sequence[_Drawing]]) -> None:
    """Draw each share in a fork, which has everything that is imported and read.

    A share that fails there is drawn again here, where its error is raised; one whose process was
    killed, such as for want of memory, is drawn here too.
    """
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_draw_share, args=(share, os.getpid()), daemon=True)
        for share in shares
    ]
    try:
        for process in processes:
            process.start()
        for process, share in zip(processes, shares, strict=True):
            process.join()
            if process.exitcode:
                for drawing in share:
                    drawing.save()
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _draw_share(drawings: Sequence[_Drawing], parent: int) -> None:
    """Draw while the process `parent` lives; exit code 1 where a figure fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this
    plt.switch_backend("agg")  # the parent's windows stay the parent's
    try:
        for drawing in drawings:
            if os.getppid() != parent:
                return
            drawing.save()
    except Exception:
        os._exit(1)
