"""Figures as files: SVG, PDF and PNG, and SVG inside a page."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ablate.figures import fonts
from ablate.figures.style import INK, PAPER, RULE, theme
from ablate.paths import atomic

KINDS = ("svg", "pdf", "png")  # files of a figure
DOTS = 200  # an inch, of PNG and of marks that are pixels


def save(figure: Figure, stem: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Save a figure as `stem`.svg, .pdf and .png, or some of them, and return the paths.

    The same figure gives the same bytes.

    Args:
        figure: The figure of an axes is `ax.figure`.
        stem: Path without an ending.
        kinds: "svg", "pdf" and "png", or some of them; PNG has 200 dots per inch.
    """
    files = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in kinds}
    with theme():
        _lay_out(figure)  # once; the files share the layout
        if fonts.complete(figure):
            _lay_out(figure)
        # with any engine, even "none", savefig draws each file twice
        figure.set_layout_engine(None)
        for kind, file in files.items():
            with atomic(file) as part:
                if kind == "svg":
                    part.write_text(_titled(_svg(figure)), encoding="utf-8")
                else:
                    dated = {"CreationDate": None} if kind == "pdf" else {"Software": None}
                    drawn = io.BytesIO()  # matplotlib hides the error of a file on a full disk
                    figure.savefig(drawn, format=kind, dpi=DOTS, metadata=dated)
                    part.write_bytes(drawn.getvalue())
    return list(files.values())


def _lay_out(figure: Figure) -> None:
    """Place what the figure holds, and make the texts of its ticks."""
    engine = figure.get_layout_engine()
    if engine is None:
        figure.draw_without_rendering()
    else:
        engine.execute(figure)


def _svg(figure: Figure) -> str:
    """Return a figure as SVG; images of marks have the class "pixels"."""
    text = io.StringIO()
    pixels = any(line.get_rasterized() for line in figure.findobj(Line2D))
    dots: dict[str, Any] = {"dpi": DOTS} if pixels else {}
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True, **dots)
    return (
        re.sub("<image ", '<image class="pixels" ', text.getvalue()) if pixels else text.getvalue()
    )


_TIP = re.compile(r'<g id="(tip|run):([^"]*)">')
_TOLD = re.compile(r'<g id="axes_\d+">|<g class="tip"><title>([^<]*)</title>')


def _titled(svg: str) -> str:
    """Give artists with a `tip` a `<title>`, which browsers show under the pointer."""
    kinds = {"tip": "tip", "run": "run tip"}
    return _TIP.sub(lambda match: f'<g class="{kinds[match[1]]}"><title>{match[2]}</title>', svg)


def told(svg: str) -> list[list[str]]:
    """Return what the artists of each axes say under the pointer, but not those of single runs.

    Args:
        svg: Text of an SVG file of `save`.
    """
    axes: list[list[str]] = [[]]
    for match in _TOLD.finditer(svg):
        if match[1] is None:
            axes.append([])
        elif (text := html.unescape(match[1])) not in axes[-1]:
            axes[-1].append(text)
    return axes[1:]


def inline(svg: str, prefix: str, label: str) -> str:
    """Return an SVG for use inside HTML: colours follow the page, and ids are unique to it.

    Args:
        svg: Text of an SVG file.
        prefix: Put before every id, so that two figures of a page share none.
        label: Escaped text for screen readers.
    """
    body = svg[svg.index("<svg") :]
    body = _slim(re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL))
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = (
        body.replace(INK, "currentColor")
        .replace(RULE, "var(--rule)")
        .replace(PAPER, "var(--paper)")
    )
    return body.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


_REFERRED = re.compile(r'href="#([^"]+)"|url\(#([^)]+)\)')
_IDENTIFIED = re.compile(r' id="([^"]*)"')
_TAG = re.compile(r"<[^>]*>")
_LONG = re.compile(r"\d+\.\d{3,}")  # numbers


def _slim(svg: str) -> str:
    """Return an SVG in half the room: without blanks, unused ids and digits below 0.01 point."""
    used = {name for pair in _REFERRED.findall(svg) for name in pair}
    svg = _IDENTIFIED.sub(lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r">\s+<", "><", svg)
    return _TAG.sub(lambda match: _slim_tag(match[0]), svg)


def _slim_tag(tag: str) -> str:
    short = _LONG.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub(r"\s*\n\s*", " ", short).replace(' "', '"')
