"""Any table of losses: what people write in files is read or refused by its line, and `ablate fit
--csv` says what it holds.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import lzma
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import numpy as np
import pandas as pd
import pytest
from report_study import svg_only  # noqa: F401

from ablate.analysis.records import kinds
from ablate.cli import main
from ablate.errors import AblateError
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.losses import Losses
from ablate.scaling.read import read

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str) -> Path:
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return file


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`ablate fit` with these arguments → what it prints; a refusal after "ablate: "."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ablate", "fit", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert end.value.code in (0, None) if not err else end.value.code == 2, err
        return out + err

    return run


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("n,loss\n1.3M,3\n70m,2.5\n1B,2\n", [1.3e6, 7e7, 1e9]),
        ('n,loss\n"1,300,000",3\n1e8,2.5\n1_000_000,2\n', [1.3e6, 1e8, 1e6]),
        ("n\tloss\n1,300,000\t3\n1e8\t2.5\n1_000_000\t2\n", [1.3e6, 1e8, 1e6]),
        ("n;loss\n1,5M;3,0\n2,5e8;2,5\n2k;2\n", [1.5e6, 2.5e8, 2e3]),
        ("# a comment\nn\tloss\n\n1e6\t3\n2e6\t2.5\n3e6\t2\n", [1e6, 2e6, 3e6]),
        ("n  loss\n1e6  3\n2e6 2.5\n3e6 2\n", [1e6, 2e6, 3e6]),
        ("\ufeffn | loss\n1 T| 3\n2.|2.5\n.5|2\n", [1e12, 2, 0.5]),
        ("n\tloss\n1.300.000\t3,00\n950.000\t2,5\n2.000.000\t2,0\n", [1.3e6, 9.5e5, 2e6]),
        ("n;loss\n1,300,000.0;3.0\n950,000;2.5\n2e6;2.0\n", [1.3e6, 9.5e5, 2e6]),
        ('n,loss\n"1,3e6","3,0"\n2e6,"2,500"\n3e6,2\n', [1.3e6, 2e6, 3e6]),
        ('n,loss\n"1300,000",3\n"950,000",2.5\n"20000,000",2\n', [1300, 950, 2e4]),
        ("n;loss\n1\u202f300\u00a0000;3\n950 000;2.5\n2'000'000;2\n", [1.3e6, 9.5e5, 2e6]),
        ("n,loss\n1.3 × 10^6,3.0 ± 0.1\n2*10**7,2.5(3)\n10^8,2+/-0.01\n", [1.3e6, 2e7, 1e8]),
        ("n,loss\n1.2 billion,3\n~70M params,2.5\n2^20,2\n", [1.2e9, 7e7, 2.0**20]),
        ("n,loss\n3 ZFLOPs,3\n2 PF-days,2.5\n1.5 EFLOP,2\n", [3e21, 2 * 8.64e19, 1.5e18]),
        (
            (
                "| n | note | loss |\n|---|:---:|---:|\n| 1M | a,b | 3 |\n| 2M |  | 2.5 |\n| 3M | c"
                " | 2 |\n"
            ),
            [1e6, 2e6, 3e6],
        ),
        ("# made by savetxt\n# n loss\n1e6 3\n2e6 2.5\n3e6 2\n", [1e6, 2e6, 3e6]),
        ("sep=;\nn;loss\n1e6;3\n2e6;2.5\n3e6;2;;\n", [1e6, 2e6, 3e6]),
        ('"n","what, where, why",loss\n1e6,"two\nlines",3\n2e6,x,2.5\n3e6,x,2\n', [1e6, 2e6, 3e6]),
        ("  n   loss\n0 1e6   3\n1 2e6 2.5\n2 3e6   2\n", [1e6, 2e6, 3e6]),
        ('n;"a, b, c";loss\n1e6;x;3\n2e6;y;2.5\n3e6;z;2\n', [1e6, 2e6, 3e6]),
    ],
)
def test_numbers_as_people_write_them(write: Write, text: str, n: list[float]) -> None:
    found = read(write(text), n="n", loss="loss")
    assert found.columns["n"].tolist() == n and found.loss.tolist() == [3, 2.5, 2]


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        ("params,loss\n1,2\n", {"n": "parms"}, "--n 'parms'; did you mean 'params'"),
        ("n,loss\n1,2\n", {"group": ["x"]}, "unknown column 'x'"),
        ("n,loss\n1,2\n", {"n": ""}, "one or more of --n, --d and --flops"),
        ("n,loss\n1,2\n", {"loss": "n"}, "one column cannot be used twice"),
        ("n,loss\n1,2\n3,two\n", {}, "line 3: loss = 'two'"),
        ("n,loss\n1,2K\n", {}, "line 2: loss = '2K'"),
        ("n,loss\n1,2,3\n", {}, "line 2: 3 values for 2 columns"),
        ("n,n,loss\n1,1,2\n", {}, "two columns are called 'n'"),
        ("n,loss\n1,-2\n2,0\n", {}, "no row has a positive number in each of loss, n"),
        ("n,loss\n", {}, "a line of column names and a line for each run"),
        ("n,loss\n1,3\n2,2\n", {"where": ["n"]}, "COLUMN=VALUE"),
        ("n,loss\n1,3\n2,2\n", {"where": ["m=1"]}, "unknown column 'm'"),
        ("n,loss\n1,3\n2,2\n", {"where": ["n<x"]}, "'x' is not a number"),
        ("n,loss\n1,3\n2,2\n", {"where": ["n>7"]}, "no row has n > '7'; its values are '1', '2'"),
        ("n,t,loss\n1,a,2\n", {"where": ["t=b"]}, "no row has t = 'b'; its values are 'a'"),
    ],
)
def test_what_is_no_table_is_refused(
    write: Write, text: str, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(AblateError, match=re.escape(complaint)):
        read(write(text), **({"n": "n", "loss": "loss"} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "cells", "n"),
    [
        ("Params (M)", ["70", "1,400", "12000"], [7e7, 1.4e9, 1.2e10]),
        ("size [in billion parameters]", ["0.07", "1.4", "12"], [7e7, 1.4e9, 1.2e10]),
        ("FLOPs (1e18)", ["6", "60", "600"], [6e18, 6e19, 6e20]),
        # the name is not to be believed
        ("Params (M)", ["70000000", "1400000000", "1e10"], [7e7, 1.4e9, 1e10]),
        ("N (body)", ["7e7", "1e9", "1e10"], [7e7, 1e9, 1e10]),
    ],
)
def test_a_unit_in_a_name_counts_and_is_noted(
    write: Write, name: str, cells: list[str], n: list[float]
) -> None:
    path = write(
        f"{name};loss\n" + "".join(f"{cell};{3 - at / 2}\n" for at, cell in enumerate(cells))
    )
    found = read(path, n=name, loss="loss")
    assert found.columns["n"] == pytest.approx(n)
    assert any("as its name says" in note for note in found.notes) is (n[0] != float(cells[0]))


def test_an_implausible_unit_is_noted(write: Write) -> None:
    """A trillion tokens in millions is as large as a million tokens in ones."""
    path = write("Tokens (M)\tloss\n10000\t3\n100000\t2.5\n1000000\t2\n")
    found = read(path, d="Tokens (M)", loss="loss")
    assert found.columns["d"].tolist() == [1e4, 1e5, 1e6]
    assert any("Tokens (M) goes up to 1e+06" in note for note in found.notes)


@pytest.mark.parametrize(
    ("written", "n"),
    [
        ("Params (M)", [7e7, 1.4e9]),
        ("Params (M) * 1e6", [7e7, 1.4e9]),
        ("Params (M) * layers", [140, 4200]),
    ],
)
def test_a_unit_in_a_name_counts_once(write: Write, written: str, n: list[float]) -> None:
    path = write("Params (M),layers,loss\n70,2,3\n1400,3,2\n")
    found = read(path, n=written, loss="loss")
    assert found.columns["n"] == pytest.approx(n)
    assert sum("Params (M) is taken" in note for note in found.notes) == 1


def test_a_table_as_excel_saves_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("n\tloss\n1e6\t3\n2e6\t2\n".encode("utf-16"))
    assert read(tmp_path / "t.txt", n="n", loss="loss").columns["n"].tolist() == [1e6, 2e6]


def test_cells_that_say_there_is_no_number_are_left_out_and_a_line_counts_from_the_top(
    write: Write,
) -> None:
    rows = ["#DIV/0!", "OOM", "diverged", "inf", "—", "#N/A", "2.1", "two"]
    text = 'n,note,loss\n"1e6","over\ntwo lines",3\n' + "\n".join(
        f"{at + 2}e6,,{cell}" for at, cell in enumerate(rows[:7])
    )
    found = read(write(text), n="n", loss="loss")
    assert found.loss.tolist() == [3, 2.1]
    assert found.notes == (
        "6 of 8 rows left out: no positive number in loss (lines 4, 5, 6, 7, 8, 9).",
    )
    with pytest.raises(AblateError, match="line 11: loss = 'two'"):
        read(write(text + "\n9e6,,two"), n="n", loss="loss")


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (["lr=0.001"], [1, 2]),  # as a number, however it is written
        (["lr!=1e-3"], [3, 4]),
        (["n<3e6"], [1, 2]),
        (["n>=2M", "n <= 3M"], [2, 3]),
        (["text=c4=en"], [4]),
        (["loss>2.4"], [1, 2]),
    ],
)
def test_rows_are_chosen_by_values(write: Write, where: list[str], kept: list[int]) -> None:
    text = "n,loss,lr,text\n1e6,3,1e-3,a\n2e6,2.5,0.0010,a\n3e6,2.2,2e-3,a\n4e6,2,nan,c4=en\n"
    assert (read(write(text), n="n", loss="loss", where=where).columns["n"] / 1e6).tolist() == kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [("loss<4", [1, 3]), ("loss>4", [2]), ("loss=3,984", [1]), ("loss=3.984", [1])],
)
def test_a_condition_reads_a_loss_as_the_fit_does(
    write: Write, where: str, kept: list[int]
) -> None:
    found = read(
        write("n\tloss\n1e6\t3,984\n2e6\t4,120\n3e6\t3,500\n"), n="n", loss="loss", where=[where]
    )
    assert (found.columns["n"] / 1e6).tolist() == kept and found.loss.max() < 5


def test_of_a_sweep_the_lowest_loss_of_each_point_is_fitted(write: Write) -> None:
    """Li et al. 2025, "Predictable Scale", publish such a table: every size and token count under
    many rates and batch sizes.
    """
    rng = np.random.default_rng(0)
    n, d, lr = (
        axis.ravel()
        for axis in np.meshgrid(
            np.geomspace(1e8, 1e9, 4), np.geomspace(2e9, 1e11, 4), [1e-4, 1e-3, 1e-2]
        )
    )
    best = FORMS["nd"].loss(USUAL, {"n": n, "d": d}) * np.exp(0.001 * rng.normal(size=len(n)))
    loss = best * np.where(lr == 1e-3, 1, 1.2)
    text = "N,D,lr,loss,seconds\n" + "".join(
        f"{a},{b},{c},{at},{i}\n"
        for i, (a, b, c, at) in enumerate(zip(n, d, lr, loss, strict=True))
    )
    path = write(text)
    every = read(path, n="N", d="D", loss="loss")
    assert re.search(
        r"Runs of one point differ by 1\d\.\d%.* a sweep of lr, --lowest takes",
        " ".join(every.notes),
    )
    found = read(path, n="N", d="D", loss="loss", lowest=True)
    assert sorted(found.loss) == sorted(best[lr == 1e-3])
    (note,) = found.notes
    assert "16 points" in note and "48 rows" in note


@pytest.mark.parametrize(("seeds", "asked"), [(5, False), (6, True)])
def test_one_point_shows_a_sweep_as_it_shows_noise(write: Write, seeds: int, asked: bool) -> None:
    """From five degrees of freedom on, as for a curve's misfit and isoFLOP noise."""
    rows = [f"1e6,{3 + 0.2 * seed}" for seed in range(seeds)] + [f"{n}e6,2.5" for n in range(2, 9)]
    notes = " ".join(read(write("n,loss\n" + "\n".join(rows)), n="n", loss="loss").notes)
    assert ("Runs of one point differ by" in notes) is asked


