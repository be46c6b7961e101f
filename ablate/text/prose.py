"""Documentation to prose: paragraphs out of HTML, manual pages, POD and plain text, without code
and tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser


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
