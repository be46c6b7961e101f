"""Draw tidy frames with matplotlib, one function a figure.

Figures are colour-blind-safe, as wide as a paper's column, with units on the axes. Every function
draws on `ax`, or on a figure of its own, and returns the Axes. `looking(Look(width, style))` sets
the width of new figures and a style file of matplotlib.
"""

from ablate.figures.compare import effects, heat, ordered
from ablate.figures.cost import pareto
from ablate.figures.fonts import boxes, lacking
from ablate.figures.grid import at_what
from ablate.figures.importance import importance
from ablate.figures.rates import rates
from ablate.figures.saving import inline, save, told
from ablate.figures.scaling import frontier, isoflop, residuals, scaling
from ablate.figures.seeds import seeds
from ablate.figures.style import Look, looking, multiples, theme
from ablate.figures.training import blocks, curves, gaps, positions, summary

__all__ = [
    "Look",
    "at_what",
    "blocks",
    "boxes",
    "curves",
    "effects",
    "frontier",
    "gaps",
    "heat",
    "importance",
    "inline",
    "isoflop",
    "lacking",
    "looking",
    "multiples",
    "ordered",
    "pareto",
    "positions",
    "rates",
    "residuals",
    "save",
    "scaling",
    "seeds",
    "summary",
    "theme",
    "told",
]