def test_a_perplexity_is_asked_about_and_its_logarithm_fitted(write: Write) -> None:
    path = write("n,C4 PPL\n1e6,90\n2e6,60\n3e6,50\n")
    assert "C4 PPL reaches 90: if it is a perplexity, --loss 'log(C4 PPL)' fits" in " ".join(
        read(path, n="n", loss="C4 PPL").notes
    )
    found = read(path, n="n", loss="log(C4 PPL)")
    assert found.loss == pytest.approx(np.log([90, 60, 50])) and not found.notes
    with pytest.raises(AblateError, match=re.escape("log(loss)") + ".* 0.9"):
        read(write("n,loss\n1,2\n2,0.9\n"), n="n", loss="log(loss)")


@pytest.mark.parametrize(
    ("names", "scale", "said"),
    [
        (
            {"n": "n", "d": "d", "flops": "c"},
            1e-9,
            "c is 1e-09 times 6·N·D: one of the columns counts in another unit",
        ),
        (
            {"n": "n", "flops": "c"},
            1e-9,
            "c and n come to 2e-08 tokens a parameter: one of the two counts in another unit",
        ),
        (
            {"d": "d", "flops": "c"},
            1e-9,
            "tokens a parameter: one of the two counts in another unit",
        ),
        ({"n": "n", "d": "d", "flops": "c"}, 1.5, ""),
    ],
)
def test_units_that_do_not_go_together_are_named(
    write: Write, names: dict[str, str], scale: float, said: str
) -> None:
    n = [1e8, 2e8, 4e8]
    rows = "".join(f"{a},{20 * a},{6 * a * 20 * a * scale},{3 - i / 10}\n" for i, a in enumerate(n))
    notes = " ".join(read(write("n,d,c,loss\n" + rows), loss="loss", **names).notes)  # type: ignore[arg-type]
    assert said in notes and bool(said) is bool(notes)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["3e7", "70", "1.5e8", "300", "7e8", "1500"], "1e+06"),
        (["30M", "70M", "150M", "300M", "700M", "1.5"], "1e+09"),
        (["30", "70", "150", "300", "700", "1.5e9"], "1e+06"),
        (["1e13", "1e17", "1e21", "1e25"], ""),  # a ladder of long steps
        (["1e15", "5e17", "1e19", "1e20", "1e21", "1e22"], ""),  # a run to try out
    ],
)
def test_a_column_in_two_units_is_noted_once(write: Write, cells: list[str], said: str) -> None:
    rows = "".join(f"{cell},{3 - at / 10}\n" for at, cell in enumerate(cells))
    found = read(write("n,loss\n" + rows), n="n", loss="loss")
    notes = [note for note in found.notes if "two units" in note]
    assert len(notes) == bool(said) and all(said in note for note in notes)


