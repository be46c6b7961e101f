"""The figures of a page: as SVG, and the largest of very many marks as images of pixels."""

from __future__ import annotations

import html
import io
from base64 import b64encode
from collections.abc import Sequence

from PIL import Image

from ablate.report.document import Figure

PAGE = 2_900_000  # characters of a page, which has to stay below 3 MB
SCALE = 1.5  # pixels of an image for each of a screen
LONGEST = 16_383  # pixels of a side of a WebP image
COLORS = 128  # of an image; with 32 arms have colours of others in the legend


def with_figures(page: str, figures: Sequence[Figure]) -> str:
    """Return a page with its figures in the places that `place` names."""
    for name, drawn in embedded(figures, PAGE - len(page)).items():
        page = page.replace(place(name), drawn)
    return page


def place(name: str) -> str:
    """Return what stands in a page for the figure of this name."""
    return f"<!-- figure {name} -->"


def embedded(figures: Sequence[Figure], room: int) -> dict[str, str]:
    """Return name → HTML of each figure, the largest ones as images where `room` is short.

    Args:
        figures: The figures of a page, drawn.
        room: Characters that all of them may take.
    """
    drawn = {figure.name: figure.svg for figure in figures}
    for figure in sorted(figures, key=lambda one: -len(drawn[one.name])):
        if sum(map(len, drawn.values())) <= room:
            break
        drawn[figure.name] = min(drawn[figure.name], _image(figure), key=len)
    return drawn


def _image(figure: Figure) -> str:
    """Return a figure as an image on white, whatever the colours of the page."""
    import vl_convert  # 0.3 s, and few pages need it

    svg, scale = figure.file.read_text(encoding="utf-8"), SCALE
    pixels = vl_convert.svg_to_png(svg, scale=scale)
    if (side := max(Image.open(io.BytesIO(pixels)).size)) > LONGEST:
        scale *= (LONGEST - 1) / side
        pixels = vl_convert.svg_to_png(svg, scale=scale)
    marks = Image.open(io.BytesIO(pixels)).convert("RGBA")
    paper = Image.new("RGB", marks.size, "white")
    paper.paste(marks, mask=marks)
    file = io.BytesIO()
    paper.quantize(COLORS).convert("RGB").save(file, "webp", lossless=True, quality=50)
    data = b64encode(file.getvalue()).decode()
    width, height = (round(size / scale) for size in paper.size)
    return (
        f'<img src="data:image/webp;base64,{data}" alt="{html.escape(figure.alt)}"'
        f' width="{width}" height="{height}">'
    )
