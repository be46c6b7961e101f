"""references.bib: its syntax, that every source resolves to it, and what a report takes from it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from report_study import Outcome, study, svg_only  # noqa: F401

from ablate import references, report
from ablate.code import Code
from ablate.components import CATALOGUE
from ablate.components.presets import PRESETS
from ablate.metrics import METRICS
from ablate.report import cited
from ablate.report.data import ReportData
from ablate.store.code import Made

PACKAGE = Path(references.__file__).parent
# what BibTeX's standard styles need of each type
NEEDED = {
    "article": {"author", "title", "journal", "year"},
    "book": {"author", "title", "publisher", "year"},
    "incollection": {"author", "title", "booktitle", "publisher", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "techreport": {"author", "title", "institution", "year"},
    "misc": {"author", "title"},
}
AUTHORS_YEAR = re.compile(r"[A-Z][\w-]+(?: et al\.| & [A-Z][\w-]+)? (?:19|20)\d\d\b")


def parsed(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Read BibTeX by its grammar: key → type and fields; values are in braces, which balance."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    at = 0
    while (at := text.find("@", at)) >= 0:
        head = re.compile(r"@(\w+)\{([^\s,{}]+),").match(text, at)
        assert head, text[at : at + 60]
        assert head[2] not in found, head[2]
        fields = found.setdefault(head[2], (head[1], {}))[1]
        at = head.end()
        while field := re.compile(r"\s*(\w+)\s*=\s*\{").match(text, at):
            depth, at = 1, field.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0) * (text[at - 1] != "\\")
                at += 1
            assert field[1] not in fields, (head[2], field[1])
            fields[field[1]] = text[field.end() : at - 1]
            at += text[at] == ","
        end = re.compile(r"\s*\}").match(text, at)
        assert end, (head[2], text[at : at + 60])
        at = end.end()
    return found


ENTRIES = parsed(references.FILE.read_text(encoding="utf-8"))


def sources() -> dict[str, str]:
    """Return every source of the package and what has it."""
    found = {}
    for name, row in CATALOGUE.items():
        found |= {row.source: name}
        found |= {one.source: f"{name}={one.name}" for one in row.levels if not one.origin}
    found |= {one.source: f"preset {name}" for name, one in PRESETS.items()}
    found |= {one.source: f"metric {name}" for name, one in METRICS.items()}
    return {source: who for source, who in found.items() if source}


def prose() -> str:
    """Return the strings of the report's code, as if they were one page."""
    strings = [
        node.value
        for path in (PACKAGE / "report").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(strings)


def test_every_entry_is_bibtex_with_what_its_type_needs() -> None:
    for key, (kind, fields) in ENTRIES.items():
        assert NEEDED[kind] <= fields.keys(), key
        assert all(fields.values()) and all(map(str.isascii, fields.values())), key
        assert re.fullmatch(r"(19|20)\d\d", fields.get("year", "2000")), key
        names = fields["author"].split(" and ")
        assert all("," in name or name in ("others", "Student") or "{" in name for name in names), (
            key
        )
        if "eprint" in fields:  # the number begins with the year and month of the first version
            of = re.fullmatch(r"(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", fields["eprint"])
            assert of and fields["archiveprefix"] == "arXiv", key
            assert 0 <= int(fields["year"]) - 2000 - int(of[1]) <= 2, key
            assert len(of[0]) == (9 if fields["eprint"] < "1500" else 10), key
    numbers = [fields["eprint"] for _, fields in ENTRIES.values() if "eprint" in fields]
    assert len(set(numbers)) == len(numbers)


def test_what_is_read_of_the_file_is_the_file() -> None:
    works = references.works()
    assert list(works) == list(ENTRIES)
    assert all(parsed(one.text) == {key: ENTRIES[key]} for key, one in works.items())
    called = [name for one in works.values() for name in one.names]
    assert len(set(called)) == len(called)  # none stands for two works


@pytest.mark.parametrize(("source", "who"), sources().items(), ids=sources().values())
def test_every_source_of_the_package_names_one_entry_in_each_part(source: str, who: str) -> None:
    for part in source.split(";"):
        (key,) = references.named(part)
        # the number and the authors with the year say the same
        for called in AUTHORS_YEAR.findall(part):
            assert references.named(called) == [key]
        year = ENTRIES[key][1].get("year", "")
        assert not re.search(r"(?<![\d.:])(19|20)\d\d(?![\d.])", part.replace(year, "")), who


def test_the_report_cites_entries_and_every_entry_is_cited() -> None:
    text = prose()
    strings = {re.sub(r"\s+", " ", one) for one in AUTHORS_YEAR.findall(text)}
    assert strings >= {"Holm 1979", "Porian et al. 2024"}
    assert all(references.named(one) for one in strings), strings
    used = {key for one in (*sources(), *strings) for key in references.named(one)}
    used |= {*cited.TEXTS.values(), cited.BPE, cited.TORCH}
    assert used == ENTRIES.keys()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Vaswani et al. 2017, arXiv:1706.03762, §3.4", ["vaswani2017attention"]),
        ("ReZero, arXiv:2003.04887v2, studies this", ["bachlechner2020rezero"]),
        ("Hägele et al. 2024", ["hagele2024scaling"]),
        ("arXiv:2104.09864 as in arXiv:2302.13971", ["su2021roformer", "touvron2023llama"]),
        ("by Holm's method (Holm 1979); and Stein (1945)", ["holm1979simple"]),
        ("Elman 1990; Cho et al. 2014", ["cho2014learning", "elman1990finding"]),
        # another work of authors of that name and year
        ("Zhang et al. 2024, arXiv:2412.00001", []),
        ("McHolm 1979; Holm 19790; arXiv:1706.037629", []),
        ("So et al. 2021, arXiv:2109.08668", []),
        ("my notes", []),
        ("", []),
    ],
)
def test_what_a_text_names(text: str, keys: list[str]) -> None:
    assert references.named(text) == keys


