"""The script that builds the corpus debian-docs, run with stand-ins for Debian's tools."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ablate import cache
from ablate.errors import AblateError
from ablate.text import corpora

SCRIPT = Path(__file__).parents[1] / "studies" / "corpora" / "debian_docs.py"

PAGE = """<html><head><title>Not this</title><style>p { color: red }</style></head><body>
<nav><p>You are on the page that is the home of this and that.</p></nav>
<h1>About<a href="#about">¶</a></h1><p>This is the <b>first</b> paragraph of the&nbsp;page
&amp; it is
about <code>fork()</code> and the like.</p>
<pre>int main(void) { return 0; } /* this is in the code and not for us to read */</pre>
<table><tr><td>This is a cell of the table and it is not for us.</td></tr></table>
<ul><li>An item that is in a list, and the end of it.
<li>Another one that is in the list as well.</ul>
<p>foo bar baz quux corge grault</p></body></html>"""

MAN = r""".TH FORK 2 "a date" "of the page"
.SH DESCRIPTION
.BR fork ()
creates a new process by duplicating the calling process, which is \fIthe\fP parent.
.PP
It\(aqs one of the calls that are \-\- of course \-\- in use
.\" a remark that is not for the reader to see
everywhere.
.nf
    this is the code of an example and not for us
.fi
.TP
.B "EAGAIN"
There is no room for one more of them.
"""

MDOC = r""".Dd March 30, 2020
.Sh NAME
.Nm open , openat
.Sh SYNOPSIS
.Fn open "const char *path" "int flags"
.Sh DESCRIPTION
The
.Nm
call and
.Fn openat
are, with the argument
.Fa flags ,
as defined in
.Xr fcntl 2 ) ,
.Dq the same
on
.Fx 8.0 .
"""

DICTIONARY = r"""00-short
     W
Orchideous
   Orchideous \Or*chid"e*ous\, a. (Bot.)
   The same as {Orchidaceous} is in all of it.
   [1913 Webster]

   2. One more of the senses that it has. --Bacon. [1913 Webster + PJC]
privacy
    n 1: the quality of being secluded from the view of others [syn: {privacy},
         {seclusion}]
"""

POD = """=head1 About the name of this

This is C<print> with B<the I<nested>> codes, a L<link|perlfunc/print> and C<< a <=> b >> as it is.

    my $code = "this is in the code and is not for us";

Not less than E<lt> but more than it is.
"""


FAKE = {
    "apt-cache": (
        """case "$1" in
        search) for name in small-doc-9 small-doc-10 other-doc; do
            echo "$name" | grep -E "$3" | sed "s/$/ - words/"; done;;
        show) printf "Package: $3\\nVersion: 1.0\\n";;
    esac"""
    ),
    "apt-get": (
        """echo "$3" >> "$LOG"
    if [ -e "$BROKEN" ] && [ "$3" = other-doc ]; then echo "E: no network" >&2; exit 100; fi
    echo "$3" > "$3.deb" """
    ),
    "dpkg-deb": (
        """case "$1" in
        -x) mkdir -p "$3"; cp -r "$PACKAGES/$(cat "$2")/." "$3";;
        -f) echo 1.0;;
    esac"""
    ),
}


FILES = {
    "small-doc-10": {
        "doc/b.html": PAGE,
        "doc/b.txt": "The source of the page is in this file.",
        "doc/a.txt.gz": "The one thing is in here, and\nit is all.\n\n  code, as it is\n",
    },
    "other-doc": {
        "doc/c.html": PAGE + "<p>This is what is in the other one, and it is new.</p>",
        "doc/_sources/d.txt": "It is the source of it all.",
        "man/man2/fork.2": MAN,
        "man/man2/open.2freebsd": MDOC,
        "perl/print.pod": POD,
        "dictd/gcide.dict.dz": DICTIONARY,
        "bin/cat": "This is a program, and it is not for us to read.",
    },
}
PAGE_PROSE = [
    "This is the first paragraph of the page & it is about fork() and the like.",
    "An item that is in a list, and the end of it.",
    "Another one that is in the list as well.",
]
OTHER_PROSE = [  # by path: dictionary, HTML, man, mdoc, POD
    "Orchideous Orchideous, a. (Bot.) The same as Orchidaceous is in all of it.",
    "2. One more of the senses that it has. --Bacon.",
    "privacy n 1: the quality of being secluded from the view of others",
    "This is what is in the other one, and it is new.",
    "fork() creates a new process by duplicating the calling process, which is the parent.",
    "It's one of the calls that are -- of course -- in use everywhere.",
    "EAGAIN There is no room for one more of them.",
    "The open call and openat() are, with the argument flags, as defined in fcntl(2)), "
    '"the same" on FreeBSD 8.0.',
    "This is print with the nested codes, a link and a <=> b as it is.",
    "Not less than < but more than it is.",
]


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian of two packages; its tools are scripts, which log what is downloaded."""
    (tmp_path / "bin").mkdir()
    for name, body in FAKE.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name, files in FILES.items():
        share = tmp_path / "packages" / name / "usr/share"
        for file, text in files.items():
            (share / file).parent.mkdir(parents=True, exist_ok=True)
            packed = file.endswith((".gz", ".dz"))
            (share / file).write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        (share / "doc" / "link.html").symlink_to("/etc/passwd")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for variable in ("PACKAGES", "LOG", "BROKEN"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def _build(*patterns: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *patterns], capture_output=True, text=True)


def test_a_build_takes_the_newest_package_drops_duplicates_and_keeps_a_manifest(
    debian: Path,
) -> None:
    done = _build("small-doc-[0-9]+", "gone-doc", "other-doc")
    assert (done.returncode, done.stderr) == (0, "")
    built = cache.folder() / "debian-docs" / "corpus"
    one, two = (built / "text" / "small-doc-10.txt").read_text().split("\f")
    assert one == "The one thing is in here, and it is all."
    assert two.split("\n\n") == PAGE_PROSE
    assert re.split("\f|\n\n", (built / "text" / "other-doc.txt").read_text()) == OTHER_PROSE
    small, gone, other = json.loads((built / "manifest.json").read_text())
    assert (small["package"], small["version"], small["files"]) == ("small-doc-10", "1.0", 2)
    assert (gone["pattern"], gone["package"]) == ("gone-doc", None)
    assert other["package"] == "other-doc" and len(other["deb_sha256"]) == 64
    corpus = corpora.find("debian-docs", debian)
    assert (corpus.name, corpus.n_documents, corpus.location) == (
        "debian-docs",
        2 + len(FILES["other-doc"]) - 2,  # neither _sources nor the program
        "named:debian-docs",
    )
    again = _build("other-doc")
    assert again.returncode == 2 and str(built) in again.stderr


def test_an_interrupted_build_continues_with_the_package_that_failed(debian: Path) -> None:
    (debian / "broken").touch()
    failed = _build("small-doc-[0-9]+", "other-doc")
    assert failed.returncode == 2 and "E: no network" in failed.stderr
    with pytest.raises(AblateError, match=r"debian_docs\.py"):
        corpora.find("debian-docs", debian)
    (debian / "broken").unlink()
    assert _build("small-doc-[0-9]+", "other-doc").returncode == 0
    assert (debian / "log").read_text().split() == ["small-doc-10", "other-doc", "other-doc"]


def test_without_packages_or_tools_nothing_is_built(
    debian: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "apt-get update" in _build("gone-doc").stderr
    monkeypatch.setenv("PATH", str(debian / "nowhere"))
    assert "apt-cache" in _build("other-doc").stderr
    assert not (cache.folder() / "debian-docs" / "corpus").exists()
