"""Build the corpus `debian-docs` from Debian's documentation packages: `python -m
ablate.text.debian_docs [PATTERN ...]`.

Needs Debian or Ubuntu with `apt-get update` done at some time, but no root: packages are downloaded
one at a time by `apt-get download` and unpacked by `dpkg-deb -x` into a folder that is thrown away.
Their licences are many: the text is for use, not for passing on.
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
from collections.abc import Iterator
from pathlib import Path

from ablate.errors import AblateError
from ablate.text import cache, prose

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


def folder() -> Path:
    """Where the corpus stands once it is built: documents in `text`, and `manifest.json`."""
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
        raise AblateError("apt knows none of the packages: run `apt-get update` first (as root)")
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
    read = prose.reader(str(path).removesuffix(".gz"))
    if read is None:
        return
    document, length = list[str](), 0
    for paragraph in prose.paragraphs(_text(path), read):
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
    parser = argparse.ArgumentParser(
        prog="python -m ablate.text.debian_docs", description="Build the corpus debian-docs."
    )
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