@pytest.fixture
def data(tmp_path: Path) -> Iterator[ReportData]:
    """A study of two norms; the second one is worse."""
    levels = {name: {"norm_kind": name} for name in ("layernorm", "rmsnorm")}
    base = {"activation": "swiglu", "position": "alibi", "corpus": "austen", "grad_clip": 0.0}

    def outcome(cell: dict[str, str], seed: int) -> Outcome:
        return Outcome(1.0 + 0.01 * seed + (cell["norm_kind"] == "rmsnorm") * (0.1 + 0.001 * seed))

    with study(tmp_path, {"norm_kind": levels}, outcome, base=base) as db:
        yield report.gather(db, "topology")


def keys(data: ReportData) -> set[str]:
    return {one.key for one in cited.works(data, ())}


@pytest.mark.usefixtures("svg_only")
def test_a_report_has_the_works_of_its_runs_and_sentences_alone(
    data: ReportData, tmp_path: Path
) -> None:
    page = report.write(data, tmp_path / "report")
    entries = parsed((page.parent / "references.bib").read_text(encoding="utf-8"))
    assert all(ENTRIES[key] == entry for key, entry in entries.items())
    levels = {"ba2016layer", "zhang2019root", "shazeer2020glu", "press2022train"}
    statistics = {"student1908probable", "holm1979simple", "fisher1935design"}
    assert entries.keys() >= {*levels, *statistics, "silge_janeaustenr", "loshchilov2019decoupled"}
    assert entries.keys() >= {"loshchilov2017sgdr", "paszke2019pytorch"}
    # other levels, and what is off: dropout, clipping, heads that share keys, the z-loss
    off = {"srivastava2014dropout", "pascanu2013difficulty", "ainslie2023gqa"}
    others = {"su2021roformer", "hendrycks2016gelu", "black2022neox", "stein1945two"}
    assert not entries.keys() & {*off, *others, "devlin2019bert", "wilson1927probable"}
    assert '<a href="references.bib">' in page.read_text(encoding="utf-8")
    assert "(references.bib)" in page.with_suffix(".md").read_text(encoding="utf-8")


def test_what_is_switched_on_is_cited(data: ReportData) -> None:
    runs = data.runs.assign(dropout=0.1, z_loss=1e-4, n_kv_head=1, tokenizer="bpe:512")
    added = {"srivastava2014dropout", "chowdhery2022palm", "ainslie2023gqa", "shazeer2019fast"}
    assert keys(replace(data, runs=runs)) - keys(data) == {*added, "sennrich2016neural"}


def test_levels_from_outside_are_cited_where_their_source_has_an_entry(data: ReportData) -> None:
    known, unknown = "Su et al. 2021, arXiv:2104.09864", "My thesis 2031, arXiv:3101.00001"
    about = {"levels": [["norm_kind", "a", "mine", known], ["norm_kind", "b", "mine", unknown]]}
    made = Made(Code("own.py", "0" * 64, "", about=about), True, {}, 0)
    own = replace(data, code=[made])
    assert keys(own) == keys(data)  # no run has them
    names = data.runs["norm_kind"].map({"layernorm": "a", "rmsnorm": "b"})
    found = keys(replace(own, runs=data.runs.assign(norm_kind=names)))
    assert found - keys(data) == {"su2021roformer"}
    assert keys(data) - found == {"ba2016layer", "zhang2019root"}


def test_presets_are_cited(data: ReportData) -> None:
    toml = """
        [base]
        preset = "tinyllama-1.1b"
        [factors]
        model = { a = {}, b = { preset = "bart-base" } }
        preset = ["t5-small", "of a later version"]
    """
    found = keys(replace(data, study=replace(data.study, toml=toml)))
    assert found - keys(data) == {"zhang2024tinyllama", "lewis2020bart", "raffel2020exploring"}


def test_a_text_of_a_user_is_not_cited_as_the_one_of_its_name(data: ReportData) -> None:
    def of(corpus: str, *names: str) -> set[str]:
        runs = data.runs.assign(corpus=[names[i % len(names)] for i in range(len(data.runs))])
        return keys(replace(data, runs=runs, study=replace(data.study, toml=corpus))) - keys(
            replace(data, runs=data.runs.assign(corpus="mine"))
        )

    assert of('[base]\ncorpus = "digits"', "digits") == {"alpaydin1998digits"}
    assert of('[base]\ncorpus = "mnist/digits.npz"', "digits") == set()
    assert of('[base]\ncorpus = "austen-letters.txt"', "austen-letters") == set()
    assert of('[base]\ncorpus = "cmudict-long"', "cmudict-long") == {"cmudict"}
    levels = '[factors]\ntext = { a = { corpus = "sotu" }, b = { corpus = "austen.txt" } }'
    assert of(levels, "sotu", "austen") == {"peters_presidency"}


def test_of_runs_by_others_only_the_statistics_are_known(data: ReportData) -> None:
    toml = '[imported]\nfiles = ["runs.csv"]\n'
    assert keys(replace(data, study=replace(data.study, toml=toml))) == set()