@pytest.mark.parametrize(
    ("tokens", "doubted"), [(np.arange(1, 13) * 1e10, True), (np.geomspace(1e9, 1e11, 12), False)]
)
def test_points_along_training_are_asked_about(
    write: Write, tokens: np.ndarray, doubted: bool
) -> None:
    rows = "".join(f"{n},{d},{n**-0.1 + d**-0.1}\n" for n in (1e7, 1e8, 1e9) for d in tokens)
    notes = " ".join(read(write("n,d,loss\n" + rows), n="n", d="d", loss="loss").notes)
    assert ("points along training" in notes) is doubted


def test_rows_without_a_number_are_left_out_and_named_and_repeated_rows_count_once(
    write: Write,
) -> None:
    rows = [
        "1e6,1e8,3,a",
        "2e6,,2.9,a",
        "3e6,1e8,nan,a",
        "-4e6,1e8,2.8,a",
        "5e6,1e8,2.7,a",
        "5e6,1e8,2.7,a",
        "5e6,1e8,2.7,b",
    ]
    found = read(write("n,d,loss,note\n" + "\n".join(rows)), n="n", d="d", loss="loss")
    assert found.columns["n"].tolist() == [1e6, 5e6, 5e6]
    said = " ".join(found.notes)
    for part in (
        "1 row is repeated in every column",
        "in d (line 3)",
        "in loss (line 4)",
        "in n (line 5)",
    ):
        assert part in said, said
    assert "1 row is the same as others in loss, n, d, but not in note" in said


def test_groups_are_named_by_their_columns_and_compared_with_the_first(write: Write) -> None:
    text = "n,loss,x,y\n1,3,a,1\n2,2,a,1\n1,3,a,2\n1,3,b,1\n"
    found = read(write(text), n="n", loss="loss", group=["x", "y"])
    assert found.curves == ("a, 1", "a, 1", "a, 2", "b, 1") and found.against == {
        "a, 2": "a, 1",
        "b, 1": "a, 1",
    }
    assert read(write(text), n="n", loss="loss", group=["x"], where=["y=1"]).curves == (
        "a",
        "a",
        "b",
    )


