"""The site has every page. MkDocs itself, with its links and references, runs in `make site`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ablate

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(part)


def test_every_page_is_in_the_navigation_once() -> None:
    copied = CONFIG["extra"]["copied"]
    assert all((ROOT / file).is_file() for file in copied.values())
    assert sorted(pages(CONFIG["nav"])) == sorted(
        [*(page.name for page in DOCS.rglob("*.md")), *copied]
    )


def test_every_page_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("\n## Documentation\n")[2].partition("\n## ")[0]
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", table))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_public_names_are_in_the_reference() -> None:
    marks = set(re.findall(r"<!-- reference: ([\w.]+)", (DOCS / "python.md").read_text()))
    names = {f"ablate.{name}" for name in vars(ablate)["_LAZY"]}
    assert len(names) > 10 and names <= marks
