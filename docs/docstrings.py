"""How docstrings are read for the reference: an extension of griffe, see mkdocs.yml.

The comment beside a field of a class, such as `n: int  # pairs that count`, describes it, and lines
that begin with ">>>" are examples.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from textwrap import indent
from typing import Any

import griffe

_EXAMPLE = re.compile(r"\n\n(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


class Docstrings(griffe.Extension):
    """Adds the sections "Attributes" and "Examples" to docstrings without them."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring:
            func.docstring.value = _EXAMPLE.sub(
                lambda found: f"\n\nExamples:\n{indent(found[1], ' ' * 4)}", func.docstring.value
            )

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        text = cls.docstring.value if cls.docstring else ""
        found = {} if "Attributes:" in text or cls.is_alias else comments(cls)
        if not found or cls.docstring is None:
            return
        lines = "\n".join(f"    {name}: {comment}" for name, comment in found.items())
        cls.docstring.value = f"{text}\n\nAttributes:\n{lines}"


def comments(cls: griffe.Class) -> dict[str, str]:
    """Return the annotated fields of a class that have a comment on their line, with it."""
    fields = {
        one.lineno: name
        for name, one in cls.attributes.items()
        if one.annotation is not None and "property" not in one.labels
    }
    source = inspect.cleandoc(f"\n{cls.source}") + "\n"
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = (cls.lineno or 1) + token.start[0] - 1
        if token.type == tokenize.COMMENT and line in fields:
            comment = token.string.removeprefix("#").strip()
            found[fields[line]] = f"{comment[:1].upper()}{comment[1:]}."
    return found
