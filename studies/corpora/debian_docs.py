"""Build the corpus `debian-docs` from Debian's documentation packages.

Run `python studies/corpora/debian_docs.py [PATTERN ...]` in an environment where ablate is
installed. It needs Debian or Ubuntu with `apt-get update` done at some time, but no root: packages
are downloaded one at a time by `apt-get download` and unpacked by `dpkg-deb -x` into a temporary
folder. Paragraphs of prose are kept; code, tables and navigation are dropped. The corpus is built
in ablate's cache, where the corpus name `debian-docs` of a study file finds it.

You may train on the text; do not redistribute it, since the packages' licences are many.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from ablate import cache
from ablate.errors import AblateError

# Regular expressions for whole names, since versions differ between releases; of several matches
# the newest counts.
PACKAGES = (
    r"linux-doc-[0-9.]+",
    r"racket-doc",
    r"erlang-doc",
    r"python3\.[0-9]+-doc",
    r"qtbase5-doc-html",
    r"postgresql-doc-[0-9]+",
    r"perl-doc",
    r"sqlite3-doc",
    r"llvm-[0-9]+-doc",
    r"libboost[0-9.]+-doc",
    r"python-django-doc",
    r"git-doc",
    r"libreoffice-help-en-us",
    r"apache2-doc",
    r"manpages",
    r"manpages-dev",
    r"freebsd-manpages",
    r"dict-gcide",
    r"dict-wn",
    r"dict-foldoc",
    r"dict-jargon",
)
_LONGEST_DOCUMENT = 1 << 17  # bytes; a longer file, such as a dictionary, becomes several documents
_LARGEST_FILE = 1 << 27  # bytes, unpacked
_FORMAT = 2  # raised when text is made differently


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_COMMON = _set(
    "a about after all also an and any are as at be because been but by can do does each for from"
    " had has have he her his how if in into is it its like may more most must no not of on one"
    " only or other our out over she should so some such than that the their them then there these"
    " they this to two up use used was we were what when where which who will with would you your"
)
_WORDS = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_COMMON_SHARE = 1 / 5  # of a paragraph's words
_FEWEST_WORDS = 6


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is English prose: six words or more, a fifth of them among the hundred
    commonest.
    """
    words = _WORDS.findall(paragraph)
    return len(words) >= _FEWEST_WORDS and sum(
        word.lower() in _COMMON for word in words
    ) >= _COMMON_SHARE * len(words)


class _Html(HTMLParser):
    """Collects the text of a page, a paragraph for each block, without what stands in code, tables
    and navigation.
    """

    BLOCKS = _set(
        "address article blockquote body br dd div dl dt h1 h2 h3 h4 h5 h6 hr li main ol p section"
        " title ul"
    )
    DROPPED = _set("pre table script style nav header footer head svg math button select textarea")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs = [""]
        self._dropped: list[str] = []  # open elements that are left out, outermost first

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.DROPPED:
            self._dropped.append(tag)
        if tag in self.BLOCKS or tag in self.DROPPED:
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._dropped:
            del self._dropped[self._dropped.index(tag) :]
        if tag in self.BLOCKS:
            self.paragraphs.append("")

    def handle_data(self, data: str) -> None:
        if not self._dropped:
            self.paragraphs[-1] += data


def html(page: str) -> list[str]:
    """The paragraphs of an HTML page."""
    parser = _Html()
    parser.feed(page.replace("\N{PILCROW SIGN}", ""))  # a link to the heading that it stands behind
    parser.close()
    return parser.paragraphs


_ROFF_BLOCKS = {
    "nf": "fi",
    "EX": "EE",
    "TS": "TE",
    "ig": ".",
    "Bd": "Ed",
    "de": ".",
}  # left out, from the one to the other
_ROFF_BREAKS = _set("PP P LP Pp TP IP HP SH SS Sh Ss sp It br RS RE Bl El")
_ROFF_FONTS = _set("B I BR RB BI IB IR RI SM SB")
_ROFF_ESCAPES = (
    (re.compile(r"\\f(?:\(..|\[[^]]*\]|.)|\\s[-+]?\d|\\[&|^/,:%]|\\v'[^']*'|\\h'[^']*'"), ""),
    (re.compile(r"\\(?:\(aq|\[aq\])"), "'"),
    (re.compile(r"\\(?:\(lq|\(rq|\[lq\]|\[rq\]|\(dq)"), '"'),
    (re.compile(r"\\(?:\(em|\[em\])"), " -- "),
    (re.compile(r"\\(?:\(..|\[[^]]*\]|\*\(..|\*.)"), ""),
    (re.compile(r"\\[e\\]"), r"\\"),
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\(.)"), r"\1"),
)


