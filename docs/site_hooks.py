"""What the site needs beyond the pages, as hooks of MkDocs: see mkdocs.yml.

The pages are written to be read in the repository too. For the site, pages outside of this folder
are added, links to them are turned, and `<!-- reference: NAME -->` becomes the documentation of a
Python name, from its docstring.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINKED = ("studies/*.toml", "studies/*.py", "results/reference/**/*.html")  # what pages link to
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_REFERENCE = re.compile(r"<!-- reference: ([\w.]+)((?: \w+)*) -->")
# what a browser loads by itself from another host; links that a reader follows are no concern
_FOREIGN = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|alternate))[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|@import[^;]*//[^;]+|url\(["']?(?:https?:)?//[^)]+""",
    re.IGNORECASE,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages and files of the repository that are outside of docs/."""
    added = {page: ROOT / name for page, name in config.extra["copied"].items()}
    for pattern in LINKED:
        added |= {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob(pattern)}
    for name, path in added.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Turn links and write out references, outside of blocks of code."""
    pages = {Path(str(file.abs_src_path)): file.src_uri for file in files if file.abs_src_path}
    source = Path(str(page.file.abs_src_path))

    def turned(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        if target not in pages:
            return match[0]  # MkDocs says so, and `--strict` fails
        return os.path.relpath(pages[target], Path(page.file.src_uri).parent)

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        parts[number] = _REFERENCE.sub(_directive, _LINK.sub(turned, parts[number]))
    return "".join(parts)


def _directive(match: re.Match[str]) -> str:
    """Return the directive of mkdocstrings for a name, and for members of it that are named."""
    name, members = match[1], match[2].split()
    path = name
    if (ROOT / name.replace(".", "/")).with_suffix(".py").is_file():
        path += f".{name.rpartition('.')[2]}"  # a function in a module of its name
    return f"::: {path}\n    options:\n      heading: {name}\n      members: {members or 'false'}\n"


def on_page_content(html: str, **_: Any) -> str:
    r"""Take the backslash from `a\|b` in tables, which Markdown of the repository's pages needs."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace(r"\|", "|"), html)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads anything from another host.

    Raises:
        PluginError: What is loaded, and by which file.
    """
    for file in sorted(Path(config.site_dir).rglob("*")):
        if file.suffix not in (".html", ".css"):
            continue
        if found := _FOREIGN.search(file.read_text(encoding="utf-8")):
            raise PluginError(f"{file.name} loads from another host: {found[0]}")
