"""Rich's console, with escapes for control characters in what is printed on it."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from ablate.formats import harmless


class Console(console.Console):
    """A console on which text from a database or a file cannot act on the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; rich's own control codes are segments marked as such."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))