GRID = [
    (n, d, FORMS["nd"].loss(USUAL, {"n": np.array([n]), "d": np.array([d])})[0])
    for n in (7e7, 4e8, 1e9, 2.8e9)
    for d in (2e9, 8e9, 3e10, 1.2e11)
]
FRAME = pd.DataFrame(GRID, columns=["n", "d", "loss"])


def csv_of(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


@pytest.mark.parametrize(
    "save",
    [
        lambda path: path.write_bytes(gzip.compress(csv_of(FRAME))),
        lambda path: path.write_bytes(lzma.compress(csv_of(FRAME))),
        lambda path: FRAME.to_csv(path),
        lambda path: FRAME.to_csv(path, sep="\t", index=False),
        lambda path: FRAME.to_csv(path, sep=";", decimal=",", encoding="utf-16", index=False),
        lambda path: FRAME.to_json(path, orient="records", indent=1, double_precision=15),
        lambda path: FRAME.to_json(path, orient="columns", double_precision=15),
        lambda path: FRAME.to_json(path, orient="split", double_precision=15),
        lambda path: FRAME.to_json(path, orient="records", lines=True, double_precision=15),
        lambda path: path.write_text(FRAME.to_string(float_format=lambda x: repr(float(x)))),
        lambda path: FRAME.to_parquet(path),
        lambda path: FRAME.astype({"n": "int64", "d": "int64"}).to_parquet(path),
        lambda path: FRAME.to_excel(path, index=False, engine="openpyxl"),
    ],
    ids=[
        *("gzip", "xz", "csv", "tsv", "excel-text", "json", "columns", "split", "jsonl"),
        *("printed", "parquet", "integers", "xlsx"),
    ],
)
def test_a_table_is_the_same_in_every_format(
    save: Callable[[Path], object], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for suffix, library in (("parquet", "pyarrow"), ("integers", "pyarrow"), ("xlsx", "openpyxl")):
        if request.node.callspec.id == suffix:
            pytest.importorskip(library)
    # the content tells the format, except that pandas writes Excel's by the name
    path = tmp_path / "t.xlsx"
    save(path)
    found = read(path, n="n", d="d", loss="loss")
    assert found.loss == pytest.approx(FRAME["loss"], rel=1e-12) and not found.notes
    for key in "nd":
        assert found.columns[key].tolist() == FRAME[key].tolist()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(b"n,loss\n1,2\n" * 99, mtime=0)[:30], "cannot be read"),
        (b"PAR1 and no more", "pyarrow|cannot be read"),
        (b"PK\3\4 and no more", "openpyxl|cannot be read"),
        (b"\x89PNG\0\0", "neither text"),
        (b'{"n": 1, "loss": 2}\n{"n": 1,', "line 2: not JSON"),
        (b"[1, 2]", "not a table in JSON"),
        (b"[]", "a line of column names and a line for each run"),
        (b"|n|loss|\n|--|--|\n|1|2|\n\n|n|loss|\n|--|--|\n|1|2|\n", "2 tables"),
    ],
)
def test_a_file_that_is_no_table_gets_one_line(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(AblateError, match=said):
        read(tmp_path / "t", n="n", loss="loss")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        # the page of a paper: prose, emphasis, LaTeX, footnotes, spreads
        (
            "## Table 7\n\nFinal *losses*.\n\n| model | $N$ | FLOPs | Loss |\n|:--|--:|--:|--:|\n"
            "| a | 70M | $1.5 \\times 10^{18}$ | 3.5 ± 0.01 |\n"
            "| b | `0.4B` | 2×10¹⁹ | **3** |\n| c | 1.0B† | 3e20 | 2.5 (0.02) |\n\nThe end.\n",
            {"n": "$N$", "flops": "FLOPs", "loss": "Loss"},
        ),
        # a spreadsheet: a title, merged names, decimal commas, a remark
        (
            "Läufe;;;;\n;;;;\n;Modell;;Ergebnis;\nName;Params (M);C (×1e18);Loss;Zeit (h)\n"
            "a;70,0;1,5;3,500;1\nb;400,0;20;3,000;2\nc;1000,0;300;2,500;\nMai;;;;\n",
            {"n": "Params (M)", "flops": "C (×1e18)", "loss": "Loss"},
        ),
        # units below the names
        (
            "N\tC\tloss\n(M)\t(1e18)\t(nats)\n70\t1.5\t3.5\n400\t20\t3.0\n1000\t300\t2.5\n",
            {"n": "N (M)", "flops": "C (1e18)", "loss": "loss (nats)"},
        ),
        # files that were joined, and a remark
        (
            "n,c,loss\n7e7,1.5e18,3.5\nn,c,loss\n4e8,2e19,3\n1e9,3e20,2.5\n\nall runs of May\n",
            {"n": "n", "flops": "c", "loss": "loss"},
        ),
        # one name for two columns of merged names
        (
            "Model,,Loss,\nN,C,N,mean\n7e7,1.5e18,0,3.5\n4e8,2e19,0,3\n1e9,3e20,0,2.5\n",
            {"n": "Model N", "flops": "Model C", "loss": "Loss mean"},
        ),
        (
            "params_m,train GFLOPs,error (%),acc\n70,1.5e9,350,-250%\n400,2e10,300,-200 %\n"
            "1000,3e11,250,-150%\n",
            {"n": "params_m", "flops": "train GFLOPs", "loss": "error (%)"},
        ),
        (
            "params_m,train GFLOPs,error (%),acc\n70,1.5e9,350,-250%\n400,2e10,300,-200 %\n"
            "1000,3e11,250,-150%\n",
            {"n": "params_m", "flops": "train GFLOPs", "loss": "1 - acc"},
        ),
        (
            "size;PF-days;loss\n70M params;0.017361111111111112;3.50 (0.02)\n"
            "400M params;0.23148148148148148;3.00 (0.02)\n"
            "1,000M params;3.4722222222222223;2.50 (0.02)\n",
            {"n": "size", "flops": "PF-days", "loss": "loss"},
        ),
    ],
)
def test_tables_as_people_share_them(write: Write, text: str, options: dict[str, str]) -> None:
    found = read(write(text), **options)  # type: ignore[arg-type]
    assert found.columns["n"] == pytest.approx([7e7, 4e8, 1e9])
    assert found.columns["c"] == pytest.approx([1.5e18, 2e19, 3e20])
    # a loss in percent counts as a fraction
    assert found.loss == pytest.approx([3.5, 3, 2.5])


