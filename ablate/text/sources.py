"""Sources of text: from a location to its files, their format, and the parts that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ablate import cache
from ablate.errors import AblateError
from ablate.text import readers, words
from ablate.text.documents import Document
from ablate.text.files import Mended
from ablate.text.options import BYTES, NAMED, Reading, Request
from ablate.text.readers import Format

SHIPPED = Path(__file__).parent / "shipped"
# how the corpora that come with the package are read: as their hash was made
_AS_SHIPPED = Reading(format="text", encoding=BYTES)

# corpora of pairs that come with the package: file, which words are held out, and that in words
PAIRS: dict[str, tuple[str, Callable[[str], bool], str]] = {
    "cmudict": (
        "cmudict",
        words.by_stem,
        f"about one word in {words.EVERY}, by the hash of its stem, so that inflections of a word"
        " are on one side",
    ),
    "cmudict-long": (
        "cmudict",
        words.by_length,
        f"words of {words.LONG} letters or more; the training words are shorter",
    ),
}

# words in names of files and folders that say which part of a text they are
_WORDS = {
    "train": ("train", "training"),
    "held_out": ("heldout", "held-out", "held_out"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
PART_OF = {word: role for role, words in _WORDS.items() for word in words}
_WORD = re.compile(
    rf"(?<![a-z0-9])({'|'.join(sorted(PART_OF, key=len, reverse=True))})(?![a-z])", re.IGNORECASE
)
# files beside a data set that are about it: left out where there are files of data
_BY_NAME = (
    r"(readme|licen[cs]e|citation|changelog|prepare|meta|metadata|state|dataset_(info|infos|dict))"
    r"(\.\w+)?"
)
_ABOUT = re.compile(
    rf"{_BY_NAME}|.*\.(idx|pkl|py|md|ya?ml|lock|sha256|pdf|png|jpe?g)", re.IGNORECASE
)
_ABOUT_TEXTS = re.compile(_BY_NAME, re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """Files of one format, and whether they are held out; None where a split decides."""

    files: tuple[Path, ...]
    format: Format
    held_out: bool | None = None


@dataclass(frozen=True)
class Source:
    """A text: its parts, as names of files or the study give them.

    Attributes:
        parts: One part that is to be split, or a training part and a held-out part.
        reading: How the files are read.
        how: Where the split of the parts is from, as a phrase; "" where it is ours.
        unread: What else is there, and is not read.
        named: Whether the corpus comes with the package, and defines its own split.
        is_held_out: Whether the pair of a source text is held out, where a rule decides that.
    """

    parts: tuple[Part, ...]
    reading: Reading
    how: str = ""
    unread: tuple[str, ...] = ()
    named: bool = False
    is_held_out: Callable[[str], bool] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are read."""
        return tuple(path for part in self.parts for path in part.files)

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the files, of `ablate.text.readers.FORMATS`."""
        return tuple(dict.fromkeys(part.format.name for part in self.parts))

    @property
    def holds_tokens(self) -> bool:
        """Whether the files hold tokens, not text."""
        return any(part.format.name == "tokens" for part in self.parts)

    def documents(self, mended: Mended | None = None) -> Iterator[Document]:
        """Yield the documents, the training part first; `mended` counts what is changed."""
        for document, _ in self._read(mended):
            yield document

    def placed(self, mended: Mended | None = None) -> Iterator[tuple[Document, bool | None]]:
        """Yield each document, and whether it is held out; None where a split decides."""
        for document, held_out in self._read(mended):
            if self.is_held_out:
                source, _, _ = b"".join(document.pieces()).partition(b"\t")
                held_out = self.is_held_out(source.decode())
            yield document, held_out

    def _read(self, mended: Mended | None) -> Iterator[tuple[Document, bool | None]]:
        """Yield each document, and whether its part is held out."""
        first = self.parts[0]
        # the rows of all parts are what those of the training part are
        like = readers.lines_in(first.files, first.format, self.reading) if self.parts[1:] else None
        counted = Mended() if mended is None else mended
        for part in self.parts:
            for document in readers.read(part.files, part.format, self.reading, counted, like):
                yield document, part.held_out


def is_glob(spec: str) -> bool:
    """Return whether a corpus is named by a pattern."""
    return bool(set(spec) & set("*?["))


def absolute(spec: str, root: Path) -> Path:
    """Return the absolute path or pattern that a study names relative to `root`.

    Raises:
        AblateError: it is not a path.
    """
    try:
        if "\0" in spec:
            raise ValueError("it holds a NUL character")
        return (
            root.absolute() / Path(spec).expanduser()
            if is_glob(spec)
            else (root.absolute() / Path(spec).expanduser()).resolve()
        )
    # a name too long, a circle of links, the home of an unknown user
    except (OSError, RuntimeError, ValueError) as error:
        raise AblateError(f"{spec[:80]!r} is not a valid path: {str(error)[:200]}") from None


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn the system's refusal to find or read what a study names into an `AblateError`."""
    try:
        yield
    except OSError as error:
        raise AblateError(
            f"{what:.200} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None


def at(location: str) -> Source:
    """Return the source at a location, see `ablate.text.options.Request`.

    Raises:
        AblateError: nothing is there, or it is not clear what of it to read.
    """
    request = Request.of(location)
    if request.train.startswith(NAMED):
        name = request.train.removeprefix(NAMED)
        plain = readers.FORMATS["text"]
        if name in PAIRS:
            stem, held_out, how = PAIRS[name]
            part = Part((SHIPPED / f"{stem}.txt.xz",), plain)
            return Source((part,), _AS_SHIPPED, how, named=True, is_held_out=held_out)
        return Source((Part(_named(name), plain),), _AS_SHIPPED, named=True)
    (files, others), reading = _files(request.train), request.reading
    if request.held_out:
        held, more = _files(request.held_out)
        others += more
        parts = [
            (*_of_one_format(one, Path(location), reading), held_out)
            for held_out, location, one in (
                (False, request.train, files),
                (True, request.held_out, held),
            )
        ]
        tokens = {format.name == "tokens" for _, format, _, _ in parts}
        if len(tokens) > 1:
            raise AblateError(
                "corpus = { train, held_out }: one of them holds tokens, the other text"
            )
        how = f"{Path(*Path(request.held_out).parts[-2:]).as_posix()}, which the study names"
        return Source(
            tuple(Part(files, format, held_out) for files, format, _, held_out in parts),
            reading,
            how,
            (*(name for part in parts for name in part[2]), *others),
        )
    kept, format, unread = _of_one_format(files, Path(request.train), reading)
    unread += others
    if request.explicit or kept == (Path(request.train),):
        return Source((Part(kept, format),), reading, unread=unread)
    return _with_split(Path(request.train), kept, format, reading, unread)


def _named(name: str) -> tuple[Path, ...]:
    """Return the files of a corpus that comes with the package, or that its script builds."""
    if name == "debian-docs":
        folder = cache.folder() / name / "corpus" / "text"
        return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    return (SHIPPED / f"{name}.txt.xz",)


def _files(location: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the regular files of a file, a folder or a glob, in order of their names.

    Returns:
        The files, and the names of what is no file: links to folders or to nothing, pipes.
    """
    path = Path(location)
    if path.is_dir():
        files = [file for file in path.rglob("*") if not _is_hidden(file, path)]
    elif path.exists():
        files = [path]
    else:
        files = _matching(location)
    regular = tuple(sorted(file for file in files if file.is_file()))
    if not regular:
        missing = (
            "the folder is empty"
            if path.is_dir()
            else "it is not a regular file"
            if path.exists()
            else "there is no such file"
        )
        raise AblateError(f"corpus {location!r:.200}: {missing}")
    others = sorted(
        file.name
        for file in files
        if not file.is_file() and (file.is_symlink() or not file.is_dir())
    )
    return regular, tuple(others)


def _matching(pattern: str) -> list[Path]:
    """Return the files that match; `**` follows no links to folders, which may be circular."""
    folder, rest = _fixed(pattern)
    if not rest:
        return []
    try:
        return [file for file in folder.glob("/".join(rest)) if not _is_hidden(file, folder)]
    except ValueError as error:
        raise AblateError(f"corpus {pattern!r:.200}: {str(error).lower()}") from None


def _fixed(pattern: str) -> tuple[Path, tuple[str, ...]]:
    """Return the folder below which a pattern searches, and the rest of it."""
    parts = Path(pattern).parts
    first = next((index for index, part in enumerate(parts) if is_glob(part)), len(parts))
    return Path(*parts[:first]), (*parts[first:], *(["*"] if parts[-1] == "**" else []))


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _of_one_format(
    files: tuple[Path, ...], location: Path, reading: Reading
) -> tuple[tuple[Path, ...], Format, tuple[str, ...]]:
    """Return the files of the one format that a folder holds, and the names of all others."""
    if len(files) == 1 or reading.format not in ("auto", "tokens"):
        return files, readers.of(files[0], reading), ()
    by_format: dict[str, list[Path]] = {}
    for path in files:
        by_format.setdefault(readers.of(path, reading).name, []).append(path)
    if by_format.keys() == {"text"}:  # a README.md beside *.txt is about them, beside *.md one more
        named = {path for path in files if _ABOUT_TEXTS.fullmatch(path.name)}
        kinds = {path.suffix for path in files if path not in named}
        about = {path for path in named if path.suffix not in kinds}
    else:
        about = {path for path in files if _ABOUT.fullmatch(path.name)}
    by_format = {
        name: kept
        for name, paths in by_format.items()
        if (kept := [path for path in paths if path not in about])
    } or by_format
    tokens = by_format.get("tokens", [])
    if len(by_format) > 1 and any(_word(path, location) for path in tokens):
        by_format = {"tokens": tokens}  # what nanoGPT keeps beside the text that it was made from
    if len(by_format) > 1:
        examples = ", ".join(
            f"{readers.FORMATS[name].title} ({paths[0].name})" for name, paths in by_format.items()
        )
        suffix = next(iter(by_format.values()))[0].suffix
        raise AblateError(
            f"corpus {str(location)!r:.200} holds files of several formats: {examples}; choose by a"
            f" glob such as '*{suffix}', or by [data] format"
        )
    ((name, paths),) = by_format.items()
    unread = tuple(path.name for path in files if path not in set(paths))
    return tuple(paths), readers.FORMATS[name], unread


def _word(path: Path, location: Path) -> str:
    """Return the word in a file's name below a location that says which part it is, else ""."""
    found = _WORD.search(_below(path, location))
    return found[1].lower() if found else ""


def _below(path: Path, location: Path) -> str:
    folder = _fixed(str(location))[0] if is_glob(str(location)) else location
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _with_split(
    location: Path, files: Sequence[Path], format: Format, reading: Reading, unread: tuple[str, ...]
) -> Source:
    """Return the source with the parts that the names of its files say, where they say all."""
    by_word: dict[str, list[Path]] = {}
    for path in files:
        by_word.setdefault(_word(path, location), []).append(path)
    by_role: dict[str, list[Path]] = {}
    for word, paths in by_word.items():
        by_role.setdefault(PART_OF.get(word, ""), []).extend(paths)
    held_out = next((role for role in ("held_out", "validation", "test") if role in by_role), "")
    tokens = format.name == "tokens"
    if "train" not in by_role or not held_out:
        if tokens and (held_out or "train" in by_role):
            there = "train" if "train" in by_role else held_out
            names = {path.name for path in files}
            missing = ("train.bin", "val.bin")["train" in by_role]
            expected = missing if names <= {"train.bin", "val.bin"} else "the other part"
            raise AblateError(
                f"corpus {str(location)!r:.200}: {expected} is missing, but a file of the part"
                f" {there!r} is there"
            )
        return Source((Part(tuple(files), format),), reading, unread=unread)
    outside = [path for path in by_role.get("", []) if not _ABOUT.fullmatch(path.name)]
    if 2 * len(outside) >= len(files):  # a collection of which some files have such names
        return Source((Part(tuple(files), format),), reading, unread=unread)
    if outside:
        raise AblateError(
            f"corpus {str(location)!r:.200}: names of its files say which part they are, but"
            f" {outside[0].name} is of none; name the parts: corpus = {{ train = …, held_out = … }}"
        )
    prefixes = {
        _below(path, location)[: match.start()]
        for path in by_role["train"]
        if (match := _WORD.search(_below(path, location)))
    }
    if len(prefixes) > 1:
        raise AblateError(
            f"corpus {str(location)!r:.200} holds several data sets:"
            f" {', '.join(sorted(prefixes)):.200}; name one of them"
        )
    words = {role: next(w for w in by_word if PART_OF.get(w) == role) for role in by_role if role}
    left = [f"its part {words[role]}" for role in words if role not in ("train", held_out)]
    left += [path.name for path in by_role.get("", [])]
    return Source(
        (
            Part(tuple(sorted(by_role["train"])), format, False),
            Part(tuple(sorted(by_role[held_out])), format, True),
        ),
        reading,
        f"the text's own part {words[held_out]}",
        (*unread, *left),
    )