_MDOC_WORDS = _set(
    "Ad An Aq Ar At Bq Bx Cm Dq Dv Dx Em Er Ev Fa Fl Fn Fx Ic Li Ms Nm No Ns Nx Op Ox Pa Pf Pq Ql"
    " Qq Sq St Sx Sy Tn Ux Va Vt Xr"
)
_MDOC_SYSTEMS = {
    "At": "AT&T UNIX",
    "Bx": "BSD",
    "Dx": "DragonFly",
    "Fx": "FreeBSD",
    "Nx": "NetBSD",
    "Ox": "OpenBSD",
    "Ux": "Unix",
}
_MDOC_AROUND = {
    "Aq": "<{}>",
    "Bq": "[{}]",
    "Dq": '"{}"',
    "Fl": "-{}",
    "Pq": "({})",
    "Ql": "'{}'",
    "Qq": '"{}"',
    "Sq": "'{}'",
}


def _mdoc(macro: str, words: list[str], name: str) -> str:
    """What a macro within a sentence prints, of a page called `name`; macros among its words print
    their own.
    """
    end = len(words)
    while end and words[end - 1] in tuple(".,:;)]?!"):
        end -= 1
    inside = [word for word in words[:end] if word not in _MDOC_WORDS]
    if macro == "Nm" and not inside:
        inside = [name]
    if macro in ("Fn", "Xr"):
        inside = [f"{inside[0]}({'' if macro == 'Fn' else ''.join(inside[1:])})"] if inside else []
    if macro in _MDOC_SYSTEMS:
        inside = [_MDOC_SYSTEMS[macro], *inside]
    return _MDOC_AROUND.get(macro, "{}").format(" ".join(inside)) + "".join(words[end:])


def roff(page: str) -> list[str]:
    """The paragraphs of a manual page in man or mdoc macros."""
    paragraphs, until, name = [""], "", ""
    for line in page.splitlines():
        request = re.match(r"[.']\s*(\S+)\s*(.*)", line)
        macro, rest = request.groups() if request else ("", line)
        if until:
            until = "" if macro == until else until
        elif macro in _ROFF_BLOCKS:
            until = _ROFF_BLOCKS[macro]
            paragraphs.append("")
        elif macro in _ROFF_BREAKS or not line.strip():
            paragraphs.append("")
        elif macro in _MDOC_WORDS:
            words = _arguments(rest)
            name = name or (words[0] if macro == "Nm" and words else "")
            paragraphs[-1] += _mdoc(macro, words, name) + "\n"
        elif macro in _ROFF_FONTS:
            words = _arguments(rest)
            paragraphs[-1] += ("" if len(macro) == 2 and macro[0] in "BIR" else " ").join(
                words
            ) + "\n"
        elif not request and not line.startswith((".", "'")):
            paragraphs[-1] += line + "\n"
    for pattern, plain in _ROFF_ESCAPES:
        paragraphs = [pattern.sub(plain, paragraph) for paragraph in paragraphs]
    return paragraphs


