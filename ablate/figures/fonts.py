"""Fonts for the letters that the font of the figures lacks."""

from __future__ import annotations

import logging
from functools import cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

FAMILY = "DejaVu Sans"  # comes with matplotlib


def lacking(text: str) -> str:
    """Return the letters of `text` that no installed font has: boxes in PNG and PDF."""
    return "".join(sorted(_fallbacks(_foreign(text))[1]))


def boxes(figure: Figure) -> str:
    """Return the letters of a drawn figure that are boxes in PNG and PDF."""
    return lacking(_letters_of(_texts(figure)))


def complete(figure: Figure) -> bool:
    """Give the texts of a drawn figure fonts for all letters; return whether any was needed."""
    texts = _texts(figure)
    families, _ = _fallbacks(_foreign(_letters_of(texts)))
    for text in texts if families else ():
        text.set_fontfamily([FAMILY, *families])
    # no warning of a font without bold letters
    logging.getLogger("matplotlib.font_manager").addFilter(_of_interest)
    return bool(families)


def _texts(figure: Figure) -> list[Text]:
    return [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]


def _letters_of(texts: list[Text]) -> str:
    return "".join(text.get_text() for text in texts)


def _of_interest(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("findfont: Failed to find font weight")


def _foreign(text: str) -> frozenset[str]:
    """Return the letters that are not in the font of the figures."""
    return frozenset(letter for letter in text if letter.isprintable()) - _letters(
        font_manager.findfont(FAMILY)
    )


@cache
def _fallbacks(wanted: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return families that have as many of the letters as fonts have, and the letters left."""
    families: list[str] = []
    while wanted:
        # of fonts that have equally many, one without serifs, then the first by name
        best = max(_fonts(), key=lambda font: (len(wanted & _letters(font[1])), "Sans" in font[0]))
        if not (found := wanted & _letters(best[1])):
            break
        families.append(best[0])
        wanted -= found
    return tuple(families), wanted


@cache
def _fonts() -> tuple[tuple[str, str], ...]:
    """Return family and file of the upright fonts; a font of placeholders has no letters."""
    return tuple(
        sorted(
            {
                font.name: font.fname
                for font in font_manager.fontManager.ttflist
                if font.style == "normal" and not font.name.startswith("Last Resort")
            }.items()
        )
    )


@cache
def _letters(path: str) -> frozenset[str]:
    """Return what a font file can draw; nothing if it cannot be read."""
    try:
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()