def test_spreadsheets_of_windows_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("Größe;loss\n1e6;3\n2e6;2\n".encode("cp1252"))
    assert read(tmp_path / "t.csv", n="Größe", loss="loss").columns["n"].tolist() == [1e6, 2e6]


def test_the_sheet_with_the_named_columns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    notes = pd.DataFrame([["My notes", None], ["on the runs", None], ["a", "b"], [None, "c"]])
    with pd.ExcelWriter(path, engine="openpyxl") as file:
        notes.to_excel(file, sheet_name="Readme", header=False, index=False)
        FRAME.to_excel(file, sheet_name="runs", index=False, startrow=3)
        (FRAME * 2).assign(arm="x").to_excel(file, sheet_name="other", index=False)
    found = read(path, n="n", d="d", loss="loss")
    assert found.loss == pytest.approx(FRAME["loss"]) and "'runs'" in found.notes[0]
    found = read(path, n="n", d="d", loss="log(loss)", where=["arm=x"])
    assert found.loss == pytest.approx(np.log(2 * FRAME["loss"])) and "'other'" in found.notes[0]
    with pytest.raises(AblateError, match=r"'Readme'.*'runs' has 'n', 'd', 'loss'; 'other'"):
        read(path, n="parms", loss="loss")
    with pytest.raises(AblateError, match="cannot be used twice"):
        read(path, n="loss", loss="loss")


def test_fields_of_nested_objects_are_columns(tmp_path: Path) -> None:
    rows = [{"config": {"n": n}, "summary": {"val/loss": loss}} for n, _, loss in GRID]
    rows.append({"config": {"n": 1e9}, "summary": {"val/loss": float("nan")}})
    path = tmp_path / "t.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    found = read(path, n="config.n", loss="summary.val/loss")
    assert found.loss.tolist() == FRAME["loss"].tolist()
    assert f"(line {2 * len(rows) - 1})" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("option", "written", "value"),
    [
        ("d", "step * batch size * 2", lambda t: t["step"] * t["batch size"] * 2),
        ("d", "(step + 1)**2 / 3.5e0", lambda t: (t["step"] + 1) ** 2 / 3.5),
        ("d", "`batch size` * step", lambda t: t["step"] * t["batch size"]),
        ("d", "10 ^ log10(D)", lambda t: 10.0 ** t["log10(D)"]),
        ("d", "-(-step) - -1", lambda t: t["step"] + 1),
        ("loss", "1 - acc/none", lambda t: 1 - t["acc/none"]),
        ("loss", "1 - acc/none ** 2 / 4", lambda t: 1 - t["acc/none"] ** 2 / 4),
        ("loss", "log(1 / acc)", lambda t: np.log(1 / t["acc"])),
    ],
)
def test_arithmetic_on_columns(
    write: Write, option: str, written: str, value: Callable[[pd.DataFrame], pd.Series]
) -> None:
    """A name with signs in it is a column where there is one, not arithmetic."""
    table = pd.DataFrame(
        {
            "n": [1e6, 2e6, 4e6],
            "step": [100.0, 200, 400],
            "batch size": [8.0, 16, 64],
            "log10(D)": [9.5, 10, 10.5],
            "acc": [0.25, 0.3, 0.5],
            "acc/none": [0.2, 0.4, 0.7],
            "none": [7.0, 7, 7],
            "size": [9.0, 9, 9],
        }
    )
    options = {"n": "n", "d": "step", "loss": "acc"} | {option: written}
    found = read(write(table.to_csv(index=False)), **options)  # type: ignore[arg-type]
    got = found.loss if option == "loss" else found.columns["d"]
    assert got == pytest.approx(value(table).to_numpy(), rel=1e-14)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("n.__class__", "expected a column"),
        ("abs(n)", "expected a column"),
        ("@n", "unknown column"),
        ("n[0]", "expected a column"),
        ("n if n else n", "expected a column"),
        ("(lambda: n)()", "expected a column"),
        ("n == n", "expected a column"),
        ("'a' * n", "expected a column"),
        ("__import__('os').getcwd()", "expected a column"),
        ("+".join(["n"] * 20_000), "expected a column"),
        ("3 * 4", "expected a column"),
        ("n * bacth", "unknown column in --d 'bacth'; did you mean 'batch'"),
        ("9**9**9**9 * n", "cannot be computed"),
        ("n / 0", "cannot be computed|no row has a positive number"),
        ("(0 - n) ** 0.5", "no row has a positive number"),
    ],
)
def test_nothing_but_arithmetic_is_evaluated(write: Write, written: str, said: str) -> None:
    with pytest.raises(AblateError, match=said):
        read(write("n,batch,loss\n1,2,3\n2,3,4\n"), d=written, loss="loss")


def test_text_in_a_column_of_arithmetic_is_named_by_its_line(write: Write) -> None:
    with pytest.raises(AblateError, match="line 3: batch = 'many' is not a number"):
        read(write("n,batch,loss\n1,2,3\n2,many,4\n"), d="n * batch", loss="loss")


def test_values_after_a_first_condition_are_said_to_be_those(write: Write) -> None:
    path = write("a,b,n,loss\n1,2,1,3\n2,3,2,2\n1,4,3,1\n")
    with pytest.raises(AblateError, match="no row with a=1 has b = '3'; its values in those rows"):
        read(path, n="n", loss="loss", where=["a=1", "b=3"])


