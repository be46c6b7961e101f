"""The JavaScript libraries of a page, Vega-Lite and Vega, in a page that needs no network."""

from __future__ import annotations

import gzip
from base64 import b64encode
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ablate import cache as on_disk
from ablate.errors import UnlocatedError
from ablate.paths import digest

_SNIPPET = "window.vegaEmbed = vegaEmbed;"  # vega and vegaLite are null in vl-convert 1.9
_PACKAGE = "vl-convert-python"


@cache
def script() -> str:
    """Return the script, which sets `vegaEmbed`; it takes seconds to make, so is kept.

    A cache that cannot be written costs these seconds, and nothing else.
    """
    made = digest(f"{version(_PACKAGE)} {_SNIPPET}")

    def build(folder: Path) -> None:
        (folder / "vega.js").write_text(_bundled(), encoding="utf-8")

    try:
        return (on_disk.built("javascript", made, build) / "vega.js").read_text(encoding="utf-8")
    except (UnlocatedError, OSError):
        return _bundled()


def _bundled() -> str:
    import vl_convert  # 0.3 s, and only a page needs it

    return str(vl_convert.javascript_bundle(_SNIPPET))


def packed(text: str) -> str:
    """Return a text as gzip in base64, for a page to unpack: less than half as long."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()