def _arguments(rest: str) -> list[str]:
    """The arguments of a macro, of which some stand in quotes."""
    return [plain or quoted for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', rest)]


def pod(page: str) -> list[str]:
    """The paragraphs of Perl's plain old documentation."""
    text = "\n\n".join(paragraph for paragraph in plain(page) if not paragraph.startswith("="))
    text = re.sub(
        r"E<(\w+)>",
        lambda escape: _POD_ESCAPES.get(escape[1], ""),
        re.sub(r"[XZ]<[^<>]*>", "", text),
    )
    for _ in range(3):  # formatting codes nest
        text = re.sub(r"[BCFILS](?:<<+ (.+?) >>+|<([^<>]*)>)", _pod_code, text)
    return text.translate({0xE000: "<", 0xE001: ">", 0xE002: "|"}).split("\n\n")


_POD_ESCAPES = {
    "lt": "\ue000",
    "gt": "\ue001",
    "verbar": "\ue002",
    "sol": "/",
}  # these open and close no code


def _pod_code(code: re.Match[str]) -> str:
    inside = code[1] or code[2] or ""
    return inside.partition("|")[0] if code[0].startswith("L") else inside


def plain(page: str) -> list[str]:
    """The paragraphs of a plain text; what is indented or ruled is code or a table."""
    found = re.split(r"\n\s*\n(?=\S)|\n\s*\n", page)
    return [
        part
        for part in found
        if part[:1] not in (" ", "\t") and not re.search(r"[-=+|*~^]{4}", part)
    ]


_DICTIONARY_MARKS = (
    (
        re.compile(
            r"\s*\[(?:1913 Webster|Webster 1913 Suppl\.|WordNet [\d.]+|Century Dict\."
            r" 1906|[A-Z]{2,3})( *\+[^]]*)?\]"
        ),
        "",
    ),
    (re.compile(r"\s*\[(?:syn|ant|also): [^]]*\]"), ""),
    (re.compile(r"\s*\\[^\\]{1,80}\\"), ""),  # how a headword is spoken
    (re.compile(r"\{\s*([^{}]*?)\s*\}"), r"\1"),  # a link
)


def dictionary(page: str) -> list[str]:
    """The paragraphs of a dictionary in dict's format, in which entries begin at the margin and go
    on indented.
    """
    for mark, plain in _DICTIONARY_MARKS:
        page = mark.sub(plain, page)
    return re.split(r"\n\s*\n|\n(?=\S)", page)


_KINDS: tuple[tuple[str, Callable[[str], list[str]]], ...] = (
    (r"\.x?html?(\.en)?$", html),
    (r"/man/man\d.*\.\d\w*$", roff),
    (r"\.pod$", pod),
    (r"\.dict(\.dz)?$", dictionary),
    (r"\.(txt|rst)$", plain),
)


def reader(path: str) -> Callable[[str], list[str]] | None:
    """What makes paragraphs of a file, by its path without `.gz`; None for a file that is no
    documentation.
    """
    return next((read for pattern, read in _KINDS if re.search(pattern, path)), None)


def paragraphs(page: str, read: Callable[[str], list[str]]) -> Iterator[str]:
    """The prose of a page, white space made single."""
    for found in read(page):
        paragraph = " ".join(found.split())
        if is_prose(paragraph):
            yield paragraph


def folder() -> Path:
    """Return the folder of the built corpus: documents in `text`, and `manifest.json`."""
    return cache.folder() / "debian-docs" / "corpus"


def build(patterns: tuple[str, ...] = PACKAGES) -> Path:
    """Build the corpus unless it is there. Packages done before an interruption are not fetched
    again.

    Raises `AblateError` where the corpus that is there was built of other packages.
    """
    built = cache.built("debian-docs", "corpus", lambda into: _assemble(patterns, into))
    if patterns != tuple(
        record["pattern"] for record in json.loads((built / "manifest.json").read_text())
    ):
        raise AblateError(
            f"{built} was built of other packages: delete that folder to build it anew"
        )
    return built


def _assemble(patterns: tuple[str, ...], into: Path) -> None:
    """Fetch every package and write its paragraphs, those seen before left out."""
    if missing := [tool for tool in ("apt-cache", "apt-get", "dpkg-deb") if not shutil.which(tool)]:
        raise AblateError(
            f"debian-docs is built on Debian or Ubuntu: there is no {missing[0]} here"
        )
    (into / "text").mkdir()
    seen: set[bytes] = set()
    manifest = []
    for pattern in patterns:
        name = _newest(pattern)
        if name is None:
            print(f"{pattern}: this release has no such package", flush=True)
            manifest.append({"pattern": pattern, "package": None})
            continue
        version = _field(name, "Version")
        key = hashlib.sha256(f"{_FORMAT}:{name}:{version}".encode()).hexdigest()
        done = cache.built("debian-docs", key, lambda own, name=name: _fetch(name, own))  # type: ignore[misc]
        record = json.loads((done / "package.json").read_text())
        text = _without(seen, (done / "text").read_text())
        (into / "text" / f"{name}.txt").write_text(text)
        record |= {
            "pattern": pattern,
            "bytes": len(text.encode()),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        manifest.append(record)
        print(
            f"{name} {version}: {record['files']} files, {record['bytes'] / 1e6:.1f} MB of prose",
            flush=True,
        )
    if not any(record["package"] for record in manifest):
        raise AblateError(
            "apt knows no package of these names: "
            + ", ".join(patterns)
            + "; if the names are right, run"
            " `apt-get update` first (as root)"
        )
    (into / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _without(seen: set[bytes], text: str) -> str:
    """`text` without the paragraphs seen before, which it adds to."""
    documents = []
    for document in text.split("\f"):
        fresh = []
        for paragraph in document.split("\n\n"):
            digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
            if digest not in seen:
                seen.add(digest)
                fresh.append(paragraph)
        if fresh:
            documents.append("\n\n".join(fresh))
    return "\f".join(documents)


def _newest(pattern: str) -> str | None:
    """The package whose name matches; of several, the one with the highest number in its name."""
    lines = _run("apt-cache", "search", "--names-only", f"^{pattern}$").splitlines()
    names = [line.split(" ")[0] for line in lines]
    return max(
        names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], default=None
    )


def _field(name: str, field: str) -> str:
    found = re.search(
        rf"^{field}: (.*)$", _run("apt-cache", "show", "--no-all-versions", name), re.MULTILINE
    )
    assert found, f"{name} has no {field}"
    return found[1]


def _fetch(name: str, into: Path) -> None:
    """Download and unpack a package, and write its prose and what it was."""
    with tempfile.TemporaryDirectory(dir=into) as temporary:
        place = Path(temporary)
        _run("apt-get", "download", "-q", name, cwd=place)
        (package,) = place.glob("*.deb")
        _run("dpkg-deb", "-x", str(package), str(place / "root"))
        files = sorted(
            path for path in (place / "root").rglob("*") if path.is_file() and not path.is_symlink()
        )
        found = [document for path in files if not _twice(path) for document in _documents(path)]
        record = {
            "package": name,
            "version": _run("dpkg-deb", "-f", str(package), "Version").strip(),
            "deb_sha256": hashlib.sha256(package.read_bytes()).hexdigest(),
            "files": len(found),
        }
    (into / "text").write_text("\f".join(found))
    (into / "package.json").write_text(json.dumps(record))


def _twice(path: Path) -> bool:
    """Whether a file is the source of an HTML page beside it, so that its text would come twice."""
    source = (
        path.suffix in (".txt", ".rst", ".gz")
        and path.with_name(f"{path.name.split('.')[0]}.html").exists()
    )
    return source or "_sources" in path.parts


def _documents(path: Path) -> Iterator[str]:
    """The documents of a file: its prose, in paragraphs, cut where it is long."""
    read = reader(str(path).removesuffix(".gz"))
    if read is None:
        return
    document, length = list[str](), 0
    for paragraph in paragraphs(_text(path), read):
        document.append(paragraph)
        length += len(paragraph)
        if length > _LONGEST_DOCUMENT:
            yield "\n\n".join(document)
            document, length = [], 0
    if document:
        yield "\n\n".join(document)


def _text(path: Path) -> str:
    """The text of a file, unpacked; of a file larger than any documentation, its beginning."""
    packed = path.suffix in (".gz", ".dz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            return (
                file.read(_LARGEST_FILE)
                .decode(errors="replace")
                .replace("\f", "\n")
                .replace("\ufffd", "")
            )
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise AblateError(f"{path.name} cannot be unpacked: {error}") from None


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise AblateError(f"`{' '.join(command)}` failed: {complaint}")
    return done.stdout


def main() -> None:
    """The command line: builds the corpus and says where it is."""
    parser = argparse.ArgumentParser(description="Build the corpus debian-docs.")
    parser.add_argument(
        "pattern",
        nargs="*",
        default=PACKAGES,
        help="regular expression for a package's name; default: all",
    )
    try:
        built = build(tuple(parser.parse_args().pattern))
    except AblateError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: the packages done so far are kept", file=sys.stderr)
        sys.exit(130)
    print(f"debian-docs is in {built}; to build it anew, delete that folder")


if __name__ == "__main__":
    main()
