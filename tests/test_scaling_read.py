"""Any table of losses: what people write in files is read or refused by its line, and `ablate fit
--csv` says what it holds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import numpy as np
import pytest
from report_study import svg_only  # noqa: F401

from ablate.cli import main
from ablate.errors import AblateError
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.read import read

DATA = Path(__file__).parent / "data" / "scaling"

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