def test_a_baseline_is_named(write: Write) -> None:
    path = write("n,x,loss\n1,a,3\n1,b,2\n2,c,2\n")
    found = read(path, n="n", loss="loss", group=["x"], baseline="b")
    assert found.against == {"a": "b", "c": "b"}
    with pytest.raises(AblateError, match=r"--baseline 'd'.* a, b, c"):
        read(path, n="n", loss="loss", group=["x"], baseline="d")
    with pytest.raises(AblateError, match="needs --group"):
        read(path, n="n", loss="loss", baseline="b")


def test_groups_with_one_level_or_without_any_are_noted(write: Write) -> None:
    def notes(column: str) -> list[str]:
        rows = "".join(f"{n},{x},{3 - n}\n" for n, x in enumerate(column, 1))
        return [*read(write("n,x,loss\n" + rows), n="n", loss="loss", group=["x"]).notes]

    assert any(note.startswith("x is 'a' in each of 2 rows: there is one") for note in notes("aa"))
    found = notes(["a", ""])
    assert any(note.startswith("1 of 2 rows have no value in x") for note in found)
    assert not any("one curve" in note for note in found)
    assert not any("x" in note.split() for note in notes("ab"))


def test_rows_that_are_left_out_are_no_repeats(write: Write) -> None:
    rows = ["1e6,1e8,1,3.5", *(f"1e6,1e8,{lr}," for lr in (2, 3, 4, 4))]
    rows += [f"{n},1e8,1,{3.3 - n / 1e8}" for n in (2e6, 4e6, 8e6, 16e6)]
    found = read(write("n,d,lr,loss\n" + "\n".join(rows)), n="n", d="d", loss="loss")
    (note,) = found.notes
    assert note.startswith("4 of 9 rows left out")


def test_a_column_without_numbers_and_a_loss_without_differences_are_named(write: Write) -> None:
    with pytest.raises(AblateError, match=r"none at all in d$"):
        read(write("n,d,loss\n1,,3\n2,,2\n"), n="n", d="d", loss="loss")
    with pytest.raises(AblateError, match="loss is 2 in each of 2 rows"):
        read(write("n,loss\n1,2\n2,2\n"), n="n", loss="loss")


def test_one_point_is_offered_no_lowest(write: Write) -> None:
    """The other resource was forgotten; the lowest loss of one point would be one run."""
    rows = "".join(f"1e8,{d},{3 - d / 1e11}\n" for d in np.geomspace(1e9, 1e11, 9))
    assert "--lowest" not in " ".join(read(write("n,d,loss\n" + rows), n="n", loss="loss").notes)


@pytest.mark.parametrize(
    "ratios", [(10,), (10, 20), (5, 10, 20, 40, 80), (5, 17, 60), (10, 11, 13, 14, 16)]
)
@pytest.mark.parametrize("lowest", [False, True])
def test_points_along_several_schedules_of_a_size_are_noticed(
    write: Write, ratios: tuple[int, ...], lowest: bool
) -> None:
    rows = [
        (n, ratio * n * at / 30, 2 + n**-0.1 + (ratio * n * at / 30) ** -0.1 + ratio / 300)
        for n in np.geomspace(1e7, 1e9, 5)
        for ratio in ratios
        for at in range(1, 31)
    ]
    text = pd.DataFrame(rows, columns=["n", "d", "loss"]).to_csv(index=False)
    notes = " ".join(read(write(text), n="n", d="d", loss="loss", lowest=lowest).notes)
    assert "points along training" in notes and "--lowest" not in notes


