"""Corpora: what a study's `corpus` names, its content hash, and how long it is."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ablate.errors import AblateError
from ablate.text import cache, sources
from ablate.text.documents import SEPARATOR, WHOLE_FROM, parts

# the first two come with the package, the third is built on demand
NAMED = ("austen", "sotu", "debian-docs")
# endings of files that are suggested instead of a missing one
TEXTS = (".txt", ".md", ".rst", ".gz", ".xz")
_FORMAT = 2  # raised when a corpus is read or split differently
_SETTLED = 2.0  # seconds after which a next change of a file changes its modification time


@dataclass(frozen=True)
class Facts:
    """What reading a corpus found; bytes count a separator after each document."""

    hash: str  # SHA-256 of the documents, each with a form feed after it; or of both token files
    n_documents: int
    n_bytes: int
    n_train_bytes: int
    n_held_out_bytes: int
    n_token_ids: int = 0  # one more than the largest token of token files; 0 for text
    # the first bytes that are not UTF-8, with some around them; "" if there are none
    not_utf8: str = ""


@dataclass(frozen=True)
class Corpus(Facts):
    """A text that a study names, after reading it."""

    name: str = ""  # "austen", or the stem of a file, the name of a folder
    location: str = ""  # "package:NAME", "hf:FOLDER", an absolute path or an absolute glob

    @property
    def holds_tokens(self) -> bool:
        """Whether the corpus consists of token files, not text."""
        return self.n_token_ids > 0


def find(spec: str, root: Path) -> Corpus:
    """Return the corpus that a study names.

    Reads all of it the first time, then only the sizes and times of its files.

    Args:
        spec: austen, sotu, debian-docs, or a file, folder or glob.
        root: the folder that relative paths count from.

    Raises:
        AblateError: it does not exist, has no text, or cannot be read.
    """
    with sources.readable(f"corpus {spec!r}"):
        location = _locate(spec, root)
        facts = read(location)
    if not facts.n_documents:
        raise AblateError(f"corpus {spec!r} is empty: there is no text in it")
    path = Path(
        location.partition(":")[2] if location.startswith(("package:", "hf:")) else location
    )
    name = path.name.split(".")[0] or path.parent.name
    while sources.is_glob(name):  # the name of a glob is that of its folder
        path = path.parent
        name = path.name
    return Corpus(**asdict(facts), name=spec if spec in NAMED else name, location=location)


def read(location: str) -> Facts:
    """Return the facts of a corpus, from the cache unless one of its files changed."""
    source = sources.at(location)
    stats = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in source.files
        if path.exists()
    ]
    known = (
        cache.folder()
        / "corpora"
        / f"{hashlib.sha256(json.dumps([_FORMAT, location, stats]).encode()).hexdigest()}.json"
    )
    with cache.usable():
        if known.exists():
            return Facts(**json.loads(known.read_text()))
    facts = _token_facts(source) if isinstance(source, sources.TokenFiles) else _text_facts(source)
    if all(time.time() - mtime / 1e9 > _SETTLED for _, _, mtime in stats):
        with cache.usable():
            known.parent.mkdir(parents=True, exist_ok=True)
            partial = known.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(asdict(facts)))
            partial.replace(known)
    return facts


def _locate(spec: str, root: Path) -> str:
    if spec in ("austen", "sotu"):
        return f"package:{spec}"
    if spec == "debian-docs":
        built = cache.folder() / "debian-docs" / "corpus" / "text"
        if not built.is_dir():
            raise AblateError(
                f"corpus 'debian-docs' is not in {cache.folder()}: build it with `python"
                " studies/corpora/debian_docs.py` (on Debian or Ubuntu, no root needed)"
            )
        return str(built)
    prefix, path = ("hf:", spec[3:]) if spec.startswith("hf:") else ("", spec)
    location = sources.absolute(path, root)
    if not prefix and not location.exists() and not sources.is_glob(path):
        meant = _meant(path, location, root)
        raise AblateError(
            f"corpus {spec!r:.200}: there is no such corpus, and no such file or folder in"
            f" {location.parent!s:.200}"
            + (
                ""
                if Path(path).expanduser().is_absolute()
                else "; paths are relative to the study file's folder"
            )
            + (f"; did you mean {meant!r}?" if meant else ".")
            + f" Named corpora: {', '.join(NAMED)}."
        )
    return prefix + str(location)


def _meant(path: str, location: Path, root: Path) -> str:
    """Return the path from `root` of a similar or equally named file of text; else ""."""
    if Path(path).exists():
        return os.path.relpath(path, root)
    near = list(NAMED)
    if location.parent.is_dir():
        endings = {location.suffix, *TEXTS}
        entries = [entry for entry in location.parent.iterdir() if not entry.name.startswith(".")]
        near += [
            entry.name
            for entry in entries
            if entry.is_dir() or (entry.is_file() and entry.suffix in endings)
        ]
    alike = difflib.get_close_matches(path, near, n=1, cutoff=0.5) or difflib.get_close_matches(
        location.name, near, n=1
    )
    return alike[0] if alike else ""


def _text_facts(source: sources.TextFiles | sources.DataSet) -> Facts:
    digest, number, n_bytes, not_utf8 = hashlib.sha256(), -1, 0, ""
    # bytes to train on and held out, if whole documents are held out, or the tail of each
    whole, tails = ([0, 0], [0, 0])
    for number, document in enumerate(source.documents()):
        for piece in document.pieces(1 << 20):
            digest.update(piece)
            not_utf8 = not_utf8 or _undecodable(piece)
        digest.update(SEPARATOR)
        n_bytes += len(document) + len(SEPARATOR)
        for lengths, n_documents in ((whole, WHOLE_FROM), (tails, 1)):
            for part, held_out in parts(document, number, n_documents):
                lengths[held_out] += len(part) + len(SEPARATOR)
    n_train, n_held_out = whole if number + 1 >= WHOLE_FROM else tails
    return Facts(digest.hexdigest(), number + 1, n_bytes, n_train, n_held_out, not_utf8=not_utf8)


def _undecodable(piece: bytes) -> str:
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        return repr(piece[max(0, error.start - 20) : error.start + 20])
    return ""


def _token_facts(source: sources.TokenFiles) -> Facts:
    digest, largest = hashlib.sha256(), 0
    train, held_out = source.arrays()
    for array in (train, held_out):
        digest.update(len(array).to_bytes(8, "big"))
        for start in range(0, len(array), 1 << 20):
            chunk = array[start : start + (1 << 20)]
            digest.update(chunk.tobytes())
            largest = max(largest, int(chunk.max()))
    return Facts(
        digest.hexdigest(),
        1,
        train.nbytes + held_out.nbytes,
        train.nbytes,
        held_out.nbytes,
        largest + 1,
    )
