"""The corpus debian-docs: prose out of documentation, and a build that can be interrupted, with
tools that only pretend.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.text import corpora, debian_docs, prose

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


def _prose(page: str, path: str) -> list[str]:
    read = prose.reader(path)
    assert read
    return list(prose.paragraphs(page, read))


@pytest.mark.parametrize("path", ["/doc/a.html", "/doc/a.html.en", "/doc/a.htm"])
def test_html_is_its_paragraphs_without_code_tables_and_navigation(path: str) -> None:
    assert _prose(PAGE, path) == [
        "This is the first paragraph of the page & it is about fork() and the like.",
        "An item that is in a list, and the end of it.",
        "Another one that is in the list as well.",
    ]


def test_a_manual_page_is_its_sentences_without_macros() -> None:
    assert _prose(MAN, "/usr/share/man/man2/fork.2") == [
        "fork() creates a new process by duplicating the calling process, which is the parent.",
        "It's one of the calls that are -- of course -- in use everywhere.",
        "EAGAIN There is no room for one more of them.",
    ]


def test_words_that_mdoc_marks_stay_in_their_sentence() -> None:
    assert _prose(MDOC, "/usr/share/man/man2/open.2freebsd") == [
        (
            'The open call and openat() are, with the argument flags, as defined in fcntl(2)), "the'
            ' same" on FreeBSD 8.0.'
        ),
    ]


def test_a_dictionary_is_its_entries_without_marks() -> None:
    assert _prose(DICTIONARY, "/dictd/gcide.dict.dz") == [
        "Orchideous Orchideous, a. (Bot.) The same as Orchidaceous is in all of it.",
        "2. One more of the senses that it has. --Bacon.",
        "privacy n 1: the quality of being secluded from the view of others",
    ]


def test_pod_loses_its_codes_and_keeps_their_text() -> None:
    assert _prose(POD, "/usr/share/perl/print.pod") == [
        "This is print with the nested codes, a link and a <=> b as it is.",
        "Not less than < but more than it is.",
    ]


def test_plain_text_and_dictionaries_are_their_paragraphs() -> None:
    text = (
        "The first of the two is\nhere on two lines.\n\n  indented, as it is in the code of it\n\nA"
        " | B of the | C |\n----+----\n"
    )
    assert _prose(text, "/doc/a.txt") == ["The first of the two is here on two lines."]
    assert _prose(
        "cat\n   An animal that is in the house, and on the mat.\n\ndog\n", "/dictd/wn.dict.dz"
    ) == ["cat An animal that is in the house, and on the mat."]
    assert prose.reader("/usr/bin/cat") is None


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


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian of two packages: its tools are scripts, which log what is downloaded."""
    (tmp_path / "bin").mkdir()
    for name, body in FAKE.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name, files in {
        "small-doc-10": {
            "b.html": PAGE,
            "b.txt": "The source of the page is in this file.",
            "a.txt.gz": "The one thing is in here, and it is all.",
        },
        "other-doc": {
            "c.html": PAGE + "<p>This is what is in the other one, and it is new.</p>",
            "_sources/d.txt": "It is the source of it all.",
        },
    }.items():
        for file, text in files.items():
            path = tmp_path / "packages" / name / "usr/share/doc" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                gzip.compress(text.encode()) if file.endswith(".gz") else text.encode()
            )
        (path.parent / "link.html").symlink_to("/etc/passwd")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, value in (
        ("PACKAGES", "packages"),
        ("LOG", "log"),
        ("BROKEN", "broken"),
        ("ABLATE_CACHE", "cache"),
    ):
        monkeypatch.setenv(name, str(tmp_path / value))
    return tmp_path


def _build(*patterns: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ablate.text.debian_docs", *patterns], capture_output=True, text=True
    )


def test_a_build_takes_the_newest_of_a_pattern_drops_duplicates_and_keeps_a_manifest(
    debian: Path,
) -> None:
    done = _build("small-doc-[0-9]+", "gone-doc", "other-doc")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gone-doc: this release has no such package" in done.stdout
    built = debian_docs.folder()
    first, second = (built / "text" / f"{name}.txt" for name in ("small-doc-10", "other-doc"))
    one, two = first.read_text().split("\f")
    assert one == "The one thing is in here, and it is all."
    assert two.split("\n\n") == _prose(PAGE, "b.html")
    assert second.read_text() == "This is what is in the other one, and it is new."
    manifest = json.loads((built / "manifest.json").read_text())
    assert [(entry["pattern"], entry["package"]) for entry in manifest] == [
        ("small-doc-[0-9]+", "small-doc-10"),
        ("gone-doc", None),
        ("other-doc", "other-doc"),
    ]
    assert (
        manifest[0]["version"] == "1.0"
        and manifest[0]["files"] == 2
        and len(manifest[2]["deb_sha256"]) == 64
    )
    corpus = corpora.find("debian-docs", debian)
    assert (corpus.name, corpus.n_documents, corpus.location) == (
        "debian-docs",
        3,
        str(built / "text"),
    )
    again = _build("other-doc")
    assert (again.returncode, again.stderr) == (
        2,
        f"{built} was built of other packages: delete that folder to build it anew\n",
    )


def test_an_interrupted_build_says_why_and_goes_on_where_it_was(debian: Path) -> None:
    (debian / "broken").touch()
    failed = _build("small-doc-[0-9]+", "other-doc")
    assert (failed.returncode, failed.stderr) == (
        2,
        "`apt-get download -q other-doc` failed: E: no network\n",
    )
    assert not debian_docs.folder().exists()
    (debian / "broken").unlink()
    assert _build("small-doc-[0-9]+", "other-doc").returncode == 0
    assert (debian / "log").read_text().split() == ["small-doc-10", "other-doc", "other-doc"]


def test_without_packages_or_tools_nothing_is_built(
    debian: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "run `apt-get update` first" in _build("gone-doc").stderr
    monkeypatch.setenv("PATH", str(debian / "nowhere"))
    assert "there is no apt-cache here" in _build("other-doc").stderr
    assert not debian_docs.folder().exists()