@pytest.mark.parametrize("count", [12, 60, 400])
@pytest.mark.parametrize("spread", ["log-uniform", "uniform", "geometric", "ladder"])
def test_many_runs_of_a_size_are_not_points_along_training(
    write: Write, count: int, spread: str
) -> None:
    rng = np.random.default_rng(count)
    rows = []
    for n in (1e8, 1e9, 1e10):
        tokens = {
            "log-uniform": np.exp(rng.uniform(np.log(1e9), np.log(1e12), count)),
            "uniform": rng.uniform(1e9, 1e12, count),
            "geometric": np.geomspace(1e9, 1e12, count),
            "ladder": np.tile(n * 2.0 ** np.arange(2, 10), count // 8 + 1),
        }[spread]
        rows += [(n, d, 2 + n**-0.1 + d**-0.1 + 1e-3 * rng.normal()) for d in tokens]
    text = pd.DataFrame(rows, columns=["n", "d", "loss"]).to_csv(index=False)
    found = read(write(text), n="n", d="d", loss="loss")
    assert "points along training" not in " ".join(found.notes)


def test_steps_at_one_point_are_points_along_training_and_a_sweep_is_not(write: Write) -> None:
    steps = pd.DataFrame(
        [(n, s, 3 + n**-0.1 + s**-0.3) for n in (1e7, 1e8, 1e9) for s in 1000 * 2 ** np.arange(9)],
        columns=["n", "step", "loss"],
    )
    notes = " ".join(read(write(steps.to_csv(index=False)), n="n", loss="loss").notes)
    assert "differ in step" in notes and "--lowest" not in notes
    # steps that differ because the batch does: the best is in between
    steps["loss"] = 3 + steps["n"] ** -0.1 + 0.05 * np.log2(steps["step"] / 16_000) ** 2
    notes = " ".join(read(write(steps.to_csv(index=False)), n="n", loss="loss").notes)
    assert "sweep" in notes and "points along training" not in notes


@pytest.mark.parametrize(
    ("shares", "asked"),
    [
        ((1, 2, 3, 4), True),
        ((0.4, 0.6, 0.8, 1), True),  # the last of some
        ((1, 2, 4, 8), False),
        ((1, 2, 3, 4.2), False),
        ((1, 2, 3), False),
    ],
)
def test_four_evenly_spaced_token_counts_of_a_size_are_asked_about(
    write: Write, shares: tuple[float, ...], asked: bool
) -> None:
    rows = [(n, 20 * n * share) for n in (1e7, 3e7, 1e8, 3e8, 1e9) for share in shares]
    text = "".join(f"{n:g},{d:.6g},{2 + n**-0.1 + d**-0.1}\n" for n, d in rows)
    notes = " ".join(read(write("n,d,loss\n" + text), n="n", d="d", loss="loss").notes)
    assert ("points along training" in notes) == asked


def test_a_few_points_of_each_run_are_points_along_training(write: Write) -> None:
    def said(table: pd.DataFrame) -> str:
        return " ".join(read(write(table.to_csv(index=False)), n="n", d="d", loss="loss").notes)

    rows = [(n, d) for n in (1e7, 1e8, 1e9) for d in 1e9 * 2.0 ** np.arange(4)]
    grid = pd.DataFrame(rows, columns=["n", "d"])
    grid["loss"] = 2 + grid["n"] ** -0.1 + grid["d"] ** -0.1
    assert "points along training" not in said(grid)
    assert "Each run has several token counts" in said(
        grid.assign(run=grid["n"].map("r{:g}".format))
    )
    # the number of a repetition, not the name of a run
    repeats = pd.concat([grid.assign(run=at, loss=grid["loss"] + at / 1e4) for at in range(3)])
    assert "points along training" not in said(repeats)
    steps = grid.merge(pd.DataFrame({"step": [250, 500, 750, 1000]}), how="cross")
    steps["loss"] += 2 * steps["step"] ** -0.3
    assert "differ in step" in said(steps) and "sweep" not in said(steps)
    # more steps as the batch is smaller
    assert "sweep" in said(steps.assign(batch=1e9 / steps["step"]))


def test_many_runs_get_fewer_replicates_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from ablate.scaling import table

    monkeypatch.setattr(table, "MOST_WORK", 1000)
    monkeypatch.setattr(table, "LEAST_REPLICATES", 20)
    columns = {key: FRAME[key].to_numpy() for key in "nd"}
    noisy = FRAME["loss"].to_numpy() * np.exp(0.01 * np.random.default_rng(0).normal(size=16))
    steps: list[str] = []
    found = Losses(noisy, columns, ("",) * 16, {}, {}).fit(progress=steps.append)
    assert found.fits["all"].replicates.shape == (62, 5)
    assert any("62 bootstrap replicates" in note for note in found.notes)
    assert len(steps) == 1 and "16 runs" in steps[0]


def test_json_holds_the_whole_result(fit: Callable[..., str], write: Write) -> None:
    rng = np.random.default_rng(0)
    n, c = (
        axis.ravel()
        for axis in np.meshgrid(np.geomspace(1e7, 1e10, 8), np.geomspace(1e19, 1e21, 4))
    )
    best = FORMS["nd"].loss(USUAL, {"n": n, "d": c / (6 * n)})
    rows = [
        (arm, *point, shift * loss * np.exp(0.002 * rng.normal()))
        for arm, shift in (("a", 1.0), ("b", 1.05))
        for *point, loss in zip(n, c, best, strict=True)
    ]
    rows.append(("b", 1e9, 1e20, math.nan))
    table = pd.DataFrame(rows, columns=["arm", "n", "c", "loss"])
    path = write(table.to_csv(index=False))
    options = ["--n", "n", "--flops", "c", "--loss", "loss", "--group", "arm", "--baseline", "b"]
    printed = fit("--csv", str(path), *options, "--json")

    def refuse(text: str) -> None:
        raise AssertionError(f"JSON has no {text}")

    found = json.loads(printed, parse_constant=refuse)
    losses = read(path, n="n", flops="c", loss="loss", group=["arm"], baseline="b")
    fitted = losses.fit()
    assert [one["kind"] for one in found] == [
        "scaling-runs",
        *["scaling-fit"] * 2,
        *["scaling-isoflop"] * 2,
        "scaling-comparison",
    ]
    runs, a, b, iso, _, comparison = found
    assert runs["runs"] == 64 and runs["ranges"]["n"] == pytest.approx([1e7, 1e10])
    assert runs["notes"][0].startswith("1 of 65 rows left out")
    assert (a["curve"], b["curve"], iso["curve"]) == ("a", "b", "a")
    of_a = fitted.fits["a"]
    for name, one in of_a.constants.items():
        assert a["constants"][name] == [one.value, one.lo, one.hi]
    assert a["n_exponent"] == list(dataclasses.astuple(of_a.n_exponent))
    assert of_a.held_out and a["miss_lo"] == of_a.held_out.lo and a["held_out_runs"] == 4
    assert [low["c"] for low in iso["minima"]] == pytest.approx(np.unique(c))
    for low, reason in ((low, low["reason"]) for low in iso["minima"]):
        assert (low["d"] is None) is bool(reason)
    assert (comparison["curve"], comparison["baseline"]) == ("a", "b")
    assert comparison["verdict"] == "offset" and comparison["gap"][2] < 0
    # a refusal prints no JSON, but what was read
    refused = fit("--csv", str(path), *options, "--where", "n<2e7", "--json")
    assert "ablate: " in refused and "[" not in refused.split("ablate: ")[0]


def test_the_page_describes_every_field_of_the_json() -> None:
    page = (Path(__file__).parent.parent / "docs" / "fit.md").read_text(encoding="utf-8")
    described: dict[str, set[str]] = {}
    of = ""
    for kind, names in re.findall(r"^\| (?:`(scaling-\w+)`)? ?\| (`.+?`) \|", page, re.M):
        of = kind or of
        described.setdefault(of, set()).update(re.findall(r"`(\w+)`", names))
    scaling = {kind: one for kind, one in kinds().items() if kind.startswith("scaling-")}
    assert described == {
        kind: {field.name for field in dataclasses.fields(one)} - {"stratum"}
        for kind, one in scaling.items()
    }


@pytest.mark.usefixtures("svg_only")
def test_a_table_is_drawn(fit: Callable[..., str], write: Write, tmp_path: Path) -> None:
    path = write(
        "flops,xent\n" + "".join(f"{c:g},{1 + c**-0.1 * 50}\n" for c in np.geomspace(1e18, 1e22, 7))
    )
    said = fit(
        "--csv", str(path), "--flops", "flops", "--loss", "xent", "--plot", str(tmp_path / "drawn")
    )
    assert said.endswith(f"Figures: {tmp_path / 'drawn'}\n")
    assert {file.stem for file in (tmp_path / "drawn").iterdir()} == {"scaling-c", "residuals"}
    assert "xent" in (tmp_path / "drawn" / "scaling-c.svg").read_text(encoding="utf-8")
    (tmp_path / "file").touch()
    assert "cannot be written" in fit(
        "--csv", str(path), "--flops", "flops", "--loss", "xent", "--plot", str(tmp_path / "file")
    )


def test_a_refusal_of_several_curves_is_given_once(fit: Callable[..., str], write: Write) -> None:
    file = str(
        write("arm,N,ppl\n" + "".join(f"{arm},1e6,{loss}\n" for arm in "abc" for loss in (30, 31)))
    )
    said = fit("--csv", file, "--n", "N", "--loss", "ppl", "--group", "arm").splitlines()
    # what is at fault comes first, and is not lost
    assert said[1].startswith("ppl reaches 31: if it is a perplexity")
    assert said[-1].startswith(
        "ablate: All 3 curves: L(N) needs at least 4 sizes and 5 runs; there are 1 size and 2 runs."
    )
    assert said[-1].count("needs at least") == 1
    sizes = [1e6, 3e6, 1e7, 3e7, 1e8, 3e8]
    fitted = [f"fine,{n},{2 + 1e3 * n**-0.5}\n" for n in sizes]
    file = str(write("arm,N,loss\n" + "".join([*fitted, "few,1e6,3\n", "less,1e6,3\n"])))
    assert "few and less: L(N) needs at least" in fit(
        "--csv", file, "--n", "N", "--loss", "loss", "--group", "arm"
    )


def test_a_fit_that_describes_nothing_leads_with_that(write: Write) -> None:
    rng = np.random.default_rng(0)
    n, d = (
        axis.ravel() for axis in np.meshgrid(np.geomspace(1e6, 1e8, 5), np.geomspace(1e8, 1e10, 5))
    )
    perplexity = np.exp(FORMS["nd"].loss(USUAL, {"n": n, "d": d}) + 0.3 * rng.normal(size=25))
    text = "N,D,ppl\n" + "".join(f"{a},{b},{c}\n" for a, b, c in zip(n, d, perplexity, strict=True))
    said = read(write(text), n="N", d="D", loss="ppl").fit(bootstraps=50).lines()
    assert (
        "% off the curve" in said[0]
        and said[1].startswith("  The runs deviate ")
        and "its constants are meaningless" in said[1]
    )
    # no advice on how to sharpen nonsense
    assert not any("noise would have to be" in line for line in said)
    good = read(write(text), n="N", d="D", loss="log(ppl)").fit(bootstraps=50)
    assert "are meaningless" not in "\n".join(good.lines())


def test_a_table_says_what_would_suffice(fit: Callable[..., str], write: Write) -> None:
    rng = np.random.default_rng(0)
    n, d = (
        axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4))
    )
    loss = FORMS["nd"].loss(USUAL, {"n": n, "d": d}) * np.exp(0.03 * rng.normal(size=16))
    text = "N,D,loss\n" + "\n".join(f"{a},{b},{c}" for a, b, c in zip(n, d, loss, strict=True))
    said = "\n".join(read(write(text), n="N", d="D", loss="loss").fit(bootstraps=50).lines())
    assert "For 0.2 the noise would have to be about" in said and "this would suffice: " in said
    few = "N,loss\n1e6,3\n1e7,2.5\n1e8,2.2\n"
    refused = fit("--csv", str(write(few)), "--n", "N", "--loss", "loss")
    assert (
        "\nablate: L(N) needs at least 4 sizes and 5 runs; there are 3 sizes" in refused
        and "this grid would suffice: " in refused
    )


def test_a_table_is_read_from_standard_input() -> None:
    """Packed, as of `curl … | ablate fit --csv -`."""
    rows = "".join(f"{n:.9g},{2 + 12 * n**-0.3:.9g}\n" for n in np.geomspace(1e6, 1e9, 6))
    command = [sys.executable, "-m", "ablate", "fit", "--csv", "-", "--n", "n", "--loss", "loss"]
    good, empty = (
        subprocess.run(command, input=data, capture_output=True)
        for data in (gzip.compress(b"n,loss\n" + rows.encode()), b"")
    )
    assert good.returncode == 0 and b"alpha = 0.3 [" in good.stdout
    assert empty.returncode == 2 and b"/dev/stdin: a table needs a line" in empty.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give a study, or a table with --csv FILE"),
        (["scale", "--csv", "t.csv"], "give a study, or a table"),
        (["scale", "--n", "x"], "--n is for tables"),
        (["--csv", "t.csv", "--n", "x"], "--loss COLUMN"),
        (["--csv", "no-such.csv", "--n", "x", "--loss", "y"], "no-such.csv: cannot be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    fit: Callable[..., str], arguments: list[str], complaint: str
) -> None:
    assert complaint in fit(*arguments)
